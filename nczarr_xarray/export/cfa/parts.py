"""A dataset as what its master holds, and what is divided into fragments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import xarray as xr

from nczarr_xarray.export.cfa.content import Member
from nczarr_xarray.export.cfa.master import without_enum
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.dataset import Exporter
from nczarr_xarray.export.form.classic import (
    classic_attributes,
    classic_values,
    classic_variable,
    dimension_problems,
)
from nczarr_xarray.export.form.encode import Options
from nczarr_xarray.export.netcdf_file import left_out
from nczarr_xarray.export.options import SubarrayShape
from nczarr_xarray.formats.cfa.dialect import column, constant
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.formats.nczarr.values import stated_fill
from nczarr_xarray.model import ChunkedArray, Fragments, Group, Variable

#: What the documents of fragments and masters that are trees look like.
PROFILE = Profile("G2A")


class Divided(NamedTuple):
    """A variable that becomes fragments.

    Parameters
    ----------
    item
        The variable as its fragments have it, and its data.
    stored
        The same before it got the types of classic netCDF.
    edges
        Borders of the fragments to write, per dimension.
    start
        Where the data begin; fragments at the border may hold more than these.
    chunked
        As of `Member`.
    """

    item: Item
    stored: Variable
    edges: tuple[Edges, ...] = ()
    start: tuple[int, ...] = ()
    chunked: bool = False

    @property
    def grid(self) -> tuple[int, ...]:
        """Fragments along each dimension."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @property
    def blocks(self) -> tuple[Edges, ...]:
        """Borders of the blocks of data that are in one fragment each, from 0."""
        sizes = zip(self.edges, self.start, self.item.source.shape, strict=True)
        return tuple(np.clip(edges - start, 0, size) for edges, start, size in sizes)


@dataclass(slots=True)
class Parts:
    """A dataset in parts.

    Attributes
    ----------
    root
        The groups, with their dimensions and attributes.
    kept
        Variables that the master holds, with their data.
    divided
        Variables that become fragments.
    """

    root: Group
    kept: list[Divided] = field(default_factory=list)
    divided: list[Divided] = field(default_factory=list)

    def members(self) -> list[Member]:
        """Compute what the master holds."""
        sources = [one.item.source for one in self.kept]
        lazy = [s.data for s in sources if isinstance(s, xr.Variable) and s.chunks is not None]
        computed = iter(_compute(lazy))
        found = []
        for one, source in zip(self.kept, sources, strict=True):
            assert isinstance(source, xr.Variable)
            values = np.asarray(next(computed) if source.chunks is not None else source.data)
            if one.item.rounding is not None:
                values = one.item.rounding(values)
            variable = one.item.variable
            found.append(Member(variable, as_written(values, one.stored, variable), one.chunked))
        return found


def as_written(values: np.ndarray, stored: Variable, written: Variable) -> np.ndarray:
    """Return encoded values of a variable that is `stored` in the type in which it is `written`."""
    values = classic_values(values, stored, written)
    return values if written.dtype.kind in "OSU" else values.astype(written.dtype, copy=False)


def _compute(lazy: list[Any]) -> Iterable[Any]:
    if not lazy:
        return ()
    from dask.base import compute

    found: Iterable[Any] = compute(*lazy)
    return found


@dataclass(frozen=True, slots=True)
class Divider:
    """Takes datasets apart.

    Parameters
    ----------
    classic
        Whether classic netCDF is written.
    are_files
        Whether the master is a file, and whether fragments are.
    most
        Bytes that a fragment may have.
    shape
        Lengths of fragments that are asked for.
    template
        Whether dask's arrays are written later: then all of them are divided.
    """

    classic: bool
    are_files: tuple[bool, bool]
    most: int
    shape: SubarrayShape | None
    template: bool = False

    def parts(
        self,
        url: str,
        groups: Mapping[str, tuple[xr.Dataset, Options]],
        declared: Group | None = None,
    ) -> Parts:
        """Encode datasets, and decide what of them is divided.

        Parameters
        ----------
        groups
            By path, with what is asked for.
        declared
            The groups with dimensions that there are in any case.

        Raises
        ------
        ExportError
            If something cannot be written; it lists everything that was found.
        """
        exporter = Exporter(PROFILE, declared, align=True)
        if self.classic:
            groups = {path: _with_characters(*one) for path, one in groups.items()}
        exporter.problems += self._shape_problems([dataset for dataset, _ in groups.values()])
        exporter.check(url)  # the shape is needed for the rest
        for path, (dataset, options) in groups.items():
            exporter.add(path, dataset, options)
        root = exporter.contents.root
        exporter.problems += problems(root, PROFILE)
        found = Parts(root)
        if self.classic:
            root.attributes = classic_attributes("/", root.attributes, exporter.problems)
        for item in exporter.contents.items:
            self._add(found, exporter, *groups[item.variable.group], item)
        if self.classic:
            variables = [one.item.variable for one in found.kept]
            exporter.problems += dimension_problems(variables)
        exporter.check(url)
        return found

    def _add(
        self, found: Parts, exporter: Exporter, dataset: xr.Dataset, options: Options, item: Item
    ) -> None:
        variable = without_enum(item.variable)
        edges = self.edges(dataset, variable)
        later = self.template and item.is_lazy and edges is not None
        if later and stated_fill(variable) is None:
            exporter.problems.append(
                f"{variable.path}: has no _FillValue, so that what is not written yet would read "
                f"as data: give it one (encoding={{{variable.name!r}: {{'_FillValue': ...}}}}), or "
                "load it, and it is written now"
            )
        stored = variable
        array = variable.array
        assert isinstance(array, ChunkedArray)
        if self.classic:
            if array.codecs and variable.name in options.encoding:
                exporter.problems.append(
                    f"{variable.path}: classic netCDF has no compression: leave it out, or write "
                    "format='CFA4'"
                )
            try:
                variable = classic_variable(variable)
                plain = replace(array, dtype=variable.dtype, codecs=(), fill=None)
                variable = replace(variable, array=plain)
            except ValueError as error:
                exporter.problems.append(f"{variable.path}: {error}")
        elif variable.name in options.encoding and self.are_files[edges is not None]:
            shuffle = options.encoding[variable.name].get("shuffle")
            lacking = [one for one in left_out(array.codecs) if shuffle or one != "shuffle"]
            if lacking:
                exporter.problems.append(
                    f"{variable.path}: netCDF-4 files are not written with {lacking[0]} as it is "
                    "asked for: ask for zlib, or write fragment_format='NCZarr'"
                )
        chunked = _asks_for_chunks(options, variable.name)
        item = item._replace(variable=variable)
        for name in (variable.name, *(d.name for d in variable.dimensions)):
            if edges is not None and any(map(str.isspace, name)):
                exporter.problems.append(
                    f"{variable.path}: the name {name!r} has a blank, by which tables of fragments "
                    "separate names: rename it"
                )
        if edges is None:
            found.kept.append(Divided(item, stored, chunked=chunked))
        else:
            start = (0,) * len(edges)
            found.divided.append(Divided(item, stored, edges, start, chunked))

    def edges(self, dataset: xr.Dataset, variable: Variable) -> tuple[Edges, ...] | None:
        """Decide where a variable is divided; None if the master holds it."""
        shape = variable.shape
        if variable.name in dataset.coords or not shape or 0 in shape:
            return None
        names = [d.name for d in variable.dimensions]
        source = dataset.variables[variable.name]
        whole_from = source.ndim  # what is behind are the characters of texts
        asked = asked_lengths(self.shape, names[:whole_from])
        if asked is not None:
            lengths = [*asked, *shape[whole_from:]]
            return tuple(map(regular_edges, shape, lengths))
        array = variable.array
        assert isinstance(array, ChunkedArray)
        itemsize = array.dtype.itemsize
        if math.prod(shape) * itemsize <= self.most:
            whole = self.template and source.chunks is not None
            return tuple(map(regular_edges, shape, shape)) if whole else None
        axes = [
            axis_type(name, dataset[name].attrs.get("axis") if name in dataset.coords else None)
            for name in names[:whole_from]
        ]
        axes += [""] * (len(shape) - whole_from)
        counts = split_counts(shape, axes, self.most / itemsize)
        return tuple(map(even_edges, shape, counts))

    def _shape_problems(self, datasets: list[xr.Dataset]) -> list[str]:
        shape = self.shape
        if shape is None:
            return []
        lengths = [*(shape.values() if isinstance(shape, Mapping) else shape)]
        found = [
            f"subarray_shape: {length!r} is no length; write a positive integer"
            for length in lengths
            if not isinstance(length, int | np.integer) or isinstance(length, bool) or length < 1
        ]
        if isinstance(shape, Mapping):
            unknown = [name for name in shape if not any(name in one.dims for one in datasets)]
            found += [f"subarray_shape names {name!r}: no such dimension" for name in unknown]
        elif not any(v.ndim == len(lengths) for one in datasets for v in one.data_vars.values()):
            found.append(f"subarray_shape: no data variable has {len(lengths)} dimensions")
        return found


def asked_lengths(shape: SubarrayShape | None, names: list[str]) -> list[int] | None:
    """Return the lengths of fragments that are asked for along these dimensions.

    None is returned if nothing is said of them. A dimension that is not named is not divided.
    """
    if shape is None:
        return None
    if isinstance(shape, Mapping):
        given: Mapping[Any, int] = shape
        found = [int(given.get(name, np.iinfo(np.int64).max // 4)) for name in names]
        return found if any(name in given for name in names) else None
    return [int(length) for length in shape] if len(shape) == len(names) else None


def _asks_for_chunks(options: Options, name: str) -> bool:
    encoding = options.encoding.get(name, {})
    return any(encoding.get(key) is not None for key in ("chunks", "chunksizes"))


def _with_characters(dataset: xr.Dataset, options: Options) -> tuple[xr.Dataset, Options]:
    """Return a dataset, and its options, whose texts are to be stored as characters.

    dask's texts are computed: how long the longest one is decides on a dimension.
    """
    dataset, encoding = dataset.copy(), dict(options.encoding)
    for name, variable in dataset.variables.items():
        kind = variable.dtype.kind
        if kind in "OU" or (kind == "S" and variable.dtype.itemsize > 1):
            variable = variable.compute()
            variable.encoding = {**variable.encoding, "dtype": "S1"}
            dataset[name] = variable
            if name in encoding:
                encoding[name] = {**encoding[name], "dtype": "S1"}
    return dataset, options._replace(encoding=encoding)


# -- where variables are cut -----------------------------------------------------------------------
# The rule is that of S3netCDF4: latitude and longitude are divided first, then time, as long as
# fragments are too large. What is large is the largest fragment, not the average one, and borders
# are exact integers, so that every element is in one fragment.


#: Longitude, latitude, the vertical, time, any other; "" is a dimension that is never divided.
AxisType: TypeAlias = Literal["X", "Y", "Z", "T", "N", ""]

#: Borders of fragments along one dimension: int64, from 0 to its length.
Edges: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_FIELD: tuple[AxisType, ...] = ("X", "Y")
_LINEAR: tuple[AxisType, ...] = ("T", "Z", "N")
#: Letter, what a name contains, and what it begins with.
_NAMES: tuple[tuple[AxisType, str | None, str | None], ...] = (
    ("T", "time", None),
    ("Z", "level", None),
    ("Y", None, "lat"),
    ("X", None, "lon"),
)


def axis_type(name: str, attribute: object) -> AxisType:
    """Tell what a dimension is by the attribute ``axis`` of its coordinate, or by its name."""
    if isinstance(attribute, str) and attribute in (*_FIELD, *_LINEAR):
        return attribute
    for kind, inside, start in _NAMES:
        short = len(name) < 3 and name.startswith(kind.lower())
        if short or (inside and inside in name) or (start and name.startswith(start)):
            return kind
    return "N"


def split_counts(
    shape: Sequence[int],
    axes: Sequence[AxisType],
    most: float,
) -> tuple[int, ...]:
    """Decide into how many fragments each dimension is divided.

    Parameters
    ----------
    shape, axes
        Lengths and types of the dimensions.
    most
        Elements that a fragment may have.
    """
    counts = [1] * len(shape)
    while _largest(shape, counts) > most:
        wanted = _wanted(counts, axes)
        other = _LINEAR if wanted is _FIELD else _FIELD
        found = _least(counts, shape, axes, wanted)
        if found is None:
            found = _least(counts, shape, axes, other)
        if found is None:  # all that may be divided is
            break
        counts[found] += 1
    return tuple(counts)


def _wanted(counts: Sequence[int], axes: Sequence[AxisType]) -> tuple[AxisType, ...]:
    """Return the types of dimensions to divide next: horizontal ones, or the others."""

    def divided(kind: AxisType) -> int | None:
        return next((n for n, axis in zip(counts, axes, strict=True) if axis == kind), None)

    field = math.prod(divided(kind) or 1 for kind in _FIELD)
    linear = next((n for kind in _LINEAR if (n := divided(kind)) is not None), 1)
    return _FIELD if field <= linear else _LINEAR


def _least(
    counts: Sequence[int],
    shape: Sequence[int],
    axes: Sequence[AxisType],
    wanted: tuple[AxisType, ...],
) -> int | None:
    """Return the first of the least divided dimensions of these types; None if there is none."""
    able = [
        number
        for number, (count, size, axis) in enumerate(zip(counts, shape, axes, strict=True))
        if axis in wanted and count < size
    ]
    return min(able, key=counts.__getitem__, default=None)


def _largest(shape: Sequence[int], counts: Sequence[int]) -> int:
    return math.prod(-(-size // count) for size, count in zip(shape, counts, strict=True))


def growing_lengths(
    sizes: Sequence[int | None],
    names: Sequence[str],
    axes: Sequence[object],
    most: float,
    asked: SubarrayShape | None,
) -> tuple[int, ...]:
    """Return the lengths of the fragments of a variable that may grow.

    Parameters
    ----------
    sizes, names, axes
        Lengths, None for those that grow, and names of dimensions, and the attributes ``axis`` of
        their coordinates.
    most
        Elements that a fragment may have.
    asked
        Lengths that are asked for.
    """
    lengths = asked_lengths(asked, [*names])
    if lengths is not None:
        return tuple(max(1, length) for length in lengths)
    kinds = [axis_type(name, axis) for name, axis in zip(names, axes, strict=True)]
    fixed = [1 if size is None else size for size in sizes]
    counts = split_counts(fixed, kinds, most)
    parts = [-(-size // count) for size, count in zip(fixed, counts, strict=True)]
    grow = sizes.count(None)
    along = max(1, int((most / math.prod(parts)) ** (1 / grow))) if grow else 1
    return tuple(along if size is None else n for size, n in zip(sizes, parts, strict=True))


def even_edges(length: int, count: int) -> Edges:
    """Return the borders of `count` parts whose lengths differ by at most one."""
    return np.arange(count + 1, dtype=np.int64) * length // count


def regular_edges(length: int, part: int) -> Edges:
    """Return the borders of parts of the same length, of which the last may be shorter."""
    return np.append(np.arange(0, length, part, dtype=np.int64), np.int64(length))


def table(edges: Iterable[Edges], addresses: Sequence[str], name: str, kind: str) -> Fragments:
    """Return the table of fragments that lie side by side.

    Parameters
    ----------
    addresses
        In C order.
    name, kind
        `FragmentPlace.name` and `FragmentPlace.format` of all of them.
    """
    edges, count = [*edges], len(addresses)
    return Fragments(
        tuple(edge[:-1] for edge in edges),
        tuple(edge[1:] for edge in edges),
        column([*addresses]),
        constant(name, count),
        constant(kind, count),
    )
