"""Sparse selections read what they want of plain elements: values, requests and bytes."""

from __future__ import annotations

import asyncio
import math
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import ALL, RemoteStore
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.ranges.planner import SMALL_GAP
from nczarr_fsspec.stores import zipformat
from nczarr_xarray import to_nczarr
from nczarr_xarray.chunks import threads
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.parts import (
    PART_SHARE,
    may_be_sparse,
    parts_of,
    strides_of,
)
from nczarr_xarray.chunks.plan import plan_outer, plan_points
from nczarr_xarray.model import ChunkedArray
from tests.support.builders.keys import outer, outer_keys, point_keys, pointwise
from tests.support.builders.treereads import tree_reads
from tests.support.builders.trees import read_tree
from tests.support.examples import examples
from tests.support.marks import SLOW, slow_but
from tests.support.servers.httpserver import Server
from tests.support.servers.realservers import RangeServer, range_server

SHAPE = (300, 40, 50)
VALUES = np.arange(np.prod(SHAPE), dtype="<f8").reshape(SHAPE)
DIMS = ("t", "y", "x")

#: Selections, with the bytes from the first wanted element to the last.
SELECTIONS: list[tuple[dict[str, Any], int]] = [
    ({"t": 7, "y": 3, "x": 9}, 8),
    ({"t": [7], "y": [3], "x": [9]}, 8),
    ({"t": 7, "y": 3, "x": [4, 9, 4]}, 6 * 8),
    ({"t": 7, "y": [3, 5], "x": 9}, (2 * 50 + 1) * 8),
    ({"t": 123}, 2000 * 8),
    ({"t": [123, 121]}, 3 * 2000 * 8),
    ({"t": slice(120, None, -1), "y": 0, "x": 0}, (120 * 2000 + 1) * 8),
    ({"t": xr.DataArray([5, 6], dims="p"), "y": xr.DataArray([1, 2], dims="p"), "x": 0}, 16408),
]
CASES = [
    pytest.param(*case, id=str(number), marks=() if number in (0, 7) else SLOW)
    for number, case in enumerate(SELECTIONS)
]
TREES = slow_but(["one.nczarr", "one.zarr", "several.nczarr", "several.zarr"], "several.nczarr")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same values as trees without codecs, and as files of plain elements."""
    folder = tmp_path_factory.mktemp("plain")
    ds = xr.Dataset({"v": (DIMS, VALUES)})
    plain = {"compressor": None, "filters": None, "_FillValue": None}
    for name, chunks in {"one": SHAPE, "several": (100, 40, 50)}.items():
        for kind, mode in {"nczarr": "nczarr,file", "zarr": "zarr"}.items():
            url = f"file://{folder}/{name}.{kind}#mode={mode}"
            to_nczarr(ds, url, encoding={"v": {**plain, "chunks": chunks}}, consolidated=True)
    ds.to_netcdf(folder / "classic.nc", engine="scipy", format="NETCDF3_64BIT")
    with h5py.File(folder / "plain.h5", "w") as file:
        file.create_dataset("contiguous", data=VALUES)
        file.create_dataset("v", data=VALUES, chunks=(100, 40, 50))
        for name in ("v", "contiguous"):
            for axis, dim in enumerate(DIMS):
                file[name].dims[axis].label = dim
    return folder


@pytest.fixture(scope="module")
def content(files: Path) -> dict[str, bytes]:
    return read_tree(files, "/")


@pytest.fixture(scope="module")
def ranges(files: Path) -> Iterator[RangeServer]:
    with range_server(files) as server:
        yield server


def read(target: str, selection: dict[str, Any], variable: str = "v") -> np.ndarray:
    with xr.open_dataset(target, engine="nczarr") as ds:
        array = ds[variable]
        renamed = array.rename(dict(zip(array.dims, DIMS, strict=True)))
        return np.asarray(renamed.isel(selection).values)


def wanted(selection: dict[str, Any]) -> np.ndarray:
    return np.asarray(xr.DataArray(VALUES, dims=DIMS).isel(selection).values)


def fetched(span: int, touched: int, chunks: int) -> int:
    """The bytes that are read of so many of the chunks."""
    whole = touched * VALUES.nbytes // chunks
    return span if span <= PART_SHARE * whole else whole


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("selection", "span"), CASES)
def test_trees_at_hand(
    tree: str,
    selection: dict[str, Any],
    span: int,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = tree_reads(monkeypatch)
    expected = wanted(selection)
    np.testing.assert_array_equal(read(str(files / tree), selection), expected)
    seen = [size for key, size in reads if key.startswith("v/") and key[2].isdigit()]
    assert sum(seen) <= fetched(span, len(seen), 1 if "one" in tree else 3)
    assert len(seen) == (2 if tree.startswith("several") and "120" in str(selection["t"]) else 1)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("selection", "span"), CASES)
def test_trees_behind_a_network(
    tree: str, selection: dict[str, Any], span: int, content: dict[str, bytes]
) -> None:
    memory.clear()
    with Server(content) as server:
        found = read(f"{server.url}/{tree}#mode={tree.partition('.')[2]}", selection)
        data = [
            one for one in server.requests if f"/{tree}/v/" in one.path and "/v/." not in one.path
        ]
    np.testing.assert_array_equal(found, wanted(selection))
    assert sum(one.sent for one in data) <= fetched(span, len(data), 1 if "one" in tree else 3)
    chunks = {one.path for one in data}
    assert len(data) == len(chunks) <= 2


@pytest.mark.parametrize(
    ("name", "variable"), [("classic.nc", "v"), ("plain.h5", "contiguous"), ("plain.h5", "v")]
)
@pytest.mark.parametrize(("selection", "span"), CASES)
def test_files_behind_a_network(
    name: str, variable: str, selection: dict[str, Any], span: int, ranges: RangeServer
) -> None:
    memory.clear()
    with xr.open_dataset(f"{ranges.url}/{name}", engine="nczarr") as ds:
        array = ds[variable]
        array = array.rename(dict(zip(array.dims, DIMS, strict=True)))
        ranges.set()
        found = array.isel(selection).values
        sent = ranges.control("stats")["bytes"]
    np.testing.assert_array_equal(found, wanted(selection))
    most = min(span, found.nbytes * 5 // 4 + found.size * SMALL_GAP)
    if variable == "v":
        most = fetched(span, 2, 3)
    assert sent <= most + 4096  # headers of parts, and the index of chunks


# -- many reads, and many chunks ------------------------------------------------------------------


@pytest.fixture
def square(tmp_path: Path) -> Iterator[tuple[xr.DataArray, Callable[[], list[int]]]]:
    """A variable of one chunk of 4 MB behind a network, and what is sent of it with each answer."""
    values = np.arange(1e6, dtype="f4").reshape(1000, 1000)
    plain = {"compressor": None, "filters": None, "_FillValue": None, "chunks": (1000, 1000)}
    to_nczarr(xr.Dataset({"v": (("y", "x"), values)}), tmp_path / "d", encoding={"v": plain})
    files = read_tree(tmp_path / "d", "/d/")
    with (
        Server(files) as server,
        xr.open_dataset(f"{server.url}/d#mode=nczarr", engine="nczarr", cache=False) as ds,
    ):
        yield ds.v, lambda: [one.sent for one in server.requests if one.path == "/d/v/0.0"]


def test_columns_of_a_chunk_far_away(
    square: tuple[xr.DataArray, Callable[[], list[int]]],
) -> None:
    """From the first element of a column to its last is all of a chunk, which is remembered."""
    v, sent = square
    for column in range(50):
        assert v[:, column].values[-1] == 999_000 + column
    assert sent() == [4_000_000]


def test_parts_to_which_reads_come_back(
    square: tuple[xr.DataArray, Callable[[], list[int]]],
) -> None:
    """Once they are more than half of the chunk, all of it is read and remembered."""
    v, sent = square
    for column in range(50):
        assert v[:100, column].values[-1] == 99_000 + column
    assert sent() == [*[99 * 4000 + 4] * 5, 4_000_000]


def test_elements_of_a_chunk_that_is_remembered(
    square: tuple[xr.DataArray, Callable[[], list[int]]],
) -> None:
    v, sent = square
    assert v[3, 7].values == 3007
    assert v[:, :9].values[0, 8] == 8
    assert sent() == [4, 4_000_000]
    assert v[3, 7].values == 3007
    assert v[5, 2:4].values.tolist() == [5002, 5003]
    assert sent() == [4, 4_000_000]


#: Selections of the chunk of 4 MB whose elements are far apart, with the bytes of each read.
FAR: list[tuple[dict[str, Any], list[int]]] = [
    ({"y": [0, 999], "x": 5}, [4, 4]),
    ({"y": [999, 0, 999], "x": [7, 5]}, [12, 12]),
    ({"y": slice(None, None, -500), "x": slice(3, 5)}, [8, 8]),
    ({"y": [3, 4, 900], "x": [0, 9]}, [4040, 40]),
    ({"y": xr.DataArray([999, 0, 1], dims="p"), "x": xr.DataArray([5, 5, 7], dims="p")}, [4, 4012]),
    ({"y": xr.DataArray([999, 0], dims="p"), "x": slice(1, 3)}, [8, 8]),
]


@pytest.mark.parametrize(("selection", "sizes"), FAR)
def test_elements_that_are_far_apart(
    selection: dict[str, Any],
    sizes: list[int],
    square: tuple[xr.DataArray, Callable[[], list[int]]],
) -> None:
    """Each group of them is a request."""
    v, sent = square
    expected = xr.DataArray(np.arange(1e6, dtype="f4").reshape(1000, 1000), dims=("y", "x"))
    np.testing.assert_array_equal(v.isel(selection).values, expected.isel(selection).values)
    assert sorted(sent()) == sorted(sizes)


def test_a_server_without_ranges_sends_a_chunk_once(tmp_path: Path) -> None:
    """Each part of it would be sent with all that is before it."""
    values = np.arange(1e6, dtype="f4").reshape(1000, 1000)
    plain = {"compressor": None, "filters": None, "_FillValue": None, "chunks": (1000, 1000)}
    to_nczarr(xr.Dataset({"v": (("y", "x"), values)}), tmp_path / "d", encoding={"v": plain})
    files = read_tree(tmp_path / "d", "/d/")
    memory.clear()
    with (
        Server(files, ranges="ignored") as server,
        xr.open_dataset(f"{server.url}/d#mode=nczarr", engine="nczarr", cache=False) as ds,
    ):
        for selection in ({"y": [999, 3, 500], "x": 5}, {"y": 7, "x": 8}, {"y": [8, 900], "x": 1}):
            expected = xr.DataArray(values, dims=("y", "x")).isel(selection).values
            np.testing.assert_array_equal(ds.v.isel(selection).values, expected)
        asked = [one.range for one in server.requests if one.path == "/d/v/0.0"]
    assert asked == ["bytes=0-0", None]  # what the server does, and then all, which is remembered


def test_lists_that_turn_back_in_two_dimensions(tmp_path: Path) -> None:
    """Of each chunk one element is wanted, whose place in the result is known by two lists."""
    values = np.arange(160_000.0).reshape(400, 400)
    plain = {"compressor": None, "filters": None, "_FillValue": None, "chunks": (200, 200)}
    to_nczarr(xr.Dataset({"v": (("y", "x"), values)}), tmp_path / "d", encoding={"v": plain})
    with xr.open_dataset(tmp_path / "d", engine="nczarr") as ds:
        for key in {"y": [300, 3], "x": [300, 3]}, {"y": [300, 3, 4], "x": [300, 3, 9]}:
            expected = xr.DataArray(values, dims=("y", "x")).isel(key)
            np.testing.assert_array_equal(ds.v.isel(key), expected)


def test_elements_that_are_far_apart_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of files of this machine; of a chunk that is missing they are fill values."""
    from nczarr_fsspec.stores.directory import DirectoryStore

    values = np.arange(4e6, dtype="f4").reshape(2, 1000, 2000)
    plain = {"compressor": None, "filters": None, "_FillValue": -1, "chunks": (1, 1000, 2000)}
    to_nczarr(xr.Dataset({"v": (DIMS, values)}), tmp_path / "d", encoding={"v": plain})
    (tmp_path / "d" / "v" / "1.0.0").unlink()
    opened: list[tuple[str, list[tuple[int, int]]]] = []
    get_parts = DirectoryStore.get_parts

    def counted(self: DirectoryStore, key: str, parts: Sequence[slice], *how: Any) -> Any:
        opened.append((key, [(part.start, part.stop) for part in parts]))
        return get_parts(self, key, parts, *how)

    monkeypatch.setattr(DirectoryStore, "get_parts", counted)
    found = read(str(tmp_path / "d"), {"y": [999, 3], "x": [1, 0]})
    assert found[0].tolist() == [[1998001, 1998000], [6001, 6000]]
    assert np.isnan(found[1]).all()
    parts = [(24000, 24008), (7992000, 7992008)]
    # each file is opened once, and so little is not worth a thread
    assert opened == [("v/0.0.0", parts), ("v/1.0.0", parts)]


@pytest.mark.parametrize("far_away", [False, True])
def test_parts_of_deflated_members_are_not_read_one_by_one(
    far_away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would take all of the member."""
    values = np.arange(1e6, dtype="f4").reshape(1000, 1000)
    plain = {"compressor": None, "filters": None, "_FillValue": None, "chunks": (1000, 1000)}
    to_nczarr(xr.Dataset({"v": (("y", "x"), values)}), tmp_path / "d", encoding={"v": plain})
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / f"{method}.zip", "w", method) as archive:
            for path in (tmp_path / "d").rglob("*"):
                archive.write(path, path.relative_to(tmp_path / "d"))
    content = {f"/{path.name}": path.read_bytes() for path in tmp_path.glob("*.zip")}
    size = len(content[f"/{zipfile.ZIP_DEFLATED}.zip"])
    inflated: list[str] = []
    inflate: Callable[..., bytes] = zipformat.inflated

    def counted(name: str, *how: Any) -> bytes:
        inflated.append(name)
        return inflate(name, *how)

    monkeypatch.setattr(zipformat, "inflated", counted)
    selection = {"y": [3, 500, 999], "x": [1, 0]}
    expected = xr.DataArray(values, dims=("y", "x")).isel(selection).values
    memory.clear()
    with Server(content) as server:
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            place = server.url if far_away else str(tmp_path)
            with xr.open_dataset(f"{place}/{method}.zip", engine="nczarr") as ds:
                inflated.clear()
                before = sum(one.sent for one in server.requests)
                np.testing.assert_array_equal(ds.v.isel(selection).values, expected)
                sent = sum(one.sent for one in server.requests) - before
            assert len(inflated) == (method == zipfile.ZIP_DEFLATED)
            assert sent < (size if method == zipfile.ZIP_DEFLATED else 100_000)


def test_chunks_that_are_missing_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many, the names in their folder say which there are; each read looks anew."""
    values = np.full((40, 50), np.nan)
    values[7, 8], values[31, 2] = 1, 2
    sparse = {"chunks": (2, 2), "_FillValue": -9.0}
    to_nczarr(xr.Dataset({"v": (("y", "x"), values)}), tmp_path / "d", encoding={"v": sparse})
    for path in (tmp_path / "d" / "v").glob("[0-9]*"):
        if path.name not in ("3.4", "15.1"):
            path.unlink()
    reads = tree_reads(monkeypatch)
    with xr.open_dataset(tmp_path / "d", engine="nczarr", cache=False) as ds:
        reads.clear()
        np.testing.assert_array_equal(ds.v.values, values)
        # what describes the array is looked at before the missing chunks, and after the read
        described = ["v/.zarray", "v/.zarray"]
        assert sorted(key for key, _ in reads) == [*described, "v/15.1", "v/3.4"]
        (tmp_path / "d" / "v" / "3.4").rename(tmp_path / "d" / "v" / "0.0")
        assert ds.v.values[1, 0] == 1


class Zeros(RemoteStore):
    """Any key, of zeros; counts the requests in flight."""

    url = "zeros"

    def __init__(self) -> None:
        self.now = self.most = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return bytes(part.stop - part.start)

    async def list(self, prefix: str) -> None:
        return None


def test_elements_of_many_large_chunks_are_under_way_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what is fetched counts as in flight, and it is not worth a thread."""
    side = 4096
    array = ChunkedArray("v", (30, side, side), (1, side, side), np.dtype("<f4"), 0)
    store = Zeros()
    monkeypatch.setattr(threads, "in_pool", None)
    plan = plan_outer((slice(0, 30), slice(5, 6), slice(7, 8)), array.shape, array.chunk_shape)
    assert not asyncio.run(ChunkReader(array, store).read_remote(plan)).any()
    assert store.most == min(30, store.concurrency)


# -- the arithmetic -------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    order=st.sampled_from(["C", "F"]),
    dtype=st.sampled_from(["<i2", ">f8"]).map(np.dtype),
    points=st.booleans(),
    data=st.data(),
)
@settings(max_examples=examples(200))
def test_parts_begin_and_end_with_what_is_wanted(
    shape: tuple[int, ...], order: Any, dtype: np.dtype, points: bool, data: st.DataObject
) -> None:
    chunk_shape = tuple(data.draw(st.integers(1, size)) for size in shape)
    key = data.draw(point_keys(shape) if points else outer_keys(shape))
    values = np.arange(math.prod(shape), dtype=dtype).reshape(shape)
    plan = (plan_points if points else plan_outer)(key, shape, chunk_shape)
    result = np.zeros(plan.shape, dtype.newbyteorder("="))
    strides = strides_of(chunk_shape, order, dtype.itemsize, plan.axes)
    for task in plan.tasks():
        corner = tuple(n * size for n, size in zip(task.position, chunk_shape, strict=True))
        there = values[tuple(slice(at, at + n) for at, n in zip(corner, chunk_shape, strict=True))]
        chunk = np.zeros(chunk_shape, dtype)
        chunk[tuple(map(slice, there.shape))] = there
        (part,) = parts_of(task, strides, dtype.itemsize)
        part.scatter(chunk.tobytes(order)[part.start : part.stop], dtype, result)
        numbers = np.arange(chunk.size).reshape(chunk_shape, order=order)
        seen = numbers if plan.axes is None else numbers.transpose(plan.axes)
        taken = seen[task.source]
        low, high = int(taken.min()) * dtype.itemsize, (int(taken.max()) + 1) * dtype.itemsize
        assert (part.start, part.stop) == (low, high)
    expected = pointwise(values, key) if points else outer(values, key)
    np.testing.assert_array_equal(plan.finish(result), expected)


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    order=st.sampled_from(["C", "F"]),
    far=st.integers(1, 60),
    points=st.booleans(),
    data=st.data(),
)
@settings(max_examples=examples(200))
def test_tasks_are_split_where_elements_are_far_apart(
    shape: tuple[int, ...], order: Any, far: int, points: bool, data: st.DataObject
) -> None:
    """Nothing is lost, and no part goes over as many bytes that nobody wants."""
    key = data.draw(point_keys(shape) if points else outer_keys(shape))
    values = np.arange(math.prod(shape), dtype="i2").reshape(shape)
    plan = (plan_points if points else plan_outer)(key, shape, shape)
    result = np.zeros(plan.shape, "i2")
    strides = strides_of(shape, order, 2, plan.axes)
    stored = values.tobytes(order)
    for task in plan.tasks():
        with mock.patch("nczarr_xarray.chunks.parts.FAR_APART", far):
            parts = parts_of(task, strides, 2)
        for part in parts:
            part.scatter(stored[part.start : part.stop], values.dtype, result)
            taken = np.unique(np.frombuffer(stored, "i2").argsort()[result[part.target]])
            assert np.all(np.diff(taken) * 2 - 2 < far)
    expected = pointwise(values, key) if points else outer(values, key)
    np.testing.assert_array_equal(plan.finish(result), expected)


@pytest.mark.parametrize("count", [1, 500, 501, 1000])
def test_what_may_be_sparse(count: int) -> None:
    plan = plan_outer((slice(0, count),), (1000,), (1000,))
    assert may_be_sparse(plan, (1000,)) == (count <= 500)


def test_a_chunk_that_is_too_short(files: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(files / "one.zarr", tmp_path / "x.zarr")
    chunk = tree / "v" / "0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:8000])
    assert read(str(tree), {"t": 0, "y": 3, "x": 9}) == VALUES[0, 3, 9]
    with pytest.raises(FormatError, match=r"0\.0\.0.*truncated"):
        read(str(tree), {"t": 7, "y": 3, "x": 9})
    chunk.unlink()
    assert read(str(tree), {"t": 7, "y": 3, "x": 9}) == 0  # the fill value
