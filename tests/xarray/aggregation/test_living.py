"""Aggregations that grow: what an append costs, and what others see meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import s3fs
import xarray as xr

from nczarr_fsspec.destination import open_destination
from nczarr_fsspec.errors import ConflictError, ExportError
from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_xarray.aggregation import joining
from nczarr_xarray.aggregation.api import aggregate
from nczarr_xarray.aggregation.reading import read_files
from tests.support.builders.manyfiles import field, step
from tests.support.servers.s3proxy import Proxy, proxy_to
from tests.support.servers.s3server import S3Server


def steps(folder: Path, numbers: range) -> list[str]:
    return [step(folder / f"{n}.nc", [n]) for n in numbers]


def times_of(master: str | Path, options: Any = None) -> list[float]:
    """Return the times of an aggregation, after a look at its values."""
    arguments: dict[str, Any] = {"engine": "nczarr", "decode_times": False}
    with xr.open_dataset(master, storage_options=options, **arguments) as ds:
        times: list[float] = ds.time.values.tolist()
        assert np.array_equal(ds.tas.values, field(times))
    return times


def test_files_that_are_there_are_not_read_again(tmp_path: Path) -> None:
    files, master = steps(tmp_path, range(3)), tmp_path / "m.nca"
    aggregate(files[:2], master)
    held = Path(files[0]).rename(tmp_path / "held")
    Path(files[0]).write_text("not read")
    aggregate(files, master, append=True)
    held.rename(files[0])
    assert times_of(master) == [0, 1, 2]
    before = os.stat(master)
    aggregate(tmp_path / "*.nc", master, append=True)
    assert os.stat(master) == before
    assert sorted(os.listdir(tmp_path)) == ["0.nc", "1.nc", "2.nc", "m.nca"]


def test_a_file_of_another_name_with_the_same_times_is_refused(tmp_path: Path) -> None:
    files, master = steps(tmp_path, range(2)), tmp_path / "m.nca"
    aggregate(files, master)
    with pytest.raises(ExportError, match=r"2.nc: has the same coordinates as a file that"):
        aggregate([step(tmp_path / "2.nc", [1])], master, append=True)
    assert times_of(master) == [0, 1]


def test_variables_of_the_same_files_share_a_table(tmp_path: Path) -> None:
    more = [{"pr": (("time", "x"), field([n]) + 1, {"units": "mm"})} for n in range(3)]
    files = [step(tmp_path / f"{n}.nc", [n], more=own) for n, own in enumerate(more)]
    master = tmp_path / "m.nca"
    aggregate(files[:2], master)
    aggregate(files[2:], master, append=True)
    with netCDF4.Dataset(master) as file:
        terms = [file[name].aggregated_data.split() for name in ("tas", "pr")]
        assert terms[0][:4] == terms[1][:4] == ["map:", "cfa_map_tas", "uris:", "cfa_uris_tas"]
        assert "cfa_uris_pr" not in file.variables
    assert times_of(master) == [0, 1, 2]
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as ds:
        assert np.array_equal(ds.pr.values, field([0, 1, 2]) + 1)


def test_readers_see_the_old_or_the_new_table(tmp_path: Path) -> None:
    files, master = steps(tmp_path, range(20)), tmp_path / "m.nca"
    aggregate(files[:2], master)

    def read(_: int) -> list[list[float]]:
        seen = [times_of(master)]
        while len(seen[-1]) < len(files):
            seen.append(times_of(master))
        return seen

    with ThreadPoolExecutor(3) as pool:
        found = pool.map(read, range(3))
        for file in files[2:]:
            aggregate([file], master, append=True)
        for seen in found:
            assert all(times == [*range(len(times))] for times in seen)
            assert seen == sorted(seen, key=len)


# -- in S3 ----------------------------------------------------------------------------------------


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with proxy_to(s3_server) as proxy:
        yield proxy


def options_of(server: S3Server, proxy: Proxy) -> dict[str, Any]:
    endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
    return {**server.signed(), "endpoint_url": endpoint}


def begun(
    tmp_path: Path, server: S3Server, options: Any, count: int, **attributes: Any
) -> tuple[list[str], str]:
    """Return files in a bucket, and a master of the first of them."""
    folder = f"{server.private}/living/{tmp_path.name}"
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for n in range(count):
        fs.put_file(step(tmp_path / f"{n}.nc", [n], **attributes), f"{folder}/{n}.nc")
    files, master = [f"s3://{folder}/{n}.nc" for n in range(count)], f"s3://{folder}/m.nca"
    aggregate(files[:1], master, dim="time", storage_options=options)
    return files, master


def test_an_append_costs_two_requests_besides_those_of_the_files(
    tmp_path: Path, s3_server: S3Server, proxy: Proxy
) -> None:
    options = options_of(s3_server, proxy)
    files, master = begun(tmp_path, s3_server, options, 4)
    append = partial(aggregate, output=master, append=True, storage_options=options)
    append(files[:2])  # finds out that the service puts on conditions
    asked = []
    for more in (files[2:], files):
        before = proxy.requests
        append(more)
        asked.append(proxy.requests - before)
    assert asked == [2 + 2, 1]
    assert times_of(master, options) == [0, 1, 2, 3]


@pytest.mark.parametrize("ignores", [False, True])
def test_of_two_writers_one_is_told(
    ignores: bool,
    tmp_path: Path,
    s3_server: S3Server,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the service ignores that a put has a condition, by the claim."""
    options = options_of(s3_server, proxy)
    direct = s3fs.S3FileSystem(**s3_server.signed(), skip_instance_cache=True)
    proxy.put_always = direct.pipe_file if ignores else None
    files, master = begun(tmp_path, s3_server, options, 3)
    append = partial(aggregate, output=master, append=True, storage_options=options)
    inside: list[str] = []

    def meanwhile(*arguments: Any) -> list[int]:
        if not inside:
            inside.append(files[1])
            if ignores:
                with pytest.raises(ConflictError, match="is being written"):
                    append(inside)
            else:
                append(inside)
        return read_files(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(joining, "read_files", meanwhile)
        if ignores:
            append(files[2:])
        else:
            with pytest.raises(ConflictError, match="was changed by another writer meanwhile"):
                append(files[2:])
    assert times_of(master, options) == [0, 2 if ignores else 1]
    append(files)
    assert times_of(master, options) == [0, 1, 2]
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    names = sorted(path.rpartition("/")[2] for path in fs.find(master.rpartition("/")[0]))
    assert names == ["0.nc", "1.nc", "2.nc", "m.nca"]


def test_a_master_that_is_replaced_while_it_is_opened_is_opened_anew(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = s3_server.signed()
    files, master = begun(tmp_path, s3_server, options, 2, note="more than the first answer" * 5000)
    fetch, replaced = RemoteFileBytes.fetch, False

    async def replacing(source: RemoteFileBytes, extents: Any) -> Any:
        nonlocal replaced
        if not replaced:
            replaced = True
            append = partial(aggregate, files, master, append=True, storage_options=options)
            await asyncio.to_thread(append)
        return await fetch(source, extents)

    monkeypatch.setattr(RemoteFileBytes, "fetch", replacing)
    assert times_of(master, options) == [0, 1]
    assert replaced


def store_of(tmp_path: Path, server: S3Server) -> WritableStore:
    target = f"s3://{server.private}/swapped/{tmp_path.name}"
    store = open_destination(target, server.signed()).store
    assert store is not None
    return store


def test_an_object_is_replaced_in_place_of_one_version(tmp_path: Path, s3_server: S3Server) -> None:
    store = store_of(tmp_path, s3_server)
    assert store.swaps
    assert store.get_versioned("a") is None
    store.put("a", b"one")
    found = store.get_versioned("a")
    assert found is not None
    data, version = found
    assert data == b"one"
    assert store.replace("a", b"two", version)
    assert not store.replace("a", b"three", version)
    assert store.replace("a", b"two", version)  # as if the answer had been lost
    assert not store.replace("b", b"four", version)
    assert store.keys_below("") == ["a"]
