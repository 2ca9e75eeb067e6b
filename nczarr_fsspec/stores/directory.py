"""A dataset in a directory tree of the local machine."""

from __future__ import annotations

import errno
import os
import stat

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import LocalStore, check_key

#: O_NONBLOCK: a FIFO in the tree must not stop us; it means nothing to regular files.
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

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
            end = status.st_size if stop is None else min(stop, status.st_size)
            return read_at(descriptor, start or 0, end)
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
    data = os.pread(descriptor, stop - start, start)
    if len(data) == stop - start:
        return data
    parts = [data]  # one call returns at most 2 GiB
    while data:
        start += len(data)
        data = os.pread(descriptor, stop - start, start)
        parts.append(data)
    return b"".join(parts)


def _reason(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
