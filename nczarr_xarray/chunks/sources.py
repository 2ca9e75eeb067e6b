"""What brings the bytes of chunks: the keys of a store, or one file, at hand or far away.

An array locates its chunks (`ChunkTable`); a source fetches them. Of a `LocalSource`, a caller has
them when the call returns; of a `RemoteSource`, many are on their way at a time, and its coroutines
run on its loop. How many bytes and requests may be in flight is the business of the store or file
below.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from nczarr_fsspec.concurrency import at_once, gather_or_cancel
from nczarr_fsspec.keystore import ALL, KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.local_files import FileRange, read_into
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes
from nczarr_fsspec.stores.missing_chunks import Document, Presence
from nczarr_xarray.chunks.threads import ON_LOOP_BYTES, share
from nczarr_xarray.codecs.codec import ChunkBound
from nczarr_xarray.model import ChunkTable

#: Chunks of a remote store that may be in flight at a time, however large they are.
LEAST_IN_FLIGHT = 4
#: Bytes of a chunk that threads read together, and of the parts that they take.
_LARGE, _PART = 1 << 24, 1 << 21
#: From so many chunks on, a store at hand lists what there is, since most of them may be missing:
#: to open each in vain takes longer.
_MANY = 64

#: Seconds for which what was watched while chunks were fetched is believed.
_SOON = 1.0

T = TypeVar("T")
Locating: TypeAlias = Coroutine[Any, Any, ChunkTable]
#: Bytes of a chunk as they are stored; None if there is no such key.
EncodedChunk: TypeAlias = "bytes | memoryview | None"
#: Takes rows of a table and what is stored there, in no particular order.
Receive: TypeAlias = Callable[[Any, list[Any]], Awaitable[None]]


class File(Protocol):
    """What runs parsers over one file and reads its bytes."""

    @property
    def source(self) -> ByteSource: ...
    def parse(self, parsing: Any) -> Any: ...
    async def parse_remote(self, parsing: Any) -> Any: ...
    async def read_data(self, starts: Any, stops: Any, receive: Any) -> None: ...


class LocalKeys:
    """The keys of a store on this machine.

    Parameters
    ----------
    documents
        As of `RemoteKeys`.

    Attributes
    ----------
    joins
        Whether chunks that lie beside each other are read by one call.
    """

    joins = False

    def __init__(self, store: LocalStore, *documents: Document) -> None:
        self._store = store
        self._presence = Presence(store, *documents)

    def locate(self, locating: Locating) -> ChunkTable:
        """Run `Array.locate`."""
        table = at_once(locating)
        if len(table.start) >= _MANY:
            present = self._store.present(_keys(table))
            if present is not None:
                if not all(present):
                    at_once(self._presence.check())
                return table._replace(start=np.where(present, table.start, -1))
        return table

    def fetch(self, table: ChunkTable, bound: ChunkBound) -> Sequence[EncodedChunk]:
        """Fetch the chunks of a table, all of which exist as far as it says."""
        get, wanted, most = self._store.get, _keys_and_parts(table), bound.stored
        found: list[EncodedChunk]
        if len(wanted) < 2 or wanted[0][1] == ALL:
            found = [get(key, part, most) for key, part in wanted]
        else:
            found, rows = [None] * len(wanted), dict[str, list[int]]()
            for row, (key, _) in enumerate(wanted):
                rows.setdefault(key, []).append(row)
            for key, own in rows.items():
                parts = self._store.get_parts(key, [wanted[row][1] for row in own], most)
                for row, data in zip(own, parts, strict=True):
                    found[row] = data
        if any(data is None for data in found):
            at_once(self._presence.check())
        return found

    def fetch_into(self, table: ChunkTable, row: int, room: memoryview) -> bool:
        """Put one chunk of a table where it goes.

        Parameters
        ----------
        room
            Writable bytes, as many as the chunk should have.

        Returns
        -------
        False if the chunk is missing, or has another number of bytes.
        """
        assert table.source is not None
        return self._store.get_into(table.source[row], room) == len(room)

    def ranges(self, table: ChunkTable, bound: ChunkBound) -> Iterator[FileRange | None] | None:
        """Return where files have what `fetch` would fetch; None if no file has it.

        One range for each chunk, None for a missing one: they are copied from file to file.
        """
        found = self._store.ranges(_keys_and_parts(table), bound.stored)
        return None if found is None else self._checked(found)

    def _checked(self, found: Iterator[FileRange | None]) -> Iterator[FileRange | None]:
        lacking = False
        for one in found:
            lacking = lacking or one is None
            yield one
        if lacking:
            at_once(self._presence.check())

    def divides(self, table: ChunkTable) -> bool:
        """Tell whether a part of a chunk of the table costs less than all of it."""
        return self._store.divides(_keys(table))

    def versions(self, ids: Sequence[int], table: ChunkTable) -> Sequence[Hashable]:
        """Return what decoded chunks are remembered as.

        That is their numbers. Where it costs little, it includes what changes when a chunk is
        written anew.
        """
        stamp = self._store.stamp
        return [(number, stamp(key)) for number, key in zip(ids, _keys(table), strict=True)]


class RemoteKeys:
    """The keys of a store behind a network.

    Parameters
    ----------
    documents
        The array's metadata. If they are needed and gone, chunks are not missing, but removed.
    """

    def __init__(self, store: RemoteStore, *documents: Document) -> None:
        self._store = store
        self._presence = Presence(store, *documents)
        self._watch = documents[0].watch if documents else None

    async def locate(self, locating: Locating) -> ChunkTable:
        """Run `Array.locate`."""
        return await locating

    async def fetch(self, table: ChunkTable, bound: ChunkBound, receive: Receive) -> None:
        """Fetch the chunks of a table, and hand each over as soon as it is there.

        Parameters
        ----------
        receive
            Awaited with some rows of the table and what is stored there.
        """
        store, gate, keys = self._store, self._store.gate(), _keys_and_parts(table)
        numbers, coming, lacking = iter(range(len(keys))), len(keys), False
        most, nbytes = bound
        # small chunks are handed over several together: each by itself costs more than it has
        several = max(1, ON_LOOP_BYTES // max(1, nbytes))
        arrived: list[tuple[int, EncodedChunk]] = []
        # what waits to be decoded is held, too, for as many variables as are read together
        room = store.room() if several == 1 else None
        cost = min(nbytes, store.in_flight_bytes // LEAST_IN_FLIGHT)

        async def work() -> None:
            for number in numbers:
                if room is None:
                    await bring(number)
                    continue
                await room.take(cost)
                try:
                    await bring(number)
                finally:
                    room.give(cost)

        async def bring(number: int) -> None:
            nonlocal coming, lacking
            async with gate:
                data = await store.get(*keys[number], most)
            arrived.append((number, data))
            lacking = lacking or data is None
            coming -= 1
            if len(arrived) >= several or not coming:
                arrived.sort(key=itemgetter(0))
                rows, stored = [row for row, _ in arrived], [one for _, one in arrived]
                arrived.clear()
                await receive(rows, stored)

        most_chunks = max(LEAST_IN_FLIGHT, store.in_flight_bytes // max(nbytes, 1))
        in_flight = min(len(keys), store.concurrency, most_chunks)
        if not keys:
            return
        await self._watched(*(work() for _ in range(in_flight)))
        await self._presence.check(missing=lacking)

    async def fetch_one(self, table: ChunkTable, bound: ChunkBound) -> EncodedChunk:
        """Fetch the only chunk of a table, a small one; None if there is no such key."""
        ((key, part),) = _keys_and_parts(table)

        async def get() -> EncodedChunk:
            async with self._store.gate():
                return await self._store.get(key, part, bound.stored)

        (data,) = await self._watched(get())
        await self._presence.check(missing=data is None)
        return data

    async def _watched(self, *fetching: Coroutine[Any, Any, T]) -> list[T]:
        """Await what fetches chunks and see meanwhile that they are those of the array.

        That is done at the same time, so that it costs no time, and again if it takes long.
        """
        watch, store, begin = self._watch, self._store, time.monotonic()
        if watch is None:
            return await gather_or_cancel(*fetching)
        *found, _ = await gather_or_cancel(*fetching, watch(store))
        if time.monotonic() - begin > _SOON:
            await watch(store)
        return found

    async def divides(self, table: ChunkTable) -> bool:
        """Tell whether a part of a chunk of the table costs less than all of it."""
        return await self._store.divides(_keys(table))


class LocalFile:
    """One file on this machine; methods as of `LocalKeys`.

    Attributes
    ----------
    bytes
        Those of the file.
    size
        Their number.
    """

    joins = True

    def __init__(self, file: File, source: LocalBytes) -> None:
        self._file = file
        self.bytes = source
        self.size = source.size

    def locate(self, locating: Locating) -> ChunkTable:
        table: ChunkTable = self._file.parse(locating)
        return table

    def fetch(self, table: ChunkTable, bound: ChunkBound) -> Sequence[EncodedChunk]:
        if table.source is not None:
            return _inline(table)
        return self.bytes.read_many(*_bounds(table))

    def fetch_into(self, table: ChunkTable, row: int, room: memoryview) -> bool:
        if table.size[row] != len(room) or table.source is not None:
            return False
        self.bytes.read_into(int(table.start[row]), room)
        return True

    def ranges(self, table: ChunkTable, bound: ChunkBound) -> Iterator[FileRange | None] | None:
        if table.source is not None:
            return None
        return self.bytes.ranges(*_bounds(table))

    def divides(self, table: ChunkTable) -> bool:
        return True

    def versions(self, ids: Sequence[int], table: ChunkTable) -> Sequence[Hashable]:
        return ids


class RemoteFile:
    """One file behind a network, of `size` bytes; methods as of `RemoteKeys`."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.source.size

    async def locate(self, locating: Locating) -> ChunkTable:
        table: ChunkTable = await self._file.parse_remote(locating)
        return table

    async def fetch(self, table: ChunkTable, bound: ChunkBound, receive: Receive) -> None:
        if table.source is None:
            await self._file.read_data(table.start, table.start + table.size, receive)
        else:
            data = _inline(table)
            await receive(np.arange(len(data)), data)

    async def divides(self, table: ChunkTable) -> bool:
        return True


LocalSource: TypeAlias = LocalKeys | LocalFile
RemoteSource: TypeAlias = RemoteKeys | RemoteFile


def fetch_together(
    source: LocalSource, table: ChunkTable, room: memoryview, bound: ChunkBound
) -> bool:
    """Do as `LocalKeys.fetch_into` does for the only chunk of a table, with several threads.

    False if the chunk is not large, or cannot be read so: `fetch_into` finds out why.
    """
    found = source.ranges(table, bound) if len(room) >= _LARGE else None
    there = None if found is None else next(found)
    if there is None or there.size != len(room):
        return False
    descriptor, begin, read = there.descriptor, there.start, [0]

    def take(starts: list[int]) -> None:
        parts = ((begin + start, room[start : start + _PART]) for start in starts)
        read.append(sum(read_into(descriptor, *part) for part in parts))

    starts = range(0, len(room), _PART)
    try:
        share(take, starts, _PART)
    except OSError:
        return False
    return sum(read) == len(room)


def source_of(store: KeyStore | File, *documents: Document) -> LocalSource | RemoteSource:
    """Return what brings chunks out of an open store, or file.

    Parameters
    ----------
    documents
        As of `RemoteKeys`.
    """
    if isinstance(store, LocalStore):
        return LocalKeys(store, *documents)
    if isinstance(store, RemoteStore):
        return RemoteKeys(store, *documents)
    assert not isinstance(store, KeyStore)
    if isinstance(store.source, LocalBytes):
        return LocalFile(store, store.source)
    return RemoteFile(store)


def _keys(table: ChunkTable) -> list[str]:
    assert table.source is not None
    keys: list[str] = table.source.tolist()
    return keys


def _keys_and_parts(table: ChunkTable) -> list[tuple[str, slice]]:
    keys = _keys(table)
    if table.size.max(initial=-1) < 0:
        return [(key, ALL) for key in keys]
    rows = zip(keys, *_bounds(table), strict=True)
    return [(key, slice(start, stop)) for key, start, stop in rows]


def _bounds(table: ChunkTable) -> tuple[list[int], list[int]]:
    """Return where each chunk begins in its source, and where it ends."""
    return table.start.tolist(), (table.start + table.size).tolist()


def _inline(table: ChunkTable) -> list[EncodedChunk]:
    """Return chunks that came with the metadata."""
    assert table.source is not None
    rows = zip(table.source.tolist(), *_bounds(table), strict=True)
    return [memoryview(data)[start:stop] for data, start, stop in rows]
