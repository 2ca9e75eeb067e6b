"""Pure Zarr as we write it: what every reader of Zarr 2 and of JSON makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nczarr_xarray import open_store, to_nczarr
from nczarr_xarray.cli.main import main
from tests.strictjson import strict

NAN, INF = np.nan, np.inf
ATTRIBUTES: dict[str, Any] = {
    "nan": NAN,
    "minus": -INF,
    "nans": np.array([NAN, NAN]),
    "mixed": np.array([1.5, NAN, INF]),
    "first": np.array([INF, 2.0]),
    "single": np.float32(NAN),
    "text": "NaN",
    "texts": ["NaN", "or not"],
    "largest": np.array([-1, 2**63 - 1]),
    "limits": np.array([-(2**63), 2**63 - 1]),
    "alone": np.int64(2**63 - 1),
    "unsigned": np.array([0, 2**64 - 1], "u8"),
    'quote " and \\': "control \x01 and \n",
}


def dataset() -> xr.Dataset:
    ds = xr.Dataset(
        {
            "v": (("t", "x"), np.array([[1.0, NAN, INF], [-INF, 0.0, 5.0]]), dict(ATTRIBUTES)),
            "f": ("x", np.array([1, NAN, 3], "f4"), {"missing_value": np.float32(NAN)}),
            "n": ("x", [1, 2, 3]),
            "s": ("x", ["a", "é", ""]),
        },
        coords={"t": [NAN, 1.0]},
        attrs=dict(ATTRIBUTES),
    )
    ds["v"].encoding["_FillValue"] = INF
    return ds


def same(found: Any, wanted: Any) -> bool:
    """Whether values are equal, their numbers being of any type."""
    if isinstance(wanted, (str, list)):
        return bool(found == wanted)
    return not isinstance(found, str) and np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("how", ["export", "consolidated", "copy", "append", "group"])
def test_everything_is_strict_json_and_comes_back(tmp_path: Path, how: str) -> None:
    ds, target = dataset(), f"file://{tmp_path}/x#mode=zarr"
    if how == "copy":
        ds.attrs.pop('quote " and \\'), ds["v"].attrs.pop('quote " and \\')
        to_nczarr(ds, tmp_path / "y")
        assert main(["copy", str(tmp_path / "y"), target, "--consolidated"]) == 0
    elif how == "append":
        to_nczarr(ds.isel(t=slice(1)), target, consolidated=True)
        to_nczarr(ds.isel(t=slice(1, 2)).drop_vars(["f", "n", "s"]), target, append_dim="t")
    elif how == "group":
        to_nczarr(xr.Dataset(), target, consolidated=True)
        to_nczarr(ds, target, "a", group="g")
    else:
        to_nczarr(ds, target, consolidated=how == "consolidated")
    documents = [p for p in (tmp_path / "x").rglob(".z*") if p.is_file()]
    assert len(documents) > 6
    for path in documents:
        strict(path.read_bytes())
    group = "g" if how == "group" else None
    with xr.open_dataset(tmp_path / "x", engine="nczarr", group=group) as back:
        for name, value in ds.attrs.items():
            assert same(back.attrs[name], value), name
            assert same(back["v"].attrs[name], value), name
        assert back["v"].encoding["_FillValue"] == INF
        assert np.isnan(back["f"].encoding["missing_value"])
        expected = ds.assign(v=ds.v.where(ds.v != INF)).drop_vars("s")
        xr.testing.assert_equal(back.load().drop_vars("s"), expected)
    theirs = zarr.open_group(tmp_path / "x", mode="r", path=group or "", zarr_format=2)
    assert theirs["v"].attrs["nan"] == ["NaN"]
    assert np.isnan(theirs["f"].fill_value)
    stored = ds.v.fillna(INF).values
    np.testing.assert_array_equal(theirs["v"][:], stored)


def test_netcdf_c_reads_numbers_that_are_not_finite(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", [1.0, NAN])}, attrs={"mixed": [1.5, NAN]})
    to_nczarr(ds, f"file://{tmp_path}/x#mode=zarr")
    with netCDF4.Dataset(f"file://{tmp_path}/x#mode=zarr,file") as file:
        assert np.isnan(file["v"].getncattr("_FillValue"))
        np.testing.assert_array_equal(file.getncattr("mixed"), [1.5, NAN])


@settings(max_examples=60)
@given(arrays.arrays(st.sampled_from(["f8", "f4", "i8", "u8", "i4", "u1"]), st.integers(1, 4)))
def test_any_numbers_come_back(values: np.ndarray[Any, Any]) -> None:
    objects: dict[str, bytes] = {}
    to_nczarr(xr.Dataset(attrs={"a": values}), objects, mode="w")  # (a mapping is NCZarr)
    with xr.open_dataset(objects, engine="nczarr") as back:
        np.testing.assert_array_equal(back.attrs["a"], values if len(values) > 1 else values[0])


def test_the_view_of_a_file_is_strict_json(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        file.setncatts({"nan": NAN, "mixed": [1.0, -INF]})
        file.createVariable("v", "f4", ("x",), fill_value=NAN)[:] = [1, 2]
    assert main(["refs", str(tmp_path / "x.nc"), str(tmp_path / "refs.json")]) == 0
    refs = strict((tmp_path / "refs.json").read_bytes())["refs"]
    for key in (".zattrs", "v/.zattrs", "v/.zarray"):
        strict(refs[key] if isinstance(refs[key], str) else json.dumps(refs[key]))
    view = zarr.open_group(open_store(str(tmp_path / "x.nc")), mode="r")
    assert np.isnan(view["v"].fill_value)
