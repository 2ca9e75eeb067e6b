"""Cleaning up after writers that died during a change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nczarr_fsspec.changes.leftovers import remove_leftovers
from nczarr_fsspec.changes.recovery import recover as recover_store
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.places.names import says_file
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.dataset.targets import find_destination
from nczarr_xarray.export.cfa.claim import clear_claim
from nczarr_xarray.export.cfa.master_place import MasterPlace


def recover(target: Any, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Finish or remove what dead writers of a dataset have left behind.

    A change that had become valid is carried out; all other staged objects are
    removed. The next writer does the same if it can find out that the other one is
    dead. Call this function if that writer ran on another machine, or before a
    restart of this one. No process may write to the dataset meanwhile.

    Parameters
    ----------
    target, storage_options
        As for `to_nczarr` or `to_cfa`.

    Returns
    -------
    bool
        Whether anything had been left behind.

    Raises
    ------
    URLError
        If `target` cannot be understood, or is nothing that can be written.
    ImportError
        If the package for the protocol of `target` is not installed.
    StoreError
        If the store cannot be changed.
    """
    place = _master_place(target, storage_options)
    claimed = place is not None and _claim_is_cleared(place)
    abandoned = place is not None and place.remove_abandoned()
    if place is not None and not place.is_tree and (claimed or _names_a_file(place)):
        return _recover_file(place) or claimed or abandoned
    destination = find_destination(target, storage_options)
    path, store = destination.path, destination.store
    found = [
        claimed or abandoned,
        path is not None and remove_leftovers(os.path.realpath(path), alive=True),
        store is not None and recover_store(store),
        store is not None and _remove_temporaries(store),
    ]
    return any(found)


def _master_place(target: Any, storage_options: Mapping[str, Any] | None) -> MasterPlace | None:
    try:
        return MasterPlace.find(target, storage_options)
    except URLError:  # nothing that can have fragments beside it
        return None


def _claim_is_cleared(place: MasterPlace) -> bool:
    try:
        return clear_claim(place)
    except StoreError as error:  # of a key that is our own business
        raise type(error)(place.url, error.reason) from error


def _names_a_file(place: MasterPlace) -> bool:
    is_folder = os.path.isdir(place.folder + place.name)  # a tree may have any name
    return says_file(place.name, place.mode) and not is_folder


def _recover_file(place: MasterPlace) -> bool:
    """Remove what any writer of a file of this machine left beside it."""
    store = place.store
    if not isinstance(store, DirectoryWriter):
        return False
    path = os.path.join(store.path, place.name)
    return remove_leftovers(os.path.realpath(path), alive=True)


def _remove_temporaries(store: WritableStore) -> bool:
    """Remove the files of a directory that are not complete."""
    if not isinstance(store, DirectoryWriter):
        return False
    found = [key for key, _ in store.temporaries()]
    store.delete(found)
    return bool(found)
