"""What a user may name, to be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from nczarr_fsspec.place import Place


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


def is_zarr_store(target: Any) -> bool:
    """Tell whether a target is a Store of zarr-python, which is imported if there is one."""
    if "zarr" not in sys.modules:
        return False
    from zarr.abc.store import Store

    return isinstance(target, Store)
