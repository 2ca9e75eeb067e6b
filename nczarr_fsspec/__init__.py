"""Storage side of the ``nczarr`` engine: URLs, stores, and the errors of both packages.

Importing this package imports nothing heavy; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nczarr_fsspec.aws import storage_options
    from nczarr_fsspec.errors import (
        DatasetNotFoundError,
        FormatError,
        NCZarrError,
        StoreError,
        URLError,
    )
    from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
    from nczarr_fsspec.ranges.filesystem import ByteRangeFileSystem
    from nczarr_fsspec.ranges.open import open_file_object, open_local, open_source
    from nczarr_fsspec.ranges.source import ByteSource, LocalBytes, RemoteBytes
    from nczarr_fsspec.resolve import open_keystore
    from nczarr_fsspec.stores.directory import DirectoryStore
    from nczarr_fsspec.stores.fsspec import FsspecStore
    from nczarr_fsspec.stores.mapping import MappingStore
    from nczarr_fsspec.stores.zip import RemoteZipStore, ZipStore
    from nczarr_fsspec.url import NetCDFURL, parse_url, redact

__all__ = [
    "ByteRangeFileSystem",
    "ByteSource",
    "DatasetNotFoundError",
    "DirectoryStore",
    "FormatError",
    "FsspecStore",
    "KeyStore",
    "LocalBytes",
    "LocalStore",
    "MappingStore",
    "NCZarrError",
    "NetCDFURL",
    "RemoteBytes",
    "RemoteStore",
    "RemoteZipStore",
    "StoreError",
    "URLError",
    "ZipStore",
    "open_file_object",
    "open_keystore",
    "open_local",
    "open_source",
    "parse_url",
    "redact",
    "storage_options",
]

_MODULES = {
    "aws": ["storage_options"],
    "errors": ["DatasetNotFoundError", "FormatError", "NCZarrError", "StoreError", "URLError"],
    "keystore": ["KeyStore", "LocalStore", "RemoteStore"],
    "ranges.filesystem": ["ByteRangeFileSystem"],
    "ranges.open": ["open_file_object", "open_local", "open_source"],
    "ranges.source": ["ByteSource", "LocalBytes", "RemoteBytes"],
    "resolve": ["open_keystore"],
    "stores.directory": ["DirectoryStore"],
    "stores.fsspec": ["FsspecStore"],
    "stores.mapping": ["MappingStore"],
    "stores.zip": ["RemoteZipStore", "ZipStore"],
    "url": ["NetCDFURL", "parse_url", "redact"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
