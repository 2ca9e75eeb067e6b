from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError, NCZarrWarning
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.api import aggregate
from nczarr_xarray.aggregation.joining import joined
from nczarr_xarray.aggregation.request import Request
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.progress import Progress
from tests.support.builders.manyfiles import TIME, Given, assembled, field, step, variable_of, write


def combine(
    files: list[str], *dims: str, names: tuple[str, ...] = (), gaps: bool = True
) -> Aggregated:
    request = Request(dim=dims, variables=names, gaps="allow" if gaps else "raise")
    wanted, lacking = request.wanted(lambda *_: None), Lacking(netcdf4=True)
    with Progress("aggregate", shown=False) as progress:
        return joined(files, files, request, wanted, progress, None, "m.nca", lacking)


@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_the_order_follows_from_the_coordinates(tmp_path: Path, form: str) -> None:
    parts = [[0, 1], [2], [3, 4, 5], [9]]
    files = [step(tmp_path / f"{n}.nc", times, form=form) for n, times in enumerate(parts)]
    random.Random(1).shuffle(files)
    found = combine(files)
    times = [0, 1, 2, 3, 4, 5, 9]
    assert found.values["/time"].tolist() == times
    assert np.array_equal(assembled(found, "/tas"), field(times))
    assert found.values["/x"].tolist() == [0, 1, 2]
    assert found.tables.keys() == {"/tas"}
    assert variable_of(found, "/tas").shape == (7, 3)


def test_coordinates_may_fall(tmp_path: Path) -> None:
    files = [step(tmp_path / f"{n}.nc", times) for n, times in enumerate([[3, 2], [1], [9, 8]])]
    found = combine(files)
    assert found.values["/time"].tolist() == [9, 8, 3, 2, 1]
    assert np.array_equal(assembled(found, "/tas"), field([9, 8, 3, 2, 1]))


def test_files_may_be_tiles_of_several_dimensions(tmp_path: Path) -> None:
    values = np.arange(4 * 6 * 5.0).reshape(4, 6, 5)
    coordinates = {"time": np.arange(4.0), "y": np.arange(6.0)[::-1], "x": np.arange(5.0) * 2}
    files: list[str] = []
    for t in (slice(0, 1), slice(1, 4)):
        for y in (slice(0, 2), slice(2, 3), slice(3, 6)):
            own = {"time": t, "y": y, "x": slice(0, 5)}
            variables: dict[str, Any] = {
                name: ((name,), value[own[name]], {}) for name, value in coordinates.items()
            }
            variables["v"] = (("time", "y", "x"), values[t, y], {})
            variables["level"] = (("y",), values[0, y, 0], {})
            files.append(write(tmp_path / f"{len(files)}.nc", variables))
    random.Random(2).shuffle(files)
    found = combine(files)
    assert found.tables["/v"].grid == (2, 3, 1)
    assert np.array_equal(assembled(found, "/v"), values)
    assert np.array_equal(assembled(found, "/level"), values[0, :, 0])
    for name, value in coordinates.items():
        assert found.values[f"/{name}"].tolist() == value.tolist()


def test_times_are_converted_to_those_of_the_first_file(tmp_path: Path) -> None:
    first = step(tmp_path / "a.nc", [0, 1])
    later = {"units": "hours since 2000-01-03", "calendar": "gregorian"}
    bounds: dict[str, Any] = {"time_bnds": (("time", "nv"), [[0.0, 24.0], [24.0, 48.0]], {})}
    own: dict[str, Any] = {"time_bnds": (("time", "nv"), [[0.0, 1.0], [1.0, 2.0]], {})}
    first = step(tmp_path / "a.nc", [0, 1], time={**TIME, "bounds": "time_bnds"}, more=own)
    second = step(tmp_path / "b.nc", [0, 24], time={**later, "bounds": "time_bnds"}, more=bounds)
    found = combine([second, first][::-1])
    assert found.values["/time"].tolist() == [0, 1, 2, 3]
    assert found.values["/time_bnds"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    units = variable_of(found, "/time").attributes["units"].value
    assert units == TIME["units"]


@pytest.mark.parametrize("names", [("noleap", "365_day"), ("366_day", "all_leap")])
def test_a_calendar_may_have_two_names(tmp_path: Path, names: tuple[str, str]) -> None:
    files = [
        step(tmp_path / f"{n}.nc", [n], time={**TIME, "calendar": name})
        for n, name in enumerate(names)
    ]
    found = combine(files)
    assert found.values["/time"].tolist() == [0, 1]
    assert variable_of(found, "/time").attributes["calendar"].value == names[0]


def of_two_calendars(folder: Path, day: float) -> list[str]:
    """The second one has the days since 2000-01-01 in the other calendar, from `day` on."""
    return [
        step(folder / "a.nc", [0, 1], time={**TIME, "calendar": "standard"}),
        step(folder / "b.nc", [day, day + 1], time={**TIME, "calendar": "proleptic_gregorian"}),
    ]


def test_two_calendars_that_agree_since_1582(tmp_path: Path) -> None:
    files = of_two_calendars(tmp_path, 3.0)
    assert combine(files).values["/time"].tolist() == [0, 1, 3, 4]
    aggregate(files, tmp_path / "m.nca")
    with (
        xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ours,
        xr.open_mfdataset(files, engine="netcdf4", combine="by_coords") as theirs,
    ):
        assert ours.time.values.tolist() == theirs.time.values.tolist()
        assert np.array_equal(ours.tas, theirs.tas)


def test_two_calendars_do_not_agree_before_1582(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"b\.nc: /time has times before 1582-10-15"):
        combine(of_two_calendars(tmp_path, -300_000.0))


def test_units_may_end_with_nul(tmp_path: Path) -> None:
    """Some writers of HDF5 count it as a part of the text."""
    files = [step(tmp_path / "a.nc", [0]), step(tmp_path / "b.nc", [48])]
    with h5py.File(files[1], "a") as file:
        for name, text in {"units": b"hours since 2000-01-01\0", "calendar": b"standard\0"}.items():
            file["time"].attrs.create(name, np.bytes_(text), dtype=f"S{len(text)}")
    assert combine(files).values["/time"].tolist() == [0, 2]


def test_times_keep_their_digits(tmp_path: Path) -> None:
    files = []
    for number, (units, value) in enumerate(
        [("days since 2000-01-01", 0.0), ("hours since 2000-01-01", 7.0)]
    ):
        time = (("time",), np.array([value]), {**TIME, "units": units})
        data: Any = (("time",), np.array([1.0]), {})
        files.append(write(tmp_path / f"{number}.nc", {"time": time, "v": data}))
    assert combine(files).values["/time"].tolist() == pytest.approx([0.0, 7 / 24], rel=1e-15)


def test_times_of_other_units_are_the_same_but_for_rounding(tmp_path: Path) -> None:
    """Tiles: of each time there are two files, whose units differ."""
    files: list[str] = []
    for hours in (7.0, 13.0):
        for x, (units, factor) in enumerate([("days", 24), ("hours", 1)]):
            time = (("time",), np.array([hours / factor]), {"units": f"{units} since 2000-01-01"})
            tile: Any = {"time": time, "x": (("x",), np.array([x]), {})}
            tile["v"] = (("time", "x"), np.full((1, 1), 10 * hours + x), {})
            files.append(write(tmp_path / f"{len(files)}.nc", tile))
    for order in (files, files[::-1]):
        found = combine(order)
        assert len(found.values["/time"]) == 2
        assert assembled(found, "/v").tolist() == [[70, 71], [130, 131]]


def test_coordinates_that_their_type_does_not_hold_become_double(tmp_path: Path) -> None:
    files = []
    for number, (units, value) in enumerate([("m", 1), ("km", 100)]):
        x = (("x",), np.array([value], "i2"), {"units": units})
        files.append(write(tmp_path / f"{number}.nc", {"x": x, "v": (("x",), np.ones(1), {})}))
    assert combine(files).values["/x"].tolist() == [1, 100_000]


def test_whole_numbers_of_times_that_become_fractions_become_double(tmp_path: Path) -> None:
    def one(name: str, units: str, value: int) -> str:
        return write(
            tmp_path / name,
            {
                "time": (("time",), np.array([value], "i4"), {"units": units}),
                "v": (("time",), np.array([1.0]), {}),
            },
        )

    found = combine([one("a.nc", "days since 2000-1-1", 1), one("b.nc", "hours since 2000-1-3", 6)])
    assert found.values["/time"].tolist() == [1, 2.25]
    assert variable_of(found, "/time").nc_type == "double"


def test_files_without_a_coordinate_follow_each_other_as_given(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{n}.nc", {"v": (("n", "x"), np.full((n + 1, 2), n), {})})
        for n in range(3)
    ]
    found = combine(files[::-1], "n")
    assert assembled(found, "/v")[:, 0].tolist() == [2, 2, 2, 1, 1, 0]


def test_a_new_dimension_has_one_step_for_each_file(tmp_path: Path) -> None:
    def one(n: int) -> str:
        variables: dict[str, Any] = {
            "x": (("x",), np.arange(2.0), {}),
            "run": ((), 10 - n, {}),
            "start": ((), float(n), {}),
            "v": (("x",), np.full(2, n, "f8"), {"coordinates": "start"}),
        }
        return write(tmp_path / f"{n}.nc", variables)

    files = [one(n) for n in range(3)]
    found = combine(files, "run")
    assert found.values["/run"].tolist() == [8, 9, 10]
    assert found.values["/start"].tolist() == [2, 1, 0]
    assert assembled(found, "/v").tolist() == [[2, 2], [1, 1], [0, 0]]
    plain = combine(files, "number")
    assert assembled(plain, "/v").tolist() == [[0, 0], [1, 1], [2, 2]]
    assert [d.name for d in variable_of(plain, "/v").dimensions] == ["number", "x"]


def test_a_new_dimension_beside_one_with_coordinates(tmp_path: Path) -> None:
    files = []
    for run in range(2):
        for times in ([2, 3], [0, 1]):
            more = {"tas": (("time", "x"), field(times, add=run / 2), {"units": "K"})}
            files.append(step(tmp_path / f"{run}{times[0]}.nc", times, more=more))
    found = combine(files, "run", "time")
    expected = [field([0, 1, 2, 3]), field([0, 1, 2, 3], add=0.5)]
    assert np.array_equal(assembled(found, "/tas"), expected)


def test_attributes_that_differ_are_left_out(tmp_path: Path) -> None:
    files = [
        step(
            tmp_path / f"{n}.nc",
            [n],
            title="same",
            history=f"at {n}",
            more={"tas": (("time", "x"), field([n]), {"units": "K", "cell": "a", "id": n})},
        )
        for n in range(3)
    ]
    found = combine(files)
    assert found.hierarchy.root.attributes.keys() == {"title"}
    assert variable_of(found, "/tas").attributes.keys() == {"units", "cell"}


def test_variables_that_do_not_vary_are_held_or_one_fragment(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "mask": (("x",), np.arange(3, dtype="i4"), {}),
        "large": (("x", "long"), np.ones((3, 10_000)), {}),
        "names": (("x",), np.array(["a", "bb", "é"]), {}),
    }
    files = [step(tmp_path / f"{n}.nc", [n], more=more) for n in range(2)]
    found = combine(files)
    assert found.values["/mask"].tolist() == [0, 1, 2]
    assert found.values["/names"].tolist() == ["a", "bb", "é"]
    assert found.tables["/large"].addresses.tolist() == [files[0]]


def test_only_what_is_wanted(tmp_path: Path) -> None:
    for n in range(2):
        more: dict[str, Any] = {f"other{n}": (("time",), [1.0], {})}
        step(tmp_path / f"{n}.nc", [n], more=more)
    files = [str(tmp_path / f"{n}.nc") for n in range(2)]
    found = combine(files, names=("tas",))
    assert {v.path for v in found.variables()} == {"/time", "/x", "/tas"}
    with pytest.raises(ExportError, match="lacks other0"):
        combine(files)
    with pytest.raises(ExportError, match="has no variable 'pr'; there are"):
        combine(files, names=("pr",))


def test_groups_and_text_coordinates(tmp_path: Path) -> None:
    import netCDF4

    files = []
    for n in range(2):
        files.append(str(tmp_path / f"{n}.nc"))
        with netCDF4.Dataset(files[-1], "w") as file:
            group = file.createGroup("model")
            group.createDimension("member", 2)
            group.createVariable("member", str, ("member",))[:] = np.array(
                [f"r{n}a", f"r{n}b"], object
            )
            group.createVariable("v", "f4", ("member",))[:] = [n, n + 0.5]
    found = combine(files)
    assert found.values["/model/member"].tolist() == ["r0a", "r0b", "r1a", "r1b"]
    assert assembled(found, "/model/v").tolist() == [0, 0.5, 1, 1.5]


def test_places_without_a_file_are_told_or_refused(tmp_path: Path) -> None:
    files = []
    for n, (t, x) in enumerate([(0, 0), (0, 1), (1, 1)]):
        variables: dict[str, Any] = {
            "t": (("t",), [float(t)], {}),
            "x": (("x",), [float(x)], {}),
            "v": (("t", "x"), [[float(n)]], {}),
        }
        files.append(write(tmp_path / f"{n}.nc", variables))
    with pytest.warns(NCZarrWarning, match=r"1 of 4 parts have no file; the first is at /t 1.0"):
        found = combine(files)
    assert np.array_equal(assembled(found, "/v"), np.array([[0, 1], [np.nan, 2]]), equal_nan=True)
    with pytest.raises(ExportError, match="1 of 4 parts have no file"):
        combine(files, gaps=False)


def test_gaps_are_refused_if_that_is_asked_for(tmp_path: Path) -> None:
    files = [step(tmp_path / f"{n}.nc", times) for n, times in enumerate([[0, 1], [2, 3], [7]])]
    with pytest.raises(ExportError, match=r"2\.nc: does not follow .*1\.nc along /time: after 3"):
        combine(files, gaps=False)
    months = [step(tmp_path / f"m{n}.nc", [t]) for n, t in enumerate([0, 31, 59, 90])]
    assert combine(months, gaps=False).values["/time"].tolist() == [0, 31, 59, 90]
    assert combine(files).values["/time"].tolist() == [0, 1, 2, 3, 7]


K = {"units": "K"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"tas": (("time", "x"), field([1]), {"units": "Pa"})}, "/tas has the units 'Pa', which"),
        ({"tas": (("time", "x"), field([1]), {})}, "/tas has no units"),
        (
            {"tas": (("time", "x"), field([1]).astype("f8"), K)},
            "/tas is double, and .* is float",
        ),
        ({"tas": (("x",), [1.0] * 3, K)}, r"/tas has the dimensions \(x\)"),
        ({"more": (("time",), [1.0], {})}, r"b.nc: has more, unlike .*a.nc"),
        ({"x": (("x",), np.arange(3.0) / 3, {"units": "m"})}, "overlaps with .*a.nc along /x"),
        (
            {"time": (("time",), [1.0], {**TIME, "calendar": "noleap"})},
            "/time has the units .* the calendars 'noleap' and 'standard' have other dates .*a.nc",
        ),
        (
            {"time": (("time",), [1.0], {"units": "m"})},
            "/time has the units 'm', which are no",
        ),
        (
            {"x": (("x",), np.arange(3.0), {"units": "m", "scale_factor": 0.5})},
            "b.nc: /x is packed otherwise, and in .*a.nc it has {}",
        ),
        ({"time": (("time",), [0.0], TIME)}, "b.nc: has the same coordinates as .*a.nc"),
        ({"time": (("time",), [np.nan], TIME)}, "coordinates along /time that are no numbers"),
        (
            {
                "time": (("time",), [2.0, 1.0, 3.0], TIME),
                "tas": (("time", "x"), field([2, 1, 3]), K),
            },
            "b.nc: has coordinates along /time that neither rise nor fall",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, other: Any, message: str) -> None:
    first = step(tmp_path / "a.nc", [0])
    second = step(tmp_path / "b.nc", [1], more=other)
    with pytest.raises(ExportError, match=message):
        combine([first, second])


def test_other_lengths_are_refused(tmp_path: Path) -> None:
    def one(name: str, time: float, size: int) -> str:
        variables: dict[str, Any] = {
            "time": (("time",), [time], TIME),
            "v": (("time", "n"), np.zeros((1, size)), {}),
        }
        return write(tmp_path / name, variables)

    files = [one("a.nc", 0, 2), one("b.nc", 1, 3)]
    with pytest.raises(ExportError, match=r"b.nc: has length 3 along /n, .*a.nc has 2; .*dim='n'"):
        combine(files)


def test_overlaps_and_opposite_directions_are_refused(tmp_path: Path) -> None:
    a = step(tmp_path / "a.nc", [0, 5])
    b = step(tmp_path / "b.nc", [4, 8])
    c = step(tmp_path / "c.nc", [20, 10])
    with pytest.raises(ExportError, match=r"b.nc: overlaps with .*a.nc along /time: 4.0 to"):
        combine([b, a])
    with pytest.raises(ExportError, match=r"c.nc: has coordinates along /time that fall, and"):
        combine([a, c])


def test_coordinates_that_should_be_equal_are_compared(tmp_path: Path) -> None:
    def one(name: str, time: float, height: float) -> str:
        more: dict[str, Any] = {
            "height": ((), height, {}),
            "tas": (("time", "x"), field([time]), {"coordinates": "height"}),
        }
        return step(tmp_path / name, [time], more=more)

    files = [one("a.nc", 0, 2.0), one("b.nc", 1, 2.0)]
    assert combine(files).values["/height"] == 2
    files = [one("a.nc", 0, 2.0), one("b.nc", 1, 10.0)]
    with pytest.raises(ExportError, match=r"b.nc: has other values of the coordinate /height than"):
        combine(files)


def test_one_dimension_is_asked_for_and_another_differs(tmp_path: Path) -> None:
    a = step(tmp_path / "a.nc", [0])
    b = step(tmp_path / "b.nc", [1], more={"x": (("x",), np.arange(3.0) + 5, {"units": "m"})})
    with pytest.raises(
        ExportError, match=r"b.nc: has other coordinates along /x than .*; .* time only"
    ):
        combine([a, b], "time")


def test_one_file_needs_a_dimension(tmp_path: Path) -> None:
    file = step(tmp_path / "a.nc", [0, 1])
    with pytest.raises(ExportError, match="is one file; say dim=NAME"):
        combine([file])
    assert combine([file], "time").tables["/tas"].grid == (1, 1)


def test_files_without_any_difference_need_a_dimension(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.nc", {"v": (("x",), np.arange(2.0) + n, {})}) for n in range(2)]
    with pytest.raises(ExportError, match=r"1.nc: has the same coordinates as .*0.nc; if the"):
        combine(files)
    with pytest.raises(ExportError, match=r"0.nc: is given twice"):
        combine([files[0], files[0]])


def test_packed_coordinates_need_the_same_units(tmp_path: Path) -> None:
    def one(name: str, unit: str, time: int) -> str:
        packed = {"units": f"{unit} since 2000-01-01", "scale_factor": 0.5}
        time_of: dict[str, Any] = {"time": (("time",), np.array([time], "i2"), packed)}
        return write(tmp_path / name, {**time_of, "v": (("time",), [0.5], {})})

    with pytest.raises(ExportError, match=r"b.nc: /time is packed and has the units 'hours since"):
        combine([one("a.nc", "days", 0), one("b.nc", "hours", 48)])
    found = combine([one("a.nc", "days", 0), one("b.nc", "days", 4)])
    assert found.values["/time"].tolist() == [0, 4]


def test_an_order_that_is_not_known(tmp_path: Path) -> None:
    """Of two dimensions without coordinates, and of two that no file has."""
    files = [
        write(tmp_path / f"{n}.nc", {"v": (("x", "y"), np.zeros((2, 3)), {})}) for n in range(2)
    ]
    with pytest.raises(ExportError, match="/x and /y have no coordinates: the order is not known"):
        combine(files, "x", "y")
    with pytest.raises(ExportError, match="/a and /b have no coordinates: the order is not known"):
        combine(files, "a", "b")


def tile(folder: Path, name: str, y: float, length: int) -> str:
    """A file with one place along y, and some along x, which has no coordinate."""
    variables: dict[str, Any] = {
        "y": (("y",), [y], {}),
        "v": (("y", "x"), np.full((1, length), y), {}),
    }
    return write(folder / name, variables)


def test_files_beside_each_other_are_as_long_and_as_many(tmp_path: Path) -> None:
    a, b, c = (tile(tmp_path, f"{name}.nc", 0.0, 2) for name in "abc")
    long, other = tile(tmp_path, "long.nc", 1.0, 3), tile(tmp_path, "other.nc", 1.0, 2)
    with pytest.raises(ExportError, match=r"long.nc: has length 3 along /x, and .*a.nc, which is"):
        combine([a, long], "x", "y")
    with pytest.raises(ExportError, match=r"other.nc: /x has no coordinate, and there are not as"):
        combine([a, b, c, other], "x", "y")
    found = combine([a, b, other, tile(tmp_path, "d.nc", 1.0, 2)], "x", "y")
    assert assembled(found, "/v").tolist() == [[0] * 4, [1] * 4]


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
def test_files_with_nothing_along_the_dimension_are_refused(tmp_path: Path, version: str) -> None:
    for steps in (2, 0):
        xr.Dataset({"v": ("t", np.ones(steps))}).to_netcdf(tmp_path / f"{steps}.nc")
    files = [tmp_path / "2.nc", tmp_path / "0.nc"]
    for some in (files, files[::-1], files[1:]):
        with pytest.raises(ExportError, match=r"0.nc: has nothing along /t; leave this file out"):
            aggregate(some, tmp_path / "m.nca", dim="t", cfa_version=version)
    aggregate(files[0], tmp_path / "m.nca", dim="t", cfa_version=version)
    with pytest.raises(ExportError, match=r"0.nc: has nothing along /t; leave this file out"):
        aggregate(files[1], tmp_path / "m.nca", append=True, dim="t")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [1, 1]


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
def test_variables_without_elements_are_held(tmp_path: Path, version: str) -> None:
    whole = xr.Dataset(
        {"v": (("t", "x"), np.zeros((3, 0), "i2")), "w": ("t", [1.0, 2, 3])}, {"t": [0, 1, 2]}
    )
    for n in range(3):
        whole.isel(t=[n]).to_netcdf(tmp_path / f"{n}.nc")
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "m.nca", cfa_version=version)
    aggregate(tmp_path / "2.nc", tmp_path / "m.nca", append=True)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        xr.testing.assert_identical(found.load().drop_attrs(), whole)


@pytest.mark.parametrize("name", ["#", "#abc"])
def test_names_that_begin_as_numbers_of_variables_do(tmp_path: Path, name: str) -> None:
    for n in range(2):
        part = xr.Dataset({name: ("t", [n])}, {"t": [n]})
        part.to_zarr(tmp_path / f"{n}.zarr", zarr_format=2)
    aggregate([tmp_path / f"{n}.zarr" for n in range(2)], tmp_path / "m.zarr", cfa_version="0.4")
    with xr.open_dataset(tmp_path / "m.zarr", engine="nczarr") as found:
        assert found[name].values.tolist() == [0, 1]


def test_texts_with_a_fill_value_in_some_files_only(tmp_path: Path) -> None:
    def one(n: int, attributes: dict[str, Any]) -> str:
        more: dict[str, Any] = {"name": (("time",), np.array([b"x"], "S1"), attributes)}
        return step(tmp_path / f"{n}.nc", [n], more=more)

    found = combine([one(0, {}), one(1, {"_FillValue": b"-"})])
    assert "_FillValue" not in variable_of(found, "/name").attributes


def test_types_that_no_aggregation_holds(tmp_path: Path) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    for file in files:
        with netCDF4.Dataset(file, "a") as dataset:
            pair = dataset.createCompoundType(np.dtype([("a", "f4"), ("b", "f4")]), "pair")
            dataset.createVariable("pairs", pair, ("time",))
    with pytest.raises(ExportError, match=r"/pairs holds .*, which no aggregation holds; name the"):
        combine(files)
    assert combine(files, names=("tas",)).tables.keys() == {"/tas"}


def test_a_variable_that_cannot_be_read(tmp_path: Path) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    for file in files:
        with h5py.File(file, "a") as dataset:
            dataset["nothing"] = h5py.Empty("f4")
    with pytest.raises(ExportError, match=r"has a variable that cannot be read: .*nothing.* name"):
        combine(files)
    assert combine(files, names=("tas",)).tables.keys() == {"/tas"}


def _with_altitude(path: Path, time: float, values: list[float], **attributes: Any) -> str:
    number = {
        name: np.float32(value) if isinstance(value, float) else value
        for name, value in attributes.items()
    }
    variables: dict[str, Given] = {
        "time": (("time",), time + np.arange(len(values)), TIME),
        "alt": (("time",), np.array(values, "f4"), number),
        "v": (("time",), np.arange(len(values)) + time, {"coordinates": "alt"}),
    }
    return write(path, variables)


def _altitudes(*files: str) -> np.ndarray:
    with xr.open_mfdataset(files, engine="netcdf4", data_vars="all") as ds:
        return np.asarray(ds["alt"])


@pytest.mark.parametrize("own", [{"_FillValue": -9.0}, {"missing_value": -9.0}, {}])
@pytest.mark.parametrize("other", [{"_FillValue": -1.0}, {"missing_value": -1.0}])
def test_each_file_says_what_is_missing_in_its_coordinates(
    tmp_path: Path, own: dict[str, float], other: dict[str, float]
) -> None:
    first = _with_altitude(tmp_path / "a.nc", 0, [1, -9 if own else 3, 2], **own)
    others = [_with_altitude(tmp_path / f"{n}.nc", 3 * n, [-1, 5, -1], **other) for n in (1, 2)]
    expected = _altitudes(first, *others)
    target = tmp_path / "m.nca"
    for appends in (False, True):
        aggregate([first, *others[: 1 if appends else 2]], target, overwrite=True)
        if appends:
            aggregate(others[1], target, append=True)
        with xr.open_dataset(target, engine="nczarr") as ds:
            np.testing.assert_array_equal(ds["alt"], expected)
    other_way = [others[0], _with_altitude(tmp_path / "z.nc", 9, [1, -9 if own else 3, 2], **own)]
    expected = _altitudes(*other_way)
    aggregate(other_way[:1], target, dim="time", overwrite=True)
    aggregate(other_way[1:], target, append=True)
    with xr.open_dataset(target, engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["alt"], expected)


def test_missing_data_of_coordinates_have_no_units(tmp_path: Path) -> None:
    first = _with_altitude(tmp_path / "a.nc", 0, [1, -9], _FillValue=-9.0, units="m")
    other = _with_altitude(tmp_path / "b.nc", 2, [-9, 2], _FillValue=-9.0, units="km")
    last = _with_altitude(tmp_path / "c.nc", 4, [-9, -9], _FillValue=-9.0, units="km")
    aggregate([first, other, last], tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["alt"], [1, np.nan, np.nan, 2000, np.nan, np.nan])
        assert ds["alt"].encoding["_FillValue"] == -9


def test_data_of_coordinates_that_are_missing_in_others_stay_data(tmp_path: Path) -> None:
    first = _with_altitude(tmp_path / "a.nc", 0, [1, -9], _FillValue=-9.0)
    other = _with_altitude(tmp_path / "b.nc", 2, [-9, 2], _FillValue=-1.0)
    aggregate([first, other], tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["alt"], [1, np.nan, -9, 2])


def test_what_is_missing_in_a_variable_of_the_first_file_stays_missing(tmp_path: Path) -> None:
    files = []
    for number, missing in enumerate((-1.0, -2.0)):
        mask = (("x",), np.array([missing, 5, 6], "f4"), {"missing_value": np.float32(missing)})
        files.append(step(tmp_path / f"{number}.nc", [number], more={"mask": mask}))
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["mask"], [np.nan, 5, 6])


def test_bounds_of_many_steps_have_the_units_of_their_times(tmp_path: Path) -> None:
    count, files = 5000, []
    for year in (2000, 2001):
        hours = np.arange(float(count))
        variables: dict[str, Given] = {
            "time": (
                ("time",),
                hours,
                {"units": f"hours since {year}-01-01", "bounds": "time_bnds"},
            ),
            "time_bnds": (("time", "nv"), np.stack([hours, hours + 1], axis=1), {}),
            "v": (("time",), hours, {}),
        }
        files.append(write(tmp_path / f"{year}.nc", variables))
    aggregate(files, tmp_path / "m.nca")
    with (
        xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds,
        xr.open_mfdataset(files, engine="netcdf4", data_vars="all") as expected,
    ):
        xr.testing.assert_equal(ds["time_bnds"], expected["time_bnds"])


def test_large_bounds_that_could_not_be_converted_are_refused(tmp_path: Path) -> None:
    count, files = 9000, []
    for time, (units, factor) in enumerate((("m", 1000), ("km", 1))):
        values = np.arange(float(count))[np.newaxis] * factor
        variables: dict[str, Given] = {
            "time": (("time",), [time], TIME),
            "alt": (("time", "x"), values, {"units": units, "bounds": "alt_bnds"}),
            "alt_bnds": (("time", "x", "nv"), np.stack([values, values], axis=2), {}),
            "v": (("time", "x"), values, {"coordinates": "alt"}),
        }
        files.append(write(tmp_path / f"{time}.nc", variables))
    with pytest.raises(ExportError, match=r"1\.nc: /alt_bnds has no units of its own"):
        aggregate(files, tmp_path / "m.nca")


def test_coordinates_of_files_beside_each_other_are_compared_in_their_units(tmp_path: Path) -> None:
    """Tiles have the same times of measurement, in other units."""

    def tile(number: int, values: list[float], units: str) -> str:
        variables: dict[str, Given] = {
            "t": (("t",), [0.0, 1.0], {}),
            "x": (("x",), [float(number)], {}),
            "when": (("t",), values, {"units": units}),
            "v": (("t", "x"), np.full((2, 1), number, "f8"), {"coordinates": "when"}),
        }
        return write(tmp_path / f"{number}.nc", variables)

    hours = [7.0, 13.7]
    first = tile(0, [hour / 24 for hour in hours], "days since 2000-01-01")
    second = tile(1, [hour * 3600 for hour in hours], "seconds since 2000-01-01")
    for files in ([first, second], [second, first]):
        aggregate(files, tmp_path / "m.nca", overwrite=True, dim="x")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
            assert ds["v"].values.tolist() == [[0, 1], [0, 1]]
    third = tile(2, [hour / 24 for hour in hours], "days since 2000-01-02")
    with pytest.raises(ExportError, match=r"2\.nc: has other values of the coordinate /when"):
        aggregate([first, third], tmp_path / "m.nca", overwrite=True)
    with pytest.raises(ExportError, match=r"2\.nc: has other values of the coordinate /when"):
        aggregate([first, third], tmp_path / "m.nca", overwrite=True, dim=["t", "x"])


def test_a_zero_may_have_a_sign(tmp_path: Path) -> None:
    files = []
    for time, zero in enumerate((0.0, -0.0)):
        variables: dict[str, Given] = {
            "t": (("t",), [float(time)], {}),
            "x": (("x",), [zero, 1.0], {}),
            "v": (("t", "x"), [[time, 5.0]], {}),
        }
        files.append(write(tmp_path / f"{time}.nc", variables))
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert ds["v"].values.tolist() == [[0, 5], [1, 5]]


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
def test_unsigned_coordinates_have_the_order_of_what_they_say(
    tmp_path: Path, version: str, append: bool
) -> None:
    files = []
    for number, first in enumerate((250, 126, 0)):
        values = np.arange(first, first + 4, dtype="u1").view("i1")
        files.append(
            write(
                tmp_path / f"{number}.nc",
                {
                    "x": (("x",), values, {"_Unsigned": "true"}),
                    "v": (("x",), np.arange(first, first + 4), {}),
                },
            )
        )
    target = tmp_path / "m.nca"
    aggregate(files[:1] if append else files, target, "x", cfa_version=version)
    if append:
        aggregate(files[1:], target, append=True)
    with xr.open_dataset(target, engine="nczarr") as ds:
        expected = [*range(4), *range(126, 130), *range(250, 254)]
        assert ds["x"].values.tolist() == expected
        assert ds["v"].values.tolist() == expected


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
@pytest.mark.parametrize("kind", ["text", "char"])
@pytest.mark.parametrize("units", [("km", "m"), ("days since 2000-01-01", "days since 2001-01-01")])
def test_text_is_neither_converted_nor_unpacked(
    tmp_path: Path, version: str, kind: str, units: tuple[str, str]
) -> None:
    files = [str(tmp_path / f"{n}.nc") for n in range(2)]
    for number, file in enumerate(files):
        with netCDF4.Dataset(file, "w") as ds:
            ds.createDimension("time", 2)
            ds.createVariable("time", "f8", ("time",))[:] = 2 * number + np.arange(2)
            text = ds.createVariable("text", str if kind == "text" else "S1", ("time",))
            text[:] = np.array(["a", "b"], object if kind == "text" else "S1")
            text.units, text.scale_factor = units[number], 2.0
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    options: dict[str, Any] = {"decode_times": False, "mask_and_scale": False}
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", **options) as ds:
        assert [*map(str, ds["text"].astype("U").values)] == ["a", "b", "a", "b"]
