"""Kinds of array and where their chunks are: what the engine asks of them, and nothing else."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nczarr_fsspec import FormatError, MappingStore
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.plan import plan_outer, plan_points
from nczarr_xarray.chunks.sources import LocalFile, RemoteFile, source_of
from nczarr_xarray.codecs.codec import ChunkBound
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.model import Array, ChunkedArray, ChunkTable

DATA = np.arange(60, dtype="<i4").reshape(10, 6)
CHUNKS = (4, 3)


@dataclass(frozen=True, slots=True)
class Mixed(Array):
    """A kind that no format has: chunks came with the metadata, or do not exist."""

    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[bytes | None, ...]
    fill: Any = None

    async def locate(self, ids: np.ndarray[Any, Any]) -> ChunkTable:
        found = [self.chunks[i] for i in ids.tolist()]
        start = np.array([-1 if data is None else 0 for data in found])
        size = np.array([0 if data is None else len(data) for data in found])
        source = np.empty(len(found), object)
        source[:] = found
        return ChunkTable(start, size, np.zeros(len(found), np.uint32), source)


def mixed(*missing: int) -> tuple[Mixed, np.ndarray[Any, Any]]:
    expected, chunks = DATA.copy(), []
    for number, (row, column) in enumerate(np.ndindex(3, 2)):
        part = (slice(4 * row, 4 * row + 4), slice(3 * column, 3 * column + 3))
        chunk = np.zeros(CHUNKS, "<i4")
        chunk[: len(DATA[part])] = DATA[part]
        chunks.append(None if number in missing else chunk.tobytes())
        if number in missing:
            expected[part] = -5
    return Mixed("/v", DATA.shape, CHUNKS, DATA.dtype, tuple(chunks), -5), expected


KEYS: list[tuple[Any, Any]] = [
    (slice(None), slice(None)),
    (slice(1, 9, 3), slice(None, None, -1)),
    (np.array([9, 0, 4]), slice(2, 4)),
    (5, 1),
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("missing", [(), (1, 4), (0, 1, 2, 3, 4, 5)])
def test_a_kind_of_array_needs_locate_and_nothing_else(key: Any, missing: tuple[int, ...]) -> None:
    array, expected = mixed(*missing)
    file = DataFile(MemoryBytes(b"", "memory"))
    assert pickle.loads(pickle.dumps(array)) == array
    found = ChunkReader(array, file).read(plan_outer(key, array.shape, CHUNKS))
    np.testing.assert_array_equal(found, expected[key])


def test_far_away_what_came_with_the_metadata_is_not_asked_for() -> None:
    array, _ = mixed()
    table = asyncio.run(array.locate(np.arange(6)))
    received: dict[int, bytes] = {}

    class Silent:
        source = MemoryBytes(b"", "memory")

        def parse(self, _: Any) -> Any: ...
        async def parse_remote(self, _: Any) -> Any: ...
        async def read_data(self, *_: Any) -> None:
            raise AssertionError("no byte of the file is wanted")

    async def receive(rows: Any, data: list[Any]) -> None:
        received.update(zip(rows.tolist(), map(bytes, data), strict=True))

    asyncio.run(RemoteFile(Silent()).fetch(table, ChunkBound(100, 48), receive))
    assert received == dict(enumerate(array.chunks))
    assert isinstance(source_of(DataFile(MemoryBytes(b"", "memory"))), LocalFile)


def test_a_damaged_chunk_is_named() -> None:
    array, _ = mixed()
    damaged = Mixed("/v", array.shape, CHUNKS, array.dtype, (*array.chunks[:5], b"short"))
    reader = ChunkReader(damaged, DataFile(MemoryBytes(b"", "memory")))
    with pytest.raises(FormatError, match=r"^/v chunk \(2, 1\): decodes to 5 bytes, not 48"):
        reader.read(plan_outer((slice(None), slice(None)), array.shape, CHUNKS))


@pytest.mark.parametrize("separator", [".", "/"])
def test_more_chunks_than_64_bits_count(separator: Any) -> None:
    """Only the chunks that are there take any room."""
    length = 1 << 62
    shape, chunks = (length, length), (1, 2)
    array = ChunkedArray("v", shape, chunks, np.dtype("<i4"), np.int32(-1), separator=separator)
    far = length - 1
    values = np.array([3, 4], "<i4")
    store = MappingStore({f"v/{far}{separator}{far // 2}": values.tobytes()})
    reader = ChunkReader(array, store)
    box = (slice(far - 2, None), slice(far - 3, None))
    expected = np.full((3, 4), -1)
    expected[2, 2:] = values
    np.testing.assert_array_equal(reader.read(plan_outer(box, shape, chunks)), expected)
    assert reader.read(plan_outer((far, far), shape, chunks)) == 4
    points = (np.array([far, 0]), np.array([far - 1, far]))
    assert reader.read(plan_points(points, shape, chunks)).tolist() == [3, -1]


@pytest.mark.parametrize("shape", [(), (7,), (7, 1), (3, 1, 5), (1, 4, 1)])
def test_keys_are_those_of_the_positions(shape: tuple[int, ...]) -> None:
    array = ChunkedArray("g/v", shape, (1,) * len(shape), np.dtype("i1"))
    positions = list(np.ndindex(*shape))
    expected = [array.chunk_name(position) for position in positions]
    table = asyncio.run(array.locate(np.arange(len(positions))))
    assert table.source is not None
    assert table.source.tolist() == expected
    for number, key in enumerate(expected):
        one = asyncio.run(array.locate(np.array([number])))
        assert one.source is not None
        assert one.source.tolist() == [key]
