"""The plan of an export's data: for each variable, by which parts it is copied.

A plan is printed before the work, and executed. Parts are numbered, so that what is done can be
told, and is the same when the same plan is made again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from nczarr_fsspec.changes.resumption import BETWEEN, Resumption
from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.processors import processors
from nczarr_fsspec.sizes import format_size
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.array_writer import ArrayWriter
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.dataset import Item
from nczarr_xarray.export.moving import Mover, stored_alike
from nczarr_xarray.export.rechunk import Lengths, Rechunking, boxes
from nczarr_xarray.export.stored_source import StoredSource
from nczarr_xarray.model import ChunkedArray

#: Bytes that the program takes without data: Python with its packages, metadata, caches.
PROGRAM_BYTES = 256_000_000
#: Copies of a chunk that a processor has while it decodes or encodes it.
_COPIES = 3


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

    @property
    def can_be_sent(self) -> bool:
        """Whether other processes can do its parts: they read the data where these are stored."""
        return False

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

    def __init__(
        self, item: Item, writer: ChunkWriter, source: StoredSource, most: int | None
    ) -> None:
        super().__init__(item, writer)
        self._mover = Mover(item.variable, source, writer, most)

    @property
    def parts(self) -> int:
        return self._mover.windows

    @property
    def can_be_sent(self) -> bool:
        return True

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        return self._mover.run(part, done, threads)

    @property
    def _described(self) -> str:
        return "chunks are moved as they are stored"


class PartsStep(Step):
    """Data that are read, and written into a new chunk grid, part by part."""

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

    @property
    def can_be_sent(self) -> bool:
        return True

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        box = self._boxes[part]
        first = tuple(along.start for along in box)
        return self.writer.write(self._source.read(box), first, threads=threads, done=done)

    @property
    def _described(self) -> str:
        again = self._rechunking.repeats
        said = f", chunks are decoded {again:.1f} times" if again > 1 else ""
        return f"one pass by {_parts(self.parts, self._rechunking.parts)}{said}"


class TwoPassStep(PartsStep):
    """Data that are first written into plain chunks between the old grid and the new one.

    The first part is the whole first pass, because its parts share chunks.
    """

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

    @property
    def can_be_sent(self) -> bool:
        return False  # the first part has to be the first

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        if not part:
            self._first_pass()
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

    def _first_pass(self) -> None:
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


def _parts(count: int, lengths: Lengths) -> str:
    return f"{count} part{'' if count == 1 else 's'} of {_times(lengths)}"


def _times(lengths: Lengths) -> str:
    return " × ".join(map(str, lengths)) or "1"


def plan_step(item: Item, writer: ArrayWriter, memory: int | None = None) -> Step:
    """Plan how the data of a variable that are not of dask are written.

    Parameters
    ----------
    memory
        Bytes that the whole program may take; None for parts of a size that is seldom too large,
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
        most = None if memory is None else _room_to_move(source, writer, memory)
        return MoveStep(item, writer, source, most)
    if memory is None:
        return PartsStep(item, writer, source, source.rechunking(new.chunk_shape))
    plain = not item.variable.dtype.hasobject
    room = _room(source, writer, memory)
    found = source.rechunking(new.chunk_shape, room, passes=2 if plain else 1)
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


def _room_to_move(source: StoredSource, writer: ChunkWriter, memory: int) -> int:
    """Return the bytes of chunks that may be on their way; any may have to be coded."""
    copies = max(1, _COPIES)
    chunk = max(_chunk_bytes(source, writer))
    _check(source, writer, memory, PROGRAM_BYTES + copies * chunk)
    return (memory - PROGRAM_BYTES) // copies


def _room(source: StoredSource, writer: ArrayWriter, memory: int) -> int:
    """Return the bytes that a part may have: one is read or written while its chunks are coded.

    Fewer chunks are sent to a remote store at a time than could be, where they take too much.
    """
    old, new = _chunk_bytes(source, writer)
    coded = processors() * _COPIES * (old + new)
    if isinstance(writer, ChunkWriter) and not writer.at_once:
        free = memory - PROGRAM_BYTES
        writer.in_flight = min(writer.in_flight, max(2 * new, free // (2 * max(1, _COPIES))))
        coded = _COPIES * (processors() * old + writer.in_flight)
    least = PROGRAM_BYTES + coded + 2 * max(old, new)
    _check(source, writer, memory, least)
    return (memory - PROGRAM_BYTES - coded) // 2


def _chunk_bytes(source: StoredSource, writer: ArrayWriter) -> tuple[int, int]:
    """Return the bytes of a chunk, and of one of the copy."""
    old, new = (
        math.prod(map(min, lengths, (max(1, n) for n in source.shape))) * source.itemsize
        for lengths in (source.grid, writer.array.chunk_shape)
    )
    return old, new


def _check(source: StoredSource, writer: ArrayWriter, memory: int, least: int) -> None:
    """Raise `ExportError` if there is too little memory for a variable."""
    old, new = _chunk_bytes(source, writer)
    if memory < least:
        reason = (
            f"has chunks of {format_size(old)}, and in the copy of {format_size(new)}; "
            f"with {format_size(memory)} of memory it cannot be copied: it takes "
            f"{format_size(least)}"
        )
        raise ExportError(source.reader.path, reason)
