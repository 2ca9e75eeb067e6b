"""From the storage of an HDF5 dataset to an array of the model."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.chunkindex import chunk_index
from nczarr_xarray.formats.hdf5.fallback import H5pyArray
from nczarr_xarray.formats.hdf5.filters import codecs_of
from nczarr_xarray.formats.hdf5.netcdf_types import ValueType
from nczarr_xarray.formats.hdf5.objects import (
    ChunkedLayout,
    CompactLayout,
    ContiguousLayout,
    H5Dataset,
    OtherLayout,
)
from nczarr_xarray.formats.hdf5.values import FixedText, HeapText, strict_text
from nczarr_xarray.model import NC_DEFAULT_FILL, Array, Conversion, FileChunks, FileStrides

#: numpy's lengths, and the chunk engine's numbers, have 63 bits.
_LONGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Cast:
    """`nczarr_xarray.model.Conversion` to another layout of structures."""

    dtype: np.dtype[Any]

    async def __call__(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The elements as `dtype`."""
        return stored.astype(self.dtype)


def array_of(frame: Frame, dataset: H5Dataset, value: ValueType, path: str, h5_path: str) -> Array:
    """The array behind a variable.

    Parameters
    ----------
    value
        How its elements are read.
    path
        Of the variable, for messages.
    h5_path
        Of the dataset.

    Raises
    ------
    FormatError
        If its storage is damaged, or nothing here can decode it.
    """
    shape, layout = dataset.space.shape, dataset.layout
    if shape is None:
        raise FormatError(path, "has no elements, not even none (a null dataspace)")
    if math.prod(length or 1 for length in shape) * max(1, value.stored.itemsize) > _LONGEST:
        raise FormatError(path, f"has the shape {shape}, beyond what can be addressed")
    if value.read == "h5py" or isinstance(layout, OtherLayout):
        return _h5py_array(dataset, value, shape, h5_path)
    dtype = value.stored
    if dataset.type.size != dtype.itemsize:
        raise FormatError(path, f"has elements of {dataset.type.size} bytes, not {dtype}")
    fill = _fill(dataset, dtype, path)
    conversion = _conversion(value, frame, path)
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


def _h5py_array(
    dataset: H5Dataset, value: ValueType, shape: tuple[int, ...], h5_path: str
) -> H5pyArray:
    layout = dataset.layout
    reason = layout.reason if isinstance(layout, OtherLayout) else value.reason
    if not isinstance(layout, ChunkedLayout):
        return H5pyArray(h5_path, shape, value.dtype, shape, False, (), reason)
    try:
        codecs = codecs_of(dataset.filters, value.stored, layout.chunk_shape)
    except FormatError:  # it is libhdf5 that decodes, and may have what we have not
        codecs = ()
    return H5pyArray(h5_path, shape, value.dtype, layout.chunk_shape, True, codecs, reason)


def _start(frame: Frame, layout: ContiguousLayout, size: int, path: str) -> int | None:
    if layout.address is None or not size:
        return None
    if layout.size < size:
        raise FormatError(path, f"has {layout.size} bytes, {size} are needed")
    if layout.address + size > frame.end:
        at = f"{layout.address} to {layout.address + size}"
        raise FormatError(path, f"its data are at {at}, the file has {frame.end} (truncated?)")
    return frame.base + layout.address


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Of C order, in bytes."""
    lengths = itertools.accumulate(shape[:0:-1], lambda a, b: a * max(1, b), initial=itemsize)
    return tuple(lengths)[::-1] if shape else ()


def _fill(dataset: H5Dataset, dtype: np.dtype[Any], path: str) -> Any:
    if dataset.fill is None:
        return None
    if len(dataset.fill) != dtype.itemsize:
        reason = f"its fill value has {len(dataset.fill)} bytes, an element {dtype.itemsize}"
        raise FormatError(path, reason)
    return np.frombuffer(dataset.fill, dtype)[0]


def _conversion(value: ValueType, frame: Frame, path: str) -> Conversion | None:
    if value.read == "text":
        return HeapText(path, frame)
    if value.read == "fixed text":
        return FixedText(path)
    return Cast(value.dtype) if value.dtype.fields is not None else None


def padding_of(dataset: H5Dataset, value: ValueType, fill_text: str | None, path: str) -> Any:
    """What netCDF-C reads where an unlimited dimension is longer than a dataset.

    Parameters
    ----------
    fill_text
        The fill value, if it is text in the global heap.
    """
    if value.read == "text":
        return fill_text or ""
    if value.read == "h5py":
        return np.zeros((), dtype=value.dtype)[()]
    fill = _fill(dataset, value.stored, path)
    if value.read == "fixed text":
        return "" if fill is None else strict_text(bytes(fill), path)
    if fill is not None:
        return fill
    default = NC_DEFAULT_FILL.get(value.nc_type or "", 0)
    return np.array(default).astype(value.dtype)[()]
