"""Where files with the same metadata have the chunks of a variable: told by few bytes of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.alike import FARTHEST
from nczarr_xarray.formats.hdf5.chunkindex_trees import BTree1Index
from nczarr_xarray.model import Array, FileChunks, FileStrides, grid_of

#: Chunks of an array whose index is compared: of a larger one, to parse the metadata is a small
#: part.
_MOST_CHUNKS = 1 << 10

#: Per chunk of an array, begin and end in a file; None if it is missing.
Extents: TypeAlias = "Sequence[tuple[int, int] | None]"


@dataclass(frozen=True, slots=True)
class AlikeChunks:
    """Where files with the same metadata have the chunks of a variable.

    Parameters
    ----------
    masks
        As of `nczarr_xarray.model.ChunkTable`, for all chunks.
    stop
        How many bytes from the beginning of a file tell where they are.
    extents
        Returns it, given these bytes, or more; None if the file has another chunk index.
    """

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
    if 0 in array.shape or math.prod(grid_of(array.shape, array.chunk_shape)) > _MOST_CHUNKS:
        return None
    if isinstance(array, FileStrides):
        return _plain(array)
    if not isinstance(array, FileChunks) or not isinstance(array.index, BTree1Index):
        return None
    try:
        leaf = await array.index.leaf()
        if leaf is None or leaf.stop > FARTHEST:
            return None
        table = await array.locate(np.arange(leaf.count))
    except NCZarrError:
        return None
    return AlikeChunks(table.mask, leaf.stop, leaf.extents)


def _plain(array: FileStrides) -> AlikeChunks | None:
    """Return the only chunk of plain elements, which is at the same place in all files."""
    if array.start is None or array.inline is not None:
        return None
    nbytes = array.dtype.itemsize
    for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if length > 1 and stride != nbytes:
            return None  # records, with those of other variables between them
        nbytes *= length
    extent = array.start, array.start + nbytes
    return AlikeChunks(np.zeros(1, np.uint32), 0, lambda _: [extent])
