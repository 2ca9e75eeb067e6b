from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import DatasetNotFoundError, ExportError
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_xarray.aggregation import reading
from nczarr_xarray.aggregation.api import aggregate
from nczarr_xarray.aggregation.files import RemoteFiles
from tests.support.builders.manyfiles import field, step
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _forget() -> None:
    memory.clear()


def served(folder: Path, count: int, form: str = "NETCDF4") -> dict[str, bytes]:
    """Return files of an HTTP server, by path."""
    return {
        f"/data/{n}.nc": Path(step(folder / f"{n}.nc", [n], form=form)).read_bytes()
        for n in range(count)
    }


@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_a_remote_file_takes_two_requests_at_most(tmp_path: Path, form: str) -> None:
    with Server(served(tmp_path, 20, form), etag='"a"') as server:
        targets = [f"{server.url}/data/{n}.nc" for n in range(20)]
        aggregate(targets[::-1], tmp_path / "m.nca")
        assert max(Counter(request.path for request in server.requests).values()) <= 2
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as ds:
            assert np.array_equal(ds.tas.values, field([*range(20)]))


def test_many_are_read_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = RemoteFileBytes.begin
    under_way = set()
    met = asyncio.Event()

    async def together(source: RemoteFileBytes, known: Known | None) -> None:
        under_way.add(source)
        if len(under_way) == 30:
            met.set()
        await asyncio.wait_for(met.wait(), 60)
        await begin(source, known)

    monkeypatch.setattr(RemoteFileBytes, "begin", together)
    with Server(served(tmp_path, 30)) as server:
        aggregate([f"{server.url}/data/{n}.nc" for n in range(30)], tmp_path / "m.nca")
    assert len(under_way) == 30


def test_no_more_than_so_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = RemoteFiles.read
    now, most = 0, 0

    async def counted(files: RemoteFiles, *given: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await read(files, *given)
        finally:
            now -= 1

    monkeypatch.setattr(RemoteFiles, "read", counted)
    monkeypatch.setattr(reading, "AT_A_TIME", 4)
    monkeypatch.setattr(reading, "BATCH", 2)
    with Server(served(tmp_path, 15)) as server:
        aggregate([f"{server.url}/data/{n}.nc" for n in range(15)], tmp_path / "m.nca")
    assert 1 <= most <= 4


def test_errors_name_the_remote_file(tmp_path: Path) -> None:
    files = served(tmp_path, 3)
    with Server(files) as server:
        targets = [f"{server.url}/data/{n}.nc" for n in range(4)]
        with pytest.raises(DatasetNotFoundError, match=r"data/3\.nc: there is no such"):
            aggregate(targets, tmp_path / "m.nca")
        with pytest.raises(ExportError, match=r"data/1\.nc: is given twice"):
            aggregate([*targets[:3], targets[1]], tmp_path / "m.nca")
    assert not (tmp_path / "m.nca").exists()


def test_trees_and_files_mixed(tmp_path: Path) -> None:
    files = served(tmp_path, 2)
    with xr.open_dataset(step(tmp_path / "2.nc", [2]), decode_times=False) as ds:
        ds.nczarr.to_nczarr(tmp_path / "t.zarr", consolidated=True)
    files |= read_tree(tmp_path / "t.zarr", "/data/t.zarr/")
    here = step(tmp_path / "3.nc", [3])
    with Server(files) as server:
        targets = [f"{server.url}/data/{name}" for name in ("t.zarr", "1.nc", "0.nc")]
        aggregate([*targets, here], tmp_path / "m.nca")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as ds:
            assert np.array_equal(ds.tas.values, field([0, 1, 2, 3]))
