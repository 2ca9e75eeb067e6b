"""Values of pandas' own types: stored as CF has them, or refused with a way out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nczarr_xarray.accessor
from nczarr_fsspec.errors import ExportError, LossWarning, NCZarrWarning
from nczarr_xarray import to_cfa, to_nczarr

BERLIN = pd.date_range("2000-01-01", periods=3, freq="h", tz="Europe/Berlin")
UTC = np.array(["1999-12-31T23", "2000-01-01T00", "2000-01-01T01"], "M8[ns]")
FLAGS = {"flag_values": [0, 1], "flag_meanings": "lo hi"}
NAN = np.nan

#: Values; what any reader decodes of them, and the stored type; the warning.
STORED: dict[str, tuple[Any, Any, str, type[Warning] | None]] = {
    "Int64": (pd.array([1, 2, 2**60], "Int64"), [1, 2, 2**60], "i8", None),
    "Int64 missing": (pd.array([1, None, -3], "Int64"), [1, NAN, -3], "i8", None),
    "UInt8": (pd.array([1, 2, 255], "UInt8"), [1, 2, 255], "u1", None),
    "UInt8 missing": (pd.array([255, None, 254], "UInt8"), [255, NAN, 254], "u1", None),
    "Int8 missing": (pd.array([-127, None, -128], "Int8"), [-127, NAN, -128], "i1", None),
    "none there": (pd.array([None] * 3, "Int32"), [NAN] * 3, "i4", None),
    "Float32": (pd.array([0.5, None, 3], "Float32"), [0.5, NAN, 3], "f4", None),
    "boolean": (pd.array([True, False, True], "boolean"), [1, 0, 1], "?", None),
    "boolean missing": (pd.array([True, None, False], "boolean"), [1, NAN, 0], "i1", None),
    "category": (pd.Categorical(["hi", "lo", "hi"], ["lo", "hi"]), [1, 0, 1], "i1", NCZarrWarning),
    "category missing": (
        pd.Categorical(["hi", None, "lo"], ["lo", "hi"], ordered=True), [1, NAN, 0], "i1",
        NCZarrWarning,
    ),
    "numbers as categories": (pd.Categorical([5, 3, 5]), [5, 3, 5], "i8", None),
    "zone": (BERLIN, UTC, "i8", LossWarning),
    "UTC": (BERLIN.tz_convert("UTC"), UTC, "i8", None),
    "zone in a column": (np.array(BERLIN, object), UTC, "i8", LossWarning),
    "datetime": (
        np.array([dt.datetime(2000, 1, 1, i, tzinfo=dt.UTC) for i in range(3)]),
        UTC + np.timedelta64(1, "h"), "i8", None,
    ),
    "sparse": (pd.arrays.SparseArray([0, 0, 7]), [0, 0, 7], "i8", None),
    "string": (pd.array(["a", "bc", ""], "string"), ["a", "bc", ""], "U", None),
}  # fmt: skip

REFUSED: dict[str, tuple[Any, str]] = {
    "period": (pd.period_range("2000-01", periods=3, freq="M"), r"period\[M\].*astype\(str\)"),
    "interval": (pd.interval_range(0, 3), r"interval.*astype\(str\)"),
    "words": (pd.Categorical(["New York", "Rome", "Rome"]), "rename the categories, or .*astype"),
    "bins": (pd.cut([1, 2, 3], 2), r"category.*astype\(str\)"),
    "large": (pd.array([2**53 + 1, None, 1], "Int64"), r"fillna and astype\('i8'\)"),
    "zone here and there": (
        np.array([None, pd.Timestamp("2000-01-01"), BERLIN[0]], object),
        "times of a zone and times without one",
    ),
    "bins with gaps": (pd.cut([1, 2, 9], [0, 3, 5]), r"category.*astype\(str\)"),
}


def of(values: Any, kind: str) -> xr.Dataset:
    """A dataset with three values, as a variable, a coordinate or an index."""
    if kind == "index":
        return xr.Dataset({"w": ("v", [1.0, 2.0, 3.0])}, {"v": ("v", values)})
    dataset = xr.Dataset({"v": ("x", values, {"long_name": "its name"}), "w": ("x", [1.0, 2, 3])})
    return dataset.set_coords("v") if kind == "coordinate" else dataset


def check(path: Path, values: Any, dtype: str, name: str, *, twice: bool = False) -> None:
    expected = np.concatenate([values, values]) if twice else values
    with xr.open_dataset(path, engine="nczarr") as found:
        variable = found["v"].load()
    if dtype == "U":
        assert variable.to_numpy().tolist() == expected.tolist()
        return
    assert np.dtype(variable.encoding["dtype"]) == dtype
    np.testing.assert_array_equal(variable.astype(expected.dtype), expected)
    if name.startswith("category"):
        assert {key: np.asarray(variable.attrs[key]).tolist() for key in FLAGS} == FLAGS


@pytest.mark.parametrize("kind", ["variable", "coordinate", "index"])
@pytest.mark.parametrize("name", STORED)
def test_stored(tmp_path: Path, name: str, kind: str) -> None:
    values, decoded, dtype, warning = STORED[name]
    dataset = of(values, kind)
    before = dataset.copy(deep=True)
    expected = np.asarray(decoded)
    if warning is None:
        to_nczarr(dataset, tmp_path / "d")
    else:
        with pytest.warns(warning, match=": v$"):
            to_nczarr(dataset, tmp_path / "d")
    pd.testing.assert_frame_equal(dataset.to_dataframe(), before.to_dataframe())
    check(tmp_path / "d", expected, dtype, name)
    if kind != "index":
        with netCDF4.Dataset(f"file://{tmp_path}/d#mode=nczarr,file") as nc:
            assert nc["v"].long_name == "its name"


@pytest.mark.filterwarnings("ignore::nczarr_fsspec.errors.NCZarrWarning")
@pytest.mark.parametrize("name", STORED)
def test_appended(tmp_path: Path, name: str) -> None:
    values, decoded, dtype, _ = STORED[name]
    for _ in range(2):
        dataset = of(values, "variable")
        to_nczarr(dataset, tmp_path / "d", append_dim="x", create=True)
    check(tmp_path / "d", np.asarray(decoded), dtype, name, twice=True)
    to_nczarr(dataset[["v"]], tmp_path / "d", region={"x": slice(3, 6)})
    check(tmp_path / "d", np.asarray(decoded), dtype, name, twice=True)


def netcdf(dataset: xr.Dataset, path: Path) -> None:
    nczarr_xarray.accessor.register()
    dataset.to_netcdf(path, engine="nczarr")  # type: ignore[call-overload]


@pytest.mark.filterwarnings("ignore::nczarr_fsspec.errors.NCZarrWarning")
@pytest.mark.parametrize("write", [to_cfa, netcdf])
@pytest.mark.parametrize("name", STORED)
def test_other_writers(tmp_path: Path, name: str, write: Callable[[Any, Path], None]) -> None:
    values, decoded, dtype, _ = STORED[name]
    path = tmp_path / ("d.nca" if write is to_cfa else "d")
    write(of(values, "variable"), path)
    check(path, np.asarray(decoded), dtype, name)


@pytest.mark.parametrize("kind", ["variable", "coordinate", "index"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str, kind: str) -> None:
    values, message = REFUSED[name]
    with pytest.raises(ExportError, match=f"(?s)v: is of type .*{message}"):
        to_nczarr(of(values, kind), tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_all_numbers_are_taken() -> None:
    values = pd.array([*range(256), None], "UInt8")
    with pytest.raises(ExportError, match=r"no number is left .*astype\('f8'\)"):
        to_nczarr(xr.Dataset({"v": ("x", values)}), {})


def test_appended_categories_are_the_same(tmp_path: Path) -> None:
    for categories in (["lo", "hi"], ["lo"]):
        new = of(pd.Categorical(["lo"] * 3, categories), "variable")
        if categories[1:]:
            with pytest.warns(NCZarrWarning, match="categories become integers"):
                to_nczarr(new, tmp_path / "d")
        else:
            with pytest.raises(ExportError, match="flag_"), pytest.warns(NCZarrWarning):
                to_nczarr(new, tmp_path / "d", append_dim="x")


def test_an_index_of_several_levels(tmp_path: Path) -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["a", "b"]), "n": [3, 4], "v": [1.0, 2.0]})
    dataset = xr.Dataset.from_dataframe(frame).set_index(index=["c", "n"])
    with pytest.raises(ExportError, match="MultiIndex"):
        to_nczarr(dataset, tmp_path / "d")
    with pytest.warns(NCZarrWarning):
        to_nczarr(dataset.reset_index("index"), tmp_path / "d")
    with xr.open_dataset(tmp_path / "d", engine="nczarr") as found:
        assert found["c"].to_numpy().tolist() == [0, 1]
        assert found["n"].to_numpy().tolist() == [3, 4]


def test_objects_of_other_kinds() -> None:
    values = np.array([[1, 2], None, "a"], object)
    with pytest.raises(ExportError, match="v: "):
        to_nczarr(xr.Dataset({"v": ("x", values)}), {})


def test_scalars_and_trees(tmp_path: Path) -> None:
    one = of(pd.array([7, None, 9], "Int64"), "variable").isel(x=0)
    to_nczarr(xr.DataTree.from_dict({"/a": one, "/b": one}), tmp_path / "d")
    with xr.open_dataset(tmp_path / "d", engine="nczarr", group="b") as found:
        assert found["v"].item() == 7
