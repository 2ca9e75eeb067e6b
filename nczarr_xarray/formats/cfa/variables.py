"""The aggregation variables of a dataset, whatever the dialect, before and after it is decoded."""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_xarray.model import FragmentArray, Group, Hierarchy, Variable

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
