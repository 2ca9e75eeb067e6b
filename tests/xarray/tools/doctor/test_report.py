"""What doctor says of layouts: findings, the verdict of CMIP7, and the forms of the report."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xarray import open_dataset
from xarray.testing import assert_identical

import nczarr_xarray
from nczarr_fsspec.errors import UsageError
from nczarr_xarray.cli.main import main
from nczarr_xarray.tools.predict import PROPOSALS
from tests.support.servers.realservers import range_server

MIB = 1 << 20


def write(
    path: Path,
    chunks: Any = None,
    time_chunks: Any = None,
    *,
    fixed: bool = False,
    noise: bool = False,
    **options: Any,
) -> Path:
    """Write ``v(time, y, x)``, 200 steps of 128 kB, and its coordinates."""
    with netCDF4.Dataset(path, "w") as ds:
        ds.variable_id, ds.mip_era = "v", "CMIP7"
        for name, length in (("time", 200 if fixed else None), ("y", 128), ("x", 256), ("bnds", 2)):
            ds.createDimension(name, length)
        time = ds.createVariable("time", "f8", ("time",), chunksizes=time_chunks)
        time[:] = np.arange(200)
        data = ds.createVariable("v", "f4", ("time", "y", "x"), chunksizes=chunks, **options)
        shape = 200, 128, 256
        random = np.random.default_rng(0)
        data[:] = random.integers(0, 99, shape) if noise else np.broadcast_to(np.arange(256), shape)
    return path


def codes(path: Path) -> set[tuple[str, str]]:
    return {(f.code, f.path) for f in nczarr_xarray.doctor(path).findings}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"chunks": (1, 16, 32), "zlib": True}, {("small-chunks", "/v"), ("single-steps", "/v")}),
        ({"chunks": (200, 128, 256)}, {("uncompressed", "/v")}),
        ({"chunks": (150, 100, 256), "zlib": True}, {("padding", "/v")}),
        ({"chunks": (50, 128, 256), "zlib": True, "shuffle": False}, {("no-shuffle", "/v")}),
        ({"time_chunks": (10,), "chunks": (50, 128, 256), "zlib": True},
         {("divided-coordinate", "/time")}),
        ({"chunks": (2, 128, 256), "zlib": True}, {("index-scattered", "/")}),
    ],
)  # fmt: skip
def test_findings(tmp_path: Path, options: Any, expected: set[tuple[str, str]]) -> None:
    options = {"time_chunks": (512,), **options}
    found = codes(write(tmp_path / "x.nc", **options))
    assert expected <= found
    assert found - expected <= {("index-scattered", "/")}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"bandwidth": value} for value in (0, -1, math.nan, math.inf, "10MB")),
        *({"latency": value} for value in (-0.01, math.nan, math.inf, "50ms")),
    ],
)
def test_networks_that_there_cannot_be(tmp_path: Path, wrong: Any) -> None:
    path = write(tmp_path / "x.nc")
    with pytest.raises(UsageError, match="is no number of"):
        nczarr_xarray.doctor(path, **wrong)


def test_a_good_layout_has_none(tmp_path: Path) -> None:
    assert not codes(write(tmp_path / "x.nc", (50, 128, 256), (512,), zlib=True))


def test_large_chunks(tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("x", 10 * MIB)
        large = ds.createVariable("large", "f8", ("x",), chunksizes=(9 * MIB,), zlib=True)
        large[:10] = 1
    assert ("large-chunks", "/large") in codes(path)


@pytest.mark.parametrize("chunks", [(1, 1), (300, 200)])
def test_lost_space(tmp_path: Path, chunks: tuple[int, int]) -> None:
    """What was deleted is lost; the index is not, which is larger than small chunks are."""
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("v", data=np.ones((300, 200)), chunks=chunks)
    assert ("lost-space", "/") not in codes(tmp_path / "x.nc")
    with h5py.File(tmp_path / "x.nc", "a") as file:
        file["w"] = np.ones(2 * MIB)
        file["last"] = np.ones(5)
    with h5py.File(tmp_path / "x.nc", "a") as file:
        del file["w"]
    assert ("lost-space", "/") in codes(tmp_path / "x.nc")


@pytest.mark.slow
def test_trees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "x.nc", (1, 64, 64), (512,), zlib=True)
    assert main(["copy", f"{tmp_path}/x.nc", f"{tmp_path}/x.nczarr"]) == 0
    report = nczarr_xarray.doctor(tmp_path / "x.nczarr")
    assert report.cmip7 is None
    assert {f.code for f in report.findings} == {"small-chunks", "single-steps"}
    series = report.predictions[0].costs["series"]
    assert series is not None
    assert (series.rounds, series.requests) == (1, 200)
    balanced = report.predictions[1].costs["series"]
    assert balanced is not None
    assert balanced.seconds < series.seconds
    with range_server(tmp_path) as server:
        url = f"{server.url}/x.nczarr"
        remote = nczarr_xarray.doctor(url)
        server.set()
        open_dataset(url, engine="nczarr").close()
        assert remote.opening.requests == server.control("stats")["requests"]
    (tmp_path / "x.nczarr" / "time" / ".zarray").write_text("{}")
    assert main(["doctor", f"{tmp_path}/x.nczarr"]) == 1
    assert "error    unreadable  /time: cannot be read" in capsys.readouterr().out


@pytest.mark.slow
def test_what_it_proposes_is_what_copy_makes(tmp_path: Path) -> None:
    source = write(tmp_path / "x.nc", (1, 16, 32), (10,), noise=True, zlib=True, complevel=1)
    assert main(["copy", str(source), f"{tmp_path}/y", "--optimize"]) == 0
    before, after = nczarr_xarray.doctor(source), nczarr_xarray.doctor(tmp_path / "y")
    assert after.predictions[0].chunks == before.predictions[1].chunks
    assert not after.findings
    with open_dataset(source) as one, open_dataset(tmp_path / "y", engine="nczarr") as other:
        assert_identical(one.load(), other.load())


@pytest.mark.parametrize("chunks", [None, (2, 3)])
def test_files_that_the_first_read_holds(tmp_path: Path, chunks: Any) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("y", 4)
        ds.createDimension("x", 3)
        ds.createVariable("v", "f8", ("y", "x"), chunksizes=chunks)[:] = 1
    report = nczarr_xarray.doctor(tmp_path / "x.nc")
    assert [one.layout for one in report.predictions] == ["as it is", "balanced"]
    requests = [
        {None if cost is None else cost.requests for cost in one.costs.values()}
        for one in report.predictions
    ]
    assert requests == [{0}, {1}]  # of the copy it is an object


@pytest.mark.parametrize("dtype", ["c16", "S4", "f8"])
def test_of_data_that_were_never_written_nothing_is_read(tmp_path: Path, dtype: str) -> None:
    with h5py.File(tmp_path / "d.nc", "w") as file:
        file.create_dataset("never", (1000,), dtype)
    prediction = nczarr_xarray.doctor(tmp_path / "d.nc").predictions[0]
    assert {None if c is None else c.requests for c in prediction.costs.values()} == {0}


def test_what_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    write(tmp_path / "x.nc", (50, 128, 256), (512,), zlib=True)
    assert main(["copy", f"{tmp_path}/x.nc", f"{tmp_path}/y"]) == 0
    for name in ("v", "time"):
        document = tmp_path / "y" / name / ".zarray"
        zarray = json.loads(document.read_text())
        document.write_text(json.dumps({**zarray, "compressor": {"id": "strange"}}))
    report = nczarr_xarray.doctor(tmp_path / "y")
    assert {f.path for f in report.findings if f.code == "unreadable"} == {"/time", "/v"}
    assert set(report.predictions[0].costs.values()) == {None}


def test_it_works_where_an_event_loop_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "v.nc", (20, 128, 256))

    async def cell() -> str:  # as Jupyter runs it
        return str(nczarr_xarray.doctor(path))

    assert asyncio.run(cell()) == str(nczarr_xarray.doctor(path))


def test_stale_consolidated_metadata(tmp_path: Path) -> None:
    write(tmp_path / "x.nc", (50, 128, 256), (512,), zlib=True)
    tree = tmp_path / "x.nczarr"
    assert main(["copy", f"{tmp_path}/x.nc", str(tree), "--consolidated"]) == 0
    assert not codes(tree)
    attributes = tree / "v" / ".zattrs"
    attributes.write_text(json.dumps({**json.loads(attributes.read_text()), "units": "K"}))
    assert codes(tree) == {("consolidated-stale", ".zmetadata")}


class TestCMIP7:
    """The verdicts are those of ``check_cmip7_packing`` 1.1.1 for the same files."""

    @pytest.mark.parametrize(
        ("options", "failures"),
        [
            ({"fixed": True}, set()),
            ({"fixed": True, "chunks": (200, 128, 256)}, set()),
            ({"fixed": True, "time_chunks": (20,)}, {"/time"}),
            ({"chunks": (200, 128, 256), "time_chunks": (200,)}, {"/"}),
            ({"chunks": (31, 128, 256), "time_chunks": (200,)}, {"/"}),
            ({"chunks": (30, 128, 256), "time_chunks": (200,)}, {"/", "/v"}),
            ({"chunks": (200, 128, 256), "time_chunks": (20,)}, {"/", "/time"}),
        ],
    )
    def test_verdicts(self, tmp_path: Path, options: Any, failures: set[str]) -> None:
        report = nczarr_xarray.doctor(write(tmp_path / "x.nc", **options))
        assert report.cmip7 is not None
        assert {failure.path for failure in report.cmip7} == failures


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write(folder / "<x>.nc", (10, 64, 64), (512,), noise=True, zlib=True, complevel=1)


class TestForms:
    def test_json(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", str(path), "--json", "--latency", "20ms", "--bandwidth", "5MB"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["network"]["latency"] == 0.02
        assert found["network"]["bandwidth"] == 5_000_000
        assert found["predictions"][0]["chunks"] == [10, 64, 64]
        assert found["predictions"][0]["costs"]["map"]["rounds"] >= 1

    def test_text(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", str(path)]) == 0
        printed = capsys.readouterr().out
        assert printed == f"{nczarr_xarray.doctor(path)}\n"
        assert "10 × 64 × 64" in printed

    def test_a_variable_is_chosen(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", str(path), "--var", "time"]) == 0
        assert "/time, over 50 ms" in capsys.readouterr().out
        assert main(["doctor", str(path), "--var", "w"]) == 2
        assert "there are: /time, /v" in capsys.readouterr().err

    @pytest.mark.parametrize("wrong", [["--latency", "50"], ["--bandwidth", "much"]])
    def test_wrong_arguments(self, path: Path, wrong: list[str]) -> None:
        with pytest.raises(SystemExit):
            main(["doctor", str(path), *wrong])

    def test_remote(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        local = nczarr_xarray.doctor(path)
        with range_server(path.parent) as server:
            remote = nczarr_xarray.doctor(f"{server.url}/%3Cx%3E.nc")
            moved = server.control("stats")["bytes"]
        assert remote.findings == local.findings
        assert remote.predictions == local.predictions
        assert remote.opening == local.opening
        assert moved < (remote.size or 0) / 10


def test_a_notebook_shows_the_whole_report(tmp_path: Path) -> None:
    report = nczarr_xarray.doctor(write(tmp_path / "x.nc", (1, 16, 32), zlib=True))
    shown = report._repr_html_()
    assert shown.startswith(f"<div><p><b>{report.url}</b></p><p>format hdf5, ")
    assert shown.count("<table>") == 2 + bool(report.commands)
    costs = sum(len(one.costs) for one in report.predictions)
    found = len(report.findings) + len(report.cmip7 or ())
    assert shown.count("<tr>") == 2 + found + costs + len(report.commands)


@given(
    st.lists(st.integers(1, 5000), min_size=2, max_size=5),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(sorted(PROPOSALS)),
)
def test_proposed_chunks_fit(shape: list[int], itemsize: int, name: str) -> None:
    chunks = PROPOSALS[name](shape, itemsize)
    assert all(1 <= chunk <= length for chunk, length in zip(chunks, shape, strict=True))
    plane = math.prod(shape[max(1, len(shape) - 2) :]) * itemsize
    least = plane if name == "whole maps" else 0
    assert math.prod(chunks) * itemsize <= max(2 * 4 * MIB, least)


@pytest.mark.parametrize("shape", [[1 << 62, 1 << 62], [0, 5], []])
def test_odd_shapes_take_no_time(tmp_path: Path, shape: list[int]) -> None:
    zarray = {
        "zarr_format": 2, "shape": shape, "chunks": [1] * len(shape), "dtype": "<f4",
        "compressor": None, "filters": None, "fill_value": 0, "order": "C",
    }  # fmt: skip
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / ".zarray").write_text(json.dumps(zarray))
    report = nczarr_xarray.doctor(tmp_path)
    assert report.variable == "/v"
    if shape and all(shape):
        assert report.predictions[0].costs["everything"] is None
    assert str(report)
