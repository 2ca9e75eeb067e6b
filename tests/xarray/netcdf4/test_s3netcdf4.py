"""What S3netCDF4's documentation and tests promise, by its names, as far as its design has it.

Written from its README and the workflow of its own tests (`test_s3Dataset.py`), without their text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.cli.main import main
from nczarr_xarray.netcdf4 import Dataset
from tests.support.servers.s3server import S3Server

GROUPED = ("NETCDF4", "CFA4")
DAYS, LEVELS, LATITUDES, LONGITUDES = 37, 1, 19, 36


def write(path: Any, kind: str, **options: Any) -> None:
    """Write what its tests write: a field in a group, where the format has groups, and a vector."""
    nc = Dataset(path, format=kind, mode="w", diskless=False, persist=False, **options)
    nc.history = f"Test of {kind}"
    group = nc.createGroup("test_group") if kind in GROUPED else nc
    group.group_class = "Surface variables"
    for name, length, axis in (
        ("time", DAYS, "T"),
        ("level", LEVELS, "Z"),
        ("latitude", LATITUDES, "Y"),
        ("longitude", LONGITUDES, "X"),
    ):
        group.createDimension(name, length)
        coordinate = group.createVariable(name, np.float32, (name,))
        coordinate[:] = np.arange(length)
        coordinate.axis = axis
        coordinate.setncatts({"name": "value", "test": 234235})
    shape: dict[str, Any] = {"subarray_shape": np.array([12, 1, LATITUDES, LONGITUDES], "i")}
    tmp = group.createVariable(
        "tmp",
        np.float32,
        ("time", "level", "latitude", "longitude"),
        fill_value=2e20,
        **(shape if kind.startswith("CFA") else {}),
    )
    tmp.standard_name = "temperature"
    tmp.setncattr("long_name", "Surface temperature at 1m")
    nc.createVariable("scl", np.float32)
    nc.createDimension("vector", 128)
    nc.createVariable("vector", np.int32, ("vector",))[:] = 12 + np.arange(128)
    velocity = nc.createVariable("velocity", np.float32, ("vector",))
    velocity.units = "ms-1"
    tmp[:, :, :, :] = 250.0
    velocity[0] = 10.0
    nc.close()


def check(path: Any, kind: str, **options: Any) -> None:
    nc = Dataset(path, mode="r", **options)
    group = nc.groups["test_group"] if kind in GROUPED else nc
    tmp = group.variables["tmp"]
    assert tmp.shape == (DAYS, LEVELS, LATITUDES, LONGITUDES)
    assert tmp.ncattrs() == ["_FillValue", "standard_name", "long_name"]
    np.testing.assert_array_equal(tmp[:, 0, 0, 0], np.full(DAYS, 250, np.float32))
    np.testing.assert_array_equal(tmp[3:30:7, :, ::-5, [1, 4]], np.full((4, 1, 4, 2), 250.0))
    assert group.variables["time"].test == 234235
    velocity = nc.variables["velocity"]
    assert velocity[0] == 10
    assert velocity[1:].mask.all()
    assert nc.variables["vector"][:2].tolist() == [12, 13]
    assert nc.variables["scl"][...].mask
    assert nc.getncattr("history") == f"Test of {kind}"
    nc.close()


KINDS = [
    ("NETCDF4", "0.4"),
    ("NETCDF4", "0.5"),
    ("NETCDF3_CLASSIC", "0.4"),
    ("CFA4", "0.4"),
    ("CFA4", "0.6.2"),
    ("CFA4", "1.13"),
    ("CFA3", "0.4"),
]


@pytest.mark.parametrize(("kind", "version"), KINDS)
def test_write_and_read(tmp_path: Path, kind: str, version: str) -> None:
    path = tmp_path / "s3Dataset_test.nc"
    write(path, kind, cfa_version=version)
    check(path, kind)
    assert path.read_bytes()[:3] == (b"CDF" if "3" in kind else b"\x89HD")
    folder = path.with_suffix("")
    assert folder.exists() == kind.startswith("CFA")
    if folder.exists():
        field = "test_group_tmp" if kind == "CFA4" else "tmp"
        assert folder.joinpath(f"{folder.name}.{field}.3.0.0.0.nc").exists()


@pytest.mark.parametrize(("kind", "version"), [("NETCDF3_CLASSIC", "0.5"), ("CFA3", "0.5")])
def test_version_5_needs_groups(tmp_path: Path, kind: str, version: str) -> None:
    with pytest.raises((ExportError, ValueError)):
        write(tmp_path / "x.nc", kind, cfa_version=version)


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF3_CLASSIC", "CFA4", "CFA3"])
def test_write_and_read_on_s3_by_an_alias(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The same program: only the name of the file is another one."""
    host = {
        "alias": "tenancy-0",
        "url": s3_server.endpoint,
        "credentials": {"accessKey": s3_server.access_key, "secretKey": s3_server.secret_key},
        "backend": "s3aioFileObject",
        "api": "S3v4",
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"version": "9", "hosts": {"s3://tenancy-0": host}}))
    monkeypatch.setenv("S3_NC_CONFIG", str(config))
    path = f"s3://tenancy-0/{s3_server.public}/s3netcdf4/{kind}.nc"
    write(path, kind)
    check(path, kind)


# -- the README -----------------------------------------------------------------------------------


def test_files_are_named_after_the_master_and_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "a7tzga.pdl4feb.nca"
    with Dataset(path, "w", format="CFA4") as nc:
        nc.createDimension("t", 4)
        nc.createDimension("x", 2)
        nc.createVariable("field16", "f4", ("t",), subarray_shape=[2])[:] = 1
        nc.createVariable("field1", "f4", ("t", "x"), subarray_shape=[2, 1])[:] = 1
    folder = path.with_suffix("")
    assert sorted(file.name for file in folder.iterdir()) == [
        "a7tzga.pdl4feb.field1.0.0.nc",
        "a7tzga.pdl4feb.field1.0.1.nc",
        "a7tzga.pdl4feb.field1.1.0.nc",
        "a7tzga.pdl4feb.field1.1.1.nc",
        "a7tzga.pdl4feb.field16.0.nc",
        "a7tzga.pdl4feb.field16.1.nc",
    ]


def test_each_fragment_describes_itself(tmp_path: Path) -> None:
    """It has the dimensions, coordinates and attributes of its part, and one variable."""
    path = tmp_path / "m.nca"
    write(path, "CFA4")
    with netCDF4.Dataset(path.with_suffix("") / "m.test_group_tmp.1.0.0.0.nc") as part:
        assert [*part.variables] == ["time", "level", "latitude", "longitude", "tmp"]
        assert part["tmp"].shape == (12, 1, LATITUDES, LONGITUDES)
        assert part["time"][:].tolist() == list(range(12, 24))
        assert part["tmp"].standard_name == "temperature"


def test_the_master_holds_coordinates_and_no_field(tmp_path: Path) -> None:
    path = tmp_path / "m.nca"
    write(path, "CFA4")
    with netCDF4.Dataset(path) as master:
        group = master["test_group"]
        assert group["tmp"].shape == ()
        assert [
            part["location"][0] for part in json.loads(group["tmp"].cfa_array)["Partitions"]
        ] == [
            [0, 11],
            [12, 23],
            [24, 35],
            [36, 36],
        ]
        assert group["latitude"][:].tolist() == list(range(LATITUDES))


def test_fragments_are_made_where_something_is_written(tmp_path: Path) -> None:
    path = tmp_path / "sparse.nca"
    with Dataset(path, "w", format="CFA4") as nc:
        for name in ("lat", "lon"):
            nc.createDimension(name, 1000)
        field = nc.createVariable("field", "i2", ("lat", "lon"), subarray_shape=(10, 10))
        field[515, 38] = 3
        field[516, 39] = 4  # of the same fragment
    names = sorted(file.name for file in path.with_suffix("").iterdir())
    assert names == ["sparse.field.51.3.nc", "sparse.field.missing.10.10.nc"]  # of all others
    with Dataset(path, "r") as nc:
        found = nc.variables["field"][510:520, 30:41]
        assert found.count() == 2
        assert found[5, 8] == 3
        assert nc.variables["field"][0:100:9].mask.all()


@pytest.mark.parametrize(("parts", "grid"), [(1, (1, 1, 1)), (4, (2, 2, 1)), (16, (4, 2, 2))])
def test_large_fields_are_split_in_time_and_in_space(
    tmp_path: Path, parts: int, grid: tuple[int, ...]
) -> None:
    path = tmp_path / "m.nca"
    with Dataset(path, "w", format="CFA4") as nc:
        for name, length in (("time", 24), ("latitude", 30), ("longitude", 60)):
            nc.createDimension(name, length)
        dimensions = ("time", "latitude", "longitude")
        nc.createVariable("v", "f4", dimensions, max_subarray_size=4 * 24 * 30 * 60 // parts)[:] = 1
    names = {tuple(map(int, file.name.split(".")[2:5])) for file in path.with_suffix("").iterdir()}
    assert names == {*np.ndindex(*grid)}


def test_attributes_as_members_and_by_methods(tmp_path: Path) -> None:
    path = tmp_path / "m.nca"
    with Dataset(path, mode="w", diskless=True, format="CFA3") as nc:
        nc.createDimension("lat", 5)
        latitudes = nc.createVariable("lat", "f4", ("lat",))
        field = nc.createVariable("tmp", "f4", ("lat",))
        nc.source = "a test"
        latitudes.units = "degrees north"
        field.author = "somebody"
    with Dataset(path) as nc:
        assert nc.ncattrs() == ["source"]
        assert nc.variables["tmp"].author == nc.variables["tmp"].getncattr("author") == "somebody"
        assert nc.variables["lat"].units == "degrees north"


def test_appending_and_updating(tmp_path: Path) -> None:
    path = tmp_path / "m.nca"
    with Dataset(path, "w", format="CFA4") as nc:
        nc.createDimension("time", None)
        nc.createVariable("time", "f4", ("time",))[:] = [0, 1, 2]
        nc.createVariable("v", "f4", ("time",), subarray_shape=[2])[:] = [0, 1, 2]
    with Dataset(path, "a") as nc:
        nc.variables["time"][3:6] = [3, 4, 5]
        nc.variables["v"][3:6] = [3, 4, 5]
        nc.variables["v"][0] = -1
    with Dataset(path) as nc:
        assert nc.variables["v"][:].tolist() == [-1, 1, 2, 3, 4, 5]
    assert len([*path.with_suffix("").iterdir()]) == 3


# -- its programs ---------------------------------------------------------------------------------


def test_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """split, info, mv and agg."""
    source, master = tmp_path / "whole.nc", tmp_path / "m.nca"
    with netCDF4.Dataset(source, "w") as nc:
        nc.createDimension("time", 40)
        nc.createVariable("time", "f8", ("time",))[:] = np.arange(40)
        nc.createDimension("x", 100)
        nc.createVariable("x", "f8", ("x",))[:] = np.arange(100)
        nc.createVariable("v", "f8", ("time", "x"))[:] = np.arange(4000).reshape(40, 100)
    split = [str(source), str(master), "--cfa-version", "0.4", "--max-object-size", "8kB"]
    assert main(["copy", *split, "--no-progress"]) == 0
    fragments = sorted(master.with_suffix("").iterdir())
    assert len(fragments) == 4
    capsys.readouterr()
    assert main(["info", str(master), "--fragments"]) == 0
    assert f"{fragments[-1].name} v" in capsys.readouterr().out
    moved = tmp_path / "elsewhere"
    master.with_suffix("").rename(moved)
    old_and_new = f"{master.with_suffix('')}/={moved}/"
    move = [str(master), str(master), "--overwrite", "--cfa-version", "0.4"]
    assert main(["convert-refs", *move, "--replace", old_and_new]) == 0
    with Dataset(master) as nc:
        assert nc["v"][39, 99] == 3999
    again = tmp_path / "again.nca"
    listed = [str(moved / one.name) for one in fragments]
    assert main(["aggregate", *listed, "-o", str(again), "--cfa-version", "0.4"]) == 0
    with Dataset(again) as nc:
        assert nc["v"][:].sum() == sum(range(4000))
