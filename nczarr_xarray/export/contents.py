"""What is written: groups with their variables, and where the data of each come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nczarr_xarray.codecs.quantize import Rounding
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.form.chunk_shapes import (
    Rechunking,
    SharedChunk,
    aligned,
    boxes,
    chunk_boxes,
    plan_rechunking,
    shared_chunk,
)
from nczarr_xarray.export.form.text import longest
from nczarr_xarray.model import Array, ChunkedArray, Group, Variable, join

if TYPE_CHECKING:
    import xarray as xr


if TYPE_CHECKING:
    import xarray as xr


# -- stored source -------------------------------------------------------------------------------
# Data that are read piece by piece, because they may be larger than memory.


#: Bytes that are read at a time.
SLAB_BYTES = 1 << 27


class StoredSource:
    """The data of a variable, for an `Item`: read piece by piece.

    Parameters
    ----------
    reader
        Reader of the variable.
    variable
        The stored variable, which has the shape.
    """

    #: dask's blocks: none
    chunks: None = None

    def __init__(self, reader: VariableReader, variable: Variable) -> None:
        self.reader = reader
        self.shape = variable.shape
        self.ndim = len(variable.shape)
        self.itemsize = 64 if variable.dtype.kind == "O" else variable.dtype.itemsize
        #: chunk lengths, and how many of such chunks are read together; None for all of a part
        self.together: tuple[tuple[int, ...], int] | None = None

    def read(self, part: tuple[slice, ...]) -> np.ndarray:
        """Return the values of one part."""
        found = [] if self.together is None else list(chunk_boxes(part, *self.together))
        if len(found) < 2:
            return np.asarray(self.reader.read(part))
        result = np.empty([along.stop - along.start for along in part], self.reader.dtype)
        for box in found:
            target = tuple(
                slice(own.start - along.start, own.stop - along.start)
                for own, along in zip(box, part, strict=True)
            )
            result[target] = self.reader.read(box)
        return result

    @property
    def grid(self) -> tuple[int, ...]:
        """The chunk lengths by which the data are read well."""
        return chunk_lengths(self.reader.array, self.ndim)

    def rechunking(
        self, chunk_shape: Sequence[int], nbytes: int | None = None, *, passes: int = 1
    ) -> Rechunking:
        """Plan the copy into another chunk grid, by parts of about `SLAB_BYTES` or `nbytes`."""
        room = max(1, (nbytes or SLAB_BYTES) // self.itemsize)
        return plan_rechunking(self.shape, self.grid, chunk_shape, room, passes=passes)

    def slabs(self, chunk_shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """Yield parts of about `SLAB_BYTES`, each of whole chunks of a grid (edges apart)."""
        return boxes(self.shape, self.rechunking(chunk_shape).parts)

    def longest_text(self, chunk_shape: Sequence[int]) -> int:
        """Return the number of bytes of the longest text in UTF-8; it is read by `slabs`."""
        return max((longest(self.read(part)) for part in self.slabs(chunk_shape)), default=0)


def chunk_lengths(array: Array | None, rank: int) -> tuple[int, ...]:
    """Return the chunk grid by which data of a variable are read well; 1 where any part is.

    Parameters
    ----------
    rank
        The number of dimensions of the variable.
    """
    ones = (1,) * rank
    if array is None or len(array.shape) != rank:
        return ones
    if array.blocks is not None:
        return tuple(max(1, *lengths) if lengths else 1 for lengths in array.blocks)
    return tuple(max(1, c) for c in array.chunk_shape) if array.is_chunked else ones


# -- contents ------------------------------------------------------------------------------------


class Item(NamedTuple):
    """A variable to write, and its data.

    Parameters
    ----------
    variable
        The variable to write, with its `ChunkedArray`.
    source
        The CF-encoded data, in memory or of dask; or data that are stored already.
    rounding
        The quantization that was asked for; None for none.
    chunks_are_asked_for
        Whether the user chose the chunks (if not, they were chosen for these blocks).
    """

    variable: Variable
    source: xr.Variable | StoredSource
    rounding: Rounding | None = None
    chunks_are_asked_for: bool = True

    @property
    def array(self) -> ChunkedArray:
        """The chunk grid to which it is written."""
        assert isinstance(self.variable.array, ChunkedArray)
        return self.variable.array

    @property
    def is_lazy(self) -> bool:
        """Whether dask computes the data."""
        return self.source.chunks is not None

    @property
    def lazy_data(self) -> Any:
        """The data as dask's array; None if they are not lazy."""
        source = self.source
        return source.data if not isinstance(source, StoredSource) and self.is_lazy else None

    def shared_chunk(self, start: tuple[int, ...]) -> SharedChunk | None:
        """Return where two of dask's blocks share a chunk, if the data begin at `start`."""
        blocks = self.source.chunks
        return None if blocks is None else shared_chunk(blocks, self.array.chunk_shape, start)

    def conflicts(self, start: tuple[int, ...]) -> list[str]:
        """Say why dask's blocks cannot be written in parallel."""
        found = self.shared_chunk(start)
        if found is None:
            return []
        dimension = self.variable.dimensions[found.axis].name
        where = (
            f"dask's blocks {found.block} and {found.block + 1} along {dimension!r} meet at "
            f"{found.position}, inside a chunk (chunks have length {found.chunk})"
        )
        advice = "use align_chunks=True, rechunk the data, or choose other chunks"
        return [f"{self.variable.path}: {where}; they cannot be written in parallel: {advice}"]

    def aligned(self, start: tuple[int, ...]) -> Item:
        """Return the item with the borders of dask's blocks moved to borders of chunks."""
        if self.source.chunks is None:
            return self
        assert not isinstance(self.source, StoredSource)
        blocks = aligned(self.source.chunks, self.array.chunk_shape, start)
        names = self.source.dims
        return self._replace(source=self.source.chunk(dict(zip(names, blocks, strict=True))))


@dataclass(slots=True)
class Contents:
    """Groups to write, and the items in them.

    Attributes
    ----------
    root
        The model; of existing groups it has only the dimensions and what is new.
    """

    root: Group = field(default_factory=Group)
    items: list[Item] = field(default_factory=list)

    def group(self, path: str) -> Group:
        """Return the group at an absolute path; it is made with its parents if need be."""
        group = self.root
        for name in filter(None, path.split("/")):
            if name not in group.groups:
                group.groups[name] = Group(join(group.path, name))
            group = group.groups[name]
        return group
