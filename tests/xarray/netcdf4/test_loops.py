"""A loop over the steps of a variable that is far away has few reads, and no others have more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

import nczarr_xarray.netcdf4 as ours
from nczarr_xarray.netcdf4 import loops
from nczarr_xarray.netcdf4.loops import LoopReader
from tests.support.servers.realservers import range_server

VALUES = np.arange(300 * 4 * 5).reshape(300, 4, 5)
WHOLE = slice(None)


class Reader:
    """What a `VariableReader` is to a loop; notes how many steps each read has."""

    array = None

    def __init__(self, values: np.ndarray = VALUES) -> None:
        self.values = values
        self.shape = values.shape
        self.steps: list[int] = []

    def read(self, key: tuple[Any, ...]) -> np.ndarray:
        found: np.ndarray = self.values[key]
        self.steps.append(len(found) if key and isinstance(key[0], slice) else 1)
        return found


def loop_over(reader: Any) -> LoopReader:
    return LoopReader(reader)


def test_a_loop_has_few_reads() -> None:
    reader = Reader()
    loop = loop_over(reader)
    for step in range(300):
        np.testing.assert_array_equal(loop.read((step, WHOLE, 2)), VALUES[step, :, 2])
    assert reader.steps == [1, 4, 16, 64, 215]


@pytest.mark.parametrize("order", [range(299, 0, -1), range(0, 300, 2), [7] * 9, [3, 5, 4, 0, 2]])
def test_without_a_loop_nothing_else_is_read(order: Any) -> None:
    reader = Reader()
    loop = loop_over(reader)
    for step in order:
        np.testing.assert_array_equal(loop.read((step, WHOLE, WHOLE)), VALUES[step])
    assert set(reader.steps) == {1}
    assert len(reader.steps) == len(order)


def test_another_selection_begins_another_loop() -> None:
    reader = Reader()
    loop = loop_over(reader)
    for step in range(6):
        loop.read((step, 1, WHOLE))
    assert reader.steps == [1, 4, 16]
    np.testing.assert_array_equal(loop.read((6, 2, WHOLE)), VALUES[6, 2])
    np.testing.assert_array_equal(loop.read((slice(0, 9), 2, 3)), VALUES[0:9, 2, 3])
    index = np.array([3, 1])
    np.testing.assert_array_equal(loop.read((7, index, 3)), VALUES[7, index, 3])
    assert loop_over(Reader(np.array(3))).read(()) == 3


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_BYTES", 10 * VALUES[0].nbytes)
    reader = Reader()
    loop = loop_over(reader)
    for step in range(40):
        loop.read((step, WHOLE, WHOLE))
    assert reader.steps == [1, 4, 10, 10, 10, 10]
    monkeypatch.setattr(loops, "MOST_BYTES", 10)
    reader = Reader()
    loop = loop_over(reader)
    for step in range(5):
        np.testing.assert_array_equal(loop.read((step, WHOLE, WHOLE)), VALUES[step])
    assert reader.steps == [1] * 5


def test_what_is_returned_is_the_callers() -> None:
    loop = loop_over(Reader())
    for step in range(20):
        found = loop.read((step, WHOLE, WHOLE))
        np.testing.assert_array_equal(found, VALUES[step])
        found[...] = -1


def test_texts() -> None:
    texts = np.array([f"text {i}" for i in range(30)], object)
    loop = loop_over(Reader(texts))
    assert [loop.read((step,)).item() for step in range(30)] == texts.tolist()


def test_threads() -> None:
    loop = loop_over(Reader())

    def read(column: int) -> bool:
        found = [loop.read((step, WHOLE, column)) for step in range(300)]
        return np.array_equal(found, VALUES[:, :, column])

    with ThreadPoolExecutor(5) as threads:
        assert all(threads.map(read, range(5)))


@pytest.mark.servers
def test_over_http(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as nc:
        nc.createDimension("t", None)
        nc.createDimension("x", 5000)
        options = {"zlib": True, "chunksizes": (3, 5000), "fill_value": 7.0}
        nc.createVariable("v", "f8", ("t", "x"), **options)[:] = np.random.default_rng(0).random(
            (100, 5000)
        )
        nc["v"][5, 3] = 7
    with range_server(tmp_path) as server, netCDF4.Dataset(tmp_path / "a.nc") as theirs:
        with ours.Dataset(f"{server.url}/a.nc") as nc:
            for step in range(100):
                found = nc["v"][step]
                np.testing.assert_array_equal(found, theirs["v"][step])
                np.testing.assert_array_equal(found.mask, theirs["v"][step].mask)
        assert server.requests < 30
