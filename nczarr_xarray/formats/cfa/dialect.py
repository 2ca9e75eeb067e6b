"""What a dialect of aggregations is, a spelling of one table of fragments, and what all share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.formats.cf import Scoped, fill_of, marks_of, read_as, stated_numbers
from nczarr_xarray.model import Dimension, FragmentArray, Fragments, Group, Hierarchy, Variable


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


# -- what all dialects share -------------------------------------------------------------------


#: Characters of all addresses of a table, at most: a few bytes of metadata can stand for many.
MOST_TEXT = 1 << 28
#: Fragments that a table may have in any case, and for each one that it lists.
_ALWAYS, _EACH = 1 << 20, 64

#: Of arrays of numpy, in all its versions.
_MOST_DIMENSIONS = 32

#: Attributes one of which lists the dimensions in CFA-0.4 and 0.5: the first that is there.
DIMENSIONS_ATTRIBUTES = ("cfa_dimensions", "cf_dimensions")


def names_in_group(scoped: Scoped, names: Iterable[str]) -> list[str]:
    """Return the paths of variables of fragments, which S3netCDF4 2 names without their group.

    That is called as the group of the aggregation is.
    """
    group = scoped.group.path.strip("/")
    return [f"{group}/{name}" if group and name and "/" not in name else name for name in names]


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
