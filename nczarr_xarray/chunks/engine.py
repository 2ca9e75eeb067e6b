"""The chunk engine: plan, fetch, decode, place.

Local stores are read by a few threads, each fetching, decoding and placing
whole chunks (the codec libraries let go of the interpreter lock). Remote stores
keep many requests in flight on their event loop and hand what arrives to the
same threads. Nothing here knows a file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import LocalStore, RemoteStore
from nczarr_xarray.chunks.cache import CACHE, Chunks
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.plan import ChunkTask, Plan, Segment
from nczarr_xarray.chunks.threads import (
    INLINE_BYTES,
    chunks_at_a_time,
    gather_or_cancel,
    in_pool,
    share,
)
from nczarr_xarray.model import ChunkedArray, FileChunks, FileStrides

#: Bytes of decoded chunks in flight at most, for one remote read.
IN_FLIGHT_BYTES = 1 << 28


class ChunkReader:
    """Reads selections of one array. Holds no handles; made once per array and process."""

    __slots__ = ("__weakref__", "_array", "_decoder", "_fill", "_known")

    def __init__(self, array: ChunkedArray) -> None:
        self._array = array
        self._decoder = Decoder(array)
        self._fill = fill_element(array)
        self._known = CACHE.of(self)

    def read(
        self, store: LocalStore, plan: Plan, *, remember: bool = False
    ) -> np.ndarray[Any, Any]:
        """Read what `plan` selects, in the calling thread and the pool.

        Parameters
        ----------
        remember
            Whether reads of the same chunks may follow.

        Raises
        ------
        FormatError, StoreError
            Naming the chunk that cannot be decoded or read.
        """
        result = allocate(self._array, plan)
        nbytes = self._decoder.nbytes
        most = chunks_at_a_time(plan.count, nbytes) if self._decoder.in_rows else 1

        # what is not compressed is in memory anyway, in the system's cache
        known = self._chunks_of(plan) if remember and not self._decoder.is_plain else None

        def place(batches: Sequence[list[Segment]]) -> None:
            for batch in batches:
                self._place_batch(store, batch, known, plan, result)

        count = -(-plan.count // most)
        share(place, _batches(plan, most), count, most * nbytes, chunks=most)
        return plan.finish(result)

    def read_whole(self, store: LocalStore) -> None:
        """Leave it to `read`: a file is opened for each chunk anyway."""

    def _place_batch(
        self,
        store: LocalStore,
        batch: list[Segment],
        known: Chunks | None,
        plan: Plan,
        result: np.ndarray[Any, Any],
    ) -> None:
        decoder = self._decoder
        tasks: list[ChunkTask] = []
        keys: list[str] = []
        data: list[bytes] = []
        for segment in batch:
            own = self._keys(segment)
            if decoder.is_plain and len(own) == 1:
                room = decoder.room_for(segment.first, plan.axes, result)
                if room is not None and store.get_into(own[0], room) == len(room):
                    continue  # without a copy; what is missing or has another size is done below
            if known is not None:
                self._place_known(store, segment.tasks(), own, known, plan, result)
                continue
            if decoder.is_plain and segment.step and len(own) > 1:
                plain = self._read_row(store, own)
                if plain is not None:
                    decoder.place_row(plain, segment, result)
                    continue
            stored = [store.get(key, None, None, decoder.most) for key in own]
            if segment.step and len(own) > 1 and None not in stored:
                chunks = decoder.decode(stored, own.__getitem__)
                decoder.place_row(chunks, segment, result)
                continue
            for task, key, part in zip(segment.tasks(), own, stored, strict=True):
                if part is None:
                    result[task.target] = self._fill
                else:
                    tasks.append(task)
                    keys.append(key)
                    data.append(part)
        if data:
            chunks = decoder.decode(data, keys.__getitem__)
            decoder.place_many(chunks, tasks, plan.axes, result)

    def _read_row(self, store: LocalStore, keys: list[str]) -> np.ndarray[Any, Any] | None:
        """Plain chunks, each a row of bytes; None if one has another size."""
        chunks = np.empty((len(keys), self._decoder.nbytes), dtype=np.uint8)
        for key, chunk in zip(keys, chunks, strict=True):
            size = store.get_into(key, chunk.data)
            if size is None:
                chunk.view(self._array.dtype)[...] = self._fill
            elif size != chunk.size:
                return None
        return chunks

    def _place_known(
        self,
        store: LocalStore,
        tasks: list[ChunkTask],
        keys: list[str],
        known: Chunks,
        plan: Plan,
        result: np.ndarray[Any, Any],
    ) -> None:
        versions = [(key, store.stamp(key)) for key in keys]  # before they are read
        found = known.get(versions)
        for task, key, version, chunk in zip(tasks, keys, versions, found, strict=True):
            if chunk is None:
                remember = partial(known.put, [version])
                data = store.get(key, most=self._decoder.most)
                self._place(task, key, data, remember, plan, result)
            else:
                self._decoder.place(chunk, task, plan.axes, result)

    async def read_remote(
        self, store: RemoteStore, plan: Plan, *, remember: bool = False
    ) -> np.ndarray[Any, Any]:
        """Read what `plan` selects; must run on the store's loop.

        Parameters
        ----------
        remember
            Whether reads of the same chunks may follow.

        Raises
        ------
        FormatError, StoreError
            Naming the chunk that cannot be decoded or read.
        """
        result = allocate(self._array, plan)
        tasks = plan.tasks()
        nbytes = self._decoder.nbytes
        in_flight = min(plan.count, store.concurrency, max(4, IN_FLIGHT_BYTES // max(nbytes, 1)))
        gate = store.gate()
        inline = nbytes <= INLINE_BYTES // 8 and not self._decoder.needs_libhdf5
        known = self._chunks_of(plan) if remember else None

        async def work() -> None:
            for task in tasks:
                key = self._key(task)
                (chunk,) = (None,) if known is None else known.get([key])
                if chunk is not None:
                    self._decoder.place(chunk, task, plan.axes, result)
                    continue
                async with gate:
                    data = await store.get(key, most=self._decoder.most)
                keep = None if known is None else partial(known.put, [key])
                if inline:
                    self._place(task, key, data, keep, plan, result)
                else:
                    await in_pool(self._place, task, key, data, keep, plan, result)

        await gather_or_cancel(*(work() for _ in range(in_flight)))
        return plan.finish(result)

    def _chunks_of(self, plan: Plan) -> Chunks | None:
        return self._known.for_read(plan, self._decoder.nbytes, self._array.dtype)

    def _keys(self, segment: Segment) -> list[str]:
        position, axis = segment.first.position, segment.axis
        if len(segment.pieces) == 1:
            return [self._key(segment.first)]
        separator = self._array.separator
        before = "".join(f"{number}{separator}" for number in position[:axis])
        after = "".join(f"{separator}{number}" for number in position[axis + 1 :])
        before = f"{self._array.path}/{before}"
        return [f"{before}{piece.chunk}{after}" for piece in segment.pieces]

    def _key(self, task: ChunkTask) -> str:
        array = self._array
        return f"{array.path}/{array.separator.join(map(str, task.position)) or '0'}"

    def _place(
        self,
        task: ChunkTask,
        key: str,
        data: bytes | None,
        remember: Callable[[list[Any], int], None] | None,
        plan: Plan,
        result: np.ndarray[Any, Any],
    ) -> None:
        if data is None:
            result[task.target] = self._fill
            return
        chunks = self._decoder.decode([data], lambda _: key)
        if remember is not None:
            remember(chunks, self._decoder.nbytes)
        self._decoder.place(chunks[0], task, plan.axes, result)


def _batches(plan: Plan, most: int) -> Iterator[list[Segment]]:
    """The segments of a plan, about `most` chunks at a time."""
    batch: list[Segment] = []
    count = 0
    for segment in plan.segments(most):
        batch.append(segment)
        count += len(segment.pieces)
        if count >= most:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch


def fill_element(array: ChunkedArray | FileChunks | FileStrides) -> Any:
    """What elements that are not stored read as."""
    if array.fill is not None:
        return array.fill
    return "" if array.dtype.kind == "O" else np.zeros((), dtype=array.dtype)[()]


def allocate(array: ChunkedArray | FileChunks | FileStrides, plan: Plan) -> np.ndarray[Any, Any]:
    """Room for the result of `plan`.

    Raises
    ------
    FormatError
        If there is none.
    """
    try:
        # placing chunks swaps bytes on the way: the result is always native
        return np.empty(plan.shape, dtype=array.dtype.newbyteorder("="))
    except (MemoryError, ValueError) as error:
        raise FormatError(
            array.path, f"a selection of shape {plan.shape} does not fit ({error})"
        ) from None
