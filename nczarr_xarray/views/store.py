"""Any dataset that we read, as a store of zarr-python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zarr.abc.store import Store

from nczarr_fsspec.changes.journal import STATE_KEYS, with_changes
from nczarr_fsspec.errors import DatasetNotFoundError, NCZarrWarning, StoreError
from nczarr_fsspec.keystore import KeyStore, LocalStore
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.targets import open_file_at, open_target
from nczarr_xarray.views.file_keys import FileKeys, file_keys
from nczarr_xarray.zarr._offered import StoreView

#: One of these is at the root of every tree.
_ROOT_KEYS = (".zgroup", ".zmetadata", ".zattrs", ".zarray", "zarr.json", ".nczarr")


def open_store(target: Any, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Open a dataset as a read-only zarr-python store.

    A classic or HDF5 file is shown as a Zarr 2 tree with consolidated metadata, as xarray writes
    it: dimensions by ``_ARRAY_DIMENSIONS``, and ``_FillValue`` as the fill value. Chunks go as
    they are stored wherever Zarr has their codecs; others are decoded and shown uncompressed.
    What is contiguous is shown in chunks of about 2 MiB. An NCZarr or Zarr tree is shown as it
    is, with all changes that are valid.

    Parameters
    ----------
    target
        A path, URL, file or store, as for ``xarray.open_dataset(..., engine="nczarr")``.
    storage_options
        For fsspec.

    Returns
    -------
    zarr.abc.store.Store
        Picklable. Requests of the same moment are merged: with remote files raise the number
        of chunks that zarr-python asks for at a time, ``zarr.config.set({"async.concurrency":
        512})``.

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
    keys = open_view(target, storage_options)
    if isinstance(keys, FileKeys):
        for problem in keys.tree.problems:
            warnings.warn(f"left out: {problem}", NCZarrWarning, stacklevel=2)
        return FileView(keys)
    return StoreView(keys)


class FileView(StoreView):
    """A file as a read-only zarr-python store, which knows what there is without reading it."""

    keys: FileKeys

    async def exists(self, key: str) -> bool:
        return await self._get(key, 0, 0) is not None

    async def is_object(self, key: str) -> bool:
        return self.keys.is_object(key)


def open_view(
    target: Any, storage_options: Mapping[str, Any] | None = None, *, scattered: bool = True
) -> KeyStore:
    """The keys of `open_store`; `scattered` as for `nczarr_xarray.views.file_arrays.view_of`."""
    source, _ = open_target(target, storage_options)
    if isinstance(source, KeyStore):
        keys = source
        try:
            *roots, incomplete, journal = keys.get_many((*_ROOT_KEYS, *STATE_KEYS))
            keys = with_changes(keys, incomplete, journal).store
        except BaseException:
            source.close()
            raise
        if any(isinstance(root, bytes) for root in roots):
            return keys
        # a URL need not tell by its name whether it is that of a tree or of one file
        file = None
        with suppress(StoreError):
            file = open_file_at(target, storage_options)
        if file is None and not isinstance(keys, LocalStore):
            return keys  # one that does not tell what it has at its root
        if file is None:
            source.close()
            raise DatasetNotFoundError(source.url, "there is no dataset here")
        source = file
    data = DataFile(source)
    try:
        return file_keys(data, data.hierarchy("", tree=True), scattered=scattered)
    except BaseException:
        data.close()
        raise
