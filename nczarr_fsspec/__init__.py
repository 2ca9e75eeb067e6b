"""Storage side of the ``nczarr`` engine: URLs, stores, and the errors of both packages.

Importing this package imports nothing heavy; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nczarr_fsspec.address_policy import AddressPolicy as AddressPolicy
    from nczarr_fsspec.errors import AccessDeniedError as AccessDeniedError
    from nczarr_fsspec.errors import DatasetNotFoundError as DatasetNotFoundError
    from nczarr_fsspec.errors import FormatError as FormatError
    from nczarr_fsspec.errors import NCZarrError as NCZarrError
    from nczarr_fsspec.errors import StoreError as StoreError
    from nczarr_fsspec.errors import URLError as URLError
    from nczarr_fsspec.keystore import KeyStore as KeyStore
    from nczarr_fsspec.keystore import LocalStore as LocalStore
    from nczarr_fsspec.keystore import RemoteStore as RemoteStore
    from nczarr_fsspec.place import open_keystore as open_keystore
    from nczarr_fsspec.places.url import NetCDFURL as NetCDFURL
    from nczarr_fsspec.places.url import parse_url as parse_url
    from nczarr_fsspec.places.url import redact as redact
    from nczarr_fsspec.ranges.filesystem import ByteRangeFileSystem as ByteRangeFileSystem
    from nczarr_fsspec.ranges.local import open_file_object as open_file_object
    from nczarr_fsspec.ranges.local import open_local as open_local
    from nczarr_fsspec.ranges.remote import open_source as open_source
    from nczarr_fsspec.ranges.source import ByteSource as ByteSource
    from nczarr_fsspec.ranges.source import LocalBytes as LocalBytes
    from nczarr_fsspec.ranges.source import RemoteBytes as RemoteBytes
    from nczarr_fsspec.stores.directory import DirectoryStore as DirectoryStore
    from nczarr_fsspec.stores.fsspec import FsspecStore as FsspecStore
    from nczarr_fsspec.stores.mapping import MappingStore as MappingStore
    from nczarr_fsspec.stores.zip import RemoteZipStore as RemoteZipStore
    from nczarr_fsspec.stores.zip import ZipStore as ZipStore
    from nczarr_fsspec.transport.options import storage_options as storage_options

_MODULES = {
    "nczarr_fsspec.address_policy": ["AddressPolicy"],
    "nczarr_fsspec.transport.options": ["storage_options"],
    "nczarr_fsspec.errors": [
        "AccessDeniedError",
        "DatasetNotFoundError",
        "FormatError",
        "NCZarrError",
        "StoreError",
        "URLError",
    ],
    "nczarr_fsspec.keystore": ["KeyStore", "LocalStore", "RemoteStore"],
    "nczarr_fsspec.ranges.filesystem": ["ByteRangeFileSystem"],
    "nczarr_fsspec.ranges.local": ["open_file_object", "open_local"],
    "nczarr_fsspec.ranges.remote": ["open_source"],
    "nczarr_fsspec.ranges.source": ["ByteSource", "LocalBytes", "RemoteBytes"],
    "nczarr_fsspec.place": ["open_keystore"],
    "nczarr_fsspec.stores.directory": ["DirectoryStore"],
    "nczarr_fsspec.stores.fsspec": ["FsspecStore"],
    "nczarr_fsspec.stores.mapping": ["MappingStore"],
    "nczarr_fsspec.stores.zip": ["RemoteZipStore", "ZipStore"],
    "nczarr_fsspec.places.url": ["NetCDFURL", "parse_url", "redact"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_MODULE_OF)


if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
