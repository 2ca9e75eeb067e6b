"""The chunk engine for one file: find the byte ranges of a selection, fetch, decode, place.

Chunks of a file have an index to be asked first, and many of them arrive with
one request; everything else is as for stores with a key for each chunk.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_fsspec.ranges.source import LocalBytes
from nczarr_xarray.chunks.cache import CACHE, SHARE, Chunks
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.engine import allocate, fill_element
from nczarr_xarray.chunks.plan import ChunkTask, OuterPlan, PointPlan, Segment
from nczarr_xarray.chunks.records import read_records
from nczarr_xarray.chunks.strides import LOCAL_GAP, Runs, end_of, plan_runs, span_of
from nczarr_xarray.chunks.threads import BATCH_BYTES, chunks_at_a_time, in_threads, share
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.model import FileChunks, FileStrides

#: Chunks that are looked up, fetched and decoded together: bounds what a huge read remembers.
WINDOW = 1 << 16
#: The same of a file on this machine, where looking up costs no round trip.
LOCAL_WINDOW = 1 << 13
#: Runs of elements from this length on are read straight into the result; a copy costs less than
#: finding their places one by one.
DIRECT_BYTES = 1 << 15
#: The number of the only chunk of an array.
_FIRST = np.zeros(1, dtype=np.int64)


class _Chunks(NamedTuple):
    """Chunks of a selection: their numbers in the grid, and how they are stored.

    Attributes
    ----------
    starts, sizes
        In the file, in bytes; -1 starts what is not stored.
    masks
        Which codecs were not applied.
    """

    ids: np.ndarray[Any, Any]
    starts: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    masks: np.ndarray[Any, Any]

    def of(self, which: Any) -> _Chunks:
        """Some of them."""
        return _Chunks(*(values[which] for values in self))


class FileChunkReader:
    """Reads selections of one array of chunks. Made once per array and process."""

    def __init__(self, array: FileChunks) -> None:
        self._array = array
        self._grid = tuple(-(-n // c) for n, c in zip(array.shape, array.chunk_shape, strict=True))
        #: by filter mask: which codecs some chunks were stored without
        self._decoders: dict[int, Decoder] = {0: Decoder(array)}
        self._nbytes = self._decoders[0].nbytes
        self._known = CACHE.of(self)
        #: all of an array that is one chunk, and most of it
        self._whole: ChunkTask | None = None
        if 0 < math.prod(array.chunk_shape) * SHARE <= math.prod(array.shape) and set(
            self._grid
        ) <= {1}:
            everything = tuple(map(slice, array.shape))
            self._whole = ChunkTask((0,) * len(array.shape), everything, everything)

    def read_whole(self, file: DataFile) -> np.ndarray[Any, Any] | None:
        """Read all elements of a local file, if they are one chunk; None if not.

        Raises
        ------
        FormatError, StoreError
            As `read`.
        """
        task, array, source = self._whole, self._array, file.source
        if task is None:
            return None
        assert isinstance(source, LocalBytes)
        table = file.parse(array.index.locate(_FIRST))
        start, size, mask = int(table.start[0]), int(table.size[0]), int(table.mask[0])
        if start < 0:
            return None
        self._check_sizes(_FIRST, table.size)
        result = np.empty(array.shape, array.dtype.newbyteorder("="))
        decoder = self._decoder(mask)
        (chunk,) = decoder.decode([source.read(start, start + size)], lambda _: self._name(task))
        decoder.place(chunk, task, None, result)
        return result

    def read(
        self, file: DataFile, plan: OuterPlan | PointPlan, *, remember: bool = False
    ) -> np.ndarray[Any, Any]:
        """Read what `plan` selects of a local file, in the calling thread and the pool.

        Parameters
        ----------
        remember
            Whether reads of the same chunks may follow.

        Raises
        ------
        FormatError, StoreError
            Naming the variable and the chunk that cannot be found, read or decoded.
        """
        source = file.source
        assert isinstance(source, LocalBytes)
        result = allocate(self._array, plan)
        known = self._chunks_of(plan) if remember and not self._decoders[0].is_plain else None
        if plan.count == 1:  # there is nothing to sort and nothing to share
            (segment,) = plan.segments(1)
            number = np.ravel_multi_index(segment.first.position, self._grid) if self._grid else 0
            ids = np.array([number], dtype=np.int64)
            table = file.parse(self._array.index.locate(ids))
            self._check_sizes(ids, table.size)
            self._place_segment(source, segment, _Chunks(ids, *table[:3]), known, plan, result)
            return plan.finish(result)
        most = chunks_at_a_time(plan.count, self._nbytes) if self._decoders[0].in_rows else 1
        for segments, first, ids in self._windows(plan, most, LOCAL_WINDOW):
            wanted, where = np.unique(ids, return_inverse=True)
            table = file.parse(self._array.index.locate(wanted))
            self._check_sizes(wanted, table.size)
            chunks = _Chunks(ids, table.start[where], table.size[where], table.mask[where])

            def place(
                numbers: Sequence[int],
                segments: list[Segment] = segments,
                first: list[int] = first,
                chunks: _Chunks = chunks,
            ) -> None:
                for n in numbers:
                    part = chunks.of(slice(first[n], first[n + 1]))
                    self._place_segment(source, segments[n], part, known, plan, result)

            count, each = len(segments), -(-len(ids) // len(segments))
            share(place, range(count), count, each * self._nbytes, chunks=each)
        return plan.finish(result)

    def _check_sizes(self, numbers: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> None:
        """Refuse chunks that are stated to be longer than codecs can make them."""
        most = self._decoders[0].most
        if sizes.size and int(sizes.max()) > most:
            worst = int(sizes.argmax())
            position = tuple(int(n) for n in np.unravel_index(numbers[worst], self._grid))
            raise FormatError(
                f"{self._array.path} chunk {position}",
                f"is stated to have {int(sizes[worst])} bytes, and can have {most} at most",
            )

    def _place_segment(
        self,
        source: LocalBytes,
        segment: Segment,
        chunks: _Chunks,
        known: Chunks | None,
        plan: OuterPlan | PointPlan,
        result: np.ndarray[Any, Any],
    ) -> None:
        there = chunks.starts >= 0
        if segment.step and not there.any():
            result[segment.target] = fill_element(self._array)
            return
        if self._decoders[0].is_plain and len(chunks.ids) == 1 and there.all():
            room = self._decoders[0].room_for(segment.first, plan.axes, result)
            if room is not None and chunks.sizes[0] == len(room) and not chunks.masks.any():
                source.read_into(int(chunks.starts[0]), room)
                return
        tasks = segment.tasks()
        left = self._place_known(tasks, chunks, known, plan, result)
        chosen = [tasks[i] for i in left.tolist()]
        chunks = chunks.of(left)
        data = source.read_many(chunks.starts.tolist(), (chunks.starts + chunks.sizes).tolist())
        row = segment if segment.step and len(left) == len(tasks) > 1 else None
        self._place(chosen, data, chunks, known, plan, result, row)

    async def read_remote(
        self, file: DataFile, plan: OuterPlan | PointPlan, *, remember: bool = False
    ) -> np.ndarray[Any, Any]:
        """Read what `plan` selects of a remote file; must run on its loop.

        Parameters
        ----------
        remember
            Whether reads of the same chunks may follow.

        Raises
        ------
        FormatError, StoreError
            Naming the variable and the chunk that cannot be found, read or decoded.
        """
        result = allocate(self._array, plan)
        known = self._chunks_of(plan) if remember else None
        most = max(1, BATCH_BYTES // max(1, self._nbytes))
        for segments, _, ids in self._windows(plan, WINDOW, WINDOW):
            tasks = [task for segment in segments for task in segment.tasks()]
            wanted, where = np.unique(ids, return_inverse=True)
            table = await file.parse_remote(self._array.index.locate(wanted))
            self._check_sizes(wanted, table.size)
            chunks = _Chunks(ids, table.start[where], table.size[where], table.mask[where])
            left = self._place_known(tasks, chunks, known, plan, result)
            chunks = chunks.of(left)

            def place(
                numbers: Sequence[int],
                data: Sequence[Any],
                tasks: list[ChunkTask] = tasks,
                left: np.ndarray[Any, Any] = left,
                chunks: _Chunks = chunks,
            ) -> None:
                # a request brings thousands of small chunks: decoded all at once, they are large
                for batch in (slice(at, at + most) for at in range(0, len(numbers), most)):
                    part = numbers[batch]
                    chosen = [tasks[n] for n in left[part].tolist()]
                    self._place(chosen, data[batch], chunks.of(part), known, plan, result)

            inline = not self._decoders[0].needs_libhdf5
            receive = in_threads(place, self._nbytes, inline=inline)
            await file.read_data(chunks.starts, chunks.starts + chunks.sizes, receive)
        return plan.finish(result)

    def _windows(
        self, plan: OuterPlan | PointPlan, most: int, window: int
    ) -> Iterator[tuple[list[Segment], list[int], np.ndarray[Any, Any]]]:
        """Segments of a selection, about `window` chunks at a time.

        Yields
        ------
        Segments up to `most` chunks long; where each begins in the list of their chunks, and where
        the last one ends; the numbers of these chunks in the chunk grid.
        """
        strides = [math.prod(self._grid[axis + 1 :]) for axis in range(len(self._grid))]
        segments: list[Segment] = []
        count = 0
        for segment in plan.segments(most):
            segments.append(segment)
            count += len(segment.pieces)
            if count >= window:
                yield self._numbered(segments, strides)
                segments, count = [], 0
        if segments:
            yield self._numbered(segments, strides)

    def _numbered(
        self, segments: list[Segment], strides: list[int]
    ) -> tuple[list[Segment], list[int], np.ndarray[Any, Any]]:
        lengths = [len(segment.pieces) for segment in segments]
        first = [0, *itertools.accumulate(lengths)]
        if not strides:
            return segments, first, np.zeros(first[-1], dtype=np.int64)
        positions = np.array([segment.first.position for segment in segments], dtype=np.int64)
        steps = np.array([strides[segment.axis] for segment in segments], dtype=np.int64)
        own = np.array([segment.first.position[segment.axis] for segment in segments])
        along = np.fromiter(
            (piece.chunk for segment in segments for piece in segment.pieces), np.int64, first[-1]
        )
        base = positions @ np.array(strides, dtype=np.int64) - own * steps
        return segments, first, np.repeat(base, lengths) + along * np.repeat(steps, lengths)

    def _place_known(
        self,
        tasks: list[ChunkTask],
        chunks: _Chunks,
        known: Chunks | None,
        plan: OuterPlan | PointPlan,
        result: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        """Place what need not be read, for it is not stored or it is remembered.

        Returns
        -------
        Which tasks are left.
        """
        left = chunks.starts >= 0
        if not left.all():
            fill = fill_element(self._array)
            for number in np.flatnonzero(~left).tolist():
                result[tasks[number].target] = fill
        if known is not None:
            for number, chunk in enumerate(known.get(chunks.ids.tolist())):
                if chunk is not None:
                    self._decoders[0].place(chunk, tasks[number], plan.axes, result)
                    left[number] = False
        return np.flatnonzero(left)

    def _place(
        self,
        tasks: list[ChunkTask],
        data: Sequence[Any],
        chunks: _Chunks,
        known: Chunks | None,
        plan: OuterPlan | PointPlan,
        result: np.ndarray[Any, Any],
        row: Segment | None = None,
    ) -> None:
        """Decode and place stored chunks; `row`: they are all of one with a step."""
        mask = int(chunks.masks[0]) if len(chunks.masks) else 0
        if (chunks.masks != mask).any():
            for i, task in enumerate(tasks):
                one = chunks.of(slice(i, i + 1))
                self._place([task], data[i : i + 1], one, known, plan, result)
            return
        decoder = self._decoder(mask)
        if mask:
            known = None  # what is remembered is as the first decoder leaves it
        if known is not None or not decoder.in_rows:
            for task, stored, number in zip(tasks, data, chunks.ids.tolist(), strict=True):
                decoded = self._decode_and_place(decoder, [task], [stored], plan, result)
                if known is not None:
                    known.put([number], decoded, self._nbytes)
        else:
            self._decode_and_place(decoder, tasks, data, plan, result, row)

    def _decode_and_place(
        self,
        decoder: Decoder,
        tasks: list[ChunkTask],
        data: Sequence[Any],
        plan: OuterPlan | PointPlan,
        result: np.ndarray[Any, Any],
        row: Segment | None = None,
    ) -> list[Any]:
        chunks = decoder.decode(data, lambda i: self._name(tasks[i]))
        if row is None:
            decoder.place_many(chunks, tasks, plan.axes, result)
        else:
            decoder.place_row(chunks, row, result)
        return chunks

    def _decoder(self, mask: int) -> Decoder:
        """What undoes the codecs of a chunk that was stored without those of `mask`."""
        if mask not in self._decoders:
            self._decoders[mask] = Decoder(self._array, mask)
        return self._decoders[mask]

    def _chunks_of(self, plan: OuterPlan | PointPlan) -> Chunks | None:
        return self._known.for_read(plan, self._nbytes, self._array.dtype)

    def _name(self, task: ChunkTask) -> str:
        return f"{self._array.path} chunk {task.position}"


class FileStridesReader:
    """Reads selections of plain elements. Made once per array and process."""

    def __init__(self, array: FileStrides) -> None:
        self._array = array
        #: bytes from the first element to the end of the last, if one read for all is best
        self._span = span_of(array)
        self._is_dense = self._span == math.prod(array.shape) * array.dtype.itemsize

    def read_whole(self, file: DataFile) -> np.ndarray[Any, Any] | None:
        """Read all elements of a local file with one read; None if that is not the best way.

        Raises
        ------
        StoreError
            Naming the file, if it cannot be read.
        """
        array = self._array
        if not self._span or array.start is None or array.start + self._span > file.source.size:
            return None
        assert isinstance(file.source, LocalBytes)
        start, stop, offset = array.start, array.start + self._span, 0
        if self._is_dense:
            data = file.source.read(start, stop)
        else:
            data, offset = read_records(file.source, start, stop, array.strides[0])
        stored = np.ndarray(array.shape, array.dtype, data, offset, array.strides)
        return stored.astype(array.dtype.newbyteorder("="))

    def read(
        self, file: DataFile, plan: OuterPlan | PointPlan, *, remember: bool = False
    ) -> np.ndarray[Any, Any]:
        """Read what `plan` selects of a local file, in the calling thread and the pool.

        Raises
        ------
        FormatError
            Naming the variable, if the file ends before its data do.
        StoreError
            Naming the file, if it cannot be read.
        """
        result = self._allocate(file, plan)
        start = self._array.start
        source: LocalBytes
        if self._array.inline is None:
            assert isinstance(file.source, LocalBytes)
            source = file.source
        else:
            source = MemoryBytes(self._array.inline, self._array.path)
        parts = self._plan(plan, LOCAL_GAP) if start is not None else []
        first = [0, *itertools.accumulate(len(runs.starts) for runs in parts)]

        def place(batch: Sequence[int]) -> None:
            low, stop = batch[0], batch[-1] + 1  # share gives them in order
            while low < stop:
                part = bisect.bisect_right(first, low) - 1
                high = min(stop, first[part + 1])
                numbers = range(low - first[part], high - first[part])
                self._place_runs(source, parts[part], numbers, result)
                low = high

        share(place, range(first[-1]), first[-1], max((runs.length for runs in parts), default=0))
        return plan.finish(result)

    async def read_remote(
        self, file: DataFile, plan: OuterPlan | PointPlan, *, remember: bool = False
    ) -> np.ndarray[Any, Any]:
        """Read what `plan` selects of a remote file; must run on its loop.

        Raises
        ------
        FormatError
            Naming the variable, if the file ends before its data do.
        StoreError
            Naming the file, if it cannot be read.
        """
        if self._array.inline is not None:
            return self.read(file, plan)
        result = self._allocate(file, plan)
        start = self._array.start
        parts = self._plan(plan) if start is not None else []
        if parts and start is not None:
            first = np.cumsum([0, *(len(runs.starts) for runs in parts)])
            starts = np.concatenate([runs.starts for runs in parts]) + start
            lengths = np.repeat([runs.length for runs in parts], np.diff(first))

            def place(numbers: Sequence[int], data: Sequence[Any]) -> None:
                chosen = np.asarray(numbers)
                which = np.searchsorted(first, chosen, side="right") - 1
                for part in np.unique(which).tolist():
                    members = np.flatnonzero(which == part)
                    parts[part].place(
                        chosen[members] - first[part], [data[i] for i in members.tolist()], result
                    )

            receive = in_threads(place, int(lengths.max()))
            await file.read_data(starts, starts + lengths, receive)
        return plan.finish(result)

    def _place_runs(
        self, source: LocalBytes, runs: Runs, numbers: range, result: np.ndarray[Any, Any]
    ) -> None:
        start = self._array.start
        assert start is not None
        starts = (runs.starts[numbers.start : numbers.stop] + start).tolist()
        if not runs.is_copy or runs.length < DIRECT_BYTES:
            data = source.read_many(starts, [begin + runs.length for begin in starts])
            runs.place(numbers, data, result)
            return
        for number, begin in zip(numbers, starts, strict=True):
            room = runs.room(number, result)
            if room is None:
                runs.place([number], [source.read(begin, begin + runs.length)], result)
                continue
            source.read_into(begin, room.view(np.uint8).data)
            if not runs.dtype.isnative:
                room.byteswap(inplace=True)

    def _allocate(self, file: DataFile, plan: OuterPlan | PointPlan) -> np.ndarray[Any, Any]:
        """Room for the result, filled if nothing is stored, once it is known that all is there."""
        array = self._array
        if array.start is None:
            result = allocate(array, plan)
            result[...] = fill_element(array)
            return result
        size = file.source.size if array.inline is None else len(array.inline)
        end = array.start + end_of(plan, array.strides, array.dtype.itemsize)
        if math.prod(plan.shape) and end > size:
            raise FormatError(
                array.path, f"its data go on to byte {end}, and there are {size}: truncated?"
            )
        return allocate(array, plan)

    def _plan(self, plan: OuterPlan | PointPlan, gap: int = 0) -> list[Runs]:
        return plan_runs(plan, self._array.strides, self._array.dtype, gap)
