"""Blocks in which the data of a variable are read: arithmetic on chunk grids."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from nczarr_xarray.model import box_of, grid_of, position_of

#: Bytes of the values that are read at a time of one dataset, unless one chunk has more.
READ_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Blocks:
    """The division of a shape into equal blocks, numbered in C order.

    Parameters
    ----------
    shape, lengths
        Of the whole and of a block, per dimension.
    """

    shape: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks along each dimension."""
        return grid_of(self.shape, self.lengths)

    @property
    def count(self) -> int:
        """All blocks."""
        return math.prod(self.grid)

    def part(self, number: int) -> tuple[slice, ...]:
        """Return the place of a block."""
        return box_of(position_of(number, self.grid), self.lengths, self.shape)

    def numbers(self, sample: int | None = None) -> Sequence[int]:
        """Return the numbers of all blocks, or of a sample of so many, always the same ones."""
        if sample is None or sample >= self.count:
            return range(self.count)
        choose = random.Random(self.count)  # noqa: S311 - no secret
        chosen: set[int] = set()
        while len(chosen) < sample:
            chosen.add(choose.randrange(self.count))
        return sorted(chosen)


def block_lengths(
    shape: Sequence[int],
    itemsize: int,
    grids: Sequence[Sequence[int]],
    most: int,
) -> tuple[int, ...]:
    """Choose blocks so that the chunks of all grids are read as seldom as possible.

    Parameters
    ----------
    shape
        Of the variable.
    itemsize
        Bytes of an element.
    grids
        Chunk lengths of what is read in these blocks; 1 where any part is read equally well.
    most
        Bytes of a block. One chunk may have more: it is in memory as a whole anyway.
    """
    if 0 in shape:
        return tuple(max(1, n) for n in shape)
    limit = max(most, *(math.prod(map(min, shape, grid)) * itemsize for grid in grids))
    along = [list(column) for column in zip(*grids, strict=True)] or [[] for _ in shape]
    choices = [
        sorted({min(c, n) for c in (1, *chunks, math.lcm(*chunks))})
        for n, chunks in zip(shape, along, strict=True)
    ]
    lengths = [choice.pop() for choice in choices]

    def cost(axis: int) -> float:
        """Return how often chunks are read, all in all, if `axis` gets its next length."""
        tried = [*lengths[:axis], choices[axis][-1], *lengths[axis + 1 :]]
        return sum(math.prod(map(_readings, shape, grid, tried)) for grid in grids)

    while math.prod(lengths) * itemsize > limit and any(choices):
        axis = min((axis for axis, choice in enumerate(choices) if choice), key=cost)
        lengths[axis] = choices[axis].pop()
    for axis in reversed(range(len(lengths))):
        times = limit // (math.prod(lengths) * itemsize)
        lengths[axis] = min(shape[axis], lengths[axis] * max(1, times))
    return tuple(lengths)


def _readings(size: int, chunk: int, length: int) -> float:
    """Return into how many pieces blocks of `length` divide a chunk along one dimension."""
    chunks, blocks = -(-size // chunk), -(-size // length)
    return (chunks + blocks - -(-size // math.lcm(chunk, length))) / chunks
