"""Files that belong together, for tests of aggregations, and what an aggregation of them holds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.model import Variable

#: A variable of a file: dimensions, values, attributes.
Given = tuple[tuple[str, ...], Any, Mapping[str, Any]]

#: What is said to `createVariable`.
_STORAGE = ("chunksizes", "zlib", "complevel", "shuffle", "fletcher32")
TIME = {"units": "days since 2000-01-01", "calendar": "standard"}


def write(
    path: Path, variables: Mapping[str, Given], form: Any = "NETCDF4", **attributes: Any
) -> str:
    """Write a file; ``_FillValue``, chunks and filters may be among a variable's attributes."""
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.setncatts(attributes)
        for name, (dimensions, values, given) in variables.items():
            values = np.asarray(values)
            for dimension, size in zip(dimensions, values.shape, strict=True):
                if dimension not in file.dimensions:
                    file.createDimension(dimension, size)
            own = dict(given)
            options = {key: own.pop(key) for key in _STORAGE if key in own}
            dtype: Any = str if values.dtype.kind in "OU" else values.dtype
            fill = own.pop("_FillValue", None)
            made = file.createVariable(name, dtype, dimensions, fill_value=fill, **options)
            made.set_auto_maskandscale(False)
            made.setncatts(own)
            made[...] = values.astype(object) if dtype is str else values
    return str(path)


def field(times: Sequence[float], size: int = 3, *, add: float = 0.0) -> np.ndarray:
    """Return values that tell their time."""
    return (np.asarray(times, "f4")[:, None] * 100 + np.arange(size, dtype="f4") + add).astype("f4")


def step(
    path: Path,
    times: Sequence[float],
    *,
    form: Any = "NETCDF4",
    more: Mapping[str, Given] | None = None,
    time: Mapping[str, Any] = TIME,
    **attributes: Any,
) -> str:
    """Write a file with some times of a field."""
    variables: dict[str, Given] = {
        "time": (("time",), np.asarray(times, "f8"), time),
        "x": (("x",), np.arange(3.0), {"units": "m"}),
        "tas": (("time", "x"), field(times), {"units": "K"}),
    }
    return write(path, {**variables, **(more or {})}, form, **attributes)


def assembled(found: Aggregated, path: str, folder: str | Path = "/") -> np.ndarray:
    """Put the data of a variable together by its table, with the netCDF4 library."""
    (variable,) = (v for v in found.variables() if v.path == path)
    if path in found.values:
        return found.values[path]
    table = found.tables[path]
    shape = tuple(int(stops[-1]) for stops in table.stops)
    assert shape == variable.shape
    values = np.full(shape, np.nan)
    for number in range(table.count):
        for place in table.places(number)[:1]:
            with netCDF4.Dataset(os.path.join(folder, place.address)) as file:
                file.set_auto_mask(False)
                data = file[place.name][...]
            extent = tuple(slice(start, stop) for start, stop in table.extent(number))
            part = values[extent]
            part[...] = np.reshape(data, part.shape)
    return values


def variable_of(found: Aggregated, path: str) -> Variable:
    """Return a variable of an aggregation."""
    (variable,) = (v for v in found.variables() if v.path == path)
    return variable


def forget_versions(master: str | Path) -> None:
    """Have a master know nothing of the versions of its fragments, as those of other programs."""
    with netCDF4.Dataset(master, "r+") as ds:
        for variable in ds.variables.values():
            if "aggregated_versions" in variable.ncattrs():
                variable.delncattr("aggregated_versions")
