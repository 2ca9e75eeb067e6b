"""Appending to an aggregation, and giving a region of it new values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import DatasetNotFoundError, ExportError
from nczarr_fsspec.places.address import is_absolute
from nczarr_xarray.export.cfa.content import Content
from nczarr_xarray.export.cfa.existing_master import ExistingMaster, keys_in
from nczarr_xarray.export.cfa.fragment_writer import Flow, flow_of
from nczarr_xarray.export.cfa.growing_table import GrowingTable
from nczarr_xarray.export.cfa.master import MasterPlace, conventions, dialect_called, whole_master
from nczarr_xarray.export.cfa.parts import PROFILE, Divided, as_written, growing_lengths
from nczarr_xarray.export.cfa.task import CfaTask, Draft
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.dataset import group_attributes
from nczarr_xarray.export.form.encode import Options
from nczarr_xarray.export.form.lacking import rebuilt
from nczarr_xarray.export.form.rounding import as_integers
from nczarr_xarray.export.options import CfaOptions
from nczarr_xarray.export.placement import Placement, replaced_part
from nczarr_xarray.formats.cfa.dialect import OLDEST
from nczarr_xarray.model import Attribute, Dimension, FragmentArray, Fragments, Group, Variable


def plan_update(
    place: MasterPlace, path: str, dataset: xr.Dataset, asked: Options, request: CfaOptions
) -> CfaTask:
    """Plan the change of a group of an aggregation.

    Of what is there, the master is read, and those fragments of which a region has a part.

    Raises
    ------
    NCZarrError
        If there is nothing to change, or the new values do not fit.
    """

    def draft() -> Draft:
        existing = ExistingMaster.open(place)
        with existing.opened:
            for option, given in (
                ("encoding", asked.encoding),
                ("unlimited_dims", asked.unlimited),
            ):
                if given:
                    reason = "was given, but what exists keeps its own: leave it out"
                    raise ExportError(place.url, f"{option} {reason}")
            change = Change(existing, path, dataset, request)
            if request.region is None:
                change.append()
            else:
                change.replace_region()
            return change.draft()

    return CfaTask.plan(place, draft, replaces=True)


class Change:
    """New values for a group of an aggregation, checked against what is there.

    Parameters
    ----------
    existing
        The aggregation.
    path
        Of the group.
    dataset
        The new values.
    request
        What is asked for.
    """

    def __init__(
        self, existing: ExistingMaster, path: str, dataset: xr.Dataset, request: CfaOptions
    ) -> None:
        self.existing = existing
        self.request = request
        version = existing.kept_version(request.version, request.format)
        self.dialect = dialect_called(version or request.version or OLDEST, existing.url)
        group = existing.group(path)
        if group is None:
            raise DatasetNotFoundError(existing.url, f"has no group {path!r}; write it first")
        self.group = group
        if "netCDF3" in (existing.kind, request.fragment_format):
            dataset = _narrowed(dataset, group)
        self.update = Placement(existing, path, dataset)
        self.members = {member.variable.path: member for member in existing.members()}
        self.aggregations = existing.aggregations()
        #: the dimension that has grown
        self.grown: Dimension | None = None
        self.attributes: Mapping[str, Attribute] = group.attributes
        #: new values of aggregations, and where they begin
        self.items: dict[str, tuple[Item, tuple[int, ...]]] = {}

    def append(self) -> None:
        """Add the new values behind those that are there."""
        update, name = self.update, self.request.append_dim
        assert name is not None
        self.grown, items, starts = update.growth(name, self.request.labels)
        update.check()
        for item, start in zip(items, starts, strict=True):
            member = self.members.get(item.variable.path)
            if member is None:
                self.items[item.variable.path] = item, start
                continue
            axis = [d.path for d in item.variable.dimensions].index(self.grown.path)
            assert member.values is not None
            values = np.concatenate([member.values, self._values(item)], axis)
            variable = self._with_lengths(member.variable)
            self.members[variable.path] = member._replace(variable=variable, values=values)
        # its other attributes stay
        given = {key: value for key, value in update.dataset.attrs.items() if key != "Conventions"}
        new = group_attributes(PROFILE, update.path, given, self.existing.url)
        self.attributes = {**self.attributes, **new}

    def replace_region(self) -> None:
        """Put the new values into the place of others."""
        update, region = self.update, self.request.region
        assert region is not None
        slices = replaced_part(update, region)
        items = update.items(update.dataset)
        starts = [update.start(item, slices) for item in items]
        update.check()
        for item, start in zip(items, starts, strict=True):
            member = self.members.get(item.variable.path)
            if member is None:
                self.items[item.variable.path] = item, start
                continue
            assert member.values is not None
            values = np.array(member.values)
            sizes = zip(start, item.source.shape, strict=True)
            values[tuple(slice(a, a + n) for a, n in sizes)] = self._values(item)
            self.members[item.variable.path] = member._replace(values=values)

    def _values(self, item: Item) -> np.ndarray:
        """Return the new values of a variable of the master."""
        assert isinstance(item.source, xr.Variable)
        values = np.asarray(item.source.data)
        values = values if item.rounding is None else item.rounding(values)
        return as_written(values, item.variable, item.variable)

    def _with_lengths(self, variable: Variable) -> Variable:
        """Return a variable with the dimensions as they are now."""
        array = self.existing.array(variable)
        variable = replace(variable, dimensions=tuple(map(self._grow, variable.dimensions)))
        return replace(variable, array=replace(array, shape=variable.shape))

    def _grow(self, dimension: Dimension) -> Dimension:
        """Return a dimension as it is now."""
        same = self.grown is not None and self.grown.path == dimension.path
        return self.grown if same and self.grown is not None else dimension

    def _lengths(self, variable: Variable, array: FragmentArray) -> tuple[int, ...]:
        """Return the lengths of fragments that are not there yet."""
        own = array.chunk_shape if array.fragments.count else variable.shape
        size = 1 if variable.dtype.kind == "O" else variable.dtype.itemsize
        sizes = zip(variable.dimensions, own, strict=True)
        return growing_lengths(
            [n if d == self._grow(d) else None for d, n in sizes],
            [d.name for d in variable.dimensions],
            ["" for _ in own],
            self.request.most / size,
            self.request.subarray_shape,
        )

    def draft(self) -> Draft:
        """Return what is to be written."""
        existing, place = self.existing, self.existing.writable
        names = place.names("netCDF4")

        def changed(group: Group) -> Group:
            dimensions = {name: self._grow(d) for name, d in group.dimensions.items()}
            attributes = self.attributes if group.path == self.group.path else group.attributes
            return replace(group, dimensions=dimensions, attributes=dict(attributes))

        root = rebuilt(existing.opened.hierarchy.root, changed)
        told = root.attributes
        if self.aggregations:
            root = replace(root, attributes=conventions(told, self.dialect))
        flows: list[Flow] = []
        tables: list[Callable[[], tuple[Variable, Fragments]]] = []
        for before, array in self.aggregations.values():
            variable = replace(before, dimensions=tuple(map(self._grow, before.dimensions)))
            item, start = self.items.get(variable.path, (None, ()))
            fragments = array.fragments
            if item is None or 0 in item.source.shape:
                tables.append(partial(_as_it_is, variable, fragments))
                continue
            if fragments.values is not None:
                reason = "its table holds values, not fragments; write it anew"
                raise ExportError(existing.url, f"{variable.path}: {reason}")
            grid = GrowingTable(
                fragments, None, before.shape, self._lengths(before, array), closed=True
            )
            first, edges = grid.touched(start, item.source.shape, variable.shape)
            kind = self.request.fragment_format or existing.fragment_format(array)
            held = self._with_lengths(variable)
            flow = flow_of(
                place,
                Divided(item._replace(variable=held), held, edges, start),
                replace(names, kind=kind),  # (with the same names that are taken)
                told,
                self.members.values(),
                self.dialect,
                first,
                existing.opened.reader(before),
            )
            flows.append(flow)
            relative = self.request.relative
            if relative is None:  # as the others are, if there are any
                known = next(filter(None, fragments.addresses.tolist()), None)
                relative = None if known is None else not is_absolute(known)
            tables.append(partial(self._table, variable, grid, first, flow, relative))

        def master() -> Content:
            made = (table() for table in tables)
            return whole_master(root, self.members.values(), made, self.dialect)

        needed = keys_in(place, (table()[1] for table in tables))
        gone = existing.removable(needed)
        return Draft(existing.kind, master, flows, gone, version=existing.version)

    def _table(
        self,
        variable: Variable,
        grid: GrowingTable,
        first: tuple[int, ...],
        flow: Flow,
        relative: bool | None,
    ) -> tuple[Variable, Fragments]:
        new = flow.table(self.existing.place, self.dialect, relative=relative)
        return variable, grid.table(variable.shape, first, new)


def _as_it_is(variable: Variable, fragments: Fragments) -> tuple[Variable, Fragments]:
    return variable, fragments


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
