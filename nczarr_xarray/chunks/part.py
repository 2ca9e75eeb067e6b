"""Parts of chunks of plain elements: the bytes from one wanted element to another.

A task wants one part of a chunk, from its first element to its last; `split` makes tasks of it that
leave out what lies between elements that are far apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.chunks.pieces import Part, as_indexer, as_slice
from nczarr_xarray.chunks.plan import ChunkTask, Plan

#: A part of a chunk is read where it is at most this share of its bytes: a larger one saves little.
PART_SHARE = 0.5
#: Wanted elements with so many bytes between them are read one without the other: another request,
#: among many, and another call, take as long as that many bytes.
FAR_APART = 1 << 16
#: Chunks of which is remembered how much was read of them.
_MOST_CHUNKS = 1 << 16


class ChunkPart(NamedTuple):
    """What a task wants of a chunk of plain elements.

    Attributes
    ----------
    start, stop
        Bounds of the bytes, counted from the beginning of the chunk.
    shape, strides
        Of the block of elements from the first wanted one to the last, per dimension, as the task
        sees them. It begins at `start`.
    source
        What of the block is wanted: a key of numpy.
    target
        Where that goes in the result.
    """

    start: int
    stop: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    source: tuple[Any, ...]
    target: tuple[Any, ...]

    @classmethod
    def of(cls, task: ChunkTask, strides: Sequence[int], itemsize: int) -> ChunkPart:
        """Return the part that a task wants.

        Parameters
        ----------
        task
            It wants something.
        strides
            Of the chunk, in bytes, for the dimensions in the order in which the task sees them.
        """
        count = len(task.source) - len(task.target) + 1
        if count > 1:  # points, which have one place each
            offsets = _offsets(task.source[:count], strides[:count]) // itemsize
            task = task._replace(source=(offsets, *task.source[count:]))
            strides = (itemsize, *strides[count:])
        bounds = [_bounds(part) for part in task.source]
        start = sum(low * stride for (low, _), stride in zip(bounds, strides, strict=True))
        last = sum(high * stride for (_, high), stride in zip(bounds, strides, strict=True))
        return cls(
            start,
            last + itemsize,
            tuple(high - low + 1 for low, high in bounds),
            tuple(strides),
            tuple(_moved(part, low) for part, (low, _) in zip(task.source, bounds, strict=True)),
            task.target,
        )

    def scatter(self, data: Any, dtype: np.dtype, result: np.ndarray) -> None:
        """Put what is wanted of the bytes into `result`; their number is right."""
        block: np.ndarray = np.ndarray(self.shape, dtype, data, strides=self.strides)
        result[self.target] = block[self.source]


class PartsRead:
    """How many bytes of parts were read of each chunk of an array. Safe in threads.

    Parameters
    ----------
    nbytes
        Of a chunk.
    """

    def __init__(self, nbytes: int) -> None:
        self._most = PART_SHARE * nbytes
        #: by the numbers of chunks
        self._spent: dict[int, int] = {}

    def add(self, ids: np.ndarray, sizes: np.ndarray) -> bool:
        """Add parts that are to be read; tell whether whole chunks are better now.

        So they are where reads come back, and have read as much of the chunks as is worth a part
        already: whole chunks are remembered.
        """
        spent = self._spent if len(self._spent) < _MOST_CHUNKS else {}
        numbers = ids.tolist()
        for number, size in zip(numbers, sizes.tolist(), strict=True):
            spent[number] = spent.get(number, 0) + size
        self._spent = spent
        return sum(spent[number] for number in numbers) > self._most * len(numbers)


def strides_of(
    shape: Sequence[int], order: str, itemsize: int, axes: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the strides of a chunk in bytes, for its dimensions in the order `axes`."""
    count, found = 1, [0] * len(shape)
    dimensions = range(len(shape)) if order == "F" else reversed(range(len(shape)))
    for dimension in dimensions:
        found[dimension] = count * itemsize
        count *= shape[dimension]
    return tuple(found if axes is None else (found[axis] for axis in axes))


def split(task: ChunkTask, strides: Sequence[int], itemsize: int) -> list[ChunkTask]:
    """Divide what a task wants into tasks, where it wants nothing of `FAR_APART` bytes or more.

    Parameters
    ----------
    task, strides, itemsize
        As of `ChunkPart.of`.
    """
    count = len(task.source) - len(task.target) + 1
    if count > 1:
        return _split_points(task, count, strides, itemsize)
    block = itemsize
    axes: list[list[tuple[Part, Part]]] = [[] for _ in strides]
    # where elements of one dimension are far apart, so are those of the dimensions around it
    for axis in sorted(range(len(strides)), key=strides.__getitem__):
        axes[axis] = _divided(task.source[axis], task.target[axis], strides[axis], block)
        block += max(_length(part) - 1 for part, _ in axes[axis]) * strides[axis]
    if all(len(axis) == 1 for axis in axes):
        return [task]
    return [
        ChunkTask(task.position, as_indexer(source), as_indexer(target))
        for source, target in (zip(*parts, strict=True) for parts in itertools.product(*axes))
    ]


def _divided(source: Part, target: Part, stride: int, block: int) -> list[tuple[Part, Part]]:
    """Divide positions of one dimension, and their places in the result, where they are far apart.

    Parameters
    ----------
    block
        Bytes of what is wanted at each position.
    """
    if isinstance(source, slice) and (source.step or 1) * stride - block < FAR_APART:
        return [(source, target)]  # of any length
    numbers, places = _numbers(source), _numbers(target)
    order = np.argsort(numbers, kind="stable")
    numbers, places = numbers[order], places[order]
    far = np.diff(numbers) * stride - block >= FAR_APART
    return [
        (as_slice(numbers[members]), as_slice(places[members]))
        for members in np.split(np.arange(len(numbers)), np.flatnonzero(far) + 1)
    ]


def _split_points(
    task: ChunkTask, count: int, strides: Sequence[int], itemsize: int
) -> list[ChunkTask]:
    within, around = task.source[:count], task.source[count:]
    sliced = zip(around, strides[count:], strict=True)
    block = itemsize + sum((_length(part) - 1) * stride for part, stride in sliced)
    offsets = _offsets(within, strides[:count])
    order = np.argsort(offsets, kind="stable")
    far = np.diff(offsets[order]) - block >= FAR_APART
    if not far.any():
        return [task]
    return [
        ChunkTask(
            task.position,
            (*(part[members] for part in within), *around),
            (task.target[0][members], *task.target[1:]),
        )
        for members in np.split(order, np.flatnonzero(far) + 1)
    ]


def may_be_sparse(plan: Plan, chunk_shape: Sequence[int]) -> bool:
    """Tell whether a selection wants so few elements that parts of chunks may be read."""
    return 0 < math.prod(plan.shape) <= PART_SHARE * plan.count * math.prod(chunk_shape)


def _offsets(parts: Sequence[Any], strides: Sequence[int]) -> np.ndarray:
    """Return where points are, in bytes from the beginning of the chunk."""
    pairs = zip(parts, strides, strict=True)
    offsets: np.ndarray = np.sum([part.astype(np.int64) * at for part, at in pairs], axis=0)
    return offsets


def _numbers(part: Part) -> np.ndarray:
    if isinstance(part, slice):
        return np.arange(part.start, part.stop, part.step or 1)
    return part.ravel()


def _length(part: Part) -> int:
    low, high = _bounds(part)
    return high - low + 1


def _bounds(part: Part) -> tuple[int, int]:
    if isinstance(part, slice):
        taken = range(part.start, part.stop, part.step or 1)
        return taken[0], taken[-1]
    return int(part.min()), int(part.max())


def _moved(part: Part, by: int) -> Part:
    return (
        slice(part.start - by, part.stop - by, part.step) if isinstance(part, slice) else part - by
    )
