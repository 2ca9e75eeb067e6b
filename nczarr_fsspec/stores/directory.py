"""A dataset in a directory tree of the local machine."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Any

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.keystore import LocalStore, check_key
from nczarr_fsspec.stores.inside import Inside

#: O_NONBLOCK: a FIFO in the tree must not stop us; it means nothing to regular files. Where a
#: system lacks a flag, it lacks what the flag is about; Windows alone has O_BINARY.
_FLAGS = ("O_RDONLY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
OPEN_FLAGS = sum(getattr(os, flag, 0) for flag in _FLAGS)

#: An object of fewer bytes is read without asking for its size.
SMALL = 1 << 16

#: No key of a dataset can be where these are answered.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ})


class DirectoryStore(LocalStore):
    """Keys are the paths of files below one directory.

    Parameters
    ----------
    path
        The root directory.
    follow_symlinks
        Whether symbolic links may lead out of it: whoever made the tree may have spread it over
        several disks. Keys themselves can never lead out.
    """

    def __init__(self, path: str | os.PathLike[str], *, follow_symlinks: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.url = self.path
        self._inside = Inside(self.path, follow=follow_symlinks)

    def get(
        self,
        key: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        path = self._inside.path(check_key(key))
        descriptor = self._open(path)
        if descriptor is None:
            return None
        try:
            whole = start is None and stop is None
            if whole and (small := _small(descriptor)):
                if most is not None and len(small) > most:
                    raise too_large(path, most)
                return small
            size = _size(descriptor, path)
            if size is None:
                return None
            if whole and most is not None and size > most:
                raise too_large(path, most)
            start = start or 0
            start = max(0, size + start) if start < 0 else start
            return read_at(descriptor, start, size if stop is None else min(stop, size))
        except StoreError:
            raise
        except OSError as error:
            raise _failure(path, error) from error
        finally:
            os.close(descriptor)

    def get_into(self, key: str, buffer: memoryview) -> int | None:
        path = self._inside.path(check_key(key))
        descriptor = self._open(path)
        if descriptor is None:
            return None
        try:
            count = read_into(descriptor, 0, buffer)
            if os.lseek(descriptor, 0, os.SEEK_END) == count:
                return count  # which a device does not say
            size = _size(descriptor, path)
            if size is None or count < len(buffer):
                return None if size is None else count
            return max(size, count)
        except StoreError:
            raise
        except OSError as error:
            if error.errno == errno.EISDIR:
                return None
            raise _failure(path, error) from error
        finally:
            os.close(descriptor)

    def stamp(self, key: str) -> tuple[int, ...] | None:
        try:
            status = os.stat(self._inside.path(check_key(key)))  # noqa: PTH116 - a Path takes long
        except (OSError, ValueError):  # StoreError is an OSError
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def list(self, prefix: str) -> frozenset[str]:
        path = self.path
        if prefix:
            self._inside.check(check_key(prefix))
            path = self._inside.prefix + prefix
        try:
            return frozenset(os.listdir(path))
        except UnicodeEncodeError:
            return frozenset()
        except OSError as error:
            if error.errno in _MISSING:
                return frozenset()
            raise _failure(path, error) from error

    def _open(self, path: str) -> int | None:
        """A descriptor; None where no object of a dataset can be."""
        try:
            return self._inside.open(path, OPEN_FLAGS)
        except UnicodeEncodeError:
            return None
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise _failure(path, error) from error


def read_at(descriptor: int, start: int, stop: int) -> bytes:
    """Bytes ``[start, stop)`` of an open file; fewer if it ends before `stop`."""
    if stop <= start:
        return b""
    data = _pread(descriptor, stop - start, start)
    if len(data) == stop - start:
        return data
    parts = [data]  # one call returns at most 2 GiB
    while data:
        start += len(data)
        data = _pread(descriptor, stop - start, start)
        parts.append(data)
    return b"".join(parts)


if hasattr(os, "pread"):
    _pread = os.pread
else:  # Windows: one file position a descriptor, so one reader at a time
    _lock = threading.Lock()

    def _pread(descriptor: int, count: int, offset: int) -> bytes:
        with _lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, count)


def read_into(descriptor: int, start: int, buffer: memoryview) -> int:
    """Fill `buffer` from byte `start` on; how many bytes there were."""
    there = 0
    while there < len(buffer):
        count = _preadv(descriptor, [buffer[there:]], start + there)
        if count == 0:
            break
        there += count
    return there


_preadv: Callable[[int, Sequence[Any], int], int]
if hasattr(os, "preadv"):
    _preadv = os.preadv
else:  # Windows, and macOS before 11

    def _preadv(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        data = _pread(descriptor, sum(map(len, buffers)), offset)
        at = 0
        for buffer in buffers:
            part = data[at : at + len(buffer)]
            buffer[: len(part)] = part
            at += len(part)
        return len(data)


def _small(descriptor: int) -> bytes:
    """All of a small file; nothing of what is large, empty, or no file."""
    try:
        data = _pread(descriptor, SMALL, 0)
        # some file systems in user space return less than there is, and devices have no size
        ends = len(data) < SMALL and os.lseek(descriptor, 0, os.SEEK_END) == len(data)
    except OSError:  # a directory, say
        return b""
    return data if ends else b""


def _size(descriptor: int, path: str) -> int | None:
    """Bytes of a regular file; None for a directory."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    if stat.S_ISDIR(status.st_mode):
        return None
    raise StoreError(path, "is not a regular file")


def _failure(path: str, error: OSError) -> StoreError:
    if error.errno == errno.ESPIPE:
        return StoreError(path, "is not a regular file")
    return StoreError(path, f"cannot be read: {error.strerror or error}")
