"""Threads, processes, clusters, event loops; and nothing left open."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr

from tests.support.builders.trees import read_tree
from tests.support.marks import slow_but
from tests.support.servers.clusters import two_processes
from tests.support.servers.httpserver import Server

SHAPE, CHUNKS = (40, 30, 50), (8, 30, 25)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import netCDF4

    path = tmp_path_factory.mktemp("parallel") / "x.file"
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file", "w") as nc:
        for name, size in zip("tyx", SHAPE, strict=True):
            nc.createDimension(name, None if name == "t" else size)
        nc.createVariable("t", "f8", ("t",))[:] = np.arange(SHAPE[0])
        nc.createVariable("v", "f4", ("t", "y", "x"), zlib=True, chunksizes=CHUNKS)[:] = values()
    return path


def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=SHAPE).astype("f4")


def total(ds: xr.Dataset) -> float:
    """Module level, so that processes can be sent it."""
    return float(ds.v.sum(dtype="f8"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_dask_chunks_follow_the_stored_grid(tree: Path) -> None:
    with xr.open_dataset(tree, engine="nczarr", chunks={}) as ds:
        assert ds.v.chunks == ((8,) * 5, (30,), (25, 25))
    with xr.open_dataset(tree, engine="nczarr", chunks="auto") as ds:
        for sizes, stored in zip(ds.v.chunks, CHUNKS, strict=True):
            assert all(size % stored == 0 for size in sizes[:-1])


@pytest.mark.parametrize(
    "scheduler", slow_but(["synchronous", "threads", "processes"], "synchronous", "threads")
)
def test_dask_schedulers(tree: Path, scheduler: str) -> None:
    with (
        dask.config.set(scheduler=scheduler, num_workers=2),
        xr.open_dataset(tree, engine="nczarr", chunks={}) as ds,
    ):
        assert np.array_equal(ds.v.values, values())


@pytest.mark.slow
def test_distributed_cluster(tree: Path) -> None:
    with two_processes(threads=2) as client, client.as_current():
        with xr.open_dataset(tree, engine="nczarr", chunks={}) as ds:
            assert np.allclose(ds.v.mean("t").values, values().mean(0), atol=1e-6)
        with xr.open_mfdataset(
            [tree] * 3, engine="nczarr", parallel=True, combine="nested", concat_dim="run"
        ) as many:
            assert np.array_equal(many.v.isel(run=2).values, values())
        lazy = xr.open_dataset(tree, engine="nczarr")
        assert client.submit(total, lazy).result() == pytest.approx(values().sum(dtype="f8"))


def test_many_files_in_parallel(tree: Path) -> None:
    with (
        dask.config.set(scheduler="threads"),
        xr.open_mfdataset(
            [tree, tree], engine="nczarr", parallel=True, combine="nested", concat_dim="run"
        ) as ds,
    ):
        assert ds.v.shape == (2, *SHAPE)
        assert np.array_equal(ds.v[1].values, values())


def test_threads_share_one_dataset(tree: Path) -> None:
    with xr.open_dataset(tree, engine="nczarr", cache=False) as ds, ThreadPoolExecutor(8) as pool:
        steps = list(pool.map(lambda t: ds.v.isel(t=t).values, [*range(SHAPE[0])] * 3))
    assert np.array_equal(np.stack(steps), np.tile(values(), (3, 1, 1)))


@pytest.mark.parametrize("method", slow_but(["fork", "spawn"], "fork"))
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads is asked
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
def test_processes(tree: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with xr.open_dataset(tree, engine="nczarr", cache=False) as ds:
        expected = total(ds)  # the pool of threads and the store are in use already
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            assert list(pool.map(total, [ds] * 4)) == [expected] * 4


def test_pickle_before_and_after_reading(tree: Path) -> None:
    with xr.open_dataset(tree, engine="nczarr") as ds:
        for _ in range(2):
            copy = pickle.loads(pickle.dumps(ds))
            assert np.array_equal(copy.v.values, values())
            ds.v[0].load()
        assert len(pickle.dumps(ds.v.variable._data)) < 5000


@pytest.mark.slow
def test_remote_dataset_in_other_processes(tree: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with Server(read_tree(tree, "/x.file/")) as server:
        with xr.open_dataset(f"{server.url}/x.file", engine="nczarr", cache=False) as ds:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                assert pool.submit(total, ds).result() == total(ds)


def test_load_async_and_running_loops(tree: Path) -> None:
    async def notebook() -> xr.Dataset:
        with xr.open_dataset(tree, engine="nczarr") as ds:
            assert np.array_equal(ds.v[0].values, values()[0])
            return await ds.load_async()

    assert np.array_equal(asyncio.run(notebook()).v.values, values())


@pytest.fixture(params=["tree", "zip"])
def target(request: pytest.FixtureRequest, tree: Path, tmp_path: Path) -> Iterator[Path]:
    if request.param == "tree":
        yield tree
    else:
        import shutil

        yield Path(shutil.make_archive(str(tmp_path / "x"), "zip", tree))


def test_nothing_stays_open(target: Path) -> None:
    with xr.open_dataset(target, engine="nczarr") as ds:
        ds.load()
    before = descriptors()
    for _ in range(20):
        with xr.open_dataset(target, engine="nczarr") as ds:
            ds.v[0].load()
        groups = xr.open_groups(target, engine="nczarr")
        for group in groups.values():
            group.close()
        with xr.open_datatree(target, engine="nczarr") as opened:
            opened["/"].v[0].load()
    assert descriptors() <= before


def test_failed_opens_leave_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.mkdir()
    (path / ".zgroup").write_text("{")
    before = descriptors()
    for _ in range(10):
        with pytest.raises(ValueError, match=r"\.zgroup"):
            xr.open_dataset(path, engine="nczarr")
    assert descriptors() <= before  # fewer, where something of a test before was collected


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("target", "ours"),
    [
        ("https://h/x.zarr", False),
        ("https://h/x.nc#mode=bytes", True),
        ("https://h/x#mode=dap4", False),
        ("https://h/x#section", False),
        ("s3://b/k", False),
        ("s3://b/k.nczarr", True),
        ("s3://b/k#mode=nczarr,s3", True),
        ("file:///p/x.file#mode=nczarr,file", True),
        ("https://h/x#nczarr", True),
        ("https://h/x#mode=zarr", True),
        ("missing.nczarr", False),
        ("missing.zarr", False),
    ],
)
def test_guess_by_name(target: str, ours: bool) -> None:
    from nczarr_xarray.backend.entrypoint import NCZarrBackendEntrypoint

    assert NCZarrBackendEntrypoint().guess_can_open(target) is ours


def test_guess_by_content(target: Path, tmp_path: Path) -> None:
    from nczarr_xarray.backend.entrypoint import NCZarrBackendEntrypoint

    guess = NCZarrBackendEntrypoint().guess_can_open
    assert guess(target)
    assert guess(str(target))
    pure = tmp_path / "pure.zarr"
    xr.Dataset({"v": ("x", [1.0])}).to_zarr(pure, zarr_format=2)
    empty = tmp_path / "empty"
    empty.mkdir()
    netcdf = tmp_path / "x.nc"
    xr.Dataset({"v": ("x", [1.0])}).to_netcdf(netcdf, engine="netcdf4")
    archive = tmp_path / "pure.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in pure.rglob(".z*"):
            file.write(path, path.relative_to(pure))
    text = tmp_path / "text.txt"
    text.write_text("PK or not")
    for other in (pure, archive, netcdf, empty, text, tmp_path):
        assert not guess(other), other
    assert not guess(b"PK\x03\x04")
    with xr.open_dataset(target) as ds:  # no engine: xarray asks us
        assert ds.v.shape == SHAPE
