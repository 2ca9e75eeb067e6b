"""Chunk shapes that suit how data are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from nczarr_xarray.export.chunk_shapes import DEFAULT_BYTES
from nczarr_xarray.tools.doctor.patterns import plane_of


def balanced(shape: Sequence[int], itemsize: int, nbytes: int = DEFAULT_BYTES) -> tuple[int, ...]:
    """Return chunks of which a map takes about as many as a series.

    Parameters
    ----------
    shape
        Of the array; its first dimension is that of a series, its last two that of a map.
    itemsize
        Bytes of an element.
    nbytes
        Of a chunk before codecs, at most.
    """
    room = max(1, nbytes // itemsize)
    plane = plane_of(len(shape))
    steps, area = shape[0], math.prod(shape[plane:])
    parts = max(1.0, steps * area / room)
    along = min(steps, max(1, round(steps / math.sqrt(parts))))
    chunks = [along, *(1 for _ in shape[1:plane]), *_cut(shape[plane:], room // along)]
    # what a whole plane and all steps leave goes to the dimensions between them
    left = room // math.prod(chunks)
    for axis in reversed(range(1, plane)):
        chunks[axis] = max(1, min(shape[axis], left))
        left //= chunks[axis]
    return _equal(shape, chunks)


def steps(shape: Sequence[int], itemsize: int, nbytes: int = DEFAULT_BYTES) -> tuple[int, ...]:
    """Return chunks of whole maps: so many steps of the first dimension as fit, one at least.

    Parameters are those of `balanced`.
    """
    plane = plane_of(len(shape))
    each = math.prod(shape[plane:]) * itemsize
    along = max(1, min(shape[0], nbytes // max(1, each)))
    return _equal(shape, [along, *(1 for _ in shape[1:plane]), *shape[plane:]])


#: Bytes of a chunk before codecs above which it is not proposed: a map may be larger.
MOST = 1 << 26
#: The layouts that are compared with the one that there is, by name.
PROPOSALS: dict[str, Callable[[Sequence[int], int], tuple[int, ...]]] = {
    "balanced": balanced,
    "whole maps": steps,
}


def proposals(shape: Sequence[int], itemsize: int) -> dict[str, tuple[int, ...]]:
    """Return chunk shapes for an array, by the name of what they are good for."""
    if len(shape) < 2 or not all(shape):
        return {}
    found = {name: propose(shape, itemsize) for name, propose in PROPOSALS.items()}
    return {name: chunks for name, chunks in found.items() if math.prod(chunks) * itemsize <= MOST}


def _cut(lengths: Sequence[int], room: int) -> list[int]:
    """Return the same share of each of some lengths, so that `room` elements hold the product."""
    share = min(1.0, (room / math.prod(lengths)) ** (1 / len(lengths)))
    return [max(1, int(length * share)) for length in lengths]


def _equal(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    """Make chunks about equally long, instead of a short last one."""
    counts = (-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
    return tuple(-(-length // count) for length, count in zip(shape, counts, strict=True))
