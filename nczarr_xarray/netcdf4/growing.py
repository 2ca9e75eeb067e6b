"""The elements of a variable that is being written: chunks in memory over those that are stored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.chunks.plan import ChunkTask, OuterPlan, plan_outer
from nczarr_xarray.chunks.threads import share
from nczarr_xarray.codecs.quantize import Rounding
from nczarr_xarray.model import ChunkedArray, bytes_of, grid_of, text_of
from nczarr_xarray.netcdf4.indexing import Index
from nczarr_xarray.netcdf4.variable import Elements

if TYPE_CHECKING:
    from nczarr_xarray.model import Variable
    from nczarr_xarray.netcdf4.variable import Dimension
    from nczarr_xarray.netcdf4.writing import TreeWriter, Writer

Position = tuple[int, ...]

#: Bytes that texts of a new variable have room for, as of netCDF-C.
TEXT_BYTES = 128


class GrowingElements(Elements):
    """Reads and writes elements, which stay in memory until they are committed.

    Parameters
    ----------
    writer
        Writes the dataset.
    array
        How the elements are stored; its shape is that of the last commit, or of nothing.
    dimensions
        Have the present lengths.
    stored
        The variable of the last commit; None for a new one.
    rounding
        A function that rounds values before they are stored.
    """

    def __init__(
        self,
        writer: Writer,
        array: ChunkedArray,
        dimensions: tuple[Dimension, ...],
        stored: Variable | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        super().__init__(array)
        self.writer = writer
        self.stored = writer.reader(stored)
        self.rounding = rounding
        self.dimensions = dimensions
        #: those in memory
        self.chunks_here: dict[Position, np.ndarray] = {}
        #: those in memory that differ from what is put
        self.changed: set[Position] = set()
        #: those that are put and not committed yet
        self.put: set[Position] = set()
        self.is_text = array.dtype.kind == "S" and array.dtype.itemsize > 1
        #: whether chunks may leave memory before the commit, where text gets its length
        self.leaves = not self.is_text
        self._encoder: Encoder | None = None

    @property
    def dtype(self) -> np.dtype:
        """Of values: objects for text."""
        return np.dtype(object) if self.is_text else self.array.dtype.newbyteorder("=")

    def _shape(self) -> tuple[int, ...]:
        """Return the present lengths."""
        return tuple(dimension.size for dimension in self.dimensions)

    # -- elements ---------------------------------------------------------------------------------

    def read(self, key: tuple[Index, ...]) -> np.ndarray:
        """Return an orthogonal selection; dimensions that integers index are left out."""
        with self.writer.lock:
            stored = self.stored
            as_stored = not (self.changed or self.put)
            if stored is not None and as_stored and stored.shape == self._shape():
                return stored.read(key)
            plan = self._plan(key)
            result = np.empty(plan.shape, self.dtype)
            for task in plan.tasks():
                result[task.target] = self._chunk(task.position)[task.source]
            return plan.finish(result)

    def write(self, key: tuple[Index, ...], data: np.ndarray) -> None:
        """Replace a selection by data of its shape."""
        with self.writer.lock:
            if self.rounding is not None:
                data = self.rounding(data)
            plan = self._plan(key)
            values = data.reshape(plan.shape) if plan.squeeze else data
            flipped = tuple(slice(None, None, -1 if flip else None) for flip in plan.flips)
            values = values[flipped] if any(plan.flips) else values
            self._replace(plan.tasks(), values)

    def _replace(self, tasks: Iterable[ChunkTask], values: np.ndarray) -> None:
        """Put values into chunks."""
        for position, source, target in tasks:
            chunk = self._chunk(position, fetched=not self._is_whole(position, source))
            chunk[source] = values[target]
            self.changed.add(position)

    def _plan(self, key: tuple[Index, ...]) -> OuterPlan:
        return plan_outer(key, self._shape(), self.array.chunk_shape)

    def _extent(self, position: Position) -> tuple[slice, ...]:
        """Return what of the array a chunk in memory holds; it may reach behind its end."""
        lengths = self.array.chunk_shape
        return tuple(slice(n * c, (n + 1) * c) for n, c in zip(position, lengths, strict=True))

    def _is_whole(self, position: Position, source: Sequence[Any]) -> bool:
        """Tell whether a selection in a chunk is all of it."""
        return all(
            isinstance(one, slice)
            and (one.start or 0, one.stop, one.step or 1) == (0, own.stop - own.start, 1)
            for one, own in zip(source, self._extent(position), strict=True)
        )

    def _chunk(self, position: Position, *, fetched: bool = True) -> np.ndarray:
        """Return a whole chunk, in memory from now on; `fetched` with what it holds."""
        chunk = self.chunks_here.get(position)
        if chunk is None:
            chunk = self._empty(position)
            if fetched:
                self._fetch(position, chunk)
            self.chunks_here[position] = chunk
        self.writer.note_use(self, position)
        return chunk

    def _empty(self, position: Position) -> np.ndarray:
        """Return a chunk in which nothing is written, for which there is room."""
        lengths = [own.stop - own.start for own in self._extent(position)]
        nbytes = math.prod(lengths) * self.dtype.itemsize
        self.writer.make_room(nbytes)
        self.writer.taken += nbytes
        fill: Any = self.array.fill
        if self.is_text:
            fill = "" if not fill else text_of(fill)
        return np.full(lengths, 0 if fill is None else fill, self.dtype)

    def _fetch(self, position: Position, chunk: np.ndarray) -> None:
        """Copy what is stored of a chunk into it."""
        if self.stored is None:
            return
        sizes = zip(self._extent(position), self.stored.shape, strict=True)
        part = tuple(slice(own.start, min(own.stop, size)) for own, size in sizes)
        if all(one.start < one.stop for one in part):
            values = self.stored.read(part)
            chunk[tuple(map(slice, values.shape)) or ...] = values

    def forget(self, position: Position) -> None:
        """Forget a chunk that is put."""
        self.writer.taken -= self.chunks_here.pop(position).nbytes

    def settle(self) -> None:
        """Prepare the commit: the array gets its present shape.

        Texts that are longer than before get more room: then all chunks are written anew.
        """
        if self.is_text and self.changed:
            texts = (self.chunks_here[position].ravel().tolist() for position in self.changed)
            longest = max(len(bytes_of(str(t))) for t in itertools.chain.from_iterable(texts))
            if longest > self.array.dtype.itemsize:
                self._change_all()
                self.array = replace(self.array, dtype=np.dtype(f"S{longest}"))
                self._encoder = None
        self.array = replace(self.array, shape=self._shape())

    def _change_all(self) -> None:
        """Have all chunks written anew."""
        for position in np.ndindex(grid_of(self._shape(), self.array.chunk_shape)):
            self._chunk(position)
            self.changed.add(position)

    def rename(self, path: str) -> None:
        """Give the array another path."""
        self.array = replace(self.array, path=path)

    def committed(self, stored: Variable) -> None:
        """Note that all that was written is stored now."""
        self.changed.clear()
        self.put.clear()
        self.stored = self.writer.reader(stored)


class TreeElements(GrowingElements):
    """Elements of a tree: chunks are put when they are complete, or the writer needs room."""

    writer: TreeWriter

    def _fetch(self, position: Position, chunk: np.ndarray) -> None:
        """Copy what is put, or stored, of a chunk into it."""
        if position not in self.put:
            super()._fetch(position, chunk)
            return
        extent = self._extent(position)
        array = replace(self.array, shape=tuple(own.stop for own in extent))
        values = self.writer.target.put_chunks(array).read(extent)
        if self.is_text:
            chunk.ravel()[:] = list(map(text_of, values.ravel().tolist()))
        else:
            chunk[...] = values

    def _replace(self, tasks: Iterable[ChunkTask], values: np.ndarray) -> None:
        """Put complete chunks, and values into others.

        Chunks that are written a second time may be written ever again, and stay in memory.
        """
        complete, others = [], []
        for task in tasks:
            position = task.position
            again = self.is_text or position in self.put or position in self.chunks_here
            if not again and self._is_whole(position, task.source):
                complete.append((position, values[task.target]))
            else:
                others.append(task)
        self._store(complete)
        super()._replace(others, values)

    def _store(self, chunks: list[tuple[Position, np.ndarray]]) -> None:
        """Put chunks; by several threads, if that pays."""
        if not chunks:
            return
        encoder = self._encoder = self._encoder or Encoder(self.array)

        def store(some: list[tuple[Position, np.ndarray]]) -> None:
            with encoder.scratch:
                for position, values in some:
                    self.writer.put(self.array.chunk_name(position), encoder.encode(values))
                    self.put.add(position)

        if self.writer.target.at_hand:
            share(store, chunks, encoder.nbytes)
        else:
            store(chunks)

    def put_changed(self, positions: Iterable[Position]) -> None:
        """Put chunks that have changed."""
        chosen = [(position, self.chunks_here[position]) for position in sorted(positions)]
        self._store(chosen)
        self.changed.difference_update(position for position, _ in chosen)

    def rename(self, path: str) -> None:
        """Give the array another path; all its chunks are written anew there."""
        old_path = self.array.path
        names = [self.array.chunk_name(position) for position in self.put]
        super().rename(path)
        for old, position in zip(names, self.put, strict=True):
            self.writer.target.move(old, self.array.chunk_name(position))
        self.writer.target.remove(old_path)
        self._change_all()  # those that are stored are read by their old names, until the commit
