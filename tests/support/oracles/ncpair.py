"""One content written by netCDF-C as netCDF-4 and as NCZarr, and what may differ between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import netCDF4
import numpy as np
import xarray as xr

from nczarr_xarray.model import NC_DEFAULT_FILL
from tests.support.builders.ncwriter import Writer

#: Keys of `encoding` that only ``engine="nczarr"`` has.
OURS = {"compressor", "filters", "endian"}
#: Keys that differ where HDF5 stores a variable in one piece: NCZarr knows chunks only.
LAYOUT = {"contiguous", "chunksizes", "preferred_chunks"}


class Pair(NamedTuple):
    """One content in both forms."""

    nc: str
    nczarr: str

    def datasets(self, **options: Any) -> tuple[xr.Dataset, xr.Dataset]:
        """Ours, and ``engine="netcdf4"``'s."""
        ours = xr.open_dataset(self.nczarr, engine="nczarr", **options)
        return ours, xr.open_dataset(self.nc, engine="netcdf4", **options)


def write_pair(folder: Path, write: Writer) -> Pair:
    pair = Pair(str(folder / "x.nc"), f"file://{folder}/x.file#mode=nczarr,file")
    for target in pair:
        with netCDF4.Dataset(target, "w") as dataset:
            write(dataset)
    return pair


# -- what may differ ---------------------------------------------------------------


def cut(value: Any) -> Any:
    """What is left of floats when netCDF-C writes them into metadata: six digits."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "f":
        digits = [float(f"{element:.6g}") for element in np.atleast_1d(value).tolist()]
        return np.array(digits, dtype=value.dtype).reshape(np.shape(value))[()]
    return value


def cut_fills(theirs: xr.Dataset) -> dict[str, Any]:
    """Fill values that change when they are cut to six digits, by variable."""
    fills = {}
    for name, variable in theirs.data_vars.items():
        if variable.dtype.kind == "f":
            fill = variable.attrs.get("_FillValue", NC_DEFAULT_FILL["double"])
            fills[str(name)] = variable.dtype.type(fill)
    return {name: fill for name, fill in fills.items() if cut(fill) != fill}


def as_stored(dataset: xr.Dataset, fills: dict[str, Any]) -> xr.Dataset:
    """A dataset with everything cut that netCDF-C cuts; `fills` as of `cut_fills`.

    Chunks that were never written have the fill value that was cut, what is missing in others
    the exact one.
    """
    data = {
        name: np.where(variable == fills[name], cut(fills[name]), variable)
        if name in fills
        else variable.data
        for name, variable in dataset.data_vars.items()
    }
    dataset = dataset.copy(data=data) if fills else dataset.copy()
    dataset.attrs = {name: cut(value) for name, value in dataset.attrs.items()}
    for variable in dataset.variables.values():
        variable.attrs = {name: cut(value) for name, value in variable.attrs.items()}
    return dataset


def assert_same(ours: xr.Dataset, theirs: xr.Dataset) -> None:
    """Everything agrees but what the functions and constants above say."""
    assert list(ours.variables) == list(theirs.variables)
    assert list(ours.coords) == list(theirs.coords)
    assert {name: type(index) for name, index in ours.xindexes.items()} == {
        name: type(index) for name, index in theirs.xindexes.items()
    }
    for name, variable in theirs.variables.items():
        assert ours.variables[name]._in_memory == variable._in_memory, name
        assert ours[name].dtype == variable.dtype, name
        assert_same_encoding(ours[name].encoding, variable.encoding, f"{name}")
    assert ours.encoding.keys() == theirs.encoding.keys()
    assert ours.encoding.get("unlimited_dims") == theirs.encoding.get("unlimited_dims")
    fills = cut_fills(theirs)
    expected = as_stored(theirs, fills)
    pairs: list[tuple[Any, Any]] = [
        (ours, expected),
        *((ours[n], v) for n, v in expected.variables.items()),
    ]
    for one, other in pairs:
        assert list(one.attrs) == list(other.attrs)
        for name, value in other.attrs.items():
            assert_same_value(one.attrs[name], value, name)
    xr.testing.assert_identical(as_stored(ours, fills) if fills else ours, expected)


def assert_same_value(ours: Any, theirs: Any, name: str) -> None:
    assert type(ours) is type(theirs), name
    if isinstance(theirs, (np.ndarray, np.generic)):
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_array_equal(ours, theirs, name)
        if theirs.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs), name)
    else:
        assert ours == theirs, name


def assert_same_encoding(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    one_piece = theirs.get("contiguous") and theirs.get("original_shape") != ()
    ignored = OURS | {"source"} | (LAYOUT if one_piece else set())
    if one_piece:
        assert ours["chunksizes"] == theirs["original_shape"], name
        assert ours["contiguous"] is False, name
    if theirs.get("blosc"):
        assert "blosc" not in ours, name  # xarray cannot write what it reads here
        ignored |= {"blosc", "compression_opts"}  # the latter is ours, for h5netcdf
    assert set(ours) - ignored == set(theirs) - ignored, name
    for key in set(theirs) - ignored:
        assert_same_value(ours[key], cut(theirs[key]), f"{name}: {key}")
