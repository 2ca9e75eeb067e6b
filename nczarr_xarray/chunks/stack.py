"""Arrays that differ in the bytes of their chunks only, read as one with a dimension more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nczarr_xarray.chunks.grid import Grid, GridRead
from nczarr_xarray.chunks.plan import Plan, Window, plan_outer, plan_points
from nczarr_xarray.chunks.scatter import allocate
from nczarr_xarray.chunks.sources import EncodedChunk
from nczarr_xarray.model import Array, ChunkTable, CodecConfig, grid_of

#: Members of a stack: more than are ever read at a time.
_MOST = 1 << 20
#: Fetches chunks of one member, given its number, theirs (ascending), and the bytes that one may
#: have; None if the member has to be read in another way.
Fetch: TypeAlias = Callable[[int, Sequence[int], int], "Sequence[EncodedChunk] | None"]


@dataclass(frozen=True, slots=True)
class _StackArray(Array):
    """All members of a stack, whose chunks are brought along."""

    chunk_shape: tuple[int, ...]
    dtype: np.dtype
    fill: Any
    codecs: tuple[CodecConfig, ...]


class Stacked(NamedTuple):
    """What was read of a stack.

    Attributes
    ----------
    members
        Those that were read.
    data
        The selection; they are along its first dimension.
    """

    members: list[int]
    data: np.ndarray


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What reads of one key of as many members have in common.

    Parameters
    ----------
    members, key, points
        As of `ChunkStack.read`.
    plan
        What is read.
    numbers
        The chunks that are read of a member.
    windows
        With where the chunks are in what was fetched, and for each of them its member and its
        place among `numbers`.
    """

    members: int
    key: tuple[Any, ...]
    points: bool
    plan: Plan
    numbers: list[int]
    windows: list[tuple[Window, ChunkTable, list[tuple[int, int]]]]

    def is_for(self, members: int, key: tuple[Any, ...], points: bool) -> bool:
        """Tell whether a read is one of these; `key` is not compared by value."""
        return key is self.key and members == self.members and points == self.points


class ChunkStack:
    """Reads the same selection of many arrays: planned once, decoded in rows of chunks.

    Parameters
    ----------
    array
        One of them, of a file, and without a conversion.
    chunk_shape
        How it is divided.
    masks
        As of `ChunkTable`, for all chunks of an array.
    """

    def __init__(self, array: Array, chunk_shape: tuple[int, ...], masks: np.ndarray) -> None:
        self._chunks = math.prod(grid_of(array.shape, chunk_shape))
        self._masks = masks
        shape, chunks = (_MOST, *array.shape), (1, *chunk_shape)
        self._grid = Grid(
            _StackArray(array.path, shape, chunks, array.dtype, array.fill, array.codecs)
        )
        #: of the last read: the next one is mostly of as many members and the same key
        self._prepared: _Prepared | None = None

    def nbytes(self, key: tuple[Any, ...], *, points: bool) -> int:
        """Return the decoded bytes of the chunks of one array that a selection touches."""
        return self._plan(1, key, points).count * self._grid.nbytes

    def read(self, members: int, key: tuple[Any, ...], fetch: Fetch, *, points: bool) -> Stacked:
        """Read a selection of several arrays, in the calling thread.

        Parameters
        ----------
        members
            How many there are.
        key, points
            As of `nczarr_xarray.model.Selections.read`, for each of them.

        Raises
        ------
        FormatError, StoreError
            If a chunk of one of them cannot be read or decoded.
        """
        prepared = self._prepared
        if prepared is None or not prepared.is_for(members, key, points):
            prepared = self._prepared = self._prepare(members, key, points)
        plan, most = prepared.plan, self._grid.decoder.most
        found: dict[int, Sequence[EncodedChunk]] = {}
        for member in range(members):
            chunks = fetch(member, prepared.numbers, most)
            if chunks is not None:
                found[member] = chunks
        room = allocate(self._grid.array, plan.shape)
        reading = GridRead(self._grid, plan, room, remember=False, local=True)
        for window, table, places in prepared.windows:
            data = [found[owner][at] if owner in found else None for owner, at in places]
            pieces = reading.pieces(window.ids, window, table, parts=False)
            pieces.scatter(np.arange(len(data)), data)
        result = plan.finish(room)
        result = np.moveaxis(result, 1, 0) if points else result
        read = list(found)
        return Stacked(read, result if len(read) == members else result[read])

    def _prepare(self, members: int, key: tuple[Any, ...], points: bool) -> _Prepared:
        plan = self._plan(members, key, points)
        windows = [window for _, window in self._grid.windows(plan, local=True)]
        ids = [np.zeros(0, np.int64), *(window.ids for window in windows)]
        numbers = np.unique(np.concatenate(ids) % self._chunks)
        located = []
        for window in windows:
            owners, own = np.divmod(window.ids, self._chunks)
            places = zip(owners.tolist(), np.searchsorted(numbers, own).tolist(), strict=True)
            here = np.zeros(len(own), np.int64)
            located.append((window, ChunkTable(here, here, self._masks[own]), list(places)))
        return _Prepared(members, key, points, plan, numbers.tolist(), located)

    def _plan(self, members: int, key: tuple[Any, ...], points: bool) -> Plan:
        array = self._grid.array
        plan = plan_points if points else plan_outer
        return plan((slice(0, members), *key), array.shape, array.chunk_shape)
