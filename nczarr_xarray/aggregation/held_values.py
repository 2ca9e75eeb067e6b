"""Values of one file as a master holds them: in its units, and with its mark of missing data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.checks import converted
from nczarr_xarray.aggregation.summary import Layout, Summary, VariableForm, is_index
from nczarr_xarray.export.form.storage import netcdf_type
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
    same = own.units == wanted.units and own.stored_type == wanted.stored_type
    is_plain = same and own.marks == marks
    if is_plain or is_index(variable) or values.dtype.kind not in "iuf":
        return converted(target, values, own, wanted)
    missing = missing_in(values, own.missing)
    if missing is None:
        found = converted(target, values, own, wanted)
    elif missing.all():
        return np.full(values.shape, fill_of(variable))
    else:  # a number that stands for missing data has no units
        known = np.where(missing, values[~missing][0], values)
        found = converted(target, known, own, wanted)
        found = np.where(missing, fill_of(variable), found)
    reason = taken_for_missing(found, missing, marks)
    if reason is not None:
        raise ExportError(target, f"{wanted.path} {reason}")
    return found


def unrounded(
    files: Sequence[Summary], held: Mapping[str, np.ndarray], wanted: Layout
) -> tuple[Sequence[Summary], Mapping[str, np.ndarray]]:
    """Return what files and a master have of coordinates, in double precision where a file has it.

    Parameters
    ----------
    held
        What the master holds.
    wanted
        The layout that holds those of all files: a coordinate that is float in one and double in
        another is double in it. If the float one is the double one rounded, they are the same.
    """
    double = {form.path for form in wanted.forms if form.stored_type == "double"}
    own = [(path, file.value(path)) for file in files for path in double & file.layout.small.keys()]
    everything = [*own, *((path, held[path]) for path in double & held.keys())]
    mixed = {path for path, values in everything if values.dtype == np.float32}
    precise: dict[Any, np.ndarray] = {}

    def key(path: str, values: np.ndarray) -> Any:
        with np.errstate(over="ignore"):
            return path, values.shape, values.astype(np.float32).tobytes()

    for path, values in everything:
        if path in mixed and values.dtype == np.float64:
            precise.setdefault(key(path, values), values)

    def found(path: str, values: np.ndarray) -> np.ndarray:
        is_rounded = path in mixed and values.dtype == np.float32
        return precise.get(key(path, values), values) if is_rounded else values

    if not precise:
        return files, held
    summaries = [
        file._replace(values=tuple(map(found, file.layout.small, file.values))) for file in files
    ]
    return summaries, {path: found(path, values) for path, values in held.items()}


def holding(variable: Variable, values: np.ndarray) -> Variable:
    """Return a variable whose type holds values that may have been converted."""
    if values.dtype.kind != "f" or values.dtype == variable.dtype.newbyteorder("="):
        return variable
    return of_type(variable, "double")


def of_type(variable: Variable, nc_type: str) -> Variable:
    """Return a variable of another type of numbers, with its marks of missing data."""
    dtype = NC_DTYPES[nc_type]
    marks = {
        name: Attribute(name, nc_type, own.value.astype(dtype))
        for name in sorted(MARKS)
        if (own := variable.attributes.get(name)) is not None
        and isinstance(own.value, np.ndarray)
        and own.value.dtype.kind in "iuf"
    }
    attributes = {**variable.attributes, **marks}
    return replace(variable, nc_type=nc_type, dtype=dtype, attributes=attributes)


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
