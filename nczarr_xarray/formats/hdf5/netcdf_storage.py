"""From the storage of an HDF5 dataset to an array of the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, UnsupportedError
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.chunkindex import ChunkGrid, HDF5ChunkIndex, NoIndex, SingleIndex
from nczarr_xarray.formats.hdf5.datasets import (
    ChunkedLayout,
    CompactLayout,
    H5Dataset,
    OtherLayout,
    codecs_of,
)
from nczarr_xarray.formats.hdf5.dimensions import is_scale, list_lengths, read_classes
from nczarr_xarray.formats.hdf5.netcdf_types import (
    Values,
    ValueType,
    bits_of,
    decode_texts,
    is_plain,
)
from nczarr_xarray.formats.hdf5.tree import H5Group
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    Array,
    ChunkIndex,
    FileChunks,
    FileStrides,
    element_of,
    is_below,
    join,
)

# -- groups --------------------------------------------------------------------------------------
# The groups of an HDF5 file that netCDF sees, and in which order.
#
# Source: netCDF-C 4.10.1, read and observed.


@dataclass(frozen=True, slots=True)
class Node:
    """A group at its path, with its datasets."""

    path: str
    group: H5Group
    datasets: list[H5Dataset]


async def read_nodes(frame: Frame, tree: Awaitable[H5Group]) -> list[Node]:
    """Return all groups of a tree, parents first, and the classes of their datasets with them."""
    nodes = []
    pending = [("/", await tree)]
    while pending:
        path, group = pending.pop()
        members = group.members.values()
        nodes.append(Node(path, group, [m for m in members if isinstance(m, H5Dataset)]))
        below = [(join(path, m.name), m) for m in members if isinstance(m, H5Group)]
        pending.extend(reversed(below))
    await read_classes(frame, [dataset for node in nodes for dataset in node.datasets])
    return nodes


def children_first(nodes: list[Node]) -> Iterator[Node]:
    """Yield the groups in the order in which netCDF-C looks for dimensions: children first."""
    pending: list[Node] = []
    for node in nodes:
        while pending and not is_below(node.path, pending[-1].path):
            yield pending.pop()
        pending.append(node)
    yield from reversed(pending)


def depends_on_all(nodes: list[Node]) -> bool:
    """Tell whether groups that were not read may change the dimensions of those that were.

    The length of an unlimited dimension is that of its longest variable in any
    group, and phony dimensions are numbered through the whole file. Also, the
    sources of virtual datasets may be anywhere.
    """
    for dataset in (dataset for node in nodes for dataset in node.datasets):
        if isinstance(dataset.layout, OtherLayout) and dataset.layout.mappings is not None:
            return True
        if is_scale(dataset):
            if None in dataset.space.maxshape[:1] or len(dataset.space.shape or ()) > 1:
                return True
        elif dataset.space.shape and "_Netcdf4Coordinates" not in dataset.attributes:
            lengths = list_lengths(dataset)
            if not lengths or 0 in lengths:
                return True
    return False


# -- arrays --------------------------------------------------------------------------------------


def chunk_index(frame: Frame, dataset: H5Dataset, path: str) -> ChunkIndex:
    """Return the chunk index of a dataset; reads nothing.

    That its layout agrees with its dataspace and its datatype was checked when it was decoded.

    Parameters
    ----------
    path
        How messages name the dataset.

    Raises
    ------
    FormatError
        If the dataset is not chunked, or has too many chunks.
    """
    layout, space = dataset.layout, dataset.space
    if not isinstance(layout, ChunkedLayout) or not space.shape:
        raise frame.error(path, "is not stored in chunks")
    grid = ChunkGrid(
        frame=frame,
        path=path,
        shape=space.shape,
        maxshape=space.maxshape,
        chunk_shape=layout.chunk_shape,
        element_size=layout.element_size,
        filters=len(dataset.filters),
        unfiltered_edges=layout.unfiltered_edges,
    )
    if math.prod(grid.counts) >= 1 << 63:
        raise frame.error(path, f"it has {math.prod(grid.counts)} chunks")
    if layout.address is None:
        return NoIndex(grid, 0)
    if layout.index == "single":
        if math.prod(grid.counts) > 1:
            raise frame.error(path, f"it has {math.prod(grid.counts)} chunks, but one was stored")
        return SingleIndex(grid, layout.address, layout.single_size, layout.single_mask)
    classes: dict[str, type[HDF5ChunkIndex]]
    if layout.index in ("btree1", "btree2"):  # most files have one kind: the others stay unread
        from nczarr_xarray.formats.hdf5 import chunkindex_trees as trees

        classes = {"btree1": trees.BTree1Index, "btree2": trees.BTree2Index}
    else:
        from nczarr_xarray.formats.hdf5 import chunkindex_arrays as arrays

        classes = {
            "implicit": arrays.ImplicitIndex,
            "fixed": arrays.FixedArrayIndex,
            "extensible": arrays.ExtensibleArrayIndex,
        }
    return classes[layout.index](grid, layout.address)


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
            from nczarr_xarray.formats.hdf5.through_h5py import H5pyArray

            odd = dataset.type.kind == "integer" and not is_plain(dataset.type)
            bits = bits_of(dataset.type) if odd else None
            return H5pyArray(h5_path, shape, value.dtype, layout.reason, bits)
        reason = f"{layout.reason}, with elements of variable length"
        raise UnsupportedError(path, f"cannot be read, for {reason}")
    dtype = value.stored
    fill = _fill(dataset, dtype)
    text = dataset.type.kind == "string" and value.nc_type == "string"
    plain = is_plain(dataset.type) and dataset.type.kind != "compound" and not text
    conversion = None if plain else Values(path, frame, dataset.type)
    if isinstance(layout, ChunkedLayout):
        codecs = codecs_of(dataset.filters, dtype, layout.chunk_shape)
        index = chunk_index(frame, dataset, path)
        return FileChunks(path, shape, layout.chunk_shape, dtype, index, fill, codecs, conversion)
    size = math.prod(shape) * dtype.itemsize
    # of C order, in bytes
    lengths = itertools.accumulate(shape[:0:-1], lambda a, b: a * max(1, b), initial=dtype.itemsize)
    strides = tuple(lengths)[::-1] if shape else ()
    if isinstance(layout, CompactLayout):
        data = bytes(layout.data[:size])
        return FileStrides(path, shape, dtype, 0, strides, fill, data, conversion)
    start = None
    if layout.address is not None and size:
        if not layout.address:
            raise FormatError(path, "its data are at 0, where the superblock is")
        if layout.address + size > frame.end:
            at = f"{layout.address} to {layout.address + size}"
            raise FormatError(path, f"its data are at {at}, the file has {frame.end} (truncated?)")
        start = frame.base + layout.address
    return FileStrides(path, shape, dtype, start, strides, fill, None, conversion)


def _fill(dataset: H5Dataset, dtype: np.dtype) -> Any:
    return None if dataset.fill is None else np.frombuffer(dataset.fill, dtype)[0]


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
    fill = _fill(dataset, value.stored)
    if not is_plain(dataset.type):
        if dataset.type.kind != "integer":
            return np.zeros((), dtype=value.dtype)[()]
        if fill is not None:
            return bits_of(dataset.type).values(np.asarray(fill))[()]
    if value.nc_type == "string":
        return "" if fill is None else decode_texts([bytes(fill)], path)[0]
    if fill is not None:
        return fill
    default = NC_DEFAULT_FILL.get(value.nc_type or "", 0)
    return np.array(default).astype(value.dtype)[()]
