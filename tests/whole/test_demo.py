"""The embedded dataset, what it weighs and whether it ships, and the demo that shows it."""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
from matplotlib.image import imread

from nczarr_xarray.cli import demo, demo_remote
from nczarr_xarray.cli.main import build_parser, main
from tests.support.builders.trees import read_tree

ROOT = Path(__file__).parents[2]
GROUPS = ("/", "relief", "nino12", "mauna_loa")


def test_dataset_is_nczarr_of_netcdf_c_and_small() -> None:
    content = read_tree(demo.DATASET)
    assert b'"_NCProperties": "version=2,netcdf=4.10.1,nczarr=2.0.0"' in content[".zattrs"]
    assert sum(map(len, content.values())) < 400_000


@pytest.mark.parametrize("group", GROUPS)
def test_dataset_opens_as_netcdf_c_reads_it(group: str) -> None:
    url = f"file://{demo.DATASET}#mode=nczarr,file"
    with (
        xr.open_dataset(url, engine="netcdf4", group=group) as expected,
        xr.open_dataset(demo.DATASET, engine="nczarr", group=group) as ours,
    ):
        xr.testing.assert_identical(ours, expected)
        assert {name: v.dtype for name, v in ours.variables.items()} == {
            name: v.dtype for name, v in expected.variables.items()
        }


@pytest.mark.slow
def test_wheel_and_sdist_carry_the_whole_dataset(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t", "wheel", "-t", "sdist"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    place = demo.DATASET.relative_to(ROOT).as_posix()
    expected = {f"{place}/{name}": hash_of(data) for name, data in read_tree(demo.DATASET).items()}
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name: hash_of(archive.read(name)) for name in archive.namelist()}
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        in_sdist = {
            member.name.partition("/")[2]: hash_of(file.read())
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }
    assert expected.items() <= in_wheel.items()
    assert expected.items() <= in_sdist.items()
    typed = {"nczarr_xarray/py.typed", "nczarr_fsspec/py.typed"}
    assert typed <= in_wheel.keys()
    assert "nczarr_xarray/demo_data/SOURCES.md" in in_wheel


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.slow  # the quick tests run the command as the docs have it
def test_demo_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = build_parser(["demo"]).parse_args(
        ["demo", "--output", str(tmp_path / "new" / "directory")]
    )

    assert args.run(args) == 0

    out = capsys.readouterr().out
    with netCDF4.Dataset(f"file://{demo.DATASET}#mode=nczarr,file") as nc:
        sst = nc["sst"][:]
        weights = np.cos(np.deg2rad(nc["lat"][:]))[:, None] * np.ones(sst.shape[1:])
    enough = np.ma.count(sst, axis=0) >= demo.MONTHS_NEEDED
    mean = np.ma.average(np.ma.masked_where(~enough, sst.mean(axis=0)), weights=weights)
    assert f"{mean:.1f} °C" in out
    assert "Ocean and climate observations" in out
    exported = tmp_path / "new" / "directory" / "year.nczarr"
    assert str(exported) in out
    with netCDF4.Dataset(f"file://{exported}#mode=nczarr,file") as nc:
        stored = nc["sst"][:]
        assert nc["sst"].filters()["zlib"]
    np.testing.assert_allclose(
        stored.filled(np.nan), np.where(enough, sst.mean(axis=0), np.nan), rtol=1e-6
    )
    readers = "|".join(demo_remote.READERS)
    printed = re.findall(rf"  ({readers}): (\d+\.\d\d) s, (\d+) requests, (\d+\.\d\d) MB\n", out)
    assert [reader for reader, *_ in printed] == list(demo_remote.READERS)
    assert float(printed[0][3]) < 1
    assert float(printed[1][3]) > 1
    for name in ("map.png", "series.png", "requests.png"):
        path = tmp_path / "new" / "directory" / name
        assert str(path) in out
        picture = imread(path)
        assert picture.shape[0] > 500
        assert picture.shape[1] > 1000
        assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 100


def test_both_readers_get_the_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_remote, "LATENCY", 0.0)
    with xr.open_dataset(demo.DATASET, engine="nczarr") as climate:
        files = {name: demo_remote.netcdf4(climate, 2) for name in ("first.nc", "sst.nc")}
    with netCDF4.Dataset("sst.nc", memory=files["sst.nc"]) as nc:
        place = np.searchsorted(nc["lat"][:], 1), np.searchsorted(nc["lon"][:], 219)
        expected = nc["sst"][(slice(None), *place)].filled(np.nan)
        assert nc["sst"].filters()["zlib"]
    reads = demo_remote.measure(files)
    assert [read.reader for read in reads] == list(demo_remote.READERS)
    assert len(reads[0].requests) < 6  # several ranges are one request
    for read in reads:
        np.testing.assert_array_equal(read.values, expected)
        assert np.isfinite(read.values).all()
        assert read.seconds > 0
        assert 0 < sum(one.nbytes for one in read.requests) <= 2 * len(files["sst.nc"])
        assert all(one.asked <= one.answered <= one.sent for one in read.requests)


def test_demo_says_what_it_misses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert main(["demo", "--output", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "aiohttp, dask, h5netcdf, h5py, matplotlib" in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_map_in_the_readme_is_the_demo_s(tmp_path: Path) -> None:
    assert demo.run(argparse.Namespace(output=tmp_path)) == 0
    committed, drawn = imread(ROOT / "docs/img/demo-map.png"), imread(tmp_path / "map.png")
    assert committed.shape == drawn.shape
    # fonts differ between machines and versions of matplotlib, the map does not
    assert np.abs(committed - drawn).mean() < 0.02
