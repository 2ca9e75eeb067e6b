"""Where files with the same metadata have the chunks of a variable: told by few bytes of each."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.alike import FARTHEST
from nczarr_xarray.formats.hdf5.chunkindex_trees import BTree1Index
from nczarr_xarray.model import Array, FileChunks, FileStrides, grid_of

#: Chunks of an array, at most: of a larger one, to parse the metadata is a small part.
_MOST_CHUNKS = 1 << 10
#: Plain elements that are read at a time, in bytes: a selection may want a few of many.
_PLAIN_BYTES = 1 << 16

#: Per chunk of an array, begin and end in a file; None if it is missing.
Extents: TypeAlias = "Sequence[tuple[int, int] | None]"


@dataclass(frozen=True, slots=True)
class AlikeChunks:
    """Where files with the same metadata have the chunks of a variable.

    Parameters
    ----------
    shape
        Of the chunks: plain elements are divided into some.
    masks
        As of `nczarr_xarray.model.ChunkTable`, for all chunks.
    stop
        How many bytes from the beginning of a file tell where they are.
    extents
        Returns it, given these bytes, or more; None if the file has another chunk index.
    """

    shape: tuple[int, ...]
    masks: np.ndarray
    stop: int
    extents: Callable[[bytes], Extents | None]


async def read_alike_chunks(array: Array) -> AlikeChunks | None:
    """Find out how files like the one of an array tell where its chunks are.

    Parameters
    ----------
    array
        Of a file that has a pattern (`nczarr_xarray.formats.alike`).

    Returns
    -------
    None if only the parser finds it out.
    """
    if 0 in array.shape:
        return None
    if isinstance(array, FileStrides):
        return _plain(array)
    if not isinstance(array, FileChunks) or not isinstance(array.index, BTree1Index):
        return None
    if math.prod(grid_of(array.shape, array.chunk_shape)) > _MOST_CHUNKS:
        return None
    try:
        leaf = await array.index.leaf()
        if leaf is None or leaf.stop > FARTHEST:
            return None
        table = await array.locate(np.arange(leaf.count))
    except NCZarrError:
        return None
    return AlikeChunks(array.chunk_shape, table.mask, leaf.stop, leaf.extents)


def _plain(array: FileStrides) -> AlikeChunks | None:
    """Return plain elements as chunks, which are at the same places in all files."""
    if array.start is None or array.inline is not None:
        return None
    for most in (_PLAIN_BYTES, sys.maxsize):
        chunk_shape = _contiguous(array, most)
        grid = grid_of(array.shape, chunk_shape)
        if math.prod(grid) <= _MOST_CHUNKS:
            break
    else:
        return None
    steps = [length * stride for length, stride in zip(chunk_shape, array.strides, strict=True)]
    along = [range(0, count * step, step) for count, step in zip(grid, steps, strict=True)]
    nbytes = math.prod(chunk_shape) * array.dtype.itemsize
    begins = [array.start + sum(offsets) for offsets in itertools.product(*along)]
    extents = [(begin, begin + nbytes) for begin in begins]
    return AlikeChunks(chunk_shape, np.zeros(len(extents), np.uint32), 0, lambda _: extents)


def _contiguous(array: FileStrides, most: int) -> tuple[int, ...]:
    """Return the shape of the largest parts that are contiguous, alike, and of so many bytes."""
    shape, nbytes = [1] * len(array.shape), array.dtype.itemsize
    for axis in reversed(range(len(shape))):
        length = array.shape[axis]
        if length > 1 and array.strides[axis] != nbytes:
            break  # records, with those of other variables between them
        longest = max(1, min(length, most // nbytes))
        shape[axis] = next(n for n in range(longest, 0, -1) if length % n == 0)
        nbytes *= shape[axis]
        if shape[axis] < length:
            break
    return tuple(shape)
