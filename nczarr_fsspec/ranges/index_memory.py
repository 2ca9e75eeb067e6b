"""What is remembered of remote files: the bytes of their metadata, by place and version.

A file that is opened again costs one conditional request, or, if its server
has no such, the first one; the rest of its metadata is here. What is remembered
is bytes and not what was made of them, so it means the same to every version of
this package, also on disk.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import uuid
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from nczarr_fsspec.ranges.source import Known, RemoteBytes
from nczarr_fsspec.transport.request import Extent

_MAGIC = b"NCSPARSE\x01\0\0\0\0\0\0\0"
_DIGEST = 16


class SparseBytes:
    """Some of the bytes of a file: blocks that may touch but do not overlap.

    The bytes at one place are always the same, so the first ones are kept.
    Its callers bound it: nothing is dropped.

    Attributes
    ----------
    nbytes : int
        How many bytes are known.
    """

    __slots__ = ("_blocks", "_runs", "_starts", "_stops", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._blocks: list[memoryview] = []
        self._runs: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Remember the bytes from `start` on. `data` must not be changed afterwards."""
        view = memoryview(data).cast("B").toreadonly()
        for extent in self.missing([Extent(start, start + len(view))]):
            block = view[extent.start - start : extent.stop - start]
            if len(block) < len(view) or len(block) < memoryview(view.obj).nbytes // 2:
                block = memoryview(bytes(block))  # rather than keep all it is a part of alive
            at = bisect_left(self._starts, extent.start)
            self._starts.insert(at, extent.start)
            self._stops.insert(at, extent.stop)
            self._blocks.insert(at, block)
            self.nbytes += len(block)
            self._runs = None

    def get(self, start: int, stop: int) -> memoryview | None:
        """Return the bytes ``[start, stop)``, or None if not all of them are known."""
        if start >= stop:
            return memoryview(b"")
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._stops[at] <= start:
            return None
        if self._stops[at] >= stop:
            base = self._starts[at]
            return self._blocks[at][start - base : stop - base]
        if self.missing([Extent(start, stop)]):
            return None
        end = bisect_left(self._starts, stop)
        joined = b"".join(self._blocks[at:end])
        return memoryview(joined)[start - self._starts[at] : stop - self._starts[at]]

    def covers(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Tell for each of many pieces ``[start, stop)`` whether all of its bytes are known."""
        low, high = self._arrays()
        if not len(low):
            return stops <= starts
        at = np.searchsorted(low, starts, side="right") - 1
        return ((at >= 0) & (stops <= high[at])) | (stops <= starts)

    def missing(self, extents: Iterable[Extent]) -> list[Extent]:
        """Return what of `extents` is not known: ascending and apart from each other."""
        return subtract(extents, self._starts, self._stops)

    def dump(self) -> bytes:
        """Return all of it in a compact form, with a checksum, for `load`."""
        low, high = self._arrays()
        head = np.concatenate(([len(low)], low, high)).astype("<i8").tobytes()
        body = b"".join((_MAGIC, head, *self._blocks))
        return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()

    @classmethod
    def load(cls, data: bytes | memoryview) -> SparseBytes:
        """Make it again from what `dump` wrote.

        Raises
        ------
        ValueError
            If the data are damaged or from another version of this form.
        """
        body, digest = memoryview(data)[:-_DIGEST], bytes(memoryview(data)[-_DIGEST:])
        fixed = len(_MAGIC) + 8
        if len(body) < fixed or bytes(body[: len(_MAGIC)]) != _MAGIC:
            raise ValueError("not a stored index, or of another version")
        if hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
            raise ValueError("a stored index is damaged")
        (count,) = np.frombuffer(body[len(_MAGIC) : fixed], dtype="<i8").tolist()
        if not 0 <= count <= (len(body) - fixed) // 16:
            raise ValueError("a stored index counts more blocks than it has")
        at = fixed + 16 * count
        bounds = np.frombuffer(body[fixed:at], dtype="<i8").reshape(2, count).tolist()
        known, last = cls(), -1
        for start, stop in zip(*bounds, strict=True):
            if not last < start < stop or stop - start > len(body) - at:
                raise ValueError("a stored index has blocks that are not in order or not there")
            known.add(start, bytes(body[at : at + stop - start]))
            at, last = at + stop - start, stop
        if at != len(body):
            raise ValueError("a stored index is longer than its blocks")
        return known

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return starts and stops of the known runs, touching ones joined; kept until `add`."""
        if self._runs is None:
            low = np.asarray(self._starts, dtype=np.int64)
            high = np.asarray(self._stops, dtype=np.int64)
            apart = low[1:] > high[:-1]
            edge = np.ones(min(1, len(low)), dtype=bool)
            self._runs = low[np.concatenate((edge, apart))], high[np.concatenate((apart, edge))]
        return self._runs


def subtract(
    extents: Iterable[Extent], starts: Sequence[int], stops: Sequence[int]
) -> list[Extent]:
    """Return what of `extents` is outside of the intervals from `starts` to `stops`.

    Parameters
    ----------
    extents
        In any order; they may touch or overlap.
    starts, stops
        Of the intervals, ascending; they may touch but do not overlap.

    Returns
    -------
    Ascending and apart from each other, none empty.
    """
    rest: list[Extent] = []
    for start, stop in join(extents):
        at = max(0, bisect_right(starts, start) - 1)
        for i in itertools.count(at):
            if i == len(starts) or starts[i] >= stop:
                break
            if stops[i] <= start:
                continue
            if starts[i] > start:
                rest.append(Extent(start, starts[i]))
            start = stops[i]
        if start < stop:
            rest.append(Extent(start, stop))
    return rest


def join(extents: Iterable[Extent]) -> list[Extent]:
    """Return the same bytes as extents that ascend and are apart from each other, none empty."""
    joined: list[Extent] = []
    for extent in sorted(extents):
        if extent.start >= extent.stop:
            continue
        if joined and extent.start <= joined[-1].stop:
            if extent.stop > joined[-1].stop:
                joined[-1] = Extent(joined[-1].start, extent.stop)
        else:
            joined.append(extent)
    return joined


#: Bytes of metadata of all files together.
MOST_BYTES = 1 << 28
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
            total = self._nbytes()
            while len(self._files) > 1 and (total > MOST_BYTES or len(self._files) > MOST_FILES):
                _, oldest = self._files.popitem(last=False)
                total -= oldest.sparse.nbytes
            return found

    @property
    def size(self) -> tuple[int, int]:
        """How many files are known, and how many bytes of them."""
        with self._lock:
            return len(self._files), self._nbytes()

    def clear(self) -> None:
        """Forget everything (the disk does not)."""
        with self._lock:
            self._files.clear()

    def _nbytes(self) -> int:
        return sum(map(attrgetter("sparse.nbytes"), self._files.values()))


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
