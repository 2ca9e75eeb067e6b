"""Missing values that become a ``_FillValue`` which float64 cannot hold, as netCDF's for int64.

xarray puts it among floats before it makes integers of them. So another number is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from xarray import Variable


class Missing(NamedTuple):
    """Where values are missing, and the integer that stands for them."""

    where: Variable
    fill: np.generic


def set_aside(
    variables: Iterable[tuple[Any, Variable]],
) -> tuple[dict[Any, Variable], dict[Any, Missing]]:
    """Return those variables whose fill floats cannot hold, without missing values, and these."""
    filled, missing = {}, {}
    for name, variable in variables:
        fill = _inexact_fill(variable)
        if fill is not None:
            offset = variable.encoding.get("add_offset")  # it becomes 0, which all types can hold
            filled[name] = variable.fillna(0 if offset is None else offset)
            filled[name].encoding = variable.encoding
            missing[name] = Missing(variable.isnull(), fill)
    return filled, missing


def put_back(encoded: Variable, missing: Missing) -> Variable:
    """Return encoded values with the fill where they were missing."""
    fill = missing.fill.astype(encoded.dtype)
    return encoded.copy(data=encoded.where(~missing.where, fill).data)


def _inexact_fill(variable: Variable) -> np.generic | None:
    """Return the fill value of floats if it is an integer that float64 cannot hold; else None."""
    if variable.dtype.kind != "f":
        return None
    stated: Any = variable.encoding.get("_FillValue")
    fill = np.asarray(variable.encoding.get("missing_value") if stated is None else stated)
    if fill.dtype.kind not in "iu" or fill.size != 1:
        return None
    found: np.generic = fill.reshape(-1)[0]
    return None if int(float(found)) == int(found) else found
