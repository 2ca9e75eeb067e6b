"""Results of calculations with dask, whose blocks seldom make a chunk grid, can be written."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nczarr_xarray.accessor
from nczarr_xarray import to_cfa, to_nczarr
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.model import ChunkedArray
from tests.support.marks import each_once

dask = pytest.importorskip("dask")

Source = Callable[[Path], xr.Dataset]

pytestmark = pytest.mark.filterwarnings("ignore:.*(chunk|Slicing).*:UserWarning")

BASE = xr.Dataset(
    {
        "v": (("time", "y", "x"), np.arange(60 * 6 * 8.0).reshape(60, 6, 8) % 97),
        "k": ("time", np.arange(60)),
        "name": ("time", [f"step {i}" for i in range(60)]),
    },
    {"time": pd.date_range("2000-01-01", periods=60), "y": np.arange(6.0), "x": np.arange(8.0)},
)
NUMBERS = ["v", "k"]


def _flat(d: xr.Dataset) -> xr.Dataset:
    return d.stack(z=("y", "x"), create_index=False)  # noqa: PD013 - not of pandas


OPERATIONS: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "nothing": lambda d: d,
    "selection": lambda d: d.sel(time=slice("2000-01-04", "2000-02-27")),
    "arithmetic": lambda d: d[NUMBERS].isel(time=slice(3, None), x=slice(1, 7)) - 273.15,
    "steps": lambda d: d.isel(time=slice(3, 57, 7)),
    "backwards": lambda d: d.isel(time=slice(None, None, -1), y=slice(4, None, -1)),
    "some": lambda d: d.sel(time=d["time"].dt.day < 9),
    "where": lambda d: d[NUMBERS].where(d["time"].dt.month == 2, drop=True),
    "resample": lambda d: d[NUMBERS].resample(time="MS").mean(),
    "groupby": lambda d: d[NUMBERS].unify_chunks().groupby("time.dayofyear").map(lambda g: g * 2),
    "rolling": lambda d: d[NUMBERS].rolling(time=4).max(),
    "windows": lambda d: d[NUMBERS].rolling(time=5, center=True).construct("window"),
    "coarsen": lambda d: d[NUMBERS].coarsen(time=7, boundary="trim").max(),
    "diff": lambda d: d[NUMBERS].diff("time"),
    "pad": lambda d: d[NUMBERS].pad(time=(2, 3), y=(1, 0)),
    "shift": lambda d: d[NUMBERS].shift(time=3),
    "roll": lambda d: d.roll(time=3),
    "reindex": lambda d: d[NUMBERS].reindex(time=pd.date_range("1999-12-25", periods=80)),
    "interp": lambda d: d[["v"]].interp(x=[0.5, 1.5, 5.5]),
    "concat": lambda d: xr.concat([d.isel(time=slice(7, 9)), d, d.isel(time=slice(5))], "time"),
    "stack": lambda d: _flat(d.drop_vars(["y", "x"])),
    "transpose": lambda d: d.transpose("x", "y", "time").isel(x=slice(3, None)),
    "cumsum": lambda d: d[NUMBERS].isel(time=slice(3, None)).cumsum("time"),
    "persist": lambda d: d.isel(time=slice(5, None)).persist(),
    "odd blocks": lambda d: d.chunk(time=(1, 40, 3, 16), y=(5, 1), x=(1, 2, 5)),
    "nothing left": lambda d: d.isel(time=slice(0, 0)),
    "one step": lambda d: d.isel(time=4),
}


def plain(path: Path) -> xr.Dataset:
    """Blocks that the user has made."""
    return BASE.chunk(time=10, y=3, x=4)


def inherited(path: Path) -> xr.Dataset:
    """Blocks that are the chunks of a dataset."""
    to_nczarr(BASE, path / "source", encoding={"v": {"chunks": (10, 3, 4)}})
    return xr.open_dataset(path / "source", engine="nczarr", chunks={})


def long_chunks(path: Path) -> xr.Dataset:
    """Blocks that are a part of the chunks of a dataset, or go across them."""
    to_nczarr(BASE, path / "source", encoding={"v": {"chunks": (60, 2, 2)}, "k": {"chunks": (60,)}})
    found = xr.open_dataset(path / "source", engine="nczarr")
    return found.chunk(time=10, y=3, x=4)


def nczarr(dataset: xr.Dataset, path: Path) -> str:
    to_nczarr(dataset, path / "d")
    return str(path / "d")


def later(dataset: xr.Dataset, path: Path) -> str:
    to_nczarr(dataset, path / "d.zip", compute=False).compute()
    return str(path / "d.zip")


def pure(dataset: xr.Dataset, path: Path) -> str:
    to_nczarr(dataset, f"file://{path}/d#mode=zarr", portable=True)
    return f"file://{path}/d#mode=zarr"


def netcdf(dataset: xr.Dataset, path: Path) -> str:
    nczarr_xarray.accessor.register()
    dataset.to_netcdf(path / "d", engine="nczarr")  # type: ignore[call-overload]
    return str(path / "d")


def cfa(dataset: xr.Dataset, path: Path) -> str:
    to_cfa(dataset, path / "d.nca")
    return str(path / "d.nca")


SOURCES = [plain, inherited, long_chunks]
WRITERS = [nczarr, later, pure, netcdf, cfa]
#: Every operation on every source; by three of the writers.
CASES = [
    pytest.param(name, source, WRITERS[number % len(WRITERS)], id=f"{name}-{source.__name__}")
    for number, (source, name) in enumerate(product(SOURCES, OPERATIONS))
]


@pytest.mark.parametrize(("name", "source", "write"), CASES)
def test_results_are_written(
    name: str, source: Source, write: Callable[[xr.Dataset, Path], str], tmp_path: Path
) -> None:
    with dask.config.set(scheduler="threads", num_workers=2), source(tmp_path) as data:
        result = OPERATIONS[name](data)
        url = write(result, tmp_path)
        # what another writer, which has no chunk grid to choose, makes of it
        result.drop_encoding().to_netcdf(tmp_path / "expected.nc", engine="netcdf4")
    with (
        xr.open_dataset(url, engine="nczarr") as found,
        xr.open_dataset(tmp_path / "expected.nc", engine="netcdf4") as expected,
    ):
        xr.testing.assert_equal(found.load(), expected.load())


@pytest.mark.parametrize(("source", "name"), each_once(SOURCES, [*OPERATIONS]))
def test_no_chunk_is_much_larger_than_a_block(name: str, source: Source, tmp_path: Path) -> None:
    with source(tmp_path) as data:
        result = OPERATIONS[name](data)
        blocks = result["v"].chunksizes
        to_nczarr(result, tmp_path / "d", compute=False)
    with open_hierarchy(str(tmp_path / "d")) as opened:
        variable = opened.hierarchy.root.variables["v"]
    assert isinstance(variable.array, ChunkedArray)
    largest = math.prod([max([1, *blocks[d.name]]) for d in variable.dimensions])
    assert math.prod(variable.array.chunk_shape) <= max(4 * largest, 4 << 20)
