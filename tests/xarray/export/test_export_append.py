"""Appends: what `to_nczarr(append_dim=...)` adds, and what it does not take."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import cftime
import hypothesis.strategies as st
import netCDF4
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings

from nczarr_fsspec.errors import (
    ConflictError,
    DatasetNotFoundError,
    ExportError,
    NCZarrError,
    NCZarrWarning,
)
from nczarr_xarray import to_cfa, to_nczarr
from nczarr_xarray.cli.main import main
from tests.support.builders.trees import read_tree
from tests.support.examples import examples
from tests.support.marks import each_once, needs_new_xarray
from tests.support.oracles.nc_adapter import ncdump
from tests.support.oracles.written import by_netcdf, opened, problems


def days(first: int, count: int, **attributes: Any) -> xr.Dataset:
    """Rows of a table that grows by day."""
    start = pd.Timestamp("2000-01-01") + pd.Timedelta(days=first)
    values = np.arange(first * 3, (first + count) * 3, dtype="f4").reshape(count, 3)
    return xr.Dataset(
        {
            "value": (("day", "place"), values),
            "count": ("day", np.arange(first, first + count, dtype="i2")),
            "height": ("place", [10.0, 20.0, 30.0]),
        },
        {
            "day": pd.date_range(start, periods=count, unit="ns"),
            "place": ["a", "b", "c"],
            "moon": ("day", np.arange(first, first + count) % 28 / 28),
        },
        attributes,
    )


ENCODING = {
    "value": {"chunks": (4, 2), "zlib": True},
    "day": {"units": "hours since 1999-12-31", "dtype": "i4", "chunks": (5,)},
    "count": {"chunks": (3,)},
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    to_nczarr(days(0, 3), path, encoding=ENCODING, unlimited_dims=["day"])
    return path


def refused(target: Path, new: xr.Dataset, append_dim: str = "day", **options: Any) -> list[str]:
    """What is said when an append is refused; nothing has changed then."""
    before = read_tree(target)
    with pytest.raises(ExportError) as error:
        to_nczarr(new, target, append_dim=append_dim, **options)
    assert read_tree(target) == before
    return problems(error)


# -- along what, and how much --------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "unlimited"),
    each_once([[1] * 9, [2, 3, 4], [9], [0, 1, 0, 8], [4, 5], [12, 1]], [(), ("day",)]),
)
def test_many_appends(tmp_path: Path, unlimited: Any, rows: list[int]) -> None:
    path = tmp_path / "table"
    to_nczarr(days(0, 3), path, encoding=ENCODING, unlimited_dims=unlimited)
    size = 3
    for count in rows:
        to_nczarr(days(size, count), path, append_dim="day")
        size += count
        xr.testing.assert_identical(opened(path), days(0, size))
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as file:
        assert file.dimensions["day"].size == size
        assert file.dimensions["day"].isunlimited() == bool(unlimited)
        np.testing.assert_array_equal(file["value"][...], days(0, size)["value"])


@pytest.mark.parametrize("ending", ["", ".zip"])
@pytest.mark.parametrize("kind", ["nczarr", "zarr"])
def test_targets(tmp_path: Path, kind: str, ending: str) -> None:
    target = f"file://{tmp_path}/d{ending}#mode={kind},{'zip' if ending else 'file'}"
    to_nczarr(days(0, 3), target, encoding=ENCODING, consolidated=True)
    for first, count in ((3, 2), (5, 4)):
        to_nczarr(days(first, count), target, append_dim="day")
    # of netCDF-C's words this one makes readers trust .zmetadata
    xr.testing.assert_identical(opened(f"{target},consolidated"), days(0, 9))
    xr.testing.assert_identical(opened(target), days(0, 9))


def test_a_mapping() -> None:
    objects: dict[str, bytes] = {}
    to_nczarr(days(0, 3), objects, encoding=ENCODING)
    to_nczarr(days(3, 4), objects, append_dim="day")
    with xr.open_dataset(objects, engine="nczarr") as found:  # type: ignore[arg-type]
        xr.testing.assert_identical(found.load(), days(0, 7))


@pytest.mark.parametrize("compat", ["4.9.3", "4.9.2", "4.8.1"])
def test_what_old_releases_read(tmp_path: Path, compat: str) -> None:
    path = tmp_path / "table"
    numbers = days(0, 3).drop_vars("place")
    to_nczarr(numbers, path, compat=compat)
    to_nczarr(days(3, 4).drop_vars("place"), path, append_dim="day")
    xr.testing.assert_identical(opened(path), days(0, 7).drop_vars("place"))
    if compat == "4.9.2":
        text = ncdump("-v", "count", f"file://{path}#mode=nczarr,file")
        assert "count = 0, 1, 2, 3, 4, 5, 6 ;" in text


def test_dimension_that_is_not_the_first(tmp_path: Path) -> None:
    def part(first: int, last: int) -> xr.Dataset:
        return xr.Dataset({"v": (("y", "x"), np.arange(30).reshape(3, 10)[:, first:last])})

    to_nczarr(part(0, 3), tmp_path / "d", encoding={"v": {"chunks": (2, 4)}})
    to_nczarr(part(3, 9), tmp_path / "d", append_dim="x")
    to_nczarr(part(9, 10), tmp_path / "d", append_dim="x")
    xr.testing.assert_identical(opened(tmp_path / "d"), part(0, 10))
    np.testing.assert_array_equal(by_netcdf(tmp_path / "d", "v"), part(0, 10)["v"])


def test_other_dimensions_must_fit(target: Path) -> None:
    new = days(3, 2).isel(place=[0, 1])
    found = refused(target, new)
    assert any("value: has length 2 along 'place', where 3 is to be replaced" in f for f in found)
    assert any("has dimensions" in f for f in refused(target, days(3, 2).rename(place="where")))


def test_a_dimension_that_is_not_there(target: Path, tmp_path: Path) -> None:
    found = refused(target, days(3, 1).expand_dims(hour=2), "hour")
    assert found == ["append_dim 'hour' is not a dimension of any variable there"]
    refused(target, days(3, 1), "hour")
    with pytest.raises(DatasetNotFoundError, match="write it first"):
        to_nczarr(days(0, 3), tmp_path / "nothing", append_dim="day")


# -- values --------------------------------------------------------------------------


def test_times_take_the_units_that_are_stored(target: Path) -> None:
    to_nczarr(days(3, 1), target, append_dim="day")
    assert by_netcdf(target, "day").tolist() == [24, 48, 72, 96]
    new = days(4, 1).assign_coords(day=[pd.Timestamp("2000-01-05T00:30")])
    with pytest.warns(UserWarning, match="can't be serialized faithfully"):  # xarray's
        [found] = refused(target, new)
    assert found.startswith("/day: needs the units 'minutes since 1999-12-31', and is stored in")


LATE = {
    "times": (np.array(["2000-01-02", "2200-01-01"], "M8[ns]"), "standard"),
    "objects": (
        np.array([cftime.DatetimeGregorian(2000, 1, 2), cftime.DatetimeGregorian(2300, 1, 1)]),
        "standard",
    ),
    "lengths": (np.array([1, 40000], "m8[D]").astype("m8[ns]"), None),
    "other calendar": (
        np.array([cftime.Datetime360Day(2000, 1, 2), cftime.Datetime360Day(2300, 1, 1)]),
        "360_day",
    ),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", LATE)
def test_times_in_small_integers(tmp_path: Path, kind: str, lazy: bool) -> None:
    values, calendar = LATE[kind]
    encoding: dict[str, Any] = {"dtype": "i2", "units": "days"}
    if calendar is not None:
        encoding = {"dtype": "i2", "units": "days since 2000-01-01", "calendar": calendar}

    def times(part: Any) -> xr.Dataset:
        return xr.Dataset({"t": ("x", part)})

    to_nczarr(times(values[:1]), tmp_path / "d", encoding={"t": encoding})
    for part, way in ((values[:1], {"append_dim": "x"}), (values[:1], {"region": {"x": slice(2)}})):
        new = times(np.repeat(part, 2))
        to_nczarr(new.chunk(x=1) if lazy else new, tmp_path / "d", align_chunks=True, **way)
    assert by_netcdf(tmp_path / "d", "t").tolist() == [1, 1, 1]
    late = times(values[1:])
    with pytest.raises(NCZarrError, match="int16 cannot hold"):
        to_nczarr(late.chunk() if lazy else late, tmp_path / "d", append_dim="x")


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ("1999-12-31", "holds the value -86400000000000, which uint64 cannot hold"),
        ("NaT", "missing times, and has no _FillValue"),
    ],
)
def test_times_in_large_unsigned_integers(
    tmp_path: Path, new: str, problem: str, lazy: bool
) -> None:
    def times(*values: str) -> xr.Dataset:
        dataset = xr.Dataset({"t": ("x", np.array(values, "M8[ns]"))})
        return dataset.chunk(x=1) if lazy else dataset

    encoding = {"dtype": "u8", "units": "nanoseconds since 2000-01-01"}
    to_nczarr(times("2000-01-01"), tmp_path / "d", encoding={"t": encoding})
    exact = "2010-01-01T00:00:00.123456789"
    to_nczarr(times(exact), tmp_path / "d", append_dim="x")
    assert opened(tmp_path / "d").t[1] == np.datetime64(exact)
    with pytest.raises(NCZarrError, match=problem):
        to_nczarr(times(new), tmp_path / "d", append_dim="x")


def test_dates_of_another_calendar_than_the_standard_one(tmp_path: Path) -> None:
    to_nczarr(xr.Dataset({"t": ("x", np.array(["2000-01-01"], "M8[ns]"))}), tmp_path / "d")
    other = xr.Dataset({"t": ("x", np.array([cftime.Datetime360Day(2000, 1, 2)]))})
    (found,) = refused(tmp_path / "d", other, "x")
    assert "dates of the calendar '360_day', stored in 'proleptic_gregorian'" in found


@pytest.mark.parametrize("lazy", [False, True])
def test_missing_times_without_a_fill_value(target: Path, lazy: bool) -> None:
    new = days(3, 1).assign_coords(day=("day", np.array(["NaT"], "M8[ns]")))
    new = new.drop_indexes("day")
    with pytest.raises(NCZarrError, match="holds missing times, and has no _FillValue"):
        to_nczarr(new.chunk() if lazy else new, target, append_dim="day")


def test_packed_values(tmp_path: Path) -> None:
    packing = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": np.int16(-9), "chunks": (4,)}
    to_nczarr(xr.Dataset({"v": ("x", [1.5, np.nan])}), tmp_path / "d", encoding={"v": packing})
    to_nczarr(xr.Dataset({"v": ("x", [np.nan, 2.5, 3.0])}), tmp_path / "d", append_dim="x")
    np.testing.assert_array_equal(opened(tmp_path / "d").v, [1.5, np.nan, np.nan, 2.5, 3.0])
    assert by_netcdf(tmp_path / "d", "v").tolist() == [3, -9, -9, 5, 6]


@pytest.mark.filterwarnings("ignore:variable 'v' has multiple fill values")  # xarray's
@pytest.mark.parametrize("way", [{"append_dim": "x"}, {"region": {"x": slice(2)}}, {"mode": "r+"}])
def test_a_missing_value_beside_the_fill_value(tmp_path: Path, way: dict[str, Any]) -> None:
    with netCDF4.Dataset(tmp_path / "d.nc", "w") as file:
        file.createDimension("x", None)
        file.createVariable("v", "f4", "x", fill_value=-1.0).missing_value = np.float32(-2)
        file["v"][:] = [1, -2]
    assert main(["copy", str(tmp_path / "d.nc"), str(tmp_path / "d")]) == 0
    to_nczarr(xr.Dataset({"v": ("x", np.array([np.nan, 3], "f4"))}), tmp_path / "d", **way)
    assert by_netcdf(tmp_path / "d", "v").tolist()[-2:] == [-1, 3]


@pytest.mark.parametrize("way", [{"append_dim": "x"}, {"region": {"x": slice(2)}}, {"mode": "r+"}])
@pytest.mark.parametrize("packing", [{}, {"scale_factor": 0.5}, {"add_offset": 1.0}])
def test_a_missing_value_and_no_fill_value(
    tmp_path: Path, way: dict[str, Any], packing: dict[str, float]
) -> None:
    with netCDF4.Dataset(tmp_path / "d.nc", "w") as file:
        file.createDimension("x", None)
        made = file.createVariable("v", "i2", "x")
        made.setncatts({"missing_value": np.int16(-9), **packing})
        made.set_auto_maskandscale(False)
        made[:] = [1, -9]
    assert main(["copy", str(tmp_path / "d.nc"), str(tmp_path / "d")]) == 0
    to_nczarr(xr.Dataset({"v": ("x", np.array([np.nan, 3], "f4"))}), tmp_path / "d", **way)
    np.testing.assert_array_equal(opened(tmp_path / "d").v[-2:], [np.nan, 3])
    assert by_netcdf(tmp_path / "d", "v").tolist()[-2] == -9


@pytest.mark.parametrize(
    "rounding",
    [{"quantize_mode": "BitRound", "significant_digits": 5}, {"least_significant_digit": 1}],
    ids=lambda rounding: next(iter(rounding)),
)
def test_quantized_values(tmp_path: Path, rounding: dict[str, Any]) -> None:
    values = np.linspace(0, 1, 50, dtype="f4")
    encoding = {"v": {**rounding, "chunks": (30,)}}
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    to_nczarr(xr.Dataset({"v": ("x", values)}), whole, encoding=encoding)
    to_nczarr(xr.Dataset({"v": ("x", values[:20])}), grown, encoding=encoding)
    to_nczarr(xr.Dataset({"v": ("x", values[20:])}), grown, append_dim="x")
    xr.testing.assert_identical(opened(grown), opened(whole))


def test_text(tmp_path: Path) -> None:
    def names(*texts: str) -> xr.Dataset:
        return xr.Dataset({"s": ("x", np.array(texts, object))})

    to_nczarr(names("a", "bcd"), tmp_path / "d")
    to_nczarr(names("", "é", "xyz"), tmp_path / "d", append_dim="x")
    assert opened(tmp_path / "d")["s"].data.tolist() == ["a", "bcd", "", "é", "xyz"]
    found = refused(tmp_path / "d", names("four"), "x")
    assert [f.partition(";")[0] for f in found] == [
        "/s: holds a text of 4 bytes, and is stored with 3 at most"
    ]


@pytest.mark.parametrize("dtype", [str, "S1"])
@pytest.mark.parametrize("values", [[None, np.nan], []])
@pytest.mark.parametrize("lazy", [False, True])
def test_text_of_which_all_is_missing(
    tmp_path: Path, values: list[Any], dtype: Any, lazy: bool
) -> None:
    first = xr.Dataset({"s": ("x", np.array(["a", "bcd"], object))})
    to_nczarr(first, tmp_path / "d", encoding={"s": {"dtype": dtype}})
    new = xr.Dataset({"s": ("x", np.array(values, object))})
    to_nczarr(new.chunk() if lazy else new, tmp_path / "d", append_dim="x")
    assert opened(tmp_path / "d")["s"].data.tolist() == ["a", "bcd", *("" for _ in values)]


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
def test_characters(tmp_path: Path, mode: str) -> None:
    def names(*texts: bytes) -> xr.Dataset:
        return xr.Dataset({"s": ("x", np.array(texts))})

    to_nczarr(names(b"abc", b"d"), f"file://{tmp_path}/d#mode={mode},file")
    to_nczarr(names(b"", b"ef"), tmp_path / "d", append_dim="x")
    assert opened(tmp_path / "d")["s"].data.tolist() == [b"abc", b"d", b"", b"ef"]
    assert any("length 4" in f for f in refused(tmp_path / "d", names(b"four"), "x"))


@pytest.mark.parametrize("lazy", [False, True])
def test_characters_shorter_than_those_that_are_stored(tmp_path: Path, lazy: bool) -> None:
    ds = xr.Dataset({"v": ("x", np.array([b"abc", b"defg"]))})
    to_nczarr(ds, tmp_path / "d", unlimited_dims=["x"], encoding={"v": {"dtype": "S1"}})
    new = xr.Dataset({"v": ("x", np.array([b"a", b"bc", b""]))})
    to_nczarr(new.chunk({"x": 2}) if lazy else new, tmp_path / "d", append_dim="x")
    assert opened(tmp_path / "d").v.to_numpy().tolist() == [b"abc", b"defg", b"a", b"bc", b""]


def test_characters_with_another_dimension(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", np.array([b"abc", b"defg"]))})
    to_nczarr(ds, tmp_path / "d", unlimited_dims=["x"], encoding={"v": {"dtype": "S1"}})
    new = xr.Dataset({"v": (("x", "y"), np.array([[b"a", b"b"]]))})
    (reason,) = refused(tmp_path / "d", new, "x")
    assert "('x', 'y', 'string1'), stored with ('x', 'string4')" in reason


def test_beside_a_variable_that_cannot_be_read(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", np.arange(3)), "w": ("y", np.arange(2))})
    to_nczarr(ds, tmp_path / "d", unlimited_dims=["x"])
    document = tmp_path / "d/w/.zarray"
    document.write_text(json.dumps({**json.loads(document.read_text()), "order": "A"}))
    with pytest.warns(NCZarrWarning, match="'/w' cannot be read"):
        to_nczarr(ds[["v"]], tmp_path / "d", append_dim="x")
    found = xr.open_dataset(tmp_path / "d", engine="nczarr", drop_variables="w")
    assert found.v.to_numpy().tolist() == [0, 1, 2, 0, 1, 2]


def test_types_and_attributes(target: Path) -> None:
    new = days(3, 1)
    new = new.assign(value=new["value"].astype("f8"), count=new["count"].astype("i4"))
    new["moon"].attrs["units"] = "1"
    found = refused(target, new)
    assert len(found) == 3
    assert any("value: is of type float64, stored as float32" in f for f in found)
    assert any("count: is of type int32, stored as int16" in f for f in found)
    assert any("moon: has other attributes than those stored: units" in f for f in found)


def test_encoding_is_refused(target: Path) -> None:
    before = read_tree(target)
    with pytest.raises(ExportError, match="encoding"):
        to_nczarr(days(3, 1), target, append_dim="day", encoding={"value": {"zlib": False}})
    assert read_tree(target) == before


# -- what does not grow --------------------------------------------------------------


def test_variables_that_are_missing(target: Path) -> None:
    found = refused(target, days(3, 1).drop_vars(["count", "moon"]))
    assert [f.partition(":")[0] for f in found] == ["/count", "/moon"]
    assert all("would be left with fill values; give its new values too" in f for f in found)


def test_variables_that_are_new(target: Path) -> None:
    new = days(3, 1).assign(more=("day", [1.0]), scalar=3)
    found = refused(target, new)
    assert any(f.startswith("/more: is not in /") for f in found)
    assert any(f.startswith("/scalar: is not in the dataset") for f in found)


def test_constants(target: Path) -> None:
    to_nczarr(days(3, 1).drop_vars(["height", "place"]), target, append_dim="day")
    new = days(4, 1)
    to_nczarr(new, target, append_dim="day")
    new = days(5, 1)
    new["height"] = new["height"] + 1
    (found,) = refused(target, new)
    assert "height: differs from what is stored, and is not appended to; drop it" in found
    xr.testing.assert_identical(opened(target), days(0, 5))


def test_constants_that_packing_rounds(tmp_path: Path) -> None:
    packing = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 1.0, "_FillValue": np.int16(-9)}
    ds = xr.Dataset({"v": ("x", [1.0, 2.0])}, {"height": ("place", [8.1, np.nan, 0.3])})
    to_nczarr(ds, tmp_path / "d", encoding={"height": packing})
    to_nczarr(ds, tmp_path / "d", append_dim="x")
    assert opened(tmp_path / "d")["v"].data.tolist() == [1, 2, 1, 2]
    for other in (8.2, 1e6):
        new = ds.assign_coords(height=("place", [other, np.nan, 0.3]))
        (found,) = refused(tmp_path / "d", new, "x")
        assert "height: differs from what is stored" in found


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (np.array(["a", None], object), {}),
        (np.array([None, np.nan], object), {"dtype": str}),
        (np.array(["a", None], object), {"dtype": "S1"}),
        (np.array([np.pi, np.nan]), {"significant_digits": 2, "quantize_mode": "BitGroom"}),
        (np.array([np.pi, np.nan]), {"least_significant_digit": 1}),
    ],
)
def test_constants_that_are_stored_as_something_else(
    tmp_path: Path, values: np.ndarray, encoding: dict[str, Any]
) -> None:
    """The dataset that was written can be appended to itself."""
    ds = xr.Dataset({"v": ("x", [1.0, 2.0]), "c": ("place", values)})
    to_nczarr(ds, tmp_path / "d", encoding={"c": encoding})
    before = opened(tmp_path / "d")["c"]
    to_nczarr(ds, tmp_path / "d", append_dim="x")
    xr.testing.assert_identical(opened(tmp_path / "d")["c"], before)
    new = ds.assign(c=("place", values[::-1]))
    if not new.equals(ds):
        (found,) = refused(tmp_path / "d", new, "x")
        assert "c: differs from what is stored" in found


def test_attributes_of_the_dataset(target: Path) -> None:
    to_nczarr(days(3, 1, title="more", version=np.int16(2)), target, append_dim="day")
    found = opened(target)
    assert found.attrs == {"title": "more", "version": 2}
    assert isinstance(found.attrs["version"], np.int16)
    with netCDF4.Dataset(f"file://{target}#mode=nczarr,file") as file:
        assert file.title == "more"
    # unlike to_zarr, which removes the others
    to_nczarr(days(4, 1, title="most"), target, append_dim="day")
    assert opened(target).attrs == {"title": "most", "version": 2}


# -- groups --------------------------------------------------------------------------


def grouped(first: int, count: int) -> xr.DataTree:
    table = days(first, count)
    plain = table[["count"]].drop_vars(["day", "moon"])
    return xr.DataTree.from_dict({"/": table, "/own": plain.rename(day="hour")})


def test_groups(tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(grouped(0, 3), path)
    own = grouped(3, 2).children["own"].to_dataset(inherit=False)
    to_nczarr(own, path, append_dim="hour", group="own")
    to_nczarr(days(3, 1), path, append_dim="day")
    xr.testing.assert_identical(opened(path), days(0, 4))
    assert opened(path, group="own")["count"].data.tolist() == [0, 1, 2, 3, 4]


def test_a_group_whose_path_has_slashes_to_spare(tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(days(0, 2), path, group="a//b")
    to_nczarr(days(2, 1), path, group="/a//b/", append_dim="day")
    xr.testing.assert_identical(opened(path, group="a/b"), days(0, 3))


def inherited(first: int, count: int) -> xr.DataTree:
    """A group that has nothing but a variable along its parent's dimension."""
    table = days(first, count)
    inside = xr.Dataset({"other": ("day", table["moon"].data)})
    return xr.DataTree.from_dict({"/": table[["day"]], "/inside": inside})


def test_a_dimension_of_the_parent_that_only_the_group_uses(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file", "w") as file:
        file.createDimension("day", 3)
        group = file.createGroup("inside")
        group.createVariable("other", "f8", ["day"])[:] = [1, 2, 3]
    new = xr.Dataset({"other": ("day", [4.0, 5.0])})
    to_nczarr(new, path, append_dim="day", group="inside")
    assert opened(path, group="inside")["other"].data.tolist() == [1, 2, 3, 4, 5]
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as file:
        assert file.dimensions["day"].size == 5
        assert file["inside/other"][...].tolist() == [1, 2, 3, 4, 5]


def test_a_dimension_that_other_groups_use(tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(inherited(0, 3), path)
    found = refused(path, inherited(3, 1)["/"].to_dataset())
    (reason,) = found
    assert reason.startswith("/inside/other: lies along /day as well and would be left with fill")
    new = inherited(3, 1).children["inside"].to_dataset(inherit=False)
    assert any(f.startswith("/day: lies along /day") for f in refused(path, new, group="inside"))


def test_a_tree_is_appended_group_by_group(tmp_path: Path) -> None:
    to_nczarr(grouped(0, 3), tmp_path / "d")
    with pytest.raises(ExportError, match="group by group"):
        to_nczarr(grouped(3, 1), tmp_path / "d", append_dim="day")


# -- what others wrote ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nczarr", "nczarr,consolidated"])
def test_what_netcdf_c_wrote(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d"
    url = f"file://{path}#mode={kind},file"
    with netCDF4.Dataset(url, "w") as file:
        file.setncattr("history", "made by netCDF-C")
        file.createDimension("time", None)
        file.createDimension("x", 3)
        time = file.createVariable("time", "f8", ["time"])
        time.units = "days since 2000-01-01"
        v = file.createVariable(
            "v", "i2", ["time", "x"], zlib=True, chunksizes=(2, 2), fill_value=-1
        )
        v.long_name = "rows"
        time[:] = [0.0, 1.0, 2.0]
        v[...] = np.arange(9).reshape(3, 3)
    new = opened(path)
    new["time"] = new["time"] + np.timedelta64(3, "D")
    new["time"].attrs = {}
    to_nczarr(new, path, append_dim="time")
    with netCDF4.Dataset(url) as file:
        assert file.dimensions["time"].isunlimited()
        assert file["time"][...].tolist() == [0, 1, 2, 3, 4, 5]
        assert file["v"][...].tolist() == np.arange(9).reshape(3, 3).tolist() * 2
        assert file["v"].filters()["zlib"]
        assert file.history == "made by netCDF-C"


def test_a_variable_called_none(tmp_path: Path) -> None:
    plain = xr.Dataset({None: ("x", [1, 2]), "v": ("x", [3, 4])})
    to_nczarr(plain, tmp_path / "d")
    to_nczarr(plain, tmp_path / "d", append_dim="x")
    to_nczarr(xr.Dataset({None: ("x", [5])}), tmp_path / "d", region={"x": slice(0, 1)})
    found = opened(tmp_path / "d").load()
    assert found.variables[None].data.tolist() == [5, 2, 1, 2]
    assert found["v"].data.tolist() == [3, 4, 3, 4]


def test_what_zarr_python_wrote(tmp_path: Path) -> None:
    path = tmp_path / "d"
    days(0, 3).to_zarr(path, zarr_format=2, encoding={"value": {"chunks": (2, 2)}})
    for first in (3, 5):
        to_nczarr(days(first, 2).drop_vars("place"), path, append_dim="day")
    with xr.open_zarr(path) as found:  # through .zmetadata
        xr.testing.assert_equal(found.load(), days(0, 7))


@pytest.mark.parametrize("lazy", [False, True])
def test_bools_that_zarr_python_wrote(tmp_path: Path, lazy: bool) -> None:
    ds = xr.Dataset({"v": ("x", [True, False])})
    ds.to_zarr(tmp_path / "d", zarr_format=2, consolidated=False)
    to_nczarr(ds.chunk() if lazy else ds, tmp_path / "d", append_dim="x", align_chunks=True)
    with xr.open_zarr(tmp_path / "d", consolidated=False) as found:
        assert found["v"].dtype == bool
        assert found["v"].to_numpy().tolist() == [True, False, True, False]
    numbers = xr.Dataset({"v": ("x", np.array([2], "i1"))})
    [problem] = refused(tmp_path / "d", numbers, "x")
    assert problem.startswith("/v: is of type int8, stored as bool, which may not hold all of it")


def test_the_same_as_to_zarr(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    parts = [days(0, 3, title="one"), days(3, 5, title="two"), days(8, 1, title="three")]
    encoding = {"value": {"chunks": (4, 2)}}
    parts[0].to_zarr(theirs, zarr_format=2, encoding=encoding)
    to_nczarr(parts[0], f"file://{ours}#mode=zarr", encoding=encoding, consolidated=True)
    for part in parts[1:]:
        part.to_zarr(theirs, append_dim="day")
        to_nczarr(part, ours, append_dim="day")
    with xr.open_zarr(ours) as one, xr.open_zarr(theirs) as other:
        xr.testing.assert_identical(one.load(), other.load())
    documents = json.loads((ours / "value" / ".zarray").read_text())
    assert documents["shape"] == [9, 3]
    assert documents["chunks"] == [4, 2]


# -- any sequence --------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    others=st.integers(1, 3),
    chunks=st.tuples(st.integers(1, 7), st.integers(1, 3)),
    dtype=st.sampled_from(["i1", "u2", ">i4", "<i8", "f4", ">f8"]),
    first=st.booleans(),
    filters=st.sampled_from([{}, {"zlib": True}, {"fletcher32": True}]),
    zarr=st.booleans(),
)
def test_any_sequence_of_appends(
    rows: list[int],
    others: int,
    chunks: tuple[int, int],
    dtype: str,
    first: bool,
    filters: dict[str, Any],
    zarr: bool,
) -> None:
    dims = ("t", "x") if first else ("x", "t")
    parts = []
    start = 1
    for count in rows:
        shape = (count, others) if first else (others, count)
        values = np.arange(start, start + count * others).reshape(shape) % 100
        parts.append(xr.Dataset({"v": (dims, values.astype(dtype)), "t": np.arange(count) + start}))
        start += count * others
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "d")
        kind = "zarr" if zarr else "nczarr"
        encoding = {"v": {"chunks": chunks, **filters}, "t": {"chunks": (chunks[0],)}}
        unlimited = [] if zarr else ["t"]
        to_nczarr(
            parts[0], f"file://{path}#mode={kind}", encoding=encoding, unlimited_dims=unlimited
        )
        for part in parts[1:]:
            to_nczarr(part, path, append_dim="t")
        expected = xr.concat(parts, "t")
        xr.testing.assert_identical(opened(path), expected)
        if expected.sizes["t"]:
            np.testing.assert_array_equal(by_netcdf(path, "v", kind), expected["v"])


# -- later ---------------------------------------------------------------------------


def test_two_that_are_to_be_computed_later(target: Path) -> None:
    dask = pytest.importorskip("dask")
    new = days(3, 2).chunk()
    later = to_nczarr(new, target, append_dim="day", compute=False)
    with pytest.raises(ConflictError, match="another export of this process"):
        to_nczarr(days(3, 2), target, append_dim="day")
    xr.testing.assert_identical(opened(target), days(0, 3))
    dask.compute(later)
    xr.testing.assert_identical(opened(target), days(0, 5))


# -- where there is nothing yet --------------------------------------------------------


@pytest.mark.parametrize("group", [None, "g/h"])
@pytest.mark.parametrize("suffix", ["", ".zip"])
def test_the_first_part_creates_the_dataset(tmp_path: Path, suffix: str, group: str | None) -> None:
    path = tmp_path / f"table{suffix}"
    for first, count in ((0, 3), (3, 1), (4, 2)):
        part = days(first, count)
        part.nczarr.to_nczarr(
            path, append_dim="day", create=True, group=group, encoding=ENCODING,
            unlimited_dims=["day"],
        )  # fmt: skip
    with xr.open_dataset(path, engine="nczarr", group=group) as found:
        xr.testing.assert_identical(found.load(), days(0, 6))
        assert found["value"].encoding["chunksizes"] == (4, 2)
        assert found.encoding["unlimited_dims"] == {"day"}


def test_a_group_is_created_beside_others(target: Path) -> None:
    to_nczarr(days(0, 2), target, append_dim="day", create=True, group="more")
    to_nczarr(days(2, 2), target, append_dim="day", create=True, group="more")
    xr.testing.assert_identical(opened(target), days(0, 3))
    with xr.open_dataset(target, engine="nczarr", group="more") as found:
        xr.testing.assert_identical(found.load(), days(0, 4))


def test_without_the_option_nothing_is_created(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with pytest.raises(DatasetNotFoundError):
        to_nczarr(days(0, 3), path, append_dim="day")
    with pytest.raises(ExportError, match="goes with append_dim"):
        to_nczarr(days(0, 3), path, create=True)
    with pytest.raises(ExportError, match="no such dimension"):
        to_nczarr(days(0, 3), path, append_dim="month", create=True)
    tree = xr.DataTree.from_dict({"/": days(0, 3), "/g": days(0, 3)})
    with pytest.raises(ExportError, match="group by group"):
        to_nczarr(tree, path, append_dim="day", create=True)
    assert not path.exists()


@pytest.mark.parametrize("name", ["run.nca", "run.nczarr"])
def test_the_first_part_creates_an_aggregation(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    parts = [days(first, 3).drop_vars("place") for first in (0, 3)]
    for part in parts:
        part.nczarr.to_cfa(
            path,
            append_dim="day",
            create=True,
            max_object_size=24,
            encoding={"day": {"dtype": "i4"}},
        )
    with xr.open_dataset(path, engine="nczarr") as found:
        expected = xr.concat(parts, "day", data_vars="minimal", coords="minimal")
        xr.testing.assert_equal(found.load(), expected)
    with pytest.raises(ExportError, match="goes with append_dim"):
        parts[0].nczarr.to_cfa(tmp_path / "other.nca", create=True)


@pytest.mark.parametrize("chunks", [None, {"t": -1}])
@pytest.mark.parametrize(("stored", "appended"), [("u8", "i8"), ("i8", "u8")])
def test_large_integers_of_the_other_sign_are_not_rounded(
    tmp_path: Path, stored: str, appended: str, chunks: dict[str, int] | None
) -> None:
    """Their variable has a fill value, so that xarray shows it as float64."""
    first = xr.Dataset({"v": ("t", np.array([1, 2], stored))})
    encoding = {"v": {"dtype": stored, "_FillValue": np.dtype(stored).type(0)}}
    to_nczarr(first, tmp_path / "d", encoding=encoding, unlimited_dims=["t"])
    large = xr.Dataset({"v": ("t", np.array([2**53 + 1, 2**60 + 3], appended))})
    to_nczarr(large.chunk(chunks) if chunks else large, tmp_path / "d", append_dim="t")
    with xr.open_dataset(tmp_path / "d", engine="nczarr", mask_and_scale=False) as found:
        assert found["v"].to_numpy().tolist() == [1, 2, 2**53 + 1, 2**60 + 3]
    outside = np.array([-1] if stored == "u8" else [2**63], appended)
    wrong = xr.Dataset({"v": ("t", outside)})
    with pytest.raises(NCZarrError, match="cannot hold"):
        to_nczarr(wrong.chunk(chunks) if chunks else wrong, tmp_path / "d", append_dim="t")


@pytest.mark.parametrize("chunks", [None, {"t": -1}])
@pytest.mark.parametrize(
    ("dtype", "encoding"),
    [
        ("f4", {"dtype": "i4", "_FillValue": -(2**31) + 1}),
        ("f4", {"dtype": "i4", "_FillValue": -(2**31) + 1, "scale_factor": 0.5}),
        ("f8", {"dtype": "i8", "_FillValue": -(2**63) + 2}),
        ("f8", {"dtype": "u8", "_FillValue": 2**64 - 2, "add_offset": 1.0}),
        ("f8", {"dtype": "i8", "_FillValue": -(2**63) + 2, "_Unsigned": "true"}),
    ],
)
def test_missing_values_become_exactly_the_fill_value(
    tmp_path: Path, dtype: str, encoding: dict[str, Any], chunks: dict[str, int] | None
) -> None:
    """These are netCDF's own fill values, which floats cannot hold."""
    first = xr.Dataset({"v": ("t", np.array([7, np.nan], dtype))})
    to_nczarr(first, tmp_path / "d", encoding={"v": encoding}, unlimited_dims=["t"])
    more = first.chunk(chunks) if chunks else first
    to_nczarr(more, tmp_path / "d", append_dim="t")
    with xr.open_dataset(tmp_path / "d", engine="nczarr", decode_cf=False) as found:
        number, _, same, fill = found["v"].to_numpy().tolist()
    assert (same, fill) == (number, encoding["_FillValue"])
    outside = xr.Dataset({"v": ("t", np.array([2.0**65], dtype))})
    with pytest.raises(NCZarrError, match="cannot hold"):
        to_nczarr(outside.chunk(chunks) if chunks else outside, tmp_path / "d", append_dim="t")


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_a_number_just_above_the_largest_integer(tmp_path: Path, dtype: str) -> None:
    first = xr.Dataset({"v": ("t", [1.0])})
    encoding = {"v": {"dtype": dtype, "_FillValue": 0}}
    to_nczarr(first, tmp_path / "d", encoding=encoding, unlimited_dims=["t"])
    above = xr.Dataset({"v": ("t", [float(np.iinfo(dtype).max)])})
    with pytest.raises(ExportError, match=r"which u?int64 cannot hold"):
        to_nczarr(above, tmp_path / "d", append_dim="t")


@pytest.mark.parametrize(
    ("encoding", "appended"),
    [
        ({"dtype": "f8"}, "i8"),
        ({"dtype": "f4"}, "i2"),
        ({"dtype": "i4", "_FillValue": -1}, "i8"),
        ({"dtype": "i8", "_FillValue": -1}, "u8"),
        ({"dtype": "i2", "scale_factor": 2.0, "add_offset": 1.0}, "i8"),
    ],
)
@pytest.mark.filterwarnings("ignore:saving variable t with floating point data")  # old xarray
def test_labels_of_another_type(tmp_path: Path, encoding: dict[str, Any], appended: str) -> None:
    first = xr.Dataset({"v": ("t", [1.0, 2.0])}, {"t": [1, 3]})
    to_nczarr(first, tmp_path / "d", encoding={"t": encoding}, unlimited_dims=["t"])
    more = first.assign_coords(t=np.array([5, 7], appended))
    to_nczarr(more, tmp_path / "d", append_dim="t")
    with xr.open_dataset(tmp_path / "d", engine="nczarr") as found:
        assert found["t"].to_numpy().tolist() == [1, 3, 5, 7]
    wrong = first.assign_coords(t=np.array([2**60 + 1, 2**62], "i8"))
    if encoding["dtype"] != "i8":
        with pytest.raises(ExportError, match=r"cannot (hold|store)"):
            to_nczarr(wrong, tmp_path / "d", append_dim="t")


@pytest.mark.parametrize("chunks", [None, {"t": -1}])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i2"])
@pytest.mark.parametrize("appended", ["i4", "u1", "i2", "?"])
def test_integers_become_scaled_numbers(
    tmp_path: Path, dtype: str, appended: str, chunks: dict[str, int] | None
) -> None:
    """Those that are stored may be floats, too."""
    encoding = {"dtype": dtype, "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -9}
    first = xr.Dataset({"v": ("t", [1.5, 2.0])})
    to_nczarr(first, tmp_path / "d", encoding={"v": encoding}, unlimited_dims=["t"])
    more = xr.Dataset({"v": ("t", np.array([0, 1], appended))})
    to_nczarr(more.chunk(chunks) if chunks else more, tmp_path / "d", append_dim="t")
    assert opened(tmp_path / "d")["v"].to_numpy().tolist() == [1.5, 2, 0, 1]


@pytest.mark.parametrize("labels", [[], [None, None]])
def test_labels_that_are_texts_of_which_there_is_none(tmp_path: Path, labels: list[Any]) -> None:
    def dataset(labels: list[Any]) -> xr.Dataset:
        return xr.Dataset({"v": ("x", np.zeros(len(labels)))}, {"x": np.array(labels, object)})

    encoding = {"x": {"dtype": str}}
    to_nczarr(dataset(labels), tmp_path / "d", encoding=encoding, unlimited_dims=["x"])
    to_nczarr(dataset(labels), tmp_path / "d", append_dim="x")
    with xr.open_dataset(tmp_path / "d", engine="nczarr") as found:
        assert found["x"].to_numpy().tolist() == [""] * 2 * len(labels)


@pytest.mark.parametrize(
    "new",
    [
        [cftime.Datetime360Day(2000, 2, 30)],
        [cftime.DatetimeGregorian(2000, 3, 1)],
        np.array(["2000-03-01"], "M8[ns]"),
        [7],
        [True],
        [0.5],
    ],
)
@pytest.mark.parametrize("part", ["append", "region"])
def test_what_are_no_dates_of_the_stored_calendar(tmp_path: Path, new: Any, part: str) -> None:
    stored = xr.Dataset({"v": ("time", [cftime.DatetimeNoLeap(2000, 1, 1)])})
    to_nczarr(stored, tmp_path / "x", encoding={"v": {"units": "days since 1999-01-01"}})
    option: dict[str, Any] = {"append_dim": "time"}
    if part == "region":
        option = {"region": {"time": slice(0, 1)}}
    with pytest.raises(ExportError, match=r"calendar|stored as object|holds numbers without units"):
        to_nczarr(xr.Dataset({"v": ("time", new)}), tmp_path / "x", **option)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), stored)


@pytest.mark.filterwarnings("ignore:Duplicate dimension names")
def test_a_dimension_that_a_variable_has_twice(tmp_path: Path) -> None:
    square = xr.Dataset({"v": xr.Variable(("x", "x"), np.eye(2))})
    to_nczarr(square, tmp_path / "d")
    (found,) = refused(tmp_path / "d", square, "x")
    assert found == "/v: has 'x' twice; write the whole variable anew"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("how", ["append", "values"])
def test_text_longer_than_the_characters_that_zarr_python_stored(
    tmp_path: Path, how: str, lazy: bool
) -> None:
    """Of a character, ``<U`` has four bytes: a longer text is not cut to the number of those."""
    group = zarr.open_group(tmp_path / "x", mode="w", zarr_format=2)
    array = group.create_array("v", data=np.array(["äbc", "d"], "U3"), chunks=(2,))
    array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    options: dict[str, Any] = {"append_dim": "x"} if how == "append" else {"mode": "r+"}

    def texts(*values: str) -> xr.Dataset:
        found = xr.Dataset({"v": ("x", np.array(values))})
        return found.chunk(x=2) if lazy else found

    with pytest.raises(ExportError, match="a text of 4 characters, and is stored with 3 at most"):
        to_nczarr(texts("abcd", "e"), tmp_path / "x", **options)
    assert opened(tmp_path / "x")["v"].to_numpy().tolist() == ["äbc", "d"]
    to_nczarr(texts("ëfg", "h"), tmp_path / "x", **options)
    before = ["äbc", "d"] if how == "append" else []
    assert opened(tmp_path / "x")["v"].to_numpy().tolist() == [*before, "ëfg", "h"]


def test_bytes_with_room_for_more_than_the_characters_that_zarr_python_stored(
    tmp_path: Path,
) -> None:
    group = zarr.open_group(tmp_path / "x", mode="w", zarr_format=2)
    array = group.create_array("v", data=np.array(["abc", "d"], "U3"), chunks=(2,))
    array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    with pytest.raises(ExportError, match="a text of 4 characters, and is stored with 3 at most"):
        to_nczarr(xr.Dataset({"v": ("x", np.array([b"efgh"]))}), tmp_path / "x", append_dim="x")
    texts = np.array([b"efg", b"h"], "S10")
    to_nczarr(xr.Dataset({"v": ("x", texts)}), tmp_path / "x", append_dim="x")
    assert opened(tmp_path / "x")["v"].to_numpy().tolist() == ["abc", "d", "efg", "h"]


@pytest.mark.parametrize("lazy", [False, True])
def test_bytes_that_are_not_ascii_into_the_characters_that_zarr_python_stored(
    tmp_path: Path, lazy: bool
) -> None:
    group = zarr.open_group(tmp_path / "x", mode="w", zarr_format=2)
    array = group.create_array("v", data=np.array(["abc", "d"], "U3"), chunks=(2,))
    array.attrs["_ARRAY_DIMENSIONS"] = ["x"]

    def append(*values: bytes) -> None:
        found = xr.Dataset({"v": ("x", np.array(values))})
        to_nczarr(found.chunk(x=2) if lazy else found, tmp_path / "x", append_dim="x")

    with pytest.raises(ExportError, match=r"v: holds bytes that are no text in UTF-8 .*0xff"):
        append(b"e", b"\xff")
    append("ëf€".encode(), b"h")
    assert opened(tmp_path / "x")["v"].to_numpy().tolist() == ["abc", "d", "ëf€", "h"]


@pytest.mark.parametrize("way", [{"append_dim": "x"}, {"mode": "r+"}, {"mode": "a"}, {}])
@pytest.mark.parametrize("fill", ["", "none"])
def test_bytes_of_dask_beside_a_text_as_the_fill_value(
    tmp_path: Path, way: dict[str, Any], fill: str
) -> None:
    encoding = {"v": {"dtype": str, "_FillValue": fill}}
    if way:
        to_nczarr(xr.Dataset({"v": ("x", ["abc", "d"])}), tmp_path / "x", encoding=encoding)
    if way.keys() & {"append_dim"} or way == {"mode": "r+"}:
        encoding = {}
    new = xr.Dataset({"v": ("x", np.array(["é".encode(), b"f"]))}).chunk(x=2)
    to_nczarr(new, tmp_path / "x", encoding=encoding, **way)
    found = opened(tmp_path / "x")["v"]
    assert found.to_numpy().tolist()[-2:] == ["é", "f"]
    assert found.encoding["_FillValue"] == fill


def test_text_longer_than_the_pointers_of_objects(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x", mode="w", zarr_format=2)
    array = group.create_array("v", shape=(1,), dtype=str, chunks=(2,))
    array[:] = "abc"
    array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    to_nczarr(xr.Dataset({"v": ("x", ["as long as it is"])}), tmp_path / "x", append_dim="x")
    assert opened(tmp_path / "x")["v"].to_numpy().tolist() == ["abc", "as long as it is"]


@pytest.mark.parametrize(("text", "reason"), [("a\0b", "NUL"), ("\ud800", "no UTF-8")])
def test_text_that_cannot_be_stored_is_named(tmp_path: Path, text: str, reason: str) -> None:
    to_nczarr(xr.Dataset({"v": ("x", ["abcdef"])}), tmp_path / "x")
    with pytest.raises(ExportError, match=f"v: holds a text .*{reason}"):
        to_nczarr(xr.Dataset({"v": ("x", [text])}), tmp_path / "x", append_dim="x")


@pytest.mark.filterwarnings("ignore:variable '/height' cannot be read")
@pytest.mark.parametrize("how", [{"append_dim": "day"}, {"mode": "a"}])
@pytest.mark.parametrize("file", [".zattrs", ".zarray"])
def test_what_only_consolidated_metadata_have_is_not_lost(
    file: str, how: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "d"
    to_nczarr(days(0, 3), path, consolidated=True, unlimited_dims=["day"])
    document = path / "height" / file
    if file == ".zattrs":
        document.unlink()
    else:
        document.write_text(document.read_text().replace("<f8", "<q9"))
    before = read_tree(path)
    with pytest.raises(ExportError, match=rf"height/\{file}: only \.zmetadata has this"):
        to_nczarr(days(3, 3)[["value", "count"]], path, **how)
    assert read_tree(path) == before


def test_broken_variable_that_consolidated_metadata_had_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(days(0, 3), path, consolidated=True)
    document = path / "height" / ".zarray"
    document.write_text(document.read_text().replace("<f8", "<q9"))
    to_nczarr(days(0, 3)[["height"]], path, mode="a")
    assert opened(path)["height"].equals(days(0, 3)["height"])


@needs_new_xarray
@pytest.mark.parametrize("stored", ["S1", str])
def test_numpy_strings_go_with_all_text(stored: Any, tmp_path: Path) -> None:
    """As engine="zarr" reads them from Zarr 3."""
    text = np.array(["é", "longer"], np.dtypes.StringDType())
    new = xr.Dataset({"v": ("x", text)})
    to_nczarr(new, tmp_path / "x", unlimited_dims="x", encoding={"v": {"dtype": stored}})
    to_nczarr(new.isel(x=[1]), tmp_path / "x", append_dim="x")
    to_nczarr(new.isel(x=[0]), tmp_path / "x", region={"x": slice(1, 2)})
    with opened(tmp_path / "x") as back:
        assert back["v"].to_numpy().tolist() == ["é", "é", "longer"]


# -- times that come one by one ------------------------------------------------------------------

STEPS: dict[str, Any] = {
    "hours": pd.date_range("2000-01-01", periods=4, freq="h"),
    "seconds": pd.date_range("1969-12-31T23:59:58", periods=4, freq="s"),
    "months": pd.date_range("1850-01-01", periods=4, freq="MS"),
    "backwards": pd.date_range("2000-01-01", periods=4, freq="20min")[::-1],
    "noleap": xr.date_range("0001-02-27", periods=4, freq="6h", calendar="noleap"),
    "durations": pd.to_timedelta([0, 24, 25, 90], "h"),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("kind", ["nczarr", "unlimited", "zarr", "cfa"])
def test_times_one_by_one(tmp_path: Path, kind: str, name: str) -> None:
    times, path = STEPS[name], str(tmp_path / ("x.nca" if kind == "cfa" else "x"))
    if kind == "zarr":
        path = f"file://{path}#mode=zarr"
    bounds = np.stack([np.asarray(times - (times[1] - times[0])), np.asarray(times)], axis=1)
    for i in range(4):
        coordinate = ("time", times[i : i + 1], {"bounds": "bounds"})
        step = xr.Dataset(
            {
                "v": (("time", "x"), [[i, i]]),
                "seen": ("time", times[i : i + 1]),
                "bounds": (("time", "n"), bounds[i : i + 1]),
            },
            {"time": coordinate},
        )
        if name == "durations":  # whose bounds xarray (2026.9) does not read as durations
            step = step.drop_vars("bounds")
        if kind == "cfa":
            to_cfa(step, path, append_dim="time", create=True)
        elif kind == "unlimited" and i == 0:
            to_nczarr(step, path, unlimited_dims=["time"])
        else:
            to_nczarr(step, path, append_dim="time", create=True)
    with xr.open_dataset(path, engine="nczarr", decode_timedelta=True) as found:
        assert (found["time"].to_numpy() == np.asarray(times)).all()
        assert (found["seen"].to_numpy() == np.asarray(times)).all()
        assert found["time"].encoding["dtype"] == "i8"
        if name != "durations":
            assert (found["bounds"].to_numpy() == bounds).all()
            assert found["bounds"].encoding["units"] == found["time"].encoding["units"]


def opened_raw(objects: Any) -> xr.Dataset:
    return xr.open_dataset(objects, engine="nczarr", decode_times=False)


@pytest.mark.parametrize(
    ("encoding", "given"),
    [
        ({"units": "days since 1999-12-31"}, False),
        ({"units": "days since 1999-12-31"}, True),
        ({"dtype": "f4"}, True),
        ({"dtype": "i4"}, True),
    ],
)
def test_units_that_were_chosen_stay(encoding: dict[str, Any], given: bool) -> None:
    objects: dict[str, bytes] = {}
    times = STEPS["hours"]
    first = xr.Dataset({"v": ("time", [1.0])}, {"time": times[:1]})
    if not given:
        first["time"].encoding = encoding
    asked = {"time": encoding} if given else None
    to_nczarr(first, objects, append_dim="time", create=True, encoding=asked)
    with opened_raw(objects) as found:
        assert found["time"].attrs["units"].startswith(encoding.get("units", "days since 2000"))
        assert found["time"].dtype == encoding.get("dtype", "i8")


def test_only_times_that_grow_get_finer_units() -> None:
    objects: dict[str, bytes] = {}
    day = STEPS["hours"][:1]
    dataset = xr.Dataset({"v": ("time", [1.0]), "w": ("z", day)}, {"time": day})
    to_nczarr(dataset, objects, append_dim="time", create=True)
    with opened_raw(objects) as found:
        assert found["time"].attrs["units"] == "seconds since 2000-01-01"
        assert found["w"].attrs["units"] == "days since 2000-01-01 00:00:00"
    to_nczarr(dataset, objects, mode="w")
    with opened_raw(objects) as found:
        assert found["time"].attrs["units"] == "days since 2000-01-01 00:00:00"


# -- labels that are there already ---------------------------------------------------------------


def extended(stored: xr.Dataset, new: xr.Dataset) -> xr.Dataset:
    """What pandas makes of both: of each label the first row."""
    both = xr.concat([stored, new], "day", data_vars="minimal", coords="minimal", join="outer")
    return both.isel(day=np.flatnonzero(~both.indexes["day"].duplicated()))


@pytest.mark.parametrize("write", [to_nczarr, to_cfa])
@pytest.mark.parametrize("chunks", [None, 4])
def test_known_labels_are_left_out(write: Any, chunks: int | None, tmp_path: Path) -> None:
    target = tmp_path / ("x.nca" if write is to_cfa else "x.nczarr")
    expected = days(0, 8)
    write(expected, target, encoding={"day": ENCODING["day"]})
    for first, count in ((6, 6), (6, 6), (2, 3), (20, 4), (14, 12)):
        new = days(first, count)
        new["value"] += 0.5  # what is there stays
        expected = extended(expected, new)
        new = new if chunks is None else new.chunk(day=chunks)
        options = {"align_chunks": True} if write is to_nczarr else {}
        write(new, target, append_dim="day", labels="new", **options)
        with xr.open_dataset(target, engine="nczarr") as found:
            xr.testing.assert_equal(found.drop_encoding(), expected)


@pytest.mark.parametrize("write", [to_nczarr, to_cfa])
def test_known_labels_are_refused(write: Any, tmp_path: Path) -> None:
    target = tmp_path / ("x.nca" if write is to_cfa else "x.nczarr")
    write(days(0, 8), target)
    wanted = "2 labels of 'day' are there already: 2000-01-07.*labels='new' leaves them out"
    with pytest.raises(ExportError, match=wanted):
        write(days(6, 4), target, append_dim="day", labels="error")
    twice = xr.concat([days(8, 1)] * 2, "day", data_vars="minimal", coords="minimal")
    with pytest.raises(ExportError, match="1 labels of 'day'"):
        write(twice, target, append_dim="day", labels="error")
    write(days(8, 4), target, append_dim="day", labels="error")
    write(days(11, 2), target, append_dim="day")  # the default
    with xr.open_dataset(target, engine="nczarr") as found:
        assert found["count"].to_numpy().tolist() == [*range(12), 11, 12]


def test_labels_that_are_stored_rounded_are_known(tmp_path: Path) -> None:
    target = tmp_path / "x.nczarr"
    packed = {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}
    table = xr.Dataset({"v": ("x", [1.0, 2.0])}, {"x": [0.33, 0.71]})
    to_nczarr(table, target, encoding={"x": packed}, unlimited_dims=["x"])
    more = xr.Dataset({"v": ("x", [3.0, 4.0])}, {"x": [0.71, 1.1]})
    to_nczarr(more, target, append_dim="x", labels="new")
    with netCDF4.Dataset(f"file://{target}#mode=nczarr,file") as nc:
        assert nc["v"][:].tolist() == [1, 2, 4]


def test_labels_have_to_be_there_and_to_be_asked_for_right(tmp_path: Path) -> None:
    target = tmp_path / "x.nczarr"
    table = xr.Dataset({"v": ("x", [1.0, 2.0])})
    to_nczarr(table, target)
    with pytest.raises(ExportError, match="'x' has none to compare; leave labels out"):
        to_nczarr(table, target, append_dim="x", labels="new")
    wrong: list[tuple[Any, Any, str]] = [
        ("old", "x", "labels is 'old'; it is 'any', 'error' or 'new'"),
        ("new", None, "labels='new' is of appends: give append_dim, too"),
    ]
    for labels, append_dim, said in wrong:
        with pytest.raises(ExportError, match=said):
            to_nczarr(table, target, append_dim=append_dim, labels=labels)
