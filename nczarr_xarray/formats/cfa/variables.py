"""The aggregation variables of a dataset, whatever the dialect, before and after it is decoded."""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_xarray.model import FragmentArray, Group, Hierarchy, Variable

#: One of these is an attribute of every aggregation variable.
_MARKS = frozenset({"cfa_array", "cfa_group", "aggregated_data"})


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
