"""What a dialect of aggregations is: a spelling of one table of fragments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from nczarr_xarray.model import (
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
    """

    name: str
    conventions: str

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
            Of the variables that `terms` has found, by the same names; text is ``str``, char
            variables are ``S1``.

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
    says_missing
        Whether a table can say that a fragment is missing.
    """

    plain_addresses: bool
    keeps_packing: bool
    says_missing: bool

    def encode(
        self, name: str, dimensions: tuple[tuple[str, int], ...], fragments: Fragments
    ) -> Encoded:
        """Spell a table of fragments.

        Parameters
        ----------
        name
            Of the aggregation variable, without its group. Names of terms begin with ``cfa_`` and
            end with it.
        dimensions
            Names and lengths of the dimensions of its data.

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
