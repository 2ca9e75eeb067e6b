"""Selections of what libraries read by boxes: the smallest box, and the selection from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nczarr_xarray.chunks.pieces import Index, checked, split_axes


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
