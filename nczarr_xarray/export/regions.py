"""Which part of a dataset new values replace: slices by dimension, given or found by labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from operator import index
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.backend.compat import without_indexes
from nczarr_xarray.export.placement import Placement
from nczarr_xarray.export.write_options import RegionLike


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
