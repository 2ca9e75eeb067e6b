"""Chunk grids: the default one, whether dask's blocks share chunks, and from one into another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Bytes of a chunk by default, at most: large enough that the latency of a request matters
#: little, small enough that several requests are in flight at a time.
DEFAULT_BYTES = 4 << 20
#: Along a single unlimited dimension netCDF-C takes this many bytes.
_RECORDS_BYTES = 4096
#: How many times as large blocks may become that are moved to borders of chunks.
_MOST_GROWTH = 4


def default_chunk_shape(
    shape: Sequence[int], unlimited: Sequence[bool], itemsize: int
) -> tuple[int, ...]:
    """Return the default chunk lengths: those of netCDF-C's rules, for chunks of 4 MiB.

    netCDF-C 4.9 and 4.10 aim at 16 MiB. Unlimited
    dimensions get 1, or 4 KiB worth of records if there is no other dimension.

    Parameters
    ----------
    shape, unlimited
        Per dimension.
    itemsize
        Bytes of one element.
    """
    if not shape:
        return ()
    if all(unlimited):
        if len(shape) == 1:
            return (max(1, _RECORDS_BYTES // itemsize),)
        side = max(1, int((DEFAULT_BYTES / itemsize) ** (1 / len(shape))))
        return (side,) * len(shape)
    fixed = sorted((max(size, 1), i) for i, size in enumerate(shape) if not unlimited[i])
    chunks = [1] * len(shape)
    left, total = DEFAULT_BYTES / itemsize, math.prod(size for size, _ in fixed)
    # the shortest first: what cannot be cut there is cut from the longer ones
    for number, (size, i) in zip(range(len(fixed), 0, -1), fixed, strict=True):
        share = min(1.0, (left / total) ** (1 / number))
        chunks[i] = max(1, int(size * share))
        left, total = left / chunks[i], total // size
    return equal_lengths([max(size, 1) for size in shape], chunks)


def plane_of(rank: int) -> int:
    """Return the first dimension of a map: the last two are one, or the last of two."""
    return max(1, rank - 2)


def balanced_chunk_shape(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return lengths of chunks of `DEFAULT_BYTES`; a map takes about as many of them as a series.

    Parameters
    ----------
    shape
        Of the array; its first dimension is that of a series, its last two that of a map.
    itemsize
        Bytes of an element.
    """
    room = max(1, DEFAULT_BYTES // max(1, itemsize))
    shape = [max(1, length) for length in shape]
    if len(shape) < 2:
        return equal_lengths(shape, [min(length, room) for length in shape])
    plane = plane_of(len(shape))
    parts = max(1.0, shape[0] * math.prod(shape[plane:]) / room)
    along = min(shape[0], max(1, round(shape[0] / math.sqrt(parts))))
    chunks = [along, *(1 for _ in shape[1:plane]), *_share(shape[plane:], room // along)]
    # what a whole plane and all steps leave goes to the dimensions between them
    left = room // math.prod(chunks)
    for axis in reversed(range(1, plane)):
        chunks[axis] = max(1, min(shape[axis], left))
        left //= chunks[axis]
    return equal_lengths(shape, chunks)


def equal_lengths(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    """Make chunks about equally long, instead of a short last one."""
    counts = (-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
    return tuple(-(-length // count) for length, count in zip(shape, counts, strict=True))


def _share(lengths: Sequence[int], room: int) -> list[int]:
    """Return the same share of each of some lengths, so that `room` elements hold the product."""
    share = min(1.0, (room / math.prod(lengths)) ** (1 / len(lengths)))
    return [max(1, int(length * share)) for length in lengths]


def cut_to(shape: Iterable[int], chunks: Iterable[int]) -> tuple[int, ...]:
    """Return chunk lengths, none of which is longer than its dimension (1 for an empty one)."""
    return tuple(min(chunk, max(1, size)) for chunk, size in zip(chunks, shape, strict=True))


def largest_block(blocks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the shape of the largest of dask's blocks (1 where they have no elements).

    Parameters
    ----------
    blocks
        Lengths of the blocks along each dimension.
    """
    return tuple(max([1, *lengths]) for lengths in blocks)


class SharedChunk(NamedTuple):
    """Where two of dask's blocks share a chunk.

    Attributes
    ----------
    axis
        Along which they follow each other.
    block
        Number of the first of them.
    position
        Where they meet.
    chunk
        Length of the chunks.
    """

    axis: int
    block: int
    position: int
    chunk: int


def shared_chunk(
    blocks: Sequence[Sequence[int]],
    chunks: Sequence[int],
    start: Sequence[int],
) -> SharedChunk | None:
    """Find where two blocks share a chunk, so that parallel writing fails; None if nowhere.

    Parameters
    ----------
    blocks
        dask's block lengths along each dimension.
    chunks
        Chunk lengths of the array.
    start
        Where the blocks begin in the array.
    """
    for axis, (lengths, chunk, offset) in enumerate(zip(blocks, chunks, start, strict=True)):
        position = offset
        for number, length in enumerate(lengths[:-1]):
            position += length
            if position % chunk:
                return SharedChunk(axis, number, position, chunk)
    return None


def aligned(
    blocks: Sequence[Sequence[int]], chunks: Sequence[int], start: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return block lengths like `blocks`, moved so that no two blocks share a chunk."""
    return tuple(
        _aligned(lengths, chunk, offset)
        for lengths, chunk, offset in zip(blocks, chunks, start, strict=True)
    )


def suits(blocks: Sequence[Sequence[int]], chunks: Sequence[int], itemsize: int) -> bool:
    """Tell whether an array that has dask's blocks should be stored in chunks of its source.

    So it is if no two blocks share a chunk, or if they make no grid of their own and do not become
    much larger when they are moved to borders of these chunks.
    """
    start, own = (0,) * len(chunks), largest_block(blocks)
    if shared_chunk(blocks, chunks, start) is None:
        return True
    moved = math.prod(largest_block(aligned(blocks, chunks, start)))
    most = _MOST_GROWTH * max(math.prod(own), DEFAULT_BYTES / itemsize)
    return shared_chunk(blocks, own, start) is not None and moved <= most


def _aligned(lengths: Sequence[int], chunk: int, offset: int) -> tuple[int, ...]:
    end = offset + sum(lengths)
    bounds = [offset]
    position = offset
    for length in lengths[:-1]:
        position += length
        bound = position // chunk * chunk
        if bound > bounds[-1]:
            bounds.append(bound)
    bounds.append(end)
    return tuple(high - low for low, high in itertools.pairwise(bounds))


# -- rechunking ------------------------------------------------------------------------------------
# From one chunk grid into another, in bounded memory. An array is copied part by part. A part is
# whole chunks of the new grid, because these are encoded as wholes. Where it ends inside of chunks
# of the old grid, these are decoded again for the next part. If memory for larger parts is lacking,
# and much would be decoded again, there are two passes: the first reads whole chunks of the old
# grid, and writes plain chunks *between* the grids, of which the parts of the second pass touch
# little more than they need.


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
