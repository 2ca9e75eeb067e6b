"""Lists of indices, points and missing chunks: what is asked for, and what is decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.stores import missing_chunks
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_xarray import to_nczarr
from tests.support.builders.treereads import tree_reads
from tests.support.builders.trees import read_tree
from tests.support.marks import SLOW
from tests.support.servers.httpserver import Server

#: A grid of 6 by 8 chunks, of which every third is nothing but fill values.
SHAPE, CHUNK = (60, 80), 10
GRID = (SHAPE[0] // CHUNK, SHAPE[1] // CHUNK)
MISSING = {(i, j) for i in range(GRID[0]) for j in range(GRID[1]) if (i + j) % 3 == 0}


def points(*numbers: int) -> xr.DataArray:
    return xr.DataArray(list(numbers), dims="p")


SELECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "element": {"y": 17, "x": 33},
    "list": {"x": [3, 41, 77]},
    "two lists": {"y": [5, 17, 59], "x": [3, 4, 41]},
    "repeated": {"y": [5, 5, 17, 5], "x": [41, 3, 41]},
    "descending": {"y": [59, 17, 16, 5], "x": [77, 41, 3]},
    "from the end": {"y": [-1, 0], "x": -1},
    "points": {"y": points(5, 59, 5, 6), "x": points(3, 77, 3, 41)},
    "points and a slice": {"x": points(77, 3, 4), "y": slice(12, 31)},
    "nothing": {"x": []},
}
CASES = [
    pytest.param(selection, id=name, marks=() if name in ("repeated", "points") else SLOW)
    for name, selection in SELECTIONS.items()
]


def made() -> xr.Dataset:
    values = np.arange(np.prod(SHAPE), dtype="f4").reshape(SHAPE)
    for i, j in MISSING:
        values[i * CHUNK : (i + 1) * CHUNK, j * CHUNK : (j + 1) * CHUNK] = np.nan
    return xr.Dataset({"v": (("y", "x"), values)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same as a sparse tree and as a file."""
    folder = tmp_path_factory.mktemp("lists")
    layout: dict[str, Any] = {"chunksizes": (CHUNK, CHUNK), "zlib": True}
    to_nczarr(made(), folder / "tree", encoding={"v": layout})
    with netCDF4.Dataset(folder / "file.nc", "w") as file:
        for name, length in zip("yx", SHAPE, strict=True):
            file.createDimension(name, length)
        v = file.createVariable("v", "f4", ("y", "x"), fill_value=np.nan, **layout)
        for i, j in set(np.ndindex(GRID)) - MISSING:
            where = tuple(slice(n * CHUNK, (n + 1) * CHUNK) for n in (i, j))
            v[where] = made().v.values[where]
    assert len(list((folder / "tree" / "v").glob("[0-9]*"))) == np.prod(GRID) - len(MISSING)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    memory.clear()
    with Server(read_tree(folder, "/")) as server:
        yield server


def touched(selection: dict[str, Any]) -> Counter[tuple[int, int]]:
    """The chunks that have something of a selection, each once."""
    rows, columns = np.indices(SHAPE) // CHUNK
    ds = xr.Dataset({"row": (("y", "x"), rows), "column": (("y", "x"), columns)}).isel(selection)
    pairs = zip(ds.row.values.ravel().tolist(), ds.column.values.ravel().tolist(), strict=True)
    return Counter(set(pairs))


def chunks_of(keys: list[str]) -> Counter[tuple[int, int]]:
    """The chunks among some keys: paths that end in two numbers."""
    names = [key.rpartition("/")[2] for key in keys if "/v/" in f"/{key}"]
    numbers = [name.split(".") for name in names if name[0] != "."]
    return Counter((int(row), int(column)) for row, column in numbers)


def check(target: Any, selection: dict[str, Any], decoded: list[int]) -> None:
    with xr.open_dataset(target, engine="nczarr", cache=False) as ds:
        decoded.clear()
        found = ds.v.isel(selection).values
    np.testing.assert_array_equal(found, made().v.isel(selection).values)
    assert sum(decoded) == len(touched(selection).keys() - MISSING)


@pytest.mark.parametrize("selection", CASES)
def test_a_tree_at_hand(
    selection: dict[str, Any], folder: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is opened once, also one that is missing."""
    reads = tree_reads(monkeypatch)
    monkeypatch.delattr(DirectoryStore, "get_into")  # of chunks that are stored as they are
    check(folder / "tree", selection, decoded)
    assert chunks_of([key for key, _ in reads]) == touched(selection)


@pytest.mark.parametrize("selection", CASES)
def test_a_tree_behind_a_network(
    selection: dict[str, Any], server: Server, decoded: list[int]
) -> None:
    """Each chunk is asked for once: a missing one is a 404, and is not asked for again."""
    check(f"{server.url}/tree#mode=nczarr", selection, decoded)
    asked = [request.path for request in server.requests]
    assert chunks_of(asked) == touched(selection)


@pytest.mark.parametrize("selection", CASES)
@pytest.mark.parametrize("remote", [False, pytest.param(True, marks=SLOW)])
def test_a_file(
    selection: dict[str, Any], remote: bool, folder: Path, server: Server, decoded: list[int]
) -> None:
    target = f"{server.url}/file.nc" if remote else folder / "file.nc"
    check(target, selection, decoded)


def test_sparse_reads_of_a_network_are_under_way_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing takes no round of its own."""
    import nczarr_xarray

    monkeypatch.setattr(missing_chunks, "BELIEVED", 60)  # a busy machine reads for longer than 1 s
    with xr.open_dataset(f"{server.url}/tree#mode=nczarr", engine="nczarr") as ds:
        with nczarr_xarray.trace() as trace:
            ds.v.load()
        assert trace.summary.requests == np.prod(GRID) + 1  # whether the dataset was changed
        assert trace.summary.rounds == 1
        assert trace.summary.retries == 0
