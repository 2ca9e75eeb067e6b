"""What a user may name, to be read or to be written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from nczarr_fsspec import open_keystore, parse_url
from nczarr_fsspec.destination import Destination, open_destination
from nczarr_fsspec.keystore import KeyStore


def open_target(
    target: Any, storage_options: Mapping[str, Any] | None = None
) -> tuple[KeyStore, frozenset[str]]:
    """Open a target for reading.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.open_keystore` takes, or a zarr-python Store.
    storage_options
        For fsspec.

    Returns
    -------
    store, mode
        The mode words of a URL's fragment.
    """
    if "zarr" in sys.modules:  # else nobody can have made a Store
        from zarr.abc.store import Store

        if isinstance(target, Store):
            from nczarr_xarray._zarr import adopt

            return adopt(target), frozenset()
    mode: frozenset[str] = frozenset()
    if isinstance(target, str) and "://" in target and "#" in target:
        mode = parse_url(target).mode
    return open_keystore(target, storage_options), mode


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
            from nczarr_xarray._zarr import adopt_for_writing

            target = adopt_for_writing(target)
    return open_destination(target, storage_options)
