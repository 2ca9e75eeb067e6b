"""What all dialects make of the attributes and the text of an aggregation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.formats.cfa.dialect import Scoped, text_in
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    Attribute,
    Dimension,
    FragmentArray,
    Fragments,
    Variable,
)

#: Characters of all addresses of a table, at most: a few bytes of metadata can stand for many.
MOST_TEXT = 1 << 28
#: Fragments that a table may have in any case, and for each one that it lists.
_ALWAYS, _EACH = 1 << 20, 64

#: Of arrays of numpy, in all its versions.
_MOST_DIMENSIONS = 32

#: Attributes one of which lists the dimensions in CFA-0.4 and 0.5: the first that is there.
DIMENSIONS_ATTRIBUTES = ("cfa_dimensions", "cf_dimensions")

#: Attributes by which values are packed.
PACKING = ("scale_factor", "add_offset", "_Unsigned")


def names_in_group(scoped: Scoped, names: Iterable[str]) -> list[str]:
    """Return the paths of variables of fragments, which S3netCDF4 2 names without their group.

    That is called as the group of the aggregation is.
    """
    group = scoped.group.path.strip("/")
    return [f"{group}/{name}" if group and name and "/" not in name else name for name in names]


def packing_attributes(variable: Variable) -> dict[str, Attribute]:
    """Return the attributes by which the values of a variable are packed.

    A factor or an offset that is not one number is none: the engine does not apply it either. Nor
    does it ``_Unsigned`` that is no text. Text is not packed.
    """
    if variable.dtype.kind not in "iuf":
        return {}
    stated = {name: variable.attributes[name] for name in PACKING if name in variable.attributes}
    return {name: attribute for name, attribute in stated.items() if _packs(name, attribute.value)}


def _packs(name: str, value: object) -> bool:
    if not isinstance(value, np.ndarray):
        return name == "_Unsigned"
    return name != "_Unsigned" and value.dtype.kind in "iuf" and value.size == 1


def packing_of(variable: Variable) -> dict[str, int | float | str | None]:
    """Return the attributes by which the values of a variable are packed, as plain values."""
    return {
        name: attribute.value.item()
        if isinstance(attribute.value, np.ndarray)
        else text_in(variable.attributes, name)
        for name, attribute in packing_attributes(variable).items()
    }


def read_as(variable: Variable) -> np.dtype:
    """Return the type as which the integers of a variable are read, which ``_Unsigned`` says."""
    dtype = variable.dtype.newbyteorder("=")
    unsigned = text_in(variable.attributes, "_Unsigned")
    if unsigned is None or dtype.kind not in "iu":
        return dtype
    return np.dtype(f"{'u' if unsigned.lower() == 'true' else 'i'}{dtype.itemsize}")


def stated_numbers(variable: Variable) -> tuple[int | float, ...]:
    """Return the numbers among `stated_marks`; all NaN are one object, so equal."""
    numbers = (mark for mark in stated_marks(variable) if isinstance(mark, (int, float)))
    return tuple(math.nan if math.isnan(number) else number for number in numbers)


def missing_numbers(
    nc_type: str | None, stated: tuple[int | float, ...]
) -> tuple[int | float, ...]:
    """Return the numbers that stand for missing data: netCDF's default if attributes say none."""
    default = NC_DEFAULT_FILL.get(nc_type or "")
    # all values of a byte are data, unless it is said
    if stated or nc_type in ("byte", "ubyte") or not isinstance(default, (int, float)):
        return stated
    return (default,)


def missing_in(data: np.ndarray, numbers: Iterable[int | float]) -> np.ndarray | None:
    """Tell which numbers stand for missing data; None if none does."""
    missing = None
    for number in numbers:
        is_number = np.isnan(data) if math.isnan(number) else data == number
        if is_number.any():
            missing = is_number if missing is None else missing | is_number
    return missing


def taken_for_missing(
    data: np.ndarray, missing: np.ndarray | None, numbers: Iterable[int | float]
) -> str | None:
    """Say that data would be taken for missing in an aggregation; None if none would.

    Parameters
    ----------
    data, missing
        What an aggregation is to hold, and which of it is missing; None if nothing is.
    numbers
        Those that stand for missing data in the aggregation.
    """
    for number in numbers:
        if math.isnan(number):
            continue
        is_number = data == number
        if (is_number if missing is None else is_number & ~missing).any():
            return f"has data that are {number}, which stands for missing data in the aggregation"
    return None


def stated_marks(variable: Variable) -> list[Any]:
    """Return the values of which attributes say that they stand for missing data."""
    marks: list[Any] = []
    for name in ("_FillValue", "missing_value"):
        attribute = variable.attributes.get(name)
        value = None if attribute is None else attribute.value
        if isinstance(value, np.ndarray) and value.dtype.names is None:
            is_read = name == "missing_value"
            marks += (_compared_as_read(variable, value) if is_read else value).tolist()
        elif isinstance(value, str):
            marks.append(value)
        elif value is not None:
            marks += list(value)
    return marks


def _compared_as_read(variable: Variable, marks: np.ndarray) -> np.ndarray:
    """Return the elements that are one of `marks` once they are read with their sign.

    ``_Unsigned`` changes the sign of ``_FillValue``, too, but not that of ``missing_value``.
    """
    dtype, read = variable.dtype.newbyteorder("="), read_as(variable)
    if read == dtype or marks.dtype.kind not in "iuf":
        return marks
    with np.errstate(invalid="ignore"):
        cast = marks.astype(read)
    stored: np.ndarray = cast[cast == marks].view(dtype)
    return stored


def marks_of(variable: Variable) -> list[Any]:
    """Return the values that stand for missing data in a variable, in the order of precedence."""
    marks = stated_marks(variable)
    if not marks and variable.nc_type in NC_DEFAULT_FILL:
        marks.append(NC_DEFAULT_FILL[variable.nc_type or ""])
    return marks


def fill_of(variable: Variable) -> Any:
    """Return what missing data of an aggregation variable are."""
    dtype = variable.dtype.newbyteorder("=")
    for mark in marks_of(variable):
        if dtype.kind == "O":
            return mark
        if isinstance(mark, str) != (dtype.kind in "SU"):
            continue
        try:
            return np.array(mark, dtype)[()]
        except (OverflowError, TypeError, ValueError):
            continue
    default = NC_DEFAULT_FILL.get(variable.nc_type or "")
    return np.zeros((), dtype)[()] if default is None else np.array(default, dtype)[()]


def array_of(
    scoped: Scoped,
    dimensions: tuple[Dimension, ...],
    fragments: Fragments,
    packing: Mapping[str, Any] | None = None,
    warning: str = "",
) -> FragmentArray:
    """Return the data of an aggregation variable, given its table."""
    variable = scoped.variable
    return FragmentArray(
        path=variable.path,
        shape=tuple(dimension.size for dimension in dimensions),
        dtype=variable.dtype.newbyteorder("="),
        fragments=fragments,
        fill=fill_of(variable),
        marks=stated_numbers(variable),
        units=scoped.text("units"),
        calendar=scoped.text("calendar"),
        packing=packing,
        read_as=read_as(variable),
        warning=warning and f"{warning}; these data are missing",
        dimensions=tuple(dimension.name for dimension in dimensions),
    )


def listed_dimensions(scoped: Scoped) -> tuple[str, list[str]]:
    """Return the attribute of CFA-0.4 and 0.5 that lists dimensions, or "", and their names."""
    for attribute in DIMENSIONS_ATTRIBUTES:
        names = scoped.text(attribute)
        if names is not None:
            return attribute, names.split()
    return "", []


def dimensions_of(scoped: Scoped, attribute: str, names: Iterable[str]) -> tuple[Dimension, ...]:
    """Find the dimensions of aggregated data that an attribute names.

    Raises
    ------
    FormatError
        If one is not there.
    """
    dimensions: list[Dimension] = []
    for name in names:
        if len(dimensions) == _MOST_DIMENSIONS:
            raise FormatError(
                scoped.variable.path,
                f"names more than {_MOST_DIMENSIONS} dimensions in {attribute}",
            )
        dimension = scoped.dimension(name)
        if dimension is None:
            raise FormatError(
                scoped.variable.path, f"names the dimension {name!r} in {attribute}, there is none"
            )
        dimensions.append(dimension)
    return tuple(dimensions)


def texts(values: np.ndarray, variable: Variable) -> np.ndarray:
    """Return the text of a term as objects: ``str``, or None where it is missing or empty.

    The last dimension of char is the length of the text.

    Raises
    ------
    FormatError
        If the values are not text.
    """
    values = np.asarray(values)
    if values.dtype.kind == "S" and values.dtype.itemsize == 1 and values.ndim:
        length = values.shape[-1]
        joined = np.ascontiguousarray(values).view(f"S{length}") if length else None
        shape = values.shape[:-1]
        values = np.zeros(shape, "S1") if joined is None else joined.reshape(shape)
    if values.dtype.kind not in "OSU":
        raise FormatError(variable.path, f"holds {values.dtype}, not text")
    none = {mark for mark in marks_of(variable) if isinstance(mark, str)}
    known: dict[Any, str | None] = {}
    result = np.empty(values.size, object)
    result[:] = [
        known[one] if one in known else known.setdefault(one, _text(one, none, variable))
        for one in values.reshape(-1).tolist()
    ]
    return result.reshape(values.shape)


def _text(value: object, none: set[str], variable: Variable) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        raise FormatError(variable.path, f"holds {type(value).__name__}, not text")
    value = value.rstrip("\0 ")  # char is padded with either
    return None if value in none else value or None


def is_netcdf(name: str) -> bool:
    """Tell whether a dialect's name of a format means netCDF, which all of them spell freely."""
    short = name.lower()
    return short in ("", "nc", "nca") or short.startswith("netcdf")


def column(values: list[Any]) -> np.ndarray:
    """Return a column of objects; equal ones are one object, and a column of one is no memory."""
    if len(values) > 1 and values.count(values[0]) == len(values):
        return constant(values[0], len(values))
    known: dict[Any, Any] = {}
    result = np.empty(len(values), object)
    result[:] = [known.setdefault(value, value) for value in values]
    return result


def constant(value: Any, count: int) -> np.ndarray:
    """Return a column that has one object everywhere, and takes no memory."""
    return np.broadcast_to(np.array(value, object), (count,))


def count_of(scoped: Scoped, grid: Iterable[int], listed: int) -> int:
    """Return how many fragments a grid has.

    Raises
    ------
    FormatError
        If there are far more than the table lists.
    """
    grid = tuple(grid)
    count = math.prod(grid)
    if count > _ALWAYS + _EACH * listed:
        shape = " x ".join(map(str, grid[:8]))
        raise FormatError(
            scoped.variable.path, f"is to have {shape} fragments, and its table lists {listed}"
        )
    return count


def refuse(
    name: str, fragments: Fragments, number: int, what: str, version: str, instead: str = ""
) -> ExportError:
    """Return the error for a fragment that a dialect cannot describe, and what to do `instead`."""
    position = fragments.position(number)
    return ExportError(name, f"its fragment {position} {what}, which {version} cannot say{instead}")


def names_in_text(
    name: str, dimensions: Iterable[tuple[str, int]], version: str, *others: str
) -> list[str]:
    """Return names of dimensions for an attribute in which blanks separate them.

    Parameters
    ----------
    others
        Names that are in such attributes, too.

    Raises
    ------
    ExportError
        If one has a blank in it.
    """
    names = [dimension for dimension, _ in dimensions]
    for one in (*names, *others):
        if len(one.split()) != 1:
            raise ExportError(
                name, f"needs the name {one!r} without blanks, as {version} separates names by them"
            )
    return names
