"""Files that disagree: what counts, and what stays an error that names the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError, URLError
from nczarr_xarray import aggregate, open_many
from tests.support.builders.manyfiles import TIME, field, step, write
from tests.support.servers.httpserver import Server


def of(folder: Path, parts: list[list[float]], **options: Any) -> list[str]:
    """Write files of these times; the values of each tell their file, too."""
    return [
        write(
            folder / f"{n}.nc",
            {
                "time": (("time",), np.asarray(times, "f8"), TIME),
                "x": (("x",), np.arange(3.0), {"units": "m"}),
                "month": (("time",), np.asarray(times, "i4") // 30 + 100 * n, {}),
                "tas": (("time", "x"), field(times, add=0.25 * n), {"coordinates": "month"}),
            },
            **options,
        )
        for n, times in enumerate(parts)
    ]


#: Times of files, what counts, and for each time the file that counts.
OVERLAPS = {
    "ends": ([[0, 1, 2], [2, 3], [3, 4]], {"first": [0, 0, 0, 1, 2], "last": [0, 0, 1, 2, 2]}),
    "falling": ([[4, 3], [3, 2], [2, 1, 0]], {"first": [0, 0, 1, 2, 2], "last": [0, 1, 2, 2, 2]}),
    "the same": ([[0, 1], [0, 1], [2]], {"first": [0, 0, 2], "last": [1, 1, 2]}),
    "not in order": ([[3, 4], [0, 1, 2, 3]], {"first": [1, 1, 1, 1, 0], "last": [1, 1, 1, 0, 0]}),
    "between": ([[0, 2, 4], [3, 5, 7]], {"first": [0, 0, 0, 1, 1], "last": [0, 0, 1, 1, 1]}),
}


@pytest.mark.parametrize("case", OVERLAPS)
@pytest.mark.parametrize("overlap", ["first", "last"])
def test_overlaps(tmp_path: Path, case: str, overlap: Any) -> None:
    parts, counts = OVERLAPS[case]
    files = of(tmp_path, [[*map(float, times)] for times in parts])
    with pytest.raises(ExportError, match=r"overlap='first' or 'last'"):
        open_many(files)
    many = open_many(files, overlap=overlap, decode_times=False)
    owners = np.array(counts[overlap])
    times = many.time.values
    assert len(times) == len(owners)
    for time, owner, value, month in zip(times, owners, many.tas, many.month, strict=True):
        assert time in parts[owner]
        assert value.values.tolist() == field([time], add=0.25 * owner)[0].tolist()
        assert month == 100 * owner
    many.nczarr.save(tmp_path / "m.nca", cfa_version="0.4")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as saved:
        xr.testing.assert_equal(saved.load(), many.load())


def test_versions_that_know_no_parts_say_so(tmp_path: Path) -> None:
    files = of(tmp_path, [[0, 1], [1, 2]])
    with pytest.raises(ExportError, match=r"1\.13 cannot say"):
        aggregate(files, tmp_path / "m.nca", overlap="first")
    assert not (tmp_path / "m.nca").exists()


@pytest.mark.parametrize("overlap", ["first", "last"])
def test_a_file_inside_another_one_is_named(tmp_path: Path, overlap: Any) -> None:
    files = of(tmp_path, [[0, 1, 2, 3], [1, 2]])
    with pytest.raises(ExportError, match=r"1\.nc: has only what .*0\.nc has"):
        open_many(files, overlap=overlap)


def shifted(folder: Path, shifts: list[float]) -> list[str]:
    """Write files of one time each, whose x differ a little."""
    return [
        write(
            folder / f"{n}.nc",
            {
                "time": (("time",), [float(n)], TIME),
                "x": (("x",), np.arange(3.0) + shift, {"units": "m"}),
                "tas": (("time", "x"), field([n]), {}),
            },
        )
        for n, shift in enumerate(shifts)
    ]


def test_coordinates_within_a_tolerance(tmp_path: Path) -> None:
    files = shifted(tmp_path, [0, 1e-9, -1e-9, 2e-7])
    with pytest.raises(ExportError):
        open_many(files[:2], dim="time")
    many = open_many(files[:3], tolerance=1e-8, decode_times=False)
    assert many.x.values.tolist() == [0, 1, 2]
    assert np.array_equal(many.tas.values, field([0, 1, 2]))
    with pytest.raises(ExportError, match=r"3\.nc"):
        open_many(files, tolerance=1e-8, dim="time")


def test_what_is_further_apart_stays_apart(tmp_path: Path) -> None:
    files = of(tmp_path, [[0], [0.5], [1]])
    assert open_many(files, tolerance=0.1, decode_times=False).time.values.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("option", [{"tolerance": 0}, {"tolerance": -1.0}, {"overlap": "all"}])
def test_options_that_make_no_sense(tmp_path: Path, option: Any) -> None:
    files = of(tmp_path, [[0], [1]])
    with pytest.raises(URLError, match=next(iter(option))):
        open_many(files, **option)


@pytest.mark.parametrize("first", [True, False])
def test_variables_that_some_files_lack(tmp_path: Path, first: bool) -> None:
    more = {"pr": (("time", "x"), field([1], add=7), {"units": "m"})}
    given = [more if (n == 0) is first else {} for n in range(2)]
    files = [step(tmp_path / f"{n}.nc", [n], more=one) for n, one in enumerate(given)]
    with pytest.raises(ExportError, match=r"1\.nc: (has|lacks) pr, .*missing='fill'"):
        open_many(files)
    many = open_many(files, missing="fill", decode_times=False)
    has = 0 if first else 1
    assert many.pr[has].values.tolist() == field([1], add=7)[0].tolist()
    assert np.isnan(many.pr[1 - has].values).all()
    assert many.pr.attrs == {"units": "m"}
    assert np.array_equal(many.tas.values, field([0, 1]))
    with pytest.raises(ExportError, match="has no variable 'pr'"):
        open_many(files, missing="fill", variables=["pr"])
    both = open_many(files, missing="fill", variables=["tas", "pr"], decode_times=False)
    xr.testing.assert_equal(both.load(), many.load())
    aggregate(files, tmp_path / "m.nca", missing="fill", cfa_version="0.6.2")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as saved:
        xr.testing.assert_equal(saved.load(), many.load())


def test_coordinates_are_in_a_file_of_each_place(tmp_path: Path) -> None:
    """Those that do not depend on the time are those of any file; others are nothing to fill."""
    more = {
        "height": (("x",), np.arange(3.0), {}),
        "month": (("time",), [7.0], {}),
        "q": (("time", "x"), [[1.0] * 3], {"coordinates": "height month"}),
    }
    files = [step(tmp_path / "0.nc", [0], more=more), step(tmp_path / "1.nc", [1])]
    with pytest.raises(ExportError, match=r"1\.nc: lacks /month, a coordinate"):
        open_many(files, missing="fill")
    with pytest.raises(ExportError, match=r"1\.nc: lacks height, month, q"):
        open_many(files)
    month: Any = {
        "month": (("time",), [8.0], {}),
        "r": (("time",), [1.0], {"coordinates": "month"}),
    }
    files[1] = step(tmp_path / "1.nc", [1], more=month)
    many = open_many(files, missing="fill", decode_times=False)
    assert many.month.values.tolist() == [7, 8]
    assert many.height.values.tolist() == [0, 1, 2]
    assert set(many.coords) == {"time", "x", "month", "height"}


def differently_named(folder: Path) -> list[str]:
    """Write two files, of which the second has other names."""
    first = step(folder / "0.nc", [0], more={"lon": (("x",), [5.0, 6, 7], {})})
    other = write(
        folder / "1.nc",
        {
            "t": (("t",), [1.0], TIME),
            "x": (("x",), np.arange(3.0), {"units": "m"}),
            "longitude": (("x",), [5.0, 6, 7], {}),
            "air": (("t", "x"), field([1]), {"units": "K", "coordinates": "longitude"}),
        },
    )
    return [first, other]


NAMES = {"t": "time", "longitude": "lon", "air": "tas"}


@pytest.mark.parametrize("remote", [False, True])
def test_names_that_differ(tmp_path: Path, remote: bool) -> None:
    files = differently_named(tmp_path)
    with pytest.raises(ExportError, match="lacks"):
        open_many(files)
    with Server({f"/{n}.nc": Path(file).read_bytes() for n, file in enumerate(files)}) as server:
        named = [f"{server.url}/{n}.nc" for n in range(2)] if remote else files
        many = open_many(named, rename=NAMES, decode_times=False)
        assert set(many.variables) == {"time", "x", "tas", "lon"}
        assert np.array_equal(many.tas.values, field([0, 1]))
        assert many.lon.values.tolist() == [5, 6, 7]
    if not remote:
        many.nczarr.save(tmp_path / "m.nca")
        with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as saved:
            xr.testing.assert_equal(saved.load(), many)


def test_two_of_one_name(tmp_path: Path) -> None:
    files = differently_named(tmp_path)
    with pytest.raises(ExportError, match=r"1\.nc: would have two of the name 'x'"):
        open_many(files, rename={**NAMES, "longitude": "x"})


def test_files_of_other_variables_are_added(tmp_path: Path) -> None:
    """Of one variable, of the other, and of what does not depend on the time."""
    pr: dict[str, Any] = {"pr": (("time", "x"), field([0], add=7), {"units": "m"})}
    orog: dict[str, Any] = {
        "x": (("x",), np.arange(3.0), {"units": "m"}),
        "orog": (("x",), [1.0, 2, 3], {}),
    }
    first = [step(tmp_path / "0.nc", [0], more=pr), write(tmp_path / "orog.nc", orog)]
    later = [step(tmp_path / f"{n}.nc", [n]) for n in (1, 2)]
    master = tmp_path / "m.nca"
    aggregate(first, master, missing="fill", cfa_version="0.6.2")
    aggregate([*later, write(tmp_path / "again.nc", orog)], master, append=True, missing="fill")
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as found:
        assert np.array_equal(found.tas.values, field([0, 1, 2]))
        assert np.array_equal(found.pr[:1].values, field([0], add=7))
        assert np.isnan(found.pr[1:].values).all()
        assert found.orog.values.tolist() == [1, 2, 3]
    copy = step(tmp_path / "copy.nc", [1])
    with pytest.raises(ExportError, match=r"copy\.nc: (overlaps|has the same coordinates)"):
        aggregate([copy], master, append=True, missing="fill")
