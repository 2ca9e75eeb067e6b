"""What a user may name, to be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nczarr_fsspec.destination import Destination, open_destination
from nczarr_xarray.dataset.targets import is_zarr_store


def find_destination(target: Any, storage_options: Mapping[str, Any] | None) -> Destination:
    """Find out where to write.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.destination.open_destination` takes, or a zarr-python Store.
    storage_options
        Options of the target's filesystem (fsspec).
    """
    if is_zarr_store(target):
        from nczarr_xarray.zarr.adopted import adopt_for_writing

        target = adopt_for_writing(target)
    return open_destination(target, storage_options)
