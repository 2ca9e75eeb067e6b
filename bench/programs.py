"""What reads a stored array: ours and every peer, each opening it anew as a user's script does.

All of them return the stored numbers: no fill value is looked for (``mask_and_scale=False``), since
tensorstore has no such step and the netCDF-4 file no such attribute, and nothing is remembered
between two turns (``cache=False``). Settings are the documented ones that are best here:

- nczarr: the tree; nczarr, file: what netcdf4 reads, one file instead of thousands. Boxes are read
  by `nczarr_xarray.load`; nczarr, loop reads one after the other, as the others do.
- zarr: its defaults, which are what users get.
- zarr, fused: ``codec_pipeline.path`` in zarr's user guide on configuration; ``max_workers`` is the
  number of processors unless set.
- zarr, zarrs: its README; threads and concurrent chunks are the number of processors unless set.
  It hands to zarr what it cannot do (unless ``strict``), as it does for its users.
- zarrista: slices only, and no zlib of Zarr 2; it has no xarray, and returns what it decoded.
- netcdf4: the HDF5 chunk cache is 64 MiB a variable unless set (``netCDF4.get_chunk_cache``), more
  than one read needs twice of anything here.
  Points, lists and every n-th element: it reads everything and picks, as HDF5 is many times slower
  at selecting them (1,000 points: 11 s). zarrs picks lists and every n-th likewise, which it hands
  to zarr.
- tensorstore: ``data_copy_concurrency`` is the number of processors unless set; a ``cache_pool``
  (0 bytes unless set) only where reads repeat; ``file_io_mode`` is ``memmap`` for chunks of
  `MAPPED` bytes or more, both as in its pages on the context and on the file driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from data import DTYPE, Stored, codecs
from harness import OURS

#: What is read, by dimension: slices, numbers and lists, or as many arrays of indices: points.
Key: TypeAlias = tuple[Any, ...]

PIPELINES = {
    "zarr, fused": "zarr.core.codec_pipeline.FusedCodecPipeline",  # zarr 3.4 and later
    "zarr, zarrs": "zarrs.ZarrsCodecPipeline",
}
#: Measured: mapping a file of 120 MB takes half the time of reading it; others do not care.
MAPPED = 1 << 20


def programs(stored: Stored, keys: tuple[Key, ...]) -> dict[str, Callable[[], Any]]:
    """By name: what opens an array, reads `keys` one after another, and returns their list."""
    tree, file = str(stored.tree), str(stored.file)
    sparse = any(pointwise(key) or listed(key) for key in keys)
    strided = any(isinstance(i, slice) and i.step not in {None, 1} for key in keys for i in key)
    found: dict[str, Callable[[], Any]] = {
        OURS: partial(_by_xarray, OURS, tree, keys),
        f"{OURS}, file": partial(_by_xarray, OURS, file, keys),
        "zarr": partial(_by_xarray, "zarr", tree, keys, consolidated=False),
    }
    for name, pipeline in PIPELINES.items():
        whole = (strided or any(map(listed, keys))) and "zarrs" in name
        found[name] = partial(_by_pipeline, pipeline, tree, keys, whole=whole)
    if boxed(keys):
        found[f"{OURS}, loop"] = found[OURS]
        found[OURS] = partial(_by_load, tree, keys)
        found[f"{OURS}, file"] = partial(_by_load, file, keys)
    found["netcdf4"] = partial(_by_xarray, "netcdf4", file, keys, whole=strided or sparse)
    if not strided and not sparse and "zlib" not in stored.array.codec:
        found["zarrista"] = partial(_by_zarrista, tree, keys)
    if not codecs()[stored.array.codec].shuffled:
        found["tensorstore"] = partial(_by_tensorstore, stored, keys)
    return found


def pointwise(key: Key) -> bool:
    """Whether a key has indices of points."""
    return any(isinstance(index, np.ndarray) for index in key)


def boxed(keys: tuple[Key, ...]) -> bool:
    """Whether keys are many boxes."""
    return len(keys) > 1 and all(isinstance(i, slice) and i.stop for key in keys for i in key)


def listed(key: Key) -> bool:
    """Whether a key has lists of indices, which are orthogonal."""
    return any(isinstance(index, list) for index in key)


def _by_xarray(
    engine: str, target: str, keys: tuple[Key, ...], *, whole: bool = False, **options: Any
) -> Any:
    with xr.open_dataset(target, engine=engine, cache=False, mask_and_scale=False, **options) as ds:
        variable = ds["v"].load() if whole else ds["v"]
        return [
            variable.isel(
                {d: xr.DataArray(i, dims="p") for d, i in zip(variable.dims, key, strict=True)}
            ).values
            if pointwise(key)
            else variable[key].values
            for key in keys
        ]


def _by_load(target: str, keys: tuple[Key, ...]) -> Any:
    from nczarr_xarray import load

    options: dict[str, Any] = {"cache": False, "mask_and_scale": False}
    with xr.open_dataset(target, engine="nczarr", **options) as ds:
        variable = ds["v"]
        return [box.values for box in load(*(variable[key] for key in keys))]


def _by_pipeline(pipeline: str, tree: str, keys: tuple[Key, ...], *, whole: bool) -> Any:
    import zarr

    # an array keeps the pipeline it was opened with, which asks for its settings when it reads
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        return _by_xarray("zarr", tree, keys, whole=whole, consolidated=False)


def _by_zarrista(tree: str, keys: tuple[Key, ...]) -> Any:
    from zarrista import Array
    from zarrista.store import FilesystemStore

    array = Array.open(FilesystemStore(tree), path="/v")
    numbers = [tuple(i for i, index in enumerate(key) if isinstance(index, int)) for key in keys]
    return [
        np.squeeze(array[key].to_numpy(), axis)  # numbers are slices of one to it
        for key, axis in zip(keys, numbers, strict=True)
    ]


def _by_tensorstore(stored: Stored, keys: tuple[Key, ...]) -> Any:
    import tensorstore

    array = stored.array
    mapped = math.prod(array.chunks) * DTYPE.itemsize >= MAPPED
    context = {
        "file_io_mode": {"mode": "memmap" if mapped else "default"},
        "cache_pool": {"total_bytes_limit": 1 << 28 if len(keys) > 1 else 0},
    }
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{stored.tree}/v"}}
    context = tensorstore.Context(context)
    store = tensorstore.open(spec, context=context, open=True, read=True).result()
    return [
        (store.vindex[key] if pointwise(key) else store.oindex[key]).read().result() for key in keys
    ]
