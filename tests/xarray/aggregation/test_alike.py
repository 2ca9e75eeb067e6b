"""Remote files that are alike: what is not parsed is what parsing finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray.aggregation import files as reading_one
from nczarr_xarray.aggregation.api import aggregate
from nczarr_xarray.dataset.fragment_datasets import open_begun
from tests.support.builders.manyfiles import TIME, Given, field, step, write
from tests.support.servers.httpserver import Server

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

COUNT = 6
CHUNKED = {**TIME, "chunksizes": (1,)}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are parsed."""
    memory.clear()
    names = []

    async def noted(source: Any, options: Any) -> Any:
        names.append(source.url.rpartition("/")[2])
        return await open_begun(source, options)

    monkeypatch.setattr(reading_one, "open_begun", noted)
    return names


@contextmanager
def served(folder: Path) -> Iterator[list[str]]:
    """Serve the files of a folder; yield their URLs."""
    names = sorted(path.name for path in folder.glob("*.nc"))
    with Server({f"/{name}": (folder / name).read_bytes() for name in names}) as server:
        yield [f"{server.url}/{name}" for name in names]


def steps(folder: Path, **options: Any) -> None:
    for n in range(COUNT):
        step(folder / f"{n}.nc", [2 * n, 2 * n + 1], **options)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"time": CHUNKED},
    "classic": {"form": "NETCDF3_CLASSIC"},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_of_them_is_parsed(tmp_path: Path, parsed: list[str], form: dict[str, Any]) -> None:
    steps(tmp_path, **form)
    with served(tmp_path) as urls:
        aggregate(urls[::-1], tmp_path / "m.nca")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as ds:
            assert np.array_equal(ds.time, np.arange(2 * COUNT))
            assert np.array_equal(ds.tas, field([*range(2 * COUNT)]))
    assert len(parsed) == 1


OTHERS: dict[str, dict[str, Any]] = {
    "a global attribute": {"title": "other"},
    "a deflated coordinate": {"time": {**CHUNKED, "zlib": True}},
    "another calendar's name": {"time": {**TIME, "calendar": "gregorian"}},
    "a classic file": {"form": "NETCDF3_CLASSIC"},
    "an attribute of a coordinate": {"time": {**TIME, "axis": "T"}},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_those_that_are_not_are_parsed_too(
    tmp_path: Path, parsed: list[str], options: dict[str, Any]
) -> None:
    steps(tmp_path)
    step(tmp_path / "3.nc", [6, 7], **options)
    aggregate(sorted(tmp_path.glob("*.nc")), tmp_path / "here.nca", relative=False)
    with served(tmp_path) as urls:
        aggregate(urls, tmp_path / "there.nca")
        names = (tmp_path / "here.nca", tmp_path / "there.nca")
        here, there = (xr.open_dataset(n, engine="nczarr", decode_times=False) for n in names)
        with here, there:
            xr.testing.assert_identical(here.load(), there.load())
    assert "3.nc" in parsed
    assert len(parsed) <= 3


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other units": ({"time": {"units": "m"}}, "units"),
    "one more variable": ({"more": {"y": (("y",), [1.0], {})}}, "variable"),
}


@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    steps(tmp_path)
    step(tmp_path / "4.nc", [8, 9], **options)
    with served(tmp_path) as urls, pytest.raises(ExportError, match=rf"4\.nc.*{words}"):
        aggregate(urls, tmp_path / "m.nca")


def test_a_damaged_chunk_index_is_named(tmp_path: Path, parsed: list[str]) -> None:
    steps(tmp_path, time=CHUNKED)
    path = tmp_path / "2.nc"
    content = path.read_bytes()
    assert b"TREE\1" in content
    path.write_bytes(content.replace(b"TREE\1", b"TREX\1"))
    with served(tmp_path) as urls, pytest.raises(ExportError, match=r"2\.nc.*coordinate.*time"):
        aggregate(urls, tmp_path / "m.nca")
    assert len(parsed) == 1


@pytest.mark.parametrize("cut", [1, 200, 4000])
def test_a_file_that_is_cut_is_named(tmp_path: Path, parsed: list[str], cut: int) -> None:
    steps(tmp_path)
    path = tmp_path / "5.nc"
    path.write_bytes(path.read_bytes()[:-cut])
    with served(tmp_path) as urls:
        try:
            aggregate(urls, tmp_path / "m.nca")
        except NCZarrError as error:
            assert "5.nc" in str(error)
    assert "5.nc" in parsed


def test_a_text_coordinate_is_parsed_for_each(tmp_path: Path, parsed: list[str]) -> None:
    for n in range(3):
        given: dict[str, Given] = {
            "name": (("name",), [f"station {n}"], {}),
            "v": (("name",), [float(n)], {}),
        }
        write(tmp_path / f"{n}.nc", given)
    with served(tmp_path) as urls:
        aggregate(urls, tmp_path / "m.nca")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
            assert ds.name.values.tolist() == ["station 0", "station 1", "station 2"]
    assert len(parsed) == 3


def test_files_of_many_kinds(tmp_path: Path, parsed: list[str]) -> None:
    for n in range(12):
        step(tmp_path / f"{n:02}.nc", [n], history=f"made by run {n}")
    with served(tmp_path) as urls:
        aggregate(urls, tmp_path / "m.nca")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as ds:
            assert np.array_equal(ds.tas, field([*range(12)]))
            assert ds.attrs.get("history") is None
    assert len(parsed) == 12


def test_metadata_that_lie_far_back(tmp_path: Path, parsed: list[str]) -> None:
    for n in range(3):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            file.createDimension("time", 1)
            file.createDimension("x", 50_000)
            file.createVariable("tas", "f4", ("time", "x"))[:] = np.arange(50_000)[None] + n
            file.sync()
            file.createVariable("time", "f8", ("time",))[:] = n
    with served(tmp_path) as urls:
        aggregate(urls, tmp_path / "m.nca")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as ds:
            assert np.array_equal(ds.tas.values[:, 7], [7, 8, 9])
            assert np.array_equal(ds.time, [0, 1, 2])


def test_coordinates_that_lie_far_back(tmp_path: Path, parsed: list[str]) -> None:
    for n in range(3):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            file.createDimension("time", 1)
            file.createDimension("x", 50_000)
            for name, dimensions in {"tas": ("time", "x"), "time": ("time",)}.items():
                file.createVariable(name, "f8", dimensions)
            file["tas"][:] = np.arange(50_000)[None] + n
            file["time"][:] = n
    with served(tmp_path) as urls:
        aggregate(urls, tmp_path / "m.nca")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as ds:
            assert np.array_equal(ds.time, [0, 1, 2])
    assert len(parsed) == 1
