"""What a user may name, to be written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from nczarr_fsspec.destination import Destination, open_destination


def find_destination(target: Any, storage_options: Mapping[str, Any] | None = None) -> Destination:
    """Find out where to write.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.destination.open_destination` takes, or a zarr-python Store.
    storage_options
        Options of the target's filesystem (fsspec).
    """
    if "zarr" in sys.modules:  # else there can be no Store
        from zarr.abc.store import Store

        if isinstance(target, Store):
            from nczarr_xarray.zarr.adopted import adopt_for_writing

            target = adopt_for_writing(target)
    return open_destination(target, storage_options)
