"""Writing the fragments of one variable."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.versions import stamps_of
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.cfa.content import Content, Member, write_file, write_tree
from nczarr_xarray.export.cfa.master import (
    OWNER,
    MasterPlace,
    Names,
    address_of,
    as_fragments,
    plain_conventions,
)
from nczarr_xarray.export.cfa.parts import PROFILE, Divided, Edges, as_written, table
from nczarr_xarray.export.chunk_writer import Gated
from nczarr_xarray.export.options import FragmentFormat
from nczarr_xarray.formats.cf import fill_of, text_in
from nczarr_xarray.formats.cfa.dialect import WritableDialect
from nczarr_xarray.formats.nczarr.values import stated_fill
from nczarr_xarray.model import (
    Attribute,
    ChunkedArray,
    Dimension,
    Fragments,
    Record,
    Variable,
    is_below,
)

#: Attributes that name other variables of which a fragment should hold its part.
_REFERENCES = ("bounds", "climatology", "grid_mapping")


class FragmentWriter(Gated):
    """Writes blocks of a variable, each of which is a fragment. Picklable, safe in threads.

    Parameters
    ----------
    store
        The folder of the master.
    divided
        The variable; its data are not kept.
    kind
        What fragments are.
    keys
        Of the fragments, in C order.
    missing
        Keys of fragments of nothing but missing data, by shape: all of a shape are one.
    attributes
        Of the dataset.
    beside
        Variables along the dimensions of this one, of which a fragment gets its part.
    old
        Reads what fragments hold where there are no new data.
    """

    def __init__(
        self,
        store: WritableStore,
        divided: Divided,
        kind: FragmentFormat,
        keys: Sequence[str],
        missing: Mapping[tuple[int, ...], str],
        attributes: Iterable[Attribute],
        beside: Iterable[Member],
        old: VariableReader | None,
    ) -> None:
        super().__init__()
        self.store = store
        self.kind = kind
        self.keys = keys
        self.missing = missing
        self.edges: tuple[Edges, ...] = divided.edges
        self.start = divided.start
        self.old = old
        self.rounding = divided.item.rounding
        self.chunked = divided.chunked
        self.variable = divided.item.variable
        self.stored = replace(divided.stored, array=None)
        self.attributes = {a.name: a for a in attributes if a.name != "coordinates"}
        self.beside = [*beside]

    def write(
        self, values: np.ndarray, first: tuple[int, ...], *, threads: int | None = None
    ) -> int:
        """Write the fragment in which a block is; return the number of fragments written.

        A fragment of nothing but the ``_FillValue`` is not written: see `missing`.

        Parameters
        ----------
        first
            The position of the block in the data.

        Raises
        ------
        NCZarrError
            If a value cannot be stored, or the fragment not be put.
        """
        self.check_lasts(self.store.url)
        with self.gate:
            if self.rounding is not None:
                values = self.rounding(values)
            values = as_written(values, self.stored, self.variable)
            begin = tuple(a + b for a, b in zip(self.start, first, strict=True))
            position = tuple(
                int(np.searchsorted(edges, at, side="right")) - 1
                for edges, at in zip(self.edges, begin, strict=True)
            )
            extent = tuple(
                slice(int(edges[at]), int(edges[at + 1]))
                for edges, at in zip(self.edges, position, strict=True)
            )
            values = self._whole(values, begin, extent)
            if self._is_missing(values):
                return 0
            own = self._dimensions(values.shape)
            parts = dict(zip(own, extent, strict=True))
            members = [
                Member(_shortened(m.variable, own), _cut(m, parts), m.chunked) for m in self.beside
            ]
            members.append(Member(_shortened(self.variable, own), values, self.chunked))
            grid = [len(edges) - 1 for edges in self.edges]
            number = int(np.ravel_multi_index(position, grid))
            self.put_chunk(self.keys[number], Content(self.attributes, members))
        return 1

    def put_missing(self, shape: tuple[int, ...]) -> None:
        """Write the fragment of missing data of a shape: a variable without elements."""
        variable = _shortened(self.variable, self._dimensions(shape))
        array, fill = variable.array, stated_fill(variable)
        if fill is not None:  # of a tree, elements that are not there are read as this
            assert isinstance(array, ChunkedArray)
            variable = replace(variable, array=replace(array, fill=fill))
        content = Content(self.attributes, [Member(variable, None, self.chunked)])
        self.put_chunk(self.missing[shape], content)

    def _dimensions(self, shape: tuple[int, ...]) -> dict[str, Dimension]:
        """Return the dimensions of a fragment, by the path of the variable's."""
        return {
            d.path: Dimension(d.name, size, group=d.group)
            for d, size in zip(self.variable.dimensions, shape, strict=True)
        }

    def _is_missing(self, values: np.ndarray) -> bool:
        """Tell whether all elements are the ``_FillValue``, bit for bit."""
        fill = stated_fill(self.variable)
        if fill is None or values.dtype.kind not in "iuf":
            return False
        array = self.variable.array
        assert isinstance(array, ChunkedArray)
        return Encoder(replace(array, dtype=values.dtype, fill=fill, codecs=())).is_fill(values)

    def _whole(
        self, values: np.ndarray, begin: tuple[int, ...], extent: tuple[slice, ...]
    ) -> np.ndarray:
        """Return all values of a fragment, some of which are new."""
        if values.shape == tuple(part.stop - part.start for part in extent):
            return values
        assert self.old is not None
        lengths = [part.stop - part.start for part in extent]
        found = np.full(lengths, fill_of(self.variable), self.old.dtype)
        there = tuple(
            slice(part.start, min(part.stop, size))
            for part, size in zip(extent, self.old.shape, strict=True)
        )
        if all(part.start < part.stop for part in there):
            kept = self.old.read(there)
            found[tuple(map(slice, kept.shape))] = kept
        inside = zip(begin, values.shape, extent, strict=True)
        found[tuple(slice(a - part.start, a - part.start + n) for a, n, part in inside)] = values
        return found

    def put_chunk(self, key: str, content: Content) -> None:
        if self.kind == "NCZarr":
            write_tree(content, self.store.child(key), PROFILE)
        else:
            shown = f"{self.store.url}/{key}"
            fill = partial(write_file, content=content, kind=self.kind, shown=shown)
            self.store.put_file(key, fill)


def _shortened(variable: Variable, own: dict[str, Dimension]) -> Variable:
    """Return a variable with the dimensions of a fragment."""
    dimensions = tuple(own.get(d.path, replace(d, unlimited=False)) for d in variable.dimensions)
    shape = tuple(d.size for d in dimensions)
    array = variable.array
    assert isinstance(array, ChunkedArray)
    chunks = zip(array.chunk_shape, shape, strict=True)
    chunk_shape = tuple(max(1, min(chunk, size)) for chunk, size in chunks)
    array = replace(array, shape=shape, chunk_shape=chunk_shape)
    return replace(variable, dimensions=dimensions, array=array)


def _cut(member: Member, parts: Mapping[str, slice]) -> np.ndarray | None:
    if member.values is None:
        return None
    index: list[Any] = [parts.get(d.path, slice(None)) for d in member.variable.dimensions]
    found: np.ndarray = member.values[(*index, ...)]  # an array, also of a single object
    return found


def beside(variable: Variable, members: Iterable[Member]) -> list[Member]:
    """Return what a fragment of a variable should have besides it.

    These are its coordinates, and what it and these refer to, as far as the master holds it.

    Parameters
    ----------
    members
        What the master holds.
    """
    seen: dict[str, Member] = {}  # the nearest of a name
    for one in sorted(members, key=lambda one: len(one.variable.group)):
        if is_below(variable.group, one.variable.group):
            seen[one.variable.name] = one
    own = {d.path for d in variable.dimensions}
    coordinates = {d.name for d in variable.dimensions}
    coordinates |= {*(text_in(variable.attributes, "coordinates") or "").split()}
    wanted = [
        name
        for name, one in seen.items()
        if name in coordinates and {d.path for d in one.variable.dimensions} <= own
    ]
    found = dict.fromkeys(wanted)
    for owner in (variable, *(seen[name].variable for name in wanted)):
        for reference in _REFERENCES:
            words = (text_in(owner.attributes, reference) or "").replace(":", " ").split()
            found |= dict.fromkeys(word for word in words if word in seen)
    return [seen[name] for name in found if name != variable.name]


@dataclass(slots=True)
class Flow:
    """A variable whose fragments are written, and what writes them.

    Attributes
    ----------
    missing
        The numbers of those of which nothing is written.
    record
        Which versions of the files of fragments are meant: see `note_versions`.
    """

    divided: Divided
    writer: FragmentWriter
    keeps_versions: bool
    missing: set[int] = field(default_factory=set)
    record: Record | None = None
    _addresses: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """The keys of all fragments."""
        found = [*self.writer.keys]
        for number in self.missing:
            found[number] = self.writer.missing[self._shape(number)]
        return found

    @property
    def new(self) -> list[str]:
        """The keys of all fragments that may be written."""
        return [*self.writer.keys, *self.writer.missing.values()]

    def put_missing(self) -> None:
        """Write the fragments of missing data that there are."""
        for shape in {self._shape(number) for number in self.missing}:
            self.writer.put_missing(shape)

    def _shape(self, number: int) -> tuple[int, ...]:
        position = np.unravel_index(number, self.divided.grid)
        own = zip(self.divided.edges, position, strict=True)
        return tuple(int(edges[at + 1] - edges[at]) for edges, at in own)

    def table(
        self, place: MasterPlace, dialect: WritableDialect, *, relative: bool | None
    ) -> Fragments:
        """Return the table of the fragments."""
        if not self._addresses:  # once, though a table is made before and after the fragments
            self._addresses = {
                key: address_of(place, place.folder + key, dialect, relative=relative)
                for key in self.new
            }
        writer, addresses = self.writer, [self._addresses[key] for key in self.keys]
        made = table(self.divided.edges, addresses, writer.variable.name, writer.kind)
        return replace(made, record=self.record)


def note_versions(place: MasterPlace, flows: Iterable[Flow]) -> None:
    """Have tables say which versions of the fragments are meant, which are written now."""
    flows = [flow for flow in flows if flow.keeps_versions]
    keys = [*dict.fromkeys(key for flow in flows for key in flow.keys)]
    found = stamps_of([place.folder + key for key in keys], place.storage_options)
    stamps = dict(zip(keys, found, strict=True))
    for flow in flows:
        sizes, numbers = np.array([stamps[key] for key in flow.keys], np.int64).T
        flow.record = Record(sizes, numbers, place.policy.place)


def flow_of(
    place: MasterPlace,
    divided: Divided,
    names: Names,
    attributes: Mapping[str, Attribute],
    members: Iterable[Member],
    dialect: WritableDialect,
    first: tuple[int, ...] | None = None,
    old: VariableReader | None = None,
) -> Flow:
    """Return what writes the fragments of a variable.

    Parameters
    ----------
    attributes
        Of the dataset.
    members
        What the master holds: a fragment gets its part of those that it needs.
    first
        Place of the first fragment in the grid of the aggregation.
    old
        As of `FragmentWriter`.
    """
    variable, grid = divided.item.variable, divided.grid
    if len({d.name for d in variable.dimensions}) < len({d.path for d in variable.dimensions}):
        reason = "has two dimensions of one name, which tables of fragments cannot tell apart"
        raise ExportError(place.url, f"{variable.path}: {reason}: rename one")
    keys = names.keys(variable.path, first or (0,) * len(grid), grid)
    shapes = itertools.product(*(np.unique(np.diff(edges)).tolist() for edges in divided.edges))
    missing = {shape: names.missing(variable.path, shape) for shape in shapes}
    around = [one._replace(variable=_in_root(one.variable)) for one in beside(variable, members)]
    item = divided.item._replace(variable=_in_root(as_fragments(variable, dialect)))
    own = divided._replace(item=item, stored=_in_root(divided.stored))
    owner = Attribute(OWNER, "char", place.name_in_fragments)
    told = [*plain_conventions(attributes).values(), owner]
    writer = FragmentWriter(place.store, own, names.kind, keys, missing, told, around, old)
    return Flow(divided, writer, dialect.keeps_versions and names.kind != "NCZarr")


def _in_root(variable: Variable) -> Variable:
    """Return a variable as it is in a fragment, which has no groups."""
    dimensions = tuple(replace(d, group="/") for d in variable.dimensions)
    array = variable.array
    assert isinstance(array, ChunkedArray)
    return replace(
        variable, group="/", dimensions=dimensions, array=replace(array, path=variable.name)
    )
