"""Open any dataset as the keys of a Zarr tree, for stores of zarr-python and for references."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from nczarr_fsspec.changes.journal import STATE_KEYS, with_changes
from nczarr_fsspec.errors import DatasetNotFoundError
from nczarr_fsspec.keystore import ZARR_METADATA, KeyStore
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import closed_on_error, open_either, open_file, open_keys
from nczarr_xarray.formats.format import check_is_zarr
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.views.file_keys import FileKeys, LocalFileKeys, RemoteFileKeys

#: One of these is at the root of every tree.
_ROOT_KEYS = (*sorted(ZARR_METADATA), ".nczarr")


def open_view(target: Any, options: OpenOptions, *, scattered: bool = True) -> KeyStore:
    """Open a dataset as `nczarr_xarray.views.store.open_store` shows it.

    Parameters
    ----------
    scattered
        See `nczarr_xarray.views.file_arrays.view_of`.
    """
    of_file = partial(keys_of_file, scattered=scattered)
    return open_either(target, options, _keys_of_tree, of_file)


def keys_of_file(
    source: ByteSource, options: OpenOptions, master: Any = None, *, scattered: bool
) -> FileKeys:
    """Open a file as the keys of a tree; close it if that fails."""
    opened = open_file(source, options, master if isinstance(master, (str, os.PathLike)) else None)
    with closed_on_error(source):
        assert isinstance(opened.store, DataFile)
        local = isinstance(opened.store.source, LocalBytes)
        kind = LocalFileKeys if local else RemoteFileKeys
        return kind(opened.store, opened.hierarchy, scattered)


def _keys_of_tree(store: KeyStore, mode: frozenset[str], *_: object) -> KeyStore:
    """Return the objects of a tree, with all valid changes; its hierarchy is not read."""
    with closed_on_error(store):
        *roots, incomplete, journal = store.get_many((*_ROOT_KEYS, *STATE_KEYS))
        keys = with_changes(store, incomplete, journal).store
        if any(isinstance(root, bytes) and root.lstrip()[:1] == b"{" for root in roots):
            return keys
        (names,) = keys.list_many([""])
        if not isinstance(names, frozenset) or not names:
            raise DatasetNotFoundError(store.url, "there is no dataset here")
    opened = open_keys(store, mode, OpenOptions(tree=False))  # a root without metadata
    with closed_on_error(store):
        check_is_zarr(opened.hierarchy, store.url)
    return opened.keys
