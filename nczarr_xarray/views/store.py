"""Any dataset that this package reads, as a store of zarr-python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from zarr.abc.store import Store

from nczarr_fsspec.addresses import Allow
from nczarr_fsspec.changes.journal import STATE_KEYS, with_changes
from nczarr_fsspec.errors import DatasetNotFoundError, NCZarrWarning, caller_level
from nczarr_fsspec.keystore import ZARR_METADATA, KeyStore
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import closed_on_error, open_either, open_file, open_keys
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.views.file_keys import FileKeys, LocalFileKeys, RemoteFileKeys
from nczarr_xarray.zarr.offered import StoreView

#: One of these is at the root of every tree.
_ROOT_KEYS = (*sorted(ZARR_METADATA), ".nczarr")


def open_store(
    target: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    replace: Mapping[str, str] | None = None,
    allow: Allow = None,
) -> Store:
    """Open a dataset as a read-only zarr-python store.

    A classic or HDF5 file is shown as a Zarr 2 tree with consolidated metadata, as xarray writes
    it: dimensions by ``_ARRAY_DIMENSIONS``, and ``_FillValue`` as the fill value. Chunks go as
    they are stored wherever Zarr has their codecs; others are decoded and shown uncompressed.
    What is contiguous is shown in chunks of about 2 MiB. The data of an aggregation in a file are
    shown uncompressed, in chunks as long as its longest fragments. An NCZarr or Zarr tree is shown
    as it is, with all changes that are valid.

    Parameters
    ----------
    target
        A path, URL, file or store, as for ``xarray.open_dataset(..., engine="nczarr")``.
    storage_options
        Options of the target's filesystem (fsspec).
    replace, allow
        Of an aggregation: see `nczarr_fsspec.addresses.AddressPolicy.of`.

    Returns
    -------
    zarr.abc.store.Store
        Picklable. Requests of the same moment are merged: with remote files raise the number
        of chunks that zarr-python asks for at a time, ``zarr.config.set({"async.concurrency":
        128})``.

    Raises
    ------
    DatasetNotFoundError
        If there is no dataset.
    FormatError, StoreError, URLError
        If it cannot be read or understood.

    Warns
    -----
    NCZarrWarning
        For each variable of a file that cannot be shown.
    """
    options = OpenOptions(storage_options=storage_options, replace=replace, allow=allow)
    keys = open_view(target, options)
    if isinstance(keys, FileKeys):
        for problem in keys.tree.problems:
            warnings.warn(f"left out: {problem}", NCZarrWarning, stacklevel=caller_level())
        return FileView(keys)
    return StoreView(keys)


class FileView(StoreView):
    """A file as a read-only zarr-python store, which lists its keys without reading them."""

    keys: FileKeys

    async def exists(self, key: str) -> bool:
        return await self._get(key, slice(0, 0)) is not None

    async def is_object(self, key: str) -> bool:
        return self.keys.is_object(key)


def open_view(target: Any, options: OpenOptions, *, scattered: bool = True) -> KeyStore:
    """Return the keys of `open_store`; `scattered` is that of `file_arrays.view_of`."""
    master = target if isinstance(target, (str, os.PathLike)) else None

    def of_file(source: ByteSource) -> KeyStore:
        opened = open_file(source, options, master)
        with closed_on_error(source):
            assert isinstance(opened.store, DataFile)
            local = isinstance(opened.store.source, LocalBytes)
            kind = LocalFileKeys if local else RemoteFileKeys
            return kind(opened.store, opened.hierarchy, scattered)

    return open_either(target, options, _keys_of_tree, of_file)


def _keys_of_tree(store: KeyStore, mode: frozenset[str]) -> KeyStore:
    """Return the objects of a tree, with all valid changes; its hierarchy is not read."""
    with closed_on_error(store):
        *roots, incomplete, journal = store.get_many((*_ROOT_KEYS, *STATE_KEYS))
        keys = with_changes(store, incomplete, journal).store
        if any(isinstance(root, bytes) and root.lstrip()[:1] == b"{" for root in roots):
            return keys
        (names,) = keys.list_many([""])
        if not isinstance(names, frozenset) or not names:
            raise DatasetNotFoundError(store.url, "there is no dataset here")
    return open_keys(store, mode, OpenOptions(tree=False)).keys  # a root without metadata
