"""Pieces: what a selection along one dimension wants of each chunk, and of what is not stored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError

#: Chunks along one dimension: the length of all of them, or, ascending from 0, where each begins.
Division: TypeAlias = "int | np.ndarray[Any, np.dtype[np.int64]]"
#: How one dimension is indexed: whole numbers are checked and non-negative, slices ascend.
Index: TypeAlias = "int | slice | np.ndarray[Any, np.dtype[np.intp]]"
#: Some positions along one dimension: an ascending slice, or a list in any order.
Positions: TypeAlias = "slice | np.ndarray[Any, np.dtype[np.intp]]"


class Piece(NamedTuple):
    """The part of one chunk, along one dimension, that a selection wants.

    Attributes
    ----------
    chunk
        Number of the chunk along the dimension.
    source
        What is wanted, counted from the beginning of the chunk.
    target
        Where that goes in the result.
    """

    chunk: int
    source: Positions
    target: Positions


#: Pieces of one dimension; long ones are not made before they are needed.
Pieces: TypeAlias = "list[Piece] | SlicePieces"
LONG = 1 << 16


def divide(positions: Any, chunk: Division) -> tuple[Any, Any]:
    """Return the chunks that hold positions along a dimension, and the positions in these."""
    if isinstance(chunk, int):
        return positions // chunk, positions % chunk
    numbers = np.searchsorted(chunk, positions, side="right") - 1
    return numbers, positions - chunk[numbers]


def checked(index: np.ndarray, size: int) -> np.ndarray:
    """Return positions of which none is negative; `IndexError` if one is out of bounds."""
    index = np.where(index < 0, index + size, index)
    if index.size and not (index.min() >= 0 and index.max() < size):
        raise IndexError(f"index out of bounds for a dimension of length {size}")
    return index


def count_of(index: Index, size: int) -> int:
    """Return how many positions of a dimension of length `size` an index selects."""
    return len(range(*index.indices(size))) if isinstance(index, slice) else np.size(index)


def split_axes(key: Sequence[Index]) -> tuple[list[int], list[int]]:
    """Return which dimensions of a key that selects points have an array, and which a slice."""
    arrays = [axis for axis, index in enumerate(key) if not isinstance(index, slice)]
    return arrays, [axis for axis in range(len(key)) if axis not in arrays]


def as_list(positions: Positions) -> np.ndarray:
    """Return positions as an array of integers."""
    if isinstance(positions, slice):
        return np.arange(positions.start, positions.stop, positions.step or 1)
    return positions


def bounded(positions: Positions) -> tuple[int, int, Positions]:
    """Find the bounds of positions, of which there are some.

    Returns
    -------
    The lowest position, the number of positions from there to the highest, and the given ones,
    counted from the lowest.
    """
    if isinstance(positions, slice):
        low = positions.start
        span = range(low, positions.stop, positions.step or 1)[-1] - low + 1
        return low, span, slice(0, span, positions.step)
    low = int(positions.min())
    return low, int(positions.max()) - low + 1, positions - low


@dataclass(frozen=True, slots=True)
class SlicePieces:
    """The pieces of an ascending slice, made one by one: there may be more than memory holds."""

    steps: range
    chunk: int

    def __len__(self) -> int:
        if not self.steps or self.steps.step > self.chunk:
            return len(self.steps)
        return self.steps[-1] // self.chunk - self.steps[0] // self.chunk + 1

    def __iter__(self) -> Iterator[Piece]:
        first, step, chunk, total = self.steps.start, self.steps.step, self.chunk, len(self.steps)
        at = 0
        while at < total:
            low = first + at * step
            number = low // chunk
            start = number * chunk
            end = min(total, (start + chunk - 1 - first) // step + 1)
            high = first + (end - 1) * step + 1
            yield Piece(number, slice(low - start, high - start, step), slice(at, end))
            at = end


def slice_pieces(steps: range, chunk: Division) -> Pieces:
    """Return the pieces of an ascending slice."""
    if not isinstance(chunk, int):
        return _uneven_pieces(steps, chunk)
    pieces = SlicePieces(steps, chunk)
    return pieces if len(pieces) > LONG else list(pieces)


def _uneven_pieces(steps: range, starts: np.ndarray) -> list[Piece]:
    if not steps:
        return []
    first, step = steps.start, steps.step
    low, high = divide(np.array([first, steps[-1]]), starts)[0].tolist()
    begins = starts[low : high + 1]
    # of the steps, the first one in each chunk
    at = np.maximum(0, -((first - begins) // step))
    ends = np.append(at[1:], len(steps))
    there = np.flatnonzero(at < ends)
    rows = zip(
        (low + there).tolist(),
        (first + at * step - begins)[there].tolist(),
        at[there].tolist(),
        ends[there].tolist(),
        strict=True,
    )
    return [
        Piece(number, slice(within, within + (end - begin - 1) * step + 1, step), slice(begin, end))
        for number, within, begin, end in rows
    ]


def array_pieces(index: np.ndarray, chunk: Division) -> list[Piece]:
    """Group positions by chunk; runs with a constant step become slices, which copy faster."""
    if not index.size:
        return []
    chunks, within = divide(index, chunk)
    order: np.ndarray | None = None
    if np.any(chunks[1:] < chunks[:-1]):
        order = np.argsort(chunks, kind="stable")
        chunks, within = chunks[order], within[order]
    bounds = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(chunks)]
    pieces = []
    for start, stop in itertools.pairwise(bounds):
        target: Positions = slice(start, stop)
        if order is not None:
            target = order[start:stop]  # ascending: neighbours copy faster as a slice
            first, last = int(target[0]), int(target[-1])
            target = slice(first, last + 1) if last - first < stop - start else target
        pieces.append(Piece(int(chunks[start]), as_slice(within[start:stop]), target))
    return pieces


def as_slice(index: np.ndarray) -> Positions:
    """Return positions, of which there are some, as a slice if their step is constant."""
    if index.size == 1:
        return slice(int(index[0]), int(index[0]) + 1)
    step = int(index[1] - index[0])
    if step > 0 and np.all(np.diff(index) == step):
        return slice(int(index[0]), int(index[-1]) + 1, step)
    return index


def as_indexer(parts: Sequence[Positions]) -> tuple[Any, ...]:
    """Return a numpy key that selects orthogonally, also where several parts are arrays."""
    if list(map(type, parts)).count(np.ndarray) < 2:
        return tuple(parts)
    last = len(parts) - 1
    return tuple(as_list(part).reshape(-1, *(1,) * (last - i)) for i, part in enumerate(parts))


class Block(NamedTuple):
    """Neighbours: what integers, and slices that step over nothing, select of an array.

    Attributes
    ----------
    lows, lengths
        Per dimension, the first position, and how many there are.
    kept
        The lengths of the dimensions that no integer indexes.
    """

    lows: tuple[int, ...]
    lengths: tuple[int, ...]
    kept: tuple[int, ...]


def block_of(key: Sequence[Any], shape: Sequence[int]) -> Block | None:
    """Return the block that a key selects; None if it selects nothing, or anything else."""
    lows, lengths, kept = [], [], []
    for index, size in zip(key, shape, strict=True):
        if isinstance(index, slice):
            low, stop, step = index.indices(size)
            length = stop - low
            if step != 1 or length <= 0:
                return None
            kept.append(length)
        elif isinstance(index, np.ndarray) or not 0 <= index < size:
            return None
        else:
            low, length = int(index), 1
        lows.append(low)
        lengths.append(length)
    return Block(tuple(lows), tuple(lengths), tuple(kept))


# -- bounding box --------------------------------------------------------------------------------
# Selections of what libraries read by boxes: the smallest box, and the selection from it.


class BoundingBox:
    """The smallest box that holds all that a key selects.

    Parameters
    ----------
    key
        One index per dimension: an integer, a slice or an array of integers.
    shape
        Of the array.

    Attributes
    ----------
    slices
        The box, as a key.
    shape, size
        Of the box.

    Raises
    ------
    IndexError
        If an index is out of bounds.
    """

    def __init__(self, key: Sequence[Index], shape: Sequence[int]) -> None:
        bounds = [_bounds(index, size) for index, size in zip(key, shape, strict=True)]
        self.slices = tuple(part for part, _ in bounds)
        self.shape = tuple(part.stop - part.start for part in self.slices)
        self.size = math.prod(self.shape)
        self._within = [index for _, index in bounds]

    def leave_out_steps(self) -> None:
        """Leave out of the box what slices step over: then its slices have steps, all positive."""
        for axis, (part, index) in enumerate(zip(self.slices, self._within, strict=True)):
            if isinstance(index, slice) and part.stop > part.start:
                step = index.step or 1
                steps = slice(part.start, part.stop, abs(step))
                self.slices = (*self.slices[:axis], steps, *self.slices[axis + 1 :])
                self._within[axis] = slice(None, None, 1 if step > 0 else -1)
        self.shape = tuple(len(range(s.start, s.stop, s.step or 1)) for s in self.slices)
        self.size = math.prod(self.shape)

    def take(self, values: np.ndarray, *, points: bool) -> np.ndarray:
        """Return the selection from the values in the box.

        Parameters
        ----------
        points
            Whether arrays select single points together, which then run along the first
            dimensions of the result (numpy's ``vindex``).
        """
        within = self._within
        if not points:
            for axis in reversed(range(len(within))):
                values = values[(*[slice(None)] * axis, within[axis])]
            return values
        pointwise, sliced = split_axes(within)
        moved = values.transpose([*pointwise, *sliced])
        chosen: np.ndarray = moved[tuple(within[axis] for axis in (*pointwise, *sliced))]
        return chosen


def _bounds(index: Index, size: int) -> tuple[slice, Index]:
    """Return the smallest slice that holds what an index selects, and the index relative to it."""
    if isinstance(index, slice):
        steps = range(*index.indices(size))
        if not steps:
            return slice(0, 0), slice(0, 0)
        first, last = min(steps[0], steps[-1]), max(steps[0], steps[-1])
        stop = steps[-1] - first + (1 if steps.step > 0 else -1)
        return slice(first, last + 1), slice(
            steps[0] - first, None if stop < 0 else stop, steps.step
        )
    positions = np.asarray(index)
    if not positions.size:
        return slice(0, 0), positions.astype(np.intp)
    positions = checked(positions, size)
    first = int(positions.min())
    within = positions - first
    return slice(first, int(positions.max()) + 1), within if within.ndim else int(within)


# -- padding ---------------------------------------------------------------------------------------
# Selections of a variable whose data are shorter or longer than its dimensions.
#
# In netCDF-4 files variables that share an unlimited dimension may each have been
# written up to a length of their own. A variable is as long as the dimension; what
# its data lack reads as the fill value.


#: Positions along one dimension: 8 bytes are needed for each.
_MOST_POSITIONS = 1 << 31


@dataclass(frozen=True, slots=True)
class PaddedSelection:
    """A selection of the stored part of a variable, and what makes it one of the whole variable.

    Parameters
    ----------
    key
        Of the stored array.
    shape
        Of the selection of the variable, integers counted as length 1; None if
        `key` is all there is to do.
    there
        Which positions of each axis of `shape` are stored, as a key of numpy.
    squeeze
        Axes that integers select.
    padding
        What the others read as.
    """

    key: tuple[Any, ...]
    shape: tuple[int, ...] | None = None
    there: tuple[Any, ...] = ()
    squeeze: tuple[int, ...] = ()
    padding: Any = None

    def finish(self, stored: np.ndarray) -> np.ndarray:
        """Return the selection of the variable."""
        if self.shape is None:
            return stored
        result: np.ndarray = np.full(self.shape, self.padding, dtype=stored.dtype)
        result[self.there] = stored
        return result.squeeze(axis=self.squeeze)


def padded_selection(
    key: Sequence[Any],
    shape: Sequence[int],
    stored: Sequence[int],
    padding: Any,
    *,
    points: bool,
    path: str,
) -> PaddedSelection:
    """Find what a selection of a variable of `shape` is in data of shape `stored`, and its padding.

    Parameters
    ----------
    key
        One index per dimension: an integer, a slice, an array of integers.
    padding
        What is not stored reads as.
    points
        Whether arrays select single points together.
    path
        Of the variable, for messages.

    Raises
    ------
    FormatError
        If the selection is larger than any memory.
    IndexError
        If an index is out of bounds.
    """
    if tuple(shape) == tuple(stored):
        return PaddedSelection(tuple(key))
    counts = [count_of(index, length) for index, length in zip(key, shape, strict=True)]
    if max(counts, default=0) > _MOST_POSITIONS:
        raise FormatError(path, f"a selection of {counts} elements does not fit")
    positions = [_positions(index, length) for index, length in zip(key, shape, strict=True)]
    if not points:
        squeeze = tuple(axis for axis, index in enumerate(positions) if index.ndim == 0)
        axes = [np.atleast_1d(index) for index in positions]
        there = [index < length for index, length in zip(axes, stored, strict=True)]
        return PaddedSelection(
            tuple(index[mask] for index, mask in zip(axes, there, strict=True)),
            tuple(map(len, axes)),
            np.ix_(*there),
            squeeze,
            padding,
        )
    arrays, sliced = split_axes(key)
    pointwise = dict(zip(arrays, np.broadcast_arrays(*(positions[a] for a in arrays)), strict=True))
    known = np.logical_and.reduce([pointwise[axis] < stored[axis] for axis in arrays])
    inside = {axis: positions[axis] < stored[axis] for axis in sliced}
    # stored slices of a dimension are ascending or descending runs from its beginning
    reduced = tuple(
        pointwise[axis][known] if axis in pointwise else _as_slice(positions[axis][inside[axis]])
        for axis in range(len(key))
    )
    chosen = (known, *(_as_slice(np.flatnonzero(inside[axis])) for axis in sliced))
    return PaddedSelection(
        reduced, (*known.shape, *(len(positions[axis]) for axis in sliced)), chosen, (), padding
    )


def _positions(index: Any, length: int) -> np.ndarray:
    """Return what ``np.arange(length)[index]`` is, without making all of that."""
    if isinstance(index, slice):
        return np.arange(*index.indices(length))
    return checked(np.asarray(index), length)


def _as_slice(positions: np.ndarray) -> slice:
    """Return evenly spaced positions as a slice."""
    if not positions.size:
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    step = int(positions[1]) - first if positions.size > 1 else 1
    stop = last + (1 if step > 0 else -1)
    return slice(first, None if stop < 0 else stop, step)
