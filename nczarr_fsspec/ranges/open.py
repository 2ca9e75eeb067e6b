"""From a filesystem and a path to the source of its bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from nczarr_fsspec.errors import DatasetNotFoundError, URLError
from nczarr_fsspec.ranges.local import FileObjectBytes, LocalFileBytes, MemoryBytes, OpenFileBytes
from nczarr_fsspec.ranges.source import Known, LocalBytes, RemoteBytes

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: a file that its server does not serve in ranges is kept in memory, up to this size in bytes
MAX_WHOLE = 256 << 20
#: the storage option that sets another
MAX_WHOLE_OPTION = "max_whole"


def open_source(
    fs: AbstractFileSystem,
    path: str,
    shown: str | None = None,
    *,
    known: Known | None = None,
    max_whole: int = MAX_WHOLE,
) -> RemoteBytes | LocalBytes:
    """Open one file for verified reads of byte ranges; over a network with one request.

    Parameters
    ----------
    fs
        Any fsspec filesystem; used as a recipe only (`SharedFilesystem`).
    path
        In `fs`, without protocol; for HTTP the URL.
    shown
        How messages name the file; by default its URL without secrets.
    known
        The version of which the caller has the metadata. If the file still is that one, HTTP
        and S3 open with a conditional request that brings no ``head``.
    max_whole
        Bytes of a file that may be kept in memory if its server does not serve ranges.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file, or it is a directory.
    StoreError
        If it cannot be read.
    """
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    from nczarr_fsspec.ranges.fsspec import FsspecBytes
    from nczarr_fsspec.stores._shared import is_s3
    from nczarr_fsspec.stores.fsspec import FsspecFiles, _describe, _is_http

    shown = shown or _describe(fs, path)
    if isinstance(fs, LocalFileSystem):
        return LocalFileBytes(fs._strip_protocol(path), shown)  # noqa: SLF001
    if isinstance(fs, MemoryFileSystem):
        return _open_memory(fs, path, shown)
    if _is_http(fs):
        from nczarr_fsspec.ranges.http import HTTPBytes
        from nczarr_fsspec.stores.http import HTTPFiles

        return HTTPBytes.open(HTTPFiles(fs), path, shown, known, max_whole)
    if is_s3(fs):
        from nczarr_fsspec.ranges.s3 import S3Bytes

        return S3Bytes.open(FsspecFiles(fs), path, shown, known)
    return FsspecBytes.open(FsspecFiles(fs), path, shown)


def open_local(path: str | os.PathLike[str], shown: str | None = None) -> LocalBytes:
    """Open a file of this machine; errors as `open_source`."""
    return LocalFileBytes(path, shown)


def open_file_object(file: BinaryIO, shown: str | None = None) -> LocalBytes:
    """Read from a binary file that the caller has opened; `StoreError` if that cannot be."""
    if OpenFileBytes.is_regular(file):
        return OpenFileBytes(file, shown)
    return FileObjectBytes(file, shown)


def split_options(options: Mapping[str, Any] | None, shown: str) -> tuple[int, dict[str, Any]]:
    """``max_whole`` of storage options, and the others, which are for fsspec.

    Raises
    ------
    URLError
        If it is not a number of bytes.
    """
    rest = dict(options or {})
    limit = rest.pop(MAX_WHOLE_OPTION, MAX_WHOLE)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise URLError(shown, f"{MAX_WHOLE_OPTION} is a number of bytes, not {limit!r}")
    return limit, rest


def _open_memory(fs: AbstractFileSystem, path: str, shown: str) -> LocalBytes:
    try:
        created = fs.info(path).get("created", "")
        return MemoryBytes(fs.cat_file(path), shown, f"{created}")
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(shown, "there is no such file") from None
    except IsADirectoryError:
        raise DatasetNotFoundError(shown, "is a directory, not a file") from None
