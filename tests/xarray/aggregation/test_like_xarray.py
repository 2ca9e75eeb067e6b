"""Files that disagree, opened as one dataset: what xarray makes of the same files is what we do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray import open_many

TIME = {"units": "days since 2000-01-01", "calendar": "standard"}
PACKED: dict[str, Any] = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -9}


def of(
    times: Sequence[float], dtype: str = "f8", name: str = "tas", **attributes: Any
) -> xr.Dataset:
    """Return a field whose values tell its times."""
    values = np.asarray(times)[:, None] * 100 + np.arange(3)
    return xr.Dataset(
        {name: (("time", "x"), values.astype(dtype), {"units": "K"})},
        {"time": ("time", np.asarray(times, "f8"), TIME), "x": [0.0, 1, 2]},
        attributes,
    )


def bounded(times: Sequence[float], units: str = TIME["units"]) -> xr.Dataset:
    """Return a field with bounds, a grid mapping and flags."""
    ds = of(times)
    ds.time.attrs |= {"bounds": "time_bnds", "units": units}
    ds.tas.attrs |= {"grid_mapping": "crs", "ancillary_variables": "qc"}
    edges = np.asarray(times)[:, None] + [-0.5, 0.5]
    return ds.assign(
        time_bnds=(("time", "nv"), edges),
        crs=((), 0, {"grid_mapping_name": "latitude_longitude"}),
        qc=(("time", "x"), np.zeros((len(times), 3), "i1")),
    )


def tile(y: Sequence[float], x: Sequence[float], time: float) -> xr.Dataset:
    """Return a part of a grid."""
    values = time * 100 + np.asarray(y, "f8")[:, None] * 10 + np.asarray(x)
    return xr.Dataset({"v": (("time", "y", "x"), values[None])}, {"time": [time], "y": y, "x": x})


def labelled(texts: str) -> xr.Dataset:
    """Return values with labels."""
    return xr.Dataset({"v": ("model", [*map(ord, texts)])}, {"model": [text * 2 for text in texts]})


OROG = xr.Dataset({"orog": ("x", [7.0, 8, 9], {"units": "m"})}, {"x": [0.0, 1, 2]})
HOURS = {"units": "hours since 2000-01-03", "calendar": "proleptic_gregorian"}


@dataclass(frozen=True)
class Case:
    """Files, how they are stored, and the options that take them."""

    files: Sequence[xr.Dataset]
    options: Mapping[str, Any] = field(default_factory=dict)
    encodings: Sequence[Mapping[str, Any]] = ()


PROMOTE, FILL = {"types": "promote"}, {"missing": "fill"}
CASES = {
    "float and double": Case([of([0, 1], "f4"), of([2, 3], "f8")], PROMOTE),
    "short and int": Case([of([0, 1], "i4"), of([2, 3], "i2")], PROMOTE),
    "unsigned and signed": Case([of([0], "u1"), of([0.2], "i1")], PROMOTE),
    "int and float": Case([of([0, 1], "i4"), of([2, 3], "f4")], PROMOTE),
    "int64 and uint64": Case([of([0], "i8"), of([1], "u8")], PROMOTE),
    "packed and double": Case([of([0, 1]), of([2, 3])], PROMOTE, [{"tas": PACKED}, {}]),
    "double and packed": Case([of([0, 1]), of([2, 3])], PROMOTE, [{}, {"tas": PACKED}]),
    "packed otherwise": Case(
        [of([0, 1]), of([2, 3])], {}, [{"tas": PACKED}, {"tas": {**PACKED, "scale_factor": 0.25}}]
    ),
    "other fills and types": Case(
        [of([0, 1]).where(lambda ds: ds.tas != 1), of([2, 3]).where(lambda ds: ds.tas != 201)],
        PROMOTE,
        [{"tas": {"dtype": "i2", "_FillValue": -9}}, {"tas": {"dtype": "i4", "_FillValue": -99}}],
    ),
    "transposed": Case([of([0, 1]), of([2, 3]).transpose("x", "time")]),
    "transposed, of one length": Case([of([0, 1, 2]).transpose("x", "time"), of([3, 4, 5])]),
    "bounds transposed": Case([bounded([0, 1]), bounded([2, 3]).transpose("nv", "x", "time")]),
    "bounds in other units": Case([bounded([0, 1]), bounded([0, 1], "days since 2000-01-03")]),
    "other units of times": Case(
        [of([0, 1]), of([2, 3]).assign_coords(time=("time", [0.0, 24], HOURS))]
    ),
    "other chunks and codecs": Case(
        [of([0, 1, 2]), of([3, 4, 5, 6, 7])],
        {},
        [{"tas": {"chunksizes": (2, 3), "zlib": True}}, {"tas": {"chunksizes": (3, 2)}}],
    ),
    "a variable is lacking": Case([of([0, 1]).assign(pr=of([0, 1]).tas), of([2, 3])], FILL),
    "the first lacks one": Case([of([0, 1]), of([2, 3]).assign(pr=of([2, 3]).tas)], FILL),
    "files of a variable each": Case(
        [of(t, name=name) for name in ("tas", "pr", "ua") for t in ([0, 1], [2])], FILL
    ),
    "all at one time": Case([of([0, 1], name=name) for name in ("tas", "pr")], FILL),
    "a file without times": Case([of([0, 1]), OROG, of([2, 3])], FILL),
    "the first without times": Case([OROG, of([0, 1]), of([2, 3])], FILL),
    "fixed in one": Case([of([0, 1]), of([2, 3]).merge(OROG)], FILL),
    "tiles": Case(
        [tile(y, x, t) for y in ([0, 1], [2]) for x in ([0], [1, 2]) for t in (0.0, 1)], {}
    ),
    "falling tiles": Case([tile(y, [0], t) for y in ([1, 0], [3, 2]) for t in (0.0, 1)]),
    "labels": Case([labelled("ca"[::-1]), labelled("fd"[::-1]), labelled("g")]),
    "falling labels": Case([labelled("ca"), labelled("fd")]),
    "attributes": Case([of([0], title="t", history="a"), of([1], title="t", history="b")]),
}


def written(folder: Path, case: Case) -> list[str]:
    """Write the files of a case, in another order than that of their names."""
    files = []
    for number, ds in enumerate(case.files):
        files.append(f"{folder}/{len(case.files) - number}.nc")
        encoding = case.encodings[number] if case.encodings else {}
        ds.to_netcdf(files[-1], engine="netcdf4", encoding=encoding)
    return files


@pytest.mark.parametrize("name", CASES)
def test_is_what_xarray_makes_of_them(tmp_path: Path, name: str) -> None:
    files = written(tmp_path, CASES[name])
    with (
        open_many(files, **CASES[name].options) as ours,
        xr.open_mfdataset(
            files,
            engine="netcdf4",
            combine="by_coords",
            data_vars="minimal",
            coords="minimal",
            compat="no_conflicts",
            join="outer",
            combine_attrs="drop_conflicts",
        ) as theirs,
    ):
        order = sorted(map(str, theirs.dims))
        expected = theirs.load().transpose(*order)
        xr.testing.assert_identical(ours.load().transpose(*order), expected)
        assert {v: ours[v].dtype for v in ours} == {v: theirs[v].dtype for v in theirs}


def test_names_that_only_some_have(tmp_path: Path) -> None:
    parts = [of([0, 1]), of([2, 3]).rename(tas="t2m", x="lon")]
    files = written(tmp_path, Case(parts))
    expected = xr.concat([parts[0], parts[1].rename(t2m="tas", lon="x")], "time")
    ours = open_many(files, rename={"t2m": "tas", "lon": "x"}).load()
    xr.testing.assert_identical(ours, xr.decode_cf(expected))


@pytest.mark.parametrize("group", [None, "/below", "/below/more"])
def test_groups(tmp_path: Path, group: str | None) -> None:
    files = written(tmp_path, Case([of([0, 1]), of([2, 3])]))
    for file, times in zip(files, ([0, 1], [2, 3]), strict=True):
        more = of(times, "f4", "ua")
        more.to_netcdf(file, group="/below", mode="a")
        more.to_netcdf(file, group="/below/more", mode="a")
    with open_many(files, group=group) as ours, xr.open_mfdataset(files, group=group) as theirs:
        xr.testing.assert_identical(ours.load(), theirs.load())


WHOLE = xr.Dataset(
    {"v": (("time", "y", "x"), np.arange(4 * 3 * 5.0).reshape(4, 3, 5))},
    {"time": ("time", np.arange(4.0), TIME), "y": [0.0, 2, 3], "x": np.arange(5.0)},
)


@st.composite
def cut(draw: st.DrawFn, name: str) -> list[slice]:
    """Draw where a dimension is divided."""
    edges = sorted({0, *draw(st.sets(st.integers(1, WHOLE.sizes[name] - 1))), WHOLE.sizes[name]})
    return [slice(*pair) for pair in itertools.pairwise(edges)]


@st.composite
def parts(draw: st.DrawFn) -> list[tuple[xr.Dataset, dict[str, Any]]]:
    """Draw files of parts of a dataset that disagree in all that does not change it."""
    cuts = [draw(cut(name)) for name in ("time", "y", "x")]
    boxes = [{"time": t, "y": y, "x": x} for t, y, x in itertools.product(*cuts)]
    found = []
    for box in boxes:
        ds = WHOLE.isel(box).transpose(*draw(st.permutations(["time", "y", "x"])))
        dtype = draw(st.sampled_from(["f4", "f8", "i2", "i4"]))
        encoding: dict[str, Any] = {"_FillValue": draw(st.sampled_from([None, -9]))}
        if draw(st.booleans()):
            ds = ds.astype(dtype)
        else:
            encoding = {**PACKED, "add_offset": draw(st.sampled_from([1.0, 2.0]))}
        if draw(st.booleans()):
            encoding["chunksizes"] = tuple(draw(st.integers(1, n)) for n in ds.v.shape)
        if draw(st.booleans()):
            ds = ds.assign_coords(time=("time", (ds.time.values - 2) * 24, HOURS))
        found.append((ds, {"v": encoding}))
    random.Random(draw(st.integers(0, 9))).shuffle(found)
    return found


@given(parts())
@settings(max_examples=20, deadline=None)
def test_parts_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[xr.Dataset, dict[str, Any]]]
) -> None:
    case = Case([ds for ds, _ in parts], {}, [encoding for _, encoding in parts])
    files = written(tmp_path_factory.mktemp("parts"), case)
    expected = xr.decode_cf(WHOLE).load()
    with open_many(files, types="promote", dim=None if len(files) > 1 else "x") as ours:
        xr.testing.assert_equal(ours.load().transpose(*expected.dims), expected)


def test_what_no_option_takes_is_refused_as_by_xarray(tmp_path: Path) -> None:
    other = of([2, 3]).assign_coords(time=("time", [2.0, 3], {**TIME, "calendar": "noleap"}))
    files = written(tmp_path, Case([of([0, 1]), other]))
    with pytest.raises(TypeError, match="cftime"):
        xr.combine_by_coords([xr.load_dataset(file, engine="netcdf4") for file in files])
    with pytest.raises(ValueError, match="the calendars 'noleap' and 'standard'"):
        open_many(files)
