"""Write what the netCDF-4 data model says to a netCDF-4 file, and run ncdump on files.

The tests of the CDL printer build a model, print it, and compare with what
ncdump prints of the file that netCDF-C made of the same model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_xarray.model import Group, Variable

NCDUMP = shutil.which("ncdump")


def ncdump(*arguments: str) -> str:
    """Standard output of ncdump; skips the test if there is no ncdump, except under CI."""
    if NCDUMP is None:
        reason = "ncdump is not installed (Debian: apt-get install netcdf-bin)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    done = subprocess.run([NCDUMP, *arguments], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape")


def write_netcdf(path: Path, root: Group, data: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a netCDF-4 file with everything in `root`; `data` by path of variable.

    A variable without data is left unwritten, so that it has its fill value.
    """
    with netCDF4.Dataset(path, "w") as file:
        for group in root.walk():
            target = _group(file, group.path)
            _write_attributes(target, group.attributes)
            for dim in group.dimensions.values():
                target.createDimension(dim.name, None if dim.unlimited else dim.size)
        for group in root.walk():
            for variable in group.variables.values():
                _write_variable(file, variable, data.get(variable.path))


def _group(file: netCDF4.Dataset, path: str) -> netCDF4.Dataset:
    return file if path == "/" else file.createGroup(path)


def _write_variable(
    file: netCDF4.Dataset, variable: Variable, values: np.ndarray[Any, Any] | None
) -> None:
    dims = [_group(file, dim.group).dimensions[dim.name] for dim in variable.dimensions]
    attributes = dict(variable.attributes)
    fill = attributes.pop("_FillValue", None)
    created = _group(file, variable.group).createVariable(
        variable.name,
        str if variable.nc_type == "string" else variable.dtype,
        dims,
        fill_value=None if fill is None else fill.value[0],
    )
    created.set_auto_maskandscale(False)
    created.set_auto_chartostring(False)
    _write_attributes(created, attributes)
    if values is not None:
        created[tuple(map(slice, values.shape))] = values


def _write_attributes(target: Any, attributes: Mapping[str, Any]) -> None:
    for attribute in attributes.values():
        if attribute.type == "string":
            target.setncattr_string(attribute.name, list(attribute.value))
        elif attribute.type == "char":
            target.setncattr(attribute.name, attribute.value.encode("utf-8", "surrogateescape"))
        else:
            target.setncattr(attribute.name, attribute.value)
