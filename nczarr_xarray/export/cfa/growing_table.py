"""The fragments of a variable that grows: where they begin and end, and which are written. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from nczarr_xarray.export.cfa.gradual import PutFragment
from nczarr_xarray.model import Attribute, Fragments, Variable, assembled

Position = tuple[int, ...]

#: Attributes by which what a fragment holds is understood: it has them, too.
_UNDERSTOOD_BY = ("units", "calendar", "scale_factor", "add_offset", "_Unsigned", "missing_value")


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
    gapless
        Whether no fragment may be missing.
    """

    def __init__(
        self,
        before: Fragments | None,
        told: Any,
        sizes: Sequence[int],
        lengths: Sequence[int],
        *,
        closed: bool,
        gapless: bool,
    ) -> None:
        self.before = before
        self.lengths = lengths
        self.gapless = gapless
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

    # -- what is written --------------------------------------------------------------------------

    def stale(
        self, variable: Variable, sizes: Sequence[int], changed: Collection[Position]
    ) -> list[Position]:
        """Return which fragments have to be written anew, or at all.

        Their attributes say other things of what they hold than `variable` does now; they are
        shorter than the grid has them; or they are missing and must not be.

        Parameters
        ----------
        changed
            Those that will be written in any case.
        """
        told = understood(variable)
        self.cover(sizes)
        stops = self._stops(sizes)
        missing: set[Position] = set()
        if self.gapless:
            missing = {*np.ndindex(*map(len, self._within(sizes)))} - {*self.new, *changed}
        found = [
            position
            for position, (put, before) in self.new.items()
            if before != told or _is_short(put.table, (0,) * len(position), position, stops)
        ]
        table = self.before
        if table is not None:
            at = self._places(table)
            same = all(
                np.array_equal(own, stop[there])
                for own, stop, there in zip(table.stops, stops, at, strict=True)
            )
            changes = not (same and self._told == told)
            for number, address in enumerate(
                table.addresses.tolist() if changes or missing else ()
            ):
                if address is None:
                    continue
                place = table.position(number)
                position = tuple(int(along[n]) for along, n in zip(at, place, strict=True))
                missing.discard(position)
                if position in self.new or not changes:
                    continue
                if self._told != told or _is_short(table, place, position, stops):
                    found.append(position)
        return [*found, *sorted(missing)]

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

    def table(self, sizes: Sequence[int]) -> Fragments:
        """Return the table of all fragments that are written."""
        starts = tuple(self._within(sizes))
        counts = [*map(len, starts)]
        ends = zip(self._stops(sizes), counts, strict=True)
        stops = tuple(own[:count] for own, count in ends)
        parts = []
        if self.before is not None:
            grid = np.ix_(*self._places(self.before))
            parts.append((self.before, np.ravel_multi_index(grid, counts).reshape(-1)))
        for position, (put, _) in self.new.items():
            parts.append((put.table, np.array([np.ravel_multi_index(position, counts)])))
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
