"""Regions: what `to_nczarr` changes of a dataset, and that nothing else changes."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import netCDF4
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import assume, given, settings

from nczarr_fsspec.errors import DatasetNotFoundError, ExportError, FormatError
from nczarr_xarray import to_nczarr
from tests.support.builders.trees import read_tree
from tests.support.corpora.samples import DATA
from tests.support.examples import examples
from tests.support.marks import slow_but
from tests.support.oracles.written import by_netcdf, opened, problems

RAW = {"decode_cf": False, "mask_and_scale": False}


@pytest.fixture
def table() -> xr.Dataset:
    """Numbers by day and place, a name for each place, and something about all of it."""
    return xr.Dataset(
        {
            "value": (("day", "place"), np.arange(42.0).reshape(6, 7)),
            "count": ("day", np.arange(6, dtype="i4")),
            "version": ((), np.int32(3)),
        },
        {"day": pd.date_range("2000-01-01", periods=6), "place": [9, 8, 7, 6, 4, 2, 1]},
        {"title": "a table"},
    )


@pytest.fixture
def written(table: xr.Dataset, tmp_path: Path) -> Path:
    path = tmp_path / "table"
    encoding = {"value": {"chunks": (4, 3)}, "day": {"units": "hours since 1999-12-31"}}
    to_nczarr(table, path, encoding=encoding)
    return path


# -- what values and attributes -------------------------------------------------------


def test_packed_values_of_more_digits(tmp_path: Path) -> None:
    """What is stored has fewer digits than both types, so that float64 is none too many."""
    packed = {"dtype": "i2", "scale_factor": np.float32(0.5), "_FillValue": -1}
    values = np.array([1.5, 2.5, 3.5], "f4")
    to_nczarr(xr.Dataset({"v": ("x", values)}), tmp_path / "d", encoding={"v": packed})
    new = xr.Dataset({"v": ("x", np.array([9.5, np.nan], "f8"))})
    to_nczarr(new, tmp_path / "d", region={"x": slice(1, 3)})
    assert opened(tmp_path / "d", **RAW).v.to_numpy().tolist() == [3, 19, -1]


@pytest.mark.parametrize("value", [[1, 2], 1, "1 2 3", [1.0, 2.0, 4.0]])
def test_other_attributes(value: Any, tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", np.arange(3), {"a": [1, 2, 3]})})
    to_nczarr(ds, tmp_path / "d")
    before = read_tree(tmp_path / "d")
    new = xr.Dataset({"v": ("x", [7], {"a": value})})
    with pytest.raises(ExportError, match="v: has other attributes than those stored: a "):
        to_nczarr(new, tmp_path / "d", region={"x": slice(0, 1)})
    assert read_tree(tmp_path / "d") == before


# -- which part ----------------------------------------------------------------------


def test_slices(table: xr.Dataset, written: Path) -> None:
    part = {"day": slice(1, 5), "place": slice(2, 4)}
    to_nczarr(-table[["value"]].isel(part), written, region=part)
    table["value"][part] *= -1
    xr.testing.assert_identical(opened(written), table)


@pytest.mark.parametrize(
    ("given_part", "means"),
    [
        (slice(None), slice(0, 6)),
        (slice(2, None), slice(2, 6)),
        (slice(None, 3), slice(0, 3)),
        (slice(2, 4, 1), slice(2, 4)),
        (slice(3, 3), slice(3, 3)),
    ],
)
def test_open_ends(table: xr.Dataset, written: Path, given_part: slice, means: slice) -> None:
    new = table[["value", "count"]].isel(day=means).drop_vars(["day", "place"])
    to_nczarr(-new, written, region={"day": given_part})
    table["value"][means] *= -1
    table["count"][means] *= -1
    xr.testing.assert_identical(opened(written), table)


@pytest.mark.parametrize(
    ("region", "says"),
    [
        ({"day": slice(-2, None)}, "is not inside 'day', which has length 6"),
        ({"day": slice(0, -1)}, "is not inside 'day'"),
        ({"day": slice(5, 9)}, "is not inside 'day'"),
        ({"day": slice(4, 2)}, "is not inside 'day'"),
        ({"day": slice(0, 4, 2)}, "has step 2; only 1 is possible"),
        ({"day": slice(1, 0, -1)}, "has step -1"),
        ({"day": slice(0, 3)}, "has length 3 along 'day', the new values 2"),
        ({"day": slice(1.5, 3.5)}, "of 'day' has an end that is no integer"),
        ({"day": 3}, "'day' is 3, not a slice or 'auto'"),
        ({"day": "all"}, "'day' is 'all', not a slice or 'auto'"),
        ({"hour": slice(0, 2)}, "region names 'hour', which the new values do not have"),
    ],
)
def test_slices_that_mean_nothing(table: xr.Dataset, written: Path, region: Any, says: str) -> None:
    before = read_tree(written)
    new = table[["value"]].isel(day=slice(0, 2)).drop_vars(["day", "place"])
    with pytest.raises(ExportError) as error:
        to_nczarr(new, written, region=region)
    first, *more = problems(error)
    assert says in first
    assert not more or "hour" in region  # of 'day' nothing is said that follows from that
    assert read_tree(written) == before


def test_a_region_with_a_dimension_that_is_not_stored(written: Path) -> None:
    new = xr.Dataset({"value": (("day", "hour"), np.zeros((2, 2)))})
    with pytest.raises(ExportError, match="'hour', which / does not have"):
        to_nczarr(new, written, region={"hour": slice(0, 2)})


def test_every_reason_at_once(table: xr.Dataset, written: Path) -> None:
    before = read_tree(written)
    new = xr.Dataset(
        {
            "value": (("day", "place"), np.zeros((2, 7), complex)),
            "count": ("place", np.zeros(7, "i4")),
            "other": ("day", np.zeros(2)),
            "version": ((), np.int32(4)),
        }
    )
    with pytest.raises(ExportError) as error:
        to_nczarr(new, written, region={"day": slice(5, 7)})
    reasons = problems(error)
    assert len(reasons) == len(set(reasons)) >= 5
    for word in ("slice(5, 7", "value:", "count", "other:", "version"):
        assert any(word in reason for reason in reasons), (word, reasons)
    assert read_tree(written) == before


@pytest.mark.parametrize("region", ["auto", {"day": "auto", "place": "auto"}])
def test_labels_of_all_dimensions(table: xr.Dataset, written: Path, region: Any) -> None:
    part = {"day": slice(2, 5), "place": slice(1, 6)}
    to_nczarr(-table[["value"]].isel(part), written, region=region)
    table["value"][part] *= -1
    xr.testing.assert_identical(opened(written), table)


def test_labels_of_one_dimension(table: xr.Dataset, written: Path) -> None:
    new = -table[["value"]].isel(day=slice(2, 5)).drop_vars("place")
    to_nczarr(new, written, region={"day": "auto"})
    table["value"][2:5] *= -1
    xr.testing.assert_identical(opened(written), table)


def test_decreasing_labels(table: xr.Dataset, written: Path) -> None:
    new = -table[["value"]].sel(place=slice(7, 2)).drop_vars("day")
    to_nczarr(new, written, region={"place": "auto"})
    table["value"][:, 2:6] *= -1
    xr.testing.assert_identical(opened(written), table)


def test_dimensions_without_labels_are_taken_whole(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": (("y", "x"), np.arange(6.0).reshape(2, 3))}, {"x": [1, 2, 3]})
    to_nczarr(dataset, tmp_path / "d")
    to_nczarr(-dataset.isel(x=[1]), tmp_path / "d", region="auto")
    np.testing.assert_array_equal(opened(tmp_path / "d").v, [[0, -1, 2], [3, -4, 5]])
    with pytest.raises(ExportError, match="'y' has no labels to find it by; give a slice"):
        to_nczarr(-dataset.isel(y=[1]), tmp_path / "d", region="auto")


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ([2, 4], "not in one piece"),
        ([3, 2], "not in one piece"),
        ([2, 2], "not in one piece"),
    ],
)
def test_labels_out_of_order(
    table: xr.Dataset, written: Path, choice: list[int], says: str
) -> None:
    before = read_tree(written)
    with pytest.raises(ExportError, match=says):
        to_nczarr(table[["value"]].isel(day=choice), written, region={"day": "auto"})
    assert read_tree(written) == before


def test_labels_that_are_not_there(table: xr.Dataset, written: Path) -> None:
    new = table[["value"]].assign_coords(day=table.day + np.timedelta64(1, "h"))
    with pytest.raises(ExportError, match="not all labels of 'day'"):
        to_nczarr(new, written, region={"day": "auto"})


def test_labels_that_are_there_twice(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0, 3.0])}, {"x": [1, 2, 2]})
    to_nczarr(dataset, tmp_path / "d")
    with pytest.raises(ExportError, match="labels of 'x' are there twice; give a slice"):
        to_nczarr(dataset.isel(x=[0]), tmp_path / "d", region={"x": "auto"})
    to_nczarr(-dataset.isel(x=slice(2)), tmp_path / "d", region={"x": slice(2)})
    np.testing.assert_array_equal(opened(tmp_path / "d").v, [-1, -2, 3])


def test_labels_of_text(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0, 3.0])}, {"x": ["b", "ä", "a"]})
    to_nczarr(dataset, tmp_path / "d")
    to_nczarr(-dataset.sel(x=["ä", "a"]), tmp_path / "d", region="auto")
    np.testing.assert_array_equal(opened(tmp_path / "d").v, [1, -2, -3])


def test_labels_of_several_levels(tmp_path: Path) -> None:
    levels = pd.MultiIndex.from_product([[0, 1], ["a", "b"]], names=["n", "s"])
    coordinates = xr.Coordinates.from_pandas_multiindex(levels, "x")
    dataset = xr.Dataset({"v": ("x", np.arange(4.0))}, coordinates)
    to_nczarr(dataset.reset_index("x"), tmp_path / "d")
    before = read_tree(tmp_path / "d")
    with pytest.raises(ExportError, match="x: is not in /"):
        to_nczarr(-dataset, tmp_path / "d", region="auto")
    assert read_tree(tmp_path / "d") == before


# -- labels and scalars, as in to_zarr -----------------------------------------------


def test_labels_stay_what_they_are(table: xr.Dataset, written: Path) -> None:
    part = {"day": slice(2, 4)}
    before = read_tree(written)
    some = table[["value"]].isel(part).drop_vars("place")
    to_nczarr(some, written, region=part)
    assert read_tree(written) == before
    other = some.assign_coords(day=table.day[:2].values)
    with pytest.raises(ExportError, match="day: the labels are not those stored there"):
        to_nczarr(other, written, region=part)
    assert read_tree(written) == before


@pytest.mark.parametrize("label", ["1999-01-01", "2100-01-01"])
def test_labels_that_the_stored_type_cannot_hold(tmp_path: Path, label: str) -> None:
    """Their places were taken by zeros, and the first of the days is stored as 0."""
    dataset = xr.Dataset({"v": ("t", [1.0])}, {"t": np.array(["2000-01-01"], "M8[ns]")})
    to_nczarr(dataset, tmp_path / "d", encoding={"t": {"dtype": "u1"}})
    other = dataset.assign_coords(t=np.array([label], "M8[ns]"))
    with pytest.raises(ExportError, match="t: the labels are not those stored there"):
        to_nczarr(other, tmp_path / "d", region={"t": slice(0, 1)})


def test_variables_without_a_dimension_of_the_region(table: xr.Dataset, written: Path) -> None:
    with pytest.raises(ExportError, match="version, place: have no dimension in the region; drop"):
        to_nczarr(table[["value", "version"]], written, region={"day": slice(0, 6)})
    with pytest.raises(ExportError, match="place: have no dimension in the region"):
        to_nczarr(table[["value"]], written, region={"day": slice(0, 6)})


def test_an_array(table: xr.Dataset, written: Path) -> None:
    part = {"day": slice(2, 4)}
    to_nczarr(-table["value"].isel(part).drop_vars("place"), written, region=part)
    table["value"][part] *= -1
    xr.testing.assert_identical(opened(written), table)


# -- everything of some variables ----------------------------------------------------


def test_new_values_without_a_region(table: xr.Dataset, written: Path) -> None:
    new = table[["value", "version"]].copy(deep=True)
    new["value"] *= 3
    new["version"] += np.int32(1)
    to_nczarr(new, written, mode="r+")
    xr.testing.assert_identical(opened(written), table.assign(new.data_vars))


def test_what_r_plus_does_not_do(table: xr.Dataset, written: Path, tmp_path: Path) -> None:
    before = read_tree(written)
    with pytest.raises(ExportError, match="other: is not in /; write it with mode='a'"):
        to_nczarr(xr.Dataset({"other": ((), 1)}), written, mode="r+")
    with pytest.raises(ExportError, match="has length 5 along 'day', where 6 is to be replaced"):
        to_nczarr(table[["value"]].isel(day=slice(5)), written, mode="r+")
    with pytest.raises(ExportError, match="has dimensions"):
        to_nczarr(table[["value"]].rename(place="elsewhere"), written, mode="r+")
    with pytest.raises(DatasetNotFoundError, match="write it first"):
        to_nczarr(table, tmp_path / "nothing", mode="r+")
    with pytest.raises(DatasetNotFoundError, match="no group '/deep'"):
        to_nczarr(table, written, mode="r+", group="deep")
    assert read_tree(written) == before


@pytest.mark.parametrize("region", ["automatic", 3, slice(0, 2)])
def test_what_is_no_region(table: xr.Dataset, written: Path, region: Any) -> None:
    with pytest.raises(ExportError, match=r"region is .*; it is a dict of slices, or 'auto'$"):
        to_nczarr(table, written, region=region)


@pytest.mark.parametrize("mode", ["w", "w-"])
def test_modes_that_do_not_go_with_a_region(table: xr.Dataset, written: Path, mode: Any) -> None:
    with pytest.raises(ExportError, match="mode is"):
        to_nczarr(table, written, mode, region={"day": slice(0, 6)})
    with pytest.raises(ExportError, match="exclude each other"):
        to_nczarr(table, written, append_dim="day", region={"day": slice(0, 6)})


# -- types and attributes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "stored"),
    [
        ("f8", "f4"),
        ("i8", "i4"),
        ("f4", "i4"),
        ("i4", "u4"),
        ("M8[ns]", "f8"),
        ("U3", "f8"),
        ("i4", "m8[s]"),
        ("?", "m8[s]"),
    ],
)
def test_types_that_would_lose_something(tmp_path: Path, new: str, stored: str) -> None:
    to_nczarr(xr.Dataset({"v": ("x", np.zeros(4, stored))}), tmp_path / "d")
    before = read_tree(tmp_path / "d")
    with pytest.raises(
        ExportError, match=r"v: is of type .*, stored as |v: holds numbers without units"
    ):
        to_nczarr(
            xr.Dataset({"v": ("x", np.zeros(2, new))}), tmp_path / "d", region={"x": slice(2)}
        )
    assert read_tree(tmp_path / "d") == before


@pytest.mark.parametrize(
    ("new", "stored"), [("f4", "f8"), ("i2", "i4"), ("u2", "i4"), (">f8", "f8")]
)
def test_types_that_fit(tmp_path: Path, new: str, stored: str) -> None:
    to_nczarr(xr.Dataset({"v": ("x", np.zeros(4, stored))}), tmp_path / "d")
    to_nczarr(
        xr.Dataset({"v": ("x", np.array([5, 6], new))}), tmp_path / "d", region={"x": slice(1, 3)}
    )
    found = opened(tmp_path / "d").v
    assert found.dtype == stored
    np.testing.assert_array_equal(found, [0, 5, 6, 0])


def test_attributes(table: xr.Dataset, tmp_path: Path) -> None:
    table["value"].attrs = {"units": "m", "valid": np.array([1, 2], "i2")}
    to_nczarr(table, tmp_path / "d")
    part = {"day": slice(0, 2)}
    new = table[["value"]].isel(part).drop_vars("place")
    to_nczarr(new, tmp_path / "d", region=part)
    to_nczarr(new.drop_attrs(), tmp_path / "d", region=part)
    new["value"].attrs = {"units": "km", "valid": np.array([1, 2], "i2"), "more": 1}
    with pytest.raises(ExportError, match="other attributes than those stored: units, more"):
        to_nczarr(new, tmp_path / "d", region=part)
    xr.testing.assert_identical(opened(tmp_path / "d"), table)


def test_packed_values(tmp_path: Path) -> None:
    values = np.array([1.5, np.nan, 2.5, 3.5])
    packing = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": np.int16(-1)}
    dataset = xr.Dataset({"v": ("x", values)})
    to_nczarr(dataset, tmp_path / "d", encoding={"v": {**packing, "chunks": (3,)}})
    new = np.array([np.nan, 7.0])
    for dtype in ("f4", "f8"):  # whatever xarray makes of the packed values
        part = xr.Dataset({"v": ("x", new.astype(dtype))})
        to_nczarr(part, tmp_path / "d", region={"x": slice(2, 4)})
        np.testing.assert_array_equal(opened(tmp_path / "d").v, [1.5, np.nan, np.nan, 7.0])
    assert by_netcdf(tmp_path / "d", "v").tolist() == [1, -1, -1, 12]


def test_times_in_other_units(written: Path, table: xr.Dataset, tmp_path: Path) -> None:
    when = xr.Dataset({"when": ("x", pd.date_range("2000-01-01", periods=4))})
    to_nczarr(when, tmp_path / "d", encoding={"when": {"units": "days since 2000-01-01"}})
    late = pd.to_datetime(["2010-05-05"])
    to_nczarr(xr.Dataset({"when": ("x", late)}), tmp_path / "d", region={"x": slice(1, 2)})
    assert opened(tmp_path / "d")["when"][1] == late[0]
    new = xr.Dataset({"when": ("x", pd.to_datetime(["2010-05-05T06:00"]))})
    with (
        pytest.warns(UserWarning, match="can't be serialized faithfully"),  # xarray's
        pytest.raises(ExportError, match=r"when: needs the units 'hours since 2000.*mode='a'"),
    ):
        to_nczarr(new, tmp_path / "d", region={"x": slice(1, 2)})


def test_text(tmp_path: Path) -> None:
    dataset = xr.Dataset({"s": ("x", np.array(["ab", "", "cde", "é"], object))})
    to_nczarr(dataset, tmp_path / "d", encoding={"s": {"chunks": (3,)}})
    new = xr.Dataset({"s": ("x", np.array(["é!", "f"], object))})
    to_nczarr(new, tmp_path / "d", region={"x": slice(2, 4)})
    assert opened(tmp_path / "d")["s"].data.tolist() == ["ab", "", "é!", "f"]
    new = xr.Dataset({"s": ("x", np.array(["ééé", "f"], object))})
    with pytest.raises(
        ExportError, match="s: holds a text of 6 bytes, and is stored with 3 at most"
    ):
        to_nczarr(new, tmp_path / "d", region={"x": slice(2, 4)})


def test_characters(tmp_path: Path) -> None:
    dataset = xr.Dataset({"s": ("x", np.array([b"abc", b"de", b"", b"f"]))})
    to_nczarr(dataset, tmp_path / "d", encoding={"s": {"chunks": (3, 2)}})
    new = xr.Dataset({"s": ("x", np.array([b"z", b"xy"]))})
    to_nczarr(new, tmp_path / "d", region={"x": slice(2, 4)})
    assert opened(tmp_path / "d")["s"].data.tolist() == [b"abc", b"de", b"z", b"xy"]
    assert by_netcdf(tmp_path / "d", "s").tobytes() == b"abcde\0z\0\0xy\0"
    new = xr.Dataset({"s": ("x", np.array([b"long", b"xy"]))})
    with pytest.raises(ExportError, match="s:"):
        to_nczarr(new, tmp_path / "d", region={"x": slice(2, 4)})


# -- other datasets ------------------------------------------------------------------


def test_groups(table: xr.Dataset, tmp_path: Path) -> None:
    plain = table[["value"]].drop_vars(["day", "place"])
    tree_ = xr.DataTree.from_dict({"/": table, "/deep/er": plain * 2})
    to_nczarr(tree_, tmp_path / "d")
    part = {"day": slice(2, 4)}
    to_nczarr(plain.isel(part) * 7, tmp_path / "d", region=part, group="deep/er")
    with xr.open_datatree(str(tmp_path / "d"), engine="nczarr") as found:
        xr.testing.assert_identical(found["/"].to_dataset(), table)
        expected = plain * 2
        expected["value"][part] = plain["value"][part] * 7
        np.testing.assert_array_equal(found["deep/er/value"], expected["value"])


@pytest.mark.parametrize("ending", ["", ".zip"])
@pytest.mark.parametrize("kind", ["nczarr", "zarr"])
def test_consolidated_metadata_stay_right(
    table: xr.Dataset, tmp_path: Path, kind: str, ending: str
) -> None:
    target = f"file://{tmp_path}/d{ending}#mode={kind},{'zip' if ending else 'file'}"
    to_nczarr(table, target, consolidated=True)
    part = {"day": slice(3, 6)}
    to_nczarr(-table[["value", "count"]].isel(part).drop_vars("place"), target, region=part)
    table["value"][part] *= -1
    table["count"][part] *= -1
    consolidated = f"{target},consolidated" if kind == "nczarr" else target
    xr.testing.assert_identical(opened(consolidated), table)
    if ending:
        with zipfile.ZipFile(tmp_path / "d.zip") as archive:
            names = archive.namelist()
            assert len(names) == len(set(names))
            objects = {n.partition("d/")[2] or n: archive.read(n) for n in names}
    else:
        objects = read_tree(tmp_path / "d")
    (key,) = (key for key in objects if key.endswith(".zmetadata"))
    above = key.removesuffix(".zmetadata")
    for name, document in json.loads(objects[key])["metadata"].items():
        assert json.loads(objects[above + name]) == document


def test_pure_zarr_of_zarr_python(table: xr.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "d"
    table.to_zarr(path, zarr_format=2, encoding={"value": {"chunks": (4, 3)}})
    part = {"day": slice(3, 6)}
    new = -table[["value", "count"]].isel(part).drop_vars("place")
    to_nczarr(new, path, region=part)
    table["value"][part] *= -1
    table["count"][part] *= -1
    with xr.open_zarr(path) as found:
        xr.testing.assert_identical(found.load(), table)
    xr.testing.assert_identical(opened(path), table)


def test_zarr_3_is_refused(table: xr.Dataset, tmp_path: Path) -> None:
    table.to_zarr(tmp_path / "d", zarr_format=3, consolidated=False)
    before = read_tree(tmp_path / "d")
    with pytest.raises(FormatError, match="is Zarr 3, which is changed with zarr-python"):
        to_nczarr(table[["value"]], tmp_path / "d", mode="r+")
    assert read_tree(tmp_path / "d") == before


def unpack(name: str, folder: Path) -> Path:
    """A dataset of `tests/data/vectors`."""
    with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder


VECTORS = sorted(
    path.name.removesuffix(".zip")
    for path in DATA.glob("*+file-*.zip")
    if path.name.startswith(("chunks", "endian", "fills", "filters", "psafe", "strings", "types"))
    and not ("nczarr" in path.name and "-4.8.0" in path.name)
)


def flipped(dataset: xr.Dataset) -> tuple[xr.Dataset, dict[Any, slice]]:
    """Other values for all but the first element along every dimension."""
    region = {name: slice(1, size) for name, size in dataset.sizes.items() if size > 1}
    # in doubles some values of these cannot be told from their fill
    wide = [n for n, v in dataset.variables.items() if v.encoding["dtype"] in ("i8", "u8")]
    masked = [n for n in wide if dataset.variables[n].dtype.kind == "f"]
    dataset = dataset.drop_vars([*masked, *dataset.indexes])
    part = dataset[[n for n, v in dataset.variables.items() if set(v.dims) & set(region)]]
    part = part.isel({name: where for name, where in region.items() if name in part.dims})
    part = part.map(lambda v: v.copy(data=np.flip(v.values)))
    return part, {name: region[name] for name in part.dims if name in region}


@pytest.mark.parametrize(
    "name", slow_but(VECTORS, "chunks-nczarr+file-4.10.1", "fills-nczarr+file-4.9.2")
)
def test_datasets_of_old_releases(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path / "d")
    kind = name.partition("-")[2].partition("+")[0]
    before = opened(path, decode_times=False)
    new, region = flipped(before)
    assert new.variables, "nothing there is longer than 1"
    raw = opened(path, **RAW)
    agreed = [n for n in map(str, new.variables) if agree(path, n, kind, raw)]
    to_nczarr(new, path, region=region)
    found, raw = opened(path, decode_times=False), opened(path, **RAW)
    for variable, stored in before.variables.items():
        expected = stored.data.copy()
        if variable in new.variables:
            part = tuple(region.get(dim, slice(None)) for dim in stored.dims)
            expected[part] = new[variable].data
        assert found[variable].variable.equals(stored.copy(data=expected)), variable
    assert all(agree(path, variable, kind, raw) for variable in agreed)


def agree(path: Path, name: str, kind: str, ours: xr.Dataset) -> bool:
    """Whether netCDF-C 4.10.1 reads the same: of what old releases wrote it cannot read all."""
    try:
        theirs = by_netcdf(path, name, kind)
    except (OSError, RuntimeError, IndexError):
        return False
    return np.array_equal(theirs, ours[name].values)


@pytest.mark.parametrize("case", ["chunks", "psafe"])
def test_datasets_of_the_first_release(case: str, tmp_path: Path) -> None:
    path = unpack(f"{case}-nczarr+file-4.8.0", tmp_path / "d")
    before = read_tree(path)
    with pytest.raises(FormatError, match=r"4\.8\.0: copy the dataset first \(nczarr copy\)"):
        to_nczarr(opened(path), path, mode="r+")
    assert read_tree(path) == before


# -- any region of anything ----------------------------------------------------------

DTYPES = ["i1", "u1", "<i2", ">i2", "<u4", ">i4", "<i8", ">u8", "<f4", ">f4", "<f8", ">f8", "S1"]
FILTERS: list[Mapping[str, Any]] = [
    {},
    {"zlib": True, "complevel": 1},
    {"zlib": True, "shuffle": False},
    {"fletcher32": True},
    {"zlib": True, "fletcher32": True},
]


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[slice, ...]]:
    """A shape, a chunk shape, and a region."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    chunks = tuple(draw(st.integers(1, size)) for size in shape)
    region = []
    for size in shape:
        start = draw(st.integers(0, size))
        region.append(slice(start, draw(st.integers(start, size))))
    return shape, chunks, tuple(region)


def numbers(shape: tuple[int, ...], dtype: str, first: int) -> np.ndarray[Any, Any]:
    values = np.arange(first, first + int(np.prod(shape))).reshape(shape)
    if dtype == "S1":
        return (values % 90 + 33).astype("u1").view("S1").reshape(shape)
    return (values % 120).astype(dtype)


def write_region(
    path: Path, old: np.ndarray[Any, Any], region: tuple[slice, ...], dims: list[Any]
) -> np.ndarray[Any, Any]:
    """Assign to a region of `v` in a dataset, and in a copy of `old`."""
    new = numbers(old[region].shape, old.dtype.str.lstrip("|"), 7)
    part = xr.Dataset({"v": (dims, new)})
    to_nczarr(part, path, region=dict(zip(dims, region, strict=True)))
    expected = old.copy()
    expected[region] = new
    return expected


@settings(max_examples=examples(60))
@given(case=cases(), dtype=st.sampled_from(DTYPES), filters=st.sampled_from(FILTERS))
def test_any_region_of_what_we_wrote(case: Any, dtype: str, filters: Mapping[str, Any]) -> None:
    shape, chunks, region = case
    values = numbers(shape, dtype, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "d")
        dims = [f"d{axis}" for axis in range(len(shape))]
        if dtype == "S1":
            chunks = (*chunks, 1)  # xarray makes another dimension of the length of texts
        if dtype[0] == ">":
            filters = {**filters, "endian": "big"}
        to_nczarr(
            xr.Dataset({"v": (dims, values)}), path, encoding={"v": {"chunks": chunks, **filters}}
        )
        expected = write_region(path, values, region, dims)
        for found in opened(path, **RAW)["v"].data, by_netcdf(path, "v"):
            np.testing.assert_array_equal(found.reshape(shape), expected)


@settings(max_examples=examples(40))
@given(
    case=cases(),
    dtype=st.sampled_from(DTYPES[:-1]),
    filters=st.sampled_from(FILTERS),
    kind=st.sampled_from(["nczarr", "zarr", "nczarr,noxarray", "zarr,noxarray"]),
    unwritten=st.booleans(),
)
def test_any_region_of_what_netcdf_c_wrote(
    case: Any, dtype: str, filters: Mapping[str, Any], kind: str, unwritten: bool
) -> None:
    shape, chunks, region = case
    # dimensions of one length are one dimension where they have no names
    assume("noxarray" not in kind or len(set(shape)) == len(shape))
    values = numbers(shape, dtype, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "d")
        with netCDF4.Dataset(f"file://{path}#mode={kind},file", "w") as file:
            dims = [file.createDimension(f"d{i}", n).name for i, n in enumerate(shape)]
            endian: Any = {">": "big", "<": "little"}.get(dtype[0], "native")
            options: Any = {"chunksizes": chunks, "endian": endian, **filters}
            v = file.createVariable("v", np.dtype(dtype), dims, **options)
            if not unwritten or dtype[0] == ">":  # netCDF-C swaps no fill value
                v[...] = values
        old = by_netcdf(path, "v", kind).astype(dtype)
        dims = [*opened(path, **RAW).v.dims]
        expected = write_region(path, old, region, dims)
        np.testing.assert_array_equal(by_netcdf(path, "v", kind), expected)
        np.testing.assert_array_equal(opened(path, **RAW).v, expected)


@pytest.mark.filterwarnings("ignore:.*read as missing")
@settings(max_examples=examples(40))
@given(
    case=cases(),
    dtype=st.sampled_from([*DTYPES[:-1], "S5"]),
    order=st.sampled_from("CF"),
    separator=st.sampled_from("./"),
    fill=st.sampled_from([None, 0, 9]),
)
def test_any_region_of_what_zarr_python_wrote(
    case: Any, dtype: str, order: Any, separator: Any, fill: Any
) -> None:
    shape, chunks, region = case
    text = dtype == "S5"
    values = numbers(shape, "i8" if text else dtype, 1).astype(dtype)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "d")
        array = zarr.create_array(
            store=str(path),
            name="v",
            shape=shape,
            chunks=chunks,
            dtype=dtype,
            zarr_format=2,
            order=order,
            fill_value=fill if not text else b"",
            chunk_key_encoding={"name": "v2", "separator": separator},
        )
        dims = [f"d{axis}" for axis in range(len(shape))]
        array.attrs["_ARRAY_DIMENSIONS"] = dims
        array[...] = values
        (path / ".zgroup").write_text('{"zarr_format": 2}')
        new = numbers(values[region].shape, "i8" if text else dtype, 7).astype(dtype)
        part = xr.Dataset({"v": (dims, new)})
        to_nczarr(part, path, region=dict(zip(dims, region, strict=True)))
        values[region] = new
        np.testing.assert_array_equal(zarr.open_array(str(path / "v"))[...], values)


# -- bounds, which have no units of their own -------------------------------------------


def with_bounds(first: str) -> xr.Dataset:
    day = np.datetime64(first, "ns") + np.arange(2) * np.timedelta64(1, "D")
    ends = np.stack([day, day + np.timedelta64(1, "D")], axis=1)
    return xr.Dataset(
        {"ends": (("day", "end"), ends), "v": ("day", [1.0, 2.0])},
        {"day": ("day", day, {"bounds": "ends"})},
    )


@pytest.mark.parametrize("region", ["auto", {"day": slice(0, 2)}])
@pytest.mark.parametrize("lazy", [False, True])
def test_bounds_without_their_coordinate(tmp_path: Path, region: Any, lazy: bool) -> None:
    table = with_bounds("2000-01-01")
    to_nczarr(table, tmp_path / "d", encoding={"day": {"units": "hours since 1999-12-31"}})
    later = table.assign(ends=table["ends"] + np.timedelta64(3, "h"))
    later = later.chunk(day=2) if lazy else later
    if region != "auto":
        later = later.drop_vars("day")
    to_nczarr(later, tmp_path / "d", region=region, align_chunks=True)
    found = opened(tmp_path / "d")
    xr.testing.assert_equal(found["ends"].load(), later["ends"].assign_coords(day=table["day"]))
    assert "units" not in opened(tmp_path / "d", **RAW)["ends"].attrs


def test_bounds_do_not_change_with_the_units_of_their_coordinate(tmp_path: Path) -> None:
    table = with_bounds("2000-01-01")
    to_nczarr(table, tmp_path / "d", encoding={"day": {"units": "hours since 1999-12-31"}})
    before, other = read_tree(tmp_path / "d"), {"day": {"units": "days since 1990-01-01"}}
    with pytest.raises(ExportError, match=r"/ends is stored in the units of /day, 'hours .*write"):
        to_nczarr(table[["day"]], tmp_path / "d", mode="a", encoding=other)
    assert read_tree(tmp_path / "d") == before
    same = {"day": {"units": "hours since 1999-12-31 00:00:00"}}
    to_nczarr(table[["day"]], tmp_path / "d", mode="a", encoding=same)
    xr.testing.assert_equal(opened(tmp_path / "d").load(), table)
    to_nczarr(table[["day", "ends"]], tmp_path / "d", mode="a", encoding=other)
    xr.testing.assert_equal(opened(tmp_path / "d").load(), table)


@pytest.mark.parametrize("stored", [None, "standard", "gregorian", "proleptic_gregorian"])
def test_bounds_of_a_coordinate_that_is_the_same_times(tmp_path: Path, stored: str | None) -> None:
    """Calendars have several names, and from 1582 on two of them are the same."""
    attributes = {"units": "days since 2000-01-01", "bounds": "ends"}
    if stored is not None:
        attributes["calendar"] = stored
    days = xr.Dataset(
        {"ends": (("day", "end"), [[0.0, 1.0], [1.0, 2.0]])},
        {"day": ("day", [0.5, 1.5], attributes)},
    )
    to_nczarr(days, tmp_path / "d")
    before = opened(tmp_path / "d").load()
    to_nczarr(before[["day"]], tmp_path / "d", mode="a")
    xr.testing.assert_equal(opened(tmp_path / "d").load(), before)
    same = {"units": "days since 2000-01-01", "dtype": "float64"}
    for calendar in ("standard", "proleptic_gregorian"):
        encoding = {"day": {"calendar": calendar, **same}}
        to_nczarr(before[["day"]], tmp_path / "d", mode="a", encoding=encoding)
        xr.testing.assert_equal(opened(tmp_path / "d").load(), before)
    encoding = {"day": {"calendar": "noleap", **same}}
    with pytest.raises(ExportError, match=r"2000-01-01' \(noleap\): write 'ends' as well"):
        to_nczarr(before[["day"]], tmp_path / "d", mode="a", encoding=encoding)


def test_bounds_of_what_is_no_time_are_read_without_units(tmp_path: Path) -> None:
    table = xr.Dataset(
        {"ends": (("lat", "end"), [[0.0, 1.0]])},
        {"lat": ("lat", [0.5], {"units": "degree_north", "bounds": "ends"})},
    )
    to_nczarr(table, tmp_path / "d")
    for other in ({"units": "degrees_north", "bounds": "ends"}, {"bounds": "ends"}):
        new = xr.Dataset(coords={"lat": ("lat", [0.5], other)})
        to_nczarr(new, tmp_path / "d", mode="a")
        assert opened(tmp_path / "d")["lat"].attrs == other
