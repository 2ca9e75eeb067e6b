"""Write what the netCDF-4 data model says through netCDF-C, and run ncdump on the result.

The tests of the CDL printer build a model, print it, and compare with what
ncdump prints of the file that netCDF-C made of the same model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_xarray.model import Attribute, Group, Variable

#: The release whose text ours equals. Others may spell some things differently.
RELEASE = "4.9.0"


@cache
def find_ncdump() -> tuple[str | None, str]:
    """Path of ncdump, or None and why there is none."""
    path = shutil.which("ncdump")
    if path is None:
        return None, "ncdump is not installed (Debian: apt-get install netcdf-bin)"
    usage = subprocess.run([path], capture_output=True, text=True, check=False, timeout=60).stderr
    if f"netcdf library version {RELEASE} " not in usage:
        return None, f"ncdump is not of release {RELEASE}: {usage.splitlines()[-1]}"
    return path, ""


def run_ncdump(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ncdump; skips the test if it is not the one we know, except under CI."""
    path, reason = find_ncdump()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return subprocess.run(
        ["ncdump", *arguments],
        executable=path,
        capture_output=True,
        check=False,
        timeout=120,
        encoding="utf-8",
        errors="surrogateescape",
    )


def ncdump(*arguments: str) -> str:
    """Standard output of ncdump, which must succeed."""
    done = run_ncdump(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_ncgen(text: str, path: str) -> bool:
    """Make a netCDF-4 file of CDL with the ncgen that comes with ncdump; False if that crashes."""
    run_ncdump()  # which skips the test if they are not there
    done = subprocess.run(
        ["ncgen", "-4", "-o", path],
        input=text.encode("utf-8", "surrogateescape"),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode <= 0, done.stderr.decode(errors="replace")
    return done.returncode == 0


def write_netcdf(target: object, root: Group, data: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a netCDF-4 file, or NCZarr if `target` is such a URL, with everything in `root`.

    Parameters
    ----------
    data
        Values by path of variable. A variable without is left unwritten, so
        that it has its fill value.
    """
    with netCDF4.Dataset(str(target), "w") as file:
        for group in root.walk():
            place = _group(file, group.path)
            _write_attributes(place, group.attributes)
            for dim in group.dimensions.values():
                place.createDimension(dim.name, None if dim.unlimited else dim.size)
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


def _write_attributes(place: Any, attributes: Mapping[str, Attribute]) -> None:
    for attribute in attributes.values():
        if attribute.type == "string":
            place.setncattr_string(attribute.name, list(attribute.value))
        elif isinstance(attribute.value, str):
            place.setncattr(attribute.name, attribute.value.encode("utf-8", "surrogateescape"))
        else:
            place.setncattr(attribute.name, attribute.value)
