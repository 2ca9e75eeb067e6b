"""What is remembered of remote files: the bytes of their metadata, by place and version.

A file that is opened again costs one conditional request, or, if its server
has no such, the first one; the rest of its metadata is here. What is remembered
is bytes and not what was made of them, so it means the same to every version of
this package, also on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nczarr_fsspec.ranges.source import Known, RemoteBytes
from nczarr_fsspec.ranges.sparse import SparseBytes

#: Bytes of metadata of all files together.
MOST_BYTES = 1 << 28
_DIGEST = 16
#: Files, whose parsed metadata take memory too.
MOST_FILES = 256
#: What is kept of a file in parsed form: its groups that were opened last.
MOST_PARSED = 8


class _Last(dict[Any, Any]):
    """The entries that were made last. Safe in threads."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        for old in list(self)[:-MOST_PARSED]:
            self.pop(old, None)


@dataclass(slots=True, eq=False)
class Remembered:
    """What is known of one version of a file.

    Attributes
    ----------
    known
        The version.
    sparse
        Bytes of its metadata.
    parsed
        What a parser has made of them; stays in this process.
    stored
        How many bytes the disk has.
    """

    known: Known
    sparse: SparseBytes = field(default_factory=SparseBytes)
    parsed: dict[Any, Any] = field(default_factory=_Last)
    stored: int = 0


class IndexMemory:
    """The files of this process that were opened last. Safe in threads."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start empty: at first, and in a fork, whose parent's threads may have held the lock."""
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Remembered] = OrderedDict()

    def known(self, identity: str, folder: Path | None = None) -> Known | None:
        """Return the version of a file that was seen last, in this process or by the disk cache."""
        with self._lock:
            if (found := self._files.get(identity)) is not None:
                return found.known
        loaded = _load(folder, identity) if folder is not None else None
        if loaded is None:
            return None
        with self._lock:
            return self._files.setdefault(identity, loaded).known

    def of(self, source: RemoteBytes) -> Remembered:
        """Return what is known of the version that `source` reads; nothing yet for a new one."""
        known = Known(source.size, source.validator)
        if not source.validator or not source.identity:
            return Remembered(known)  # nothing would tell when to forget it
        with self._lock:
            found = self._files.get(source.identity)
            if found is not None and found.known == known:
                self._files.move_to_end(source.identity)
                return found
            found = self._files[source.identity] = Remembered(known)
            self._files.move_to_end(source.identity)
            total = sum(file.sparse.nbytes for file in self._files.values())
            while len(self._files) > 1 and (total > MOST_BYTES or len(self._files) > MOST_FILES):
                _, oldest = self._files.popitem(last=False)
                total -= oldest.sparse.nbytes
            return found

    def clear(self) -> None:
        """Forget everything (the disk does not)."""
        with self._lock:
            self._files.clear()


#: The memory of this process.
memory = IndexMemory()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=memory.begin)


def store(folder: Path, source: RemoteBytes) -> None:
    """Write what is known of a file to `folder`, for other processes of this user.

    Raises
    ------
    OSError
        If that cannot be done.
    """
    from nczarr_fsspec.local_files import whole_file

    found = memory.of(source)
    if not source.validator or found.stored == found.sparse.nbytes:
        return

    async def dump() -> tuple[int, bytes]:
        """Run on the loop, where bytes are added, so that none is added meanwhile."""
        return found.sparse.nbytes, found.sparse.dump()

    nbytes, body = source.run(dump())
    header = json.dumps({"identity": source.identity, "url": source.url, **found.known._asdict()})
    data = header.encode() + b"\n" + body
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = str(folder / f"{source.identity}.index")
    part = str(folder / f"{source.identity}.{uuid.uuid4().hex}")  # others may write the same one
    opener = partial(os.open, mode=0o600)
    with whole_file(path, part), open(part, "xb", opener=opener) as file:
        file.write(_digest(data) + data)
    found.stored = nbytes


def _load(folder: Path, identity: str) -> Remembered | None:
    """Return what `store` wrote; None if there is nothing, or nothing that can be used."""
    try:
        stored = (folder / f"{identity}.index").read_bytes()
        digest, data = stored[:_DIGEST], stored[_DIGEST:]
        if digest != _digest(data):
            return None
        header, _, body = data.partition(b"\n")
        fields = json.loads(header)
        if fields["identity"] != identity:
            return None
        sparse = SparseBytes.load(body)
        known = Known(int(fields["size"]), str(fields["validator"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Remembered(known, sparse, stored=sparse.nbytes)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()
