"""Every command that doctor prints is carried out; others read the copy, and no fault is left."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import h5netcdf
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import nczarr_xarray
from nczarr_xarray.cli.main import main
from nczarr_xarray.tools.checks.commands import MENDED
from nczarr_xarray.tools.doctor import Report
from tests.support.builders.cmip import drafts
from tests.support.oracles.nc_adapter import find_ncdump, ncdump
from tests.support.servers.realservers import range_server
from tests.support.servers.s3server import S3Server
from tests.xarray.tools.test_check import oracle

STEPS, ROWS, COLUMNS = 100, 64, 128
DIMS = ("time", "y", "x")
SMALL = (1, 16, 32)
#: All values, by the path of a variable.
VALUES: dict[str, np.ndarray] = {
    "v": np.random.default_rng(0).integers(0, 99, (STEPS, ROWS, COLUMNS)).astype("f4"),
    "time": np.arange(STEPS, dtype="f8"),
    "y": np.arange(ROWS, dtype="f8"),
    "x": np.arange(COLUMNS, dtype="f8"),
    **{name: np.arange(ROWS, dtype="i4") * number for number, name in enumerate("abcdef")},
}


def dims_of(name: str) -> tuple[str, ...]:
    return DIMS if name == "v" else (name,) if name in DIMS else ("y",)


def dataset() -> xr.Dataset:
    return xr.Dataset({name: (dims_of(name), values) for name, values in VALUES.items()})


def netcdf(
    path: Path, kind: str = "NETCDF4", group: str = "/", chunks: Any = SMALL, **options: Any
) -> Path:
    """Write the values with netCDF4; the index of the chunks is scattered."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        for name, length in zip(DIMS, (None, ROWS, COLUMNS), strict=True):
            file.createDimension(name, length)
        here = file.createGroup(group) if group != "/" else file
        for name, values in VALUES.items():
            how = {}
            if kind == "NETCDF4":
                how = {"v": {"chunksizes": chunks, **options}, "time": {"chunksizes": (10,)}}
            variable = here.createVariable(name, values.dtype, dims_of(name), **how.get(name, {}))
            variable[:] = values
    return path


def with_hole(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["gone"] = np.ones(1 << 18)
        for name, values in VALUES.items():
            file[name] = values
        for name in DIMS:
            file[name].make_scale(name)
        for name in VALUES:
            for axis, dim in enumerate(dims_of(name)):
                if dim != name:
                    file[name].dims[axis].attach_scale(file[dim])
    with h5py.File(path, "a") as file:
        del file["gone"]
    return path


def large(path: Path) -> Path:
    """One chunk is larger than 64 MiB, and most of it lies beyond the shape."""
    return netcdf(path, chunks=(STEPS * 25, ROWS, COLUMNS), zlib=True)


def tree(path: Path, *options: str, mode: str = "") -> Path:
    source = netcdf(path.with_name("source.nc"))
    target = f"file://{path}{mode}" if mode else str(path)
    assert main(["copy", str(source), target, *options]) == 0
    source.unlink()
    return path


def of_zarr(path: Path, version: Any, **encoding: Any) -> Path:
    how = {"v": {"chunks": SMALL, **encoding}, "time": {"chunks": (10,)}}
    made = dataset().to_zarr(path, zarr_format=version, consolidated=False, encoding=how)
    assert made is not None
    return path


def aggregation(path: Path) -> Path:
    parts = path.parent / "parts"
    parts.mkdir()
    for step in range(STEPS):
        dataset().isel(time=[step]).to_netcdf(parts / f"{step:03}.nc", engine="netcdf4")
    assert main(["aggregate", f"{parts}/*.nc", "-o", str(path)]) == 0
    return path


def references(path: Path) -> Path:
    netcdf(path.with_suffix(".nc"))
    assert main(["refs", str(path.with_suffix(".nc")), str(path)]) == 0
    return path


Maker = Callable[[Path], Path]
#: Datasets of all kinds: their name, what writes them, and some of what doctor finds.
SOURCES: dict[str, tuple[Maker, set[str]]] = {
    "it's small.nc": (netcdf, {"small-chunks", "single-steps", "divided-coordinate"}),
    "-series.nc": (lambda p: netcdf(p, chunks=(STEPS, 2, 2)), {"uncompressed", "small-chunks"}),
    "plain.nc4": (lambda p: netcdf(p, chunks=(STEPS, ROWS, 64), zlib=True, shuffle=False),
                  {"no-shuffle"}),
    "large.nc": (large, {"large-chunks", "padding"}),
    "group.h5": (lambda p: netcdf(p, group="/g/h"), {"small-chunks"}),
    "hole.h5": (with_hole, {"lost-space", "uncompressed"}),
    "classic.nc": (lambda p: netcdf(p, "NETCDF3_CLASSIC"), {"uncompressed"}),
    "cdf5.cdf": (lambda p: netcdf(p, "NETCDF3_64BIT_DATA"), {"uncompressed"}),
    "all.nca": (aggregation, {"small-fragments"}),
    "refs.json": (references, {"small-chunks"}),
    "tree.nczarr": (tree, {"small-chunks", "not-consolidated"}),
    "tree.nc": (lambda p: tree(p, mode="#mode=nczarr,file"), {"small-chunks"}),
    "old": (lambda p: tree(p, "--compat", "4.8.1", "--fixed"), {"small-chunks"}),
    "tree.zip": (tree, {"small-chunks"}),
    "pure.zarr": (lambda p: of_zarr(p, 2), {"small-chunks", "not-consolidated"}),
    "pure.zip": (lambda p: tree(p, "--format", "Zarr2"), {"small-chunks"}),
    "three.zarr": (lambda p: of_zarr(p, 3), {"small-chunks", "not-consolidated"}),
    "shards": (lambda p: of_zarr(p, 3, shards=(50, 64, 128)), {"shards", "small-chunks"}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(report: Report) -> dict[str, str]:
    """The commands that the report prints as a user sees them, by layout."""
    found: dict[str, str] = {}
    for line in str(report).splitlines():
        before, mark, words = line.partition("nczarr copy ")
        if mark:
            found[before.strip()] = mark + words
    assert found == report.commands
    return found


def read(target: str) -> dict[str, np.ndarray]:
    """The values at a local path as netCDF4 or zarr-python reads them."""
    if os.path.isfile(target) and not zipfile.is_zipfile(target):
        with netCDF4.Dataset(target) as file:
            groups: list[Any] = [file]
            for group in groups:
                groups += group.groups.values()
            return {name: v[:].data for one in groups for name, v in one.variables.items()}
    if os.path.isfile(target):
        with zipfile.ZipFile(target) as archive:
            archive.extractall(f"{target}.d")
        target = os.path.dirname(next(Path(f"{target}.d").rglob("v")))
    group = zarr.open_group(target, mode="r", use_consolidated=False)
    return {name: np.asarray(array[...]) for name, array in group.arrays()}


def carried_out(report: Report, options: Any = None, run: Any = main) -> Iterator[str]:
    """Carry out all commands; yield their targets. The first mends what was found."""
    for number, (layout, text) in enumerate(printed(report).items()):
        words = shlex.split(text)
        assert words[0] == "nczarr"
        assert run(words[1:]) == 0, text
        target = words[3]
        yield target
        again = nczarr_xarray.doctor(target, storage_options=options, variable=report.variable)
        found = {one.code for one in (*again.findings, *(again.cmip7 or ())) if one.advice}
        if number == 0:
            assert not found & MENDED.keys(), (text, str(again))
        proposed = {one.layout: one.chunks for one in report.predictions}
        if layout in proposed and layout != "as it is":
            assert again.predictions[0].chunks == proposed[layout]


def check(report: Report) -> None:
    for target in carried_out(report):
        values = read(target)
        assert values.keys() == VALUES.keys()
        for name, wanted in VALUES.items():
            assert values[name].dtype.kind == wanted.dtype.kind
            np.testing.assert_array_equal(values[name], wanted, err_msg=f"{target}: {name}")


@pytest.mark.parametrize("name", SOURCES)
def test_local(tmp_path: Path, name: str) -> None:
    make, codes = SOURCES[name]
    make(tmp_path / name)
    report = nczarr_xarray.doctor(name)
    assert codes <= {one.code for one in report.findings}, str(report)
    check(report)


@pytest.mark.parametrize("mode", ["zarr", "nczarr,zip", "bytes"])
def test_modes_of_urls(tmp_path: Path, mode: str) -> None:
    if mode == "bytes":
        url = f"file://{netcdf(tmp_path / 'data')}#mode=bytes"
    elif mode == "zarr":
        url = f"file://{of_zarr(tmp_path / 'x', 2)}#mode=zarr"
    else:
        path = tree(tmp_path / "x.zip")
        url = f"file://{path.rename(tmp_path / 'archive')}#mode=nczarr,zip"
    report = nczarr_xarray.doctor(url)
    for target in carried_out(report):
        place = target.removeprefix("file://").partition("#")[0]
        np.testing.assert_array_equal(read(place)["v"], VALUES["v"])


@pytest.mark.parametrize("name", ["small.nc", "classic.nc", "tree.nczarr", "tree.zip", "all.zarr"])
def test_http(tmp_path: Path, name: str) -> None:
    """Nothing can be written there: copies are in the working directory."""
    there = tmp_path / "server"
    there.mkdir()
    if name == "all.zarr":
        tree(there / name, "--format", "Zarr3", "--consolidated")
    else:
        SOURCES.get(name, SOURCES["it's small.nc"])[0](there / name)
    with range_server(there) as server:
        check(nczarr_xarray.doctor(f"{server.url}/{name}"))
    assert all("-" in one.name for one in tmp_path.iterdir() if one != there)


@pytest.mark.parametrize("name", ["small.nc", "tree.nczarr", "pure.zarr", "three.zarr"])
def test_s3(tmp_path: Path, name: str, s3_server: S3Server) -> None:
    """Copies are beside their source; secrets are not printed."""
    make = SOURCES.get(name, SOURCES["it's small.nc"])[0]
    made = make(tmp_path / name)
    signed = s3_server.signed()
    fs = fsspec.filesystem("s3", **signed)
    base = f"{s3_server.private}/doctor-{os.getpid()}"
    fs.put(str(made), f"{base}/{name}", recursive=made.is_dir())
    report = nczarr_xarray.doctor(f"s3://{base}/{name}", storage_options=signed)
    text = str(report)
    assert signed["key"] not in text
    assert signed["secret"] not in text
    assert "your own secrets for ***" in text

    def run(words: list[str]) -> int:
        filled = {f"{name}=***": f"{name}={value}" for name, value in signed.items()}
        return main([filled.get(word, word) for word in words])

    for target in carried_out(report, signed, run):
        assert target.startswith(f"s3://{base}/")
        local = str(tmp_path / "copy") + os.path.splitext(target)[1]
        fs.get(target, local, recursive=made.is_dir())
        np.testing.assert_array_equal(read(local)["v"], VALUES["v"])
        fsspec.filesystem("file").rm(local, recursive=True)
    anonymous = {**signed, "anon": True}
    anonymous.pop("key"), anonymous.pop("secret")
    fs.put(str(made), f"{s3_server.public}/doctor-{name}", recursive=made.is_dir())
    report = nczarr_xarray.doctor(f"s3://{s3_server.public}/doctor-{name}",
                                  storage_options=anonymous)  # fmt: skip
    assert "***" not in str(report)
    check(report)


def test_cmip(tmp_path: Path) -> None:
    file = drafts(1, cells=160)[0]
    dims, values, attributes, options = file.variables["tas"]
    options |= {"chunks": (1, 16, 160)}
    file.variables["time"][3]["chunks"] = (1,)
    file.block = 2048
    path = file.write(tmp_path)
    report = nczarr_xarray.doctor(path)
    assert "CMIP7 packing: FAIL" in str(report)
    targets = list(carried_out(report))
    oracle(*targets)
    for target in targets:
        with h5netcdf.File(target) as copied:
            np.testing.assert_array_equal(copied["tas"][...], values)
    for finding in report.cmip7 or ():
        words = shlex.split(finding.advice.partition(": ")[2])
        assert main(words[1:]) == 0
        oracle(str(path))
    del dims, attributes


def test_a_shell_takes_a_command(tmp_path: Path) -> None:
    netcdf(tmp_path / "$(touch x) 'y\".nc")
    (text, *_) = printed(nczarr_xarray.doctor("$(touch x) 'y\".nc")).values()
    command = f"{shlex.quote(sys.executable)} -m nczarr_xarray{text.removeprefix('nczarr')}"
    subprocess.run(["sh", "-c", command], check=True)
    assert {one.name for one in tmp_path.iterdir()} == {
        "$(touch x) 'y\".nc", "$(touch x) 'y\"-balanced.nc",
    }  # fmt: skip


def test_names_that_are_taken(tmp_path: Path) -> None:
    netcdf(tmp_path / "x.nc")
    check(nczarr_xarray.doctor("x.nc"))
    (text, *_) = nczarr_xarray.doctor("x.nc").commands.values()
    assert text == "nczarr copy x.nc x-balanced-2.nc --optimize --compress zlib"


def test_addresses_go_along(tmp_path: Path) -> None:
    aggregation(tmp_path / "all.nca")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "all.nca").rename(tmp_path / "elsewhere" / "all.nca")
    (tmp_path / "parts").rename(tmp_path / "moved")
    report = nczarr_xarray.doctor(
        "elsewhere/all.nca", replace={"parts/": f"{tmp_path}/moved/"}, allow=str(tmp_path)
    )
    check(report)


def test_what_a_copy_would_lack(tmp_path: Path) -> None:
    path = netcdf(tmp_path / "x.nc")
    with netCDF4.Dataset(path, "a") as file:
        kind = file.createCompoundType(np.dtype([("a", "i4")]), "pair")
        file.createVariable("pairs", kind, ("y",))
    report = nczarr_xarray.doctor(path)
    assert not report.commands
    assert "no copy is proposed, for it would lack /pairs" in str(report)


def test_nothing_to_do(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 5)
        file.createVariable("v", "f4", ("x",))[:] = 1
    report = nczarr_xarray.doctor(tmp_path / "x.nc")
    assert not report.commands
    assert str(report).endswith("no copy would be better")


def test_stale_consolidated_metadata(tmp_path: Path) -> None:
    path = tree(tmp_path / "a tree", "--consolidated")
    attributes = path / "v" / ".zattrs"
    attributes.write_text(json.dumps({**json.loads(attributes.read_text()), "units": "K"}))
    (finding,) = (f for f in nczarr_xarray.doctor(path).findings if f.code == "consolidated-stale")
    words = shlex.split(finding.advice.partition(": ")[2])
    assert main(words[1:]) == 0
    assert "consolidated-stale" not in {f.code for f in nczarr_xarray.doctor(path).findings}


def test_ncdump_reads_a_copy(tmp_path: Path) -> None:
    program, reason = find_ncdump()
    if program is None:
        pytest.skip(f"there is no ncdump: {reason}")
    source = netcdf(tmp_path / "x.nc")
    for target in carried_out(nczarr_xarray.doctor(source)):
        one, other = (ncdump("-n", "x", str(path)) for path in (source, target))
        assert one == other
