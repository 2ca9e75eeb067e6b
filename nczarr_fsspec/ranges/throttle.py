"""How many requests a server gets at the same time: fewer once it says that it is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nczarr_fsspec.ranges.traffic import Budget
from nczarr_fsspec.stores._retry import TransientError, retried

T = TypeVar("T")

#: answers after which one more request is allowed again
RECOVERY = 16


class Throttle:
    """Runs requests, again if need be, and bounds how many are under way.

    Once a third of the answers say "busy", the limit is halved, once for all requests that were
    sent before. A request that waits for its next try keeps its place, so that the server has a
    rest; if there are more than the limit by then, it goes to the end of the queue. It is given up
    only if the server answers nothing else meanwhile.

    Parameters
    ----------
    limit
        How many there may be at most, from now on.

    Attributes
    ----------
    limit : int
        How many there may be now; from any thread.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self._most = limit
        self._good = 0  # answers since the limit has changed
        self._refused = 0
        self._cuts = 0
        self._answers = 0  # of all times
        self._loop: asyncio.AbstractEventLoop | None = None

    def cap(self, most: int) -> None:
        """Never allow more than `most`."""
        self._most = min(self._most, most)
        self._change(min(self.limit, most))

    async def retried(self, attempt: Callable[[], Awaitable[T]], shown: str) -> T:
        """As `nczarr_fsspec.stores._retry.retried`, when there is room."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # at first, and after a fork
            self._loop, self._places = loop, Budget(self.limit)
        places = self._places
        answers = self._answers

        async def again() -> T:
            nonlocal answers
            try:
                return await self._try(attempt, places)
            except TransientError as error:
                error.counts = not error.busy or answers == self._answers
                answers = self._answers
                raise

        await places.take(1)
        try:
            return await retried(again, shown)
        finally:
            places.give(1)

    async def _try(self, attempt: Callable[[], Awaitable[T]], places: Budget) -> T:
        if places.used > places.limit:
            places.give(1)
            try:
                await places.take(1)
            except BaseException:
                places.take_now(1)  # `retried` gives it back
                raise
        cuts = self._cuts
        try:
            result = await attempt()
        except TransientError as error:
            if error.busy and cuts == self._cuts:
                self._refused += 1
                if 2 * self._refused > self._good:  # now and then one is no sign of too many
                    self._cuts += 1
                    self._change(max(1, self.limit // 2))
            raise
        self._answers += 1
        self._good += 1
        if self._good >= RECOVERY and self.limit < self._most:
            self._change(self.limit + 1)
        return result

    def _change(self, limit: int) -> None:
        self.limit, self._good, self._refused = limit, 0, 0
        if self._loop is not None:
            self._places.limit = limit

    def __reduce__(self) -> tuple[type[Throttle], tuple[int]]:
        return Throttle, (self.limit,)
