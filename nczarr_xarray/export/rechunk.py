"""From one chunk grid into another, in bounded memory: arithmetic, no I/O.

An array is copied part by part. A part is whole chunks of the new grid, because these are encoded
as wholes. Where it ends inside of chunks of the old grid, these are decoded again for the next
part. If memory for larger parts is lacking, and much would be decoded again, there are two passes:
the first reads whole chunks of the old grid, and writes plain chunks *between* the grids, of which
the parts of the second pass touch little more than they need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Lengths = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rechunking:
    """How an array is copied.

    Parameters
    ----------
    shape
        Of the array.
    parts
        Lengths of the parts that are written into the new grid, at most.
    repeats
        How often a chunk of the old grid is decoded, on average.
    first
        Lengths of the parts of a first pass; None if there is one pass.
    between
        Chunk lengths of the array between two passes.
    """

    shape: Lengths
    parts: Lengths
    repeats: float
    first: Lengths | None = None
    between: Lengths | None = None


def boxes(shape: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield the parts of an array of these lengths, in C order."""
    ranges = [range(0, size, length) for size, length in zip(shape, lengths, strict=True)]
    for corner in itertools.product(*ranges):
        yield tuple(
            slice(at, min(at + length, size))
            for at, length, size in zip(corner, lengths, shape, strict=True)
        )


def chunk_boxes(
    part: Sequence[slice], chunks: Sequence[int], most: int
) -> Iterator[tuple[slice, ...]]:
    """Yield boxes that a part consists of, in C order, each of so many chunks at most.

    Parameters
    ----------
    chunks
        Chunk lengths.
    most
        How many chunks a box touches.
    """
    ranges = []
    for along, chunk in zip(reversed(part), reversed(chunks), strict=True):
        first, last = along.start // chunk, -(-along.stop // chunk)
        count = max(1, min(last - first, most))
        most //= count
        edges = [along.start, *range((first + count) * chunk, along.stop, count * chunk)]
        ranges.append([*map(slice, edges, [*edges[1:], along.stop])])
    return itertools.product(*reversed(ranges))


def touched(size: int, length: int, chunk: int) -> int:
    """Return how many chunks of a dimension its parts touch, all parts taken together."""
    if not size:
        return 0
    inner = -(-size // length) - 1
    aligned = (size - 1) // math.lcm(length, chunk)
    return -(-size // chunk) + inner - aligned  # each border inside of a chunk touches it twice


def repeats(shape: Sequence[int], lengths: Sequence[int], chunks: Sequence[int]) -> float:
    """Return how many parts of these lengths touch a chunk, on average."""
    return math.prod(
        touched(size, length, chunk) / -(-size // chunk)
        for size, length, chunk in zip(shape, lengths, chunks, strict=True)
        if size
    )


def plan_rechunking(
    shape: Sequence[int],
    old: Sequence[int],
    new: Sequence[int],
    room: int,
    *,
    passes: int,
) -> Rechunking:
    """Plan the copy of an array.

    Parameters
    ----------
    shape
        Of the array.
    old, new
        Chunk lengths.
    room
        Elements that may be in memory at a time. A part has no fewer than one chunk.
    passes
        How many passes there may be, 1 or 2.
    """
    parts = _fill(shape, _for_few_repeats(shape, old, new, room), room)
    once = Rechunking((*shape,), parts, repeats(shape, parts, old))
    if passes < 2:
        return once
    first = _fill(shape, _toward(shape, old, new, room), room)
    last = _fill(shape, _toward(shape, new, old, room), room)
    between = tuple(map(min, first, last))
    # the elements are decoded, written, and read again; partly filled chunks are written again
    cost = 1 + repeats(shape, first, between) + repeats(shape, last, between)
    if once.repeats <= cost:
        return once
    return Rechunking((*shape,), last, 1, first, between)


def _elements(shape: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the elements of the largest part."""
    return math.prod(max(1, min(pair)) for pair in zip(shape, lengths, strict=True))


def _for_few_repeats(
    shape: Sequence[int], old: Sequence[int], new: Sequence[int], room: int
) -> list[int]:
    """Return lengths of parts that fit, for which as few chunks as possible are decoded twice.

    A part begins as one chunk of the new grid. It is made longer by whole factors, because then
    every border of parts was one before, along that dimension which saves most for the room taken.
    """
    lengths = [max(1, length) for length in new]
    while True:
        best, choice = 0.0, None
        here = _elements(shape, lengths)
        for axis, (size, chunk) in enumerate(zip(shape, old, strict=True)):
            length = lengths[axis]
            now = touched(size, length, chunk)
            for factor in {2, math.lcm(length, chunk) // length, -(-size // length)} - {0, 1}:
                longer = [*lengths]
                longer[axis] *= factor
                saved = now / max(1, touched(size, longer[axis], chunk))
                there = _elements(shape, longer)
                if saved <= 1 or there > room:
                    continue
                worth = math.log(saved) / max(math.log(there / here), 1e-9)
                if worth > best:
                    best, choice = worth, longer
        if choice is None:
            return lengths
        lengths = choice


def _toward(
    shape: Sequence[int], base: Sequence[int], other: Sequence[int], room: int
) -> list[int]:
    """Return multiples of chunk lengths, of which the room is spent where the others are longer."""
    lengths = [max(1, length) for length in base]
    ratio = [min(o, n) / b for o, n, b in zip(other, shape, lengths, strict=True)]
    for axis in sorted(range(len(lengths)), key=ratio.__getitem__, reverse=True):
        factor = min(room // _elements(shape, lengths), math.ceil(ratio[axis]))
        lengths[axis] *= max(1, factor)
    return lengths


def _fill(shape: Sequence[int], lengths: Sequence[int], room: int) -> Lengths:
    """Use the room that is left: from the last dimension on, so that parts are contiguous."""
    lengths = [*lengths]
    for axis in reversed(range(len(lengths))):
        most = -(-max(1, shape[axis]) // lengths[axis])
        others = _elements(shape, lengths) // max(1, min(shape[axis], lengths[axis]))
        if others * shape[axis] <= room:
            factor = most
        else:
            factor = min(most, room // (others * lengths[axis]))
        lengths[axis] *= max(1, factor)
    return tuple(lengths)
