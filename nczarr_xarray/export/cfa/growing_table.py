"""The fragments of a variable that changes: where they are, and which are written. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.export.cfa.parts import Edges
from nczarr_xarray.model import Attribute, Fragments, Variable, assembled

Position = tuple[int, ...]

#: Attributes by which what a fragment holds is understood: it has them, too.
_UNDERSTOOD_BY = ("units", "calendar", "scale_factor", "add_offset", "_Unsigned", "missing_value")


class PutFragment(NamedTuple):
    """A fragment that was written.

    Attributes
    ----------
    key
        Of the file, or of the tree.
    table
        The table that holds nothing but this fragment.
    """

    key: str
    table: Fragments


class GrowingTable:
    """A grid of fragments that grows with its variable, and the tables of those that are written.

    A fragment keeps its place in the grid; behind the last one along a dimension there are others.

    Parameters
    ----------
    before
        The table of the last commit; None for a new variable.
    told
        What `understood` returns of its variable.
    sizes
        The present lengths of the dimensions, which each method is told.
    lengths
        Of fragments that are not there yet, per dimension.
    closed
        Whether the last fragment of `before` must not become longer.
    """

    def __init__(
        self,
        before: Fragments | None,
        told: Any,
        sizes: Sequence[int],
        lengths: Sequence[int],
        *,
        closed: bool,
    ) -> None:
        self.before = before
        self.lengths = lengths
        #: fragments that are put and not committed, and what was told of their variable
        self.new: dict[Position, tuple[PutFragment, Any]] = {}
        #: where fragments begin, per dimension; behind the last one there is room for one more
        self.starts = [
            _begins(before, axis, size, lengths[axis], closed=closed)
            for axis, size in enumerate(sizes)
        ]
        self._told = told

    def cover(self, sizes: Sequence[int]) -> None:
        """Have fragments for all of the variable."""
        for axis, (size, length) in enumerate(zip(sizes, self.lengths, strict=True)):
            starts = self.starts[axis]
            if starts[-1] + length < size:
                more = np.arange(starts[-1] + length, size, length)
                self.starts[axis] = np.append(starts, more)

    def end_at(self, position: Position, sizes: Sequence[int], grows: Sequence[bool]) -> None:
        """Have a fragment end where the variable does, if it is the last along what grows."""
        for axis, (number, size) in enumerate(zip(position, sizes, strict=True)):
            starts, length = self.starts[axis], self.lengths[axis]
            is_last = number == len(starts) - 1 and grows[axis]
            if is_last and starts[-1] < size < starts[-1] + length:
                self.starts[axis] = np.append(starts, size)

    def extent(self, position: Position, sizes: Sequence[int]) -> tuple[slice, ...]:
        """Return what of the variable a fragment holds."""
        found = []
        for axis, (number, size) in enumerate(zip(position, sizes, strict=True)):
            starts = self.starts[axis]
            start = int(starts[number])
            is_last = number == len(starts) - 1
            end = start + self.lengths[axis] if is_last else int(starts[number + 1])
            found.append(slice(start, min(end, size)))
        return tuple(found)

    def touched(
        self, begin: Sequence[int], shape: Sequence[int], sizes: Sequence[int]
    ) -> tuple[Position, tuple[Edges, ...]]:
        """Return the fragments of which a region has a part: the first one, and their borders."""
        self.cover(sizes)
        first, edges = [], []
        own = zip(self.starts, self._stops(sizes), begin, shape, strict=True)
        for starts, stops, low, length in own:
            at = int(np.searchsorted(starts, low, side="right")) - 1
            end = int(np.searchsorted(starts, low + length))
            first.append(at)
            edges.append(np.append(starts[at:end], stops[end - 1]))
        return tuple(first), tuple(edges)

    # -- what is written --------------------------------------------------------------------------

    def stale(self, variable: Variable, sizes: Sequence[int]) -> list[Position]:
        """Return which fragments have to be written anew.

        Their attributes say other things of what they hold than `variable` does now, or they are
        shorter than the grid has them.
        """
        told = understood(variable)
        self.cover(sizes)
        stops = self._stops(sizes)
        found = [
            position
            for position, (put, before) in self.new.items()
            if before != told or _is_short(put.table, (0,) * len(position), position, stops)
        ]
        table = self.before
        if table is None:
            return found
        at = self._places(table)
        same = all(
            np.array_equal(own, stop[there])
            for own, stop, there in zip(table.stops, stops, at, strict=True)
        )
        changes = not (same and self._told == told)
        for number, address in enumerate(table.addresses.tolist() if changes else ()):
            if address is None:
                continue
            place = table.position(number)
            position = tuple(int(along[n]) for along, n in zip(at, place, strict=True))
            if position in self.new:
                continue
            if self._told != told or _is_short(table, place, position, stops):
                found.append(position)
        return found

    def missing(self, sizes: Sequence[int]) -> list[list[Position]]:
        """Return the fragments that are not there, those of each shape together."""
        table = self.table(sizes)
        found: dict[Position, list[Position]] = {}
        for number, address in enumerate(table.addresses.tolist()):
            if address is None:
                shape = tuple(stop - start for start, stop in table.extent(number))
                found.setdefault(shape, []).append(table.position(number))
        return [*found.values()]

    def _within(self, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return where fragments begin, of those in which there are elements."""
        own = zip(self.starts, sizes, strict=True)
        return [starts[: int(np.searchsorted(starts, size))] for starts, size in own]

    def _stops(self, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return where fragments end, per dimension."""
        own = zip(self.starts, self.lengths, sizes, strict=True)
        return [
            np.minimum(np.append(starts[1:], starts[-1] + length), size)
            for starts, length, size in own
        ]

    def _places(self, table: Fragments) -> list[np.ndarray]:
        """Return where the fragments of a table are in the grid, per dimension."""
        return [np.searchsorted(a, b) for a, b in zip(self.starts, table.starts, strict=True)]

    def note(self, position: Position, put: PutFragment, variable: Variable) -> None:
        """Note that a fragment is put."""
        self.new[position] = put, understood(variable)

    def table(
        self, sizes: Sequence[int], first: Position = (), block: Fragments | None = None
    ) -> Fragments:
        """Return the table of all fragments that are written.

        Parameters
        ----------
        first, block
            New fragments, and the place of the first of them.
        """
        starts = tuple(self._within(sizes))
        counts = [*map(len, starts)]
        ends = zip(self._stops(sizes), counts, strict=True)
        stops = tuple(own[:count] for own, count in ends)
        places = np.arange(math.prod(counts)).reshape(counts)
        parts = []
        if self.before is not None:
            parts.append((self.before, places[np.ix_(*self._places(self.before))].reshape(-1)))
        if block is not None:
            part = tuple(slice(at, at + n) for at, n in zip(first, block.grid, strict=True))
            parts.append((block, places[part].reshape(-1)))
        for position, (put, _) in self.new.items():
            parts.append((put.table, places[position].reshape(-1)))
        return assembled(starts, stops, parts)

    def commit(self, variable: Variable, table: Fragments | None) -> None:
        """Note that a table is committed, of a variable as it is now."""
        self.before, self._told = table, understood(variable)
        self.new.clear()


def understood(variable: Variable) -> Any:
    """Return what tells how fragments of a variable are found and understood."""

    def plain(attribute: Attribute) -> Any:
        value = attribute.value
        return value.tobytes() if isinstance(value, np.ndarray) else value

    own = variable.attributes
    said = [(name, plain(own[name])) for name in _UNDERSTOOD_BY if name in own]
    return variable.name, [dimension.name for dimension in variable.dimensions], said


def _begins(
    before: Fragments | None, axis: int, size: int, length: int, *, closed: bool
) -> np.ndarray:
    """Return where fragments begin along a dimension: those of a table, and others between them."""
    bounds = [] if before is None else [before.starts[axis].tolist(), before.stops[axis].tolist()]
    found: list[int] = []
    at = 0
    for start, stop in [*zip(*bounds, strict=True), (size, size)]:
        found += range(at, start, length)
        if start < stop:
            found.append(start)
        at = stop
    if bounds and bounds[1][-1:] == [size] and (closed or size > found[-1] + length):
        found.append(size)
    return np.array(found or [0], np.int64)


def _is_short(
    table: Fragments, place: Position, position: Position, stops: Sequence[np.ndarray]
) -> bool:
    """Tell whether a fragment of a table is shorter than the grid has it."""
    own = zip(table.stops, place, stops, position, strict=True)
    return any(mine[n] < stop[at] for mine, n, stop, at in own)
