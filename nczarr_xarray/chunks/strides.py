"""Plain elements: the bytes that hold a selection, and no others, of files and of chunks.

Contiguous data and the records of classic files need no index: where an element
is follows from its position. A selection becomes *runs* of equal length, each as
long as reads little that is not wanted; scattering them is a few numpy operations
for as many runs as arrive together.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

import numpy as np

from nczarr_fsspec.concurrency import at_once
from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.cache import LONGEST, read_records
from nczarr_xarray.chunks.pieces import Block, Positions, bounded, count_of
from nczarr_xarray.chunks.plan import ONLY_CHUNK, OuterPlan, Plan, PointPlan
from nczarr_xarray.chunks.sources import LocalFile, LocalSource
from nczarr_xarray.codecs.codec import ChunkBound
from nczarr_xarray.model import Array, ChunkTable

#: On this machine, wanted elements that are at most so many bytes apart are read by one call: to
#: read what is between them takes less time than another call. Records of files with many
#: variables are as long.
LOCAL_GAP = 1 << 13
#: A run of up to so many bytes may hold any number of bytes that were not asked for.
SHORT_RUN = 1 << 14
#: Of a longer run, at least this share of the bytes is wanted, unless elements are near each other.
WANTED_SHARE = 0.8
#: A slice whose step is larger than this is not read as one run.
SPARSE_STEP = 8
#: Bytes of the longest run: of several, the first are scattered while others are still fetched.
LONG_RUN = 1 << 20
#: Rows from so many bytes on are a run each: to read several by one call saves nothing.
LONG_ROW = 1 << 17


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of the result: which positions it takes along a dimension of the file.

    Attributes
    ----------
    first, span
        The lowest position, and the number of positions from there to the highest.
    count
        How many of them are taken.
    part
        These, counted from `first`.
    stride
        Bytes from a position to the next.
    """

    first: int
    span: int
    count: int
    part: Positions
    stride: int

    @classmethod
    def of(cls, part: Positions, stride: int) -> _Axis:
        first, span, part = bounded(part)
        return cls(first, span, count_of(part, span), part, stride)

    @property
    def is_dense(self) -> bool:
        """Whether all positions are taken, in their order."""
        return isinstance(self.part, slice) and self.span == self.count

    @property
    def distance(self) -> float:
        """Bytes from one position to the next, on average."""
        return (self.span - 1) * self.stride / max(1, self.count - 1)

    def offsets(self) -> np.ndarray:
        """Return bytes from the beginning of the array to each position."""
        part, first = self.part, self.first
        if isinstance(part, slice):  # it begins with 0
            return np.arange(first, first + self.span, part.step or 1, dtype=np.int64) * self.stride
        return (part + first) * self.stride


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of equal length that fill one part of a result.

    Parameters
    ----------
    starts
        Of each run, in bytes from the beginning of the array (int64), in C order
        over the outer axes.
    length
        Of each run in bytes.
    target
        The part of the result.
    outer
        Lengths of the leading axes of the result, which the runs enumerate.
    inner
        The axes within one run.
    dtype
        Of the elements as stored.
    """

    starts: np.ndarray
    length: int
    target: tuple[Any, ...]
    outer: tuple[int, ...]
    inner: tuple[_Axis, ...]
    dtype: np.dtype

    @property
    def is_copy(self) -> bool:
        """Whether the bytes of a run are those of its elements, in their order."""
        nbytes = self.dtype.itemsize
        for axis in reversed(self.inner):
            if axis.stride != nbytes or not axis.is_dense:
                return False
            nbytes *= axis.count
        return nbytes == self.length

    def room(self, number: int, result: np.ndarray) -> np.ndarray | None:
        """Find the elements of `result` that a run fills, 1-D; None if not contiguous."""
        index = np.unravel_index(number, self.outer) if self.outer else ()
        part = result[self.target][(*index, ...)]  # a view, of a single element too
        return part.reshape(-1) if part.flags.c_contiguous else None

    def scatter(
        self, numbers: Sequence[int] | np.ndarray, data: Sequence[Any], result: np.ndarray
    ) -> None:
        """Put the bytes of the runs `numbers`, in any order, where they belong in `result`."""
        stored = data[0] if len(data) == 1 else b"".join(data)
        grid: np.ndarray = np.ndarray(
            (len(data), *(axis.span for axis in self.inner)),
            self.dtype,
            stored,
            strides=(self.length, *(axis.stride for axis in self.inner)),
        )
        for position, axis in enumerate(self.inner, start=1):
            grid = grid[(*[slice(None)] * position, axis.part)]
        part = result[self.target]
        first, chosen = int(numbers[0]), np.asarray(numbers)
        in_order = np.array_equal(chosen, np.arange(first, first + len(data)))
        # swaps bytes on the way where that is needed
        if part.flags.c_contiguous and in_order:
            rows = part.reshape(-1, *part.shape[len(self.outer) :])
            rows[first : first + len(data)] = grid
        else:
            part[np.unravel_index(chosen, self.outer)] = grid


def plan_runs(
    plan: OuterPlan | PointPlan, strides: Sequence[int], dtype: np.dtype, gap: int
) -> list[Runs]:
    """Find the runs of a selection.

    Parameters
    ----------
    plan
        Of the array as a single chunk.
    strides
        Of the array in bytes.
    dtype
        Of the elements as stored.
    gap
        Where wanted elements are at most so many bytes apart, what is between them is read, too.
    """
    if not math.prod(plan.shape):
        return []
    if isinstance(plan, PointPlan):
        count = len(plan.axes) - len(plan.pieces)  # of indexed dimensions
        ((_, within, order),) = plan.groups
        points = np.zeros(len(order), dtype=np.int64)  # type: ignore[arg-type]
        for dimension, positions in zip(plan.axes[:count], within, strict=True):
            points[order] += np.asarray(positions, dtype=np.int64) * strides[dimension]
        outer = [points]
        dimensions = plan.axes[count:]
    else:
        outer = []
        dimensions = tuple(range(len(strides)))
    axes = []
    for dimension, pieces in zip(dimensions, plan.pieces, strict=True):
        (piece,) = pieces
        axes.append(_Axis.of(piece.source, strides[dimension]))
    inner = len(axes)
    wanted = span = dtype.itemsize
    while inner:
        axis = axes[inner - 1]
        taken, length = wanted * axis.count, span + (axis.span - 1) * axis.stride
        sparse = taken < WANTED_SHARE * length and axis.distance > gap
        if length > LONG_RUN or (length > SHORT_RUN and sparse):
            break
        wanted, span = taken, length
        inner -= 1
    outer += [axis.offsets() for axis in axes[:inner]]
    # one row, or rows without gaps, may be too long for one run and need not be runs each
    cut = []
    if inner and inner == len(axes):
        cut = _cut(axes[-1], max(gap, SPARSE_STEP * dtype.itemsize))
    elif inner and axes[inner - 1].distance <= gap:
        cut = _cut(axes[inner - 1], gap)
    elif inner and wanted == span == axes[inner - 1].stride and span < LONG_ROW:
        cut = _cut(axes[inner - 1], span) if axes[inner - 1].is_dense else []
    if not cut:
        return [_runs(outer, (...,), tuple(axes[inner:]), dtype)]
    around = [slice(None)] * (len(outer) - 1)
    return [_runs(outer[:-1], (*around, part), (axis, *axes[inner:]), dtype) for part, axis in cut]


def span_of(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Measure the bytes from the first element of an array to the end of its last one.

    Returns
    -------
    0 if the array is not to be read at once: it is empty or long, or much of what lies between its
    elements is not its own.
    """
    if 0 in shape:
        return 0
    span = itemsize
    for length, stride in zip(shape, strides, strict=True):
        span += (length - 1) * stride
    if span == itemsize * math.prod(shape):
        return span if span <= LONG_RUN else 0
    return span if strides[0] <= LOCAL_GAP and span <= LONGEST else 0


def end_of(plan: OuterPlan | PointPlan, strides: Sequence[int], itemsize: int) -> int:
    """Find where the last element of a selection ends, in bytes from the array's beginning."""
    if not math.prod(plan.shape):
        return 0
    parts = [piece.source for (piece,) in plan.pieces]
    if isinstance(plan, PointPlan):
        parts = [*plan.groups[0][1], *parts]
    end = itemsize
    for axis, part in zip(plan.axes or range(len(strides)), parts, strict=True):
        first, span, _ = bounded(part)
        end += (first + span - 1) * strides[axis]
    return end


def _runs(
    outer: list[np.ndarray], target: tuple[Any, ...], inner: tuple[_Axis, ...], dtype: np.dtype
) -> Runs:
    starts = np.array([sum(axis.first * axis.stride for axis in inner)], dtype=np.int64)
    for offsets in outer:
        starts = np.add.outer(starts, offsets).reshape(-1)
    length = dtype.itemsize + sum((axis.span - 1) * axis.stride for axis in inner)
    return Runs(starts, length, target, tuple(map(len, outer)), inner, dtype)


def _cut(axis: _Axis, farthest: int) -> list[tuple[slice, _Axis]]:
    """Cut an axis into parts short enough for a run each, if it is not too sparse.

    Parameters
    ----------
    farthest
        Bytes from one position to the next, at most; of a list, on average.
    """
    if not isinstance(axis.part, slice):
        return _cut_list(axis) if axis.distance <= farthest else []
    step = axis.part.step or 1
    if step * axis.stride > farthest:
        return []
    most = max(1, LONG_RUN // (step * axis.stride))
    parts = []
    for start in range(0, axis.count, most):
        stop = min(start + most, axis.count)
        span = (stop - start - 1) * step + 1
        piece = _Axis(
            axis.first + start * step, span, stop - start, slice(0, span, step), axis.stride
        )
        parts.append((slice(start, stop), piece))
    return parts


def _cut_list(axis: _Axis) -> list[tuple[slice, _Axis]]:
    """Cut positions in any order, if those of a part are not found in another one again."""
    part = np.asarray(axis.part)
    blocks = part * axis.stride // LONG_RUN
    steps = np.diff(blocks)
    if np.any(steps < 0) and np.any(steps > 0):
        return []
    bounds = [0, *(np.flatnonzero(steps) + 1).tolist(), len(part)]
    return [
        (slice(start, stop), _Axis.of(part[start:stop] + axis.first, axis.stride))
        for start, stop in itertools.pairwise(bounds)
    ]


# -- reads -----------------------------------------------------------------------------------------


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
        #: whether there are elements, in the file
        self.is_file = self._start >= 0 and inline is None
        if self.is_file:
            self._span = span_of(array.shape, self.strides, array.dtype.itemsize)
        self._is_dense = self._span == math.prod(array.shape) * array.dtype.itemsize

    def read_block(self, source: LocalSource, block: Block, *, remember: bool) -> np.ndarray | None:
        """Read a block with one read; None if that is not the best way.

        Raises
        ------
        StoreError
            Naming the file, if it cannot be read.
        """
        assert isinstance(source, LocalFile)
        array, strides, start, offset = self.array, self.strides, self._start, 0
        span, whole, itemsize = self._span, block.lengths == array.shape, array.dtype.itemsize
        if not whole and self.is_file:
            start += sum(map(mul, block.lows, strides))
            span = itemsize + sum(map(mul, block.lengths, strides)) - sum(strides)
            if span > (SHORT_RUN if span > math.prod(block.lengths) * itemsize else LONG_RUN):
                return None
        if not span or start + span > self.size:
            return None
        if whole and not self._is_dense:
            data, offset = read_records(source.bytes, start, start + span, strides[0])
        else:
            data = source.bytes.read(start, start + span)
        stored = np.ndarray(block.lengths, array.dtype, data, offset, strides)
        return stored.astype(array.dtype.newbyteorder("="), order="C").reshape(block.kept)


class StridedRead:
    """One read of plain elements; see `nczarr_xarray.chunks.grid.GridRead`."""

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
            self._result[...] = array.missing
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
    """Runs of a read; see `nczarr_xarray.chunks.grid.GridPieces`."""

    def __init__(self, parts: list[Runs], chunk: ChunkTable, result: np.ndarray) -> None:
        self.group_chunks = 1
        self._parts = parts
        self._result = result
        #: the row that each part begins with, and the end of the last one
        self._first = [0, *itertools.accumulate(len(runs.starts) for runs in parts)]
        self.groups = count = self._first[-1]
        self.nbytes = self.group_nbytes = max((runs.length for runs in parts), default=0)
        self.bound = ChunkBound(self.nbytes, self.nbytes)
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
                self._scatter(part, rows, source.fetch(table, self.bound))
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
