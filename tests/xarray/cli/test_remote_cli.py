"""The command line with classic and HDF5 files at URLs, against ncdump."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from tests.support.builders.remotefiles import FORMATS, expected
from tests.support.builders.slabs import sizes_read
from tests.support.marks import slow_but
from tests.support.oracles.nc_adapter import ncdump
from tests.support.servers.realservers import RangeServer


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


def cdl(path: Path, *options: str, name: str = "x") -> str:
    return ncdump(*options, "-n", name, str(path))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


@pytest.mark.parametrize("name", slow_but(FORMATS, "h5.nc", "c1.nc"))
def test_dump(
    server: RangeServer, root: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    stem = name.partition(".")[0]
    url = f"{server.url}/{name}"
    assert run(capsys, "dump", "-h", url) == cdl(root / name, "-h", name=stem)
    assert server.control("stats")["bytes"] < 300_000
    assert run(capsys, "dump", f"{url}#mode=bytes") == cdl(root / name, name=stem)
    assert run(capsys, "dump", "-v", "x,time", root / name) == cdl(
        root / name, "-v", "x,time", name=stem
    )


def test_info(
    server: RangeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # one line a variable
    shown = run(capsys, "info", f"{server.url}/h5.nc")
    assert "  format    HDF5, as netCDF-4\n" in shown
    assert "  store     one file over http\n" in shown
    assert "consolidated" not in shown
    assert re.search(r"v3 +float +time 100 × y 25 × x 26 +260 kB +20 of 10 × 25 × 13 +shuf", shown)
    assert "/model/run" in shown
    shown = run(capsys, "info", f"{server.url}/c5.nc#mode=bytes")
    assert "  format    netCDF 64-bit data (CDF-5)\n" in shown
    assert "v3         float big-endian    time 100 × y 25 × x 26   260 kB" in shown
    assert server.control("stats")["bytes"] < 400_000


@pytest.mark.parametrize("command", ["info", "dump"])
def test_what_is_not_there(
    server: RangeServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, f"{server.url}/nope.nc"]) == 1
    message = capsys.readouterr().err
    assert "no such file (HTTP status 404" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("name", slow_but(FORMATS, "h5.nc"))
@pytest.mark.parametrize("where", slow_but(["remote", "local"], "remote"))
def test_copy(server: RangeServer, root: Path, tmp_path: Path, name: str, where: str) -> None:
    """To NCZarr and from that to netCDF; and to netCDF at once: nothing is lost on the way."""
    source = f"{server.url}/{name}" if where == "remote" else root / name
    for target in ("x.nczarr", "x.zip", "direct.nc"):
        assert main(["copy", str(source), str(tmp_path / target)]) == 0
    for target in ("x.nczarr", "x.zip"):
        assert main(["copy", str(tmp_path / target), str(tmp_path / f"{target}.nc")]) == 0
        with xr.open_dataset(tmp_path / target, engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), expected(root / name))
    if name == "c5.nc":  # of CDF-5 an old ncdump does not know
        for copy in ("x.nczarr.nc", "x.zip.nc", "direct.nc"):
            xr.testing.assert_identical(expected(tmp_path / copy), expected(root / name))
        return
    right = cdl(root / name)
    for copy in ("x.nczarr.nc", "x.zip.nc", "direct.nc"):
        assert cdl(tmp_path / copy) == right


@pytest.mark.parametrize("compat", ["4.9.2", "4.8.1"])
def test_copy_for_old_releases(root: Path, tmp_path: Path, compat: str) -> None:
    """Which do not know big-endian data, and the oldest neither codecs nor scalars."""
    dataset = expected(root / "h5.nc").drop_vars(["text", "scalar"])
    dataset.encoding.clear()  # nor are there unlimited dimensions
    kinds: tuple[Any, ...] = ("NETCDF4", "NETCDF3_64BIT_DATA")
    for kind in kinds:
        path = tmp_path / f"{kind}.nc"
        encoding: Any = {"v3": {"zlib": True, "shuffle": True}} if kind == "NETCDF4" else None
        dataset.to_netcdf(path, format=kind, engine="netcdf4", encoding=encoding)
        copy = tmp_path / f"{kind}.{compat}"
        assert main(["copy", str(path), str(copy), "--compat", compat]) == 0
        with xr.open_dataset(copy, engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), expected(path))


def test_storage_of_a_copy(root: Path, tmp_path: Path) -> None:
    """Chunks and codecs as in HDF5, byte order but that of classic files; szip becomes zlib."""
    options: dict[str, dict[str, Any]] = {
        "zlib": {"compression": "zlib"},
        "zstd": {"compression": "zstd"},
        "bzip2": {"compression": "bzip2"},
        "blosc": {"compression": "blosc_lz4"},
        "szip": {"compression": "szip", "szip_pixels_per_block": 8},
        "sums": {"fletcher32": True, "shuffle": False},
    }
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("x", 600)
        ds.createDimension("t", None)
        for name, given in options.items():
            variable = ds.createVariable(name, "f4", ("x",), chunksizes=(400,), **given)
            variable[:] = range(600)
        ds.createVariable("big", ">f8", ("x",), endian="big")[:] = range(600)
        ds.createVariable("records", "i4", ("t", "x"), fill_value=7)[3] = range(600)
    assert main(["copy", str(tmp_path / "x.nc"), str(tmp_path / "y")]) == 0
    with open_hierarchy(str(tmp_path / "y")) as opened:
        arrays: Any = {n: v.array for n, v in opened.hierarchy.root.variables.items()}
        ids = {name: [c["id"] for c in array.codecs] for name, array in arrays.items()}
        assert ids == {
            "zlib": ["shuffle", "zlib"],
            "zstd": ["zstd"],
            "bzip2": ["bz2"],
            "blosc": ["blosc"],
            "szip": ["zlib"],
            "sums": ["fletcher32"],
            "big": [],
            "records": [],
        }
        assert arrays["zlib"].chunk_shape == (400,)
        assert arrays["big"].dtype == np.dtype(">f8")
        assert arrays["records"].fill == 7
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as ds:
        xr.testing.assert_identical(ds.load(), expected(tmp_path / "x.nc"))
    assert main(["copy", str(root / "c1.nc"), str(tmp_path / "z")]) == 0
    with open_hierarchy(str(tmp_path / "z")) as opened:
        array: Any = opened.hierarchy.root.variables["v3"].array
        assert array.dtype == np.dtype("<f4")
        assert array.chunk_shape == (1, 25, 26)


@pytest.mark.parametrize("target", ["y", "y.nc"])
@pytest.mark.parametrize("name", ["h5.nc", "c2.nc"])
def test_no_more_is_read_at_a_time_than_a_slab(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    """Also of variables in one piece."""
    sizes = sizes_read(monkeypatch, 20_000)
    assert main(["copy", str(root / name), str(tmp_path / target)]) == 0
    assert max(sizes) <= 20_000


def test_types_that_cannot_be_copied_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("x", 3)
        kind = ds.createVLType(np.int32, "vl")
        values = np.empty(3, object)
        values[:] = [np.arange(n, dtype="i4") for n in range(1, 4)]
        ds.createVariable("w", kind, ("x",))[:] = values
        ds.createVariable("v", "i4", ("x",))[:] = range(3)
    for target in ("y", "y.nc"):
        assert main(["copy", str(tmp_path / "x.nc"), str(tmp_path / target)]) == 1
        assert "/w" in capsys.readouterr().err
        with xr.open_dataset(tmp_path / target, engine="nczarr") as copied:
            assert list(copied) == ["v"]
