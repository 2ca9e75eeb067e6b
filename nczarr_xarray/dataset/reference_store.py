"""Kerchunk references, opened as the keys of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.keystore import KeyStore, RemoteStore
from nczarr_fsspec.place import Place
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.ranges.local import open_local
from nczarr_fsspec.ranges.source import RemoteBytes
from nczarr_fsspec.stores.references import File, LocalReferences, Origin, RemoteReferences

#: Addresses, and files of addresses, that are looked at to find out where most files are.
_MOST_LOOKED_AT = 64


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
    opener = FilesOfReferences(policy)
    if isinstance(origin, (RemoteBytes, RemoteStore)):
        return RemoteReferences(origin, opener)
    here = LocalReferences(origin, opener)
    if any(map(opener.is_remote, islice(here.addresses(), _MOST_LOOKED_AT))):
        return here.as_remote()
    return here
