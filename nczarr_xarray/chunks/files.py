"""The chunk engine for one file: find the byte ranges of a selection, fetch, decode, place.

Chunks of a file have an index to be asked first, and many of them arrive with
one request; everything else is as for stores with a key for each chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.ranges.source import LocalBytes
from nczarr_xarray.chunks.codecs import Decoder, nth_name
from nczarr_xarray.chunks.engine import (
    allocate,
    chunks_at_a_time,
    fill_element,
    in_threads,
    share,
)
from nczarr_xarray.chunks.plan import ChunkTask, OuterPlan, PointPlan, Segment
from nczarr_xarray.chunks.strides import Runs, end_of, plan_runs
from nczarr_xarray.files import DataFile
from nczarr_xarray.model import ChunkTable, FileChunks, FileStrides

#: Chunks that are looked up, fetched and decoded together: bounds what a huge read remembers.
WINDOW = 1 << 16


class _Window(NamedTuple):
    """Segments, and where their chunks are in the file.

    Attributes
    ----------
    first
        Of each segment the number of its first chunk among all of them, and their count.
    starts, sizes
        Of each chunk in bytes; -1 starts what is not stored.
    """

    segments: list[Segment]
    first: list[int]
    starts: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]

    def part(self, number: int) -> slice:
        """The chunks of one segment."""
        return slice(self.first[number], self.first[number + 1])


class FileChunkReader:
    """Reads selections of one array of chunks. Made once per array and process."""

    def __init__(self, array: FileChunks) -> None:
        self._array = array
        self._grid = tuple(-(-n // c) for n, c in zip(array.shape, array.chunk_shape, strict=True))
        #: by filter mask: which codecs some chunks were stored without
        self._decoders: dict[int, Decoder] = {0: Decoder(array)}
        self._nbytes = self._decoders[0].nbytes

    def read(self, file: DataFile, plan: OuterPlan | PointPlan) -> np.ndarray[Any, Any]:
        """Read what `plan` selects of a local file, in the calling thread and the pool.

        Raises
        ------
        FormatError, StoreError
            Naming the variable and the chunk that cannot be found, read or decoded.
        """
        source = file.source
        assert isinstance(source, LocalBytes)
        result = allocate(self._array, plan)
        most = chunks_at_a_time(plan.count, self._nbytes) if self._decoders[0].in_rows else 1
        for segments, first, ids in self._windows(plan, most):
            wanted, where = np.unique(ids, return_inverse=True)
            table = file.parse(self._array.index.locate(wanted))
            window = _Window(segments, first, table.start[where], table.size[where])
            place = partial(self._place_segments, source, window, table.mask[where], plan, result)
            share(place, range(len(segments)), len(segments), most * self._nbytes)
        return plan.finish(result)

    def _place_segments(
        self,
        source: LocalBytes,
        window: _Window,
        masks: np.ndarray[Any, Any],
        plan: OuterPlan | PointPlan,
        result: np.ndarray[Any, Any],
        numbers: Sequence[int],
    ) -> None:
        """Read and place the segments `numbers` of `window`."""
        fill = fill_element(self._array)
        for number in numbers:
            segment, part = window.segments[number], window.part(number)
            there = window.starts[part] >= 0
            if segment.dense and not there.any():
                result[segment.target] = fill
                continue
            tasks = segment.tasks()
            for missing in np.flatnonzero(~there).tolist():
                result[tasks[missing].target] = fill
            starts = window.starts[part][there]
            stops = starts + window.sizes[part][there]
            data = source.read_many(starts.tolist(), stops.tolist())
            if segment.dense and len(data) == len(tasks) > 1 and not masks[part].any():
                names = partial(nth_name, self._name, tasks)
                self._decoders[0].place_row(data, names, segment.first, segment.axis, result)
            else:
                chosen = [tasks[i] for i in np.flatnonzero(there).tolist()]
                self._place(chosen, data, masks[part][there], plan, result)

    async def read_remote(
        self, file: DataFile, plan: OuterPlan | PointPlan
    ) -> np.ndarray[Any, Any]:
        """Read what `plan` selects of a remote file; must run on its loop.

        Raises
        ------
        FormatError, StoreError
            Naming the variable and the chunk that cannot be found, read or decoded.
        """
        result = allocate(self._array, plan)
        for segments, _, ids in self._windows(plan, WINDOW):
            tasks = [task for segment in segments for task in segment.tasks()]
            wanted, where = np.unique(ids, return_inverse=True)
            table = await file.parse_remote(self._array.index.locate(wanted))
            there = np.asarray(self._missing(tasks, table, where, result), dtype=np.intp)
            at = where[there]
            starts, masks = table.start[at], table.mask[at]

            def place(numbers: Sequence[int], data: Sequence[Any], tasks: list[ChunkTask] = tasks,
                      there: Any = there, masks: Any = masks) -> None:  # fmt: skip
                wanted = [tasks[n] for n in there[numbers].tolist()]
                self._place(wanted, data, masks[numbers], plan, result)

            inline = not self._decoders[0].needs_libhdf5
            receive = in_threads(place, self._nbytes, inline=inline)
            await file.read_data(starts, starts + table.size[at], receive)
        return plan.finish(result)

    def _windows(
        self, plan: OuterPlan | PointPlan, most: int
    ) -> Iterator[tuple[list[Segment], list[int], np.ndarray[Any, Any]]]:
        """Segments of a selection, so many at a time.

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
            if count >= WINDOW:
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

    def _missing(
        self,
        tasks: list[ChunkTask],
        table: ChunkTable,
        where: np.ndarray[Any, Any],
        result: np.ndarray[Any, Any],
    ) -> list[int]:
        """Fill what no chunk is stored for; which tasks have one."""
        there = table.start[where] >= 0
        if not there.all():
            fill = fill_element(self._array)
            for number in np.flatnonzero(~there).tolist():
                result[tasks[number].target] = fill
        numbers: list[int] = np.flatnonzero(there).tolist()
        return numbers

    def _place(
        self,
        tasks: list[ChunkTask],
        data: Sequence[Any],
        masks: np.ndarray[Any, Any],
        plan: OuterPlan | PointPlan,
        result: np.ndarray[Any, Any],
    ) -> None:
        if not masks.any():
            self._decoders[0].place_many(data, self._name, tasks, plan.axes, result)
            return
        for task, stored, mask in zip(tasks, data, masks.tolist(), strict=True):
            decoder = self._decoders.get(mask)
            if decoder is None:
                decoder = self._decoders[mask] = Decoder(self._array, mask)
            decoder.place(stored, self._name(task), task, plan.axes, result)

    def _name(self, task: ChunkTask) -> str:
        return f"{self._array.path} chunk {task.position}"


class FileStridesReader:
    """Reads selections of plain elements. Made once per array and process."""

    def __init__(self, array: FileStrides) -> None:
        self._array = array

    def read(self, file: DataFile, plan: OuterPlan | PointPlan) -> np.ndarray[Any, Any]:
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
        read: Callable[[int, int], bytes | memoryview] = self._read_inline
        if self._array.inline is None:
            assert isinstance(file.source, LocalBytes)
            read = file.source.read
        for runs in self._plan(plan) if start is not None else ():
            starts = (runs.starts + start).tolist()
            length = runs.length

            def place(batch: Sequence[int], runs: Runs = runs, starts: Any = starts,
                      length: int = length) -> None:  # fmt: skip
                data = [read(starts[n], starts[n] + length) for n in batch]
                runs.place(batch, data, result)

            share(place, range(len(starts)), len(starts), length)
        return plan.finish(result)

    async def read_remote(
        self, file: DataFile, plan: OuterPlan | PointPlan
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

    def _read_inline(self, start: int, stop: int) -> memoryview:
        assert self._array.inline is not None
        return memoryview(self._array.inline)[start:stop]

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

    def _plan(self, plan: OuterPlan | PointPlan) -> list[Runs]:
        return plan_runs(plan, self._array.strides, self._array.dtype)
