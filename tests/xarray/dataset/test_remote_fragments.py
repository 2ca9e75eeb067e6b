"""Fragments behind a network: what is asked for, and what goes wrong there."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    StoreError,
    URLError,
)
from nczarr_fsspec.transport.request import Extent
from nczarr_xarray.dataset.fragment_datasets import Opening, RemoteFragment
from nczarr_xarray.dataset.fragments import AggregationReaders, FragmentReader
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.model import FragmentArray, FragmentPlace, Fragments
from tests.support.servers.httpserver import Server
from tests.support.servers.realservers import RangeServer, range_server

COUNT = 9
ALL = slice(None)


def write(path: Path, number: int, shape: tuple[int, int] = (2, 3)) -> None:
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC" if number % 3 else "NETCDF4") as file:
        file.createDimension("time", shape[0])
        file.createDimension("x", shape[1])
        file.createVariable("x", "f8", ("x",))[:] = 0.0
        tas = file.createVariable("tas", "f4", ("time", "x"))
        tas[:] = np.arange(shape[0] * shape[1]).reshape(shape) + 100 * number


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fragments")
    for number in range(COUNT):
        write(folder / f"f{number}.nc", number)
    shutil.copy(folder / "f1.nc", folder / "plain")
    (folder / "page.nc").write_text("<html>No such page</html>")
    write(folder / "wide.nc", 0, (2, 4))
    write(folder / "large.nc", 0, (2, 100_000))
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[RangeServer]:
    with range_server(root) as running:
        yield running


def own(name: str) -> Opening:
    raise AssertionError(name)


def reader(url: str, names: list[str], variable: str = "tas", width: int = 3) -> FragmentReader:
    """Read what lies in files along a first dimension."""
    count = len(names)
    starts, none = np.arange(count) * 2, np.zeros(1, np.int64)
    addresses, paths, formats = (np.empty(count, object) for _ in range(3))
    addresses[:], paths[:], formats[:] = names, variable, ""
    ends = (starts + 2, none + width)
    table = Fragments((starts, none), ends, addresses, paths, formats)
    array = FragmentArray("/tas", (2 * count, width), np.dtype("f4"), table, np.float32(-9))
    policy = AddressPolicy.of(f"{url}/m.nca")
    return AggregationReaders(own, open_with, policy, 0).selections(array)


def names_of(count: int) -> list[str]:
    return [f"f{number}.nc" for number in range(count)]


def whole(count: int) -> np.ndarray[Any, Any]:
    parts = [np.arange(6).reshape(2, 3) + 100 * number for number in range(count)]
    return np.concatenate(parts).astype("f4")


def test_one_or_two_requests_a_file(server: RangeServer) -> None:
    server.set()
    found = reader(server.url, names_of(COUNT))
    np.testing.assert_array_equal(found.read((ALL, ALL), points=False), whole(COUNT))
    assert server.requests <= 2 * COUNT
    server.set()  # what was learned of the files is known
    np.testing.assert_array_equal(found.read((ALL, 1), points=False), whole(COUNT)[:, 1])
    assert server.requests <= COUNT


def test_only_what_is_needed(server: RangeServer) -> None:
    server.set()
    found = reader(server.url, names_of(COUNT)).read((slice(3, 5), ALL), points=False)
    np.testing.assert_array_equal(found, whole(COUNT)[3:5])
    assert {request["path"] for request in server.control("log")} == {"/f1.nc", "/f2.nc"}


def test_points(server: RangeServer) -> None:
    server.set()
    key = (np.array([0, 7, 7, 16]), np.array([2, 1, 0, 1]))
    found = reader(server.url, names_of(COUNT)).read(key, points=True)
    np.testing.assert_array_equal(found, whole(COUNT)[key])


@pytest.mark.parametrize(
    "knobs", [{"e503": 5}, {"trunc": 5}, {"reset": 3}, {"norange": 1}], ids=str
)
def test_faults(server: RangeServer, knobs: dict[str, int]) -> None:
    server.set(**knobs)
    found = reader(server.url, names_of(COUNT)).read((ALL, ALL), points=False)
    np.testing.assert_array_equal(found, whole(COUNT))


def test_a_name_that_does_not_tell_what_it_is(server: RangeServer) -> None:
    server.set()
    found = reader(server.url, ["f0.nc", "plain"]).read((ALL, ALL), points=False)
    np.testing.assert_array_equal(found, whole(2))


def test_a_file_that_is_gone(server: RangeServer) -> None:
    server.set()
    names = [*names_of(3), "f99.nc"]
    with pytest.raises(DatasetNotFoundError, match=r"f99\.nc: .*fragment \(3, 0\) of /tas"):
        reader(server.url, names).read((ALL, ALL), points=False)
    found = reader(server.url, names).read((slice(0, 6), ALL), points=False)
    np.testing.assert_array_equal(found, whole(3))


@pytest.mark.parametrize(
    ("name", "variable", "reason"),
    [
        ("f0.nc", "pr", r"f0\.nc: has no variable 'pr' \(fragment \(0, 0\) of /tas\)"),
        pytest.param("f0.nc", "#" + "9" * 5000, "has no variable '#9999", id="number"),
        (
            "wide.nc",
            "tas",
            r"tas: has the shape \(2, 4\).*\(in .*wide\.nc\) \(fragment \(0, 0\) of /tas\)",
        ),
        ("page.nc", "tas", r"page\.nc"),
    ],
)
def test_a_file_that_is_another(server: RangeServer, name: str, variable: str, reason: str) -> None:
    server.set()
    with pytest.raises((FormatError, StoreError), match=reason):
        reader(server.url, [name], variable).read((ALL, ALL), points=False)


def test_a_file_that_changes(server: RangeServer) -> None:
    server.set()
    found = reader(server.url, ["large.nc"], width=100_000)
    found.read((slice(0, 1), ALL), points=False)
    server.change("/large.nc")
    with pytest.raises(StoreError, match=r"has changed.*fragment \(0, 0\) of /tas"):
        found.read((slice(1, 2), ALL), points=False)


def write_alike(folder: Path, number: int, stored: str) -> None:
    """Write one of the files that differ in their data only."""
    chunks = {"chunksizes": (1, 3), "zlib": True, "shuffle": True} if stored == "chunks" else {}
    with netCDF4.Dataset(folder / f"a{number}.nc", "w") as file:
        file.createDimension("time", 2)
        file.createDimension("x", 3)
        tas = file.createVariable("tas", "f4", ("time", "x"), **chunks)
        tas[:] = np.arange(6).reshape(2, 3) + 100 * number


class TestAlike:
    """Small files that differ in their data are fetched one by one, and decoded together."""

    count = 40
    names = tuple(f"a{number}.nc" for number in range(count))

    @pytest.fixture(params=["chunks", "plain"])
    def folder(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        for number in range(self.count):
            write_alike(tmp_path, number, request.param)
        return tmp_path

    def test_any_selection(self, folder: Path) -> None:
        values = whole(self.count)
        with range_server(folder) as server:
            found = reader(server.url, list(self.names))
            for _ in range(2):
                np.testing.assert_array_equal(found.read((ALL, ALL), points=False), values)
            assert server.requests == self.count  # all bytes came with the first answers
            key = (slice(1, None, 2), slice(1, 3))
            np.testing.assert_array_equal(found.read(key, points=False), values[key])
            points = (np.array([0, 79, 7, 7]), np.array([2, 1, 0, 1]))
            np.testing.assert_array_equal(found.read(points, points=True), values[points])

    def test_others_among_them(self, folder: Path) -> None:
        for number in (3, 30, 31):  # classic, of more metadata, of another index of chunks
            write(folder / f"a{number}.nc", number)
        with netCDF4.Dataset(folder / "a20.nc", "a") as file:
            file["tas"].setncattr("comment", "longer than what was there")
        with range_server(folder) as server:
            found = reader(server.url, list(self.names)).read((ALL, ALL), points=False)
        np.testing.assert_array_equal(found, whole(self.count))

    def test_one_that_is_gone(self, folder: Path) -> None:
        (folder / "a35.nc").unlink()
        with (
            range_server(folder) as server,
            pytest.raises(DatasetNotFoundError, match=r"a35\.nc: .*fragment \(35, 0\) of /tas"),
        ):
            reader(server.url, list(self.names)).read((ALL, ALL), points=False)

    def test_one_that_is_cut_off(self, folder: Path) -> None:
        path = folder / "a35.nc"
        path.write_bytes(path.read_bytes()[:-1])
        with (
            range_server(folder) as server,
            pytest.raises((FormatError, StoreError), match=r"fragment \(35, 0\) of /tas"),
        ):
            reader(server.url, list(self.names)).read((ALL, ALL), points=False)

    @pytest.mark.parametrize("folder", ["chunks"], indirect=True)
    def test_a_chunk_that_is_damaged(self, folder: Path) -> None:
        path = folder / "a35.nc"
        with h5py.File(path) as file:
            start = file["tas"].id.get_chunk_info(1).byte_offset
        data = bytearray(path.read_bytes())
        data[start : start + 4] = b"\xff" * 4
        path.write_bytes(data)
        with range_server(folder) as server:
            found = reader(server.url, list(self.names))
            with pytest.raises(FormatError, match=r"fragment \(35, 0\) of /tas"):
                found.read((ALL, ALL), points=False)
            np.testing.assert_array_equal(found.read((slice(0, 70), ALL), points=False), whole(35))


@pytest.mark.parametrize(
    "base",
    ["http://127.0.0.1:8000/folder/", "https://example.org/a%20b/", "s3://bucket/key/", ""],
)
@pytest.mark.parametrize("name", ["b.nc", "x-1_2+3.nc4"])
def test_files_of_a_folder_are_found_like_the_first(base: str, name: str) -> None:
    policy = AddressPolicy.of("http://127.0.0.1:8000/m.nca", allow=True)

    def find(datasets: AggregationReaders, file: str) -> RemoteFragment:
        place = FragmentPlace(f"{base}{file}", "/g/tas", "")
        found = datasets.find(place, entire=False)
        assert isinstance(found, RemoteFragment)
        return found

    alone, after = (AggregationReaders(own, open_with, policy, 0) for _ in range(2))
    expected = find(alone, name)
    find(after, "first.nc")
    found = find(after, name)
    for one in ("url", "identity", "location"):
        assert getattr(found.source, one) == getattr(expected.source, one)
    assert replace(found, source=expected.source) == expected
    assert find(after, "first.nc").source.url.endswith("first.nc")


def test_what_is_no_file_by_its_name_is_not_found_like_the_first() -> None:
    datasets = AggregationReaders(own, open_with, AddressPolicy.of("http://h/m.nca"), 0)
    for name, is_file in {"a.nc": True, "b": False, "c.zarr": False, "d.nc": True}.items():
        found = datasets.find(FragmentPlace(name, "tas", ""), entire=False)
        assert (found is not None) is is_file


def test_what_may_not_be_opened_is_not_found_like_the_first() -> None:
    allow = ["http://other/folder/a.nc", "http://other/open/"]
    policy = AddressPolicy.of("http://h/m.nca", allow=allow)
    datasets = AggregationReaders(own, open_with, policy, 0)
    for address in ("folder/a.nc", "open/a.nc", "open/b.nc"):
        place = FragmentPlace(f"http://other/{address}", "tas", "")
        assert datasets.find(place, entire=False) is not None
    with pytest.raises(AccessDeniedError):
        datasets.find(FragmentPlace("http://other/folder/b.nc", "tas", ""), entire=False)


def test_options_of_one_file_are_not_those_of_its_folder() -> None:
    allow = {
        "http://other/": {"headers": {"X": "all"}},
        "http://other/f/b.nc": {"headers": {"X": "one"}},
    }
    policy = AddressPolicy.of("http://h/m.nca", allow=allow)
    datasets = AggregationReaders(own, open_with, policy, 0)
    for name, value in {"a.nc": "all", "b.nc": "one", "c.nc": "all"}.items():
        found = datasets.find(FragmentPlace(f"http://other/f/{name}", "tas", ""), entire=False)
        assert isinstance(found, RemoteFragment)
        assert found.source.location[0].storage_options["headers"]["X"] == value


def test_rc_lines_of_one_file_are_not_those_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rc = tmp_path / "rc"
    rc.write_text("[http://h/f/b.nc]HTTP.USERAGENT=one\n")
    monkeypatch.setenv("NCRCENV_RC", str(rc))
    monkeypatch.delenv("NCRCENV_IGNORE", raising=False)
    datasets = AggregationReaders(own, open_with, AddressPolicy.of("http://h/f/m.nca"), 0)
    for name, agent in {"a.nc": None, "b.nc": "one", "c.nc": None}.items():
        found = datasets.find(FragmentPlace(name, "tas", ""), entire=False)
        assert isinstance(found, RemoteFragment)
        headers = found.source.location[0].storage_options.get("headers", {})
        assert headers.get("User-Agent") == agent


def test_files_of_a_folder_are_closed_one_by_one(server: RangeServer) -> None:
    server.set()
    policy = AddressPolicy.of(f"{server.url}/m.nca")
    datasets = AggregationReaders(own, open_with, policy, 0)
    found = [datasets.find(FragmentPlace(name, "tas", ""), entire=False) for name in names_of(3)]
    first, *others = [one.source for one in found if isinstance(one, RemoteFragment)]
    for source in (first, *others):
        source.run(source.begin(None))
    first.close()
    for source in others:
        assert source.run(source.fetch([Extent(0, 4)]))[0] == source.head[:4]


def test_many_variables_at_a_time(server: RangeServer, root: Path) -> None:
    """Each waits in a thread; none of these may be one that decodes what is waited for."""
    count, length = 6, 300_000
    with netCDF4.Dataset(root / "chunked.nc", "w") as file:
        file.createDimension("x", length)
        chunked = file.createVariable("v", "f8", ("x",), chunksizes=(length // 2,), zlib=True)
        chunked[:] = np.arange(length)
    with netCDF4.Dataset(root / "many.nc", "w") as file:
        file.createDimension("x", length)
        for name in range(count):
            variable = file.createVariable(f"v{name}", "f8", ())
            variable.cf_role, variable.cfa_dimensions = "cfa_variable", "x"
            part = {"ncvar": "v", "file": "chunked.nc", "format": "netCDF", "shape": [length]}
            partition = {"index": [0], "location": [[0, length - 1]], "subarray": part}
            variable.cfa_array = json.dumps(
                {"Partitions": [partition], "pmshape": [1], "pmdimensions": ["x"]}
            )
    server.set()
    with xr.open_dataset(f"{server.url}/many.nc", engine="nczarr") as ds:
        loaded = asyncio.run(ds.load_async())
        for name in range(count):
            assert loaded[f"v{name}"].values[-1] == length - 1


def test_trees_are_read_at_the_same_time(server: RangeServer, root: Path) -> None:
    names = [f"t{number}.nczarr" for number in range(12)]
    for number, name in enumerate(names):
        values = np.arange(6, dtype="f4").reshape(2, 3) + 100 * number
        ds = xr.Dataset({"tas": (("time", "x"), values)})
        ds.nczarr.to_nczarr(root / name, consolidated=True)
    server.set(latency_ms=20)
    found = reader(server.url, [f"{name}#mode=nczarr" for name in names])
    np.testing.assert_array_equal(found.read((ALL, ALL), points=False), whole(12))
    counted = server.control("stats")
    # requests that waited for others; one tree after the other, all of them would
    assert counted["depth"] < counted["requests"] / 2


def test_a_tree_that_is_gone_is_not_missing_data(
    server: RangeServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks._BELIEVED", 0)
    server.set()
    names = ["tree0.nczarr", "tree1.nczarr"]
    for number, name in enumerate(names):
        values = np.arange(6.0, dtype="f4").reshape(2, 3) + number
        xr.Dataset({"tas": (("time", "x"), values)}).nczarr.to_nczarr(root / name)
    found = reader(server.url, names)
    before = found.read((ALL, ALL), points=False)
    np.testing.assert_array_equal(found.read((ALL, ALL), points=False), before)
    shutil.rmtree(root / names[1])
    with pytest.raises(
        StoreError, match=r"tree1\.nczarr.*not there any more.*fragment \(1, 0\) of /tas"
    ):
        found.read((ALL, ALL), points=False)
    np.testing.assert_array_equal(found.read((slice(0, 2), ALL), points=False), before[:2])


def test_bounds_of_a_local_master_hold_for_its_fragments(root: Path, tmp_path: Path) -> None:
    names = ["f1.nc", "f2.nc"]
    files = {f"/{name}": (root / name).read_bytes() for name in names}
    master = tmp_path / "m.nca"
    with Server(files, ranges="ignored") as plain:
        urls = [f"{plain.url}/{name}" for name in names]
        nczarr_xarray.aggregate(urls, master, dim="time")
        options: dict[str, Any] = {"timeout": {"whole": 60}, "max_whole": 1_000_000}
        with xr.open_dataset(master, engine="nczarr", storage_options=options) as ds:
            assert ds["tas"].shape == (4, 3)
            assert ds["tas"][2, 0] == 200
        options = {"timeout": {"hours": 1}}
        with pytest.raises(URLError, match="timeout has no hours"):
            xr.open_dataset(master, engine="nczarr", storage_options=options)
