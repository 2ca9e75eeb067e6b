"""Remote files that are fetched as a whole, and kept on disk or in memory."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.local_files import OPEN_FLAGS
from nczarr_fsspec.places.s3netcdf4 import CONFIG_OPTION, configuration
from nczarr_fsspec.ranges.local import Descriptor, MemoryBytes, RegularFileBytes
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.text import parse_size
from nczarr_fsspec.transport.policy import LIMIT_OPTIONS
from nczarr_fsspec.transport.request import Stamp

#: storage options: whether whole files are kept on disk, and where; or in memory
PERSIST_OPTION = "persist"
DISKLESS_OPTION = "diskless"
LOCATION_OPTION = "cache_location"
CAP_OPTION = "max_cache_size"
KEEPING_OPTIONS = (PERSIST_OPTION, DISKLESS_OPTION, LOCATION_OPTION, CAP_OPTION)
#: the storage options of ours that hold for all that is remote, and so for remote fragments of any
#: dataset
REMOTE_OPTIONS = (*LIMIT_OPTIONS, CONFIG_OPTION, *KEEPING_OPTIONS)

#: bytes of a part, and of the parts that are fetched at a time
_PIECE = 8 << 20
_AT_A_TIME = 4 * _PIECE
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

    @property
    def stamp(self) -> Stamp:
        return self._remote.stamp

    def _open(self) -> Descriptor:
        remote = self._remote

        def fill(descriptor: int) -> None:
            with open(descriptor, "wb", closefd=False) as file:
                file.writelines(_parts(remote))

        with self._opening:  # for the remote file is closed when it has been fetched
            opened = self._opened
            if opened is None:
                try:
                    number = self._cache.open(self._name, remote.size, fill)
                finally:
                    remote.close()
                opened = Descriptor(number)
                self.validator = opened.validator  # its name says that it is the same version
                self._keep(opened)
        return opened


def _whole(source: RemoteBytes) -> bytes:
    """Return all bytes of a file, and close it."""
    try:
        return b"".join(_parts(source))
    finally:
        source.close()


def _parts(source: RemoteBytes) -> Iterator[bytes]:
    """Yield all bytes of a file, in parts of which several are fetched at a time."""
    import numpy as np

    from nczarr_fsspec.ranges.reader import RangeReader

    reader = RangeReader(source)
    for at in range(0, source.size, _AT_A_TIME):
        starts = np.arange(at, min(at + _AT_A_TIME, source.size), _PIECE)
        yield from reader.read_all(starts, np.minimum(starts + _PIECE, source.size))


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOCK = "lock"
_COMPLETE = ".file"
_PART = ".part"
#: seconds after which a part that nothing was added to belongs to a process that died
_ABANDONED = 86400
#: the share of the size they may have that files keep when room has to be made
_SWEPT = 0.9
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_WRITE = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class _Entry(NamedTuple):
    used: int
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class DiskCache:
    """Complete files by name.

    Parameters
    ----------
    folder
        Made if it is not there. Only its owner should be able to write to it.
    cap
        Bytes that all files may have; None for no limit. A file that is open while it is removed
        is not counted.
    """

    folder: str
    cap: int | None = None

    def open(self, name: str, size: int, fill: Callable[[int], None]) -> int:
        """Return a descriptor of a file that is there, or is made.

        Parameters
        ----------
        name
            A safe file name that identifies the content.
        size
            Of the content. If it has no room beside what others are writing, the file is made
            and not kept.
        fill
            Writes the content to a descriptor of a file of this size.

        Raises
        ------
        StoreError
            If that cannot be done, or what `fill` raises.
        """
        path = os.path.join(self.folder, name + _COMPLETE)
        found = _opened(path, size)
        if found is not None:
            return found
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            part = self._reserve(size)
            return self._passing(size, fill) if part is None else self._made(path, part, fill)
        except StoreError:
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "; free some, or set max_cache_size" if error.errno in _FULL else ""
            message = f"a file cannot be kept there: {reason}{hint}"
            raise StoreError(self.folder, message) from error

    def _made(self, path: str, part: str, fill: Callable[[int], None]) -> int:
        descriptor = -1
        try:
            descriptor = os.open(part, _WRITE, 0o600)
            fill(descriptor)
            os.fsync(descriptor)  # its size is right already: zeros would be taken for the content
            # under the lock: a count of the files that is under way could miss this one
            with locked(os.path.join(self.folder, _LOCK)):
                if sys.platform == "win32":  # which renames nothing that is open
                    os.close(descriptor)
                    descriptor = -1
                    os.replace(part, path)
                    descriptor = os.open(path, OPEN_FLAGS)
                else:
                    os.replace(part, path)
            return descriptor
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            with suppress(OSError):
                os.unlink(part)
            raise

    def _reserve(self, size: int) -> str | None:
        """Make room, and take it with an empty file of `size`; None if there is too little."""
        part = os.path.join(self.folder, uuid.uuid4().hex + _PART)
        with locked(os.path.join(self.folder, _LOCK)):
            if self.cap is not None and not self._sweep(self.cap - size, self.cap):
                return None
            with open(part, "xb", opener=partial(os.open, mode=0o600)) as file:
                file.truncate(size)
        return part

    def _sweep(self, room: int, cap: int) -> bool:
        """Remove what was used longest ago if there is more than `room`; tell whether that helps.

        The folder is listed each time, which takes microseconds for a file.
        """
        entries, total = [], 0
        now = time.time()
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):
                status = entry.stat()
                if entry.name.endswith(_PART) and status.st_mtime < now - _ABANDONED:
                    os.unlink(entry.path)
                    continue
                if not entry.name.endswith((_COMPLETE, _PART)):
                    continue
                total += status.st_size
                if entry.name.endswith(_COMPLETE):
                    entries.append(_Entry(status.st_atime_ns, status.st_size, entry.path))
        goal = room if total <= room else min(room, int(cap * _SWEPT))
        for _, size, path in sorted(entries):
            if total <= goal:
                break
            with suppress(OSError):  # on Windows it may be open
                os.unlink(path)
                total -= size
        return total <= room

    def _passing(self, size: int, fill: Callable[[int], None]) -> int:
        """Return a descriptor of a file without a name."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            file.truncate(size)
            fill(file.fileno())
            return os.dup(file.fileno())


def _opened(path: str, size: int) -> int | None:
    """Return a descriptor of a file of this size, marked as used now; None if there is none."""
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_size != size:
        os.close(descriptor)
        return None
    with suppress(OSError):  # it may be read-only, or gone
        os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
    return descriptor


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold a lock that ends with the process."""
    descriptor = os.open(path, _WRITE, 0o600)
    try:
        held = _lock(descriptor)
        try:
            yield
        finally:
            if held:
                _unlock(descriptor)  # for the child of a fork may have the descriptor, too
    finally:
        os.close(descriptor)


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        while True:
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)
            with suppress(OSError):  # after ten seconds
                msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
                return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a filesystem without locks: more may be removed than need be
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
