"""What a dialect of aggregations is, a spelling of one table of fragments, and what all share."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    Attribute,
    Dimension,
    FragmentArray,
    Fragments,
    Group,
    Hierarchy,
    Variable,
)


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


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a dialect makes of an aggregation variable.

    Parameters
    ----------
    dimensions
        Of the aggregated data.
    array
        The aggregated data; `FragmentArray.opener` is not set.
    attributes
        Names of the attributes of the variable that are part of the aggregation, not of its data.
    groups
        Paths of groups that hold nothing but the table.
    problems
        What is wrong with the table and does not keep it from being read, for warnings.
    """

    dimensions: tuple[Dimension, ...]
    array: FragmentArray
    attributes: frozenset[str]
    groups: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


class Term(NamedTuple):
    """A variable of a table of fragments, as it is written.

    Attributes
    ----------
    path
        Of the variable, without a leading slash; it may be in a group.
    dimensions
        Names and lengths.
    values
        Integers, objects (text), or values of the aggregation.
    attributes
        Of the variable.
    """

    path: str
    dimensions: tuple[tuple[str, int], ...]
    values: np.ndarray
    attributes: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Encoded:
    """A table of fragments in the spelling of a dialect.

    Parameters
    ----------
    attributes
        Of the aggregation variable, which has no dimensions.
    terms
        Other variables of the master.
    """

    attributes: Mapping[str, str]
    terms: tuple[Term, ...] = ()


class Dialect(Protocol):
    """Reads one spelling of tables of fragments. Does no I/O.

    Attributes
    ----------
    name
        The version of the convention: ``"0.4"``, ``"1.13"``.
    conventions
        What a master says in ``Conventions``.
    text_terms
        Which of its terms are text, which `decode` gets as of `texts`.
    """

    name: str
    conventions: str
    text_terms: frozenset[str]

    def recognizes(self, variable: Variable) -> bool:
        """Tell an aggregation variable by its attributes."""

    def terms(self, scoped: Scoped) -> Mapping[str, Variable]:
        """Find the variables whose values `decode` needs, by what the dialect calls them.

        Raises
        ------
        FormatError
            Naming the variable and what it refers to, if that is not there.
        """

    def decode(self, scoped: Scoped, values: Mapping[str, np.ndarray]) -> Decoded:
        """Make a table of fragments of an aggregation variable.

        Parameters
        ----------
        values
            Of the variables that `terms` has found, by the same names; other text than that of
            `text_terms` is ``str``, char variables are ``S1``.

        Raises
        ------
        FormatError
            Naming the variable, the fragment, and what is wrong with it.
        """


class WritableDialect(Dialect, Protocol):
    """Writes the tables that it reads, too.

    Attributes
    ----------
    plain_addresses
        Whether addresses are paths as they are, and absolute by default, because S3netCDF4 looks
        for relative ones in the working directory. Others are URIs, and relative where they can be.
    keeps_packing
        Whether fragments are aggregated as they are packed; or else unpacked first.
    keeps_versions
        Whether its tables can say which versions of the files of fragments are meant.
    """

    plain_addresses: bool
    keeps_packing: bool
    keeps_versions: bool

    def encode(
        self,
        name: str,
        dimensions: tuple[tuple[str, int], ...],
        fragments: Fragments,
        beside: str = "",
    ) -> Encoded:
        """Spell a table of fragments.

        Parameters
        ----------
        name
            Of the aggregation variable, without its group. Names of terms begin with ``cfa_`` and
            end with it, or begin with it.
        dimensions
            Names and lengths of the dimensions of its data.
        beside
            Another variable of the group with these dimensions, whose table `is_beside` this one:
            if other readers know that, the terms that are the same are those of that one.

        Raises
        ------
        ExportError
            If the dialect cannot say what the table says.
        """


# -- variables ------------------------------------------------------------------------------------
# The aggregation variables of a dataset, whatever the dialect, before and after it is decoded.


#: One of these is an attribute of every aggregation variable.
_MARKS = frozenset({"cfa_array", "cfa_group", "aggregated_data"})
#: Says in a master which ``Conventions`` its data have, if the master has others; "" if none.
DATA_CONVENTIONS = "aggregated_conventions"


def is_master(hierarchy: Hierarchy) -> bool:
    """Tell whether what was read of a dataset is, or may be, of a master."""
    return DATA_CONVENTIONS in hierarchy.root.attributes or any(marked(hierarchy))


def marked(hierarchy: Hierarchy) -> Iterator[tuple[Group, Variable]]:
    """Yield the variables that some dialect may recognize, with their groups."""
    for group in hierarchy.root.walk():
        for variable in group.variables.values():
            if not _MARKS.isdisjoint(variable.attributes):
                yield group, variable


def aggregated(hierarchy: Hierarchy) -> Iterator[tuple[Variable, FragmentArray]]:
    """Yield the variables of a dataset that have aggregated data."""
    for variable in hierarchy.root.all_variables():
        if isinstance(variable.array, FragmentArray):
            yield variable, variable.array


# -- versions ------------------------------------------------------------------------------------
# The versions of the convention that are written, for what imports no dialect: the command line.
#
# `tests/xarray/formats/cfa/test_round_trip.py` compares them with the table of dialects.


#: The names of `nczarr_xarray.formats.cfa.decode.WRITABLE`.
VERSIONS = ("0.4", "0.6.2", "1.13")
#: What `to_cfa` writes if none is asked for, and what all else writes then.
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]


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


# -- what all dialects share -------------------------------------------------------------------


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
            raise scoped.error(
                f"names more than {_MOST_DIMENSIONS} dimensions in {attribute}",
            )
        dimension = scoped.dimension(name)
        if dimension is None:
            raise scoped.error(f"names the dimension {name!r} in {attribute}, there is none")
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
    stored = values.reshape(-1).tolist()
    known: dict[Any, str | None] = {one: _text(one, none, variable) for one in {*stored}}
    result = np.empty(values.size, object)
    result[:] = [*map(known.__getitem__, stored)]
    return result.reshape(values.shape)


def _text(value: object, none: set[str], variable: Variable) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        text = value.rstrip("\0 ")  # char is padded with either
        return None if text in none else text or None
    if value is None:
        return None
    raise FormatError(variable.path, f"holds {type(value).__name__}, not text")


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
        raise scoped.error(f"is to have {shape} fragments, and its table lists {listed}")
    return count


#: Why only CFA-0.4 can describe a fragment that has a mapping, and what to do.
MAPPED = "is not taken as it is: a part of it counts, or its dimensions are in another order"
IN_04 = "; cfa_version='0.4' can"


def refuse(
    name: str, fragments: Fragments, number: int, what: str, version: str, instead: str = ""
) -> ExportError:
    """Return the error for a fragment that a dialect cannot describe, and what to do `instead`."""
    position, address = fragments.position(number), fragments.addresses[number]
    what = f"{what} ({address})" if address else what
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
