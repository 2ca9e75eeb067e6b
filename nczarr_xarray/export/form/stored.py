"""The storage of a copied variable: that of the source, where its format states it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nczarr_xarray.codecs.registry import as_zarr, codec, of_zarr3
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.form.chunk_shapes import default_chunk_shape
from nczarr_xarray.model import CodecConfig, FileChunks, FileStrides, Variable


@dataclass(frozen=True, slots=True)
class StorageProperties:
    """Storage of a variable.

    Parameters
    ----------
    dtype
        Dtype of the elements, with their byte order; object for text of any length.
    chunk_shape
        As many lengths as dimensions.
    codecs
        In the order of encoding.
    contiguous
        Whether the source has no chunks; `chunk_shape` is then the default.
    unfilled
        Whether the source is HDF5 without a fill value, not even the default of its type.
    """

    dtype: np.dtype
    chunk_shape: tuple[int, ...]
    codecs: tuple[CodecConfig, ...] = ()
    contiguous: bool = False
    unfilled: bool = False


def stored_as(opened: Opened, variable: Variable) -> StorageProperties:
    """Return what to keep of the storage of a variable of an open dataset.

    The byte order is kept, except that of classic files, which have only one. HDF5's pipelines are
    kept if netCDF and NCZarr have all their codecs, those of Zarr 3 as far as Zarr 2 has them. A
    variable without chunks gets the default chunks.
    """
    array = variable.array
    assert array is not None
    if array.codec_words == "zarr2":
        return StorageProperties(array.dtype, array.chunk_shape, array.codecs)
    classic = opened.hierarchy.generation.startswith("CDF-")
    dtype = variable.dtype.newbyteorder("=") if classic else variable.dtype
    unfilled = array.fill is None and not classic and isinstance(array, (FileChunks, FileStrides))
    if array.is_chunked and len(array.chunk_shape) == len(variable.shape):
        if array.codec_words == "hdf5":
            codecs = tuple(map(as_zarr, array.codecs))
            kept = all(codec(config["id"]).netcdf for config in codecs)
        else:
            codecs, kept = of_zarr3(array.codecs), True
        chunks = tuple(max(1, length) for length in array.chunk_shape)
        return StorageProperties(dtype, chunks, codecs if kept else (), unfilled=unfilled)
    unlimited = [dimension.unlimited for dimension in variable.dimensions]
    itemsize = 8 if dtype.kind == "O" else dtype.itemsize
    chunks = default_chunk_shape(variable.shape, unlimited, itemsize)
    return StorageProperties(dtype, chunks, contiguous=not any(unlimited), unfilled=unfilled)


def netcdf_text(variable: Variable) -> Variable:
    """Return a variable of Zarr's bytes as netCDF has it: as char, or as string.

    ``_Encoding`` marks bytes of Zarr as text for xarray; a string needs no such mark. Single bytes
    along a dimension are char with or without it: xarray joins them to texts.
    """
    if variable.nc_type != "string" or variable.dtype.kind != "S":
        return variable
    attributes = dict(variable.attributes)
    marked = attributes.pop("_Encoding", None) is not None
    if variable.dtype.itemsize == 1 and (variable.dimensions or not marked):
        return replace(variable, nc_type="char")
    return replace(variable, attributes=attributes)
