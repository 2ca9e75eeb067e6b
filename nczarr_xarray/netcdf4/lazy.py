"""Values of variables as lazy arrays of dask, for programs that take dataset-like objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nczarr_xarray.netcdf4.variable import Variable


def dask_array(variable: Variable) -> Any:
    """Return the values of a variable, decoded as reading it does, as an array of dask.

    Without dask, and for a scalar, the values themselves.
    """
    if not variable.ndim:
        return variable[...]
    try:
        import dask.array as da
    except ImportError:
        return variable[...]
    chunks = variable.chunking()
    given = chunks if isinstance(chunks, list) else "auto"
    one = variable[(slice(0, 0),) * variable.ndim]
    return da.from_array(_Sliced(variable, one.dtype), chunks=given, asarray=False, meta=one)


class _Sliced:
    """A variable with the shape and dtype that its values have, for dask."""

    def __init__(self, variable: Variable, dtype: np.dtype) -> None:
        self.variable = variable
        self.dtype = dtype
        self.shape = variable.shape
        self.ndim = variable.ndim

    def __getitem__(self, key: Any) -> Any:
        return self.variable[key]
