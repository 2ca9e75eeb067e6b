"""A folder of whole files that were fetched, which together stay below a size.

Any number of processes and threads may share it. A file is written beside its place, as large as
it will be, and renamed when it is complete. Room is made by removing those that were used longest
ago; when one was used last is its access time, set here. On POSIX systems a file that is open
stays readable when it is removed (and its bytes are free when it is closed); on Windows it cannot
be removed, and stays.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.local_files import OPEN_FLAGS, pread

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
            self._discard(part)
            raise

    def _reserve(self, size: int) -> str | None:
        """Make room, and take it with an empty file of `size`; None if there is too little."""
        part = os.path.join(self.folder, uuid.uuid4().hex + _PART)
        with locked(os.path.join(self.folder, _LOCK)) as lock:
            total = _read_total(lock)
            if self.cap is not None:
                if total is None or total + size > self.cap:
                    total = self._sweep(self.cap - size)
                if total + size > self.cap:
                    _write_total(lock, total)
                    return None
            descriptor = os.open(part, _WRITE | os.O_EXCL, 0o600)
            try:
                os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
            _write_total(lock, None if total is None else total + size)
        return part

    def _discard(self, part: str) -> None:
        with suppress(OSError), locked(os.path.join(self.folder, _LOCK)) as lock:
            size = os.stat(part).st_size
            os.unlink(part)
            total = _read_total(lock)
            _write_total(lock, None if total is None else max(0, total - size))

    def _sweep(self, room: int) -> int:
        """Remove what was used longest ago, down to `room` bytes; return how many are left."""
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
        if total <= room:
            return total
        assert self.cap is not None
        goal = min(room, int(self.cap * _SWEPT))
        for _, size, path in sorted(entries):
            if total <= goal:
                break
            with suppress(OSError):  # on Windows it may be open
                os.unlink(path)
                total -= size
        return total

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
def locked(path: str) -> Iterator[int]:
    """Hold a lock that ends with the process; yield a descriptor of the file that has it."""
    descriptor = os.open(path, _WRITE, 0o600)
    try:
        held = _lock(descriptor)
        try:
            yield descriptor
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


def _read_total(lock: int) -> int | None:
    """Return how many bytes there are at most; None if that is not known."""
    text = pread(lock, 32, 0)
    return int(text) if text.strip().isdigit() else None


def _write_total(lock: int, total: int | None) -> None:
    os.lseek(lock, 0, os.SEEK_SET)
    os.write(lock, b" " * 20 if total is None else b"%020d" % total)
