"""Bounds for what is under way at the same time."""

from __future__ import annotations

import asyncio
from collections import deque


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
