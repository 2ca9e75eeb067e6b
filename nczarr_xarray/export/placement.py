"""Where new values of existing variables go: into a region, or behind a dimension's end."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from operator import index
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.backend.compat import named_as_stored, without_indexes
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.form.existing import StoredForms
from nczarr_xarray.export.form.lacking import EQUAL_MARK, Lacking
from nczarr_xarray.export.form.numbers import becomes_missing
from nczarr_xarray.export.options import Labels, RegionLike
from nczarr_xarray.model import ChunkedArray, Dimension, Group, Variable, join

Region = Mapping[Any, slice]


class ExistingValues(Protocol):
    """An existing dataset that gets new values."""

    @property
    def url(self) -> str:
        """How messages name it."""

    @property
    def opened(self) -> Opened:
        """The dataset in its present state."""

    def group(self, path: str) -> Group | None:
        """Return the group at `path`, unchanged."""

    def dataset(self, path: str) -> xr.Dataset:
        """Return the group at `path` for xarray."""

    def array(self, variable: Variable) -> ChunkedArray:
        """Return how the data of a variable are written; raise its error if it cannot be read."""


class Growth(NamedTuple):
    """New values that are appended.

    Attributes
    ----------
    dimension
        The one that grows, with its new length.
    items
        The variables along it.
    starts
        Where the new values of each begin.
    """

    dimension: Dimension
    items: list[Item]
    starts: list[tuple[int, ...]]


class Placement:
    """New values for variables of one group, checked against the stored dataset.

    Parameters
    ----------
    existing
        The dataset.
    path
        Path of the group.
    dataset
        The new values.
    """

    def __init__(self, existing: ExistingValues, path: str, dataset: xr.Dataset) -> None:
        self.existing = existing
        self.path = path
        self.stored = named_as_stored(existing.dataset(path))
        self.dataset = _in_stored_order(named_as_stored(dataset), self.stored)
        group = existing.group(path)
        assert group is not None  # or `existing.dataset` had raised
        self.group: Group = group
        self.forms = StoredForms(group, self.stored, existing.array)
        self.problems = self.forms.problems

    def check(self) -> None:
        """Raise `ExportError` if any problem was found."""
        if self.problems:
            reason = "cannot store these values; nothing was written"
            raise ExportError(self.existing.url, reason, dict.fromkeys(self.problems))

    def items(self, dataset: xr.Dataset) -> list[Item]:
        """Return the variables of `dataset`, encoded as the stored ones are."""
        found, lacking = self.forms.encoded(dataset), Lacking(netcdf4=False)
        for variable, source, _ in () if self.problems else found:
            marks = self.stored.variables[variable.name].encoding
            if becomes_missing(source, dataset.variables[variable.name], marks):
                lacking.note(EQUAL_MARK, variable.path)
        lacking.tell(self.existing.url)
        return [Item(*values) for values in found]

    def start(self, item: Item, region: Region) -> tuple[int, ...]:
        """Return the position of the new values in the variable."""
        found = []
        assert isinstance(item.source, xr.Variable)
        for name, size, dimension in zip(
            item.source.dims, item.source.shape, item.variable.dimensions, strict=True
        ):
            part = region.get(name, slice(0, dimension.size))
            if part.stop - part.start != size:
                self.problems.append(
                    f"{item.variable.path}: has length {size} along {name!r}, where "
                    f"{part.stop - part.start} is to be replaced"
                )
            found.append(part.start)
        return tuple(found)

    def boxes(
        self, items: list[Item], starts: list[tuple[int, ...]]
    ) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the chunks that the new values touch, by array."""
        found = {}
        for item, start in zip(items, starts, strict=True):
            array = self.existing.array(item.variable)
            found[array.path] = tuple(
                (first // chunk, -(-(first + size) // chunk))
                for first, size, chunk in zip(
                    start, item.source.shape, array.chunk_shape, strict=True
                )
            )
        return found

    # -- appending -------------------------------------------------------------

    def growth(self, name: Hashable, labels: Labels) -> Growth:
        """Return what is appended along a dimension; notes what else keeps it from that.

        Raises
        ------
        ExportError
            If that is no dimension of the new values, or of any variable there.
        """
        if name not in self.dataset.dims:
            reason = f"append_dim {name!r} is not a dimension of the new values"
            raise ExportError(self.existing.url, reason)
        if labels != "any":
            self._leave_out_known(name, labels)
        dataset = self.dataset
        dimension = self._grown(name)
        self.check()
        assert dimension is not None
        self._check_complete(dimension)
        along = [key for key, variable in dataset.variables.items() if name in variable.dims]
        for key in along:
            if dataset.variables[key].dims.count(name) > 1:
                where = join(self.path, str(key))
                self.problems.append(f"{where}: has {name!r} twice; write the whole variable anew")
        others = [key for key in dataset.variables if key not in along]
        self._check_constants(dataset[others].drop_vars(along, errors="ignore"))
        items = self.items(dataset.drop_vars(others))
        region = {name: slice(dimension.size - dataset.sizes[name], dimension.size)}
        return Growth(dimension, items, [self.start(item, region) for item in items])

    def _leave_out_known(self, name: Hashable, labels: Labels) -> None:
        """Leave out, or note, labels that are there already, or given before."""
        new, stored = (one.variables.get(name) for one in (self.dataset, self.stored))
        if new is None or stored is None or new.dims != stored.dims:
            reason = f"labels is {labels!r}, but {name!r} has none to compare; leave labels out"
            raise ExportError(self.existing.url, reason)
        both = [new, stored]
        if new.dtype.kind in "iufmM":  # labels that become the same are the same
            both = self._as_stored(name, *both) or both
        index, there = (pd.Index(one.values) for one in both)
        known = index.isin(there) | index.duplicated()
        if not known.any():
            return
        if labels == "error":
            some = ", ".join(map(str, self.dataset.indexes[name][known][:3]))
            self.problems.append(
                f"append: {known.sum():,} labels of {name!r} are there already: {some}; "
                "labels='new' leaves them out"
            )
        self.dataset = self.dataset.isel({name: np.flatnonzero(~known)})

    def _grown(self, name: Hashable) -> Dimension | None:
        """Return the dimension to append along, with its new length; None if that is impossible."""
        for variable in self.group.variables.values():
            if variable.error is None:
                names = self.forms.dimension_names(variable)
                if name in names:
                    dimension = variable.dimensions[names.index(name)]
                    return replace(dimension, size=dimension.size + self.dataset.sizes[name])
        self.problems.append(f"append_dim {name!r} is not a dimension of any variable there")
        return None

    def _check_complete(self, dimension: Dimension) -> None:
        """Note variables along a growing dimension for which there are no new values."""
        for variable in self.existing.opened.hierarchy.root.all_variables():
            along = any(d.path == dimension.path for d in variable.dimensions)
            given = variable.group == self.group.path and variable.name in self.dataset.variables
            if along and not given:
                self.problems.append(
                    f"{variable.path}: lies along {dimension.path} as well and would be left "
                    "with fill values; give its new values too"
                )

    def _check_constants(self, dataset: xr.Dataset) -> None:
        """Note variables that do not grow, but differ from the stored ones."""
        for name, variable in dataset.variables.items():
            stored: xr.Variable | None = self.stored.variables.get(name)
            where = join(self.path, str(name))
            if stored is None:
                self.problems.append(f"{where}: is not in the dataset; write it with mode='a'")
            elif not self.same_when_stored(name, variable, stored):
                self.problems.append(
                    f"{where}: differs from what is stored, and is not appended to; drop it, or "
                    "write it with mode='a'"
                )

    def same_when_stored(self, name: Hashable, new: xr.Variable, stored: xr.Variable) -> bool:
        """Tell whether values are those that are stored, or become them.

        Packing and quantization round, and text that is missing is stored as empty.
        """
        if new.equals(stored):
            return True
        encoded = self._as_stored(name, new, stored)
        return bool(encoded) and encoded[0].equals(encoded[1])

    def _as_stored(self, name: Hashable, *variables: xr.Variable) -> list[xr.Variable]:
        """Return values of a variable as they are stored; none if they cannot be."""
        forms = StoredForms(self.group, self.stored, self.existing.array)
        encoded = [
            xr.Variable(item.source.dims, (item.rounding or np.asarray)(item.source.to_numpy()))
            for variable in variables
            for item in forms.encoded(xr.Dataset({name: (variable.dims, variable.to_numpy())}))
        ]
        return [] if forms.problems else encoded


def _in_stored_order(dataset: xr.Dataset, stored: xr.Dataset) -> xr.Dataset:
    """Return new values with the dimensions of each variable in the stored order."""
    turned = {
        name: dataset[name].transpose(*old.dims)
        for name, old in stored.variables.items()
        if name in dataset.variables
        and dataset.variables[name].dims != old.dims
        and sorted(map(str, dataset.variables[name].dims)) == sorted(map(str, old.dims))
    }
    return dataset.assign(turned) if turned else dataset


def replaced_part(update: Placement, region: RegionLike) -> dict[Hashable, slice]:
    """Return a slice for every dimension that `region` names; "auto" is found by labels.

    The labels of that part are left out of `update`, for they are not changed, as in `to_zarr`.
    What is wrong is noted there.

    Raises
    ------
    ExportError
        If `region` is no region.
    """
    if region != "auto" and not isinstance(region, Mapping):
        raise ExportError(
            update.existing.url, f"region is {region!r}; it is a dict of slices, or 'auto'"
        )
    slices = _Finder(update.dataset, update.stored, update.path, update.problems).find(region)
    if region:
        _leave_out_labels(update, slices)
        _refuse_outsiders(update, slices)
    return slices


class _Finder(NamedTuple):
    """The new values, what is stored, where that is, and what is wrong with the region."""

    dataset: xr.Dataset
    stored: xr.Dataset
    path: str
    problems: list[str]

    def find(self, region: RegionLike) -> dict[Hashable, slice]:
        given: dict[Hashable, Any] = (
            dict.fromkeys(self.dataset.dims, "auto") if region == "auto" else dict(region)
        )
        found: dict[Hashable, slice] = {}
        for name, part in given.items():
            if name not in self.dataset.dims:
                self.problems.append(f"region names {name!r}, which the new values do not have")
            elif name not in self.stored.sizes:
                self.problems.append(f"region names {name!r}, which {self.path} does not have")
            elif part == "auto":
                found[name] = self._by_labels(name)
            elif not isinstance(part, slice):
                found[name] = self._wrong(name, f"{name!r} is {part!r}, not a slice or 'auto'")
            else:
                found[name] = self._checked(name, part)
        if not set(given) <= set(self.dataset.dims):  # which one was meant is not known
            found = {name: slice(0, size) for name, size in self.dataset.sizes.items()} | found
        return found

    def _checked(self, name: Hashable, part: slice) -> slice:
        size = self.stored.sizes[name]
        if part.step not in (None, 1):
            return self._wrong(name, f"{name!r} has step {part.step}; only 1 is possible")
        try:
            start = 0 if part.start is None else index(part.start)
            stop = size if part.stop is None else index(part.stop)
        except TypeError:
            return self._wrong(name, f"{part} of {name!r} has an end that is no integer")
        if not 0 <= start <= stop <= size:
            return self._wrong(name, f"{part} is not inside {name!r}, which has length {size}")
        length, new = stop - start, self.dataset.sizes[name]
        if length != new:
            reason = f"{part} has length {length} along {name!r}, the new values {new}"
            return self._wrong(name, reason)
        return slice(start, stop)

    def _by_labels(self, name: Hashable) -> slice:
        stored = self.stored.variables.get(name)
        if name not in self.dataset.indexes or stored is None or stored.dims != (name,):
            if self.dataset.sizes[name] == self.stored.sizes[name]:
                return slice(0, self.stored.sizes[name])
            return self._wrong(name, f"{name!r} has no labels to find it by; give a slice")
        labels = pd.Index(stored.values)
        if not labels.is_unique:
            return self._wrong(name, f"labels of {name!r} are there twice; give a slice")
        places = labels.get_indexer(self.dataset.indexes[name])
        if (places < 0).any():
            return self._wrong(name, f"not all labels of {name!r} are in the dataset")
        if (np.diff(places) != 1).any():
            return self._wrong(name, f"the labels of {name!r} are not in one piece there")
        return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)

    def _wrong(self, name: Hashable, reason: str) -> slice:
        """Note why no part is found, and return one that suits the new values in its place.

        So nothing more is said of their length.
        """
        self.problems.append(f"region: {reason}")
        return slice(0, self.dataset.sizes[name])


def _leave_out_labels(update: Placement, region: Mapping[Hashable, slice]) -> None:
    dataset, gone = update.dataset, []
    for name in [name for name in dataset.indexes if name in dataset.variables]:
        new, stored = dataset.variables[name], update.stored.variables.get(name)
        if stored is None or not set(new.dims) & set(region):
            continue
        part = stored.isel({dim: region[dim] for dim in stored.dims if dim in region})
        if not update.problems and not update.same_when_stored(name, new, part):
            update.problems.append(
                f"{name}: the labels are not those stored there; correct the region, or drop "
                "them (drop_vars)"
            )
        gone.append(name)
    # all at once: of the labels of several levels, xarray drops all or none
    update.dataset = without_indexes(dataset).drop_vars(gone)


def _refuse_outsiders(update: Placement, region: Mapping[Hashable, slice]) -> None:
    """Note variables that no slice of the region concerns."""
    variables = update.dataset.variables
    outside = [name for name, v in variables.items() if not set(v.dims) & set(region)]
    if outside and not set(region).isdisjoint(update.dataset.dims):  # else all are
        update.problems.append(
            f"{', '.join(map(str, outside))}: have no dimension in the region; drop them "
            "(drop_vars), or write them with mode='a'"
        )
