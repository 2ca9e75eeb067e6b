"""Wishes of one turn of an event loop, answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

W = TypeVar("W")
R = TypeVar("R")


class Turn(Generic[W, R]):
    """Collects what is asked for in one turn of an event loop, and hands it on at its end.

    Safe in threads: each event loop has turns of its own.

    Parameters
    ----------
    answer
        Called on the loop with all wishes of a turn and a future for each, which it must
        set sooner or later. A future may be done already: the task that asked has been cancelled.
    """

    def __init__(self, answer: Callable[[list[W], list[asyncio.Future[R]]], object]) -> None:
        self._answer = answer
        self._asked: dict[asyncio.AbstractEventLoop, list[tuple[W, asyncio.Future[R]]]] = {}

    async def ask(self, wish: W) -> R:
        """Wait for the answer to one wish."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        asked = self._asked.setdefault(loop, [])
        asked.append((wish, future))
        if len(asked) == 1:
            loop.call_soon(self._send, loop)  # behind all that is ready to run in this turn
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = self._asked.pop(loop)
        wishes, futures = [wish for wish, _ in asked], [future for _, future in asked]
        try:
            self._answer(wishes, futures)
        except Exception as error:  # noqa: BLE001 - what waits for it must get it
            for future in futures:
                fail(future, error)


def settle(future: asyncio.Future[R], result: R) -> None:
    """Set a result that may come too late."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[R], error: BaseException) -> None:
    """Set an error that may come too late."""
    if not future.done():
        future.set_exception(error)
