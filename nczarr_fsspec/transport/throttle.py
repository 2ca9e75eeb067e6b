"""How often a request is tried, and how many a server gets at the same time.

Fewer once it says that it is too much.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from nczarr_fsspec.concurrency import Budget
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.transport import policy as _policy
from nczarr_fsspec.transport.policy import Timeout
from nczarr_fsspec.transport.request import TransientError

T = TypeVar("T")
#: Called for every try, with the seconds that are left for the request.
Attempt: TypeAlias = Callable[[float], Awaitable[T]]

#: answers after which one more request is allowed again
RECOVERY = 16
#: seconds between messages at level INFO that requests are tried again
BETWEEN_MESSAGES = 5.0

_log = logging.getLogger(__name__)
#: not the common generator, which is the user's, who may have seeded it
_random = random.SystemRandom()


class Throttle:
    """Runs requests, again if need be, and bounds how many are under way.

    Once a third of the answers say "busy", the limit is halved, once for all requests that were
    sent before. A request that waits for its next try keeps its place, so that the server has a
    rest; if there are more than the limit by then, it goes to the end of the queue. It is given up
    only if the server answers nothing else meanwhile; all that wait at that moment are given up
    with it, for the server would tell them the same.

    Parameters
    ----------
    limit
        How many there may be at most, from now on.
    timeout
        For how long each may take.

    Attributes
    ----------
    limit : int
        How many there may be now; from any thread.
    """

    def __init__(self, limit: int, timeout: Timeout | None = None) -> None:
        self.limit = self._most = limit
        self.timeout = timeout or Timeout()
        self._good = 0  # answers since the limit has changed
        self._refused = 0
        self._cuts = 0
        self._answers = 0  # of all times
        # how often a request was given up for a busy server, what was said of the last one, and
        # how many answers there had been
        self._lost = 0
        self._last_words = ""
        self._lost_at = -1
        self._loop: asyncio.AbstractEventLoop | None = None

    def cap(self, most: int) -> None:
        """Set a bound of `most` for the requests in flight."""
        self._most = min(self._most, most)
        self._change(min(self.limit, most))

    async def retried(self, attempt: Attempt[T], shown: str) -> T:
        """Await `attempt`, when there is room, until it does not raise `TransientError`.

        Parameters
        ----------
        shown
            What it is about, for the message.

        Raises
        ------
        StoreError
            If `ATTEMPTS` tries failed, if it took too long, if the server asks for a long pause,
            or if there is no such server and has not been one before.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # at first, and after a fork
            self._loop, self._places = loop, Budget(self.limit)
        places = self._places
        lost = self._lost
        await places.take(1)
        try:
            return await self._repeat(attempt, shown, places, lost)
        finally:
            places.give(1)

    async def _repeat(self, attempt: Attempt[T], shown: str, places: Budget, lost: int) -> T:
        clock = asyncio.get_running_loop().time
        wait, tries, counted, spent = _policy.FIRST_WAIT, 0, 0, 0.0
        answers = self._answers
        while True:
            if places.used > places.limit:
                await self._queue_again(places)
            if lost != self._lost and self._lost_at == self._answers:
                raise StoreError(shown, self._last_words) from None
            began = clock()
            try:
                return await self._try(attempt, self.timeout.whole - spent, shown)
            except TransientError as error:
                if error.absent and not self._answers:
                    raise StoreError(shown, str(error)) from None
                if error.busy and answers != self._answers:
                    error.cost = 0
                answers = self._answers
                reason, asked, busy, cost = str(error), error.wait, error.busy, error.cost
            tries += 1
            counted += cost
            jitter = _random.uniform(0.5, 1)
            pause = max(asked, wait * jitter)
            took = clock() - began + pause
            spent += took if cost else 0.0
            longest = asked > _policy.LONGEST_WAIT or spent >= self.timeout.whole
            if counted >= _policy.ATTEMPTS or longest:
                if asked > _policy.LONGEST_WAIT:
                    reason += f"; the server asks for a pause of {asked:.4g} s"
                reason += f" (tried {tries} times)"
                if busy:
                    self._lost += 1
                    self._last_words, self._lost_at = reason, self._answers
                raise StoreError(shown, reason) from None
            _retries.tell(shown, reason, pause)
            await asyncio.sleep(pause)
            wait = min(2 * wait, _policy.FIRST_WAIT * 2**_policy.ATTEMPTS)  # some do not count

    async def _queue_again(self, places: Budget) -> None:
        places.give(1)
        try:
            await places.take(1)
        except BaseException:
            places.take_now(1)  # `retried` gives it back
            raise

    async def _try(self, attempt: Attempt[T], left: float, shown: str) -> T:
        cuts = self._cuts
        try:
            result = await attempt(left)
        except TransientError as error:
            if error.busy and cuts == self._cuts:
                self._refused += 1
                if 2 * self._refused > self._good:  # now and then one is no sign of too many
                    self._cuts += 1
                    self._change(max(1, self.limit // 2))
                    _log.info("%s: %s; %d requests at a time from now on", shown, error, self.limit)
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


class _Retries:
    """Tells that requests are tried again, every few seconds only: there may be hundreds."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._untold = 0

    def tell(self, shown: str, reason: str, wait: float) -> None:
        now = time.monotonic()
        level = logging.DEBUG
        others = ""
        if now - self._last >= BETWEEN_MESSAGES:
            others = f" (and {self._untold} other requests since the last message)"
            others = others if self._untold else ""
            level, self._last, self._untold = logging.INFO, now, 0
        else:
            self._untold += 1
        _log.log(level, "%s: %s; trying again in %.1f s%s", shown, reason, wait, others)


_retries = _Retries()
