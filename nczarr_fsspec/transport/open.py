"""From a filesystem of fsspec to the way to its files."""

from __future__ import annotations

from fsspec import AbstractFileSystem

from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.filesystems import is_http, is_s3
from nczarr_fsspec.transport.policy import DEFAULT_LIMITS, RequestLimits


def open_transport(fs: AbstractFileSystem, limits: RequestLimits = DEFAULT_LIMITS) -> Transport:
    """Return the way to the files of `fs`; parameters as `Transport`."""
    if is_http(fs):
        from nczarr_fsspec.transport.http import HTTPTransport

        return HTTPTransport(fs, limits)
    if is_s3(fs):
        from nczarr_fsspec.transport.s3 import S3Transport

        return S3Transport(fs, limits)
    from nczarr_fsspec.transport.fsspec import FsspecTransport

    return FsspecTransport(fs, limits)
