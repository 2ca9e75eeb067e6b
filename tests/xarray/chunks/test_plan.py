"""The planner against numpy: every selection of a chunked array equals that of the whole."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Shuffle

from nczarr_fsspec import FormatError, MappingStore
from nczarr_fsspec.keystore import ALL
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.plan import plan_outer, plan_points
from nczarr_xarray.chunks.scatter import Scatter
from nczarr_xarray.model import ChunkedArray
from tests.support.builders.keys import outer, outer_keys, point_keys, pointwise


class CountingStore(MappingStore):
    """Counts how often each key is read."""

    def __init__(self, mapping: dict[str, bytes]) -> None:
        super().__init__(mapping)
        self.reads: dict[str, int] = {}

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        self.reads[key] = self.reads.get(key, 0) + 1
        return super().get(key, part)


def chunked(
    data: np.ndarray[Any, Any], chunks: tuple[int, ...], **options: Any
) -> tuple[ChunkedArray, CountingStore]:
    """Cut `data` into chunks of full size, as Zarr stores them."""
    array = ChunkedArray("v", data.shape, chunks, data.dtype, **options)
    objects: dict[str, bytes] = {}
    for index in np.ndindex(*(-(-n // c) for n, c in zip(data.shape, chunks, strict=True))):
        part = tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))
        chunk = np.zeros(chunks, data.dtype)
        chunk[tuple(slice(n) for n in data[part].shape)] = data[part]
        key = array.separator.join(map(str, index)) or "0"
        stored = chunk.tobytes(order=array.order)
        if array.codecs:
            stored = bytes(Shuffle(data.dtype.itemsize).encode(stored))
        objects[f"v/{key}"] = stored
    return array, CountingStore(objects)


@st.composite
def grids(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(0 if rank > 1 else 1, 12)) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, 14)) for _ in range(rank))
    dtype = draw(st.sampled_from(["<i4", ">i4", "<f8", ">i2"]))
    return np.arange(np.prod(shape)).astype(dtype).reshape(shape), chunks


#: How netCDF-C states it: the element size is that of the variable.
SHUFFLED: Any = st.sampled_from([(), ({"id": "shuffle", "elementsize": 0},)])
ORDERS: Any = st.sampled_from("CF")


@given(grids(), SHUFFLED, ORDERS, st.data())
def test_outer_equals_numpy(grid: Any, codecs: Any, order: Any, draws: Any) -> None:
    data, chunks = grid
    key = draws.draw(outer_keys(data.shape))
    array, store = chunked(data, chunks, codecs=codecs, order=order)
    plan = plan_outer(key, data.shape, chunks)
    result = ChunkReader(array, store).read(plan)
    expected = outer(data, key)
    assert result.shape == expected.shape
    assert np.array_equal(result, expected)
    assert sum(store.reads.values()) == plan.count


@given(grids(), SHUFFLED, ORDERS, st.data())
def test_points_equal_numpy(grid: Any, codecs: Any, order: Any, draws: Any) -> None:
    data, chunks = grid
    if not any(data.shape):
        return
    key = draws.draw(point_keys(data.shape))
    array, store = chunked(data, chunks, codecs=codecs, order=order)
    plan = plan_points(key, data.shape, chunks)
    result = ChunkReader(array, store).read(plan)
    expected = pointwise(data, key)
    assert result.shape == expected.shape
    assert np.array_equal(result, expected)
    # each chunk is read once, however many points fall into it
    assert all(count == 1 for count in store.reads.values())


def test_points_broadcast() -> None:
    data = np.arange(60).reshape(5, 12)
    array, store = chunked(data, (2, 5))
    key = (np.array([[0], [4]]), np.array([[1, 7, 11]]))
    result = ChunkReader(array, store).read(plan_points(key, data.shape, (2, 5)))
    assert np.array_equal(result, data[key])


@pytest.mark.parametrize("key", [(5,), (-6,), (np.array([0, 5]),)])
def test_out_of_bounds(key: Any) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        plan_outer(key, (5,), (2,))
    if isinstance(key[0], np.ndarray):
        with pytest.raises(IndexError, match="out of bounds"):
            plan_points(key, (5,), (2,))


def test_one_element_of_a_huge_array_costs_one_chunk() -> None:
    shape, chunks = (10**9, 10**9), (10, 10)
    plan = plan_outer((10**8, slice(3, 4)), shape, chunks)
    (task,) = plan.tasks()
    assert task.position == (10**7, 0)


@given(
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.sampled_from("CF"),
    st.sampled_from([">i4", "<f8", "|S3", "|b1", "<c8", "<M8[s]"]),
    st.sampled_from(["/", "."]),
)
def test_orders_types_and_separators(
    shape: tuple[int, int], order: Any, dtype: str, separator: str
) -> None:
    data = np.arange(shape[0] * shape[1]).reshape(shape).astype(dtype)
    array, store = chunked(data, (3, 4), order=order, separator=separator)
    result = ChunkReader(array, store).read(plan_outer((slice(None),) * 2, shape, (3, 4)))
    assert np.array_equal(result, data)
    assert result.dtype == data.dtype.newbyteorder("=")


@pytest.mark.parametrize("fill", [None, 7])
def test_missing_chunks_are_filled(fill: int | None) -> None:
    data = np.arange(10, dtype="i2")
    array, store = chunked(data, (4,), fill=None if fill is None else np.int16(fill))
    del store.mapping["v/1"]  # type: ignore[attr-defined]
    result = ChunkReader(array, store).read(plan_outer((slice(None),), (10,), (4,)))
    assert result.tolist() == [0, 1, 2, 3, *[fill or 0] * 4, 8, 9]


def test_large_reads_use_threads_and_report_the_first_error() -> None:
    data = np.arange(400 * 1000, dtype="f8").reshape(400, 1000)
    array, store = chunked(data, (10, 100))
    plan = plan_outer((slice(None),) * 2, data.shape, (10, 100))
    assert np.array_equal(ChunkReader(array, store).read(plan), data)
    store.mapping["v/20.5"] = b"short"  # type: ignore[index]
    with pytest.raises(ValueError, match=r"v/20\.5: decodes to 5 bytes, not 8000 \(truncated\?\)"):
        ChunkReader(array, store).read(plan)


def test_two_lists_of_indices_where_chunks_are_missing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        v = file.create_dataset("v", (6, 6, 40), "i4", chunks=(3, 3, 4), fillvalue=7)
        v[:3, :3] = 1
    with xr.open_dataset(tmp_path / "x.h5", engine="nczarr") as ds:
        for rows in ([5, 1], [1, 5], [5, 4]):
            expected = np.full((6, 6, 40), 7)
            expected[:3, :3] = 1
            found = ds["v"][rows, rows].values
            assert np.array_equal(found, expected[np.ix_(rows, rows)])


@pytest.mark.parametrize("codecs", [(), ({"id": "shuffle", "elementsize": 0},)])
def test_as_many_elements_as_a_chunk_has_need_not_be_the_chunk(codecs: Any) -> None:
    data = np.arange(8, dtype="i4")
    array, store = chunked(data, (8,), codecs=codecs)
    for index in ([7, 6, 5, 4, 3, 2, 1, 0], [1, 1, 1, 1, 2, 2, 2, 2]):
        plan = plan_outer((np.array(index),), (8,), (8,))
        assert ChunkReader(array, store).read(plan).tolist() == index


@st.composite
def segmented(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], tuple[int, ...], int]:
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(1, 20)) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, 7)) for _ in range(rank))
    key = []
    for length in shape:
        index = st.slices(length) | st.integers(0, length - 1)
        array = st.lists(st.integers(0, length - 1), min_size=1, max_size=9).map(np.array)
        key.append(draw(index | array))
    return tuple(key), shape, chunks, draw(st.integers(1, 9))


@given(segmented())
def test_segments_are_the_tasks(case: tuple[Any, tuple[int, ...], tuple[int, ...], int]) -> None:
    key, shape, chunks, most = case
    plan = plan_outer(key, shape, chunks)
    data = np.arange(math.prod(shape)).reshape(shape)
    result = np.full(plan.shape, -1)
    count = 0
    for segment in plan.segments(most):
        tasks = segment.tasks()
        assert 1 <= len(tasks) == len(segment.pieces) <= most
        for low, high in itertools.combinations(range(min(len(tasks), 6) + 1), 2):
            some = segment.part(low, high)
            # compared as text, for there are arrays in them
            assert repr(some.tasks()) == repr(tasks[low:high])
            assert some.step in (0, segment.step)
            assert some.step == segment.step or high == low + 1
            assert segment.dense >= some.dense
        count += len(tasks)
        for task in tasks:
            corner = tuple(p * c for p, c in zip(task.position, chunks, strict=True))
            box = tuple(slice(a, a + c) for a, c in zip(corner, chunks, strict=True))
            part = np.full(chunks, -2)
            there = data[box]
            part[tuple(map(slice, there.shape))] = there
            result[task.target] = part[task.source]
        if segment.step:
            # neighbours, and one slice of the result
            axis = segment.axis
            numbers = np.concatenate(
                [
                    t.position[axis] * chunks[axis] + np.arange(chunks[axis])[t.source[axis]]
                    for t in tasks
                ]
            )
            assert set(np.diff(numbers)) <= {segment.step}
            assert result[segment.target].shape[axis] == len(numbers)
            assert segment.dense == (len(numbers) == len(tasks) * chunks[axis])
        else:
            assert not segment.dense
    assert count == plan.count
    assert np.array_equal(plan.finish(result), outer(data, key))


@given(segmented(), SHUFFLED, st.sampled_from(["<i4", ">i4", "<f8"]), st.data())
def test_chunks_in_rows_are_chunks_one_by_one(
    case: tuple[Any, tuple[int, ...], tuple[int, ...], int], codecs: Any, dtype: str, draws: Any
) -> None:
    key, shape, chunks, most = case
    data = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    array, store = chunked(data, chunks, codecs=codecs)
    plan = plan_outer(key, shape, chunks)
    decoder = Decoder(array, 0)
    scatter = Scatter(decoder)
    result = np.full(plan.shape, -1, data.dtype.newbyteorder("="))
    for segment in plan.segments(most):
        tasks = segment.tasks()
        stored = [store.get(f"v/{'.'.join(map(str, t.position)) or '0'}") for t in tasks]
        decoded = decoder.decode(stored, str)
        if segment.step and draws.draw(st.booleans()):
            cut = draws.draw(st.integers(0, len(tasks)))
            together = []
            for low, high in ((0, cut), (cut, len(tasks))):
                part = segment.part(low, high) if high > low else segment
                if part.step and high > low:
                    together.append((part, low, high))
                else:
                    scatter.many(decoded[low:high], tasks[low:high], None, result)
            if together:
                assert scatter.rows(decoded, together, result)  # (as they are small)
            continue
        left = draws.draw(st.lists(st.booleans(), min_size=len(tasks), max_size=len(tasks)))
        for some in (True, False):  # as if others were missing
            chosen = [i for i, one in enumerate(left) if one is some]
            scatter.many([decoded[i] for i in chosen], [tasks[i] for i in chosen], None, result)
    assert np.array_equal(plan.finish(result), outer(data, key))


@given(segmented(), SHUFFLED, st.sampled_from(["<i4", ">i4", "<f8"]))
def test_chunks_that_are_not_small_in_rows(
    case: tuple[Any, tuple[int, ...], tuple[int, ...], int], codecs: Any, dtype: str
) -> None:
    """Rows of them are scattered together where most of them is wanted, else one by one."""
    key, shape, chunks, _ = case
    data = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    array, store = chunked(data, chunks, codecs=codecs)
    plan = plan_outer(key, shape, chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nczarr_xarray.chunks.scatter.SMALL", 0)
        assert np.array_equal(ChunkReader(array, store).read(plan), outer(data, key))


@pytest.mark.parametrize("key", [slice(None), slice(3, None, 7), slice(100, 5, -3)])
def test_rows_of_plain_chunks_with_gaps(key: slice) -> None:
    data = np.arange(3 * 1000, dtype="i4").reshape(3, 1000)
    array, store = chunked(data, (2, 10), fill=np.int32(-7))
    for number in (0, 3, 4, 99):
        del store.mapping[f"v/1.{number}"]  # type: ignore[attr-defined]
        data[2:, number * 10 : number * 10 + 10] = -7
    plan = plan_outer((slice(None), key), data.shape, (2, 10))
    assert np.array_equal(ChunkReader(array, store).read(plan), data[:, key])
    assert max(store.reads.values()) == 1
    store.mapping["v/0.5"] = bytes(81)  # type: ignore[index]
    with pytest.raises(FormatError, match=r"v/0\.5: decodes to 81 bytes, not 80"):
        ChunkReader(array, store).read(plan)
