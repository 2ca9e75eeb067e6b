"""A dataset in a directory tree of the local machine."""

from __future__ import annotations

import errno
import os
import stat
import threading

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import LocalStore, check_key

#: O_NONBLOCK: a FIFO in the tree must not stop us; it means nothing to regular files. Where a
#: system lacks a flag, it lacks what the flag is about; Windows alone has O_BINARY.
_FLAGS = ("O_RDONLY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
OPEN_FLAGS = sum(getattr(os, flag, 0) for flag in _FLAGS)

#: No key of a dataset can be where these are answered.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ})


class DirectoryStore(LocalStore):
    """Keys are the paths of files below one directory.

    Symbolic links are followed: whoever made the tree may have spread it over
    several disks. Keys themselves can never lead out of it.

    Parameters
    ----------
    path
        The root directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.url = self.path
        self._prefix = self.path.rstrip("/") + "/"

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        path = self._prefix + check_key(key)
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except (OSError, UnicodeEncodeError) as error:
            if isinstance(error, UnicodeEncodeError) or error.errno in _MISSING:
                return None
            raise StoreError(path, _reason(error)) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                if stat.S_ISDIR(status.st_mode):
                    return None
                raise StoreError(path, "is not a regular file")
            size = status.st_size
            start = start or 0
            start = max(0, size + start) if start < 0 else start
            return read_at(descriptor, start, size if stop is None else min(stop, size))
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(path, _reason(error)) from error
        finally:
            os.close(descriptor)

    def list(self, prefix: str) -> frozenset[str]:
        path = self._prefix + check_key(prefix) if prefix else self.path
        try:
            return frozenset(os.listdir(path))
        except UnicodeEncodeError:
            return frozenset()
        except OSError as error:
            if error.errno in _MISSING:
                return frozenset()
            raise StoreError(path, _reason(error)) from error


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


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
