"""What a user may name, to be read or to be written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nczarr_fsspec import parse_url
from nczarr_fsspec.destination import Destination, open_destination
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_fsspec.resolve import open_data, open_file_at

__all__ = ["find_destination", "open_file_at", "open_target"]


def open_target(
    target: Any,
    storage_options: Mapping[str, Any] | None = None,
    index_cache: Path | None = None,
) -> tuple[KeyStore | ByteSource, frozenset[str]]:
    """Open a target for reading.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.open_data` takes, or a zarr-python Store.
    storage_options, index_cache
        As `nczarr_fsspec.resolve.open_data`.

    Returns
    -------
    store, mode
        The mode words of a URL's fragment.
    """
    if "zarr" in sys.modules:  # else nobody can have made a Store
        from zarr.abc.store import Store

        if isinstance(target, Store):
            from nczarr_xarray.zarr._adopted import adopt

            return adopt(target), frozenset()
    mode: frozenset[str] = frozenset()
    if isinstance(target, str) and "://" in target and "#" in target:
        mode = parse_url(target).mode
    return open_data(target, storage_options, index_cache), mode


def find_destination(target: Any, storage_options: Mapping[str, Any] | None = None) -> Destination:
    """Find out where to write.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.destination.open_destination` takes, or a zarr-python Store.
    storage_options
        For fsspec.
    """
    if "zarr" in sys.modules:  # else nobody can have made a Store
        from zarr.abc.store import Store

        if isinstance(target, Store):
            from nczarr_xarray.zarr._adopted import adopt_for_writing

            target = adopt_for_writing(target)
    return open_destination(target, storage_options)
