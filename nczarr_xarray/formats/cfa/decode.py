"""From a dataset with aggregation variables to one whose variables have aggregated data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.cf import Scoped, text_in
from nczarr_xarray.formats.cfa.cf113 import Cf113
from nczarr_xarray.formats.cfa.cfa04 import Cfa04
from nczarr_xarray.formats.cfa.cfa05 import Cfa05
from nczarr_xarray.formats.cfa.cfa062 import Cfa062
from nczarr_xarray.formats.cfa.dialect import (
    DATA_CONVENTIONS,
    Decoded,
    Dialect,
    WritableDialect,
    marked,
    texts,
)
from nczarr_xarray.model import Attribute, Group, Hierarchy, Variable

#: Dialects that are written, too.
WRITABLE: tuple[WritableDialect, ...] = (Cfa062(), Cf113(), Cfa04())
#: In the order in which they are tried.
DIALECTS: tuple[Dialect, ...] = (*WRITABLE, Cfa05())


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation variable that was found.

    Parameters
    ----------
    scoped
        The variable.
    dialect
        How its table is spelled.
    terms
        Variables whose values are needed, by what the dialect calls them.
    error
        Why its table cannot be read, if so.
    """

    scoped: Scoped
    dialect: Dialect
    terms: Mapping[str, Variable]
    error: NCZarrError | None = None


def find(hierarchy: Hierarchy) -> list[Aggregation]:
    """Find the aggregation variables of a dataset, and what their tables need."""
    aggregations = []
    for group, variable in marked(hierarchy):
        dialect = next((row for row in DIALECTS if row.recognizes(variable)), None)
        if dialect is None:
            continue
        scoped = Scoped(variable, group, hierarchy.root)
        try:
            aggregations.append(Aggregation(scoped, dialect, dialect.terms(scoped)))
        except NCZarrError as error:
            aggregations.append(Aggregation(scoped, dialect, {}, error))
    return aggregations


def decode(
    hierarchy: Hierarchy,
    aggregations: list[Aggregation],
    values: Mapping[str, np.ndarray | NCZarrError],
) -> Hierarchy:
    """Return the dataset with aggregated data; the variables of the tables are left out.

    A table that cannot be read is an error of its variable.

    Parameters
    ----------
    aggregations
        By `find`.
    values
        Of all terms, or why they cannot be read, by path.
    """
    problems = list(hierarchy.problems)
    hidden = {variable.path for one in aggregations for variable in one.terms.values()}
    hidden |= {  # CFA-0.4 marks what is only there to be a fragment
        variable.path
        for variable in hierarchy.root.all_variables()
        if text_in(variable.attributes, "cf_role") == "cfa_private"
    }
    groups: set[str] = set()
    changed: dict[str, Variable] = {}
    known: dict[str, np.ndarray] = {}
    for one in aggregations:
        variable = one.scoped.variable
        try:
            decoded = _decoded(one, values, known)
        except NCZarrError as error:
            changed[variable.path] = replace(variable, error=error)
            continue
        groups |= decoded.groups
        problems += [FormatError(variable.path, problem) for problem in decoded.problems]
        attributes = {
            name: attribute
            for name, attribute in variable.attributes.items()
            if name not in decoded.attributes
        }
        changed[variable.path] = replace(
            variable,
            dimensions=decoded.dimensions,
            array=replace(decoded.array, dialect=one.dialect.name),
            attributes=attributes,
            padding=None,
            dtype=variable.dtype.newbyteorder("="),
        )
    root = _changed(hierarchy.root, changed, hidden - changed.keys(), groups)
    root = replace(root, attributes=_of_data(root.attributes))
    return replace(hierarchy, root=root, problems=tuple(problems))


def _of_data(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes of a dataset with the conventions of its data."""
    conventions = attributes.get(DATA_CONVENTIONS)
    if conventions is None:
        return attributes
    of_data = {**attributes, "Conventions": replace(conventions, name="Conventions")}
    del of_data[DATA_CONVENTIONS]
    if text_in(of_data, "Conventions") == "":
        del of_data["Conventions"]
    return of_data


def _decoded(
    one: Aggregation,
    values: Mapping[str, np.ndarray | NCZarrError],
    known: dict[str, np.ndarray],
) -> Decoded:
    """Make the table of a variable; `known` are texts by path, which variables may share."""
    if one.error is not None:
        raise one.error
    read: dict[str, np.ndarray] = {}
    for term, variable in one.terms.items():
        value = values[variable.path]
        if isinstance(value, NCZarrError):
            raise value
        if term in one.dialect.text_terms:
            if variable.path not in known:
                known[variable.path] = texts(value, variable)
            value = known[variable.path]
        read[term] = value
    return one.dialect.decode(one.scoped, read)


def _changed(
    group: Group, changed: Mapping[str, Variable], hidden: set[str], groups: set[str]
) -> Group:
    """Return a group without what only tables need: variables, and what is then of no use."""
    below = {
        name: _changed(child, changed, hidden, groups)
        for name, child in group.groups.items()
        if child.path not in groups
    }
    emptied = {
        name
        for name, child in below.items()
        if not (child.variables or child.groups or child.attributes)
        and group.groups[name].variables
    }
    variables = {
        name: changed.get(variable.path, variable)
        for name, variable in group.variables.items()
        if variable.path not in hidden
    }
    kept = {name: child for name, child in below.items() if name not in emptied}
    used = {d.path for v in variables.values() for d in v.dimensions}
    for child in kept.values():
        used |= {d.path for v in child.all_variables() for d in v.dimensions}
    lost = {
        d.path for v in group.variables.values() if v.path in hidden for d in v.dimensions
    } - used
    dimensions = {name: d for name, d in group.dimensions.items() if d.path not in lost}
    return replace(group, variables=variables, groups=kept, dimensions=dimensions)
