"""Chunk indexes of HDF5 datasets: one class for each kind that a layout can name."""

from __future__ import annotations

import math

import numpy as np

from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.chunkindex_base import CHUNK, ChunkGrid, HDF5ChunkIndex
from nczarr_xarray.formats.hdf5.objects import ChunkedLayout, H5Dataset
from nczarr_xarray.model import ChunkIndex


class NoIndex(HDF5ChunkIndex):
    """Nothing has been written: no chunk exists."""

    async def find(self, ids: np.ndarray) -> np.ndarray:
        return self.pick(np.empty(0, dtype=CHUNK), ids)


class SingleIndex(HDF5ChunkIndex):
    """The dataset is one chunk; `size` and `mask` are stated where there are filters."""

    def __init__(self, grid: ChunkGrid, address: int, size: int | None, mask: int) -> None:
        super().__init__(grid, address)
        self._size = grid.chunk_bytes if size is None else size
        self._mask = mask

    async def find(self, ids: np.ndarray) -> np.ndarray:
        chunk = (0, min(self.address, 1 << 61), min(self._size, 1 << 61), self._mask)
        return np.full(len(ids), np.array(chunk, dtype=CHUNK))


class ImplicitIndex(HDF5ChunkIndex):
    """All chunks of the largest shape, one behind the other."""

    async def find(self, ids: np.ndarray) -> np.ndarray:
        from nczarr_xarray.formats.hdf5.chunkindex_arrays import element_numbers

        size, end = self.grid.chunk_bytes, self.grid.frame.end
        numbers = element_numbers(self.grid, ids)
        if self.address + (int(numbers.max()) + 1) * size > end:
            raise self.grid.error(f"its chunks are not all within the file, which ends at {end}")
        chunks = np.zeros(len(ids), dtype=CHUNK)
        chunks["address"] = self.address + numbers * size
        chunks["size"] = size
        return chunks


def chunk_index(frame: Frame, dataset: H5Dataset, path: str) -> ChunkIndex:
    """Return the chunk index of a dataset; reads nothing.

    Parameters
    ----------
    path
        How messages name the dataset.

    Raises
    ------
    FormatError
        If the dataset is not chunked, or its shapes contradict each other.
    """
    layout, space = dataset.layout, dataset.space
    if not isinstance(layout, ChunkedLayout) or not space.shape:
        raise frame.error(path, "is not stored in chunks")
    maxshape = space.maxshape or space.shape
    rank = len(space.shape)
    if len(layout.chunk_shape) != rank or len(maxshape) != rank:
        raise frame.error(path, f"its chunks {layout.chunk_shape} are not for {space.shape}")
    if min(layout.chunk_shape) < 1 or layout.element_size < 1:
        reason = f"its chunks are {layout.chunk_shape} of {layout.element_size} bytes"
        raise frame.error(path, reason)
    limits = zip(space.shape, maxshape, strict=True)
    if any(longest is not None and longest < length for length, longest in limits):
        raise frame.error(path, f"its shape {space.shape} is beyond its largest {maxshape}")
    grid = ChunkGrid(
        frame=frame,
        path=path,
        shape=space.shape,
        maxshape=maxshape,
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
    return _class_of(layout.index)(grid, layout.address)


def _class_of(kind: str) -> type[HDF5ChunkIndex]:
    """Return the class of a chunk index; most files have one kind, and the others stay unread."""
    if kind == "implicit":
        return ImplicitIndex
    if kind == "fixed":
        from nczarr_xarray.formats.hdf5.chunkindex_fixed import FixedArrayIndex

        return FixedArrayIndex
    if kind == "extensible":
        from nczarr_xarray.formats.hdf5.chunkindex_extensible import ExtensibleArrayIndex

        return ExtensibleArrayIndex
    from nczarr_xarray.formats.hdf5.chunkindex_trees import BTree1Index, BTree2Index

    return BTree1Index if kind == "btree1" else BTree2Index
