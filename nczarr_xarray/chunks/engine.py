"""The chunk engine: locate, fetch, decode, scatter.

An array says where its chunks are, a source brings their bytes, and pieces know what becomes of
them: chunks of a grid are decoded, runs of plain elements are copied. What is at hand is read by
a few threads, each fetching, decoding and scattering some pieces (the codec libraries let go
of the interpreter lock). What is far away is fetched by an event loop, with many requests in
flight, and what arrives is handed to the same threads. Nothing here knows a file format.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.missing_chunks import Document
from nczarr_xarray.chunks.grid import Grid, GridPieces, GridRead
from nczarr_xarray.chunks.joint import JointPlan
from nczarr_xarray.chunks.pieces import Block, Index, block_of
from nczarr_xarray.chunks.plan import Plan
from nczarr_xarray.chunks.scatter import allocate
from nczarr_xarray.chunks.sources import (
    File,
    LocalFile,
    LocalSource,
    Locating,
    RemoteFile,
    RemoteKeys,
    RemoteSource,
    source_of,
)
from nczarr_xarray.chunks.strides import RunPieces, Strided, StridedRead
from nczarr_xarray.chunks.threads import BATCH_BYTES, ON_LOOP_BYTES, in_threads, share
from nczarr_xarray.model import Array, ChunkTable


class ChunkReader:
    """Reads selections of one array. Made once per array and process.

    Parameters
    ----------
    array
        Not one that `reads_itself`.
    store
        The keys of the dataset, or its file.
    documents
        As of `RemoteKeys`.
    """

    def __init__(self, array: Array, store: KeyStore | File, *documents: Document) -> None:
        self.array = array
        self._source = source = source_of(store, *documents)
        self._scheme: Grid | Strided
        #: begins a read of it
        self._begin: Callable[..., GridRead | StridedRead]
        if array.strides is None:
            grid = self._scheme = Grid(array)
            self._begin = partial(GridRead, grid)
        else:
            assert isinstance(source, (LocalFile, RemoteFile))
            strided = self._scheme = Strided(array, source.size)
            self._begin = partial(StridedRead, strided)

    def read_block(self, key: tuple[Index, ...] | None, *, remember: bool) -> np.ndarray | None:
        """Read neighbours of what is at hand without a plan, which takes longer than little does.

        Parameters
        ----------
        key
            One index per dimension; None for all elements.
        remember
            As of `read`.

        Returns
        -------
        What `read` returns; None if this is not the best way to read that.

        Raises
        ------
        FormatError, StoreError
            As `read`.
        """
        assert isinstance(self._source, LocalSource)
        shape = self.array.shape
        block = Block((0,) * len(shape), shape, shape) if key is None else block_of(key, shape)
        if block is None or 0 in block.lengths:
            return None
        return self._scheme.read_block(self._source, block, remember=remember)

    def reading_whole(self) -> Coroutine[Any, Any, np.ndarray] | None:
        """Return what reads all of a small array on the loop of a remote store; else None."""
        if not isinstance(self._source, RemoteKeys):
            return None  # small reads of a file go together, see `begin_small`
        assert isinstance(self._scheme, Grid)
        return self._scheme.whole_remote(self._source)

    def read(self, plan: Plan, *, remember: bool = False) -> np.ndarray:
        """Read what `plan` selects of what is at hand, in the calling thread and the pool.

        Parameters
        ----------
        plan
            Of a selection from the array, in its chunk grid.
        remember
            Whether reads of the same chunks may follow.

        Returns
        -------
        What the selection means, by numpy's rules: stored elements in native byte order.

        Raises
        ------
        FormatError, StoreError
            Naming the chunk, or the variable, that cannot be found, read or decoded.
        """
        room = allocate(self.array, plan.shape)
        self._fill(plan, room, remember=remember)
        return plan.finish(room)

    @property
    def joins(self) -> bool:
        """Whether `JointPlan`s can be read: chunks are decoded, not read in part."""
        return isinstance(self._scheme, Grid) and not self._scheme.has_parts

    def read_jointly(self, plan: JointPlan) -> list[np.ndarray]:
        """Do as `read` does for several selections, each chunk once; only if it `joins`."""
        rooms = plan.room(partial(allocate, self.array))
        self._fill(plan, rooms, remember=False)
        return plan.finish(rooms)

    def _fill(self, plan: Plan | JointPlan, room: Any, *, remember: bool) -> None:
        array, source = self.array, self._source
        assert isinstance(source, LocalSource)
        read = self._begin(plan, room, remember=remember, local=True)
        for wanted, window in read.windows():
            table = source.locate(array.locate(wanted))
            parts = read.sparse and source.divides(table)
            pieces = read.pieces(wanted, window, table, parts=parts)
            take, groups = partial(pieces.take, source), range(pieces.groups)
            chunks, turns = pieces.group_chunks, pieces.turns(joins=source.joins)
            share(take, groups, pieces.group_nbytes, chunks=chunks, turns=turns)

    async def read_remote(self, plan: Plan, *, remember: bool = False) -> np.ndarray:
        """Do as `read` does, of what is far away; must run on the loop of the source."""
        room = allocate(self.array, plan.shape)
        await self._fill_remote(plan, room, remember=remember)
        return plan.finish(room)

    async def read_jointly_remote(self, plan: JointPlan) -> list[np.ndarray]:
        """Do as `read_jointly` does, of what is far away; must run on the loop of the source."""
        rooms = plan.room(partial(allocate, self.array))
        await self._fill_remote(plan, rooms, remember=False)
        return plan.finish(rooms)

    async def _fill_remote(self, plan: Plan | JointPlan, room: Any, *, remember: bool) -> None:
        source = self._source
        assert isinstance(source, RemoteSource)
        read = self._begin(plan, room, remember=remember, local=False)
        for wanted, window in read.windows():
            table = await source.locate(self.array.locate(wanted))
            parts = read.sparse and await source.divides(table)
            pieces = read.pieces(wanted, window, table, parts=parts)
            left = pieces.left()
            most = max(1, BATCH_BYTES // max(1, pieces.nbytes))

            def scatter(
                numbers: Sequence[int],
                data: Sequence[Any],
                pieces: GridPieces | RunPieces = pieces,
                left: np.ndarray = left,
                most: int = most,
            ) -> None:
                # a request brings thousands of small chunks: decoded all at once, they are large
                for part in (slice(at, at + most) for at in range(0, len(numbers), most)):
                    pieces.scatter(left[numbers[part]], data[part])

            receive = in_threads(scatter, pieces.nbytes, inline=not self._scheme.needs_libhdf5)
            table = pieces.table if len(left) == len(pieces.table.start) else pieces.table.of(left)
            await source.fetch(table, pieces.bound, receive)

    def begin_small(self, plan: Plan, *, remember: bool) -> SmallRead | None:
        """Begin to read little of a remote file; None if that is not what `plan` selects."""
        array, scheme = self.array, self._scheme
        small = math.prod(plan.shape) * array.dtype.itemsize <= ON_LOOP_BYTES
        if not (small and isinstance(self._source, RemoteFile)) or scheme.needs_libhdf5:
            return None
        room = allocate(array, plan.shape)
        read = self._begin(plan, room, remember=remember, local=False)
        windows = list(itertools.islice(read.windows(), 2))
        if len(windows) != 1:
            return None
        return SmallRead(array, plan, room, read, *windows[0])

    async def located(self, plan: Plan) -> list[ChunkTable]:
        """Find out what `read_remote` would fetch, window by window: for those that count it.

        Awaits what `Array.locate` awaits.

        Raises
        ------
        FormatError, StoreError
            As `read_remote`, but for what only fetching and decoding show.
        """
        nowhere = np.empty(0, self.array.dtype)  # which takes any element
        read = self._begin(plan, nowhere, remember=False, local=False)
        tables = []
        for wanted, window in read.windows():
            table = await self.array.locate(wanted)
            pieces = read.pieces(wanted, window, table, parts=read.sparse)
            tables.append(pieces.table.of(pieces.table.start >= 0))
        return tables


class SmallRead:
    """A small read of an array of a remote file, in steps that many such reads take together.

    Its chunks are decoded by the event loop itself.
    """

    def __init__(
        self,
        array: Array,
        plan: Plan,
        room: np.ndarray,
        read: GridRead | StridedRead,
        wanted: np.ndarray,
        window: Any,
    ) -> None:
        self.array = array
        self._plan = plan
        self._room = room
        self._read = read
        self._wanted = wanted
        self._window = window
        self._pieces: GridPieces | RunPieces | None = None
        self._left = wanted[:0]
        #: chunks, or runs, that have not been scattered; -1 if they are not to be read so
        self._missing = -1

    def locating(self) -> Locating:
        """Return what locates the chunks."""
        return self.array.locate(self._wanted)

    def located(self, table: ChunkTable) -> tuple[np.ndarray, np.ndarray] | None:
        """Take the chunks, located; return the extents to fetch, or None if those are not small."""
        pieces = self._read.pieces(self._wanted, self._window, table, parts=self._read.sparse)
        if pieces.table.source is not None:
            return None
        left = pieces.left()
        if len(left) * pieces.nbytes > ON_LOOP_BYTES:
            return None
        self._pieces, self._left, self._missing = pieces, left, len(left)
        table = pieces.table.of(left)
        return table.start, table.start + table.size

    def scatter(self, numbers: np.ndarray, data: Sequence[Any]) -> None:
        """Decode and scatter what came of some extents."""
        assert self._pieces is not None
        self._pieces.scatter(self._left[numbers], data)
        self._missing -= len(numbers)

    def values(self) -> np.ndarray | None:
        """Return what `ChunkReader.read` returns; None if something of it has not come."""
        return None if self._missing else self._plan.finish(self._room)
