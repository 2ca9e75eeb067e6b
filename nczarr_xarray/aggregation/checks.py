"""Whether files fit together, but for their order; and their values as a master holds them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError, UnsupportedError
from nczarr_xarray.aggregation.summary import Layout, Summary, VariableForm, is_index
from nczarr_xarray.dataset.units import Convert, conversion
from nczarr_xarray.export.form.storage import netcdf_type
from nczarr_xarray.formats.cf import fill_of, missing_in, read_as, stated_numbers, taken_for_missing
from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES, Attribute, Variable

#: Conversion of times is not exact: a result that is so close to one with few decimals is meant
#: to be that one. Others, such as seven hours in days, are not rounded.
DECIMALS, _NOISE = 9, 1e-11
#: Types of coordinates that may differ between files.
_NUMBERS = frozenset(NC_DEFAULT_FILL) - {"char", "string"}
_FILL = "missing='fill' takes them for missing data"
_PROMOTE = "types='promote' takes a type that holds both"


def differences(
    holder: Callable[[str], str],
    expected: Layout,
    layout: Layout,
    new: Collection[str],
    *,
    fills: bool,
    promotes: bool,
) -> Iterator[str]:
    """Yield why a file does not fit to what files should have: variable and difference.

    Parameters
    ----------
    holder
        Returns the first file that has a variable, or the first one of all.
    layout
        Of the file.
    new
        Dimensions that files do not have, for they follow each other along them.
    fills
        Whether a file may lack variables.
    promotes
        Whether types of data may differ.
    """
    forms = {form.path: form for form in layout.forms}
    there = {form.path: _without(form, new) for form in expected.forms}
    lacking, more = sorted(there.keys() - forms.keys()), sorted(forms.keys() - there.keys())
    if (lacking or more) and not fills:
        pairs = (("lacks", lacking), ("has", more))
        said = [f"{what} {', '.join(p.strip('/') for p in ps)}" for what, ps in pairs if ps]
        yield (
            f"{' and '.join(said)}, unlike {holder(lacking[0] if lacking else '')}; name the "
            f"variables that are wanted, or leave the file out; {_FILL}"
        )
    for path, wanted in there.items():
        own = forms.get(path)
        if own is None:
            continue
        difference = _difference(wanted, own, promotes=promotes)
        if difference is not None:
            yield f"{path} {difference[0]}, and in {holder(path)} it {difference[1]}"
            continue
        try:
            converter(own, wanted)
        except UnsupportedError as error:
            yield f"{path}: {error.object} {error.reason}"
        except ValueError as error:
            yield f"{path} {error} (as in {holder(path)})"


def promoted(expected: Layout, layouts: Sequence[Layout], *, promotes: bool) -> Layout:
    """Return a layout in which types of coordinates, and maybe of data, hold those of all files."""
    forms = []
    for form in expected.forms:
        others = (layout.form(form.path) for layout in layouts)
        types = {form.nc_type, *(other.nc_type for other in others if other is not None)}
        may = not form.packing if form.is_coordinate else promotes
        if len(types) > 1 and types <= _NUMBERS and may:
            nc_type = str(netcdf_type(np.result_type(*(NC_DTYPES[one] for one in types))))
            form = form._replace(nc_type=nc_type, stored_type=nc_type, packing=())
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
        cast = values.astype(dtype)
        is_same = values.dtype.kind == "f" or (cast.astype(values.dtype) == values).all()
    if not is_same:
        raise ExportError(
            target,
            f"has values of {wanted.path} that are no {wanted.stored_type}, the type that holds "
            "those of other files",
        )
    return cast


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
        result = convert(values)
    except ValueError as error:
        raise ExportError(target, f"{own.path} {error}") from None
    if wanted.calendar is not None:
        rounded = np.round(result, DECIMALS)
        result = np.where(np.abs(rounded - result) <= _NOISE, rounded, result)
    if values.dtype.kind not in "iu":
        return result
    with np.errstate(invalid="ignore"):
        cast = result.astype(values.dtype)
    return cast if (cast == result).all() else result.astype(np.float64, copy=False)


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


def packed_otherwise(first: str, expected: Layout, layout: Layout) -> Iterator[str]:
    """Yield which variables a file packs otherwise than the first one does."""
    for form in expected.forms:
        other = layout.form(form.path)
        if other is not None and not packed_alike(other, form):
            yield (
                f"{form.path} is packed otherwise than in {first}, or has other units; the "
                "aggregation holds values as they are packed: make a new one"
            )


def _without(form: VariableForm, new: Collection[str]) -> VariableForm:
    return form._replace(dimensions=tuple(d for d in form.dimensions if d not in new))


def _difference(
    expected: VariableForm, form: VariableForm, *, promotes: bool
) -> tuple[str, str] | None:
    """Return what a variable is, and what it should be, if that is not the same."""
    if sorted(form.dimensions) != sorted(expected.dimensions):
        return _dimensions(form), _dimensions(expected)
    types = {form.nc_type, expected.nc_type}
    may = not expected.packing if expected.is_coordinate else promotes
    if len(types) > 1 and not (may and types <= _NUMBERS):
        hint = "" if expected.is_coordinate or not types <= _NUMBERS else f"; {_PROMOTE}"
        return f"is {form.nc_type}", f"is {expected.nc_type}{hint}"
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


# -- held values ----------------------------------------------------------------------------------


# Values of one file as a master holds them: in its units, and with its mark of missing data.

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
        held = converted(target, values, own, wanted)
    elif missing.all():
        return np.full(values.shape, fill_of(variable))
    else:  # a number that stands for missing data has no units
        known = np.where(missing, values[~missing][0], values)
        held = converted(target, known, own, wanted)
        held = np.where(missing, fill_of(variable), held)
    reason = taken_for_missing(held, missing, marks)
    if reason is not None:
        raise ExportError(target, f"{wanted.path} {reason}")
    return held


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
    read = [
        (path, file.value(path)) for file in files for path in double & file.layout.small.keys()
    ]
    everything = [*read, *((path, held[path]) for path in double & held.keys())]
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
        name: Attribute(name, nc_type, attribute.value.astype(dtype))
        for name in sorted(MARKS)
        if (attribute := variable.attributes.get(name)) is not None
        and isinstance(attribute.value, np.ndarray)
        and attribute.value.dtype.kind in "iuf"
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
    dtype = variable.dtype.newbyteorder("=")
    stored = NC_DTYPES.get(unmarked or "")
    if stored is None or dtype.kind == "f" or stored.itemsize != dtype.itemsize:
        unmarked, stored = netcdf_type(read_as(variable)), read_as(variable)
    return _filled(variable, np.array(NC_DEFAULT_FILL[str(unmarked)], stored).view(dtype))


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
    kept = {k: attribute for k, attribute in variable.attributes.items() if k not in MARKS}
    return replace(
        variable, attributes={**kept, "_FillValue": Attribute("_FillValue", nc_type, value)}
    )
