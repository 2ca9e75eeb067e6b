"""Writing the fragments of one variable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.keystore import WritableStore
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.cfa.content import (
    Content,
    Member,
    write_file,
    write_tree,
)
from nczarr_xarray.export.cfa.master import (
    OWNER,
    MasterPlace,
    Names,
    address_of,
    as_fragments,
)
from nczarr_xarray.export.cfa.parts import PROFILE, Divided, Edges, Parts, as_written, table
from nczarr_xarray.export.chunk_writer import Gated
from nczarr_xarray.export.options import FragmentFormat
from nczarr_xarray.formats.cfa.dialect import WritableDialect
from nczarr_xarray.model import Attribute, ChunkedArray, Dimension, Fragments, Variable

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
        attributes: Iterable[Attribute],
        beside: Iterable[Member],
        old: VariableReader | None,
    ) -> None:
        super().__init__()
        self.store = store
        self.kind = kind
        self.keys = keys
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
            own = {
                d.path: Dimension(d.name, size, group=d.group)
                for d, size in zip(self.variable.dimensions, values.shape, strict=True)
            }
            parts = dict(zip(own, extent, strict=True))
            members = [
                Member(_shortened(m.variable, own), _cut(m, parts), m.chunked) for m in self.beside
            ]
            members.append(Member(_shortened(self.variable, own), values, self.chunked))
            grid = [len(edges) - 1 for edges in self.edges]
            number = int(np.ravel_multi_index(position, grid))
            self.put_chunk(self.keys[number], Content(self.attributes, members))
        return 1

    def _whole(
        self, values: np.ndarray, begin: tuple[int, ...], extent: tuple[slice, ...]
    ) -> np.ndarray:
        """Return all values of a fragment, some of which are new."""
        if values.shape == tuple(part.stop - part.start for part in extent):
            return values
        assert self.old is not None
        found = np.array(self.old.read(extent))
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


def beside(
    variable: Variable, members: Sequence[Member], coordinates: Collection[Any]
) -> list[Member]:
    """Return what a fragment of a variable should have besides it.

    These are its coordinates, and what it and these refer to, as far as the master holds it.

    Parameters
    ----------
    members
        What the master holds.
    coordinates
        Names of the coordinates among them.
    """
    by_name = {member.variable.name: member for member in members}
    own = {d.path for d in variable.dimensions}
    wanted = [
        name
        for name in by_name
        if name in coordinates and {d.path for d in by_name[name].variable.dimensions} <= own
    ]
    found = dict.fromkeys(wanted)
    for one in (variable, *(by_name[name].variable for name in wanted)):
        for reference in _REFERENCES:
            attribute = one.attributes.get(reference)
            if attribute is not None and isinstance(attribute.value, str):
                words = attribute.value.replace(":", " ").split()
                found |= dict.fromkeys(word for word in words if word in by_name)
    return [by_name[name] for name in found if name != variable.name]


class Flow(NamedTuple):
    """A variable whose fragments are written, and what writes them."""

    divided: Divided
    writer: FragmentWriter


def table_of(
    place: MasterPlace, flow: Flow, dialect: WritableDialect, *, relative: bool | None
) -> Fragments:
    """Return the table of the fragments that are written of a variable."""
    writer = flow.writer
    addresses = [
        address_of(place, place.folder + key, dialect, relative=relative) for key in writer.keys
    ]
    return table(flow.divided.edges, addresses, writer.variable.name, writer.kind)


def flow_of(
    place: MasterPlace,
    divided: Divided,
    names: Names,
    parts: Parts,
    members: list[Member],
    dialect: WritableDialect,
    first: tuple[int, ...] | None = None,
    old: VariableReader | None = None,
) -> Flow:
    """Return what writes the fragments of a variable.

    Parameters
    ----------
    first
        Place of the first fragment in the grid of the aggregation.
    old
        As of `FragmentWriter`.
    """
    variable, grid = divided.item.variable, divided.grid
    keys = names.keys(variable.name, first or (0,) * len(grid), grid)
    around = beside(variable, members, parts.coordinates)
    item = divided.item._replace(variable=as_fragments(variable, dialect))
    own = divided._replace(item=item)
    owner = Attribute(OWNER, "char", place.name_in_fragments)
    attributes = [*parts.attributes.values(), owner]
    writer = FragmentWriter(place.store, own, names.kind, keys, attributes, around, old)
    return Flow(divided, writer)
