"""Classic and HDF5 files read by dask, in threads, in other processes and on a cluster."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.ranges.index_memory import memory
from tests.support.builders.remotefiles import FORMATS, expected, write_chunks
from tests.support.marks import slow_but
from tests.support.servers.clusters import two_processes
from tests.support.servers.realservers import RangeServer

pytest.importorskip("distributed")
pytestmark = [
    # what distributed says of itself when a machine is slow, or has been used with another fork
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*unmanaged memory.*"),
]


@pytest.fixture(autouse=True)
def forgotten() -> None:
    memory.clear()


@pytest.fixture(scope="module")
def root(files_root: Path) -> Path:
    return files_root


@pytest.fixture
def server(files_server: RangeServer) -> RangeServer:
    files_server.set()
    return files_server


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with two_processes(threads=2) as client:
        yield client


def total(ds: xr.Dataset) -> float:
    """Module level, so that processes can be sent it."""
    return float(ds.v3.sum(dtype="f8"))


@pytest.mark.parametrize(
    ("scheduler", "name", "where"),
    [
        *itertools.product(["synchronous", "threads"], ["h5.nc", "c1.nc"], ["remote", "local"]),
        pytest.param("processes", "h5.nc", "remote", marks=pytest.mark.slow),
        pytest.param("processes", "c1.nc", "local", marks=pytest.mark.slow),
    ],
)
def test_schedulers(server: RangeServer, root: Path, scheduler: str, name: str, where: str) -> None:
    target = f"{server.url}/{name}" if where == "remote" else str(root / name)
    with (
        dask.config.set(scheduler=scheduler, num_workers=2),
        xr.open_dataset(target, engine="nczarr", chunks={"time": 50}) as ds,
    ):
        assert ds.v3.chunks is not None
        xr.testing.assert_identical(ds.compute(), expected(root / name))


@pytest.mark.parametrize("name", FORMATS)
def test_chunks_follow_the_stored_grid(server: RangeServer, root: Path, name: str) -> None:
    for target in (f"{server.url}/{name}", root / name):
        with xr.open_dataset(target, engine="nczarr", chunks={}) as ds:
            with xr.open_dataset(root / name, engine="netcdf4", chunks={}) as theirs:
                if name == "h5.nc":
                    assert ds.v3.chunks == theirs.v3.chunks == ((10,) * 10, (25,), (13, 13))
                xr.testing.assert_identical(ds.compute(), theirs.compute())


@pytest.mark.slow
def test_cluster(server: RangeServer, root: Path, client: Any) -> None:
    right = expected(root / "h5.nc")
    url = f"{server.url}/h5.nc"
    with client.as_current():
        with xr.open_dataset(url, engine="nczarr", chunks={}) as ds:
            xr.testing.assert_identical(ds.compute(), right)
        with xr.open_mfdataset(
            [url, f"{server.url}/plain", str(root / "h5.nc")],
            engine="nczarr",
            parallel=True,
            combine="nested",
            concat_dim="run",
            data_vars="all",
        ) as many:
            assert many.v3.shape == (3, *right.v3.shape)
            for run in range(3):
                np.testing.assert_array_equal(many.v3.isel(run=run).values, right.v3.values)
        lazy = xr.open_dataset(url, engine="nczarr")
        assert client.submit(total, lazy).result() == total(right)


def test_many_files_in_threads(server: RangeServer, root: Path) -> None:
    urls = [f"{server.url}/{name}" for name in FORMATS]
    with (
        dask.config.set(scheduler="threads"),
        xr.open_mfdataset(
            urls, engine="nczarr", parallel=True, combine="nested", concat_dim="run",
            data_vars="all", coords="minimal", join="override", compat="override",
        ) as ds,
    ):  # fmt: skip
        values = ds.v1.values
        for number, name in enumerate(FORMATS):
            np.testing.assert_array_equal(values[number], expected(root / name).v1.values)


@pytest.mark.parametrize("method", slow_but(["fork", "spawn"], "fork"))
@pytest.mark.parametrize("where", ["remote", "local"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads is asked
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
def test_processes(server: RangeServer, root: Path, method: str, where: str) -> None:
    context = multiprocessing.get_context(method)
    target = f"{server.url}/h5.nc" if where == "remote" else root / "h5.nc"
    with xr.open_dataset(target, engine="nczarr", cache=False) as ds:
        right = total(ds)  # loop, pool and connections are in use
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            assert list(pool.map(total, [ds] * 4)) == [right] * 4
        assert total(ds) == right
    assert right == total(expected(root / "h5.nc"))


def test_a_copy_needs_no_request_but_for_data(server: RangeServer, root: Path) -> None:
    """Wherever it goes: nothing is opened again, and what is known there is shared."""
    write_chunks(root / "chunks.nc")
    right = expected(root / "chunks.nc")
    with xr.open_dataset(f"{server.url}/chunks.nc", engine="nczarr", cache=False) as ds:
        data = pickle.dumps(ds)
        assert len(data) < 20_000
        memory.clear()  # as in another process
        server.set()
        copies = [pickle.loads(data) for _ in range(3)]
        assert server.requests == 0
        counts = []
        for copy in copies:
            server.control("reset")
            np.testing.assert_array_equal(copy.v[700].values, right.v[700].values)
            counts.append(server.requests)
        assert counts[0] > counts[1] == counts[2] == 1
        for copy in copies:
            copy.close()


@pytest.mark.slow
def test_threads_share_what_they_look_up(server: RangeServer, root: Path) -> None:
    write_chunks(root / "chunks.nc")
    right = expected(root / "chunks.nc")
    with (
        xr.open_dataset(f"{server.url}/chunks.nc", engine="nczarr", cache=False) as ds,
        ThreadPoolExecutor(8) as pool,
    ):
        server.set()
        for _ in range(2):
            steps = pool.map(lambda t: ds.v[t].values, range(0, 1500, 100))
            np.testing.assert_array_equal(np.stack(list(steps)), right.v[::100].values)
        log = [request["range"] for request in server.control("log")]
        # the first time nodes and data, the second time data: a request for each step
        assert len(log) < 2 * 15 + 20
