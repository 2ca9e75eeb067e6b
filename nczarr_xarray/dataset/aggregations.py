"""Find the aggregation variables of an open dataset, and read the tables of their fragments."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.dataset.fragment_opener import Opener, Opening
from nczarr_xarray.dataset.fragments import AggregationReaders
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.formats.cfa.decode import decode, find
from nczarr_xarray.formats.cfa.variables import aggregated, is_master
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import FragmentArray, Hierarchy


def with_aggregations(
    opened: Opened,
    options: OpenOptions,
    read: Callable[[OpenOptions], Hierarchy],
    opener: Opener,
    master: Any,
) -> Opened:
    """Return an open dataset whose aggregation variables have the data of their fragments.

    Parameters
    ----------
    read
        Reads the metadata again, with other options: a table may be in another group.
    opener
        Opens fragments.
    master
        What the caller opens, by which relative addresses are understood.
    """
    found = find(opened.hierarchy)
    if not is_master(opened.hierarchy):
        return opened
    if not (options.tree and not options.path) and any(one.error for one in found):
        everything = replace(options, group=None, tree=True, only=None)
        opened = replace(opened, hierarchy=read(everything))
        found = find(opened.hierarchy)
    terms = {variable.path: variable for one in found for variable in one.terms.values()}
    values = opened.read_many([(variable, None) for variable in terms.values()])
    hierarchy = decode(opened.hierarchy, found, dict(zip(terms, values, strict=True)))
    own = _Own(opened, hierarchy)
    allow = options.allow
    if allow is None and not isinstance(master, (str, os.PathLike)):
        allow = []  # a file that is open may be the copy that a cache has of a remote one
    policy = replace(options, allow=allow).policy(master, opened.store)
    datasets = AggregationReaders(own, opener, policy, options.depth)
    for variable, array in aggregated(hierarchy):
        variable.array = replace(array, opener=datasets)
    return replace(opened, hierarchy=hierarchy)


class _Own:
    """Opens the fragments that are variables of the master itself. Picklable."""

    def __init__(self, opened: Opened, decoded: Hierarchy) -> None:
        self._url = opened.store.url
        names: set[str] = set()
        for _, array in aggregated(decoded):
            names |= _names_of_own(array)
        variables = {one.path: one for one in opened.hierarchy.root.all_variables()}
        self._variables = {
            name: (opened.reader(variables[f"/{name}"]), variables[f"/{name}"])
            for name in names
            if f"/{name}" in variables
        }

    def __call__(self, name: str) -> Opening:
        found = self._variables.get(name.strip("/"))
        if found is None:
            raise FormatError(self._url, f"has no variable {name!r}, which is to be a fragment")
        reader, variable = found
        return Opening(reader, variable)


def _names_of_own(array: FragmentArray) -> set[str]:
    fragments = array.fragments
    names = {
        name.strip("/")
        for address, name in zip(fragments.addresses, fragments.names, strict=True)
        if address == ""
    }
    for others in fragments.others.values():
        names |= {place.name.strip("/") for place in others if not place.address}
    return names
