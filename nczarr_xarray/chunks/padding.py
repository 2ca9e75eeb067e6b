"""Selections of a variable whose data are shorter or longer than its dimensions.

In netCDF-4 files variables that share an unlimited dimension may each have been
written up to a length of their own. A variable is as long as the dimension; what
its data lack reads as the fill value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.pieces import checked, count_of, split_axes

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
