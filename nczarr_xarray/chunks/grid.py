"""A chunk grid: what all reads of it have in common, how a single chunk is read, and many of them.

Chunks of a selection come in windows (`nczarr_xarray.chunks.plan`). Those of a window come in
segments, rows of chunks that are decoded and scattered together if they are small.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Coroutine, Hashable, Iterator, Sequence
from functools import partial
from operator import mul
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.forks import cached_property
from nczarr_xarray.chunks.cache import CACHE, SHARE
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.joint import JointPlan
from nczarr_xarray.chunks.parts import (
    FAR_APART,
    PART_SHARE,
    ChunkPart,
    PartsRead,
    in_parts,
    may_be_sparse,
    strides_of,
)
from nczarr_xarray.chunks.pieces import Block
from nczarr_xarray.chunks.plan import (
    LOCAL_WINDOW,
    ONLY_CHUNK,
    WINDOW,
    ChunkTask,
    GridNumbers,
    Plan,
    Segment,
    Window,
)
from nczarr_xarray.chunks.scatter import Scatter, allocate, fill
from nczarr_xarray.chunks.sources import EncodedChunk, LocalSource, RemoteKeys, fetch_together
from nczarr_xarray.chunks.threads import ON_LOOP_BYTES, items_at_a_time
from nczarr_xarray.model import Array, ChunkTable, grid_of

#: Chunks that are located with one that follows the last one.
_AHEAD = 32
_NOWHERE = ChunkTable(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint32))


class Grid:
    """An array of chunks, as far as all reads have it in common."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.numbers = GridNumbers(grid_of(array.shape, array.chunk_shape))
        #: by mask: what decodes and scatters chunks that were stored without some of the codecs
        self._decoders: dict[int, tuple[Decoder, Scatter]] = {}
        self.decoder, self.scatter = self.decoder_of(0)
        #: for what `Decoder.together` returns, which is not shuffled
        self.scatter_elements = Scatter(self.decoder, planes=0)
        self.bound = self.decoder.bound
        self.nbytes = self.decoder.nbytes
        #: whether chunks are read to where they belong in the result, where that can be
        self.is_direct = self.decoder.is_plain and not self.decoder.in_rows
        self.needs_libhdf5 = self.decoder.needs_libhdf5
        #: by which its chunks are remembered
        self.known = CACHE.number_of(self)
        self.parts_read = PartsRead(self.nbytes)
        #: whether its chunks are bytes of which a part may be read by itself
        plain = not (array.codecs or self.decoder.in_rows or array.dtype.hasobject)
        self.has_parts = plain and self.nbytes < 1 << 62  # what numpy can say
        self._strides = strides_of(array.chunk_shape, array.order, array.dtype.itemsize, None)
        #: the number of the chunk that was located last, and where it and the next ones are
        self._located: tuple[int, ChunkTable] = (-1, _NOWHERE)

    def decoder_of(self, mask: int) -> tuple[Decoder, Scatter]:
        """Return what undoes the codecs of a chunk that was stored without those of `mask`."""
        if mask not in self._decoders:
            decoder = Decoder(self.array, mask)
            self._decoders[mask] = decoder, Scatter(decoder)
        return self._decoders[mask]

    def read_block(self, source: LocalSource, block: Block, *, remember: bool) -> np.ndarray | None:
        """Read a block that lies in one chunk at hand; None if it does not.

        Parameters
        ----------
        remember
            As of `nczarr_xarray.chunks.engine.ChunkReader.read`.
        """
        task, array = self._only_task(block), self.array
        if task is None:
            return None
        number = self.numbers.number(task.position)
        table = self._locate(source, number)
        self.check_sizes((number,), table.size)
        result = allocate(array, block.lengths)
        known, there = self.known_for(self.nbytes, result.size, remember), table.start[0] >= 0
        if there and self.has_parts and result.nbytes <= PART_SHARE * self.nbytes:
            if known is not None or not self._take_part(source, table, task, result):
                return None  # which `GridRead` knows how to read
            return result.reshape(block.kept)
        room = self.scatter.room_for(task, None, result) if self.is_direct and there else None
        if room is None or not fetch_together(source, table, room, self.bound):
            self.take(source, table, number, task, None, result, known)
        return result.reshape(block.kept)

    def _only_task(self, block: Block) -> ChunkTask | None:
        """Return what a block wants of the only chunk that it lies in; None if there are more."""
        position, wanted = [], []
        for low, length, chunk in zip(
            block.lows, block.lengths, self.array.chunk_shape, strict=True
        ):
            at, within = divmod(low, chunk)
            if within + length > chunk:
                return None
            position.append(at)
            wanted.append(slice(within, within + length))
        return ChunkTask(tuple(position), tuple(wanted), tuple(map(slice, block.lengths)))

    def _locate(self, source: LocalSource, number: int) -> ChunkTable:
        """Locate one chunk; in a loop from chunk to chunk, the next ones with it."""
        first, table = self._located
        count = len(table.start)
        if not 0 <= number - first < count:
            several = min(_AHEAD, self.numbers.count - number) if number == first + count else 1
            try:
                table = source.locate(self.array.locate(self.numbers.following(number, several)))
            except NCZarrError:  # of one that is not wanted
                if several == 1:
                    raise
                table = source.locate(self.array.locate(self.numbers.following(number, 1)))
            first, _ = self._located = number, table
        return table.of(slice(number - first, number - first + 1))

    def _take_part(
        self, source: LocalSource, table: ChunkTable, task: ChunkTask, result: np.ndarray
    ) -> bool:
        """Read one part of a chunk of plain elements; tell whether it could be done so."""
        strides, itemsize = self._strides, result.itemsize
        start = sum(part.start * stride for part, stride in zip(task.source, strides, strict=True))
        reach = itemsize + sum(map(mul, result.shape, strides)) - sum(strides)
        if table.size[0] not in (-1, self.nbytes) or not source.divides(table):
            return False
        if reach > result.nbytes and reach > FAR_APART:  # there may be better parts
            return False
        part = table._replace(start=table.start + start, size=np.array([reach]))
        (data,) = source.fetch(part, self.bound._replace(decoded=reach))
        if data is None:
            result[...] = self.array.missing
            return True
        if len(data) != reach:
            return False  # which tells what is wrong
        result[...] = np.ndarray(result.shape, self.array.dtype, data, strides=strides)
        return True

    def known_for(
        self, decoded: int, count: int, remember: bool, *, local: bool = True
    ) -> int | None:
        """Return by what chunks are remembered, if a read is so small that others may follow.

        Parameters
        ----------
        decoded
            Bytes of the chunks that it needs.
        count
            How many elements are wanted of these.
        local
            Whether they are at hand: what is not compressed is in memory then, in the system's
            cache.
        """
        dtype = self.array.dtype
        if not remember or (local and self.decoder.is_plain) or dtype.kind == "O":
            return None  # (of objects the size is not known)
        few = 0 < decoded <= CACHE.most and count * dtype.itemsize < SHARE * decoded
        return self.known if few else None

    def whole_remote(self, source: RemoteKeys) -> Coroutine[Any, Any, np.ndarray] | None:
        """Return what reads all elements on the loop of the source; None if not a small chunk."""
        array = self.array
        block = Block((0,) * len(array.shape), array.shape, array.shape)
        task = self._only_task(block)
        large = 0 < math.prod(array.chunk_shape) * SHARE <= math.prod(array.shape)
        small = self.nbytes <= ON_LOOP_BYTES and not self.needs_libhdf5
        return None if task is None or not (large and small) else self._read_whole(source, task)

    async def _read_whole(self, source: RemoteKeys, task: ChunkTask) -> np.ndarray:
        table = await source.locate(self.array.locate(ONLY_CHUNK))
        self.check_sizes(ONLY_CHUNK, table.size)
        result = allocate(self.array, self.array.shape)
        there = table.start[0] >= 0
        data = await source.fetch_one(table, self.bound) if there else None
        self._put(data, int(table.mask[0]), 0, task, None, result)
        return result

    def take(
        self,
        source: LocalSource,
        table: ChunkTable,
        number: int,
        task: ChunkTask,
        axes: tuple[int, ...] | None,
        result: np.ndarray,
        known: int | None,
    ) -> None:
        """Fetch, decode and scatter the only chunk of a table, which is this one of the grid."""
        data: EncodedChunk = None
        versions: Sequence[Hashable] = ()
        if table.start[0] >= 0:
            if known is not None:
                versions = source.versions([number], table)  # before it is read
                (chunk,) = CACHE.get(known, versions)
                if chunk is not None:
                    self.scatter.one(chunk, task, axes, result)
                    return
            if self.is_direct:
                room = self.scatter.room_for(task, axes, result)
                if room is not None and source.fetch_into(table, 0, room):
                    return
            (data,) = source.fetch(table, self.bound)
        self._put(data, int(table.mask[0]), number, task, axes, result, known, versions)

    def _put(
        self,
        data: EncodedChunk,
        mask: int,
        number: int,
        task: ChunkTask,
        axes: tuple[int, ...] | None,
        result: np.ndarray,
        known: int | None = None,
        versions: Sequence[Hashable] = (),
    ) -> None:
        """Decode and scatter a chunk that was stored without the codecs of `mask`."""
        if data is None:
            fill(task, self.array.missing, result)
            return
        decoder, scatter = self.decoder_of(mask)
        if decoder.is_direct and known is None:
            room = scatter.room_for(task, axes, result)
            if room is not None and decoder.decode_into(data, room):
                return
        chunks = decoder.decode([data], lambda _: self.name(number))
        if known is not None and not mask:  # remembered is what the first decoder leaves
            CACHE.put(known, versions, chunks, self.nbytes)
        scatter.one(chunks[0], task, axes, result)

    def name(self, number: int) -> str:
        """Name a chunk, for messages."""
        return self.array.chunk_name(self.numbers.position(int(number)))

    def check_sizes(self, numbers: Sequence[int] | np.ndarray, sizes: np.ndarray) -> None:
        """Refuse chunks that are stated to be longer than codecs can make them."""
        most = self.bound.stored
        if (sizes[0] if len(sizes) == 1 else sizes.max(initial=0)) > most:
            worst = int(sizes.argmax())
            raise FormatError(
                self.name(numbers[worst]),
                f"is stated to have {int(sizes[worst])} bytes, and can have {most} at most",
            )


# -- one read --------------------------------------------------------------------------------------
# Which chunks it wants, where they are, and what becomes of their bytes.


#: Reads of fewer decoded bytes are mostly done by one thread.
SHARED_BYTES = 1 << 21
#: How often a part of a chunk of plain elements takes the interpreter's lock: when it is read, when
#: an array is made of it, and when some elements are copied. Little is done without the lock.
_PART_TURNS = 3


class GridRead:
    """One read of what a plan selects of a grid.

    Parameters
    ----------
    result
        What is filled, of shape `plan.shape`; several arrays for a `JointPlan`.
    remember, local
        As of `nczarr_xarray.chunks.engine.ChunkReader.read`, and whether chunks are at hand.

    Attributes
    ----------
    known
        As of `Grid`, if chunks are remembered.
    together
        What decodes several chunks by one call; None if they are decoded one by one.
    sparse
        Whether parts of chunks may be enough.
    """

    def __init__(
        self, grid: Grid, plan: Plan | JointPlan, result: Any, *, remember: bool, local: bool
    ) -> None:
        self.grid = grid
        self.plan = plan
        wanted, decoded = math.prod(plan.shape), plan.count * grid.nbytes
        self.known = grid.known_for(decoded, wanted, remember, local=local)
        self.local = local
        self.result = result
        self.fill = grid.array.missing
        # what one thread decodes alone is inflated sooner chunk by chunk
        shared = self.known is None and decoded >= SHARED_BYTES
        self.together = grid.decoder.together if shared else None
        self.sparse = False
        if grid.has_parts and not isinstance(plan, JointPlan):
            self.sparse = may_be_sparse(plan, grid.array.chunk_shape)

    def windows(self) -> Iterator[tuple[np.ndarray, Window]]:
        """Yield windows of chunks, and before each what has to be located for it."""
        grid, plan = self.grid, self.plan
        if not self.local:
            return grid.numbers.windows(plan, WINDOW, WINDOW)
        together = items_at_a_time(plan.count, grid.nbytes) if grid.decoder.in_rows else 1
        return grid.numbers.windows(plan, together, LOCAL_WINDOW)

    def pieces(
        self, wanted: np.ndarray, window: Any, table: ChunkTable, *, parts: bool
    ) -> GridPieces:
        """Return the chunks of a window, located.

        Parameters
        ----------
        parts
            Whether the selection is sparse, and parts of chunks cost less than these.
        """
        grid = self.grid
        grid.check_sizes(wanted, table.size)
        if wanted is not window.ids:
            table = table.of(np.searchsorted(wanted, window.ids))
        if parts:
            assert not isinstance(self.plan, JointPlan)  # which is never sparse
            divided, located, found = in_parts(grid.array, grid.nbytes, self.plan, window, table)
            remembers = found is not None and self.known is not None
            if not (remembers and grid.parts_read.add(divided.ids, located.size)):
                return GridPieces(self, divided, located, found)
        return GridPieces(self, window, table, None)


class GridPieces:
    """Chunks of a window.

    Attributes
    ----------
    table
        Where they are.
    groups
        Number of segments: threads take a few of these at a time.
    nbytes
        Bytes that what is fetched of a chunk becomes.
    group_nbytes, group_chunks
        The same bytes of a segment, and its chunks.
    bound
        How many bytes what is fetched of a chunk may have.
    """

    def __init__(
        self, read: GridRead, window: Window, table: ChunkTable, parts: list[ChunkPart] | None
    ) -> None:
        self._read = read
        #: what of each chunk is read; None if they are read whole, and then remembered
        self._wanted = parts
        self._known = read.known
        self._window = window
        self.table = table
        self.groups = len(window.segments)
        self.group_chunks = -(-len(window.ids) // self.groups)
        self.nbytes = read.grid.nbytes if parts is None else int(table.size.max())
        self.bound = read.grid.bound._replace(decoded=self.nbytes)
        self.group_nbytes = self.group_chunks * self.nbytes

    @cached_property
    def _all_stored(self) -> bool:
        return bool((self.table.start >= 0).all())

    @cached_property
    def _mask(self) -> int | None:
        """The mask of all chunks; None if they differ."""
        masks = self.table.mask
        return int(masks[0]) if len(masks) and (masks == masks[0]).all() else None

    def turns(self, *, joins: bool) -> int:
        """Return how often a group takes the interpreter's lock.

        Parameters
        ----------
        joins
            As of `LocalSource`.
        """
        if self._wanted is not None:
            return _PART_TURNS
        together = self._read.together is not None and joins
        return 1 if together else self.group_chunks

    def take(self, source: LocalSource, groups: Sequence[int]) -> None:
        """Fetch, decode and scatter consecutive segments."""
        read, grid, first, ids = self._read, self._read.grid, self._window.first, self._window.ids
        if self._wanted is None and (len(ids) == 1 or not grid.decoder.in_rows):
            axes, result = read.plan.axes, read.result
            for row in groups:  # segments of one chunk
                table, task = self.table.of(slice(row, row + 1)), self._window.segments[row].first
                grid.take(source, table, int(ids[row]), task, axes, result, self._known)
            return
        rows = np.arange(first[groups[0]], first[groups[-1] + 1])
        table = self.table.of(slice(first[groups[0]], first[groups[-1] + 1]))
        left = self._missing(rows, table)
        versions: Sequence[Any] = ()
        if self._known is not None:
            if len(left) < len(rows):
                table = self.table.of(left)
            versions = source.versions(ids[left].tolist(), table)  # before they are read
            left, versions = self._scatter_known(left, versions)
        if len(left):
            table = table if len(left) == len(table.start) else self.table.of(left)
            self.scatter(left, source.fetch(table, self.bound), versions)

    def left(self) -> np.ndarray:
        """Scatter what need not be fetched, for it is not stored or it is remembered.

        Returns
        -------
        The rows that are left.
        """
        left = self._missing(np.arange(len(self._window.ids)), self.table)
        if self._known is not None:
            left, _ = self._scatter_known(left, self._window.ids[left].tolist())
        return left

    def scatter(self, rows: np.ndarray, data: Sequence[Any], versions: Sequence[Any] = ()) -> None:
        """Decode and scatter some chunks, in any order.

        Parameters
        ----------
        versions
            What they are remembered as, if not as their numbers.
        """
        if None in data:
            absent = [i for i, stored in enumerate(data) if stored is None]
            self._fill(rows[absent])
            there = [i for i, stored in enumerate(data) if stored is not None]
            rows, data = rows[there], [data[i] for i in there]
            versions = versions and [versions[i] for i in there]
        if self._wanted is not None:
            for row, stored in zip(rows.tolist(), data, strict=True):
                self._scatter_part(row, self._wanted[row], stored)
            return
        mask = self._mask
        if mask is None and len(rows) > 1:
            for i in range(len(rows)):
                self.scatter(rows[i : i + 1], data[i : i + 1], versions[i : i + 1])
            return
        if mask is None:
            mask = int(self.table.mask[rows[0]]) if len(rows) else 0
        read, ids = self._read, self._window.ids
        if read.together is not None and not mask:
            block = read.together(data)
            if block is not None:
                self._scatter(read.grid.scatter_elements, rows, block)
                return
        decoder, scatter = read.grid.decoder_of(mask)
        step = max(1, len(rows)) if decoder.in_rows else 1  # large ones are not held side by side
        for part in (slice(at, at + step) for at in range(0, len(rows), step)):
            own = rows[part]
            chunks = decoder.decode(data[part], partial(self._name, own))
            if self._known is not None and not mask:
                keys = versions[part] or ids[own].tolist()
                CACHE.put(self._known, keys, chunks, read.grid.nbytes)
            self._scatter(scatter, own, chunks)

    def _scatter_part(self, row: int, part: ChunkPart, stored: Any) -> None:
        if memoryview(stored).nbytes != part.stop - part.start:
            name = self._read.grid.name(self._window.ids[row])
            raise FormatError(
                name, f"has no byte {part.stop - 1} of {self._read.grid.nbytes}: truncated?"
            )
        part.scatter(stored, self._read.grid.array.dtype, self._read.result)

    def _name(self, rows: np.ndarray, i: int) -> str:
        return self._read.grid.name(self._window.ids[rows[i]])

    def _scatter(self, scatter: Scatter, rows: np.ndarray, chunks: Sequence[Any]) -> None:
        axes, result = self._read.plan.axes, self._read.result
        if len(self._window.ids) == self.groups:  # there are no rows
            segments = self._window.segments
            alone_tasks = [segments[row].first for row in rows.tolist()]
            scatter.many(chunks, alone_tasks, axes, result)
            return
        alone: list[Any] = []
        tasks: list[ChunkTask] = []
        in_rows = self._read.grid.decoder.in_rows
        together: list[tuple[Segment, int, int]] = []
        for segment, low, high in self._parts(rows):
            if in_rows and segment.step and high > low + 1:
                together.append((segment, low, high))
            else:
                alone.extend(chunks[low:high])
                tasks += segment.tasks()
        if together and not scatter.rows(chunks, together, result):
            for segment, low, high in together:
                alone.extend(chunks[low:high])
                tasks += segment.tasks()
        scatter.many(alone, tasks, axes, result)

    def _fill(self, rows: np.ndarray) -> None:
        for segment, _, _ in self._parts(rows):
            for task in segment.tasks() if not segment.step else ():
                fill(task, self._read.fill, self._read.result)
            if segment.step:
                self._read.result[segment.target] = self._read.fill

    def _parts(self, rows: np.ndarray) -> Iterator[tuple[Segment, int, int]]:
        """Yield rows as parts of segments, as long as can be, with their bounds in `rows`."""
        first, segments = self._window.first, self._window.segments
        numbers: list[int] = rows.tolist()
        ends = [len(numbers)]
        if len(numbers) > 1:  # rows that do not follow each other begin another part
            ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), *ends]
        at = 0
        for end in ends:
            while at < end:
                row = numbers[at]
                which = bisect.bisect_right(first, row) - 1
                stop = min(end, at + first[which + 1] - row)
                begin = row - first[which]
                yield segments[which].part(begin, begin + stop - at), at, stop
                at = stop

    def _missing(self, rows: np.ndarray, table: ChunkTable) -> np.ndarray:
        """Fill what is not stored; the other rows."""
        if self._all_stored:
            return rows
        there = table.start >= 0
        self._fill(rows[~there])
        return rows[there]

    def _scatter_known(
        self, rows: np.ndarray, versions: Sequence[Any]
    ) -> tuple[np.ndarray, Sequence[Any]]:
        """Scatter what is remembered; the other rows, and what they are to be remembered as."""
        assert self._known is not None
        found = CACHE.get(self._known, versions)
        hits = [i for i, chunk in enumerate(found) if chunk is not None]
        if not hits:
            return rows, versions
        if self._wanted is None:
            self._scatter(self._read.grid.scatter, rows[hits], [found[i] for i in hits])
        else:
            for i in hits:
                part, chunk = self._wanted[rows[i]], np.frombuffer(found[i], np.uint8)
                self._scatter_part(rows[i], part, chunk[part.start : part.stop])
        left = [i for i, chunk in enumerate(found) if chunk is None]
        return rows[left], [versions[i] for i in left]
