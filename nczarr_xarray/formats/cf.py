"""What CF's attributes say: how values are packed or missing, which variables belong together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import NC_DEFAULT_FILL, Attribute, Dimension, Group, Variable

#: Attributes by which values are packed.
PACKING = ("scale_factor", "add_offset", "_Unsigned")


def text_in(attributes: Mapping[str, Attribute], name: str) -> str | None:
    """Return an attribute that is text, or several texts as one; None if there is none."""
    attribute = attributes.get(name)
    if attribute is None or isinstance(attribute.value, np.ndarray):
        return None
    value = attribute.value
    # some writers end text with NUL, and write empty text as one
    return (value if isinstance(value, str) else " ".join(value)).rstrip("\0")


@dataclass(frozen=True, slots=True)
class Scoped:
    """A variable in its scope: with the groups in which names in its attributes are looked up.

    Parameters
    ----------
    variable
        With all its attributes.
    group
        The group that declares it.
    root
        Of the dataset: names may be those of the groups above.
    """

    variable: Variable
    group: Group
    root: Group

    def text(self, name: str) -> str | None:
        """Return an attribute of the variable that is one text; None if there is none."""
        return text_in(self.variable.attributes, name)

    def error(self, reason: str) -> FormatError:
        """Return an error of the variable."""
        return FormatError(self.variable.path, reason)

    def groups(self) -> list[Group]:
        """Return the group of the variable and those above it, the nearest first."""
        groups = [self.root]
        for name in filter(None, self.group.path.split("/")):
            groups.append(groups[-1].groups[name])
        return groups[::-1]

    def dimension(self, name: str) -> Dimension | None:
        """Find a dimension by its name, in the nearest group, or by its path."""
        above, _, short = name.rpartition("/")
        if above or name.startswith("/"):
            holder = self.root.find(above)
            return None if holder is None else holder.dimensions.get(short)
        near = (group.dimensions.get(name) for group in self.groups())
        return next((dimension for dimension in near if dimension is not None), None)

    def sibling(self, name: str) -> Variable | None:
        """Find a variable by its name, in the nearest group, or by its path, absolute or not."""
        above, _, short = name.rpartition("/")
        holders = [self.root] if name.startswith("/") else self.groups()
        for holder in holders:
            group = holder.find(above)
            if group is not None and short in group.variables:
                return group.variables[short]
        return None


# -- packed and missing values ------------------------------------------------------------------


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


# -- needed variables --------------------------------------------------------------------------


#: Attributes that name variables which tell where data are.
LOCATING = ("coordinates", "bounds", "climatology", "grid_mapping", "formula_terms")
#: All attributes that name variables without which data are not understood.
NAMING = (
    *LOCATING,
    *("ancillary_variables", "cell_measures", "geometry", "interior_ring", "node_coordinates"),
    *("node_count", "nodes", "part_node_count"),
)


def named(scoped: Scoped, attributes: Iterable[str] = NAMING) -> Iterator[tuple[str, Variable]]:
    """Yield the variables that some attributes of one name, each with the attribute."""
    for attribute in attributes:
        for word in (scoped.text(attribute) or "").split():
            other = scoped.sibling(word.rstrip(":"))
            if other is not None:
                yield attribute, other


def with_needed(
    wanted: Iterable[str],
    variables: Mapping[str, Variable],
    names: Mapping[str, Collection[str]],
) -> set[str]:
    """Return paths of variables with those of all that they need.

    Parameters
    ----------
    wanted
        Paths of variables.
    variables
        All variables of the dataset by path.
    names
        The paths of the variables that attributes of each one name.
    """
    pending, found = list(wanted), set[str]()
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        pending += names[path]
        pending += (d.path for d in variables[path].dimensions if d.path in variables)
    return found


def needed(root: Group, wanted: Collection[str]) -> set[str]:
    """Return paths of variables with those of all that they need.

    What a group names as coordinates, as xarray does for those of no variable, belongs to
    every variable of the group that has all dimensions of the coordinate.
    """
    variables: dict[str, Variable] = {}
    names: dict[str, set[str]] = {}
    for group in root.walk():
        itself = Variable("", group.path, (), None, np.dtype("S1"), group.attributes)
        shared = [v for _, v in named(Scoped(itself, group, root), ("coordinates",))]
        for variable in group.variables.values():
            variables[variable.path] = variable
            own = {other.path for _, other in named(Scoped(variable, group, root))}
            dimensions = set(variable.dimensions)
            own.update(v.path for v in shared if dimensions.issuperset(v.dimensions))
            names[variable.path] = own
    return with_needed(wanted, variables, names)
