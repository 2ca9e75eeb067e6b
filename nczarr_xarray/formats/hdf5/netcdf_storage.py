"""From the storage of an HDF5 dataset to an array of the model."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, UnsupportedError
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.chunkindex import chunk_index
from nczarr_xarray.formats.hdf5.filters import codecs_of
from nczarr_xarray.formats.hdf5.netcdf_types import ValueType, bits_of, is_plain
from nczarr_xarray.formats.hdf5.objects import (
    ChunkedLayout,
    CompactLayout,
    ContiguousLayout,
    Datatype,
    H5Dataset,
    OtherLayout,
)
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    Array,
    Conversion,
    FileChunks,
    FileStrides,
    element_of,
)

#: numpy's lengths, and the chunk engine's numbers, have 63 bits.
_LONGEST = (1 << 63) - 1


def array_of(frame: Frame, dataset: H5Dataset, value: ValueType, path: str, h5_path: str) -> Array:
    """Return the array behind a variable.

    Parameters
    ----------
    value
        The conversion and the types of its elements.
    path
        Path of the variable, for messages.
    h5_path
        Path of the dataset.

    Raises
    ------
    FormatError
        If its storage is damaged.
    UnsupportedError
        If no code here reads such elements in such a storage.
    """
    shape, layout = dataset.space.shape, dataset.layout
    if shape is None:
        raise FormatError(path, "has a null dataspace: no shape and no elements")
    if math.prod(length or 1 for length in shape) * max(1, value.stored.itemsize) > _LONGEST:
        raise FormatError(path, f"has the shape {shape}, beyond what can be addressed")
    if isinstance(layout, OtherLayout):
        if value.nc_type == "string" or not value.dtype.hasobject:
            from nczarr_xarray.formats.hdf5.fallback import H5pyArray

            odd = dataset.type.kind == "integer" and not is_plain(dataset.type)
            bits = bits_of(dataset.type) if odd else None
            return H5pyArray(h5_path, shape, value.dtype, layout.reason, bits)
        reason = f"{layout.reason}, with elements of variable length"
        raise UnsupportedError(path, f"cannot be read, for {reason}")
    dtype = value.stored
    if dataset.type.size != dtype.itemsize:
        raise FormatError(path, f"has elements of {dataset.type.size} bytes, not {dtype}")
    fill = _fill(dataset, dtype, path)
    conversion = _conversion(dataset.type, value, frame, path)
    if isinstance(layout, ChunkedLayout):
        if layout.element_size != dtype.itemsize:
            reason = f"{layout.element_size} bytes in its chunks, {dtype.itemsize} by its type"
            raise FormatError(path, f"an element has {reason}")
        codecs = codecs_of(dataset.filters, dtype, layout.chunk_shape)
        index = chunk_index(frame, dataset, path)
        return FileChunks(path, shape, layout.chunk_shape, dtype, index, fill, codecs, conversion)
    size = math.prod(shape) * dtype.itemsize
    strides = _strides(shape, dtype.itemsize)
    if isinstance(layout, CompactLayout):
        if len(layout.data) < size:
            raise FormatError(path, f"has {len(layout.data)} bytes, {size} are needed")
        data = bytes(layout.data[:size])
        return FileStrides(path, shape, dtype, 0, strides, fill, data, conversion)
    start = _start(frame, layout, size, path)
    return FileStrides(path, shape, dtype, start, strides, fill, None, conversion)


def _start(frame: Frame, layout: ContiguousLayout, size: int, path: str) -> int | None:
    if layout.address is None or not size:
        return None
    if layout.size < size:
        raise FormatError(path, f"has {layout.size} bytes, {size} are needed")
    if not layout.address:
        raise FormatError(path, "its data are at 0, where the superblock is")
    if layout.address + size > frame.end:
        at = f"{layout.address} to {layout.address + size}"
        raise FormatError(path, f"its data are at {at}, the file has {frame.end} (truncated?)")
    return frame.base + layout.address


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of C order, in bytes."""
    lengths = itertools.accumulate(shape[:0:-1], lambda a, b: a * max(1, b), initial=itemsize)
    return tuple(lengths)[::-1] if shape else ()


def _fill(dataset: H5Dataset, dtype: np.dtype, path: str) -> Any:
    if dataset.fill is None:
        return None
    if len(dataset.fill) != dtype.itemsize:
        reason = f"its fill value has {len(dataset.fill)} bytes, an element {dtype.itemsize}"
        raise FormatError(path, reason)
    return np.frombuffer(dataset.fill, dtype)[0]


def _conversion(type_: Datatype, value: ValueType, frame: Frame, path: str) -> Conversion | None:
    text = type_.kind == "string" and value.nc_type == "string"
    if is_plain(type_) and type_.kind != "compound" and not text:
        return None
    from nczarr_xarray.formats.hdf5.conversions import Values

    return Values(path, frame, type_)


def padding_of(dataset: H5Dataset, value: ValueType, fill_text: str | None, path: str) -> Any:
    """Return the padding that netCDF-C reads where an unlimited dimension is longer.

    Parameters
    ----------
    fill_text
        The fill value, if it is text in the global heap.
    """
    if dataset.type.text:
        return fill_text or ""
    if (element := element_of(value.dtype)) is not None:
        empty = np.empty((), dtype=object)
        empty[()] = np.empty(0, dtype=element)
        return empty
    fill = _fill(dataset, value.stored, path)
    if not is_plain(dataset.type):
        if dataset.type.kind != "integer":
            return np.zeros((), dtype=value.dtype)[()]
        if fill is not None:
            return bits_of(dataset.type).values(np.asarray(fill))[()]
    if value.nc_type == "string":
        from nczarr_xarray.formats.hdf5.conversions import decode_texts

        return "" if fill is None else decode_texts([bytes(fill)], path)[0]
    if fill is not None:
        return fill
    default = NC_DEFAULT_FILL.get(value.nc_type or "", 0)
    return np.array(default).astype(value.dtype)[()]
