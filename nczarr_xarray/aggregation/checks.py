"""Whether files fit together: their variables, types, units and calendars; not yet their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nczarr_fsspec.errors import ExportError, UnsupportedError
from nczarr_xarray.aggregation.summary import Layout, VariableForm
from nczarr_xarray.dataset.units import Convert, conversion
from nczarr_xarray.export.form.storage import netcdf_type
from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES

#: Conversion of times is not exact: a result that is so close to one with few decimals is meant
#: to be that one. Others, such as seven hours in days, are not rounded.
DECIMALS, _NOISE = 9, 1e-11
#: Types of coordinates that may differ between files.
_NUMBERS = frozenset(NC_DEFAULT_FILL) - {"char", "string"}


def check_layouts(
    first: str,
    expected: Layout,
    target: str,
    layout: Layout,
    new: frozenset[str],
) -> None:
    """Raise if two files have variables that do not fit together.

    Parameters
    ----------
    first, expected
        The first file, and what it has.
    target, layout
        The other one.
    new
        Dimensions of the first that others do not have, for they follow each other along it.

    Raises
    ------
    ExportError
        Naming the file, the variable and the difference.
    """
    own = {form.path: form for form in layout.forms}
    there = {form.path: _without(form, new) for form in expected.forms}
    sides = (target, there.keys() - own.keys(), first), (first, own.keys() - there.keys(), target)
    for here, paths, other in sides:
        if paths:
            names = ", ".join(path.strip("/") for path in sorted(paths))
            raise ExportError(
                here,
                f"lacks {names}, which {other} has; name the variables that are wanted, or leave "
                "the file out",
            )
    for path, form in there.items():
        difference = _difference(form, own[path])
        if difference is not None:
            mine, theirs = difference
            raise ExportError(target, f"{path} {mine}, and in {first} it {theirs}")
        try:
            converter(own[path], form)
        except UnsupportedError as error:
            raise ExportError(target, f"{path}: {error.object} {error.reason}") from None
        except ValueError as error:
            raise ExportError(target, f"{path} {error} (as in {first})") from None


def promoted(expected: Layout, layouts: Sequence[Layout]) -> Layout:
    """Return a layout in which types of coordinates hold those of all files."""
    forms = []
    for form in expected.forms:
        found = (layout.form(form.path) for layout in layouts)
        types = {form.nc_type, *(own.nc_type for own in found if own is not None)}
        if len(types) > 1 and types <= _NUMBERS and form.is_coordinate and not form.packing:
            nc_type = str(netcdf_type(np.result_type(*(NC_DTYPES[one] for one in types))))
            form = form._replace(nc_type=nc_type, stored_type=nc_type)
        forms.append(form)
    return replace(expected, forms=tuple(forms))


def converter(own: VariableForm, wanted: VariableForm) -> Convert | None:
    """Return what converts values of a variable to the units of the first file; None if equal.

    Raises
    ------
    ValueError
        If they cannot be converted.
    UnsupportedError
        If that needs a package that is not installed.
    """
    if (
        own.units is None
        or wanted.units is None
        or (own.units, own.calendar) == (wanted.units, wanted.calendar)
    ):
        return None
    return conversion(own.units, own.calendar, wanted.units, wanted.calendar)


def typed(target: str, values: np.ndarray, wanted: VariableForm) -> np.ndarray:
    """Return numbers in the type that the aggregation has of them; `ExportError` if it cannot."""
    dtype = NC_DTYPES.get(wanted.stored_type)
    if dtype is None or values.dtype.kind not in "iuf" or values.dtype == dtype:
        return values
    with np.errstate(invalid="ignore"):
        found = values.astype(dtype)
        is_same = values.dtype.kind == "f" or (found.astype(values.dtype) == values).all()
    if not is_same:
        raise ExportError(
            target,
            f"has values of {wanted.path} that are no {wanted.stored_type}, the type that holds "
            "those of other files",
        )
    return found


def converted(
    target: str, values: np.ndarray, own: VariableForm, wanted: VariableForm
) -> np.ndarray:
    """Return values of a coordinate of a file in the units and the type of the aggregation.

    They keep that type if it holds them in these units.
    """
    values = typed(target, values, wanted)
    convert = converter(own, wanted)
    if convert is None:
        return values
    try:
        found = convert(values)
    except ValueError as error:
        raise ExportError(target, f"{own.path} {error}") from None
    if wanted.calendar is not None:
        rounded = np.round(found, DECIMALS)
        found = np.where(np.abs(rounded - found) <= _NOISE, rounded, found)
    if values.dtype.kind not in "iu":
        return found
    with np.errstate(invalid="ignore"):
        cast = found.astype(values.dtype)
    return cast if (cast == found).all() else found.astype(np.float64, copy=False)


def equal_values(one: np.ndarray, other: np.ndarray) -> bool:
    """Tell whether arrays are equal; a NaN is equal to another one."""
    floats = one.dtype.kind == other.dtype.kind == "f"
    return bool(np.array_equal(one, other, equal_nan=floats))


def packed_alike(own: VariableForm, wanted: VariableForm) -> bool:
    """Tell whether packed values are the same in an aggregation that is packed like `wanted`.

    In other units they would be packed anew, and rounded: packing is made for the values of a file.
    """
    if not own.packing and not wanted.packing:
        return True
    if (own.stored_type, own.packing) != (wanted.stored_type, wanted.packing):
        return False
    return converter(own, wanted) is None


def check_packing(first: str, expected: Layout, target: str, layout: Layout) -> None:
    """Raise `ExportError` if a file packs a variable otherwise than the first one does."""
    for form in expected.forms:
        own = layout.form(form.path)
        if own is not None and not packed_alike(own, form):
            raise ExportError(
                target,
                f"{form.path} is packed otherwise than in {first}, or has other units; the "
                "aggregation holds values as they are packed: make a new one",
            )


def _without(form: VariableForm, new: frozenset[str]) -> VariableForm:
    return form._replace(dimensions=tuple(d for d in form.dimensions if d not in new))


def _is_held(form: VariableForm, expected: VariableForm) -> bool:
    """Tell whether a type that holds both is that of the aggregation."""
    return (
        expected.is_coordinate
        and not expected.packing
        and {
            form.nc_type,
            expected.nc_type,
        }
        <= _NUMBERS
    )


def _difference(expected: VariableForm, form: VariableForm) -> tuple[str, str] | None:
    """Return what a variable is, and what it should be, if that is not the same."""
    if form.dimensions != expected.dimensions:
        return _dimensions(form), _dimensions(expected)
    if form.nc_type != expected.nc_type and not _is_held(form, expected):
        return f"is {form.nc_type}", f"is {expected.nc_type}"
    if (form.units is None) != (expected.units is None):
        return _units(form), _units(expected)
    if (form.calendar is None) != (expected.calendar is None):
        return _calendar(form), _calendar(expected)
    if form.is_coordinate and form.packing != expected.packing:
        return "is packed otherwise", f"has {dict(expected.packing)}"
    if form.is_coordinate and form.packing and form.units != expected.units:
        return f"is packed and has the units {form.units!r}", _units(expected)
    return None


def _dimensions(form: VariableForm) -> str:
    names = ", ".join(path.strip("/") for path in form.dimensions)
    return f"has the dimensions ({names})"


def _units(form: VariableForm) -> str:
    return "has no units" if form.units is None else f"has the units {form.units!r}"


def _calendar(form: VariableForm) -> str:
    if form.calendar is None:
        return f"has the units {form.units!r}, which are no times"
    return f"has the calendar {form.calendar!r}"
