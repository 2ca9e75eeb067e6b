"""Chunks for data that have none: rows of plain elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Bytes of a chunk, at most; twice as many if a divisor of the length needs them.
CHUNK_BYTES = 1 << 21
#: Divisors of a length that are tried.
_TRIES = 10_000


def rows(shape: Sequence[int], itemsize: int, room: int = CHUNK_BYTES) -> tuple[int, ...]:
    """Return a shape whose chunks are runs of elements in C order, of about `room` bytes.

    The last dimensions are whole, one is split, the first ones have length one. If the length
    that is split has a divisor of about the right size, no chunk reaches over the edge.
    """
    chunk = [1] * len(shape)
    left = max(1, room // max(1, itemsize))
    for axis in reversed(range(len(shape))):
        length = max(1, shape[axis])
        if length > left:
            chunk[axis] = part_of(length, left)
            break
        chunk[axis] = length
        left //= length
    return tuple(chunk)


def part_of(length: int, most: int) -> int:
    """Return a good chunk length: a divisor of a quarter to twice `most`, else equal parts."""
    least = max(1, math.ceil(length / (2 * most)))
    parts = range(least, min(math.ceil(4 * length / most), least + _TRIES) + 1)
    divisors = [length // count for count in parts if length % count == 0]
    if divisors:
        return min(divisors, key=lambda size: abs(math.log(size / most)))
    return math.ceil(length / math.ceil(length / most))
