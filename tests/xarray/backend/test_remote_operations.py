# ruff: noqa: PD010, PD013 - these are xarray's methods, not those of pandas
"""Operations of xarray on remote data that are not loaded yet give what they give in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from xarray.tests import create_test_data

from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

Operation = Callable[[xr.Dataset], Any]


def made() -> xr.Dataset:
    """Return xarray's own test dataset, with missing values, text, times, booleans and a scalar."""
    ds = create_test_data()
    ds["var1"][2, 3:5] = np.nan
    ds["var1"].encoding = {"_FillValue": -9e9}
    ds["flag"] = "dim1", np.arange(8) % 3 == 0
    ds["word"] = "dim1", np.array([f"w{n}" for n in range(8)], dtype=object)
    ds["age"] = "time", pd.to_timedelta(np.arange(20), unit="h")
    ds["when"] = "dim1", pd.date_range("2001-02-03", periods=8)
    ds.coords["lon"] = ("dim1", "dim2"), np.arange(72.0).reshape(8, 9)
    ds.coords["member"] = 3.5
    return ds


def _tree(ds: xr.Dataset) -> xr.DataTree:
    return xr.DataTree.from_dict({"/": ds[["when"]], "/a": ds.stack(z=("dim1", "dim2"))})


NUMBERS = ["var1", "var2", "var3", "flag"]
#: Labels that are arrays, so that points are selected, or the elements of a mask.
POINTS = {"dim1": xr.DataArray([5, 0, 2], dims="p"), "dim2": xr.DataArray([1, 8, 1], dims="p")}

OPERATIONS: dict[str, Operation] = {
    "nothing": lambda ds: ds,
    # indexes
    "stack": lambda ds: ds.stack(z=("dim1", "dim2")),
    "stack, without an index": lambda ds: ds.stack(z=("dim1", "dim2"), create_index=False),
    "stack, of indexed": lambda ds: ds.stack(z=("time", "dim2")),
    "stack, and sel": lambda ds: ds.stack(z=("time", "dim2")).sel(z=("2000-01-02", 1.5)),
    "stack, and isel": lambda ds: ds.stack(z=("dim1", "dim2")).isel(z=slice(None, None, 5)),
    "stack, and unstack": lambda ds: ds.stack(z=("dim2", "time")).unstack("z"),
    "stack, and reset_index": lambda ds: ds.stack(z=("time", "dim2")).reset_index("z"),
    "stack, and concat": lambda ds: xr.concat([ds.stack(z=("time", "dim2"))] * 2, "z"),
    "to_stacked_array": lambda ds: ds[["var1", "var2"]].to_stacked_array("f", ["dim1"]),
    "set_index": lambda ds: ds.set_index(dim3="numbers"),
    "set_index, of two": lambda ds: ds.set_index(dim1=["word", "when"]),
    "set_index, of data": lambda ds: ds.set_index(dim1="word"),
    "set_xindex": lambda ds: ds.set_xindex("numbers"),
    "reset_index": lambda ds: ds.reset_index("dim3"),
    "reorder_levels": lambda ds: ds.stack(z=("time", "dim2")).reorder_levels(z=["dim2", "time"]),
    "drop_indexes": lambda ds: ds.drop_indexes("time"),
    "reset_coords": lambda ds: ds.reset_coords(),
    "set_coords": lambda ds: ds.set_coords(["flag", "word"]),
    "assign_coords": lambda ds: ds.assign_coords(dim1=ds.when),
    "from a MultiIndex": lambda ds: ds.assign_coords(
        xr.Coordinates.from_pandas_multiindex(
            pd.MultiIndex.from_product([list("ab"), range(4)], names=["letter", "digit"]), "dim1"
        )
    ),
    "swap_dims": lambda ds: ds.swap_dims(dim3="numbers"),
    "rename": lambda ds: ds.rename(dim1="row", var1="one", time="t", member="m"),
    "RangeIndex": lambda ds: ds.assign_coords(
        xr.Coordinates.from_xindex(xr.indexes.RangeIndex.arange(8, dim="dim1"))
    ),
    # selections
    "isel": lambda ds: ds.isel(dim1=3, dim2=slice(1, None, 3), time=[5, 2]),
    "isel, of points": lambda ds: ds.isel(POINTS),
    "sel": lambda ds: ds.sel(dim2=[1.5, 0.5], time="2000-01-07", dim3="c"),
    "sel, nearest": lambda ds: ds.sel(dim2=1.6, method="nearest"),
    "sel, by months": lambda ds: ds.sel(time=ds.time.dt.day % 7 == 0),
    "head, and tail": lambda ds: ds.head(dim1=4).tail(dim2=2),
    "thin": lambda ds: ds.thin(3),
    "where": lambda ds: ds.where(ds.var2 > 0),
    "where, dropped": lambda ds: ds.where(ds.dim2 > 2, drop=True),
    "by a lazy mask": lambda ds: ds.isel(dim1=ds.flag),
    "drop_sel": lambda ds: ds.drop_sel(dim3=["a", "b"]),
    "dropna": lambda ds: ds.dropna("dim1"),
    "reindex": lambda ds: ds.reindex(dim2=[0.5, 0.7, 9]),
    "query": lambda ds: ds.query(dim1="flag"),
    "sortby": lambda ds: ds.sortby("word", ascending=False),
    "squeeze": lambda ds: ds.isel(dim1=[4]).squeeze(),
    "roll": lambda ds: ds.roll(dim1=2, dim3=1, roll_coords=True),
    "shift": lambda ds: ds.shift(dim2=1),
    "pad": lambda ds: ds[["var1", "flag"]].pad(dim1=2),
    "broadcast_like": lambda ds: ds[["flag"]].broadcast_like(ds.var1),
    "expand_dims": lambda ds: ds.expand_dims(new=[1, 2]),
    "transpose": lambda ds: ds.transpose("dim3", "dim2", ...),
    # calculations
    "sum of two": lambda ds: ds.var1 + ds.var2 * ds.member,
    "mean": lambda ds: ds[NUMBERS].mean(),
    "max": lambda ds: ds[NUMBERS].max("dim2", skipna=False),
    "std": lambda ds: ds[NUMBERS].std("dim1"),
    "argmax": lambda ds: ds[["var2", "var3"]].argmax("dim1"),
    "count": lambda ds: ds.count("dim1"),
    "median": lambda ds: ds[["var1"]].median("dim1"),
    "quantile": lambda ds: ds[["var2"]].quantile([0.2, 0.9]),
    "cumsum": lambda ds: ds[["var1", "var3"]].cumsum("dim1"),
    "diff": lambda ds: ds.drop_vars(["flag", "word", "age"]).diff("dim2"),
    "interp": lambda ds: ds.interp(dim2=[0.7, 1.1]),
    "interp_like": lambda ds: ds.interp_like(ds.isel(dim2=slice(2, 5))),
    "interpolate_na": lambda ds: ds[["var1"]].interpolate_na("dim2"),
    "fillna": lambda ds: ds.var1.fillna(ds.var2),
    "clip": lambda ds: ds[["var1", "var2"]].clip(-0.1, 0.1),
    "map": lambda ds: ds[["var1", "var2"]].map(np.fabs),
    "dot": lambda ds: xr.dot(ds.var1, ds.var3, dim="dim1"),
    "polyfit": lambda ds: ds[["var2"]].polyfit("dim2", 1),
    "weighted": lambda ds: ds[["var2"]].weighted(ds.dim2).mean("dim2"),
    "differentiate": lambda ds: ds[["var1", "var2"]].differentiate("dim2"),
    "integrate": lambda ds: ds[["var2"]].integrate("dim2"),
    "corr": lambda ds: xr.corr(ds.var1, ds.var2, "dim1"),
    "apply_ufunc": lambda ds: xr.apply_ufunc(operator.neg, ds[["var1"]], dask="allowed"),
    "str": lambda ds: ds.word.str.upper(),
    "dt": lambda ds: ds.when.dt.dayofyear,
    "isin": lambda ds: ds.numbers.isin([1, 2]),
    "astype": lambda ds: ds.flag.astype("i1"),
    # groups
    "groupby": lambda ds: ds[["var3"]].groupby("numbers").mean(),
    "groupby, of data": lambda ds: ds.set_coords("word")[["var1"]].groupby("word").first(),
    "groupby_bins": lambda ds: ds[["var2"]].groupby_bins("dim2", [0, 2, 4]).sum(),
    "groupby, of times": lambda ds: ds[["age"]].groupby("time.month").max(),
    "resample": lambda ds: ds[["age"]].resample(time="5D").max(),
    "rolling": lambda ds: ds[["var1", "var2"]].rolling(dim2=3).mean(),
    "rolling, and construct": lambda ds: ds[["var2"]].rolling(dim2=2).construct("w"),
    "coarsen": lambda ds: ds[["var2"]].coarsen(dim1=2).mean(),
    # datasets of several
    "concat": lambda ds: xr.concat([ds, ds.isel(time=slice(0, 2))], "time", data_vars="minimal"),
    "merge": lambda ds: xr.merge([ds[["var1"]], ds[["var2", "word"]].isel(dim2=slice(3))]),
    "align": lambda ds: xr.align(ds, ds.isel(dim2=slice(2, None)), join="inner")[0],
    "combine_by_coords": lambda ds: xr.combine_by_coords(
        [ds[["var1"]].isel(dim2=slice(4)), ds[["var1"]].isel(dim2=slice(4, None))]
    ),
    "combine_first": lambda ds: ds[["var1"]].combine_first(ds[["var2"]].rename(var2="var1")),
    "update": lambda ds: ds.assign(var1=ds.var2, more=ds.var3 > 0),
    "to_dataframe": lambda ds: ds[["var1", "word"]].to_dataframe().to_xarray(),
    "to_dataarray": lambda ds: ds[["var1", "var2"]].to_dataarray(),
    "convert_calendar": lambda ds: ds.convert_calendar("noleap"),
    "tree": _tree,
    "tree, mapped": lambda ds: _tree(ds).map_over_datasets(
        lambda node: node.isel(z=0, missing_dims="ignore")
    ),
}

#: What xarray (or flox) refuses to do with arrays of dask, or does in another order.
NOT_WITH_DASK = {
    "by a lazy mask",
    "str",
    "groupby",
    "groupby, of data",
    "polyfit",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operations")
    made().to_netcdf(folder / "d.nc", engine="netcdf4")
    made().nczarr.to_nczarr(folder / "d.nczarr")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(read_tree(folder, "/")) as server:
        yield server


@pytest.fixture(scope="module")
def in_memory(folder: Path) -> xr.Dataset:
    return xr.load_dataset(folder / "d.nc", engine="netcdf4")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("nc", {}, id="file"),
        pytest.param("nc", {"chunks": {}}, id="file, dask", marks=pytest.mark.slow),
        pytest.param("nczarr", {}, id="tree", marks=pytest.mark.slow),
        pytest.param("nczarr", {"cache": False}, id="tree, not cached", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", OPERATIONS)
def test_as_in_memory(
    server: Server, in_memory: xr.Dataset, name: str, kind: str, options: dict[str, Any]
) -> None:
    if "chunks" in options and name in NOT_WITH_DASK:
        pytest.skip("xarray needs values here")
    expected = OPERATIONS[name](in_memory.copy(deep=True))
    with xr.open_dataset(f"{server.url}/d.{kind}", engine="nczarr", **options) as ds:
        xr.testing.assert_identical(OPERATIONS[name](ds).compute(), expected)
        found = OPERATIONS[name](ds)
        found.load()
        xr.testing.assert_identical(found, expected)
        xr.testing.assert_identical(ds.load(), in_memory)
