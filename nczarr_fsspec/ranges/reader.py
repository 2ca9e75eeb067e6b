"""Reading one remote file: metadata by read rounds, data while what came before is decoded."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from nczarr_fsspec.concurrency import Budget, Coalescer, Question, gather_or_cancel
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges.index_memory import SparseBytes, subtract
from nczarr_fsspec.ranges.planner import (
    LEAST_SHARE,
    Delivery,
    Integers,
    by_owner,
    longest,
    plan_requests,
    widened,
)
from nczarr_fsspec.ranges.source import HEAD_BYTES, RemoteBytes
from nczarr_fsspec.transport.request import Extent

#: Takes the numbers of some pieces and their bytes.
Receive: TypeAlias = Callable[[Integers, list[memoryview]], Awaitable[None]]
#: Starts and stops of pieces.
_Pieces: TypeAlias = tuple[Integers, Integers]

#: Reads of data of no more bytes go out together with others of the same turn of the event loop.
SMALL_READ = 1 << 18

#: Bytes of metadata that are remembered; beyond, they are forgotten and begun anew.
MOST_METADATA = 1 << 28
#: Bytes of data that are being fetched or that `receive` has not finished with.
HELD_BYTES = 1 << 26
#: Requests of full length that are in flight at the same time; more as long as the line is not
#: full. All at once would share it, end together and leave nothing to overlap decoding with.
LONG_REQUESTS = 12
#: A transfer that takes less than this many times what it would alone does not share the line.
_ALONE = 1.4
#: What a request counts at least, so that tiny ones do not pile up either.
_LEAST_HELD = 1 << 16
#: Pieces known already that are handed over at a time.
_KNOWN_AT_A_TIME = 1 << 10


@dataclass(slots=True, eq=False)
class _Wish:
    """Metadata that a task waits for, and the requests that bring them, once they are sent."""

    extents: list[Extent]
    around: bool
    flights: list[Flight] = field(default_factory=list)


class RangeReader:
    """Reads a file by byte ranges. Cheap to make; its coroutines run on the source's loop.

    All reads of one file go through one of these: they share connections,
    metadata and the bounds for what is in flight.

    Parameters
    ----------
    source
        The file.
    sparse
        What is known of it already; `RemoteBytes.head` is added.

    Attributes
    ----------
    source : RemoteBytes
    sparse : SparseBytes
        The metadata so far.
    """

    def __init__(self, source: RemoteBytes, sparse: SparseBytes | None = None) -> None:
        self.source = source
        self.sparse = SparseBytes() if sparse is None else sparse
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start with nothing under way: at first, and on the new loop after a fork."""
        self._loop = loop
        self._connections = 1  # opening the file took one
        self._requests = Budget(self.source.limits.concurrency)
        self._window = Budget(0)  # bytes of data being fetched
        self._held = Budget(HELD_BYTES)
        self._waiting = 0  # reads of metadata that have not ended
        self._coming = Flights()
        self._metadata: Coalescer[_Wish, None] = Coalescer(self._send)
        self._small: Coalescer[_Pieces, list[memoryview] | None] = Coalescer(self._read_small)

    def is_idle(self) -> bool:
        """Tell whether nothing is under way: no request, no data that somebody holds."""
        used = self._requests.used + self._window.used + self._held.used + self._waiting
        return not used and not self._coming

    def _on_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is None:
            self._add_head()
        else:  # the fork may have come in the middle of `add`
            self._forget()
        self._begin(loop)

    def _forget(self) -> None:
        self.sparse = SparseBytes()
        self._add_head()

    def _add_head(self) -> None:
        # of a server without ranges the head is all of the file, which is for the source to keep
        self.sparse.add(0, self.source.head[:HEAD_BYTES])

    async def read_metadata(
        self, wanted: Sequence[Extent], *, around: bool = False
    ) -> list[memoryview]:
        """Return the bytes of each extent, one read round of a parser.

        What is wanted in the same turn of the event loop, by whomever, goes out
        together; what is on its way already is waited for. (As for data, small
        gaps are read rather than skipped, even if they are known.)

        Parameters
        ----------
        wanted
            In any order; they may overlap.
        around
            Whether what is wanted next is likely to lie near: then that is read with it.

        Raises
        ------
        StoreError
            If an extent is not inside the file, or cannot be read.
        """
        for start, stop in wanted:
            if not 0 <= start <= stop <= self.source.size:
                raise StoreError(self.source.url, f"bytes {start}-{stop} are not in the file")
        self._on_loop()
        if sum(stop - start for start, stop in wanted) > MOST_METADATA:
            raise StoreError(self.source.url, "its metadata want too much of the file at once")
        self._waiting += 1
        try:
            while True:
                answers = [self.sparse.get(start, stop) for start, stop in wanted]
                known = [answer for answer in answers if answer is not None]
                if len(known) == len(answers):
                    return known
                await self._bring(self.sparse.missing(wanted), around)
        finally:
            self._waiting -= 1

    async def read_data(self, starts: np.ndarray, stops: np.ndarray, receive: Receive) -> None:
        """Read many pieces and hand each over as soon as it is there.

        Small reads that begin in the same turn of the event loop go out together, as
        those of many small variables do. What fails then is tried again alone.

        A piece is handed over whole: a caller that wants a long run of plain bytes
        asks for it in pieces of a few MB.

        Parameters
        ----------
        starts, stops
            Integers: the pieces ``[start, stop)``, in any order. They may touch,
            overlap, repeat and be empty; each byte is fetched once.
        receive
            Awaited with the numbers of some pieces and their bytes, in no
            particular order and several times at once. The bytes may be kept,
            which keeps those of the whole request. It must not read data of
            this reader itself, for it holds what the next read waits for.

        Raises
        ------
        StoreError
            If a piece is not inside the file, or cannot be read. This, and any
            error of `receive`, ends the whole read; nothing is left running.
        """
        self._on_loop()
        low, high = self._checked(starts, stops)
        small = int((high - low).sum()) <= SMALL_READ
        views = await self._small.ask((low, high)) if small else None
        if views is None:
            await self._read(low, high, receive)
            return
        held = sum(map(len, views))
        self._held.take_now(held)
        try:
            await receive(np.arange(len(views)), views)
        finally:
            self._held.give(held)

    def read_all(self, starts: np.ndarray, stops: np.ndarray) -> list[bytes]:
        """Return the pieces, from another thread than the loop's; errors as `read_data`."""
        found = [b""] * len(starts)

        async def receive(numbers: Integers, pieces: list[memoryview]) -> None:
            for number, piece in zip(numbers, pieces, strict=True):
                found[number] = bytes(piece)

        self.source.run(self.read_data(starts, stops, receive))
        return found

    async def _read_small(self, questions: list[Question[_Pieces, Any]]) -> None:
        """Read the pieces of all small reads of a turn together; tell those that must go alone."""
        counts = [len(question.wish[0]) for question in questions]
        first = np.concatenate([[0], np.cumsum(counts)])
        views: list[memoryview | None] = [None] * int(first[-1])
        left = counts.copy()

        async def receive(numbers: Integers, pieces: list[memoryview]) -> None:
            for number, piece in zip(numbers.tolist(), pieces, strict=True):
                views[number] = piece
            for owner, own in by_owner(first, numbers):
                left[owner] -= len(own)
                if not left[owner]:
                    questions[owner].settle(views[first[owner] : first[owner + 1]])

        try:
            if len(questions) > 1:
                low, high = map(np.concatenate, zip(*(one.wish for one in questions), strict=True))
                with suppress(Exception):  # what it has not brought is read again, alone
                    await self._read(low, high, receive)
        finally:
            for question in questions:
                question.settle(None)

    async def _read(self, low: Integers, high: Integers, receive: Receive) -> None:
        known = self.sparse.covers(low, high)
        numbers = np.flatnonzero(~known)
        if not len(numbers):
            await self._hand_known(np.arange(len(known)), low, high, receive)
            return
        try:
            async with asyncio.TaskGroup() as group:
                self._fetch_all(group, low[numbers], high[numbers], numbers, receive)
                if np.any(known):
                    group.create_task(self._hand_known(np.flatnonzero(known), low, high, receive))
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]
            raise error from error.__cause__

    def _checked(self, starts: np.ndarray, stops: np.ndarray) -> tuple[Integers, Integers]:
        low = np.asarray(starts, dtype=np.int64)
        high = np.asarray(stops, dtype=np.int64)
        wrong = (low < 0) | (high < low) | (high > self.source.size)
        if np.any(wrong):
            at = int(np.argmax(wrong))
            raise StoreError(self.source.url, f"bytes {low[at]}-{high[at]} are not in the file")
        return low, high

    # data

    async def _hand_known(
        self, numbers: Integers, low: Integers, high: Integers, receive: Receive
    ) -> None:
        for at in range(0, len(numbers), _KNOWN_AT_A_TIME):
            part = numbers[at : at + _KNOWN_AT_A_TIME]
            views = []
            for start, stop in zip(low[part].tolist(), high[part].tolist(), strict=True):
                view = self.sparse.get(start, stop)
                if view is None:  # forgotten meanwhile
                    (view,) = await self.read_metadata([Extent(start, stop)])
                views.append(view)
            await receive(part, views)

    def _fetch_all(
        self,
        group: asyncio.TaskGroup,
        low: Integers,
        high: Integers,
        numbers: Integers,
        receive: Receive,
    ) -> None:
        limits = self.source.limits
        plan = plan_requests(low, high, limits, self._connections)
        self._window.limit = max(self._window.limit, LONG_REQUESTS * longest(limits))
        delivery = Delivery(plan, low, high)
        left = iter(range(len(plan)))

        async def work() -> None:
            for request in left:
                extents = plan.extents(request)
                held = max(_LEAST_HELD, sum(stop - start for start, stop in extents))
                await self._held.take(held)
                try:
                    await self._window.take(held)
                    try:
                        views = await self._fetch(extents)
                    finally:
                        self._window.give(held)
                except BaseException:
                    self._held.give(held)
                    raise
                task = group.create_task(hand_over(request, views))
                # not by the task itself, which may be cancelled before it begins
                task.add_done_callback(partial(_give_back, self._held, held))

        async def hand_over(request: int, views: list[memoryview]) -> None:
            for which, parts, own in delivery.landed(request, views):
                self._held.take_now(own)
                try:
                    await receive(numbers[which], parts)
                finally:
                    self._held.give(own)

        for _ in range(min(len(plan), limits.concurrency)):
            group.create_task(work())

    async def _fetch(self, extents: list[Extent]) -> list[memoryview]:
        """Send one request when there is room; several if the server takes fewer extents."""
        ranges = self.source.limits.ranges
        if len(extents) > ranges:
            parts = [extents[at : at + ranges] for at in range(0, len(extents), ranges)]
            return list(chain.from_iterable(await gather_or_cancel(*map(self._fetch, parts))))
        await self._requests.take(1)
        try:
            self._connections = max(self._connections, self._requests.used)
            begun = asyncio.get_running_loop().time()
            answers = await self.source.fetch(extents)
            took = asyncio.get_running_loop().time() - begun
        finally:
            self._requests.limit = self.source.limits.concurrency  # the server may be busy
            self._requests.give(1)
        views = [memoryview(answer) for answer in answers]
        if [len(view) for view in views] != [stop - start for start, stop in extents]:
            raise StoreError(self.source.url, "an answer is not as long as what was asked for")
        self._adapt(sum(map(len, views)), took)
        return views

    def _adapt(self, nbytes: int, seconds: float) -> None:
        """Let more data be in flight while the connections do not slow each other down."""
        limits, window = self.source.limits, self._window
        least = LONG_REQUESTS * longest(limits)
        if nbytes < LEAST_SHARE or 2 * window.used < window.limit:
            window.limit = max(window.limit, least)
        elif seconds - limits.latency < _ALONE * nbytes / limits.bandwidth:
            window.limit = max(least, min(window.limit + nbytes, HELD_BYTES))
        else:
            window.limit = max(least, window.limit - nbytes)

    # metadata

    async def _bring(self, missing: list[Extent], around: bool) -> None:
        """Wait until `missing` has been added to what is known."""
        wish = _Wish(missing, around)
        try:
            await self._metadata.ask(wish)
            if wish.flights:
                tasks = [flight.task for flight in wish.flights]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
        finally:
            unwanted = []
            for flight in wish.flights:
                flight.waiters -= 1
                if not flight.waiters and flight.task.cancel():
                    self._coming.remove(flight)
                    unwanted.append(flight.task)
            if unwanted:
                await asyncio.wait(unwanted)

    async def _send(self, questions: list[Question[_Wish, None]]) -> None:
        """Send requests for all that is wished for and neither known nor on its way."""
        wishes = [question.wish for question in questions]
        if self.sparse.nbytes > MOST_METADATA and self._waiting == len(wishes):
            self._forget()
        self._plan_metadata(
            [extent for wish in wishes for extent in wish.extents],
            all(wish.around for wish in wishes),
        )
        for question in questions:
            wish = question.wish
            wish.flights = self._coming.bringing(self.sparse.missing(wish.extents))
            for flight in wish.flights:
                flight.waiters += 1
            question.settle(None)

    def _plan_metadata(self, wanted: list[Extent], around: bool) -> None:
        limits, size = self.source.limits, self.source.size
        fresh = self._unsent(widened(self._unsent(wanted), size, limits, around=around))
        if not fresh:
            return
        bounds = np.asarray(fresh, dtype=np.int64)
        plan = plan_requests(bounds[:, 0], bounds[:, 1], limits, self._connections)
        for request in range(len(plan)):
            extents = plan.extents(request)
            flight = Flight(asyncio.get_running_loop().create_task(self._fly(extents)))
            self._coming.add(flight, extents)
            flight.task.add_done_callback(partial(_landed, self._coming, flight))

    def _unsent(self, wanted: list[Extent]) -> list[Extent]:
        return self._coming.missing(self.sparse.missing(wanted))

    async def _fly(self, extents: list[Extent]) -> None:
        for extent, view in zip(extents, await self._fetch(extents), strict=True):
            self.sparse.add(extent.start, view)


def _give_back(budget: Budget, amount: int, _task: asyncio.Task[None]) -> None:
    budget.give(amount)


def _landed(coming: Flights, flight: Flight, task: asyncio.Task[None]) -> None:
    coming.remove(flight)
    if not task.cancelled():
        task.exception()  # is looked at, as all that waited may have gone


# -- requests under way --------------------------------------------------------------------------
# Which bytes the requests that are under way bring.


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

    def __bool__(self) -> bool:
        return bool(self._flights)

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
