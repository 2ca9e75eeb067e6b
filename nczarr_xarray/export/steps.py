"""The plan of an export's data: for each variable, by which parts it is copied.

A plan is printed before the work, and executed. Parts are numbered, so that what is done can be
told, and is the same when the same plan is made again. If memory is limited, so are the parts.

Chunks that both arrays store alike are moved as they are. That is so if the grids, the elements and
the codecs are the same. Whether a filter of HDF5 has the same bytes in Zarr, the table of codecs
says: it has a codec of Zarr then, in place of one of HDF5 (`HDF5Filter.decodes`). Chunks for which
it is not so are decoded and encoded, one by one:

- those that were stored without some of the filters,
- those of a variable whose chunks are longer than they should be (`Array.longer`),
- those that do not exist, where the arrays differ in what these read as,
- those that an unlimited dimension ends in. What a chunk holds behind the end can be anything, and
  becomes visible when the dimension grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.changes.resumption import BETWEEN, Resumption
from nczarr_fsspec.concurrency import at_once
from nczarr_fsspec.errors import ExportError, UsageError
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.keystore import RemoteStore
from nczarr_fsspec.ranges.reader import HELD_BYTES
from nczarr_fsspec.text import format_size
from nczarr_xarray.chunks.scatter import same_fill
from nczarr_xarray.chunks.sources import LEAST_IN_FLIGHT
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.codecs.shuffle import element_size
from nczarr_xarray.dataset.file import loop_of
from nczarr_xarray.dataset.stored_chunks import StoredChunks
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.chunk_writer import IN_FLIGHT_BYTES, ArrayWriter, ChunkWriter
from nczarr_xarray.export.contents import Item, StoredSource, chunk_lengths
from nczarr_xarray.export.derived import stored_array
from nczarr_xarray.export.form.chunk_shapes import Lengths, Rechunking, boxes, cut_to
from nczarr_xarray.formats.zarr3.array import Zarr3Array
from nczarr_xarray.model import (
    Array,
    ChunkedArray,
    CodecConfig,
    FragmentArray,
    box_of,
    grid_of,
    position_of,
)

#: Bytes that the program takes without data: Python with its packages, metadata, caches.
PROGRAM_BYTES = 256_000_000
#: Copies of a chunk that a processor has while it decodes or encodes it.
COPIES = 3
#: What zarr-python may have of a chunk at a time: as it is stored, while it is decoded, as its
#: shard has it, and in the selection.
_COPIES_OF_ZARR = 4
#: How many times the bytes of a fragment it takes to read it: see `FragmentReader.cost`.
_COPIES_OF_FRAGMENT = 3
#: Bytes of chunks, when decoded, that a thread moves at a time.
BATCH_BYTES = 1 << 22
#: Chunks that are located together, at most.
WINDOW = 1 << 16
#: Bytes of these, when decoded.
WINDOW_BYTES = 1 << 30


def share(memory: int, workers: int) -> int:
    """Return what each worker may take of the memory of all, and of the process that has them.

    Raises
    ------
    UsageError
        If not even the programs fit.
    """
    each = (memory - PROGRAM_BYTES) // workers
    if each <= PROGRAM_BYTES:
        least = format_size((1 + workers) * PROGRAM_BYTES)
        reason = f"{1 + workers} processes take {least} without any data: fewer --workers take less"
        raise UsageError("--memory", reason)
    return each


def room_to_move(source: StoredSource, chunk_shape: Sequence[int], memory: int) -> int:
    """Return the bytes of chunks that may be on their way; any may have to be coded.

    Raises
    ------
    ExportError
        If the memory does not suffice for one chunk.
    """
    copies = max(1, COPIES)
    chunk = max(_chunk_bytes(source, chunk_shape))
    _check(source, chunk_shape, memory, PROGRAM_BYTES + copies * chunk)
    return (memory - PROGRAM_BYTES) // copies


def room(
    source: StoredSource,
    chunk_shape: Sequence[int],
    memory: int,
    writer: ChunkWriter | None = None,
) -> int:
    """Return the bytes of a part, which is read or written while its chunks are coded.

    Where chunks on their way from or to a remote store would take too much, this limits how many
    there are at a time. It does the same for fragments, and for what zarr-python reads.

    Parameters
    ----------
    chunk_shape
        Of the copy.
    memory
        Bytes that the process may take.
    writer
        If chunks of the copy are sent while others are coded, what sends them.

    Raises
    ------
    ExportError
        If the memory does not suffice for one chunk.
    """
    old, new = _chunk_bytes(source, chunk_shape)
    free = memory - PROGRAM_BYTES
    coded = processors() * COPIES * (old + new)
    if writer is not None and not writer.at_once:
        writer.in_flight = min(writer.in_flight, max(2 * new, free // (2 * max(1, COPIES))))
        coded = COPIES * (processors() * old + writer.in_flight)
    coded += _coming(source, old, free)
    smallest = math.prod(cut_to(source.shape, source.grid)) * source.itemsize
    least = PROGRAM_BYTES + coded + 2 * max(smallest, new)
    _check(source, chunk_shape, memory, least)
    return (free - coded) // 2


def _coming(source: StoredSource, chunk: int, free: int) -> int:
    """Limit what may be on its way from a source at a time; return its bytes."""
    store, array = source.reader.store, stored_array(source.reader.array)
    if isinstance(array, FragmentArray):
        most = max(1, free // 4)
        if array.opener is not None:
            own = array.opener.under_way
            most = array.opener.under_way = most if own is None else min(own, most)
        return max(_COPIES_OF_FRAGMENT * chunk, most)
    if isinstance(array, Zarr3Array):
        derived = array is not source.reader.array
        # of what is derived, a box of as many positions as a chunk has may touch more chunks
        each = max(1, _COPIES_OF_ZARR * chunk * (2**source.ndim if derived else 1))
        count = max(1, free // 4 // each)
        shard = 1 if derived else math.prod(grid_of(array.object_shape, array.chunk_shape))
        # the index of a shard is read again for each read of its chunks
        many = count >= shard > 1
        source.together = (array.object_shape, count // shard) if many else (source.grid, count)
        return each * count
    if isinstance(store, RemoteStore):
        store.in_flight_bytes = max(1, min(store.in_flight_bytes, free // 4))
        return max(LEAST_IN_FLIGHT * chunk, store.in_flight_bytes)
    if loop_of(store) is None:
        return 0
    whole = math.prod(grid_of(source.shape, source.grid)) * chunk
    return HELD_BYTES if source.reader.dtype.hasobject else min(HELD_BYTES, max(chunk, whole))


def _chunk_bytes(source: StoredSource, chunk_shape: Sequence[int]) -> tuple[int, int]:
    """Return the bytes of a chunk, and of one of the copy."""
    array = stored_array(source.reader.array)
    if isinstance(array, FragmentArray):  # not those that are well read together
        lengths = array.chunk_shape
    else:
        lengths = chunk_lengths(array, source.ndim)
    shape = source.shape if array is None else array.shape
    old, new = (
        math.prod(map(min, chunk, (max(1, n) for n in whole))) * source.itemsize
        for chunk, whole in ((lengths, shape), (chunk_shape, source.shape))
    )
    return old, new


def _check(source: StoredSource, chunk_shape: Sequence[int], memory: int, least: int) -> None:
    """Raise `ExportError` if there is too little memory for a variable."""
    old, new = _chunk_bytes(source, chunk_shape)
    if memory < least:
        aggregated = isinstance(stored_array(source.reader.array), FragmentArray)
        kind = "fragments" if aggregated else "chunks"
        reason = (
            f"cannot be copied with {format_size(memory)} of memory for a process: its {kind} of "
            f"{format_size(old)}, and chunks of {format_size(new)} in the copy, take "
            f"{format_size(least)}, with {format_size(PROGRAM_BYTES)} for the program itself"
        )
        raise ExportError(source.reader.path, reason)


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


class MoveStep(Step):
    """Chunks that are moved as they are stored, into an array that is `stored_alike`. Picklable.

    Parameters
    ----------
    item, writer
        As of `Step`.
    source
        The data of `item`.
    most
        Bytes of chunks, when decoded, that may be on their way at a time, if that is limited: of
        one at least.
    """

    can_be_sent = True
    writer: ChunkWriter

    def __init__(
        self, item: Item, writer: ChunkWriter, source: StoredSource, most: int | None
    ) -> None:
        super().__init__(item, writer)
        self._source = source
        self._stored = StoredChunks(source.reader)
        self._most = most
        array = writer.array
        self._grid = grid_of(array.shape, array.chunk_shape)
        self._nbytes = max(1, writer.encoder.nbytes)
        lengths = zip(item.variable.dimensions, array.shape, array.chunk_shape, strict=True)
        self._growing = [
            axis
            for axis, (dim, size, chunk) in enumerate(lengths)
            if dim.unlimited and size % chunk
        ]
        old = source.reader.array
        assert old is not None
        # what does not exist reads as the same then, and need not be written
        self._skips_missing = writer.skip_fill and same_fill(old, array)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.item, self.writer, self._source, self._most)

    @property
    def _window(self) -> int:
        return max(1, min(WINDOW, WINDOW_BYTES // self._nbytes))

    @property
    def parts(self) -> int:
        """How many times chunks are located and moved."""
        return -(-math.prod(self._grid) // self._window)

    def run(self, part: int, done: Callable[[int], None], *, threads: int | None = None) -> int:
        first, last = (self._window * number for number in (part, part + 1))
        ids = np.arange(first, min(last, math.prod(self._grid)), dtype=np.int64)
        return self._move(ids, done, self._threads(threads))

    def _move(self, ids: np.ndarray, done: Callable[[int], None], threads: int) -> int:
        stored, writer = self._stored, self.writer
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
            threads = self.writer.threads(wanted)
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
        array = self.writer.array
        part = box_of(position_of(number, self._grid), array.chunk_shape, array.shape)
        first = tuple(along.start for along in part)
        return self.writer.write(self._source.read(part), first, threads=1)

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


def plan_step(item: Item, writer: ArrayWriter, memory: int | None, *, passes: int = 2) -> Step:
    """Plan how the data of a variable that are not of dask are written.

    Parameters
    ----------
    memory
        Bytes that a process may take; None for parts of a size that is seldom too large,
        and one pass.
    passes
        How many passes there may be.

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
    found = source.rechunking(new.chunk_shape, nbytes, passes=passes if plain else 1)
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
