"""Bring an aggregation up to date: find the files that changed, and what stays without them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.transport.request import Stamp
from nczarr_fsspec.versions import stamps_of
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.sources import datasets_of
from nczarr_xarray.aggregation.summary import describe
from nczarr_xarray.model import Dimension, Fragments, Group, assembled


def refreshed(
    files: list[str],
    before: Aggregated,
    policy: AddressPolicy,
    storage_options: Mapping[str, Any] | None,
) -> tuple[list[str], Aggregated | None]:
    """Find out which files are to be read to bring an aggregation up to date.

    Parameters
    ----------
    files
        Those that it is to be of; none for those that it is of, and those of its `sources`.
    policy
        What its addresses mean.
    storage_options
        Of the files.

    Returns
    -------
    list of str
        The files that are new, have changed, or have no version that is known.
    Aggregated or None
        What is left of the aggregation without these, and without those that are not among the
        files; None if all files are to be read.

    Raises
    ------
    ExportError
        If it is of something else than files.
    NCZarrError
        If it must not name a file.
    """
    targets: dict[str, str] = {}
    known: dict[str, Stamp] = {}
    for path, table in before.tables.items():
        for number, address in enumerate(table.addresses.tolist()):
            if address == "" or table.values is not None:
                raise ExportError(path, "has data in the master itself, which are of no file")
            if address is not None and address not in targets:
                where = targets[address] = policy.resolve(address)
                known[where] = table.places(number)[0].stamp
    if not files:
        new = new_files(before.tables.values(), policy, storage_options)
        files = [*dict.fromkeys([*targets.values(), *new])]
    there = [file for file in files if file in known and known[file].number]
    stamps = dict(zip(there, stamps_of(there, storage_options), strict=True))
    again = [file for file in files if file not in stamps or stamps[file] != known[file]]
    gone = {*known} - ({*files} - {*again})
    if not gone:
        return again, before
    left = None
    mappings = [one for table in before.tables.values() for one in table.mappings.values()]
    if not any(one.part for one in mappings):
        left = _without({address for address, where in targets.items() if where in gone}, before)
    if left is None:
        return files, None
    return again, _without_first(left) if again[:1] == files[:1] else left


def new_files(
    tables: Iterable[Fragments], policy: AddressPolicy, storage_options: Mapping[str, Any] | None
) -> list[str]:
    """Return what is in the sources of an aggregation (`Record.sources`), but not in that.

    Raises
    ------
    NCZarrError
        If it must not name one, or that cannot be listed.
    """
    tables = [*tables]
    sources = sources_of(tables)
    if not sources:
        return []
    there = {address for table in tables for address in table.addresses.tolist() if address}
    known = {*map(policy.resolve, there), policy.resolve(policy.shown.rpartition("/")[2])}
    found = datasets_of(map(policy.resolve, sources), storage_options)
    return [one for one in found if one not in known]


def sources_of(tables: Iterable[Fragments]) -> list[str]:
    """Return the sources of which all files are wanted."""
    records = (table.record for table in tables if table.record is not None)
    return [*dict.fromkeys(source for record in records for source in record.sources)]


def _without_first(left: Aggregated) -> Aggregated:
    """Leave out the values that are those of the first file, whatever others have."""
    blocks = left.before()
    along = {path for path, one in blocks.items() if len(one.edges) > 2}
    layout = describe("", left.hierarchy).layout
    shared = {form.path for form in layout.forms if form.is_small}
    shared |= {v.path for v in left.variables() if along & {d.path for d in v.dimensions}}
    return replace(left, values={p: v for p, v in left.values.items() if p in shared})


def _without(gone: Collection[str], before: Aggregated) -> Aggregated | None:
    """Return an aggregation without the fragments of some addresses, and what only these had.

    None if nothing is left, or if only the order of the files says where their data belong.
    """
    blocks = before.before()
    used = {path: np.zeros(len(one.edges) - 1, bool) for path, one in blocks.items()}
    stays = {path: flags.copy() for path, flags in used.items()}
    kept: dict[str, np.ndarray] = {}
    for variable in before.variables():
        table = before.tables.get(variable.path)
        if table is None:
            continue
        addresses = table.addresses.tolist()
        there = np.array([one is not None for one in addresses], bool).reshape(table.grid)
        left = np.array([one not in gone for one in addresses], bool).reshape(table.grid)
        kept[variable.path] = there & left
        for axis, dimension in enumerate(variable.dimensions):
            at = np.searchsorted(blocks[dimension.path].edges, table.starts[axis])
            others = tuple(other for other in range(there.ndim) if other != axis)
            used[dimension.path][at] |= there.any(others)
            stays[dimension.path][at] |= kept[variable.path].any(others)
    if not any(there.any() for there in kept.values()):
        return None
    elements: dict[str, np.ndarray] = {}  # which stay, along dimensions that become shorter
    for path, rest in stays.items():
        lost = used[path] & ~rest
        if lost.any():
            along = before.values.get(path)
            if along is None or along.dtype.kind not in "iuf":
                return None
            elements[path] = ~np.repeat(lost, blocks[path].lengths)
    sizes = {path: int(there.sum()) for path, there in elements.items()}
    values, tables = dict(before.values), dict(before.tables)
    for variable in before.variables():
        flags = [elements.get(d.path, np.ones(d.size, bool)) for d in variable.dimensions]
        if variable.path in tables:
            tables[variable.path] = _cut(tables[variable.path], kept[variable.path], flags)
        elif flags and variable.path in values:
            values[variable.path] = values[variable.path][np.ix_(*flags)]
    hierarchy = replace(before.hierarchy, root=_resized(before.hierarchy.root, sizes))
    return replace(before, hierarchy=hierarchy, values=values, tables=tables)


def _cut(table: Fragments, kept: np.ndarray, along: Sequence[np.ndarray]) -> Fragments:
    """Return a table of some of its fragments, of dimensions that are shorter.

    Parameters
    ----------
    kept
        Which fragments, by their place in the grid.
    along
        Which elements of each dimension stay.
    """
    starts, stops, wanted = [], [], []
    for flags, begin, end in zip(along, table.starts, table.stops, strict=True):
        before, own = np.concatenate([[0], np.cumsum(flags)]), flags[begin]
        starts.append(before[begin[own]])
        stops.append(before[end[own]])
        wanted.append(np.flatnonzero(own))
    addresses = np.array(table.addresses)
    addresses[~kept.reshape(-1)] = None
    places = np.full(table.count, -1, np.int64)
    numbers = np.arange(table.count).reshape(table.grid)[np.ix_(*wanted)] if wanted else [0]
    places[np.ravel(numbers)] = np.arange(np.size(numbers))
    shorter = replace(table, addresses=addresses)
    return assembled(tuple(starts), tuple(stops), [(shorter, places)])


def _resized(group: Group, sizes: Mapping[str, int]) -> Group:
    """Return a group whose dimensions have other sizes, by their paths."""

    def of(dimension: Dimension) -> Dimension:
        return replace(dimension, size=sizes.get(dimension.path, dimension.size))

    variables = {
        name: replace(variable, dimensions=tuple(map(of, variable.dimensions)))
        for name, variable in group.variables.items()
    }
    return replace(
        group,
        dimensions={name: of(dimension) for name, dimension in group.dimensions.items()},
        variables=variables,
        groups={name: _resized(child, sizes) for name, child in group.groups.items()},
    )
