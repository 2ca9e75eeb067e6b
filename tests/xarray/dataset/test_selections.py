"""Small variables of one remote file are read together, and the others by themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError, StoreError
from nczarr_xarray.chunks.engine import SmallRead
from nczarr_xarray.dataset.variable import VariableReader
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

#: Variables that are read alone: it is not small, its values are behind references, or nothing is
#: stored of what is selected.
ALONE = {"/large", "/text", "/short"}
#: Bytes that keep the rest of a file from coming with its beginning.
BULK = 1 << 20


def write(path: Path) -> None:
    random = np.random.default_rng(0)
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("t", None)
        for name, length in {"y": 24, "x": 36, "long": 1 << 14}.items():
            nc.createDimension(name, length)
        nc.createVariable("bulk", "u1", ("long", "x"))[:] = random.integers(0, 255, (1 << 14, 36))
        values = random.normal(size=(24, 36))
        for number in range(8):
            how: dict[str, Any] = {"zlib": True, "shuffle": number % 2 == 0, "fletcher32": True}
            nc.createVariable(f"packed{number}", "f4", ("y", "x"), **how)[:] = values + number
            nc.createVariable(f"tiles{number}", "f8", ("y", "x"), chunksizes=(7, 11))[:] = values
            nc.createVariable(f"plain{number}", "i2", ("y", "x"), contiguous=True)[:] = number
        nc.createVariable("grown", "f4", ("t", "x"), fill_value=-1.0)[:3] = values[:3]
        nc.createVariable("short", "f8", ("t", "y"), zlib=True)[:2] = values[:2, :24]
        nc.createVariable("never", "f8", ("y", "x"), zlib=True)
        nc.createVariable("half", "f8", ("y", "x"), chunksizes=(12, 36))[:12] = values[:12]
        nc.createVariable("one", "f8", ())[...] = 5.0
        nc.createVariable("name", "S1", ("y",))[:] = np.array(
            list("abcdefghijklmnopqrstuvwx"), "S1"
        )
        nc.createVariable("large", "f8", ("long",), zlib=True)[:] = random.normal(size=1 << 14)
        nc.createVariable("text", str, ("y",))[:] = np.array([f"text {i}" for i in range(24)], "O")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "d.nc"
    write(path)
    return path


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    with Server(read_tree(path.parent, "/")) as server:
        yield server


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of variables that are read by themselves from now on."""
    paths: list[str] = []
    read = VariableReader.read_remote

    async def noted(self: VariableReader, *args: Any, **options: Any) -> np.ndarray:
        paths.append(self.path)
        return await read(self, *args, **options)

    monkeypatch.setattr(VariableReader, "read_remote", noted)
    return paths


def opened(server: Server) -> xr.Dataset:
    ds = xr.open_dataset(f"{server.url}/d.nc", engine="nczarr", mask_and_scale=False)
    return ds.drop_vars("bulk")


@pytest.mark.parametrize(
    "select",
    [
        {},
        {"y": slice(20, 3, -3), "x": [5, 1, 1]},
        {"y": 3, "t": -1},
        {"y": slice(0, 0)},
        {"y": xr.DataArray([1, 2], dims="p"), "x": xr.DataArray([3, 0], dims="p")},
    ],
)
def test_values_are_those_of_single_reads(
    server: Server, path: Path, alone: list[str], select: dict[str, Any]
) -> None:
    with (
        opened(server) as ds,
        xr.open_dataset(path, engine="netcdf4", mask_and_scale=False) as expected,
    ):
        alone.clear()
        found = ds.isel(select).load()
        empty = {f"/{name}" for name, variable in found.variables.items() if not variable.size}
        assert set(alone) <= ALONE | empty
        xr.testing.assert_identical(found, expected.drop_vars("bulk").isel(select).load())


def test_a_damaged_variable_fails_alone(server: Server, path: Path, alone: list[str]) -> None:
    with netCDF4.Dataset(path) as nc:
        expected = {name: nc[name][:] for name in ("packed2", "packed4")}
    whole = server.files["/d.nc"]
    with opened(server) as ds:
        at = whole.index(chunk_of(path, "packed3"))
        server.files["/d.nc"] = whole[: at + 20] + b"\0\1\2\3" + whole[at + 24 :]
        alone.clear()
        with pytest.raises(FormatError, match="packed3"):
            ds.load()
        assert set(alone) - ALONE == {"/packed3"}
        for name, values in expected.items():
            np.testing.assert_array_equal(ds[name].values, values)


def test_data_that_came_with_the_metadata(tmp_path: Path) -> None:
    """Where they begin is counted from the beginning of their message, not of the file."""
    values = {f"v{number}": np.arange(6.0).reshape(2, 3) + number for number in range(3)}
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    with h5py.File(tmp_path / "d.nc", "w") as file:
        file["bulk"] = np.ones(BULK, "u1")
        for name, data in values.items():
            space = h5py.h5s.create_simple(data.shape)
            made = h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F64LE, space, compact)
            h5py.Dataset(made)[...] = data
        file["plain"] = np.arange(4.0)
    with Server(read_tree(tmp_path, "/")) as server, opened(server) as ds:
        for name, data in values.items():
            ds.load()
            np.testing.assert_array_equal(ds[name].values, data)
        np.testing.assert_array_equal(ds["plain"].values, np.arange(4.0))


def test_values_that_cannot_be_made_are_read_alone(
    server: Server, path: Path, alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: SmallRead) -> np.ndarray | None:
        raise MemoryError

    monkeypatch.setattr(SmallRead, "values", fails)
    with (
        opened(server) as ds,
        xr.open_dataset(path, engine="netcdf4", mask_and_scale=False) as expected,
    ):
        xr.testing.assert_identical(ds.load(), expected.drop_vars("bulk").load())
        assert {"/packed0", "/tiles0", "/plain0"} <= set(alone)


def read_alone_and_cancel(patch: pytest.MonkeyPatch, times: dict[str, int]) -> None:
    """Have each variable read by itself, and cancel the first reads of some, so many times."""
    read = VariableReader.read_remote

    async def interrupted(self: VariableReader, *args: Any, **options: Any) -> np.ndarray:
        if times.get(self.path, 0):
            times[self.path] -= 1
            raise asyncio.CancelledError
        return await read(self, *args, **options)

    def fails(_: SmallRead) -> np.ndarray | None:
        raise MemoryError

    patch.setattr(VariableReader, "read_remote", interrupted)
    patch.setattr(SmallRead, "values", fails)


@pytest.mark.parametrize("cancelled", ["/large", "/packed0"])
def test_a_cancelled_read_is_of_its_own_variable_only(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: str
) -> None:
    with (
        opened(server) as ds,
        xr.open_dataset(path, engine="netcdf4", mask_and_scale=False) as expected,
    ):
        with monkeypatch.context() as patch:
            read_alone_and_cancel(patch, {cancelled: 9})
            with pytest.raises((CancelledError, StoreError)):
                ds.load()
        xr.testing.assert_identical(ds.load(), expected.drop_vars("bulk").load())


def test_a_cancelled_read_leaves_those_beside_it(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = {"/packed3": 1}
    with (
        opened(server) as ds,
        xr.open_dataset(path, engine="netcdf4", mask_and_scale=False) as expected,
    ):
        read_alone_and_cancel(monkeypatch, cancelled)
        xr.testing.assert_identical(ds.load(), expected.drop_vars("bulk").load())
    assert cancelled == {"/packed3": 0}


def test_a_large_chunk_is_read_alone(server: Server, alone: list[str]) -> None:
    """The event loop would decode all of it, of which one element is wanted."""
    with opened(server) as ds:
        alone.clear()
        ds.isel(long=5).load()
        assert "/large" in alone


THREAD = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import xarray as xr

ds = xr.open_dataset(sys.argv[1], engine="nczarr")
pool = ThreadPoolExecutor(1)

def work():
    threading.main_thread().join()
    try:
        while True:
            pool.submit(int).result()
    except RuntimeError:  # pools take nothing more
        print(float(ds.load().packed7.mean()))

threading.Thread(target=work).start()
"""


def test_a_thread_reads_on_after_the_end_of_the_main_thread(server: Server, path: Path) -> None:
    command = [sys.executable, "-c", THREAD, f"{server.url}/d.nc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with xr.open_dataset(path, engine="netcdf4") as expected:
        assert float(done.stdout) == float(expected.packed7.mean())


def chunk_of(path: Path, name: str) -> bytes:
    """Return the only chunk of a variable as it is stored."""
    with h5py.File(path) as file:
        _, data = file[name].id.read_direct_chunk((0, 0))
    return bytes(data)
