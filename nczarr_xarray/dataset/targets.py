"""What a user may name, to be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nczarr_fsspec.resolve import Resolved, resolve


def open_target(
    target: Any,
    storage_options: Mapping[str, Any] | None = None,
    index_cache: Path | None = None,
) -> Resolved:
    """Open a target for reading.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.resolve.resolve` takes, or a zarr-python Store.
    storage_options, index_cache
        As there.
    """
    if "zarr" in sys.modules:  # else there can be no Store
        from zarr.abc.store import Store

        if isinstance(target, Store):
            from nczarr_xarray.zarr.adopted import adopt

            return Resolved(adopt(target))
    return resolve(target, storage_options, index_cache)
