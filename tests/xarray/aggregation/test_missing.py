"""What is missing in an aggregation is missing for its readers, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_xarray import aggregate, convert_references

OLD = ("0.4", "0.6.2")
VERSIONS = (*OLD, "1.13")


def stored(path: Path, values: np.ndarray, first: int, **encoding: Any) -> str:
    """Write a file with a variable of these numbers, as they are stored."""
    attributes = {k: own for k, own in encoding.items() if k != "_FillValue"}
    ds = xr.Dataset({"v": ("time", values, attributes)}, {"time": first + np.arange(len(values))})
    ds.to_netcdf(path, encoding={"v": {"_FillValue": encoding.get("_FillValue")}})
    return str(path)


def tiles(folder: Path, dtype: str, **encoding: Any) -> list[str]:
    """Write three of four parts of a grid."""
    files = []
    attributes = {k: own for k, own in encoding.items() if k != "_FillValue"}
    for time, lat in ((0, 0), (0, 1), (1, 0)):
        value = (2 * time + lat + 1) / encoding.get("scale_factor", 1)
        ds = xr.Dataset(
            {"v": (("time", "lat"), np.full((1, 1), value, dtype), attributes)},
            {"time": [time], "lat": [float(lat)]},
        )
        files.append(str(folder / f"{time}{lat}.nc"))
        ds.to_netcdf(files[-1], encoding={"v": {"_FillValue": encoding.get("_FillValue")}})
    return files


@pytest.mark.filterwarnings("ignore:.*parts have no file")
@pytest.mark.parametrize("output", [*OLD, "json", "converted"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u2", "i4", "i8"])
@pytest.mark.parametrize(
    "encoding", [{}, {"scale_factor": 0.5}, {"missing_value": 9}], ids=["plain", "packed", "mark"]
)
def test_a_part_without_a_file_is_missing(
    tmp_path: Path, output: str, dtype: str, encoding: dict[str, Any]
) -> None:
    given = dict(encoding)
    if "missing_value" in given:
        given["missing_value"] = np.array(9, dtype)[()]
    target = tmp_path / ("m.json" if output == "json" else "m.nca")
    version: dict[str, Any] = (
        {} if output == "json" else {"cfa_version": output if output in OLD else "0.6.2"}
    )
    aggregate(tiles(tmp_path, dtype, **given), target, **version)
    if output == "converted":
        source, target = target, tmp_path / "c.json"
        convert_references(source, target)
    engines = ["nczarr", "kerchunk"] if target.suffix == ".json" else ["nczarr"]
    for engine in engines:
        with xr.open_dataset(str(target), engine=engine) as ds:
            np.testing.assert_array_equal(ds["v"], [[1, 2], [3, np.nan]])


@pytest.mark.filterwarnings("ignore:.*parts have no file")
@pytest.mark.parametrize("name", ["m.nca", "m.json"])
def test_bytes_cannot_say_that_a_part_has_no_file(tmp_path: Path, name: str) -> None:
    version: dict[str, Any] = {"cfa_version": "0.6.2"} if name == "m.nca" else {}
    with pytest.raises(ExportError, match=r"/v: .*all its values may be data"):
        aggregate(tiles(tmp_path, "u1"), tmp_path / name, **version)
    aggregate(tiles(tmp_path, "u1", _FillValue=np.uint8(0)), tmp_path / name, **version)
    with xr.open_dataset(tmp_path / name, engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [[1, 2], [3, np.nan]])


@pytest.mark.parametrize("version", ["0.6.2", "1.13"])
@pytest.mark.parametrize("scales", [(0.5, 0.5), (0.5, 0.25)])
def test_packed_numbers_without_fill_value(
    tmp_path: Path, version: str, scales: tuple[float, float]
) -> None:
    """netCDF's default is missing; unpacked, it was a number of 37 digits."""
    files = [
        stored(tmp_path / f"{n}.nc", np.array([-32767, 4], "i2"), 2 * n, scale_factor=scale)
        for n, scale in enumerate(scales)
    ]
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        expected = [np.nan, 4 * scales[0], np.nan, 4 * scales[1]]
        np.testing.assert_array_equal(ds["v"], expected)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mark", ["_FillValue", "missing_value"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["i2", "u4", "f4"])
def test_the_fill_value_of_one_file_is_data_in_another(
    tmp_path: Path, version: str, mark: str, turned: bool, dtype: str
) -> None:
    values, zero = np.array([0, 1], dtype), np.array(0, dtype)[()]
    files = [
        stored(tmp_path / "a.nc", values, 0, **{mark: zero}),
        stored(tmp_path / "b.nc", values, 2),
    ]
    aggregate(files[::-1] if turned else files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [np.nan, 1, 0, 1])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mark", ["_FillValue", "missing_value"])
@pytest.mark.parametrize("dtype", ["i2", "u2", "i8", "f4", "f8"])
@pytest.mark.parametrize("encoding", [{}, {"scale_factor": 0.5}], ids=["plain", "packed"])
def test_files_with_different_fill_values_have_those_of_others_as_data(
    tmp_path: Path, version: str, mark: str, dtype: str, encoding: dict[str, Any]
) -> None:
    values = np.array([0, 1], dtype)
    files = [
        stored(tmp_path / f"{fill}.nc", values, 2 * fill, **{mark: values[fill]}, **encoding)
        for fill in range(2)
    ]
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    scale = encoding.get("scale_factor", 1)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [np.nan, scale, 0, np.nan])


def test_netcdfs_default_is_data_where_a_file_says_what_is_missing(tmp_path: Path) -> None:
    """Elements that were never written are no missing data of a file with another mark."""
    default = np.float32(9.96921e36)
    values = np.array([default, 5], "f4")
    marks = [np.float32(7), np.float32(5)]
    files = [stored(tmp_path / f"{n}.nc", values, 2 * n, missing_value=marks[n]) for n in range(2)]
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [default, 5, default, np.nan])


@pytest.mark.parametrize("version", VERSIONS)
def test_different_fill_values_of_unsigned_numbers(tmp_path: Path, version: str) -> None:
    values = np.array([-32767, 1, -1], "i2")
    files = [
        stored(tmp_path / f"{n}.nc", values, 3 * n, _FillValue=fill, _Unsigned="true")
        for n, fill in enumerate((np.int16(1), np.int16(-1)))
    ]
    aggregate(files[::-1], tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"][3:], [32769, 1, np.nan])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("dtype", "most"), [("i2", 65535.0), ("i4", 2**32 - 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_unsigned_numbers_of_files_without_a_mark_are_data(
    tmp_path: Path, version: str, dtype: str, most: float, turned: bool
) -> None:
    """Their default is that of the signed type; the largest number is that of the unsigned one."""
    files = [
        stored(
            tmp_path / f"{n}.nc", np.array([-1, 1], dtype), 2 * n, _FillValue=f, _Unsigned="true"
        )
        for n, f in enumerate((np.array(1, dtype)[()], None))
    ]
    aggregate(files[::-1] if turned else files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [most, np.nan, most, 1])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("attributes", [{}, {"missing_value": 1}], ids=["no mark", "a mark"])
@pytest.mark.parametrize("unsigned", ["true", "false"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4"])
def test_netcdfs_defaults_are_data_of_the_other_sign(
    tmp_path: Path, dtype: str, unsigned: str, attributes: dict[str, Any], version: str
) -> None:
    """They stay what xarray makes of them in a single file, whose attributes do not name them."""
    numbers = [netCDF4.default_fillvals[dtype], 0, 5]
    given = {name: np.array(mark, dtype)[()] for name, mark in attributes.items()}
    files = [
        stored(tmp_path / f"{n}.nc", np.array(numbers, dtype), 3 * n, _Unsigned=unsigned, **given)
        for n in range(2)
    ]
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with (
        xr.open_dataset(files[0], engine="netcdf4") as one,
        xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds,
    ):
        np.testing.assert_array_equal(ds.v, np.tile(one.v, 2), strict=True)


@pytest.mark.filterwarnings("ignore:.*missing_value cannot be safely cast")
@pytest.mark.filterwarnings("ignore:.*multiple fill values")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fill", [None, np.int16(5)])
@pytest.mark.parametrize(
    "mark", [np.int16(-2), np.int16(7), np.uint16(65534), np.array([-2, 7], "i2")], ids=str
)
def test_missing_value_is_compared_with_unsigned_numbers(
    tmp_path: Path, version: str, fill: Any, mark: Any
) -> None:
    values = np.array([7, -2, 5], "i2")
    files = [
        stored(tmp_path / f"{n}.nc", values, 3 * n, _FillValue=fill, _Unsigned="true")
        for n in (0, 1)
    ]
    for file in files:
        with netCDF4.Dataset(file, "a") as ds:
            ds["v"].missing_value = mark
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        for n, file in enumerate(files):
            with xr.open_dataset(file, engine="netcdf4") as one:
                np.testing.assert_array_equal(ds["v"][3 * n : 3 * n + 3], one["v"])


@pytest.mark.filterwarnings("ignore:.*parts have no file")
@pytest.mark.parametrize("version", OLD)
def test_a_part_without_a_file_beside_a_mark_of_the_other_sign(
    tmp_path: Path, version: str
) -> None:
    files = tiles(tmp_path, "i2", missing_value=np.int16(-2), _Unsigned="true")
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [[1, 2], [3, np.nan]])


@pytest.mark.filterwarnings("ignore:.*parts have no file")
@pytest.mark.parametrize("version", OLD)
def test_unsigned_numbers_are_data_beside_a_part_without_a_file(
    tmp_path: Path, version: str
) -> None:
    files = tiles(tmp_path, "i2", _Unsigned="true")
    with netCDF4.Dataset(files[0], "r+") as file:
        file["v"][:] = np.array(-1, "i2")
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [[65535, 2], [3, np.nan]])


def test_bytes_with_different_fill_values_keep_that_of_the_first_file(tmp_path: Path) -> None:
    """All their values may be data, so that none is safer."""
    files = [
        stored(tmp_path / f"{n}.nc", np.array([n, 5], "u1"), 2 * n, _FillValue=np.uint8(n))
        for n in range(2)
    ]
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [np.nan, 5, np.nan, 5])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", ["i2", "u4", "f4"])
@pytest.mark.parametrize("fill", [None, 1])
def test_the_fill_value_of_an_aggregation_may_be_data_of_a_file_that_is_added(
    tmp_path: Path, version: str, dtype: str, fill: int | None
) -> None:
    values, master = np.array([0, 1, 2], dtype), tmp_path / "m.nca"
    first = stored(tmp_path / "a.nc", values, 0, _FillValue=values[0])
    other = stored(tmp_path / "b.nc", values, 3, _FillValue=None if fill is None else values[fill])
    last = stored(tmp_path / "c.nc", values, 6, _FillValue=values[0])
    aggregate(first, master, dim="time", cfa_version=version)
    aggregate(other, master, append=True)
    aggregate(last, master, append=True)
    one = np.nan if fill else 1
    with xr.open_dataset(master, engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], [np.nan, 1, 2, 0, one, 2, np.nan, 1, 2])


def test_numbers_stay_data_in_an_aggregation_of_a_wider_type(tmp_path: Path) -> None:
    """Classic netCDF lacks unsigned numbers; 65535 is netCDF's default for them."""
    values = np.array([65535, 1], "u2")
    files = [stored(tmp_path / f"{n}.nc", values, 2 * n) for n in range(2)]
    aggregate(files, tmp_path / "m.nca", cfa_version="0.4", format="CFA3")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert ds["v"].values.tolist() == [65535, 1, 65535, 1]


def test_bytes_that_would_be_missing_are_not_added(tmp_path: Path) -> None:
    values, master = np.array([0, 1], "u1"), tmp_path / "m.nca"
    aggregate(stored(tmp_path / "a.nc", values, 0, _FillValue=values[0]), master, dim="time")
    before = master.read_bytes()
    with pytest.raises(ExportError, match="/v: has a _FillValue in some files and none in others"):
        aggregate(stored(tmp_path / "b.nc", values, 2), master, append=True)
    assert master.read_bytes() == before


@pytest.mark.parametrize("turned", [False, True])
def test_bytes_with_a_fill_value_in_some_files(tmp_path: Path, turned: bool) -> None:
    values = np.array([0, 1], "u1")
    files = [
        stored(tmp_path / "a.nc", values, 0, _FillValue=np.uint8(0)),
        stored(tmp_path / "b.nc", values, 2),
    ]
    with pytest.raises(ExportError, match="_FillValue in some files and none in others"):
        aggregate(files[::-1] if turned else files, tmp_path / "m.nca")


def test_data_of_a_coordinate_that_are_missing_in_another_file_stay_data(tmp_path: Path) -> None:
    files = []
    for number, fill in enumerate((-9.0, None)):
        ds = xr.Dataset(
            {"v": ("time", np.zeros(2))},
            {"time": 2 * number + np.arange(2), "alt": ("time", np.array([-9.0, 5.0]))},
        )
        files.append(str(tmp_path / f"{number}.nc"))
        ds.to_netcdf(files[-1], encoding={"alt": {"_FillValue": fill}})
    aggregate(files, tmp_path / "both.nca")
    with xr.open_dataset(tmp_path / "both.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["alt"], [np.nan, 5, -9, 5])
    aggregate(files[:1], tmp_path / "m.nca", dim="time")
    aggregate(files[1:], tmp_path / "m.nca", append=True)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["alt"], [np.nan, 5, -9, 5])


@pytest.mark.parametrize("marks", [{"_FillValue": 3.0}, {"_FillValue": 3.0, "missing_value": 3.0}])
@pytest.mark.parametrize("append", [False, True])
def test_marks_of_one_file_are_data_in_the_coordinate_of_others(
    tmp_path: Path, marks: dict[str, Any], append: bool
) -> None:
    files = [coordinate(tmp_path / "0.nc", [1, 2], marks), coordinate(tmp_path / "1.nc", [3, 4])]
    master = tmp_path / "m.nca"
    if append:
        aggregate(files[:1], master, dim="time")
        aggregate(files[1:], master, append=True)
    else:
        aggregate(files, master)
    with xr.open_dataset(master, engine="nczarr") as found:
        assert found["time"].values.tolist() == [1, 2, 3, 4]


def test_missing_values_of_a_coordinate_stay_missing_or_are_refused(tmp_path: Path) -> None:
    marks = {"_FillValue": 9.0}
    files = [coordinate(tmp_path / "0.nc", [1], marks), coordinate(tmp_path / "1.nc", [9], marks)]
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        np.testing.assert_array_equal(found["time"].values, [1, np.nan])
    coordinate(tmp_path / "0.nc", [1])
    with pytest.raises(ExportError, match=r"1\.nc: has missing values of /time"):
        aggregate(files, tmp_path / "n.nca")
    last = coordinate(tmp_path / "2.nc", [20])
    with pytest.raises(ExportError, match="the aggregation: has missing values of /time"):
        aggregate([last], tmp_path / "m.nca", append=True)


def coordinate(path: Path, values: list[float], marks: dict[str, Any] | None = None) -> str:
    """Write a file with these values of the coordinate, as they are stored."""
    marks = {"_FillValue": None, **(marks or {})}
    stored = {"_FillValue": marks.pop("_FillValue")}
    time = xr.Variable("time", np.array(values, "f8"), marks)
    ds = xr.Dataset({"v": ("time", np.zeros(len(values)))}, {"time": time})
    ds.to_netcdf(path, encoding={"time": stored})
    return str(path)
