"""From a filesystem and a path to the source of its bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from nczarr_fsspec.errors import DatasetNotFoundError
from nczarr_fsspec.ranges.local import FileObjectBytes, LocalFileBytes, MemoryBytes, OpenFileBytes
from nczarr_fsspec.ranges.source import Known, LocalBytes
from nczarr_fsspec.transport.policy import MAX_WHOLE, RequestLimits, Timeout

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from nczarr_fsspec.ranges.remote import RemoteFileBytes


def open_source(
    fs: AbstractFileSystem,
    path: str,
    shown: str | None = None,
    *,
    known: Known | None = None,
    max_whole: int = MAX_WHOLE,
    timeout: Timeout | None = None,
    tail: int = 0,
) -> RemoteFileBytes | LocalBytes:
    """Open one file for checked reads of byte ranges; a remote one with one request.

    Parameters
    ----------
    fs
        Any fsspec filesystem; used as a recipe only (`SharedFilesystem`).
    path
        In `fs`, without protocol; for HTTP the URL.
    shown
        How messages name the file; by default its URL without secrets.
    known, tail
        See `nczarr_fsspec.ranges.remote.RemoteFileBytes.begin`.
    max_whole
        Bytes of a file that may be kept in memory if its server does not serve ranges.
    timeout
        Of each request, if not what `fs` says.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file, or it is a directory.
    StoreError
        If it cannot be read.
    """
    limits = RequestLimits(timeout=timeout, max_whole=max_whole)
    source = source_at_once(fs, path, shown, limits)
    if not isinstance(source, LocalBytes):
        source.run(source.begin(known, tail))
    return source


def source_at_once(
    fs: AbstractFileSystem,
    path: str,
    shown: str | None,
    limits: RequestLimits,
) -> RemoteFileBytes | LocalBytes:
    """Return one file as `open_source` does, but for a remote one: it is asked nothing yet."""
    from nczarr_fsspec.ranges.remote import RemoteFileBytes
    from nczarr_fsspec.transport.filesystems import describe, is_in_memory, is_local, is_s3
    from nczarr_fsspec.transport.open import open_transport

    shown = shown or describe(fs, path)
    if is_s3(fs) and "/" not in path.strip("/"):
        raise DatasetNotFoundError(shown, "is a bucket, not a file")
    if is_local(fs):
        return LocalFileBytes(fs._strip_protocol(path), shown)
    if is_in_memory(fs):
        return _open_memory(fs, path, shown)
    return RemoteFileBytes(open_transport(fs, limits), path, shown, limits.max_whole)


def open_local(path: str | os.PathLike[str]) -> LocalBytes:
    """Open a file of this machine by its path; errors as of `open_source`."""
    return LocalFileBytes(path)


def open_file_object(file: BinaryIO, shown: str | None = None) -> LocalBytes:
    """Return the source of a binary file that the caller has opened, and closes.

    Parameters
    ----------
    file
        Seekable.
    shown
        How messages name it; by default by its ``name``.

    Raises
    ------
    StoreError
        If it cannot be read, or is a text file.
    """
    if OpenFileBytes.is_regular(file):
        return OpenFileBytes(file, shown)
    return FileObjectBytes(file, shown)


def _open_memory(fs: AbstractFileSystem, path: str, shown: str) -> LocalBytes:
    try:
        created = fs.info(path).get("created", "")
        return MemoryBytes(fs.cat_file(path), shown, f"{created}")
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(shown, "there is no such file") from None
    except IsADirectoryError:
        raise DatasetNotFoundError(shown, "is a directory, not a file") from None
