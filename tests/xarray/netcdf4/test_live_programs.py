"""Programs that are made for netCDF4-python take our datasets, remote ones too.

`python3 ci/run.py programs` installs them, and says which it could not. Elsewhere the tests of what
is not installed are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

import nczarr_xarray.netcdf4 as ours
from tests.support.servers.realservers import range_server
from tests.support.servers.s3server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.servers]


def grid(nc: Any) -> None:
    """Write a field of CF with packed and missing values, and labels of characters."""
    nc.Conventions = "CF-1.8"
    nc.createDimension("time", None)
    for name, standard, units, length in (
        ("lat", "latitude", "degrees_north", 3),
        ("lon", "longitude", "degrees_east", 4),
    ):
        nc.createDimension(name, length)
        along = nc.createVariable(name, "f8", (name,))
        along.setncatts({"standard_name": standard, "units": units})
        along[:] = 10.0 * np.arange(length)
    time = nc.createVariable("time", "f8", ("time",))
    time.setncatts({"standard_name": "time", "units": "days since 2000-01-01"})
    time.calendar = "standard"
    time[:] = np.arange(5)
    nc.createDimension("length", 5)
    label = nc.createVariable("label", "S1", ("time", "length"))
    label.long_name = "label"
    label[:] = netCDF4.stringtochar(np.array(["abc"] * 5, "S5"))
    tas = nc.createVariable("tas", "i2", ("time", "lat", "lon"), fill_value=-1)
    tas.setncatts({"scale_factor": 0.5, "add_offset": 250.0, "units": "K"})
    tas.setncatts({"standard_name": "air_temperature", "cell_methods": "time: mean"})
    tas.coordinates = "label"
    tas[:] = np.ma.masked_equal(250 + np.arange(60).reshape(5, 3, 4) / 2, 251)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as nc:
        grid(nc)
    return tmp_path / "a.nc"


@pytest.mark.parametrize(
    ("name", "form"), [("a.nczarr", "NETCDF4"), ("a.nca", "CFA4")], ids=["nczarr", "master"]
)
def test_iris_loads_lazily_from_s3(path: Path, name: str, form: str, s3_server: S3Server) -> None:
    iris = pytest.importorskip("iris")
    url, options = f"s3://{s3_server.public}/programs/{name}", s3_server.signed()
    with ours.Dataset(url, "w", format=form, storage_options=options) as nc:
        grid(nc)
    (expected,) = iris.load(str(path))
    with ours.Dataset(url, storage_options=options) as nc:
        (cube,) = iris.load(nc)
        assert cube.has_lazy_data()
        assert cube.summary() == expected.summary()
        np.testing.assert_array_equal(cube.data.filled(0), expected.data.filled(0))
        np.testing.assert_array_equal(cube.data.mask, expected.data.mask)


def checked(dataset: Any) -> list[tuple[str, Any, list[str]]]:
    """Return what compliance-checker finds, but for the end of the name of the file."""
    suite = pytest.importorskip("compliance_checker.suite").CheckSuite
    base = pytest.importorskip("compliance_checker.base").BaseNCCheck
    base.supported_ds = [netCDF4.Dataset, ours.Dataset]  # which it compares with the type
    suite.load_all_available_checkers()
    found, errors = suite().run_all(dataset, ["cf:1.8"])["cf:1.8"]
    assert not errors
    return sorted((one.name, one.value, one.msgs) for one in found if "Filename" not in one.name)


def test_compliance_checker(path: Path) -> None:
    pytest.importorskip("compliance_checker")
    with ours.Dataset(path.with_name("a.nczarr"), "w") as nc:
        grid(nc)
    with netCDF4.Dataset(path) as nc:
        expected = checked(nc)
    assert len(expected) > 20
    with ours.Dataset(path.with_name("a.nczarr")) as nc:
        assert checked(nc) == expected
    with range_server(path.parent) as server, ours.Dataset(f"{server.url}/{path.name}") as nc:
        assert checked(nc) == expected


WRF = {"Time": None, "DateStrLen": 19, "west_east": 5, "south_north": 4} | {
    "west_east_stag": 6,
    "bottom_top": 3,
    "bottom_top_stag": 4,
}
PLACE = ("south_north", "west_east")
FIELDS = dict.fromkeys(("XLAT", "XLONG", "T2", "HGT"), PLACE) | {
    **dict.fromkeys(("P", "PB", "T", "QVAPOR"), ("bottom_top", *PLACE)),
    **dict.fromkeys(("PH", "PHB"), ("bottom_top_stag", *PLACE)),
    **dict.fromkeys(("XLAT_U", "XLONG_U"), ("south_north", "west_east_stag")),
    "U": ("bottom_top", "south_north", "west_east_stag"),
}


def write_wrf(path: Path) -> dict[str, np.ndarray]:
    """Write what WRF would, in part; return the fields."""
    draw = np.random.default_rng(0)
    written = {}
    with netCDF4.Dataset(path, "w") as nc:
        nc.TITLE = " OUTPUT FROM WRF V4.0 MODEL"
        nc.setncatts({"MAP_PROJ": np.int32(1), "TRUELAT1": np.float32(30), "DX": np.float32(1000)})
        nc.setncatts({"TRUELAT2": np.float32(60), "DY": np.float32(1000)})
        nc.setncatts(dict.fromkeys(("STAND_LON", "CEN_LON"), np.float32(-90)))
        nc.setncatts(dict.fromkeys(("CEN_LAT", "MOAD_CEN_LAT", "POLE_LAT"), np.float32(40)))
        nc.POLE_LON = np.float32(0)
        for name, length in WRF.items():
            nc.createDimension(name, length)
        times = nc.createVariable("Times", "S1", ("Time", "DateStrLen"))
        times[0] = netCDF4.stringtochar(np.array("2020-01-01_00:00:00", "S19"))
        for name, dims in FIELDS.items():
            made = nc.createVariable(name, "f4", ("Time", *dims), zlib=True)
            made.setncatts({"units": "", "description": name, "MemoryOrder": "XYZ"})
            made.coordinates = "XLONG XLAT"
            values = draw.random((1, *(WRF[one] or 0 for one in dims)), "f4")
            made[:] = written[name] = values
    return written


#: what getvar computes of the fields
DERIVED: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
    "T2": lambda found: found["T2"][0],
    "pressure": lambda found: (found["P"] + found["PB"])[0] / 100,
    "ua": lambda found: (found["U"][0, :, :, 1:] + found["U"][0, :, :, :-1]) / 2,
}


@pytest.fixture
def wrf() -> Any:
    reason = "wrf-python has no wheel on PyPI, and its source needs a Fortran compiler"
    return pytest.importorskip("wrf", reason=reason)


@pytest.mark.parametrize("name", DERIVED)
def test_wrf_python_over_http(wrf: Any, tmp_path: Path, name: str) -> None:
    written = write_wrf(tmp_path / "wrfout.nc")
    with range_server(tmp_path) as server, ours.Dataset(f"{server.url}/wrfout.nc") as nc:
        found = wrf.to_np(wrf.getvar(nc, name))
    np.testing.assert_allclose(found, DERIVED[name](written), rtol=1e-6)


def test_a_dataset_is_no_list_of_datasets(path: Path) -> None:
    """By which wrf-python tells several files."""
    from collections.abc import Iterable

    with ours.Dataset(path) as nc:
        assert not isinstance(nc, Iterable)
        with pytest.raises(TypeError, match="not iterable"):
            iter(nc)  # type: ignore[call-overload]
