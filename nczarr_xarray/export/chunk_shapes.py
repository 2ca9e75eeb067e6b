"""Chunk grids: the default one, and whether dask's blocks share chunks of one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

#: Bytes of a chunk by default, at most: large enough that the latency of a request matters
#: little, small enough that several requests are in flight at a time.
DEFAULT_BYTES = 4 << 20
#: Along a single unlimited dimension netCDF-C takes this many bytes (section 6, rule 1).
_RECORDS_BYTES = 4096


def default_chunk_shape(
    shape: Sequence[int], unlimited: Sequence[bool], itemsize: int
) -> tuple[int, ...]:
    """Return the default chunk lengths: those of netCDF-C's rules, for chunks of 4 MiB.

    netCDF-C 4.9 and 4.10 (nczarr-format.md, section 6) aim at 16 MiB. Unlimited
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
    # chunks of about equal length, instead of a short last one
    return tuple(
        -(-size // -(-size // c)) if size else 1 for size, c in zip(shape, chunks, strict=True)
    )


def uniform_chunks(blocks: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return dask's block lengths as a chunk grid; None if the blocks form no grid.

    Parameters
    ----------
    blocks
        Lengths of the blocks along each dimension.
    """
    chunks = []
    for lengths in blocks:
        first = max(lengths[0], 1) if lengths else 1
        if any(length != first for length in lengths[1:-1]) or (lengths and lengths[-1] > first):
            return None
        chunks.append(first)
    return tuple(chunks)


def shared_chunk(
    blocks: Sequence[Sequence[int]],
    chunks: Sequence[int],
    start: Sequence[int],
) -> str | None:
    """Say where two blocks share a chunk, so that parallel writing fails; None if nowhere.

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
                return (
                    f"blocks {number} and {number + 1} along axis {axis} meet at {position}, "
                    f"inside a chunk (chunks have length {chunk})"
                )
    return None


def aligned(
    blocks: Sequence[Sequence[int]], chunks: Sequence[int], start: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return block lengths like `blocks`, moved so that no two blocks share a chunk."""
    return tuple(
        _aligned(lengths, chunk, offset)
        for lengths, chunk, offset in zip(blocks, chunks, start, strict=True)
    )


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
