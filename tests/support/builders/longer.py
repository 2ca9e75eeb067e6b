"""NCZarr whose chunks are longer than they should be, as netCDF-Fortran has them written."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

_C = ctypes.CDLL(netCDF4._netCDF4.__file__)


def chunking_ints(variable: netCDF4.Variable, lengths: Sequence[int]) -> None:
    """Ask for chunks as ``nf90_def_var_chunking`` does, before anything is written."""
    asked = (ctypes.c_int * len(lengths))(*lengths)
    assert not _C.nc_def_var_chunking_ints(variable._grpid, variable._varid, 0, asked)


def write(
    path: Path, data: np.ndarray, chunks: Sequence[int], *, grows: bool = False, **options: Any
) -> str:
    """Write one variable ``v``; return what netCDF-C calls the dataset.

    Parameters
    ----------
    grows
        Whether the first dimension is unlimited.
    options
        Of `createVariable`.
    """
    url = f"file://{path}#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as dataset:
        for axis, length in enumerate(data.shape):
            dataset.createDimension(f"d{axis}", None if grows and not axis else length)
        names = [f"d{axis}" for axis in range(data.ndim)]
        variable = dataset.createVariable("v", data.dtype, names, **options)
        chunking_ints(variable, chunks)
        variable[:] = data
    return url
