"""What an export has left: its values, for us and for netCDF-C, its objects, and its problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError


def opened(target: Path | str, **options: Any) -> xr.Dataset:
    with xr.open_dataset(str(target), engine="nczarr", **options) as dataset:
        return dataset.load()


def by_netcdf(path: Path, name: str, kind: str = "nczarr") -> np.ndarray[Any, Any]:
    """What netCDF-C 4.10.1 reads, as it is stored."""
    with netCDF4.Dataset(f"file://{path}#mode={kind},file") as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        return np.asarray(file[name][...])


def problems(error: pytest.ExceptionInfo[ExportError]) -> list[str]:
    return [line.strip() for line in error.value.reason.splitlines()[1:]]
