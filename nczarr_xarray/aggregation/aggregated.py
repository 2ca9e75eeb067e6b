"""An aggregation in the terms of the model: what its master holds, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.grid import Before, FileGrid
from nczarr_xarray.aggregation.summary import Summary
from nczarr_xarray.formats.cf import Scoped
from nczarr_xarray.formats.cfa.dialect import column, constant
from nczarr_xarray.model import (
    Attribute,
    Dimension,
    FragmentMapping,
    Fragments,
    Hierarchy,
    Record,
    Variable,
    assembled,
    borders,
    in_a_row,
)

Packing = Literal["own", "equal", "after"]


@dataclass(frozen=True, slots=True)
class Aggregated:
    """An aggregation in the terms of the model.

    Parameters
    ----------
    hierarchy
        Groups, dimensions, attributes and variables as they are in the aggregation.
    values
        Of the variables that the master holds, by path.
    tables
        Of the others, by path.
    packing
        What the variables say of packing: how their fragments are packed, each in its own way
        ("own") or all in the same ("equal"); or how the data of unpacked fragments are ("after").
    """

    hierarchy: Hierarchy
    values: Mapping[str, np.ndarray]
    tables: Mapping[str, Fragments]
    packing: Packing

    def variables(self) -> Iterator[Variable]:
        """Return all variables, parents first."""
        return self.hierarchy.root.all_variables()

    def addresses(self) -> set[str]:
        """Return the addresses of all fragments in other datasets, as the master states them."""
        found: set[str | None] = set()
        for table in self.tables.values():
            found.update(table.addresses.tolist())
            found.update(place.address for other in table.others.values() for place in other)
        return {address for address in found if address}

    def holder(self, path: str) -> Literal["master", "files"] | None:
        """Return where the data of a variable are; None if they are still to be read."""
        return "files" if path in self.tables else "master" if path in self.values else None

    def group_attributes(self) -> dict[str, Mapping[str, Attribute]]:
        """Return the attributes of groups below the root."""
        _, *groups = self.hierarchy.root.walk()
        return {group.path: group.attributes for group in groups}

    def check_dimensions(self, variables: Iterable[Variable]) -> None:
        """Raise `ExportError` if the names of dimensions would mean others than those of variables.

        An aggregation names them without their groups, and the nearest of a name is meant.
        """
        root = self.hierarchy.root
        for variable in variables:
            groups = Scoped(variable, root.find(variable.group) or root, root).groups()
            for dimension in variable.dimensions:
                near = next((g for g in groups if dimension.name in g.dimensions), None)
                if near is None or near.path != dimension.group:
                    hiding = "is in another branch" if near is None else f"is hidden in {near.path}"
                    raise ExportError(
                        variable.path,
                        f"has the dimension {dimension.path}, which {hiding}, and aggregations "
                        "name dimensions without groups: give one of them another name",
                    )

    def readdressed(self, renamed: Callable[[str], str]) -> Aggregated:
        """Return the aggregation with other addresses."""
        tables = {path: _readdressed(table, renamed) for path, table in self.tables.items()}
        return replace(self, tables=tables)

    def before(self) -> dict[str, Before]:
        """Return the blocks along each dimension; one block where no table has it.

        Raises
        ------
        ExportError
            If variables are divided at different places.
        """
        edges: dict[str, tuple[str, np.ndarray]] = {}
        alike: set[tuple[str, bytes, bytes]] = set()  # variables have mostly the same
        for variable in self.variables():
            table = self.tables.get(variable.path)
            if table is None:
                continue
            columns = zip(variable.dimensions, table.starts, table.stops, strict=True)
            for dimension, starts, stops in columns:
                key = dimension.path, starts.tobytes(), stops.tobytes()
                if key in alike:
                    continue
                alike.add(key)
                bounds = borders(starts, stops, dimension.size)
                other, known = edges.setdefault(dimension.path, (variable.path, bounds))
                if not np.array_equal(known, bounds):
                    raise ExportError(
                        variable.path,
                        f"is divided along {dimension.path} at other places than {other}; files "
                        "cannot be added to such an aggregation, make a new one",
                    )
        for variable in self.variables():
            for dimension in variable.dimensions:
                whole = np.array([0, dimension.size])
                edges.setdefault(dimension.path, (variable.path, whole))
        return {path: Before(bounds, self.values.get(path)) for path, (_, bounds) in edges.items()}


def _readdressed(table: Fragments, renamed: Callable[[str], str]) -> Fragments:
    addresses = np.empty(len(table.addresses), object)
    addresses[:] = [None if one is None else renamed(one) for one in table.addresses.tolist()]
    others = {
        number: tuple(place._replace(address=renamed(place.address)) for place in places)
        for number, places in table.others.items()
    }
    return replace(table, addresses=addresses, others=others)


# -- tables ---------------------------------------------------------------------------------------


# Tables of fragments of files whose places are known: arithmetic with columns.


@dataclass(frozen=True, slots=True)
class Tabler:
    """Makes the tables of fragments of variables.

    Parameters
    ----------
    files, addresses
        The files, and how the master names them.
    grid
        Where the files are along the dimensions.
    old
        The tables of the aggregation that the files are added to, by path of the variable.
    before
        Where the old tables are divided.
    """

    files: Sequence[Summary]
    addresses: np.ndarray
    grid: FileGrid
    old: Mapping[str, Fragments]
    before: Mapping[str, Before]
    _columns: dict[tuple[str, ...], Fragments] = field(default_factory=dict)
    _record: Record = field(init=False)

    def __post_init__(self) -> None:
        stamps = np.array([file.stamp for file in self.files], np.int64).reshape(-1, 2)
        object.__setattr__(self, "_record", Record(*stamps[self._step].T))

    def table(self, path: str, dimensions: Sequence[Dimension]) -> Fragments:
        """Return the table of a variable.

        Raises
        ------
        ExportError
            Naming a file whose place is taken.
        """
        paths = tuple(d.path for d in dimensions)
        starts, stops = [], []
        for dimension in dimensions:
            axis = self.grid.axes.get(dimension.path)
            starts.append(np.zeros(1, np.int64) if axis is None else axis.starts)
            stops.append(np.array([dimension.size], np.int64) if axis is None else axis.stops)
        bounds = tuple(starts), tuple(stops)
        old = self.old.get(path)
        if old is not None:
            return self._extended(old, path, paths, bounds)
        new = self._files(path, paths)
        if new.mappings or None in new.addresses.tolist() or not _is_constant(new.names):
            return assembled(*bounds, [(new, self._placed(paths))])
        if paths not in self._columns:
            self._columns[paths] = assembled(*bounds, [(new, self._placed(paths))])
        first = self._columns[paths]
        return replace(first, names=constant(new.names[0], first.count))

    def _files(self, path: str, paths: Sequence[str]) -> Fragments:
        """Return the fragments of a variable in the order in which later ones count."""
        known: dict[int, str | None] = {}
        for file in self.files:
            if id(file.layout) not in known:
                there = file.layout.form(path) is not None
                stored = dict(file.layout.stored).get(path, path)
                known[id(file.layout)] = stored.strip("/") if there else None
        names = [known[id(file.layout)] for file in self.files][self._step]
        addresses = self.addresses[self._step]
        if None in known.values():
            pairs = zip(addresses.tolist(), names, strict=True)
            addresses = column([None if name is None else one for one, name in pairs])
        own = column([name or "" for name in names])
        new = in_a_row(addresses, own, constant("", len(names)))
        return replace(new, mappings=self._mappings(path, paths), record=self._record)

    @property
    def _step(self) -> slice:
        """The order of files in which the one that counts at a place is the last."""
        return slice(None) if self.grid.overlap == "last" else slice(None, None, -1)

    def _placed(self, paths: tuple[str, ...]) -> np.ndarray:
        return self.grid.places(paths)[self._step]

    def _mappings(self, path: str, paths: Sequence[str]) -> dict[int, FragmentMapping]:
        """Return how fragments are mapped that are not taken as they are, by number in the order.

        Of files that overlap with others a part counts; others have dimensions in another order.
        """
        own = [one for one in paths if one not in self.grid.new]
        axes = {one: axis for one in own if (axis := self.grid.axes.get(one)) and axis.parts}
        orders: dict[int, Sequence[str]] = {}
        for file in self.files:
            if id(file.layout) not in orders:
                form = file.layout.form(path)
                is_other = form is not None and sorted(form.dimensions) == sorted(own)
                orders[id(file.layout)] = form.dimensions if form and is_other else own
        if not axes and all([*order] == own for order in orders.values()):
            return {}
        numbers = {one: self.grid.numbers[one][self._step].tolist() for one in axes}
        mappings = {}
        for at, file in enumerate(self.files[self._step]):
            order = orders[id(file.layout)]
            cut = {one: axis.parts.get(numbers[one][at]) for one, axis in axes.items()}
            part = (
                tuple(cut.get(one) or slice(None) for one in order) if any(cut.values()) else None
            )
            turned = None if [*order] == own else tuple(map(paths.index, order))
            if part or turned:
                mappings[at] = FragmentMapping(part, axes=turned)
        return mappings

    def _extended(
        self,
        old: Fragments,
        path: str,
        paths: tuple[str, ...],
        bounds: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]],
    ) -> Fragments:
        """Return a table with the fragments that there are, and the files."""
        if old.values is not None:
            raise ExportError(path, "has one value for each fragment instead of files")
        moved = self._moved(old, paths)
        places = self.grid.places(paths)
        there = np.array([address is not None for address in old.addresses.tolist()], bool)
        if len(self.grid.axes.keys() & set(paths)) == len(self.grid.axes):
            having = [file.layout.form(path) is not None for file in self.files]
            taken = np.flatnonzero(np.isin(places, moved[there]) & having)
            if len(taken):
                raise ExportError(
                    self.files[int(taken[0])].target,
                    "has the same coordinates as a file that the aggregation has already",
                )
        return assembled(*bounds, [(self._files(path, paths), self._placed(paths)), (old, moved)])

    def _moved(self, old: Fragments, paths: tuple[str, ...]) -> np.ndarray:
        """Return the new numbers of the fragments that there are, by their old ones."""
        place = np.zeros(old.count, np.int64)
        positions = np.unravel_index(np.arange(old.count), old.grid) if old.grid else ()
        for path, length, starts, position in zip(
            paths, self.grid.shape(paths), old.starts, positions, strict=True
        ):
            place *= length
            if path in self.grid.axes:
                block = np.searchsorted(self.before[path].edges, starts)
                place += self.grid.axes[path].places[block][position]
        return place


def _is_constant(column: np.ndarray) -> bool:
    return not column.strides or not column.strides[0] or len(column) == 1


# -- storing -------------------------------------------------------------------------------------
# Where the data of a variable of an aggregation are to be: in the master, or in files. Pure.


#: In the master: all values; or those of the first file, as others have the same. In files: as the
#: aggregation has them already; or of all files, by a new table.
Storing: TypeAlias = Literal["values", "first values", "old table", "table"]


def decide(
    path: str,
    along: Sequence[str],
    before: Literal["master", "files"] | None,
    *,
    is_coordinate: bool,
    is_small: bool,
    stays: bool,
) -> Storing:
    """Decide where the data of a variable are to be.

    Parameters
    ----------
    path
        Of the variable.
    along
        Its dimensions along which files differ.
    before
        Where an aggregation has the data before files are added to it; None without an aggregation.
    is_coordinate
        Whether it tells where data are.
    is_small
        Whether its values are known of all files.
    stays
        Whether the master holds it if it is the same in all files.

    Raises
    ------
    ExportError
        If the master holds it, and could not do so with the files.
    """
    can_be_held = not along or (is_coordinate and len(along) == 1)
    if before == "files":
        return "table" if along else "old table"
    if before == "master":
        if along and not is_small:
            raise ExportError(
                path,
                "is held by the aggregation itself, and cannot be read of the files: make it anew",
            )
        if can_be_held:
            return "values"
        raise ExportError(
            path, f"is held by the aggregation, and differs along {', '.join(along)}: make it anew"
        )
    if is_small and can_be_held:
        return "values"
    return "first values" if stays and not along else "table"
