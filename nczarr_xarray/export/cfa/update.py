"""Appending to an aggregation, and giving a region of it new values."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.places.address import is_absolute
from nczarr_xarray.export.cfa.content import Content, Member
from nczarr_xarray.export.cfa.existing_master import ExistingMaster, keys_in
from nczarr_xarray.export.cfa.fragment_writer import Flow, flow_of, table_of
from nczarr_xarray.export.cfa.master import (
    MasterPlace,
    aggregation,
    conventions,
    dialect_called,
    plain_conventions,
)
from nczarr_xarray.export.cfa.parts import (
    PROFILE,
    Divided,
    Parts,
    as_written,
    asked_lengths,
    edges_between,
    even_edges,
    regular_edges,
)
from nczarr_xarray.export.cfa.task import CfaTask, Draft
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.dataset import group_attributes
from nczarr_xarray.export.form.rounding import as_integers
from nczarr_xarray.export.new_values import Placement, replaced_part
from nczarr_xarray.export.options import CfaOptions
from nczarr_xarray.formats.cfa.dialect import OLDEST
from nczarr_xarray.model import Attribute, Fragments, Group, Variable


def plan_update(place: MasterPlace, dataset: xr.Dataset, request: CfaOptions) -> CfaTask:
    """Plan the change of an aggregation.

    Of what is there, the master is read, and those fragments of which a region has a part.

    Raises
    ------
    NCZarrError
        If there is nothing to change, or the new values do not fit.
    """

    def draft() -> Draft:
        existing = ExistingMaster.open(place)
        with existing.opened:
            change = Change(existing, dataset, request)
            if request.region is None:
                change.append()
            else:
                change.replace_region()
            return change.draft()

    return CfaTask.plan(place, draft, replaces=True)


class Piece(NamedTuple):
    """New fragments of an aggregation.

    Parameters
    ----------
    divided
        What becomes fragments.
    first
        Place of the first one in the grid of the aggregation.
    partial
        Whether fragments hold more than what is new.
    """

    divided: Divided
    first: tuple[int, ...]
    partial: bool = False


class Change:
    """New values for an aggregation, checked against what is there.

    Parameters
    ----------
    existing
        The aggregation.
    dataset
        The new values.
    request
        What is asked for.
    """

    def __init__(self, existing: ExistingMaster, dataset: xr.Dataset, request: CfaOptions) -> None:
        self.existing = existing
        self.request = request
        version = existing.kept_version(request.version, request.format)
        self.dialect = dialect_called(version or request.version or OLDEST, existing.url)
        self._check_options()
        self.root: Group = existing.root
        self.aggregations = existing.aggregations()
        if "netCDF3" in (existing.kind, request.fragment_format):
            dataset = _narrowed(dataset, self.root)
        self.update = Placement(existing, "/", dataset)
        self.members = {member.variable.name: member for member in existing.members()}
        self.dimensions = dict(self.root.dimensions)
        self.attributes: dict[str, Attribute] = dict(self.root.attributes)
        self.pieces: dict[str, Piece] = {}

    def _check_options(self) -> None:
        for option in ("encoding", "unlimited_dims"):
            if getattr(self.request, option):
                raise ExportError(
                    self.existing.url,
                    f"{option} was given, but what exists keeps its own: leave it out",
                )

    def append(self) -> None:
        """Add the new values behind those that are there."""
        update, name = self.update, self.request.append_dim
        assert name is not None
        dimension, items, starts = update.growth(name)
        update.check()
        self.dimensions[dimension.name] = dimension
        for item, start in zip(items, starts, strict=True):
            axis = [d.path for d in item.variable.dimensions].index(dimension.path)
            if item.variable.name in self.aggregations:
                self._append_fragments(item, start, axis)
            else:
                values = self._values(item)
                member = self.members[item.variable.name]
                assert member.values is not None
                values = np.concatenate([member.values, values], axis)
                self.members[item.variable.name] = self._grown(member, values)
        # its other attributes stay
        given = {key: value for key, value in update.dataset.attrs.items() if key != "Conventions"}
        self.attributes |= group_attributes(PROFILE, "/", given, self.existing.url)

    def _append_fragments(self, item: Item, start: tuple[int, ...], axis: int) -> None:
        variable, array = self.aggregations[item.variable.name]
        fragments = array.fragments
        size = item.source.shape[axis]
        if not size:
            return
        edges, first = [], []
        for number, length in enumerate(item.source.shape):
            if number == axis:
                edges.append(start[axis] + self._edges(item, axis, fragments))
                first.append(fragments.grid[axis])
                continue
            starts, stops = fragments.starts[number], fragments.stops[number]
            at, borders = self._touched(variable, starts, stops, 0, length)
            edges.append(borders)
            first.append(at)
        divided = Divided(item, item.variable, tuple(edges), start)
        self.pieces[variable.name] = Piece(divided, tuple(first))

    def _edges(self, item: Item, axis: int, fragments: Fragments) -> np.ndarray:
        """Return the borders of new fragments along the dimension that grows, from 0."""
        names = [d.name for d in item.variable.dimensions]
        size = item.source.shape[axis]
        asked = asked_lengths(self.request.subarray_shape, names)
        if asked is not None:
            return regular_edges(size, asked[axis])
        lengths = (
            stops - starts for starts, stops in zip(fragments.starts, fragments.stops, strict=True)
        )
        others = [int(length.max()) for n, length in enumerate(lengths) if n != axis]
        dtype = item.variable.dtype
        row = math.prod(others) * (1 if dtype.kind == "O" else dtype.itemsize)
        most = max(1, self.request.most // max(1, row))
        return even_edges(size, -(-size // most))

    def replace_region(self) -> None:
        """Put the new values into the place of others."""
        update, region = self.update, self.request.region
        assert region is not None
        slices = replaced_part(update, region)
        items = update.items(update.dataset)
        starts = [update.start(item, slices) for item in items]
        update.check()
        for item, start in zip(items, starts, strict=True):
            if 0 in item.source.shape:
                continue
            if item.variable.name in self.aggregations:
                self._replace_fragments(item, start)
                continue
            member = self.members[item.variable.name]
            assert member.values is not None
            values = np.array(member.values)
            sizes = zip(start, item.source.shape, strict=True)
            values[tuple(slice(a, a + n) for a, n in sizes)] = self._values(item)
            self.members[item.variable.name] = member._replace(values=values)

    def _replace_fragments(self, item: Item, start: tuple[int, ...]) -> None:
        variable, array = self.aggregations[item.variable.name]
        fragments = array.fragments
        edges, first, whole = [], [], True
        for axis, (low, size) in enumerate(zip(start, item.source.shape, strict=True)):
            starts, stops = fragments.starts[axis], fragments.stops[axis]
            at, borders = self._touched(variable, starts, stops, low, low + size)
            edges.append(borders)
            first.append(at)
            whole &= int(borders[0]) == low and int(borders[-1]) == low + size
        divided = Divided(item, item.variable, tuple(edges), start)
        self.pieces[variable.name] = Piece(divided, tuple(first), partial=not whole)

    def _touched(
        self, variable: Variable, starts: np.ndarray, stops: np.ndarray, low: int, high: int
    ) -> tuple[int, np.ndarray]:
        try:
            return edges_between(starts, stops, low, high)
        except ValueError as error:
            raise ExportError(
                self.existing.url, f"{variable.path}: {error}; write it anew"
            ) from None

    def _values(self, item: Item) -> np.ndarray:
        """Return the new values of a variable of the master."""
        assert isinstance(item.source, xr.Variable)
        values = np.asarray(item.source.data)
        values = values if item.rounding is None else item.rounding(values)
        return as_written(values, item.variable, item.variable)

    def _grown(self, member: Member, values: np.ndarray) -> Member:
        return member._replace(variable=self._with_lengths(member.variable), values=values)

    def _with_lengths(self, variable: Variable) -> Variable:
        """Return a variable with the dimensions as they are now."""
        dimensions = tuple(self.dimensions[d.name] for d in variable.dimensions)
        array = self.existing.array(variable)
        array = replace(array, shape=tuple(d.size for d in dimensions))
        return replace(variable, dimensions=dimensions, array=array)

    def draft(self) -> Draft:
        """Return what is to be written."""
        place = self.existing.place
        coordinates = frozenset(self.update.stored.coords)
        members = [*self.members.values()]
        parts = Parts(coordinates, plain_conventions(self.attributes))
        names = place.names("netCDF4")
        flows: list[Flow] = []
        tables: list[Fragments] = []
        everything = [*members]
        for name, (before, array) in self.aggregations.items():
            fragments, piece = array.fragments, self.pieces.get(name)
            variable = replace(
                before, dimensions=tuple(self.dimensions[d.name] for d in before.dimensions)
            )
            if piece is not None:
                if fragments.values is not None:
                    raise ExportError(
                        self.existing.url,
                        f"{variable.path}: its table holds values, not fragments; write it anew",
                    )
                kind = self.request.fragment_format or self.existing.fragment_format(array)
                named = replace(names, kind=kind)  # (with the same names that are taken)
                held = self._with_lengths(variable)
                divided = piece.divided
                divided = divided._replace(item=divided.item._replace(variable=held), stored=held)
                old = self.existing.opened.reader(before) if piece.partial else None
                flow = flow_of(
                    place, divided, named, parts, members, self.dialect, piece.first, old
                )
                flows.append(flow)
                relative = self.request.relative
                if relative is None:  # as the others are, if there are any
                    known = next(filter(None, fragments.addresses.tolist()), None)
                    relative = None if known is None else not is_absolute(known)
                new = table_of(place, flow, self.dialect, relative=relative)
                fragments = fragments.with_block(new, piece.first)
            tables.append(fragments)
            everything += aggregation(variable, fragments, self.dialect)
        attributes = conventions(self.attributes, self.dialect) if tables else self.attributes
        master = Content(attributes, everything, self.dimensions.values())
        gone = self.existing.removable(keys_in(place, tables))
        version = self.existing.version
        return Draft(self.existing.kind, master, flows, gone, version=version)


def _narrowed(dataset: xr.Dataset, stored: Group) -> xr.Dataset:
    """Return integers in the types that they got when they were written as classic netCDF."""
    found = {}
    for name, variable in dataset.variables.items():
        there = stored.variables.get(str(name))
        if there is None or variable.dtype.kind not in "iu" or there.dtype.kind not in "iu":
            continue
        dtype = there.dtype.newbyteorder("=")
        if np.can_cast(variable.dtype, dtype):
            continue
        convert = partial(as_integers, dtype=dtype, path=there.path, exact=True)
        data = variable.data
        lazy = variable.chunks is not None
        data = data.map_blocks(convert, dtype=dtype) if lazy else convert(np.asarray(data))
        found[name] = variable.copy(data=data)
    return dataset.assign(found)
