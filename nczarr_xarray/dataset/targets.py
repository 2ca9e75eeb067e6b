"""What a user may name, to be read or to be written, and the references that a target may be."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.place import Place
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.ranges.local import open_local
from nczarr_fsspec.ranges.source import ByteSource, RemoteBytes
from nczarr_fsspec.transport.policy import RequestLimits
from nczarr_xarray.formats.registry import OpenOptions

if TYPE_CHECKING:
    from nczarr_fsspec.address_policy import AddressPolicy
    from nczarr_fsspec.destination import Destination
    from nczarr_fsspec.stores.references import File, Origin


def place_of(target: Any, storage_options: Mapping[str, Any] | None) -> Place:
    """Parse what a user names, to be read.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.place.Place.of` takes, or a zarr-python Store.
    storage_options
        As there.
    """
    if is_zarr_store(target):
        from nczarr_xarray.zarr.adopted import adopt

        return Place(contents=adopt(target))
    return Place.of(target, storage_options)


def find_destination(target: Any, storage_options: Mapping[str, Any] | None) -> Destination:
    """Find out where to write.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.destination.open_destination` takes, or a zarr-python Store.
    storage_options
        Options of the target's filesystem (fsspec).
    """
    from nczarr_fsspec.destination import open_destination

    if is_zarr_store(target):
        from nczarr_xarray.zarr.adopted import adopt_for_writing

        target = adopt_for_writing(target)
    return open_destination(target, storage_options)


def is_zarr_store(target: Any) -> bool:
    """Tell whether a target is a Store of zarr-python, which is imported if there is one."""
    if "zarr" not in sys.modules:
        return False
    from zarr.abc.store import Store

    return isinstance(target, Store)


#: Addresses, and files of addresses, that are looked at to find out where most files are.
_MOST_LOOKED_AT = 64

# -- references -----------------------------------------------------------------------------------
# Kerchunk references that a target turns out to be, opened as the keys of a dataset.


#: A folder behind a network that may be one of these.
_FOLDER_NAME = re.compile(r"\.(parq|parquet)/?\Z", re.IGNORECASE)


def as_references(target: object, data: object, options: OpenOptions) -> KeyStore | None:
    """Return the keys of a set of references; None if it is something else.

    Parameters
    ----------
    target
        What the caller opens.
    data
        What is there; or the target itself, if it is a mapping that kerchunk has made.

    Raises
    ------
    FormatError, StoreError
        If these are no references that can be read. What is there is closed then.
    """
    if not isinstance(data, (ByteSource, KeyStore, Mapping)) or not are_references(data):
        return None
    from nczarr_fsspec.errors import on_error

    limits = RequestLimits.take(dict(options.storage_options or {}), "storage_options")
    with nullcontext() if isinstance(data, Mapping) else on_error(data.close):
        store = open_references(data, options.policy(target, data))
    if limits.max_metadata is not None:
        store.max_metadata = limits.max_metadata
    return store


def are_references(data: ByteSource | KeyStore | Mapping[Any, Any]) -> bool:
    """Tell from what is there whether it is a set of references, as far as that costs little.

    A folder behind a network has to be called ``.parq`` or ``.parquet``: else every tree would
    have to be asked first.
    """
    if isinstance(data, ByteSource):
        return _begins_like_references(bytes(data.head))
    if isinstance(data, Mapping):
        return _is_references(data)
    if not isinstance(data, LocalStore) and not _FOLDER_NAME.search(data.url):
        return False
    (metadata,) = data.get_many([".zmetadata"])
    return isinstance(metadata, bytes) and b'"record_size"' in metadata


def _begins_like_references(head: bytes) -> bool:
    """Tell whether a file that begins so can be references as JSON, and is none of our formats."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'


def _is_references(document: Mapping[Any, Any]) -> bool:
    """Tell whether a mapping that a caller has is a set of references, not of bytes."""
    from nczarr_fsspec.stores.referenceformat import is_version_0

    return isinstance(document.get("refs"), Mapping) or is_version_0(document)


@dataclass(frozen=True, slots=True)
class FilesOfReferences:
    """Opens the files that references name, as far as they may.

    Parameters
    ----------
    policy
        What addresses mean, and which ones may be opened.
    """

    policy: AddressPolicy

    def open(self, address: str) -> File:
        """Open a file; see `nczarr_fsspec.stores.references.Opener`."""
        target = self.policy.resolve(address)
        if not is_url(target):
            return open_local(target)
        return Place.of(target, self.policy.options(target)).open_unasked()

    def is_remote(self, address: str) -> bool:
        """Tell whether a file has to be waited for."""
        try:
            return is_url(self.policy.resolve(address))
        except NCZarrError:
            return False  # it will be an error anyway


def open_references(origin: Origin, policy: AddressPolicy) -> KeyStore:
    """Return the keys of a set of references.

    Parameters
    ----------
    origin
        A file of JSON, a folder of Parquet, or what JSON would say.
    policy
        What addresses mean, and which ones may be opened.

    Raises
    ------
    FormatError
        If these are no references.
    StoreError
        If they cannot be read.
    """
    from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences

    opener = FilesOfReferences(policy)
    if isinstance(origin, (RemoteBytes, RemoteStore)):
        return RemoteReferences(origin, opener)
    here = LocalReferences(origin, opener)
    if any(map(opener.is_remote, islice(here.addresses(), _MOST_LOOKED_AT))):
        return here.as_remote()
    return here
