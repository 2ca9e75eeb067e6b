"""Several selections of one array that are read together: each chunk is fetched and decoded once.

A `JointPlan` has the chunks of all its plans, and of each chunk what every plan wants. `boxes_of`
divides index arrays into orthogonal selections, if they select many elements by few of those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from nczarr_fsspec.forks import cached_property
from nczarr_xarray.chunks.pieces import Index, Piece
from nczarr_xarray.chunks.plan import ChunkTask, Plan, Segment

#: Elements that a box has at least: fewer are read sooner as points.
_LEAST_BOX = 256
#: Of a chunk by itself.
_ONLY = [Piece(0, slice(0, 1), slice(0, 1))]


class Share(NamedTuple):
    """What one of several plans wants of a chunk.

    Attributes
    ----------
    number
        Of the plan.
    axes
        As of the plan.
    """

    number: int
    axes: tuple[int, ...] | None
    task: ChunkTask


class SharedTask(ChunkTask):
    """A chunk to fetch for several plans. It has shares in place of a source and a target."""

    shares: list[Share]

    def __new__(cls, position: tuple[int, ...], shares: list[Share]) -> Self:
        task = super().__new__(cls, position, (), ())
        task.shares = shares
        return task


@dataclass(frozen=True)
class JointPlan:
    """Several selections of one array; what they fill is a list, the room of each of them."""

    plans: Sequence[Plan]
    axes: None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements are wanted."""
        return (sum(math.prod(plan.shape) for plan in self.plans),)

    @property
    def count(self) -> int:
        return len(self._shares)

    @cached_property
    def _shares(self) -> dict[tuple[int, ...], list[Share]]:
        shares: dict[tuple[int, ...], list[Share]] = {}
        for number, plan in enumerate(self.plans):
            axes = plan.axes
            for task in plan.tasks():
                shares.setdefault(task.position, []).append(Share(number, axes, task))
        return dict(sorted(shares.items()))

    def segments(self, most: int) -> Iterator[Segment]:
        for shared in self._shares.items():
            yield Segment(SharedTask(*shared), 0, _ONLY, 0, dense=False)

    def room(self, allocate: Callable[[tuple[int, ...]], np.ndarray]) -> list[np.ndarray]:
        return [allocate(plan.shape) for plan in self.plans]

    def finish(self, rooms: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [plan.finish(room) for plan, room in zip(self.plans, rooms, strict=True)]


# -- boxes -----------------------------------------------------------------------------------------


class Boxes(NamedTuple):
    """Orthogonal selections that together select what index arrays do.

    Attributes
    ----------
    keys
        One for each box: slices and arrays.
    shape
        Of the dimensions of the result that number the boxes, ...
    numbering
        and which of the result's dimensions these are.
    order
        Which dimension of a box becomes each of the other dimensions of the result.
    """

    keys: list[tuple[Index, ...]]
    shape: tuple[int, ...]
    numbering: tuple[int, ...]
    order: tuple[int, ...]

    def joined(self, boxes: list[np.ndarray]) -> np.ndarray:
        """Return the result that boxes make; takes them from the list, last to first."""
        ndim = len(self.numbering) + len(self.order)
        kept = [axis for axis in range(ndim) if axis not in self.numbering]
        lengths = np.ones(ndim, int)
        lengths[list(self.numbering)] = self.shape
        lengths[kept] = [boxes[0].shape[axis] for axis in self.order]
        result = np.empty(lengths, boxes[0].dtype)
        numbered = np.moveaxis(result, self.numbering, range(len(self.numbering)))
        others = tuple(axis for axis in range(boxes[0].ndim) if axis not in self.order)
        for number in reversed(range(len(boxes))):
            box = boxes.pop().transpose(*others, *self.order)
            numbered[np.unravel_index(number, self.shape)] = box[(0,) * len(others)]
        return result


def boxes_of(key: Sequence[Index]) -> Boxes | None:
    """Divide a pointwise selection into boxes; None if it is not made of such.

    Along each dimension of the index arrays, either one of them changes, and it becomes a dimension
    of every box; or several do, and that dimension numbers boxes.

    Parameters
    ----------
    key
        As of `plan_points`.
    """
    axes = [axis for axis, index in enumerate(key) if not isinstance(index, slice)]
    arrays = [np.asarray(key[axis]) for axis in axes]
    ndim = max(array.ndim for array in arrays)
    alike = [array.reshape((1,) * (ndim - array.ndim) + array.shape) for array in arrays]
    lengths = np.broadcast_shapes(*(array.shape for array in alike))
    if 0 in lengths:
        return None
    reduced = [*map(_reduced, alike)]
    changing = [[n for n, array in enumerate(reduced) if array.shape[d] > 1] for d in range(ndim)]
    if any(length > 1 and not numbers for length, numbers in zip(lengths, changing, strict=True)):
        return None  # all is wanted several times
    #: by dimension of the index arrays: the array that alone changes along it
    inner = {d: numbers[0] for d, numbers in enumerate(changing) if len(numbers) == 1}
    if len(set(inner.values())) < len(inner):
        return None  # an array with two dimensions of its own
    numbering = tuple(d for d in range(ndim) if d not in inner)
    shape = np.broadcast_shapes(*(tuple(a.shape[d] for d in numbering) for a in reduced))
    count = math.prod(shape)
    elements = math.prod(reduced[n].shape[d] for d, n in inner.items())
    if elements < _LEAST_BOX:
        return None
    rows: dict[int, np.ndarray] = {}
    for n, array in enumerate(reduced):
        array = np.moveaxis(array, numbering, range(len(numbering)))
        array = array.reshape(*array.shape[: len(numbering)], -1)
        rows[axes[n]] = np.broadcast_to(array, (*shape, array.shape[-1])).reshape(count, -1)
    keys = [
        tuple(_index(rows[axis][number]) if axis in rows else key[axis] for axis in range(len(key)))
        for number in range(count)
    ]
    sliced = [axis for axis in range(len(key)) if axis not in rows]
    return Boxes(keys, shape, numbering, (*(axes[n] for n in inner.values()), *sliced))


def _reduced(array: np.ndarray) -> np.ndarray:
    """Return an array with length 1 along the dimensions along which it does not change."""
    for axis in range(array.ndim):
        first = array[(slice(None),) * axis + (slice(0, 1),)]
        two = array[tuple(slice(0, 2) if d == axis else slice(0, 1) for d in range(array.ndim))]
        # most that change show it in two elements
        if (two == two.flat[0]).all() and (array == first).all():
            array = first
    return array


def _index(positions: np.ndarray) -> Index:
    """Return positions as a slice if they are neighbours."""
    first, count = int(positions[0]), len(positions)
    if first >= 0 and (count == 1 or (np.diff(positions) == 1).all()):
        return slice(first, first + count)
    return positions
