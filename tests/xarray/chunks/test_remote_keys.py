"""Chunks of a remote store that many reads fetch at the same time."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest

from nczarr_fsspec.keystore import ALL, RemoteStore
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.sources import LEAST_IN_FLIGHT, RemoteKeys
from nczarr_xarray.chunks.threads import ON_LOOP_BYTES
from nczarr_xarray.codecs.codec import ChunkBound
from nczarr_xarray.model import ChunkedArray, ChunkTable

CHUNK = 1 << 20


class Store(RemoteStore):
    """Brings any key at once, and counts what has come and is not decoded."""

    url = "memory"
    held = most = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        self.held += 1
        self.most = max(self.most, self.held)
        return key.encode()

    async def decode(self, rows: Any, stored: list[Any]) -> None:
        """Take some turns of the event loop for it, as threads do."""
        for _ in range(3):
            await asyncio.sleep(0)
        self.held -= len(stored)

    async def list(self, prefix: str) -> frozenset[str] | None:
        return None


@pytest.mark.parametrize(("in_flight", "most"), [(10 * CHUNK, 10), (CHUNK, LEAST_IN_FLIGHT)])
def test_all_reads_together_hold_few_large_chunks(in_flight: int, most: int) -> None:
    store = Store()
    store.in_flight_bytes = in_flight

    async def read(variable: int) -> None:
        keys = np.array([f"{variable}/{chunk}" for chunk in range(3)], object)
        sizes = np.full(3, -1)
        table = ChunkTable(np.zeros(3, np.int64), sizes, np.zeros(3, np.uint32), keys)
        await RemoteKeys(store).fetch(table, ChunkBound(CHUNK, CHUNK), store.decode)

    async def read_all() -> None:
        await asyncio.gather(*map(read, range(50)))

    asyncio.run(read_all())
    assert (store.held, store.most) == (0, most)
    assert pickle.loads(pickle.dumps(store)).in_flight_bytes == in_flight


def test_only_little_is_decoded_by_the_loop() -> None:
    """And no more is fetched for it than a chunk can have."""
    asked: list[int | None] = []

    class Whole(Store):
        async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
            asked.append(most)
            return bytes(ON_LOOP_BYTES)

    def reading(size: int) -> Any:
        array = ChunkedArray(
            path="v", shape=(size,), chunk_shape=(size,), dtype=np.dtype("u1"), fill=None
        )
        return ChunkReader(array, Whole()).reading_whole()

    assert reading(ON_LOOP_BYTES + 1) is None
    assert asyncio.run(reading(ON_LOOP_BYTES)).shape == (ON_LOOP_BYTES,)
    (most,) = asked
    assert most is not None
    assert ON_LOOP_BYTES <= most < 4 * ON_LOOP_BYTES
