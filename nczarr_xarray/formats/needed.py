"""Which other variables a variable needs: by names of dimensions, and by CF's attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from nczarr_xarray.formats.cfa.dialect import Scoped
from nczarr_xarray.model import Group, Variable

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
