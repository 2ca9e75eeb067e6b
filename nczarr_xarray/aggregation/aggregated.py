"""An aggregation in the terms of the model: what its master holds, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.grid import Before
from nczarr_xarray.formats.cfa.dialect import Scoped
from nczarr_xarray.model import Attribute, Fragments, Hierarchy, Variable

Packing = Literal["own", "equal", "after"]


@dataclass(frozen=True, slots=True)
class Aggregated:
    """An aggregation in the terms of the model.

    Parameters
    ----------
    hierarchy
        Groups, dimensions, attributes and variables as they are in the aggregation.
    values
        Of the variables that the master holds, by path.
    tables
        Of the others, by path.
    packing
        What the variables say of packing: how their fragments are packed, each in its own way
        ("own") or all in the same ("equal"); or how the data of unpacked fragments are ("after").
    """

    hierarchy: Hierarchy
    values: Mapping[str, np.ndarray]
    tables: Mapping[str, Fragments]
    packing: Packing

    def variables(self) -> Iterator[Variable]:
        """Return all variables, parents first."""
        return self.hierarchy.root.all_variables()

    def group_attributes(self) -> dict[str, Mapping[str, Attribute]]:
        """Return the attributes of groups below the root."""
        _, *groups = self.hierarchy.root.walk()
        return {group.path: group.attributes for group in groups}

    def check_dimensions(self, variables: Iterable[Variable]) -> None:
        """Raise `ExportError` if the names of dimensions would mean others than those of variables.

        An aggregation names them without their groups, and the nearest of a name is meant.
        """
        root = self.hierarchy.root
        for variable in variables:
            groups = Scoped(variable, root.find(variable.group) or root, root).groups()
            for dimension in variable.dimensions:
                near = next((g for g in groups if dimension.name in g.dimensions), None)
                if near is None or near.path != dimension.group:
                    hiding = "is in another branch" if near is None else f"is hidden in {near.path}"
                    raise ExportError(
                        variable.path,
                        f"has the dimension {dimension.path}, which {hiding}, and aggregations "
                        "name dimensions without groups: give one of them another name",
                    )

    def readdressed(self, renamed: Callable[[str], str]) -> Aggregated:
        """Return the aggregation with other addresses."""
        tables = {path: _readdressed(table, renamed) for path, table in self.tables.items()}
        return replace(self, tables=tables)

    def before(self) -> dict[str, Before]:
        """Return the blocks along each dimension; one block where no table has it.

        Raises
        ------
        ExportError
            If variables are divided at different places.
        """
        edges: dict[str, tuple[str, np.ndarray]] = {}
        for variable in self.variables():
            table = self.tables.get(variable.path)
            if table is None:
                continue
            columns = zip(variable.dimensions, table.starts, table.stops, strict=True)
            for dimension, starts, stops in columns:
                own = np.unique(np.concatenate(([0, dimension.size], starts, stops)))
                other, known = edges.setdefault(dimension.path, (variable.path, own))
                if not np.array_equal(known, own):
                    raise ExportError(
                        variable.path,
                        f"is divided along {dimension.path} at other places than {other}; files "
                        "cannot be added to such an aggregation, make a new one",
                    )
        for variable in self.variables():
            for dimension in variable.dimensions:
                whole = np.array([0, dimension.size])
                edges.setdefault(dimension.path, (variable.path, whole))
        return {path: Before(own, self.values.get(path)) for path, (_, own) in edges.items()}


def _readdressed(table: Fragments, renamed: Callable[[str], str]) -> Fragments:
    addresses = np.empty(len(table.addresses), object)
    addresses[:] = [None if one is None else renamed(one) for one in table.addresses.tolist()]
    others = {
        number: tuple(place._replace(address=renamed(place.address)) for place in places)
        for number, places in table.others.items()
    }
    return replace(table, addresses=addresses, others=others)
