"""Requests for files of filesystems of fsspec, and their checked answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from nczarr_fsspec.transport.base import Transport
    from nczarr_fsspec.transport.policy import RequestLimits


def open_transport(fs: AbstractFileSystem, limits: RequestLimits | None = None) -> Transport:
    """Return the way to the files of `fs`; parameters as `Transport`."""
    from nczarr_fsspec.transport.filesystems import kind_of
    from nczarr_fsspec.transport.policy import DEFAULT_LIMITS

    limits = limits or DEFAULT_LIMITS
    kind = kind_of(fs)
    if kind == "http":
        from nczarr_fsspec.transport.http import HTTPTransport

        return HTTPTransport(fs, limits)
    if kind == "s3":
        from nczarr_fsspec.transport.s3 import S3Transport

        return S3Transport(fs, limits)
    from nczarr_fsspec.transport.fsspec import FsspecTransport

    return FsspecTransport(fs, limits)
