"""Attributes and encoding of variables as xarray users know them from ``engine="netcdf4"``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nczarr_xarray.backend.compat import TO_ZARR_IGNORES_COMPRESSOR, PreferredChunks
from nczarr_xarray.codecs.registry import WORDS, as_zarr, codec, netcdf_filters, of_zarr3
from nczarr_xarray.dataset.dataset import attribute_value
from nczarr_xarray.formats.cf import read_as
from nczarr_xarray.model import Attribute, CodecConfig, FragmentArray, Variable, element_of

#: Dask needs seconds for a graph of more, and an enormous shape may be a lie: then blocks are of
#: several chunks.
_MOST_BLOCKS = 1_000_000
_JOINED_BLOCKS = 100_000

#: Codecs that are no choice of a compressor.
_FLAGS = {id_ for id_, words in WORDS.items() if words.config is None}
#: The codecs that netCDF's keys, or the dtype, tell of.
_TOLD = {*WORDS, "vlen-utf8"}


def odd_packing(variable: Variable) -> list[Attribute]:
    """Return the attributes by which xarray cannot compute the values of a variable.

    A factor and an offset are one number, as is a fill value whose sign ``_Unsigned`` changes.
    """
    names = ["scale_factor", "add_offset"]
    if "_Unsigned" in variable.attributes and read_as(variable) != variable.dtype.newbyteorder("="):
        names.append("_FillValue")
    stated = [variable.attributes[name] for name in names if name in variable.attributes]
    return [a for a in stated if not (isinstance(a.value, np.ndarray) and a.value.size == 1)]


def is_odd(attribute: Attribute) -> bool:
    """Tell whether an attribute that xarray decodes by is of a kind that fails it."""
    text = isinstance(attribute_value(attribute), str)
    return attribute.name in ("coordinates", "dtype", "_Unsigned") and not text


def variable_encoding(
    variable: Variable, dimension_names: tuple[str, ...], source: str, *, classic: bool
) -> dict[str, Any]:
    """Return ``Variable.encoding``: netCDF's keys, and zarr's ``compressor`` and ``filters``.

    Parameters
    ----------
    dimension_names
        As the dataset calls the variable's dimensions.
    source
        Name of the dataset.
    classic
        Whether it is a classic file, of whose storage there is nothing to tell.
    """
    encoding: dict[str, Any] = {
        "dtype": _dtype(variable),
        "source": source,
        "original_shape": variable.shape,
    }
    if variable.dtype.kind in "mM":
        # writers store numbers since a date: as times, they would be other times
        del encoding["dtype"]
    array = variable.array
    if classic:
        encoding["dtype"] = variable.dtype.newbyteorder("=")
    if array is None or (classic and not isinstance(array, FragmentArray)):
        return encoding
    if isinstance(array, FragmentArray):
        stored, blocks = (
            dict(zip(dimension_names, map(_even, lengths), strict=True))
            for lengths in (array.lengths, array.blocks)
        )
        encoding["preferred_chunks"] = PreferredChunks(stored, blocks)
        sample = array.sample()
        if sample is not None and sample.is_chunked and sample.shape:
            encoding["contiguous"] = False
            encoding["chunksizes"] = tuple(map(min, sample.chunk_shape, variable.shape))
            array = sample
    elif array.blocks is not None:
        own = zip(dimension_names, map(_even, array.blocks), strict=True)
        encoding["preferred_chunks"] = dict(own)
        if array.is_chunked:
            encoding |= {"contiguous": False, "chunksizes": array.chunk_shape}
    elif variable.shape and array.is_chunked:
        chunks = array.chunk_shape
        encoding["contiguous"] = False
        encoding["chunksizes"] = chunks
        preferred: dict[str, int] = {}  # in the order of the dimensions, for `transpose`
        for name, length in zip(dimension_names, _blocks(chunks, variable.shape), strict=True):
            # where two dimensions are the same one, the longer length counts
            preferred[name] = max(length, preferred.get(name, 0))
        encoding["preferred_chunks"] = preferred
    else:
        encoding["contiguous"] = True
        encoding["chunksizes"] = None
    if array.codec_words == "hdf5":
        encoding.update(_netcdf_filters(array.codecs))
    elif array.codec_words == "zarr3":
        encoding.update(_filters(of_zarr3(array.codecs)))
    else:
        encoding.update(_filters(array.codecs))
        if encoding.get("dtype") is str:  # zarr-python has a filter of its own for text
            encoding.pop("filters", None)
        is_own = array is variable.array
        if is_own and array.dtype.itemsize > 1 and array.dtype.kind in "iuf":
            order = array.dtype.newbyteorder("=").byteorder
            native = array.dtype.isnative
            encoding["endian"] = "native" if native else ("big" if order == "=" else "little")
    return encoding


def _blocks(chunks: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """Return the lengths of dask's blocks: chunks, or several where there are too many."""
    blocks = list(chunks)
    counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
    if math.prod(counts) <= _MOST_BLOCKS:
        return blocks
    for axis in sorted(range(len(blocks)), key=counts.__getitem__, reverse=True):
        joined = max(1, min(counts[axis], -(-math.prod(counts) // _JOINED_BLOCKS)))
        blocks[axis] *= joined
        counts[axis] = -(-counts[axis] // joined)
    return blocks


def _even(lengths: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return the one length of blocks, if all but the last one, which may be shorter, have it."""
    if len(set(lengths[:-1])) < 2 and lengths[-1:] <= lengths[:1]:
        return lengths[0] if lengths else 0
    return lengths


def _dtype(variable: Variable) -> Any:
    """Return the `dtype` for writing: ``str`` for text, an enum's names in the metadata."""
    # xarray makes texts of marked bytes, and could write none that is not ASCII as bytes
    marked = variable.dtype.itemsize > 1 and "_Encoding" in variable.attributes
    if variable.nc_type == "string" and (variable.dtype.kind == "O" or marked):
        return str
    enum = variable.enum
    if enum is None:
        return element_of(variable.dtype) or variable.dtype
    metadata = {"enum": dict(enum.members), "enum_name": enum.name}
    # (netCDF has enums of the machine's byte order only)
    return np.dtype(variable.dtype.newbyteorder("="), metadata=metadata)


def _filters(codecs: tuple[CodecConfig, ...]) -> dict[str, Any]:
    """Return what ``netCDF4.Variable.filters()`` says, and Zarr v2's own keys.

    ``filters`` is None if netCDF's keys say all, and left out otherwise. What would
    keep xarray from writing the variable elsewhere is left out as well.
    """
    filters = _netcdf_filters(codecs)
    last = next((config for config in reversed(codecs) if config["id"] not in _FLAGS), None)
    if filters["zstd"] and not filters["complevel"]:
        # The level that zstd takes itself, Zarr 3's default. To netCDF4 it is no compression, and
        # h5py does not know the word.
        del filters["zstd"]
    # What follows `to_zarr` hands to zarr-python, and codecs of Zarr v2 would keep it from
    # writing v3, its default: it gets to see that there is nothing else, or it sees nothing.
    if TO_ZARR_IGNORES_COMPRESSOR or not codecs:
        filters["compressor"] = None if last is None else dict(last)
    if all(config is last or config["id"] in _TOLD for config in codecs):
        filters["filters"] = None
    return filters


def _netcdf_filters(codecs: tuple[CodecConfig, ...]) -> dict[str, Any]:
    """Return what ``netCDF4.Variable.filters()`` says, apart from what writers would trip over."""
    filters = netcdf_filters(codecs)
    added = any(
        config["id"] not in WORDS and codec(config["id"]).netcdf for config in map(as_zarr, codecs)
    )
    if filters["blosc"]:
        # `to_netcdf` would fail: xarray asks netCDF4 for "blosc", which takes "blosc_lz4" ...
        del filters["blosc"]
    if "blosc" not in filters or added:
        # a word of h5netcdf, which otherwise hands the level to h5py without a compressor
        filters["compression_opts"] = None
    return filters
