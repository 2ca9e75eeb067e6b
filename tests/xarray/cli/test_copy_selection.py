"""``nczarr copy --var --slice --quantize``: what is copied, to every kind of destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray import compare, to_nczarr
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.copy.selection import Quantization, Selection
from tests.support.builders.copying import copy, failed
from tests.support.marks import slow_but, slow_cases_but

#: Destinations of different kinds.
TARGETS = ("y", "y.zip", "y.nc", "y.nca")
RAW: dict[str, Any] = {"decode_cf": False}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A netCDF-4 file whose variables name each other, in two groups."""
    path = tmp_path_factory.mktemp("selection") / "x.nc"
    rng = np.random.default_rng(3)
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("time", None)
        nc.createDimension("x", 9)
        nc.createDimension("nv", 2)
        nc.title = "selection"
        for name, dimensions, attributes in (
            ("time", ("time",), {"bounds": "time_bnds", "units": "days since 2000-01-01"}),
            ("time_bnds", ("time", "nv"), {}),
            ("x", ("x",), {}),
            ("area", ("x",), {}),
            ("crs", (), {"grid_mapping_name": "latitude_longitude"}),
            ("lon", ("x",), {}),
            ("t", ("time", "x"), {"coordinates": "lon", "grid_mapping": "crs"}),
            ("s", ("time", "x"), {"cell_measures": "area: area"}),
        ):
            storage: dict[str, Any] = {"zlib": True} if dimensions else {}
            storage["chunksizes"] = [{"time": 4, "x": 5, "nv": 2}[d] for d in dimensions] or None
            v = nc.createVariable(name, "f4", dimensions, **storage)
            v.setncatts(attributes)
            v[...] = rng.normal(size=[n or 11 for n in (len(nc.dimensions[d]) for d in dimensions)])
        names = nc.createVariable("names", str, ("x",))
        names[:] = np.array([f"é{i}" * i for i in range(9)], object)
        group = nc.createGroup("g")
        group.createDimension("y", 5)
        group.createVariable("y", "i2", ("y",))[:] = range(5)
        group.createVariable("u", "f8", ("time", "y"))[:] = rng.normal(size=(11, 5))
        group.createVariable("v", "f8", ("y",))[:] = rng.normal(size=5)
    return path


def names(path: Path) -> set[str]:
    """The paths of all variables and dimensions of a copy."""
    with open_hierarchy(str(path)) as opened:
        groups = list(opened.hierarchy.root.walk())
        found = {v.path for g in groups for v in g.variables.values()}
        assert {d.path for v in groups for d in v.dimensions.values()} == {
            d.path for g in groups for v in g.variables.values() for d in v.dimensions
        }
        return found


# -- variables ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found"),
    slow_cases_but(
        [
            ("t", "/t /time /time_bnds /x /lon /crs"),
            ("s", "/s /time /time_bnds /x /area"),
            ("crs", "/crs"),
            ("lon crs", "/lon /x /crs"),
            ("g/u", "/g/u /g/y /time /time_bnds"),
            ("/g/v", "/g/v /g/y"),
        ],
        "t",
        "g/u",
    ),
)
def test_what_a_variable_needs_comes_with_it(
    source: Path, tmp_path: Path, wanted: str, found: str
) -> None:
    arguments = [word for name in wanted.split() for word in ("--var", name)]
    copy(source, tmp_path / "y", *arguments, "--verify")
    assert names(tmp_path / "y") == set(found.split())
    whole = compare(source, tmp_path / "y", variables=found.split())
    assert not [d for d in whole.differences if not d.object.startswith(("dimension", "group"))]


def test_coordinates_of_a_group_belong_to_variables_that_have_their_dimensions(
    tmp_path: Path,
) -> None:
    dataset = xr.Dataset(
        {"v": (("x", "y"), np.ones((2, 3))), "w": ("x", np.ones(2))},
        coords={"a": ("x", [1, 2]), "b": (("x", "y"), np.ones((2, 3))), "c": 5},
    )
    to_nczarr(dataset.drop_vars(["v", "w"]).assign(w=dataset.w), tmp_path / "x")
    copy(tmp_path / "x", tmp_path / "y", "--var", "w")
    assert names(tmp_path / "y") == {"/w", "/a", "/c"}


# -- slices ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", slow_but(TARGETS, "y"))
def test_slices_are_those_of_python(source: Path, tmp_path: Path, target: str) -> None:
    lost = int(target.endswith(".nca"))  # groups, and the text that no aggregation holds
    arguments = ["--slice", "time=-7:-1:2", "--slice", "x=1:", "--var", "t", "--var", "s"]
    copy(source, tmp_path / target, *arguments, "--verify")
    with (
        xr.open_dataset(source, engine="netcdf4", **RAW) as whole,
        xr.open_dataset(tmp_path / target, engine="nczarr", **RAW) as part,
    ):
        expected = whole[list(part.variables)].isel(time=slice(-7, -1, 2), x=slice(1, None))
        xr.testing.assert_identical(part.drop_encoding(), expected.drop_encoding())
        assert part.sizes["time"] == 3
        assert lost or part.encoding["unlimited_dims"] == {"time"}


def test_what_a_slice_does_not_concern_is_moved_as_it_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and groups are sliced; the rest keeps its chunks."""
    copy(source, tmp_path / "y", "--slice", "x=2:7", "--verify")
    with open_hierarchy(str(tmp_path / "y")) as opened:
        root = opened.hierarchy.root
        assert root.variables["names"].shape == (5,)
        assert opened.read(root.variables["names"]).tolist() == [f"é{i}" * i for i in range(2, 7)]
        sliced, kept = (root.variables[name].array for name in ("t", "time_bnds"))
        assert sliced is not None
        assert kept is not None
        assert (sliced.chunk_shape, kept.chunk_shape) == ((4, 5), (4, 2))
        assert [c["id"] for c in sliced.codecs] == ["shuffle", "zlib"]


def bounds() -> st.SearchStrategy[slice]:
    numbers = st.none() | st.integers(-13, 13)
    return st.builds(slice, numbers, numbers, st.none() | st.integers(1, 5))


@settings(max_examples=30)
@given(time=bounds(), x=bounds(), data=st.data())
def test_a_slice_reads_as_of_numpy(
    source: Path, time: slice, x: slice, data: st.DataObject
) -> None:
    """Any slice of any slice; with lengths and chunks that fit it."""
    if not (range(11)[time] and range(9)[x]):
        return
    with open_hierarchy(str(source)) as opened:
        plain = opened.read(opened.hierarchy.root.variables["t"])
        once = Selection(slices={"time": time, "/x": x}).of(opened)
        again = once.hierarchy.root.variables["t"]
        expected = plain[time, x]
        np.testing.assert_array_equal(once.read(again), expected)
        part = tuple(slice(data.draw(st.integers(0, n)), n) for n in again.shape)
        np.testing.assert_array_equal(once.read(again, part), expected[part])
        rows = np.array([0, len(expected) - 1])
        points = (rows, np.array([0, expected.shape[1] - 1]))
        np.testing.assert_array_equal(
            once.reader(again).read(points, points=True), expected[points]
        )


# -- rounding ----------------------------------------------------------------------------


@pytest.mark.parametrize("target", slow_but(TARGETS, "y"))
@pytest.mark.parametrize(
    "how", slow_but(["BitGroom:3", "GranularBitRound:2", "BitRound:7", "3"], "BitGroom:3")
)
def test_quantized_as_netcdf_does(source: Path, tmp_path: Path, target: str, how: str) -> None:
    """Bit for bit, whatever parts are read; the copy says so in netCDF's attributes."""
    mode, _, digits = how.rpartition(":")
    with netCDF4.Dataset(source) as nc, netCDF4.Dataset(tmp_path / "z.nc", "w") as theirs:
        for name in ("time", "x"):
            theirs.createDimension(name, len(nc.dimensions[name]))
        v = theirs.createVariable(
            "t",
            "f4",
            ("time", "x"),
            significant_digits=int(digits),
            quantize_mode=mode or "BitGroom",
        )
        v[:] = nc["t"][:]
    copy(source, tmp_path / target, "--var", "t", "--quantize", f"t={how}", "--verify")
    with (
        xr.open_dataset(tmp_path / "z.nc", engine="netcdf4", **RAW) as theirs,
        xr.open_dataset(tmp_path / target, engine="nczarr", **RAW) as ours,
    ):
        np.testing.assert_array_equal(ours["t"].values.view("u4"), theirs["t"].values.view("u4"))
        said = {k: v for k, v in ours["t"].attrs.items() if k.startswith("_Quantize")}
        assert said == {k: v for k, v in theirs["t"].attrs.items() if k.startswith("_Quantize")}
        assert said


@pytest.mark.slow
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=3),
    data=st.data(),
)
def test_rounding_is_the_same_for_any_part(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("parts") / "x.nc"
    values = np.random.default_rng(5).normal(size=shape)
    dimensions = [f"d{i}" for i in range(len(shape))]
    xr.Dataset({"v": (dimensions, values)}).to_netcdf(path, engine="netcdf4")
    with open_hierarchy(str(path)) as opened:
        rounded = Selection(quantized={"/v": Quantization("BitGroom", 2)}).of(opened)
        variable = rounded.hierarchy.root.variables["v"]
        whole = rounded.read(variable)
        index = st.one_of(
            st.none(), st.integers(0, 100), st.lists(st.integers(0, 100), min_size=1, max_size=3)
        )
        key: list[Any] = []
        for length in shape:
            drawn = data.draw(index)
            if drawn is None:
                key.append(slice(length // 2, None, -1 if length % 2 else 1))
            else:
                key.append(drawn % length if isinstance(drawn, int) else np.array(drawn) % length)
        expected = whole
        for axis in reversed(range(len(key))):
            part = (slice(None),) * axis + (key[axis],)
            expected = expected[part]
        np.testing.assert_array_equal(rounded.read(variable, tuple(key)), expected)
        points = tuple(np.array([0, length - 1]) for length in shape)
        if points:
            found = rounded.reader(variable).read(points, points=True)
            np.testing.assert_array_equal(found, whole[points])


# -- errors -----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--var", "nothing"], "/nothing: no variable is called so; there are /area, /crs, /g/u"),
        (["--slice", "z=0:1"], "z: no dimension is called so"),
        (["--var", "nam"], "; did you mean /names?"),
        (["--slice", "x=9:"], "x: nothing is left of this dimension, whose length is 9"),
        (["--quantize", "names=3"], "/names: cannot be quantized: quantize_mode: needs float32"),
        (["--quantize", "t=7"], "BitGroom of float32 takes 1 to 6"),
        (["--quantize", "nothing=2"], "/nothing: no variable is called so"),
    ],
)
def test_what_is_not_there(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    for more in ([], ["--verify"], ["--resume"], ["--memory", "1GB"]):
        assert says in failed(capsys, source, tmp_path / "y", *arguments, *more, status=2)
        assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--slice", "x=:1", "--slice", "y=:1", "--slice", "x=2:3"], "--slice: x is given twice"),
        (["--quantize", "t=3", "--quantize", "/t=2"], "--quantize: /t is given twice"),
        (["--chunks", "x=3,y=2,x=4"], "--chunks: x is given twice"),
        (["--chunks", "x=3", "--chunks", "x=3"], "--chunks: x is given twice"),
        (["--format", "Zarr3", "--shards", "x=3,x=4"], "--shards: x is given twice"),
        (["-o", "key=hidden", "-o", "key=secret"], "-o: key is given twice"),
        (["--replace", "a=b", "--replace", "a=c"], "--replace: a is given twice"),
    ],
)
def test_what_is_said_twice(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["copy", str(source), str(tmp_path / "y"), *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert "secret" not in said


@pytest.mark.parametrize("target", ["y", "y.nc"])
def test_only_what_is_copied_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """Enums, and what has no type in netCDF, of other variables are no loss."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["t"] = np.arange(3.0)
        file["e"] = np.array([0, 1], h5py.enum_dtype({"no": 0, "yes": 1}))
        file["types/enum"] = h5py.enum_dtype({"other": 3})
        file["e"].attrs["opaque"] = np.void(b"ab")
        file["hidden"] = np.array([file["t"].ref], h5py.ref_dtype)
        file["g/t"] = np.arange(2)
        file["g"].attrs["opaque"] = np.void(b"ab")
    source = tmp_path / "x.h5"
    assert main(["copy", str(source), str(tmp_path / target), "--var", "t"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["copy", str(source), str(tmp_path / f"g{target}"), "--var", "g/t"]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.endswith(": /g:opaque")
    assert main(["copy", str(source), str(tmp_path / f"e{target}"), "--var", "e"]) == 1
    said = capsys.readouterr().err
    assert "/e:opaque" in said
    assert "/hidden" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("--slice", "x"),
        ("--slice", "x=3"),
        ("--slice", "x=3:1:0"),
        ("--slice", "x=1:2:3:4"),
        ("--slice", "x=a:b"),
        ("--quantize", "t"),
        ("--quantize", "t=x"),
        ("--quantize", "t=Bit:3"),
    ],
)
def test_what_has_no_meaning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit):
        main(["copy", "x", "y", *arguments])
    assert repr(arguments[1]) in capsys.readouterr().err
