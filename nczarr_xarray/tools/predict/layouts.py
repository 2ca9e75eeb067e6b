"""Layouts that are proposed: chunk shapes that suit how data are read, and arrays of them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nczarr_xarray.export.form.chunk_shapes import (
    DEFAULT_BYTES,
    balanced_chunk_shape,
    equal_lengths,
    plane_of,
)
from nczarr_xarray.formats.rounds import all_of, read
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import Array, ChunkedArray, ChunkTable, FileChunks, grid_of
from nczarr_xarray.tools.survey import VariableStorage


def steps(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return chunks of whole maps: so many steps of the first dimension as fit, one at least.

    Parameters are those of `balanced_chunk_shape`.
    """
    plane = plane_of(len(shape))
    each = math.prod(shape[plane:]) * itemsize
    along = max(1, min(shape[0], DEFAULT_BYTES // max(1, each)))
    return equal_lengths(shape, [along, *(1 for _ in shape[1:plane]), *shape[plane:]])


#: Bytes of a chunk before codecs above which it is not proposed: a map may be larger.
MOST = 1 << 26
#: The layouts that are compared with the one that there is, by name.
PROPOSALS: dict[str, Callable[[Sequence[int], int], tuple[int, ...]]] = {
    "balanced": balanced_chunk_shape,
    "whole maps": steps,
}


def proposals(shape: Sequence[int], itemsize: int) -> dict[str, tuple[int, ...]]:
    """Return chunk shapes for an array, by the name of what they are good for."""
    if len(shape) < 2 or not all(shape):
        return {}
    found = {name: propose(shape, itemsize) for name, propose in PROPOSALS.items()}
    return {name: chunks for name, chunks in found.items() if math.prod(chunks) * itemsize <= MOST}


# -- arrays --------------------------------------------------------------------------------------

#: Entries of a node of HDF5's first kind of index, at most and as netCDF-C fills them.
_MOST, _FILLED = 64, 46


def proposed_nbytes(facts: VariableStorage, chunk_shape: tuple[int, ...]) -> int:
    """Return about how long a stored chunk of another shape would be."""
    count = math.prod(grid_of(facts.shape, chunk_shape))
    whole = math.prod(chunk_shape) * facts.itemsize
    # without codecs what lies beyond the shape takes as much as anything else
    return max(1, round(facts.ratio * facts.nbytes / count)) if facts.codecs else whole


def in_tree(facts: VariableStorage, chunk_shape: tuple[int, ...]) -> Array:
    """Return the array with other chunks, each an object."""
    array = facts.array
    if isinstance(array, ZarrArray):
        metadata = json.loads(array.metadata)
        for codec in metadata["codecs"]:
            if codec["name"] == "sharding_indexed":
                metadata["codecs"] = codec["configuration"]["codecs"]
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = list(chunk_shape)
        text = json.dumps(metadata)
        return dataclasses.replace(array, chunk_shape=chunk_shape, metadata=text)
    assert isinstance(array, ChunkedArray)
    return dataclasses.replace(array, chunk_shape=chunk_shape)


def in_file(facts: VariableStorage, chunk_shape: tuple[int, ...], begin: int) -> tuple[Array, int]:
    """Return the array with other chunks, as netCDF-C would write them, and where they end.

    Parameters
    ----------
    begin
        Where they begin in the file.
    """
    array = facts.array
    index = _Index(
        begin,
        math.prod(grid_of(array.shape, chunk_shape)),
        proposed_nbytes(facts, chunk_shape),
        _node_nbytes(len(array.shape)),
    )
    codecs = array.codecs if isinstance(array, FileChunks) else ()
    chunks = FileChunks(array.path, array.shape, chunk_shape, array.dtype, index, codecs=codecs)
    return chunks, index.end


def _node_nbytes(rank: int) -> int:
    """Return the bytes of a node: a header, and keys around addresses of eight bytes."""
    key = 8 + 8 * (rank + 1)
    return 24 + (_MOST + 1) * key + _MOST * 8


@dataclass(frozen=True, slots=True)
class _Index:
    """A tree of nodes that lie before the first of their chunks; its root is with the header.

    Parameters
    ----------
    begin
        Where chunks and nodes begin.
    count, nbytes
        Of the chunks, and of each.
    node
        Bytes of a node.
    """

    begin: int
    count: int
    nbytes: int
    node: int

    @property
    def levels(self) -> int:
        """Levels below the root."""
        levels, spanned = 0, _MOST
        while spanned < self.count:
            levels, spanned = levels + 1, spanned * _FILLED
        return levels

    @property
    def end(self) -> int:
        """Where the last chunk ends."""
        return int(self._starts(np.array([self.count - 1]))[0]) + self.nbytes

    def _starts(self, ids: np.ndarray) -> np.ndarray:
        nodes = (ids // _FILLED + 1) * self.levels * self.node
        starts: np.ndarray = self.begin + ids * self.nbytes + nodes
        return starts

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks, level by level: see `Array.locate`."""
        for level in range(self.levels, 0, -1):
            firsts = np.unique(ids // _FILLED**level) * _FILLED**level
            places = (self._starts(firsts) - level * self.node).tolist()
            await all_of(read(place, self.node) for place in places)
        size = np.full(len(ids), self.nbytes)
        return ChunkTable(self._starts(ids), size, np.zeros(len(ids), np.uint32))
