"""The plan of an export's data: for each variable, by which parts it is copied.

A plan is printed before the work, and executed. Parts are numbered, so that what is done can be
told, and is the same when the same plan is made again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.changes.resumption import BETWEEN, Resumption
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.text import format_size
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.contents import Item, StoredSource
from nczarr_xarray.export.gate import ArrayWriter
from nczarr_xarray.export.memory import room, room_to_move
from nczarr_xarray.export.moving import Mover, stored_alike
from nczarr_xarray.export.rechunk import Lengths, Rechunking, boxes
from nczarr_xarray.model import ChunkedArray


class Step:
    """The data of one variable in memory, which are written at once.

    Parameters
    ----------
    item
        The variable.
    writer
        The writer of its new array.
    """

    def __init__(self, item: Item, writer: ArrayWriter) -> None:
        self.item = item
        self.writer = writer

    @property
    def parts(self) -> int:
        """The number of parts, which are independent unless memory is limited."""
        return 1

    #: Whether other processes can do its parts: they read the data where these are stored.
    can_be_sent = False
    #: Whether the others wait for the first part.
    first_alone = False

    @property
    def nbytes(self) -> int:
        """Bytes of the data when they are stored plainly."""
        return math.prod(self.item.source.shape) * self.writer.array.dtype.itemsize

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        """Do a part; return the number of objects put.

        Parameters
        ----------
        done
            Called with the numbers of chunks of the new array.
        threads
            As of `ArrayWriter.write`.
        """
        source: Any = self.item.source
        first = (0,) * source.ndim
        return self.writer.write(np.asarray(source.data), first, threads=threads, done=done)

    def written(self, part: int) -> int:
        """Return about how many bytes of data a part writes."""
        return self.nbytes // self.parts

    def leftovers(self) -> list[str]:
        """Return the keys of objects that only this step needs."""
        return []

    def __str__(self) -> str:
        size = format_size(self.nbytes)
        return f"{self.item.variable.path.strip('/')}: {size}, {self._described}"

    @property
    def _described(self) -> str:
        return "written at once"


class MoveStep(Step):
    """Chunks that are moved as they are stored; `most` is that of `Mover`."""

    can_be_sent = True

    def __init__(
        self, item: Item, writer: ChunkWriter, source: StoredSource, most: int | None
    ) -> None:
        super().__init__(item, writer)
        self._mover = Mover(item.variable, source, writer, most)

    @property
    def parts(self) -> int:
        return self._mover.windows

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        return self._mover.run(part, done, threads)

    @property
    def _described(self) -> str:
        return "chunks are moved as they are stored"


class PartsStep(Step):
    """Data that are read, and written into a new chunk grid, part by part."""

    can_be_sent = True

    def __init__(
        self, item: Item, writer: ArrayWriter, source: StoredSource, rechunking: Rechunking
    ) -> None:
        super().__init__(item, writer)
        self._source = source
        self._rechunking = rechunking

    @cached_property
    def _boxes(self) -> list[tuple[slice, ...]]:
        return [*boxes(self._rechunking.shape, self._rechunking.parts)]

    @property
    def parts(self) -> int:
        return len(self._boxes)

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        box = self._boxes[part]
        first = tuple(along.start for along in box)
        return self.writer.write(self._source.read(box), first, threads=threads, done=done)

    @property
    def _described(self) -> str:
        return one_pass(self._rechunking)


class TwoPassStep(PartsStep):
    """Data that are first written into plain chunks between the old grid and the new one.

    The first part is the whole first pass, because its parts share chunks.
    """

    first_alone = True

    def __init__(
        self, item: Item, writer: ArrayWriter, source: StoredSource, rechunking: Rechunking
    ) -> None:
        super().__init__(item, writer, source, rechunking)
        assert rechunking.between is not None
        variable = item.variable
        self._between = ChunkedArray(
            path=f"{BETWEEN}/{writer.array.path}",
            shape=rechunking.shape,
            chunk_shape=rechunking.between,
            dtype=variable.dtype.newbyteorder("="),
        )
        self._variable = replace(variable, array=self._between, padding=None)

    @property
    def parts(self) -> int:
        return 1 + super().parts

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        if not part:
            self.first_pass()
            return 0
        store = self.writer.store
        box = self._boxes[part - 1]
        reader = VariableReader(store.reader(), self._variable)
        first = tuple(along.start for along in box)
        return self.writer.write(reader.read(box), first, threads=threads, done=done)

    def written(self, part: int) -> int:
        return super().written(part) if part else self.nbytes

    def leftovers(self) -> list[str]:
        return self.writer.store.keys_below(self._between.path)

    def first_pass(self) -> None:
        store, lengths = self.writer.store, self._rechunking.first
        assert lengths is not None
        store.delete(self.leftovers())
        writer = ChunkWriter(self._between, store, shared=True)
        if isinstance(self.writer, ChunkWriter):
            writer.in_flight = self.writer.in_flight
        for box in boxes(self._rechunking.shape, lengths):
            writer.write(self._source.read(box), tuple(along.start for along in box))

    @property
    def _described(self) -> str:
        first, between = self._rechunking.first, self._rechunking.between
        assert first is not None
        assert between is not None
        count = sum(1 for _ in boxes(self._rechunking.shape, first))
        return (
            f"two passes: by {_parts(count, first)} into plain chunks of {_times(between)}, "
            f"then by {_parts(super().parts, self._rechunking.parts)}"
        )


def one_pass(rechunking: Rechunking) -> str:
    """Describe a plan without a second pass."""
    again = rechunking.repeats
    said = f", chunks are decoded {again:.1f} times" if again > 1 else ""
    count = sum(1 for _ in boxes(rechunking.shape, rechunking.parts))
    return f"one pass by {_parts(count, rechunking.parts)}{said}"


def _parts(count: int, lengths: Lengths) -> str:
    return f"{count} part{'' if count == 1 else 's'} of {_times(lengths)}"


def _times(lengths: Lengths) -> str:
    return " × ".join(map(str, lengths)) or "1"


def plan_step(item: Item, writer: ArrayWriter, memory: int | None) -> Step:
    """Plan how the data of a variable that are not of dask are written.

    Parameters
    ----------
    memory
        Bytes that a process may take; None for parts of a size that is seldom too large,
        and one pass.

    Raises
    ------
    ExportError
        If the memory does not suffice for one chunk.
    """
    source = item.source
    if not isinstance(source, StoredSource):
        return Step(item, writer)
    old, new = source.reader.array, writer.array
    if old is not None and isinstance(writer, ChunkWriter) and stored_alike(old, writer.array):
        most = None if memory is None else room_to_move(source, new.chunk_shape, memory)
        return MoveStep(item, writer, source, most)
    if memory is None:
        return PartsStep(item, writer, source, source.rechunking(new.chunk_shape))
    plain = not item.variable.dtype.hasobject
    sender = writer if isinstance(writer, ChunkWriter) else None
    nbytes = room(source, new.chunk_shape, memory, sender)
    found = source.rechunking(new.chunk_shape, nbytes, passes=2 if plain else 1)
    kind = PartsStep if found.first is None else TwoPassStep
    return kind(item, writer, source, found)


def planned(
    resumption: Resumption, documents: Mapping[str, bytes], items: Iterable[Item]
) -> Resumption:
    """Return work of which it is known, too, what is written, and by which parts.

    Codecs that are not installed any more, say, change both.

    Parameters
    ----------
    documents
        The metadata of what is written.
    items
        The variables, whose data are stored.
    """
    parts = []
    for item in items:
        source, new = item.source, item.variable.array
        assert isinstance(source, StoredSource)
        assert isinstance(new, ChunkedArray)
        old = source.reader.array
        moved = old is not None and stored_alike(old, new)
        parts.append((item.variable.path, source.shape, source.grid, moved))
    return Resumption.of(resumption.plan, documents, parts)
