"""What a user may name, to be read or to be written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.place import Place

if TYPE_CHECKING:
    from nczarr_fsspec.destination import Destination


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
