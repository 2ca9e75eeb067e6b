"""Any dataset that this package reads, as a store of zarr-python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from zarr.abc.store import Store

from nczarr_fsspec.address_policy import Allow
from nczarr_fsspec.errors import NCZarrWarning, caller_level
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.views.file_keys import FileKeys, open_view
from nczarr_xarray.zarr.offered import StoreView


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
        Of an aggregation: see `nczarr_fsspec.address_policy.AddressPolicy.of`.

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
