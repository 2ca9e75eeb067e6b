"""From a selection to the chunks it touches: pure arithmetic on a regular chunk grid.

Each dimension of an orthogonal selection is planned by itself into `Piece`
lists; the chunks of a selection are their product. A piece says which chunk, which part of it, and
where that part goes in the result. Chunks are numbered, and come in windows that are located
together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nczarr_xarray.chunks.pieces import (
    LONG,
    Division,
    Index,
    Piece,
    Pieces,
    Positions,
    array_pieces,
    as_indexer,
    checked,
    divide,
    slice_pieces,
    split_axes,
)
from nczarr_xarray.model import position_of


class ChunkTask(NamedTuple):
    """One chunk to fetch: its grid position, and numpy keys of what to take and where to put it."""

    position: tuple[int, ...]
    source: tuple[Any, ...]
    target: tuple[Any, ...]


class Segment(NamedTuple):
    """Chunks of a selection that follow each other along one dimension, and differ in nothing else.

    Attributes
    ----------
    first
        The first of them.
    axis
        The dimension along which they follow each other.
    pieces
        Of that dimension, one for each chunk.
    step
        Along `axis`, the distance of one wanted element to the next, from the first chunk to the
        last, which are neighbours and go to one slice of the result; 0 if it is not constant.
    dense
        Whether that step is 1, and the chunks are whole along `axis`.
    """

    first: ChunkTask
    axis: int
    pieces: Sequence[Piece]
    step: int
    dense: bool

    @property
    def target(self) -> tuple[Any, ...]:
        """Where chunks with a constant step go, all of them."""
        axis, target = self.axis, self.first.target
        along = slice(target[axis].start, self.pieces[-1].target.stop)  # type: ignore[union-attr]
        return (*target[:axis], along, *target[axis + 1 :])

    def part(self, low: int, high: int) -> Segment:
        """Return some of the chunks, those from `low` to `high`; a single one has no step."""
        if high - low == len(self.pieces):
            return self
        axis, (position, source, target), pieces = self.axis, self.first, self.pieces[low:high]
        first = ChunkTask(
            (*position[:axis], pieces[0].chunk, *position[axis + 1 :]),
            (*source[:axis], pieces[0].source, *source[axis + 1 :]),
            (*target[:axis], pieces[0].target, *target[axis + 1 :]),
        )
        several = len(pieces) > 1
        return Segment(first, axis, pieces, self.step * several, self.dense and several)

    def tasks(self) -> list[ChunkTask]:
        """Return the chunks one by one."""
        axis, (position, source, target) = self.axis, self.first
        if len(self.pieces) == 1:
            return [self.first]
        return [
            ChunkTask(
                (*position[:axis], piece.chunk, *position[axis + 1 :]),
                (*source[:axis], piece.source, *source[axis + 1 :]),
                (*target[:axis], piece.target, *target[axis + 1 :]),
            )
            for piece in self.pieces
        ]


@dataclass(frozen=True, slots=True)
class OuterPlan:
    """An orthogonal selection: chunks are the product of the pieces of each dimension.

    Parameters
    ----------
    shape
        Of the result, with length 1 where an integer selects.
    pieces
        Per dimension.
    flips
        Per dimension: whether the result runs backwards along it.
    squeeze
        Dimensions that an integer selects and the caller does not want.
    chunk_shape
        Of the array; 0 where chunks have different lengths: these have no segments, only tasks.
    """

    shape: tuple[int, ...]
    pieces: tuple[Pieces, ...]
    chunk_shape: tuple[int, ...]
    flips: tuple[bool, ...]
    squeeze: tuple[int, ...]
    axes: None = None

    @property
    def count(self) -> int:
        return math.prod(map(len, self.pieces))

    def segments(self, most: int) -> Iterator[Segment]:
        if not self.pieces:
            yield Segment(ChunkTask((), (), ()), 0, [Piece(0, slice(0, 1), slice(0, 1))], 0, False)
            return
        if not self.count:
            return
        # along the last dimension that has several chunks; or one by one, if keys of numpy need
        # to know all dimensions
        axis = max((i for i, part in enumerate(self.pieces) if len(part) > 1), default=0)
        before, along, after = self.pieces[:axis], self.pieces[axis], self.pieces[axis + 1 :]
        arrays = self._has_arrays
        if arrays:
            most = 1
        length = self.chunk_shape[axis]
        runs = list(_runs(along, length, most)) if len(along) <= LONG else None
        (inner,) = _product(after)
        for outer in _product(before):
            for run, step, dense in runs or _runs(along, length, most):
                position, source, target = zip(*outer, run[0], *inner, strict=True)
                if arrays:
                    source, target = as_indexer(source), as_indexer(target)
                    step, dense = 0, False
                yield Segment(ChunkTask(position, source, target), axis, run, step, dense)

    def tasks(self) -> Iterator[ChunkTask]:
        if not self.pieces:
            yield ChunkTask((), (), ())
            return
        arrays = self._has_arrays
        for pieces in _product(self.pieces):
            position, source, target = zip(*pieces, strict=True)
            if arrays:
                source, target = as_indexer(source), as_indexer(target)
            yield ChunkTask(position, source, target)

    @property
    def _has_arrays(self) -> bool:
        return any(
            not (isinstance(piece.source, slice) and isinstance(piece.target, slice))
            for part in self.pieces
            if isinstance(part, list)
            for piece in part
        )

    def finish(self, result: np.ndarray) -> np.ndarray:
        if any(self.flips):
            result = result[tuple(slice(None, None, -1 if flip else 1) for flip in self.flips)]
        if self.squeeze:
            result = result.squeeze(axis=self.squeeze)
        return result


@dataclass(frozen=True, slots=True)
class PointPlan:
    """A pointwise selection: each chunk is fetched once, whatever points fall into it.

    Parameters
    ----------
    shape
        ``(points, *lengths of the sliced dimensions)``.
    axes
        The dimensions that points index, then the sliced ones.
    groups
        Per chunk of the indexed dimensions: its index along them, the position
        of its points inside the chunk along each, and in the result.
    pieces, flips
        Of the sliced dimensions.
    points_shape
        Of the index arrays.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    groups: Sequence[tuple[tuple[int, ...], tuple[Positions, ...], Positions]]
    pieces: tuple[Pieces, ...]
    flips: tuple[bool, ...]
    points_shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.groups) * math.prod(map(len, self.pieces))

    def segments(self, most: int) -> Iterator[Segment]:
        for task in self.tasks():
            piece = Piece(task.position[0], slice(0, 1), slice(0, 1))  # only its number counts
            yield Segment(task, 0, [piece], 0, False)

    def tasks(self) -> Iterator[ChunkTask]:
        if not self.count:
            return
        back = np.argsort(self.axes)
        for chunk, within, positions in self.groups:
            for combination in _product(self.pieces):
                index = (*chunk, *(piece.chunk for piece in combination))
                yield ChunkTask(
                    tuple(index[i] for i in back),
                    (*within, *(piece.source for piece in combination)),
                    (positions, *(piece.target for piece in combination)),
                )

    def finish(self, result: np.ndarray) -> np.ndarray:
        if any(self.flips):
            flips = (slice(None, None, -1 if flip else 1) for flip in self.flips)
            result = result[(slice(None), *flips)]
        return result.reshape(self.points_shape + self.shape[1:])


#: All chunks of a selection (`segments`, `count` of them), and the shape of the array they fill.
#: `axes` is the order in which `ChunkTask.source` sees the dimensions of a chunk, if not its own;
#: `finish` turns the filled array into what the selection means.
Plan: TypeAlias = OuterPlan | PointPlan


class ChunkPlan(Protocol):
    """Chunks of a selection, or of several (`nczarr_xarray.chunks.joint.JointPlan`)."""

    @property
    def count(self) -> int: ...
    def segments(self, most: int) -> Iterator[Segment]: ...


def plan_outer(
    selection: Sequence[Index], shape: Sequence[int], chunk_shape: Sequence[Division]
) -> OuterPlan:
    """Plan an orthogonal selection.

    Parameters
    ----------
    selection
        One index per dimension: an integer, a slice (any step), or a 1-D array
        of integers (any order, repeats allowed; negative ones count from the end).
    shape
        Of the array.
    chunk_shape
        How its dimensions are divided into chunks.

    Raises
    ------
    IndexError
        If an integer is out of bounds.
    """
    pieces: list[Pieces] = []
    sizes: list[int] = []
    flips: list[bool] = []
    squeeze: list[int] = []
    for axis, (index, size, chunk) in enumerate(zip(selection, shape, chunk_shape, strict=True)):
        flip = False
        if isinstance(index, slice):
            steps = range(*index.indices(size))
            flip = steps.step < 0
            steps = steps[::-1] if flip else steps
            pieces.append(slice_pieces(steps, chunk))
            sizes.append(len(steps))
        elif isinstance(index, np.ndarray):
            pieces.append(array_pieces(checked(index, size), chunk))
            sizes.append(index.size)
        else:
            number, within = divide(int(checked(np.asarray(index, dtype=np.intp), size)), chunk)
            pieces.append([Piece(int(number), slice(within, within + 1), slice(0, 1))])
            sizes.append(1)
            squeeze.append(axis)
        flips.append(flip)
    lengths = tuple(chunk if isinstance(chunk, int) else 0 for chunk in chunk_shape)
    return OuterPlan(tuple(sizes), tuple(pieces), lengths, tuple(flips), tuple(squeeze))


def plan_points(
    selection: Sequence[slice | np.ndarray], shape: Sequence[int], chunk_shape: Sequence[Division]
) -> PointPlan:
    """Plan a pointwise selection, numpy's ``vindex``.

    Parameters
    ----------
    selection
        Per dimension a slice, or an integer array; the arrays are broadcast
        against each other and run along the first dimensions of the result.
    shape, chunk_shape
        As for `plan_outer`.

    Raises
    ------
    IndexError
        If an index is out of bounds.
    """
    indexed, sliced = split_axes(selection)
    arrays = np.broadcast_arrays(
        *(checked(np.asarray(selection[axis]), shape[axis]) for axis in indexed)
    )
    points_shape = arrays[0].shape
    positions = [array.reshape(-1) for array in arrays]
    chunks, within = zip(
        *(divide(p, chunk_shape[axis]) for p, axis in zip(positions, indexed, strict=True)),
        strict=True,
    )
    order = np.lexsort(chunks[::-1])
    ordered = np.stack([c[order] for c in chunks])
    changes = np.flatnonzero(np.any(np.diff(ordered, axis=1), axis=0)) + 1
    bounds = [0, *changes.tolist(), order.size] if order.size else []
    groups = [
        (
            tuple(ordered[:, start].tolist()),
            tuple(w[order[start:stop]] for w in within),
            order[start:stop],
        )
        for start, stop in itertools.pairwise(bounds)
    ]
    rest = plan_outer(
        [selection[axis] for axis in sliced],
        [shape[axis] for axis in sliced],
        [chunk_shape[axis] for axis in sliced],
    )
    return PointPlan(
        shape=(order.size, *rest.shape),
        axes=(*indexed, *sliced),
        groups=groups,
        pieces=rest.pieces,
        flips=rest.flips,
        points_shape=points_shape,
    )


def _runs(pieces: Pieces, length: int, most: int) -> Iterator[tuple[list[Piece], int, bool]]:
    """Cut the pieces of one dimension into runs up to `most` long, as `Segment` has them."""
    run: list[Piece] = []
    step = 0
    for piece in pieces:
        follows = _step(run[-1], piece, length) if run else 0
        if len(run) == most or (len(run) > 1 and follows != step):
            yield _run(run, step, length)
            run = []
        if len(run) == 1:
            step = follows
        run.append(piece)
    if run:
        yield _run(run, step, length)


def _run(run: list[Piece], step: int, length: int) -> tuple[list[Piece], int, bool]:
    first, last = run[0].source, run[-1].source
    if len(run) == 1:
        step = 1 if isinstance(first, slice) and first.step in (None, 1) else 0
    dense = (
        step == 1
        and isinstance(first, slice)
        and isinstance(last, slice)
        and (first.start, last.stop) == (0, length)
    )
    return run, step, dense


def _step(one: Piece, other: Piece, length: int) -> int:
    """Return the step along `one` and on to `other` and its end; 0 if it is not constant."""
    (before, filled), (after, next_) = (one.source, one.target), (other.source, other.target)
    if not (isinstance(before, slice) and isinstance(after, slice)):
        return 0
    if not (isinstance(filled, slice) and isinstance(next_, slice)):
        return 0
    step = int(before.step or 1)
    steady = (
        other.chunk == one.chunk + 1
        and step == (after.step or 1)
        and length + after.start == before.stop - 1 + step
        and next_.start == filled.stop
    )
    return step if steady else 0


def _product(pieces: Sequence[Pieces]) -> Iterator[tuple[Piece, ...]]:
    """Do as `itertools.product` does, without a tuple of everything where pieces are long."""
    if all(len(part) <= LONG for part in pieces):
        return itertools.product(*pieces)
    return ((piece, *rest) for piece in pieces[0] for rest in _product(pieces[1:]))


# -- windows ---------------------------------------------------------------------------------------


#: Chunks that are looked up, fetched and decoded together: bounds what a huge read remembers.
WINDOW = 1 << 16
#: The same where looking up costs no round trip.
LOCAL_WINDOW = 1 << 13
#: The numbers of the chunks of an array that is one chunk.
ONLY_CHUNK = np.zeros(1, dtype=np.int64)


class Window(NamedTuple):
    """Chunks of a selection that are located together.

    Attributes
    ----------
    segments
        They are rows of these, one after the other.
    first
        The row that each segment begins with, and the end of the last one.
    ids
        Numbers of the chunks in the grid, row by row.
    """

    segments: list[Segment]
    first: list[int]
    ids: np.ndarray


class GridNumbers:
    """Numbers of the chunks of a grid, in C order.

    Parameters
    ----------
    shape
        Chunks along each dimension.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = math.prod(shape)
        #: from a chunk to the next along each dimension
        self._steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        #: (more chunks than numpy's integers count are told apart by Python's)
        self._dtype = np.dtype(np.int64 if self.count < 1 << 63 else object)
        self._along = np.array(self._steps, self._dtype)

    def number(self, position: tuple[int, ...]) -> int:
        """Return the number of the chunk at a position of the grid."""
        return sum(map(mul, position, self._steps))

    def following(self, number: int, count: int) -> np.ndarray:
        """Return the numbers of so many chunks, from one on."""
        return np.array(range(number, number + count), self._dtype)

    def position(self, number: int) -> tuple[int, ...]:
        """Return where a chunk is in the grid."""
        return position_of(number, self.shape)

    def windows(
        self, plan: ChunkPlan, together: int, most: int
    ) -> Iterator[tuple[np.ndarray, Window]]:
        """Yield windows of the chunks of a selection.

        Parameters
        ----------
        together
            Chunks that a segment may have.
        most
            Chunks after which a window ends.

        Yields
        ------
        The numbers of the chunks to locate, ascending, and the window.
        """
        if plan.count == 1:  # there is nothing to sort
            segments = list(plan.segments(1))
            ids = self.following(self.number(segments[0].first.position), 1)
            yield ids, Window(segments, [0, 1], ids)
            return
        segments, count = [], 0
        for segment in plan.segments(together):
            segments.append(segment)
            count += len(segment.pieces)
            if count >= most:
                yield self._window(segments)
                segments, count = [], 0
        if segments:
            yield self._window(segments)

    def _window(self, segments: list[Segment]) -> tuple[np.ndarray, Window]:
        lengths = [len(segment.pieces) for segment in segments]
        first = [0, *itertools.accumulate(lengths)]
        steps = self._along
        positions = np.array([segment.first.position for segment in segments], self._dtype)
        if first[-1] == len(segments):  # of one chunk each
            ids = positions @ steps
        else:
            axes = np.array([segment.axis for segment in segments])
            own = positions[np.arange(len(segments)), axes]
            base = positions @ steps - own * steps[axes]
            along = np.fromiter(
                (piece.chunk for segment in segments for piece in segment.pieces),
                self._dtype,
                first[-1],
            )
            ids = np.repeat(base, lengths) + along * np.repeat(steps[axes], lengths)
        window = Window(segments, first, ids)
        return (ids if np.all(ids[1:] > ids[:-1]) else np.unique(ids)), window
