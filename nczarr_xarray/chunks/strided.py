"""Reads of plain elements at regular distances: runs of bytes, and what becomes of them."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.plan import Plan
from nczarr_xarray.chunks.scatter import fill_element
from nczarr_xarray.chunks.sources import LocalFile, LocalSource, at_once
from nczarr_xarray.chunks.strides import LOCAL_GAP, Runs, end_of, plan_runs, span_of
from nczarr_xarray.chunks.windows import ONLY_CHUNK
from nczarr_xarray.model import Array, ChunkTable

#: Runs of elements from this length on are read straight into the result; a copy costs less than
#: finding their places one by one.
DIRECT_BYTES = 1 << 15


class Strided:
    """An array of plain elements, as far as all reads have it in common.

    Parameters
    ----------
    array
        It has strides.
    size
        Bytes of its file.
    """

    def __init__(self, array: Array, size: int) -> None:
        assert array.strides is not None
        self.array = array
        self.size = size
        self.strides = array.strides
        self.needs_libhdf5 = False  # nothing is decoded
        start, _, _, inline = at_once(array.locate(ONLY_CHUNK))
        self._start = int(start[0])
        #: bytes from the first element to the end of the last, if one read for all is best
        self._span = 0
        if self._start >= 0 and inline is None:
            self._span = span_of(array.shape, self.strides, array.dtype.itemsize)
        self._is_dense = self._span == math.prod(array.shape) * array.dtype.itemsize

    def whole(self, source: LocalSource) -> np.ndarray | None:
        """Read all elements with one read; None if that is not the best way.

        Raises
        ------
        StoreError
            Naming the file, if it cannot be read.
        """
        assert isinstance(source, LocalFile)
        array, start, stop = self.array, self._start, self._start + self._span
        if not self._span or stop > self.size:
            return None
        offset = 0
        if self._is_dense:
            data = source.read(start, stop)
        else:
            data, offset = source.read_records(start, stop, self.strides[0])
        stored = np.ndarray(array.shape, array.dtype, data, offset, self.strides)
        return stored.astype(array.dtype.newbyteorder("="))


class StridedRead:
    """One read of plain elements; see `nczarr_xarray.chunks.grid_read.GridRead`."""

    sparse = False  # runs are no parts of chunks

    def __init__(
        self, strided: Strided, plan: Plan, result: np.ndarray, *, remember: bool, local: bool
    ) -> None:
        self._strided = strided
        self._plan = plan
        self._gap = LOCAL_GAP if local else 0
        self._result = result

    def windows(self) -> Iterator[tuple[np.ndarray, None]]:
        """Yield the only chunk."""
        yield ONLY_CHUNK, None

    def pieces(self, _: np.ndarray, __: Any, table: ChunkTable, *, parts: bool) -> RunPieces:
        """Return the runs of the chunk that are wanted.

        Raises
        ------
        FormatError
            Naming the variable, if the file ends before its data do.
        """
        array, strides, plan = self._strided.array, self._strided.strides, self._plan
        start = int(table.start[0])
        if start < 0 or not math.prod(plan.shape):
            self._result[...] = fill_element(array)
            return RunPieces([], table, self._result)
        size = self._strided.size if table.source is None else len(table.source[0])  # inline
        end = start + end_of(plan, strides, array.dtype.itemsize)
        if end > size:
            raise FormatError(
                array.path, f"its data go on to byte {end}, and there are {size}: truncated?"
            )
        runs = plan_runs(plan, strides, array.dtype, self._gap)
        return RunPieces(runs, table, self._result)


class RunPieces:
    """Runs of a read; see `nczarr_xarray.chunks.grid_read.GridPieces`."""

    def __init__(self, parts: list[Runs], chunk: ChunkTable, result: np.ndarray) -> None:
        self.group_chunks = 1
        self._parts = parts
        self._result = result
        #: the row that each part begins with, and the end of the last one
        self._first = [0, *itertools.accumulate(len(runs.starts) for runs in parts)]
        self.groups = count = self._first[-1]
        self.most = self.nbytes = self.group_nbytes = max(
            (runs.length for runs in parts), default=0
        )
        starts = [np.zeros(0, np.int64), *(runs.starts for runs in parts)]
        sizes = [np.full(len(runs.starts), runs.length, np.int64) for runs in parts]
        self.table = ChunkTable(
            np.concatenate(starts) + chunk.start[0],
            np.concatenate([starts[0], *sizes]),
            np.zeros(count, np.uint32),
            None if chunk.source is None else np.repeat(chunk.source, count),
        )

    def turns(self, *, joins: bool) -> int:
        """Return how often a run takes the interpreter's lock."""
        return 1

    def take(self, source: LocalSource, groups: Sequence[int]) -> None:
        """Fetch and scatter consecutive runs."""
        low, stop = groups[0], groups[-1] + 1
        while low < stop:
            part = bisect.bisect_right(self._first, low) - 1
            high, runs = min(stop, self._first[part + 1]), self._parts[part]
            rows: Sequence[int] = range(low, high)
            if runs.is_copy and runs.length >= DIRECT_BYTES:
                rows = [row for row in rows if not self._direct(source, part, row)]
            if rows:
                table = self.table.of(slice(low, high) if len(rows) == high - low else rows)
                self._scatter(part, rows, source.fetch(table, runs.length))
            low = high

    def left(self) -> np.ndarray:
        """Find what has to be fetched: all."""
        return np.arange(self.groups)

    def scatter(self, rows: np.ndarray, data: Sequence[Any]) -> None:
        """Put runs, in any order, where they belong."""
        which = np.searchsorted(self._first, rows, side="right") - 1
        for part in np.unique(which).tolist():
            members = np.flatnonzero(which == part)
            self._scatter(part, rows[members], [data[i] for i in members.tolist()])

    def _scatter(self, part: int, rows: Any, data: Sequence[Any]) -> None:
        numbers = np.asarray(rows) - self._first[part]
        self._parts[part].scatter(numbers, data, self._result)

    def _direct(self, source: LocalSource, part: int, row: int) -> bool:
        runs = self._parts[part]
        room = runs.room(row - self._first[part], self._result)
        if room is None or not source.fetch_into(self.table, row, room.view(np.uint8).data):
            return False
        if not runs.dtype.isnative:
            room.byteswap(inplace=True)
        return True
