"""From a filesystem of fsspec to the way to its files."""

from __future__ import annotations

from fsspec import AbstractFileSystem

from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.filesystems import is_http, is_s3
from nczarr_fsspec.transport.policy import Timeout


def open_transport(fs: AbstractFileSystem, timeout: Timeout | None = None) -> Transport:
    """Return the way to the files of `fs`; parameters as `Transport`."""
    if is_http(fs):
        from nczarr_fsspec.transport.http import HTTPTransport

        return HTTPTransport(fs, timeout)
    if is_s3(fs):
        from nczarr_fsspec.transport.s3 import S3Transport

        return S3Transport(fs, timeout)
    from nczarr_fsspec.transport.fsspec import FsspecTransport

    return FsspecTransport(fs, timeout)
