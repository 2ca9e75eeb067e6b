"""Data that are read piece by piece, because they may be larger than memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.strings import longest
from nczarr_xarray.model import Variable

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
    chunk_shape
        The shape of the parts to read together.
    """

    #: dask's blocks: none
    chunks: None = None

    def __init__(
        self, reader: VariableReader, variable: Variable, chunk_shape: Sequence[int]
    ) -> None:
        self.reader = reader
        self.shape = variable.shape
        self.ndim = len(variable.shape)
        self._chunk_shape = chunk_shape
        self._itemsize = 64 if variable.dtype.kind == "O" else variable.dtype.itemsize

    def read(self, part: tuple[slice, ...]) -> np.ndarray:
        """Return the values of one part."""
        return np.asarray(self.reader.read(part))

    def slabs(self, chunk_shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """Yield parts of about `SLAB_BYTES`, each of whole chunks of a grid (edges apart)."""
        lengths = [max(1, chunk) for chunk in chunk_shape]
        limit = max(1, SLAB_BYTES // self._itemsize)
        # from the last dimension on, so that a part is contiguous in the source
        for axis in reversed(range(self.ndim)):
            others = math.prod(lengths) // lengths[axis]
            times = limit // max(1, others * lengths[axis])
            lengths[axis] = min(
                max(1, self.shape[axis]) + lengths[axis] - 1, lengths[axis] * max(1, times)
            )
            lengths[axis] = max(
                chunk_shape[axis], lengths[axis] // chunk_shape[axis] * chunk_shape[axis]
            )
        ranges = [range(0, size, n) for size, n in zip(self.shape, lengths, strict=True)]
        for corner in itertools.product(*ranges):
            yield tuple(
                slice(first, min(first + n, size))
                for first, n, size in zip(corner, lengths, self.shape, strict=True)
            )

    def longest_text(self) -> int:
        """Return the number of bytes of the longest text in UTF-8."""
        parts = self.slabs(self._chunk_shape)
        return max((longest(self.read(part)) for part in parts), default=0)
