"""How the copy of a variable is to be stored: as the variable is, if its format says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nczarr_xarray.dataset.open import Opened
from nczarr_xarray.export.grid import default_chunk_shape
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import ChunkedArray, CodecConfig, FileChunks, Variable

#: What netCDF and NCZarr both have.
_SHARED = frozenset({"shuffle", "fletcher32", "zlib", "szip", "zstd", "bz2", "blosc"})
#: Number of HDF5's filter, and the bit of its mask for one of its two ways of coding.
_HDF5_SZIP = 4
_NEAREST_NEIGHBOUR = 32


@dataclass(frozen=True, slots=True)
class Stored:
    """Storage of a variable.

    Parameters
    ----------
    dtype
        Of the elements, with their byte order; object for text of any length.
    chunk_shape
        As many lengths as dimensions.
    codecs
        In the order of encoding.
    contiguous
        Whether it need not be in chunks; `chunk_shape` is the default.
    """

    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    codecs: tuple[CodecConfig, ...] = ()
    contiguous: bool = False


def stored_as(opened: Opened, variable: Variable) -> Stored:
    """Return what to keep of the storage of a variable of an open dataset.

    Byte order is kept, but that of classic files, which nobody chose. HDF5's pipelines are kept
    if netCDF and NCZarr have all their codecs. What has no chunks gets those that are the
    default.
    """
    array = variable.array
    if isinstance(array, ChunkedArray):
        return Stored(array.dtype, array.chunk_shape, array.codecs)
    classic = opened.hierarchy.generation.startswith("CDF-")
    dtype = variable.dtype.newbyteorder("=") if classic else variable.dtype
    if isinstance(array, FileChunks):
        codecs = tuple(map(_as_netcdf, array.codecs))
        kept = all(config["id"] in _SHARED for config in codecs)
        chunks = tuple(max(1, length) for length in array.chunk_shape)
        return Stored(dtype, chunks, codecs if kept else ())
    if isinstance(array, ZarrArray) and len(array.chunk_shape) == len(variable.shape):
        return Stored(dtype, array.chunk_shape)
    unlimited = [dimension.unlimited for dimension in variable.dimensions]
    itemsize = 8 if dtype.kind == "O" else dtype.itemsize
    chunks = default_chunk_shape(variable.shape, unlimited, itemsize)
    return Stored(dtype, chunks, contiguous=not any(unlimited))


def netcdf_text(variable: Variable) -> Variable:
    """Return a variable of Zarr's bytes as netCDF has it: as char, or as string.

    ``_Encoding`` tells xarray that bytes of Zarr are text, which a string is without it.
    """
    if variable.nc_type != "string" or variable.dtype.kind != "S":
        return variable
    attributes = dict(variable.attributes)
    if attributes.pop("_Encoding", None) is None and variable.dtype.itemsize == 1:
        return replace(variable, nc_type="char")
    return replace(variable, attributes=attributes)


def _as_netcdf(config: CodecConfig) -> CodecConfig:
    """Return a codec of HDF5 by its name in netCDF and NCZarr; None if they have none."""
    if config["id"] != "hdf5" or config["filter"] != _HDF5_SZIP:
        return config
    mask, pixels = config["values"][:2]
    return {"id": "szip", "mask": mask & _NEAREST_NEIGHBOUR or 4, "pixels-per-block": pixels}
