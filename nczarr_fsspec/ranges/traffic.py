"""What is under way at the same time: its bounds, and which bytes it brings."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from nczarr_fsspec.ranges.source import Extent
from nczarr_fsspec.ranges.sparse import subtract


class Budget:
    """Something of which only so much may be in use, given out in the order of asking.

    Parameters
    ----------
    limit
        How much. May be changed at any time; what is in use is not taken back.

    Attributes
    ----------
    used : int
        How much is in use.
    """

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, amount: int) -> None:
        """Wait until `amount` fits, or, if it never does, until nothing else is in use."""
        if not self._waiting and self._fits(amount):
            self.used += amount
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((amount, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came, but too late
                self.give(amount)
            else:
                self._next()  # the one behind may fit
            raise

    def take_now(self, amount: int) -> None:
        """Take `amount` whether it fits or not: it is there already."""
        self.used += amount

    def give(self, amount: int) -> None:
        """Return what was taken."""
        self.used -= amount
        self._next()

    def _fits(self, amount: int) -> bool:
        return not self.used or self.used + amount <= self.limit

    def _next(self) -> None:
        while self._waiting:
            amount, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(amount):
                    return
                self.used += amount
                turn.set_result(None)
            self._waiting.popleft()


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
        """What of `extents` none of them brings."""
        return subtract(extents, self._starts, self._stops)

    def add(self, flight: Flight, extents: Iterable[Extent]) -> None:
        """Enter a flight that has set off; what others bring of `extents` stays theirs."""
        for start, stop in self.missing(extents):
            insort(self._starts, start)
            insort(self._stops, stop)
            self._flights[start] = flight
            flight.entries.append((start, stop))

    def remove(self, flight: Flight) -> None:
        """Nobody may wait for this one any more. Not an error if it is not there."""
        for start, _ in flight.entries:
            at = bisect_left(self._starts, start)
            del self._starts[at], self._stops[at], self._flights[start]
        flight.entries = []

    def bringing(self, extents: Iterable[Extent]) -> list[Flight]:
        """Those that bring some of `extents`, each once."""
        found: dict[int, Flight] = {}
        for start, stop in extents:
            begin = bisect_right(self._stops, start)
            for low in self._starts[begin : bisect_left(self._starts, stop)]:
                flight = self._flights[low]
                found[id(flight)] = flight
        return list(found.values())
