"""Chunk shapes that suit how data are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from nczarr_xarray.export.form.chunk_shapes import (
    DEFAULT_BYTES,
    balanced_chunk_shape,
    equal_lengths,
    plane_of,
)


def steps(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return chunks of whole maps: so many steps of the first dimension as fit, one at least.

    Parameters are those of `balanced_chunk_shape`.
    """
    plane = plane_of(len(shape))
    each = math.prod(shape[plane:]) * itemsize
    along = max(1, min(shape[0], DEFAULT_BYTES // max(1, each)))
    return equal_lengths(shape, [along, *(1 for _ in shape[1:plane]), *shape[plane:]])


#: Bytes of a chunk before codecs above which it is not proposed: a map may be larger.
MOST = 1 << 26
#: The layouts that are compared with the one that there is, by name.
PROPOSALS: dict[str, Callable[[Sequence[int], int], tuple[int, ...]]] = {
    "balanced": balanced_chunk_shape,
    "whole maps": steps,
}


def proposals(shape: Sequence[int], itemsize: int) -> dict[str, tuple[int, ...]]:
    """Return chunk shapes for an array, by the name of what they are good for."""
    if len(shape) < 2 or not all(shape):
        return {}
    found = {name: propose(shape, itemsize) for name, propose in PROPOSALS.items()}
    return {name: chunks for name, chunks in found.items() if math.prod(chunks) * itemsize <= MOST}
