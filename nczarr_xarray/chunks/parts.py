"""Parts of chunks: of a chunk without codecs, the bytes that are wanted, and few others.

A task wants one part of a chunk of plain elements, from its first element to its last, or several,
which leave out what lies between elements that are far apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.chunks.pieces import Piece, Positions, as_indexer, as_list, as_slice, bounded
from nczarr_xarray.chunks.plan import ChunkTask, Plan, Segment, Window
from nczarr_xarray.model import Array, ChunkTable

#: A part of a chunk is read where it is at most this share of its bytes: a larger one saves little.
PART_SHARE = 0.5
#: Wanted elements with so many bytes between them are read one without the other: another request,
#: among many, and another call, take as long as that many bytes.
FAR_APART = 1 << 16
#: Chunks of which is remembered how much was read of them.
_MOST_CHUNKS = 1 << 16


class ChunkPart(NamedTuple):
    """What is wanted of a chunk of plain elements, from the first wanted element to the last.

    Attributes
    ----------
    start, stop
        Bounds of the bytes, counted from the beginning of the chunk.
    shape, strides
        Of the block of elements from `start` on, per dimension, as the task sees them.
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


def in_parts(
    array: Array, nbytes: int, plan: Plan, window: Window, table: ChunkTable
) -> tuple[Window, ChunkTable, list[ChunkPart] | None]:
    """Return where the bytes are that a sparse selection wants, and what is wanted of these.

    Parameters
    ----------
    array, nbytes
        Its chunks are plain elements of so many bytes.
    window, table
        Some chunks of the selection, and where they are.

    Returns
    -------
    The last is None if chunks are read whole. Else the window has a segment for each part.
    """
    itemsize = array.dtype.itemsize
    known = table.size >= 0  # (of an object it is not)
    if (table.size[known & (table.start >= 0)] != nbytes).any():
        return window, table, None
    strides = strides_of(array.chunk_shape, array.order, itemsize, plan.axes)
    tasks = list(itertools.chain.from_iterable(s.tasks() for s in window.segments))
    divided = [parts_of(task, strides, itemsize) for task in tasks]
    rows = np.repeat(np.arange(len(tasks)), [len(several) for several in divided])
    parts = list(itertools.chain.from_iterable(divided))
    bounds = np.array([part[:2] for part in parts], np.int64)
    size = bounds[:, 1] - bounds[:, 0]
    if size.sum() > PART_SHARE * nbytes * len(window.ids):
        return window, table, None
    table = table.of(rows)
    start = np.where(table.start < 0, -1, table.start + bounds[:, 0])
    only = [Piece(0, slice(0, 1), slice(0, 1))]  # of one chunk
    segments = [
        Segment(ChunkTask(tasks[row].position, part.source, part.target), 0, only, 0, False)
        for row, part in zip(rows.tolist(), parts, strict=True)
    ]
    window = Window(segments, list(range(len(parts) + 1)), window.ids[rows])
    return window, table._replace(start=start, size=size), parts


class _Near(NamedTuple):
    """Positions along one dimension of which none is far from the next.

    Attributes
    ----------
    low, length
        The first of them, and how many there are from it to the last.
    source
        The positions, counted from `low`.
    target
        Their places in the result.
    """

    low: int
    length: int
    source: Positions
    target: Positions


def parts_of(task: ChunkTask, strides: Sequence[int], itemsize: int) -> list[ChunkPart]:
    """Divide what a task wants of a chunk, where it wants nothing of `FAR_APART` bytes or more.

    Parameters
    ----------
    task
        It wants something.
    strides
        Of the chunk, in bytes, for the dimensions in the order in which the task sees them.
    """
    source, nearest = task.source, strides
    count = len(source) - len(task.target) + 1
    if count > 1:  # points are one dimension, whose positions are elements
        points = sum(part * at for part, at in zip(source[:count], strides[:count], strict=True))
        source = (points // itemsize, *source[count:])
        nearest = (min(strides[:count]), *strides[count:])
        strides = (itemsize, *strides[count:])
    block = itemsize
    axes: list[list[_Near]] = [[] for _ in strides]
    # where elements of one dimension are far apart, so are those of the dimensions around it
    for axis in sorted(range(len(strides)), key=nearest.__getitem__):
        axes[axis] = _divided(source[axis], task.target[axis], strides[axis], block)
        block += max(near.length - 1 for near in axes[axis]) * strides[axis]
    parts = []
    for axis_parts in itertools.product(*axes):
        lows, lengths, wanted, places = zip(*axis_parts, strict=True)
        start = sum(map(mul, lows, strides))
        stop = start + itemsize + sum(map(mul, lengths, strides)) - sum(strides)
        key, target = as_indexer(wanted), as_indexer(places)
        parts.append(ChunkPart(start, stop, lengths, tuple(strides), key, target))
    return parts


def _divided(source: Positions, target: Positions, stride: int, block: int) -> list[_Near]:
    """Divide positions of one dimension where they are far apart.

    Parameters
    ----------
    target
        Their places in the result.
    block
        Bytes of what is wanted at each position.
    """
    if not isinstance(target, slice):  # of several dimensions, it has the shape of all of them
        target = target.ravel()
    if isinstance(source, slice) and (source.step or 1) * stride - block < FAR_APART:
        return [_Near(*bounded(source), target)]  # of any length
    numbers = as_list(source).ravel()
    low, span, within = bounded(numbers)
    if span * stride < FAR_APART:
        return [_Near(low, span, within, target)]
    places, order = as_list(target), np.argsort(numbers, kind="stable")
    far = np.flatnonzero(np.diff(numbers[order]) * stride - block >= FAR_APART) + 1
    if not far.size:
        return [_Near(low, span, within, target)]
    return [
        _Near(*bounded(as_slice(numbers[members])), as_slice(places[members]))
        for members in np.split(order, far)
    ]


def may_be_sparse(plan: Plan, chunk_shape: Sequence[int]) -> bool:
    """Tell whether a selection wants so few elements that parts of chunks may be read."""
    return 0 < math.prod(plan.shape) <= PART_SHARE * plan.count * math.prod(chunk_shape)
