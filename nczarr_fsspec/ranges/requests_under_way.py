"""Which bytes the requests that are under way bring."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from nczarr_fsspec.ranges.sparse import subtract
from nczarr_fsspec.transport.request import Extent


@dataclass(slots=True, eq=False)
class Flight:
    """A request for metadata on its way, how many wait for it, and what it alone brings."""

    task: asyncio.Task[None]
    waiters: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)


class Flights:
    """The requests on their way, by the bytes they bring: intervals that do not overlap."""

    __slots__ = ("_flights", "_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._flights: dict[int, Flight] = {}

    def missing(self, extents: Iterable[Extent]) -> list[Extent]:
        """Return what of `extents` none of them brings."""
        return subtract(extents, self._starts, self._stops)

    def add(self, flight: Flight, extents: Iterable[Extent]) -> None:
        """Enter a flight that has set off; what others bring of `extents` stays theirs."""
        for start, stop in self.missing(extents):
            insort(self._starts, start)
            insort(self._stops, stop)
            self._flights[start] = flight
            flight.entries.append((start, stop))

    def remove(self, flight: Flight) -> None:
        """Remove a request, for which nothing may wait any more. It need not be there."""
        for start, _ in flight.entries:
            at = bisect_left(self._starts, start)
            del self._starts[at], self._stops[at], self._flights[start]
        flight.entries = []

    def bringing(self, extents: Iterable[Extent]) -> list[Flight]:
        """Return those that bring some of `extents`, each once."""
        found: dict[int, Flight] = {}
        for start, stop in extents:
            begin = bisect_right(self._stops, start)
            for low in self._starts[begin : bisect_left(self._starts, stop)]:
                flight = self._flights[low]
                found[id(flight)] = flight
        return list(found.values())
