"""CFA-0.5 of S3netCDF4 2: the matrix of partitions is a group of variables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nczarr_xarray.formats.cf import Scoped, packing_of
from nczarr_xarray.formats.cfa.borders import grid_of
from nczarr_xarray.formats.cfa.dialect import (
    DIMENSIONS_ATTRIBUTES,
    Decoded,
    array_of,
    dimensions_of,
    listed_dimensions,
    names_in_group,
)
from nczarr_xarray.model import Dimension, Fragments, Group, Variable

_NEEDED = ("location", "file", "ncvar")
_OTHERS = ("format", "pmdimensions")
_ATTRIBUTES = frozenset({"cf_role", "cfa_group", *DIMENSIONS_ATTRIBUTES})


class Cfa05:
    """Reads CFA-0.5. Its only other reader is S3netCDF4 2, which reads CFA-0.4 too."""

    name = "0.5"
    conventions = "CFA-0.5"
    text_terms = frozenset({"file", "ncvar", "format", "pmdimensions"})

    def recognizes(self, variable: Variable) -> bool:
        """Tell an aggregation variable by its attribute ``cfa_group``."""
        return "cfa_group" in variable.attributes

    def terms(self, scoped: Scoped) -> Mapping[str, Variable]:
        """Find the variables of the group."""
        group = _group(scoped)
        lacking = [name for name in _NEEDED if name not in group.variables]
        if lacking:
            raise scoped.error(f"needs {', '.join(lacking)} in the group {group.path}")
        names = [*_NEEDED, *(name for name in _OTHERS if name in group.variables)]
        return {name: group.variables[name] for name in names}

    def decode(self, scoped: Scoped, values: Mapping[str, np.ndarray]) -> Decoded:
        """Make a table of fragments of the variables of the group."""
        attribute, listed = listed_dimensions(scoped)
        dimensions = dimensions_of(scoped, attribute, listed)
        terms = self.terms(scoped)
        location = np.asarray(values["location"])
        ndim = len(dimensions)
        if location.dtype.kind not in "iu" or location.shape[-2:] != (ndim, 2):
            raise scoped.error(
                f"has locations of the shape {location.shape} ({location.dtype}), "
                f"integers of (..., {ndim}, 2) are expected",
            )
        shape = location.shape[:-2]
        axes = _axes(scoped, dimensions, listed, values, terms)
        if len(shape) != len(axes):
            raise scoped.error(f"has a matrix of {len(shape)} dimensions, not {len(axes)}")
        columns = {}
        for name in ("file", "ncvar", "format"):
            if name in terms:
                lines = values[name]
                if lines.shape not in ((), shape):
                    raise scoped.error(
                        f"has {name} of the shape {lines.shape}, and locations of {shape}"
                    )
                columns[name] = np.broadcast_to(lines, shape).reshape(-1)
        bounds = location.reshape(-1, ndim, 2).astype(np.int64)
        files = columns["file"]
        held = (bounds >= 0).all(axis=(1, 2)) & (bounds[..., 1] > bounds[..., 0]).all(axis=1)
        stated = np.array([one is not None for one in files.tolist()], bool)
        rows = np.flatnonzero(held | stated)
        index = np.zeros((len(rows), ndim), np.int64)
        whole = [1] * ndim
        positions = np.unravel_index(rows, shape) if shape else ()
        for axis, length, position in zip(axes, shape, positions, strict=True):
            whole[axis], index[:, axis] = length, position

        def named(row: int) -> str:
            return f"partition {index[row][axes].tolist()} of {terms['location'].path}"

        grid = grid_of(scoped, dimensions, whole, index, bounds[rows], named)
        addresses = np.empty(grid.total, object)
        addresses[grid.places] = files[rows]
        for at, row in enumerate(rows.tolist()):
            if files[row] is not None and columns["ncvar"][row] is None:
                raise scoped.error(f"{named(at)} has no ncvar")
        names, formats = (
            [text or "" for text in columns[name][rows].tolist()] if name in columns else [""]
            for name in ("ncvar", "format")
        )
        fragments = Fragments(
            grid.starts,
            grid.stops,
            addresses,
            grid.spread(names_in_group(scoped, names)),
            grid.spread(formats),
        )
        array = array_of(scoped, dimensions, fragments, packing_of(scoped.variable), grid.gaps)
        return Decoded(dimensions, array, _ATTRIBUTES, frozenset({_group(scoped).path}))


def _group(scoped: Scoped) -> Group:
    name = scoped.text("cfa_group") or ""
    above = [scoped.root] if name.startswith("/") else scoped.groups()
    groups = (group.find(name) for group in above)
    group = next((group for group in groups if group is not None), None) if name else None
    if group is None or group is scoped.root:
        raise scoped.error(f"names the group {name!r} in cfa_group, there is none")
    return group


def _axes(
    scoped: Scoped,
    dimensions: tuple[Dimension, ...],
    listed: list[str],
    values: Mapping[str, np.ndarray],
    terms: Mapping[str, Variable],
) -> list[int]:
    """Return the dimensions of the data that the matrix has, in its order."""
    if "pmdimensions" not in terms:
        return list(range(len(dimensions)))
    found = values["pmdimensions"].reshape(-1).tolist()
    names = [name for text in found if text for name in text.replace(",", " ").split()]
    if len(set(names)) != len(names) or not set(names) <= set(listed):
        raise scoped.error(f"has the pmdimensions {names!r:.200}, and the data {listed}")
    return [listed.index(name) for name in names]
