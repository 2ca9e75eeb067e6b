"""Values of one file as a master holds them: in its units, and with its mark of missing data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.checks import converted
from nczarr_xarray.aggregation.summary import VariableForm, is_index
from nczarr_xarray.export.storage import netcdf_type
from nczarr_xarray.formats.cfa.table import (
    fill_of,
    missing_in,
    read_as,
    stated_numbers,
    taken_for_missing,
)
from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES, Attribute, Variable

#: Attributes one of which says what missing data are.
MARKS = frozenset({"_FillValue", "missing_value"})


def as_held(
    target: str, values: np.ndarray, own: VariableForm, wanted: VariableForm, variable: Variable
) -> np.ndarray:
    """Return values of a file as those of a variable that the master holds.

    Parameters
    ----------
    target, own
        The file, and what the variable is in it.
    wanted
        What it is in the first file, of which the units are.
    variable
        As the master holds it: its attributes say what missing data are.

    Raises
    ------
    ExportError
        If there are data that stand for missing data in the master.
    """
    marks = stated_numbers(variable)
    is_plain = own.units == wanted.units and own.marks == marks
    if is_plain or is_index(variable) or values.dtype.kind not in "iuf":
        return converted(values, own, wanted)
    missing = missing_in(values, own.missing)
    if missing is None:
        found = converted(values, own, wanted)
    elif missing.all():
        return np.full(values.shape, fill_of(variable))
    else:  # a number that stands for missing data has no units
        found = converted(np.where(missing, values[~missing][0], values), own, wanted)
        found = np.where(missing, fill_of(variable), found)
    reason = taken_for_missing(found, missing, marks)
    if reason is not None:
        raise ExportError(target, f"{wanted.path} {reason}")
    return found


def holding(variable: Variable, values: np.ndarray) -> Variable:
    """Return a variable whose type holds values that may have been converted."""
    if values.dtype.kind != "f" or values.dtype == variable.dtype.newbyteorder("="):
        return variable
    dtype = NC_DTYPES["double"]
    marks = {
        name: Attribute(name, "double", own.value.astype(dtype))
        for name in sorted(MARKS)
        if (own := variable.attributes.get(name)) is not None
        and isinstance(own.value, np.ndarray)
        and own.value.dtype.kind in "iuf"
    }
    attributes = {**variable.attributes, **marks}
    return replace(variable, nc_type="double", dtype=dtype, attributes=attributes)


def default_filled(variable: Variable, where: str, unmarked: str | None) -> Variable:
    """Return a variable with netCDF's default for missing data.

    Parameters
    ----------
    where
        In which files there is a fill value, for messages.
    unmarked
        The type that is stored in files that state no mark; None if all do. There its default is
        missing in any case, and that of the type with the other sign is data.

    Raises
    ------
    ExportError
        If all its values may be data.
    """
    nc_type = str(variable.nc_type)
    if nc_type in ("byte", "ubyte"):
        raise ExportError(
            variable.path,
            f"has a _FillValue {where}, and all its values may be data: name the variables that "
            "are wanted",
        )
    if nc_type in ("char", "string"):
        return variable
    own = variable.dtype.newbyteorder("=")
    stored = NC_DTYPES.get(unmarked or "")
    if stored is None or own.kind == "f" or stored.itemsize != own.itemsize:
        unmarked, stored = netcdf_type(read_as(variable)), read_as(variable)
    return _filled(variable, np.array(NC_DEFAULT_FILL[str(unmarked)], stored).view(own))


def safely_filled(variable: Variable, unmarked: str | None) -> Variable:
    """Return a variable whose mark of missing data is hardly data in any file.

    NaN never is: as data it reads as missing data do. Of integers it is netCDF's default.

    Parameters
    ----------
    unmarked
        As of `default_filled`.

    Raises
    ------
    ExportError
        As `default_filled`.
    """
    if variable.dtype.kind == "f":
        return _filled(variable, np.nan)
    return default_filled(variable, "in some files and none in others", unmarked)


def _filled(variable: Variable, fill: Any) -> Variable:
    nc_type = str(variable.nc_type)
    value = np.array([fill], NC_DTYPES[nc_type])
    kept = {k: own for k, own in variable.attributes.items() if k not in MARKS}
    return replace(
        variable, attributes={**kept, "_FillValue": Attribute("_FillValue", nc_type, value)}
    )
