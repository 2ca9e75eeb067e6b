"""Files of this machine: parts that are read and copied, renames in one step, whole files."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from nczarr_fsspec.errors import StoreError, on_error

#: O_NONBLOCK: a FIFO in the tree must not stop us; it means nothing to regular files. Where a
#: system lacks a flag, it lacks what the flag is about; Windows alone has O_BINARY.
_FLAGS = ("O_RDONLY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
OPEN_FLAGS = sum(getattr(os, flag, 0) for flag in _FLAGS)
#: Bytes of a page of memory, where the system has large ones (Linux on most processors).
_HUGE_PAGE = 1 << 21
#: Bytes that are copied at a time where the system copies none by itself.
_PIECE = 1 << 20


def part_of_files(most: int) -> int:
    """Return `most`, or fewer: a small part of the files that this process may open."""
    if sys.platform == "win32":  # it has no such limit, and sockets are no files there
        return most
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if files == resource.RLIM_INFINITY else min(most, max(16, files // 4))


class FileRange(NamedTuple):
    """Bytes of an open file, which can be copied without being in this process's memory.

    Parameters
    ----------
    descriptor
        Of the file.
    start, size
        Where the bytes begin, and how many they are.
    url
        How messages name the file.
    """

    descriptor: int
    start: int
    size: int
    url: str

    def read(self) -> bytes:
        """Return the bytes (`StoreError` if the file ends before, or cannot be read)."""
        data = self._part(self.start, self.start + self.size)
        self._check(len(data))
        return data

    def append_to(self, target: int) -> None:
        """Write the bytes to another open file, at its position.

        Raises
        ------
        StoreError
            If they cannot be read, or the file ends before.
        OSError
            If they cannot be written.
        """
        at, stop = self.start, self.start + self.size
        while at < stop and (count := _copied_by_system(self.descriptor, target, stop - at, at)):
            at += count
        # where the system copies nothing, or fails: reads and writes show which of them fails
        while at < stop and (data := memoryview(self._part(at, min(stop, at + _PIECE)))):
            at += len(data)
            while data:
                data = data[os.write(target, data) :]
        self._check(at - self.start)

    def _part(self, start: int, stop: int) -> bytes:
        try:
            return read_at(self.descriptor, start, stop)
        except OSError as error:
            raise StoreError(self.url, f"cannot be read: {error.strerror or error}") from error

    def _check(self, count: int) -> None:
        if count < self.size:
            reason = f"ends at byte {self.start + count}, before what is to be copied"
            raise StoreError(self.url, reason)


def _copied_by_system(source: int, target: int, count: int, start: int) -> int:
    """Copy bytes inside of the system; return how many, 0 if it does not or cannot."""
    try:
        return os.copy_file_range(source, target, count, start)
    except (AttributeError, OSError):  # not Linux; or files of two systems, or none of ours
        return 0


def read_at(descriptor: int, start: int, stop: int) -> bytes:
    """Return the bytes ``[start, stop)`` of an open file; fewer if it ends before `stop`."""
    if stop <= start:
        return b""
    data = pread(descriptor, stop - start, start)
    if len(data) == stop - start:
        return data
    parts = [data]  # one call returns at most 2 GiB
    while data:
        start += len(data)
        data = pread(descriptor, stop - start, start)
        parts.append(data)
    return b"".join(parts)


if hasattr(os, "pread"):
    pread = os.pread
else:  # Windows: one file position a descriptor, so one reader at a time
    _lock = threading.Lock()

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        """Return bytes from `offset` on; a lock keeps other threads from moving the position."""
        with _lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, count)


def read_into(descriptor: int, start: int, buffer: memoryview) -> int:
    """Fill `buffer`, of bytes, from byte `start` on; how many bytes there were."""
    there = 0
    while there < len(buffer):
        piece = buffer[there : there + _HUGE_PAGE]
        # Memory that is new is cleared when it is first written to. If that is amid the copy of a
        # read, reading takes up to half as long again.
        piece[-1] = 0
        count = _pread_into(descriptor, piece, start + there)
        if count == 0:
            break
        there += count
    return there


if hasattr(os, "preadv"):

    def _pread_into(descriptor: int, buffer: memoryview, offset: int) -> int:
        return os.preadv(descriptor, [buffer], offset)

else:  # Windows, and macOS before 11

    def _pread_into(descriptor: int, buffer: memoryview, offset: int) -> int:
        data = pread(descriptor, len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)


#: Flags of ``renameat2`` (Linux) and of ``renamex_np`` (macOS).
_ONLY_NEW, _EXCHANGE = 1, 2
_ONLY_NEW_MACOS, _EXCHANGE_MACOS = 4, 2


def exchange(one: str, other: str) -> bool:
    """Exchange the names of two directories in one step; return False if the system cannot."""
    return rename_with(one, other, _EXCHANGE, _EXCHANGE_MACOS) == 0


def rename_to_new(old: str, new: str) -> bool:
    """Rename a file, in one step, where nothing is yet; return False if the system cannot.

    Raises
    ------
    FileExistsError
        If there is something.
    """
    failed = rename_with(old, new, _ONLY_NEW, _ONLY_NEW_MACOS)
    if failed and os.path.lexists(new):
        raise FileExistsError(new)
    return failed == 0


def rename_with(one: str, other: str, flag: int, flag_macos: int) -> int:
    """Call the function of the C library; what it returns, or 1 if there is none."""
    try:
        library = ctypes.CDLL(None)
        names = os.fsencode(one), os.fsencode(other)
        if sys.platform == "darwin":
            return int(library.renamex_np(*names, flag_macos))
        current = -100  # AT_FDCWD: relative paths count from the working directory
        return int(library.renameat2(current, names[0], current, names[1], flag))
    except (AttributeError, OSError, TypeError):
        return 1


@contextmanager
def temporary_file() -> Iterator[str]:
    """Yield a path where the block may make a file, in a new folder; both are removed then.

    That cannot fail for want of a descriptor, after whatever the file was made for is done.
    """
    import tempfile  # which takes long

    folder = tempfile.mkdtemp(prefix="nczarr-")
    path = os.path.join(folder, "file")
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)
        with suppress(OSError):
            os.rmdir(folder)


def keep_access(old: str, new: str) -> None:
    """Give a file or directory the group and permissions of the one that it replaces.

    Raises
    ------
    OSError
        If there is none, or that is forbidden.
    """
    status = os.stat(old)
    if hasattr(os, "chown") and status.st_gid != os.stat(new).st_gid:
        with suppress(OSError):  # of a group that one is not in
            os.chown(new, -1, status.st_gid)
    os.chmod(new, stat.S_IMODE(status.st_mode))


@contextmanager
def whole_file(path: str, new: str) -> Iterator[str]:
    """Let a file become visible as a whole: the block makes it at `new`, then it is renamed.

    It has the permissions of the old one, if there is one.

    Parameters
    ----------
    path
        Where it is to be, and where an old one stays until then.
    new
        A path in the same folder. After an error nothing is left there.
    """

    def remove() -> None:
        with suppress(OSError, UnicodeEncodeError):
            os.unlink(new)

    with on_error(remove):
        yield new
        with suppress(OSError):  # there is none, as a rule
            if (
                os.path.lexists(path) and os.stat(new).st_nlink == 1
            ):  # else those of another file would change, too
                keep_access(path, new)
        os.replace(new, path)
        remove()  # of two links to one file, both are still there
