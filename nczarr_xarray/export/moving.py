"""Moving chunks: stored bytes go from array to array as they are, where both decode them alike.

That is so if the grids, the elements and the codecs are the same. Whether a filter of HDF5 has the
same bytes in Zarr, the table of codecs says: it has a codec of Zarr then, in place of one of HDF5
(`HDF5Filter.decodes`). Chunks for which it is not so are decoded and encoded, one by one:

- those that were stored without some of the filters,
- those of a variable whose chunks are longer than they should be (`Array.longer`),
- those that do not exist, where the arrays differ in what these read as,
- those that an unlimited dimension ends in. What a chunk holds behind the end can be anything, and
  becomes visible when the dimension grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np

from nczarr_fsspec.concurrency import at_once
from nczarr_xarray.chunks.scatter import same_fill
from nczarr_xarray.codecs.shuffle import element_size
from nczarr_xarray.dataset.stored_chunks import StoredChunks
from nczarr_xarray.export.chunk_writer import IN_FLIGHT_BYTES, ChunkWriter
from nczarr_xarray.export.contents import StoredSource
from nczarr_xarray.model import (
    Array,
    ChunkedArray,
    CodecConfig,
    Variable,
    box_of,
    grid_of,
    position_of,
)

#: Bytes of chunks, when decoded, that a thread moves at a time.
BATCH_BYTES = 1 << 22
#: Chunks that are located together, at most.
WINDOW = 1 << 16
#: Bytes of these, when decoded.
WINDOW_BYTES = 1 << 30


def stored_alike(one: Array, other: ChunkedArray) -> bool:
    """Tell whether the bytes of a chunk mean the same elements in two arrays.

    Text is never said to be alike: formats differ in its length, padding and encoding.
    """
    if one.reads_itself or one.strides is not None or one.conversion is not None:
        return False
    if one.dtype.kind in "SUO" and one.dtype.itemsize > 1:
        return False
    grids = ((a.shape, a.chunk_shape, a.dtype, a.order) for a in (one, other))
    return next(grids) == next(grids) and _pipeline(one) == _pipeline(other)


def _pipeline(array: Array) -> list[CodecConfig]:
    """Return the codecs with what their settings leave out."""
    return [
        {**config, "elementsize": element_size(config, array)}
        if config["id"] == "shuffle"
        else dict(config)
        for config in array.codecs
    ]


class Mover:
    """Moves the chunks of a variable into an array that is `stored_alike`. Picklable.

    Parameters
    ----------
    variable
        The new variable.
    source
        The old one's data.
    writer
        Writer of the new array.
    most
        Bytes of chunks, when decoded, that may be on their way at a time, if that is limited: of
        one at least.
    """

    def __init__(
        self, variable: Variable, source: StoredSource, writer: ChunkWriter, most: int | None
    ) -> None:
        self._variable = variable
        self._source = source
        self._stored = StoredChunks(source.reader)
        self._writer = writer
        self._most = most
        array = writer.array
        self._grid = grid_of(array.shape, array.chunk_shape)
        self._nbytes = max(1, writer.encoder.nbytes)
        lengths = zip(variable.dimensions, array.shape, array.chunk_shape, strict=True)
        self._growing = [
            axis
            for axis, (dim, size, chunk) in enumerate(lengths)
            if dim.unlimited and size % chunk
        ]
        old = source.reader.array
        assert old is not None
        # what does not exist reads as the same then, and need not be written
        self._skips_missing = writer.skip_fill and same_fill(old, array)

    def __reduce__(
        self,
    ) -> tuple[type[Mover], tuple[Variable, StoredSource, ChunkWriter, int | None]]:
        return type(self), (self._variable, self._source, self._writer, self._most)

    @property
    def _window(self) -> int:
        return max(1, min(WINDOW, WINDOW_BYTES // self._nbytes))

    @property
    def windows(self) -> int:
        """How many times chunks are located and moved."""
        return -(-math.prod(self._grid) // self._window)

    def run(self, window: int, done: Callable[[int], None], threads: int | None = None) -> int:
        """Move the chunks of a window; return how many were put.

        Parameters
        ----------
        done
            Called with the number of those that were done.
        threads
            As of `ArrayWriter.write`.
        """
        first, last = (self._window * number for number in (window, window + 1))
        ids = np.arange(first, min(last, math.prod(self._grid)), dtype=np.int64)
        return self._move(ids, done, self._threads(threads))

    def _move(self, ids: np.ndarray, done: Callable[[int], None], threads: int) -> int:
        stored, writer = self._stored, self._writer
        table = stored.locate(ids)
        there = table.start >= 0
        moved = there & (table.mask == 0) & ~self._at_growing_end(ids)
        moved &= not stored.are_longer
        anew = ~moved & (there | (not self._skips_missing))
        keys = at_once(writer.array.locate(ids)).source
        assert keys is not None

        def move(batch: slice) -> int:
            rows = np.arange(batch.start, batch.stop)
            left = rows[anew[batch]].tolist()
            rows = rows[moved[batch]]
            there = stored.put(table.of(rows), keys[rows].tolist(), writer.store)
            if not self._skips_missing:
                left += rows[~np.array(there, dtype=bool)].tolist()
            return sum(there) + sum(self._write_anew(int(ids[row])) for row in left)

        size = self._batch // self._nbytes
        if stored.is_local:  # far away, what is asked for together takes fewer requests
            size = min(size, -(-len(ids) // threads))
        size = max(1, size)
        batches = (slice(at, min(at + size, len(ids))) for at in range(0, len(ids), size))
        return writer.each(
            batches,
            move,
            threads=min(threads, -(-len(ids) // size)),
            done=lambda batch: done(batch.stop - batch.start),
            within=nullcontext(),
        )

    @property
    def _batch(self) -> int:
        return BATCH_BYTES if self._most is None else min(BATCH_BYTES, self._most)

    def _threads(self, wanted: int | None) -> int:
        each = max(self._batch, self._nbytes)
        if not self._stored.is_local:  # they wait most of the time
            threads = max(2, IN_FLIGHT_BYTES // each)
        else:
            threads = self._writer.threads(wanted)
        return threads if self._most is None else max(1, min(threads, self._most // each))

    def _at_growing_end(self, ids: np.ndarray) -> np.ndarray:
        """Return which chunks an unlimited dimension ends in."""
        ends = np.zeros(len(ids), dtype=bool)
        position = np.unravel_index(ids, self._grid) if self._growing else ()
        for axis in self._growing:
            ends |= position[axis] == self._grid[axis] - 1
        return ends

    def _write_anew(self, number: int) -> int:
        """Decode a chunk and encode it again; return the number of chunks put."""
        array = self._writer.array
        part = box_of(position_of(number, self._grid), array.chunk_shape, array.shape)
        first = tuple(along.start for along in part)
        return self._writer.write(self._source.read(part), first, threads=1)
