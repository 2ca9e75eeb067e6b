"""Coordinates of other types in some files: the aggregation has the type that holds all."""

from __future__ import annotations

import warnings
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.errors import ExportError, LossWarning
from nczarr_xarray import aggregate

TENTHS = [0.1, 0.2, 0.3]


def write(path: Path, number: int, time: str, lat: str, **attributes: Any) -> str:
    with netCDF4.Dataset(path, "w") as file:
        for name, length in (("time", 2), ("nv", 2), ("lat", 3)):
            file.createDimension(name, length)
        start = 2 * number
        file.createVariable("time", time, ("time",))[:] = [start, start + 1]
        file["time"].setncatts({"bounds": "bnds", "units": "days since 2000-01-01", **attributes})
        file.createVariable("bnds", time, ("time", "nv"))[:] = start + np.arange(4).reshape(2, 2)
        file.createVariable("lat", lat, ("lat",))[:] = TENTHS
        aux = file.createVariable("aux", lat, ("lat",), fill_value=-9)
        aux[:] = np.ma.masked_equal([0.7, -9, 1.1], -9)
        field = file.createVariable("v", "f4", ("time", "lat"))
        field[:] = np.arange(6).reshape(2, 3) + 6 * number
        field.coordinates = "aux"
    return str(path)


@pytest.mark.parametrize("types", [*permutations([("i8", "f4"), ("f8", "f8"), ("i4", "f4")])])
@pytest.mark.parametrize("append", [False, True])
def test_the_type_holds_what_all_files_have(
    tmp_path: Path, types: tuple[tuple[str, str], ...], append: bool
) -> None:
    files = [write(tmp_path / f"{n}.nc", n, *own) for n, own in enumerate(types)]
    master = tmp_path / "m.nca"
    aggregate(files[:2] if append else files, master, cfa_version="0.4" if append else None)
    if append:
        aggregate(files[2:], master, append=True)
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as found:
        assert {found[name].dtype.str[1:] for name in ("time", "bnds", "lat", "aux")} == {"f8"}
        assert found["time"].values.tolist() == [*range(6)]
        assert found["bnds"].values[:, 0].tolist() == [0, 2, 2, 4, 4, 6]
        assert found["lat"].values.tolist() == TENTHS  # the float ones are these, rounded
        np.testing.assert_array_equal(found["aux"], [0.7, np.nan, 1.1])
        assert np.array_equal(found["v"], np.arange(18).reshape(6, 3))


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("i4", "i8"), "i8"),
        (("u1", "i1"), "i2"),
        (("i2", "f4"), "f4"),
        (("i4", "f4"), "f8"),
        (("u4", "i4"), "i8"),
    ],
)
def test_types_between(tmp_path: Path, types: tuple[str, str], expected: str) -> None:
    files = [write(tmp_path / f"{n}.nc", n, one, "f8") for n, one in enumerate(types)]
    aggregate(files, tmp_path / "m.nca")
    with netCDF4.Dataset(tmp_path / "m.nca") as found:
        assert found["time"].dtype == expected
        assert found["time"][:].tolist() == [0, 1, 2, 3]


def test_integers_that_the_type_does_not_hold(tmp_path: Path) -> None:
    one = write(tmp_path / "a.nc", 0, "f8", "f8")
    other = write(tmp_path / "b.nc", 1, "i8", "f8")
    with netCDF4.Dataset(other, "a") as file:
        file["time"][:] = [2**53, 2**53 + 1]
    with pytest.raises(ExportError, match=r"b\.nc: has values of /time that are no double"):
        aggregate([one, other], tmp_path / "m.nca")


def test_coordinates_that_differ_by_more_than_rounding(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.nc", n, "f8", t) for n, t in enumerate(("f4", "f8"))]
    with netCDF4.Dataset(files[1], "a") as file:
        file["aux"][0] = 0.7000002
    with pytest.raises(ExportError, match=r"1\.nc.* other values of the coordinate /aux"):
        aggregate(files, tmp_path / "m.nca")


def test_data_keep_their_type(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.nc", n, "f8", "f8") for n in range(2)]
    with netCDF4.Dataset(files[1], "a") as file:
        file.renameVariable("v", "w")
        file.createVariable("v", "f8", ("time", "lat")).coordinates = "aux"
    with pytest.raises(ExportError, match=r"1\.nc: /v is double, and in .*0\.nc it is float"):
        aggregate(files, tmp_path / "m.nca", variables=["v"])


@pytest.mark.parametrize("fill", [None, False])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_bools_of_zarr_are_bytes_that_xarray_takes_for_bools(
    tmp_path: Path, zarr_format: Literal[2, 3], fill: bool | None
) -> None:
    """As in a copy, which says the same of a mask that is lost."""
    files = [str(tmp_path / f"{n}.zarr") for n in range(2)]
    marks: dict[str, Any] = {} if fill is None or zarr_format == 2 else {"_FillValue": fill}
    names: dict[str, Any] = {} if zarr_format == 2 else {"dimension_names": ("x",)}
    plain: dict[str, Any] = {"_ARRAY_DIMENSIONS": ["x"]} if zarr_format == 2 else {}
    for n, file in enumerate(files):
        group = zarr.create_group(file, zarr_format=zarr_format)
        for name, values in (("x", 3 * n + np.arange(3)), ("v", np.array([True, False, True]))):
            attributes = plain | (marks if name == "v" else {})
            group.create_array(name, data=values, fill_value=None, attributes=attributes, **names)
        group.create_array(
            "w", shape=(3,), dtype=bool, fill_value=fill, attributes=plain | marks, **names
        )[:2] = [True, False]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", LossWarning)
        aggregate(files, tmp_path / "m.nca")
    lost = [str(one.message) for one in told if issubclass(one.category, LossWarning)]
    assert ("the mask of bools" in "".join(lost) and "/w:_FillValue" in "".join(lost)) == (
        fill is not None
    )
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].dtype == found["w"].dtype == bool
        assert found["v"].values.tolist() == [True, False, True] * 2
        assert found["w"].values.tolist() == [True, False, False] * 2
