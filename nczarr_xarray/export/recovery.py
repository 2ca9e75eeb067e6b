"""Cleaning up after writers that died during a change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nczarr_fsspec.changes.create import remove_leftovers
from nczarr_fsspec.changes.recovery import recover as recover_store
from nczarr_fsspec.errors import URLError
from nczarr_xarray.dataset.destinations import find_destination
from nczarr_xarray.export.cfa.claim import clear_claim
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.export.write_target import WriteTarget


def recover(target: Any, storage_options: Mapping[str, Any] | None = None) -> None:
    """Finish or remove what dead writers of a dataset have left behind.

    A change that had become valid is carried out; all other staged objects are
    removed. The next writer does the same if it can find out that the other one is
    dead. Call this function if that writer ran on another machine, or before a
    restart of this one. No process may write to the dataset meanwhile.

    Parameters
    ----------
    target, storage_options
        As for `to_nczarr`.

    Raises
    ------
    StoreError
        If the store cannot be changed.
    """
    if _recover_aggregation(target, storage_options):
        return
    write_target = WriteTarget(find_destination(target, storage_options))
    if write_target.destination.path is not None:
        remove_leftovers(os.path.realpath(write_target.destination.path), alive=True)
    if write_target.store is not None:
        recover_store(write_target.store)


def _recover_aggregation(target: Any, storage_options: Mapping[str, Any] | None) -> bool:
    """Remove what a writer of an aggregation left; tell whether that is all there can be."""
    try:
        place = MasterPlace.find(target, storage_options)
    except URLError:  # nothing that can have fragments beside it
        return False
    return clear_claim(place) and not place.is_tree
