"""Remote files that are fetched as a whole, and kept on disk or in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import URLError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.places.s3netcdf4 import CONFIG_OPTION, configuration
from nczarr_fsspec.ranges.disk_cache import DiskCache
from nczarr_fsspec.ranges.local import Descriptor, MemoryBytes, RegularFileBytes
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.text import parse_size
from nczarr_fsspec.transport.policy import LIMIT_OPTIONS
from nczarr_fsspec.transport.request import Data, Extent

#: storage options: whether whole files are kept on disk, and where; or in memory
PERSIST_OPTION = "persist"
DISKLESS_OPTION = "diskless"
LOCATION_OPTION = "cache_location"
CAP_OPTION = "max_cache_size"
KEEPING_OPTIONS = (PERSIST_OPTION, DISKLESS_OPTION, LOCATION_OPTION, CAP_OPTION)
#: the storage options of ours that hold for all that is remote, and so for remote fragments of any
#: dataset
REMOTE_OPTIONS = (*LIMIT_OPTIONS, CONFIG_OPTION, *KEEPING_OPTIONS)

#: bytes of a part, and parts that are fetched at a time
_PART = 8 << 20
_AT_A_TIME = 4
#: below the folder that the user names, which may hold other things
_FOLDER = "nczarr"


@dataclass(frozen=True, slots=True)
class Keeping:
    """How remote files are kept.

    Attributes
    ----------
    cache : DiskCache or None
        Where; None for memory.
    most : int or None
        Bytes of a file that is kept; of one with more, ranges are read.
    """

    cache: DiskCache | None
    most: int | None

    @classmethod
    def take(cls, options: dict[str, Any], shown: str) -> Keeping | None:
        """Make it of storage options, which are taken out; None if they do not ask for it.

        ``persist`` or ``diskless`` ask for it. What is not given besides is as S3netCDF4's
        configuration has it.

        Raises
        ------
        URLError
            If they make no sense.
        """
        given = {name: options.pop(name) for name in KEEPING_OPTIONS if name in options}
        for name in (PERSIST_OPTION, DISKLESS_OPTION):
            if not isinstance(given.setdefault(name, False), bool):
                raise URLError(shown, f"{name} is True or False, not {given[name]!r}")
        persist, diskless = given[PERSIST_OPTION], given[DISKLESS_OPTION]
        if persist and diskless:
            raise URLError(shown, "persist and diskless exclude each other")
        if not persist and (LOCATION_OPTION in given or CAP_OPTION in given):
            raise URLError(shown, f"{LOCATION_OPTION} and {CAP_OPTION} need persist=True")
        if not persist and not diskless:
            return None
        config = configuration(options.get(CONFIG_OPTION))
        if diskless:
            return cls(None, config.max_object_size_for_memory)
        location = given.get(LOCATION_OPTION) or config.cache_location
        if not isinstance(location, (str, os.PathLike)) or not location:
            raise URLError(shown, f"persist=True needs {LOCATION_OPTION}, the name of a folder")
        cap = given.get(CAP_OPTION, config.max_cache_size)
        cap = None if cap is None else parse_size(cap, CAP_OPTION)
        folder = Path(os.path.abspath(os.path.expanduser(location)), _FOLDER)
        return cls(DiskCache(str(folder), cap), cap)

    def keep(self, source: RemoteBytes) -> RemoteBytes | LocalBytes:
        """Return the file that was opened, fetched if need be; or itself if it is not kept.

        Raises
        ------
        StoreError
            If it cannot be fetched or kept.
        """
        if self.most is not None and source.size > self.most:
            return source
        if self.cache is None:
            return MemoryBytes(_whole(source), source.url, source.validator)
        if not source.validator or not source.identity:
            return source  # nothing would tell when to forget it
        return KeptFileBytes(self.cache, source)


class KeptFileBytes(RegularFileBytes):
    """A remote file in a cache on disk; fetched again if it is opened and has been removed there.

    Parameters
    ----------
    cache
        The folder.
    remote
        The file, open; it is closed.
    """

    def __init__(self, cache: DiskCache, remote: RemoteBytes) -> None:
        self._cache = cache
        self._remote = remote
        self._opening = ProcessLock()
        version = f"{remote.identity}\n{remote.validator}\n{remote.size}"
        self._name = hashlib.sha256(version.encode("utf-8", "surrogatepass")).hexdigest()
        super().__init__(remote.url)

    def _open(self) -> Descriptor:
        remote = self._remote
        try:
            number = self._cache.open(self._name, remote.size, partial(_fetch_to, remote))
        finally:
            remote.close()
        return Descriptor(number)

    def _ready(self) -> Descriptor:
        opened = self._opened
        if opened is None:
            with self._opening:  # for the remote file is closed when it has been fetched
                opened = self._opened
                if opened is None:
                    opened = self._open()  # its name says that it is the same version
                    self.validator = opened.validator
                    self._keep(opened)
        return opened


def _fetch_to(source: RemoteBytes, descriptor: int) -> None:
    """Write all bytes of a file to another."""
    with open(descriptor, "wb", closefd=False) as file:
        file.writelines(_parts(source))


def _whole(source: RemoteBytes) -> bytes:
    """Return all bytes of a file, and close it."""
    try:
        return b"".join(_parts(source))
    finally:
        source.close()


def _parts(source: RemoteBytes) -> Iterator[Data]:
    """Yield all bytes of a file, in parts of which several are fetched at a time."""
    head = source.head
    if head:
        yield head
    starts = range(len(head), source.size, _PART)
    extents = [Extent(start, min(start + _PART, source.size)) for start in starts]

    async def fetch(extents: Sequence[Extent]) -> list[list[Data]]:
        return await gather_or_cancel(*(source.fetch([extent]) for extent in extents))

    for at in range(0, len(extents), _AT_A_TIME):
        for (data,) in source.run(fetch(extents[at : at + _AT_A_TIME])):
            yield data
