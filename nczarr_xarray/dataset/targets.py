"""What a user may name, to be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nczarr_fsspec.resolve import Resolved, resolve


def open_target(
    target: Any, storage_options: Mapping[str, Any] | None, index_cache: Path | None = None
) -> Resolved:
    """Open a target for reading.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.resolve.resolve` takes, or a zarr-python Store.
    storage_options, index_cache
        As there.
    """
    if is_zarr_store(target):
        from nczarr_xarray.zarr.adopted import adopt

        return Resolved(adopt(target))
    return resolve(target, storage_options, index_cache)


def is_zarr_store(target: Any) -> bool:
    """Tell whether a target is a Store of zarr-python, which is imported if there is one."""
    if "zarr" not in sys.modules:
        return False
    from zarr.abc.store import Store

    return isinstance(target, Store)
