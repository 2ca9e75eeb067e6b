"""What HDF5's chunk indexes have in common: the grid, the table of chunks, the cache of nodes.

Positions of chunks are "scaled" offsets (specification: offsets divided by the
chunk's shape). The chunks of a dataset are numbered in C order over the grid of
its *current* shape; indexes order them by other rules. Those that need no structure
in the file are here, the others in `chunkindex_trees.py` and `chunkindex_arrays.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.model import ChunkTable, grid_of

#: A chunk as an index lists it. `number` is its number in the order of the index, `address` is -1
#: if the chunk does not exist.
CHUNK = np.dtype([("number", "<i8"), ("address", "<i8"), ("size", "<i8"), ("mask", "<u4")])
#: Bytes of parsed nodes that one index keeps.
MEMORY = 1 << 26
#: Replaces all larger numbers: sums of two stay within int64, and no file is that long.
HUGE = np.uint64(1 << 61)


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The chunks of a dataset with its present shape.

    Parameters
    ----------
    frame, path
        File and dataset, for messages.
    shape, maxshape, chunk_shape
        In elements; `maxshape` has None where there is no limit.
    element_size
        In bytes.
    filters
        How many there are in the pipeline.
    unfiltered_edges
        Whether chunks that reach over the edge are stored unfiltered.
    """

    frame: Frame
    path: str
    shape: tuple[int, ...]
    maxshape: tuple[int | None, ...]
    chunk_shape: tuple[int, ...]
    element_size: int
    filters: int
    unfiltered_edges: bool

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk before filters."""
        return math.prod(self.chunk_shape) * self.element_size

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return grid_of(self.shape, self.chunk_shape)

    def error(self, reason: str) -> FormatError:
        """Return an error about the chunks of this dataset."""
        return self.frame.error(self.path, reason)

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Return the scaled offsets of chunks, one row for each dimension."""
        return np.stack(np.unravel_index(ids, self.counts))

    def numbers(self, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many chunks come before each position, and whether a chunk is there.

        Parameters
        ----------
        scaled
            uint64 offsets, one row for each position; they may lie outside of the
            grid, and are then between two chunks in C order.
        """
        numbers = np.zeros(len(scaled), dtype=np.int64)
        inside = np.ones(len(scaled), dtype=bool)
        stride = math.prod(self.counts)
        for axis, count in enumerate(self.counts):
            stride //= max(count, 1)
            at = np.minimum(scaled[:, axis], count).astype(np.int64)
            numbers += np.where(inside, at, 0) * stride
            inside &= at < count
        return numbers, inside

    def partial(self, ids: np.ndarray) -> np.ndarray:
        """Tell whether chunks reach over the edge of the dataset."""
        edges = np.zeros(len(ids), dtype=bool)
        grid = zip(self.positions(ids), self.counts, self.shape, self.chunk_shape, strict=True)
        for at, count, length, chunk in grid:
            if length % chunk:
                edges |= at == count - 1
        return edges

    def chunks(
        self,
        numbers: np.ndarray,
        addresses: np.ndarray,
        sizes: np.ndarray | None = None,
        masks: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return `CHUNK`s; addresses and sizes are uint64, unfiltered chunks need no sizes."""
        missing = addresses == self.frame.undefined
        chunks = np.zeros(len(numbers), dtype=CHUNK)
        chunks["number"] = numbers
        chunks["address"] = np.where(missing, -1, np.minimum(addresses, HUGE).astype(np.int64))
        chunks["size"] = self.chunk_bytes if sizes is None else np.minimum(sizes, HUGE)
        if masks is not None:
            chunks["mask"] = masks
        return chunks


class NodeCache(dict[Any, Any]):
    """Parsed nodes by address, so that no node is read twice. Forgotten on pickling.

    When it is full it is emptied: then a lookup needs more nodes than are worth keeping. Each
    variable has one, which threads share without a lock: at worst, it counts some bytes too few.
    """

    _size = 0

    def __reduce__(self) -> tuple[type[NodeCache], tuple[()]]:
        return NodeCache, ()

    def keep(self, key: Any, node: Any, nbytes: int) -> None:
        """Keep `node`, which takes about `nbytes`."""
        if key in self:
            return
        if self._size + nbytes > MEMORY:
            self.clear()
            self._size = 0
        self[key] = node
        self._size += nbytes


class HDF5ChunkIndex(ABC):
    """A `nczarr_xarray.model.ChunkIndex` over one of HDF5's structures.

    Parameters
    ----------
    grid
        The chunks of the dataset.
    address
        Where the structure is.
    """

    def __init__(self, grid: ChunkGrid, address: int) -> None:
        self.grid = grid
        self.address = address
        self.memory = NodeCache()

    def moved(self, url: str, end: int) -> Self:
        """Return the index of a file with the same metadata, and another end."""
        other = copy(self)
        frame = replace(self.grid.frame, url=url, end=end, notes=None)
        other.grid = replace(self.grid, frame=frame)
        other.memory = NodeCache()
        return other

    @abstractmethod
    async def find(self, ids: np.ndarray) -> np.ndarray:
        """Return one `CHUNK` for each of `ids`, in order; `number` is not used."""

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks; see `nczarr_xarray.model.ChunkIndex`.

        Raises
        ------
        FormatError
            If the index is damaged, or a chunk is where none can be.
        """
        grid, frame = self.grid, self.grid.frame
        ids = np.asarray(ids, dtype=np.int64)
        chunks = await self.find(ids) if len(ids) else np.empty(0, dtype=CHUNK)
        address, size = chunks["address"], chunks["size"]
        missing = address < 0
        # at 0 is the superblock; an index with zeros in place of what was lost leads there
        outside = ~missing & ((address + size > frame.end) | (address == 0))
        if outside.any():
            first = int(outside.argmax())
            where = tuple(grid.positions(ids[first : first + 1])[:, 0].tolist())
            at = int(address[first])
            reason = f"the file ends at {frame.end}" if at else "there is the superblock"
            raise grid.error(f"chunk {where} has {size[first]} bytes at {at}, but {reason}")
        all_filters = np.uint32((1 << grid.filters) - 1 & 0xFFFFFFFF)
        mask = chunks["mask"] & all_filters
        if grid.unfiltered_edges and len(ids):
            mask[grid.partial(ids)] = all_filters
        return ChunkTable(
            np.where(missing, -1, address + frame.base), np.where(missing, 0, size), mask
        )

    def pick(self, parts: Iterable[Any], numbers: np.ndarray) -> np.ndarray:
        """Return those `CHUNK`s, in any order, that have `numbers`; others are missing.

        Raises
        ------
        FormatError
            If a chunk is there twice.
        """
        # (as bytes: numpy compares structured types again for each array that it joins)
        chunks = np.frombuffer(b"".join(parts), dtype=CHUNK)
        known = chunks["number"]
        if len(known) == len(numbers) and (known == numbers).all():  # all of them, in order
            return chunks
        picked = np.zeros(len(numbers), dtype=CHUNK)
        picked["address"] = -1
        if not len(chunks):
            return picked
        if np.any(known[1:] <= known[:-1]):
            chunks = chunks[np.argsort(known, kind="stable")]
            known = chunks["number"]
            if np.any(known[1:] == known[:-1]):
                raise self.grid.error("its chunk index lists a chunk twice")
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        hit = known[at] == numbers
        picked[hit] = chunks[at[hit]]
        return picked


class NoIndex(HDF5ChunkIndex):
    """Nothing has been written: no chunk exists."""

    async def find(self, ids: np.ndarray) -> np.ndarray:
        return self.pick([], ids)


class SingleIndex(HDF5ChunkIndex):
    """The dataset is one chunk; `size` and `mask` are stated where there are filters."""

    def __init__(self, grid: ChunkGrid, address: int, size: int | None, mask: int) -> None:
        super().__init__(grid, address)
        self._size = grid.chunk_bytes if size is None else size
        self._mask = mask

    async def find(self, ids: np.ndarray) -> np.ndarray:
        chunk = (0, min(self.address, 1 << 61), min(self._size, 1 << 61), self._mask)
        return np.full(len(ids), np.array(chunk, dtype=CHUNK))
