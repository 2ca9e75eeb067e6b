"""CF checkers on what we export: they must find in a copy what they find in its source.

`ci/suites.py` runs it. compliance-checker reads by netCDF-C, NCZarr included; xrlint looks at
what xarray has opened. Each source breaks some rules of CF and keeps others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray.cli.main import main
from tests.support.oracles.described import url_of

cchecker = pytest.importorskip("compliance_checker.suite")
xrlint = pytest.importorskip("xrlint.all")

CF = "cf:1.11"


def grid(nc: Any) -> None:
    """Write a gridded field with bounds, cell methods and packed numbers."""
    axes(nc, time=3, lat=4, lon=5)
    nc["lat"].bounds = "lat_bnds"
    nc.createDimension("nv", 2)
    edges = np.linspace(-80.0, 80.0, 5)
    nc.createVariable("lat_bnds", "f8", ("lat", "nv"))[:] = np.stack([edges[:-1], edges[1:]], 1)
    tas = nc.createVariable("tas", "i2", ("time", "lat", "lon"), zlib=True, fill_value=-1)
    tas.setncatts({"standard_name": "air_temperature", "units": "K", "long_name": "temperature"})
    tas.setncatts({"scale_factor": 0.01, "add_offset": 273.15, "cell_methods": "time: mean"})
    tas[:] = 280.0


def mapped(nc: Any) -> None:
    """Write a projected field whose grid mapping lacks an attribute."""
    axes(nc, y=4, x=5)
    nc.createVariable("crs", "i4").grid_mapping_name = "transverse_mercator"
    field = nc.createVariable("f", "f4", ("y", "x"))
    field.setncatts({"grid_mapping": "crs", "units": "m", "standard_name": "no_such_name"})
    field[:] = 1.0


def stations(nc: Any) -> None:
    """Write time series of stations with names of characters."""
    nc.featureType = "timeSeries"
    axes(nc, time=3)
    nc.createDimension("station", 2)
    nc.createDimension("length", 8)
    name = nc.createVariable("station_name", "S1", ("station", "length"))
    name.cf_role = "timeseries_id"
    name[:] = netCDF4.stringtochar(np.array(["one", "two"], "S8"))
    for key, units in (("lat", "degrees_north"), ("lon", "degrees_east")):
        place = nc.createVariable(key, "f8", ("station",))
        place.units = units
        place[:] = 10.0
    flow = nc.createVariable("flow", "f4", ("station", "time"))
    flow.setncatts({"units": "m3 s-1", "coordinates": "lat lon station_name"})
    flow[:] = 2.0


def ragged(nc: Any) -> None:
    """Write profiles in a contiguous ragged array."""
    nc.featureType = "profile"
    nc.createDimension("profile", 2)
    nc.createDimension("obs", 5)
    count = nc.createVariable("row_size", "i4", ("profile",))
    count.sample_dimension = "obs"
    count[:] = [2, 3]
    depth = nc.createVariable("z", "f4", ("obs",))
    depth.setncatts({"units": "m", "positive": "down", "axis": "Z"})
    depth[:] = np.arange(5)


def flags(nc: Any) -> None:
    """Write flags whose meanings are too few, and a unit that is none."""
    axes(nc, lat=4, lon=5)
    quality = nc.createVariable("quality", "i1", ("lat", "lon"))
    quality.flag_values = np.array([0, 1, 2], "i1")
    quality.flag_meanings = "good bad"
    quality[:] = 1
    nc.createVariable("odd", "f4", ("lat",)).units = "furlongs per fortnite"


def climatology(nc: Any) -> None:
    """Write a climatology, with text that is not ASCII and numbers of every size."""
    axes(nc, time=2)
    nc["time"].climatology = "climatology_bounds"
    nc.createDimension("nv", 2)
    nc.createVariable("climatology_bounds", "f8", ("time", "nv"))[:] = [[0, 90], [90, 180]]
    rain = nc.createVariable("rain", "f4", ("time",))
    rain.setncatts({"units": "kg m-2", "cell_methods": "time: mean within years", "note": "für"})
    for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        nc.createVariable(f"n_{kind}", kind, ("time",)).valid_range = np.array([0, 9], kind)


def axes(nc: Any, **lengths: int) -> None:
    """Add dimensions with their coordinates."""
    nc.setncatts({"Conventions": "CF-1.11", "title": "a title", "history": "made for a test"})
    for name, length in lengths.items():
        nc.createDimension(name, None if name == "time" else length)
        variable = nc.createVariable(name, "f8", (name,))
        if name == "time":
            variable.setncatts({"units": "days since 2000-01-01", "calendar": "standard"})
        elif name in ("lat", "lon"):
            variable.units = "degrees_north" if name == "lat" else "degrees_east"
        variable.axis = {"time": "T", "lat": "Y", "y": "Y"}.get(name, "X")
        variable[:] = np.linspace(-60.0, 60.0, length) if name == "lat" else np.arange(length)


CONTENTS = [grid, mapped, stations, ragged, flags, climatology]


def complaints(place: str) -> list[tuple[str, str]]:
    """Return what compliance-checker says of a dataset, but for its name; and where it fails."""
    cchecker.CheckSuite.load_all_available_checkers()
    suite = cchecker.CheckSuite()
    dataset = suite.load_dataset(place)
    groups, errors = suite.run_all(dataset, [CF])[CF]
    dataset.close()
    found, left = [(name, str(error)) for name, (error, _) in errors.items()], list(groups)
    while left:
        result = left.pop()
        found += [(str(result.name), message) for message in result.msgs or []]
        left += result.children or []
    return sorted((name, message) for name, message in found if "Filename" not in name)


def lint(place: Path, engine: str) -> list[tuple[Any, ...]]:
    """Return what xrlint says of a dataset that an engine has opened."""
    linter = xrlint.new_linter("recommended")
    with xr.open_dataset(place, engine=engine) as ds:
        messages = linter.validate(ds).messages
    return sorted((m.rule_id, m.message, m.node_path) for m in messages)


@pytest.fixture(params=CONTENTS, ids=lambda content: content.__name__)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a netCDF-4 file."""
    write: Callable[[Any], None] = request.param
    path = tmp_path / "x.nc"
    with netCDF4.Dataset(path, "w") as nc:
        write(nc)
    return path


def copied(source: Path, target: str) -> Path:
    """Copy a dataset beside it."""
    path = source.with_name(target)
    assert main(["copy", str(source), str(path)]) == 0
    return path


def test_compliance_checker(source: Path) -> None:
    """Of NCZarr, and of a file made of it."""
    expected = complaints(str(source))
    assert expected  # each source breaks a rule
    tree = copied(source, "y.nczarr")
    assert complaints(url_of(str(tree))) == expected
    assert complaints(str(copied(tree, "z.nc"))) == expected


def test_xrlint(source: Path) -> None:
    """Of NCZarr, by our engine."""
    tree = copied(source, "y.nczarr")
    assert lint(tree, "nczarr") == lint(source, "netcdf4")
