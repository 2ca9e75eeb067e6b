"""Chunks that are read again and again are decoded once: by the main thread, and within bounds."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray import to_nczarr
from nczarr_xarray.chunks.cache import CACHE, OVERHEAD, ChunkCache
from tests.support.servers.realservers import range_server

VALUES = np.arange(40 * 30 * 20, dtype="f4").reshape(40, 30, 20)


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    CACHE.clear()
    yield
    CACHE.clear()


def written(folder: Path, kind: str) -> str:
    ds = xr.Dataset({"v": (("t", "y", "x"), VALUES)})
    encoding = {"v": {"chunksizes": (10, 30, 10), "zlib": True, "shuffle": True}}
    if kind == "tree":
        to_nczarr(ds, folder / "v.zarr", encoding=encoding)
        return str(folder / "v.zarr")
    ds.to_netcdf(folder / "v.nc", engine="netcdf4", encoding=encoding)
    return str(folder / "v.nc")


def steps(ds: xr.Dataset) -> None:
    for t in range(40):
        assert np.array_equal(ds["v"][t].values, VALUES[t])


@pytest.mark.parametrize("kind", ["tree", "file"])
def test_step_after_step_decodes_each_chunk_once(
    tmp_path: Path, kind: str, decoded: list[int]
) -> None:
    with xr.open_dataset(written(tmp_path, kind), engine="nczarr", cache=False) as ds:
        steps(ds)
        assert sum(decoded) == 8
        assert CACHE.nbytes == VALUES.nbytes + 8 * OVERHEAD
        assert np.array_equal(ds["v"][:, 3, 5].values, VALUES[:, 3, 5])
        points = xr.DataArray([3, 17, 39], dims="p")
        found = ds["v"].isel(t=points, x=points % 20).values
        assert np.array_equal(found, VALUES[[3, 17, 39], :, [3, 17, 19]])
        assert sum(decoded) == 8
    del ds
    gc.collect()
    assert CACHE.nbytes == 0


@pytest.mark.parametrize("kind", ["tree", "file"])
def test_over_a_network_each_chunk_is_asked_for_once(tmp_path: Path, kind: str) -> None:
    name = Path(written(tmp_path, kind)).name
    mode = "nczarr" if kind == "tree" else "bytes"
    with (
        range_server(tmp_path) as server,
        xr.open_dataset(f"{server.url}/{name}#mode={mode}", engine="nczarr", cache=False) as ds,
    ):
        ds["v"][0].load()
        before = server.requests
        for t in range(1, 10):
            assert np.array_equal(ds["v"][t].values, VALUES[t])
        assert server.requests == before
        steps(ds)


@pytest.mark.filterwarnings("ignore:The specified chunks separate the stored chunks")
@pytest.mark.parametrize("kind", ["tree", "file"])
def test_whole_reads_and_other_threads_remember_nothing(
    tmp_path: Path, kind: str, decoded: list[int]
) -> None:
    target = written(tmp_path, kind)
    with xr.open_dataset(target, engine="nczarr", cache=False) as ds:
        assert np.array_equal(ds["v"].values, VALUES)
        assert np.array_equal(ds["v"][5:15].values, VALUES[5:15])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(steps, ds).result()
        assert CACHE.nbytes == 0
        assert sum(decoded) == 8 + 4 + 80
    with (
        xr.open_dataset(target, engine="nczarr", chunks={"t": 1}) as ds,
        dask.config.set(scheduler="threads"),
    ):
        assert np.array_equal(ds["v"].values, VALUES)
        assert CACHE.nbytes == 0


def test_reads_of_more_than_fits_remember_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CACHE, "most", VALUES.nbytes - 1)
    with xr.open_dataset(written(tmp_path, "tree"), engine="nczarr", cache=False) as ds:
        assert np.array_equal(ds["v"][:, 3].values, VALUES[:, 3])  # touches every chunk
        assert CACHE.nbytes == 0
        ds["v"][3].load()
        assert CACHE.nbytes == VALUES.nbytes // 4 + 2 * OVERHEAD


def test_what_is_written_in_between_is_seen(tmp_path: Path) -> None:
    target = written(tmp_path, "tree")
    with xr.open_dataset(target, engine="nczarr", cache=False) as ds:
        assert ds["v"][2, 0, 0].values == VALUES[2, 0, 0]
        new = xr.Dataset({"v": (("t", "y", "x"), -VALUES[:10])})
        to_nczarr(new, target, mode="r+", region={"t": slice(0, 10)})
        assert np.array_equal(ds["v"][2].values, -VALUES[2])


@pytest.mark.parametrize("part", [(2, 0, 0), (2,), (slice(None), 3, 4)])
def test_what_others_write_is_seen(part: tuple[Any, ...], tmp_path: Path) -> None:
    target = written(tmp_path, "tree")
    with xr.open_dataset(target, engine="nczarr", cache=False) as ds:
        assert np.array_equal(ds["v"][part], VALUES[part])
        zarr.open_array(f"{target}/v", mode="r+")[:] = -VALUES
        assert np.array_equal(ds["v"][part], -VALUES[part])


def test_what_is_written_in_between_to_what_has_no_times_is_seen() -> None:
    target: Any = {}
    encoding = {"v": {"chunksizes": (10, 30, 10), "zlib": True}}
    to_nczarr(xr.Dataset({"v": (("t", "y", "x"), VALUES)}), target, encoding=encoding)
    with xr.open_dataset(target, engine="nczarr", cache=False) as ds:
        assert np.array_equal(ds["v"][2], VALUES[2])
        new = xr.Dataset({"v": (("t", "y", "x"), -VALUES[:10])})
        to_nczarr(new, target, mode="r+", region={"t": slice(0, 10)})
        assert np.array_equal(ds["v"][2], -VALUES[2])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_while_it_is_in_use() -> None:
    """The child has no thread that would release the lock."""
    child = multiprocessing.get_context("fork").Process(target=CACHE.clear)

    class Key:
        def __hash__(self) -> int:
            """Fork, while the cache looks for it."""
            child.start()
            return 1

    CACHE.get(1, [Key()])
    child.join(30)
    child.kill()
    assert child.exitcode == 0


def test_text_is_not_remembered(tmp_path: Path) -> None:
    text = np.array([["a", "b" * 1000], ["c", "d"]], dtype=object)
    ds = xr.Dataset({"s": (("t", "x"), text)})
    ds.to_zarr(tmp_path / "s.zarr", zarr_format=2, encoding={"s": {"chunks": (2, 2)}})
    with xr.open_dataset(tmp_path / "s.zarr", engine="nczarr", cache=False) as found:
        assert found["s"][0, :1].values.tolist() == ["a"]
    assert CACHE.nbytes == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 60)), min_size=1, max_size=60
    )
)
def test_it_is_bounded_and_forgets_the_oldest(uses: list[tuple[int, int, int]]) -> None:
    most = 100 + 4 * OVERHEAD
    known = ChunkCache(most)
    model: dict[tuple[int, int], int] = {}
    for owner, key, size in uses:
        (chunk,) = known.get(owner, [key])
        assert (chunk is None) == ((owner, key) not in model)
        if chunk is None:
            known.put(owner, [key], [bytes(size)], size)
            model[owner, key] = size + OVERHEAD
        else:
            model[owner, key] = model.pop((owner, key))
        while sum(model.values()) > most:
            del model[next(iter(model))]
        assert known.nbytes == sum(model.values()) <= most
    known.leave(1)
    assert known.nbytes == sum(size for (owner, _), size in model.items() if owner != 1)


def test_owners_may_be_collected_while_the_cache_is_in_use() -> None:
    """The collector runs where objects are made, also between two lines of the cache."""

    class Owner:
        def __init__(self) -> None:
            self.number = known.number_of(self)
            self.circle = self

    known = ChunkCache(10**9)
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for number in range(500):
            owner = Owner()
            known.put(owner.number, [number], [bytes(9)], 9)
            assert known.get(owner.number, [number, "other"]) == [bytes(9), None]
            del owner
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    known.get(-1, [])  # whoever uses it next drops what was in use when its owner went
    assert known.nbytes == 0
