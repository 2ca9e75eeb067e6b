"""Files with the same metadata, byte by byte, as one program writes them in a row.

What a parser returns depends on the bytes that it reads. So a file that has the same bytes where
another one was read has the same variables, at the same places; few bytes more tell where it has
their chunks. Without this, the mean over 1,000 small files takes 15 to 20 times as much of the
processor (1.4 ms a file to parse it, 0.08 to compare).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeAlias, cast, runtime_checkable

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.rounds import all_of, read
from nczarr_xarray.model import (
    Array,
    ChunkTable,
    FileChunks,
    FileStrides,
    Hierarchy,
    Variable,
    grid_of,
)

#: Metadata that lie farther back are not compared.
_FARTHEST = 1 << 16
#: Chunks of an array, at most: of a larger one, to parse the metadata is a small part.
_MOST_CHUNKS = 1 << 10
#: Plain elements that are read at a time, in bytes: a selection may want a few of many.
_PLAIN_BYTES = 1 << 16
#: A superblock of version 2 or 3 at the beginning of an HDF5 file: behind what comes first are
#: where the file ends and a checksum, which differ from file to file.
_BEFORE_END, _END, _ROOT = slice(0, 28), slice(28, 36), slice(36, 44)
_EXTENSION = slice(20, 28)

#: Per chunk of an array, begin and end in a file; None if it is missing.
Extents: TypeAlias = "Sequence[tuple[int, int] | None]"


@dataclass(frozen=True, slots=True)
class MetadataPattern:
    """The metadata of a file, and the bytes that they were read from.

    Parameters
    ----------
    hierarchy
        The metadata. Those of its variables that are `movable` can be `moved` to other files.
    spans
        Positions and bytes.
    stop
        Where the last of these end.
    end
        Which bytes are the end of the file, where it says that itself.
    least
        Bytes that a file has at least.
    """

    hierarchy: Hierarchy
    spans: tuple[tuple[int, bytes], ...]
    stop: int
    end: slice | None = None
    least: int = 0

    def fits(self, start: bytes, size: int) -> bool:
        """Tell whether a file has these bytes, and is not cut off.

        Parameters
        ----------
        start
            The first bytes of the file, `stop` or more.
        size
            Of the file, in bytes.
        """
        if len(start) < self.stop or size < self.least:
            return False
        if self.end is not None and int.from_bytes(start[self.end], "little") > size:
            return False
        for at, data in self.spans:  # noqa: SIM110 - a generator takes as long as the comparison
            if not start.startswith(data, at):
                return False
        return True

    def variable(self, path: str) -> Variable | None:
        """Return the variable at a path; None if it is not `movable`."""
        group, _, name = path.strip("/").rpartition("/")
        holder = self.hierarchy.root.find(group)
        variable = None if holder is None else holder.variables.get(name)
        return variable if variable is not None and movable(variable) else None


@runtime_checkable
class MovableIndex(Protocol):
    """A `nczarr_xarray.model.ChunkIndex` that other files with the same metadata have, too."""

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks: see `nczarr_xarray.model.Array.locate`."""

    def moved(self, url: str, end: int) -> Self:
        """Return the index of a file with the same metadata, and another end."""


def movable(variable: Variable) -> bool:
    """Tell whether the metadata of a variable are those of other files with the same bytes."""
    array = variable.array
    if variable.error is not None or not isinstance(array, (FileChunks, FileStrides)):
        return False
    if isinstance(array, FileChunks) and not isinstance(array.index, MovableIndex):
        return False
    return array.conversion is None and array.shape == variable.shape


def moved(variable: Variable, url: str, size: int) -> Variable:
    """Return a variable that is `movable` as another file with the same bytes has it."""
    array = variable.array
    if not isinstance(array, FileChunks):
        return variable
    index = cast("MovableIndex", array.index)  # to look takes longer than the move
    return replace(variable, array=replace(array, index=index.moved(url, size)))


# -- the formats ---------------------------------------------------------------------------------


async def read_classic_pattern(url: str, size: int, group: str) -> MetadataPattern | None:
    """Read the pattern of a classic file; None if it has to be parsed for each.

    Parameters
    ----------
    url, size, group
        As of `nczarr_xarray.formats.classic.read_hierarchy`.
    """
    from nczarr_xarray.formats.classic import read_header, read_hierarchy

    try:
        header = await read_header(url, size)
        hierarchy = await read_hierarchy(url, size, group)
    except NCZarrError:
        return None
    # without a number of records, they follow from the size of the file
    if hierarchy.problems or header.records is None or header.size > _FARTHEST:
        return None
    data = bytes(await read(0, header.size))
    # shorter files may be cut off: they are parsed, which says so
    return MetadataPattern(hierarchy, ((0, data),), header.size, least=size)


async def read_hdf5_pattern(
    url: str, size: int, group: str, only: str | None, *, tree: bool
) -> MetadataPattern | None:
    """Read the pattern of an HDF5 file; None if it has to be parsed for each.

    Parameters
    ----------
    url, size, group, only, tree
        As of `nczarr_xarray.formats.hdf5.netcdf.read_hierarchy`.
    """
    from nczarr_xarray.formats.hdf5.header import SIGNATURE
    from nczarr_xarray.formats.hdf5.netcdf import read_hierarchy

    notes: list[tuple[int, int]] = []
    try:
        hierarchy = await read_hierarchy(url, size, group, tree=tree, only=only, notes=notes)
        superblock = bytes(await read(0, _ROOT.stop))
    except NCZarrError:
        return None
    plain = (
        superblock[:8] == SIGNATURE and superblock[8] in (2, 3) and superblock[9:11] == b"\x08\x08"
    )
    # what an extension says is read before anything is noted
    extended = superblock[_EXTENSION] != b"\xff" * 8
    if not plain or extended or hierarchy.problems or hierarchy.hidden:
        return None
    stop = max((at + length for at, length in notes), default=0)
    if not 0 < stop <= min(size, _FARTHEST):
        return None
    spans = [(part.start, superblock[part]) for part in (_BEFORE_END, _ROOT)]
    merged = _merged(notes)
    data = await all_of(read(at, length) for at, length in merged)
    spans += [(at, bytes(own)) for (at, _), own in zip(merged, data, strict=True)]
    return MetadataPattern(hierarchy, tuple(spans), max(stop, _ROOT.stop), _END)


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return extents without overlaps."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(extents):
        if merged and start <= sum(merged[-1]):
            at = merged[-1][0]
            merged[-1] = (at, max(sum(merged[-1]), start + length) - at)
        else:
            merged.append((start, length))
    return merged


# -- chunks --------------------------------------------------------------------------------------


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
        Of a variable that is `movable`.

    Returns
    -------
    None if only the parser finds it out.
    """
    if 0 in array.shape:
        return None
    if isinstance(array, FileStrides):
        return _plain(array)
    from nczarr_xarray.formats.hdf5.chunkindex_trees import BTree1Index

    if not isinstance(array, FileChunks) or not isinstance(array.index, BTree1Index):
        return None
    if math.prod(grid_of(array.shape, array.chunk_shape)) > _MOST_CHUNKS:
        return None
    try:
        leaf = await array.index.leaf()
        if leaf is None or leaf.stop > _FARTHEST:
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
