"""Coroutines side by side, wishes of one turn of an event loop, and threads that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

W = TypeVar("W")
R = TypeVar("R")
_Call: TypeAlias = "tuple[Future[R], Callable[[], R]]"


async def gather_or_cancel(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Do as `asyncio.gather` does, and leave nothing running when one of them fails."""
    if len(coroutines) == 1:  # without a task of its own
        return [await coroutines[0]]
    futures = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*futures))
    except BaseException:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        raise


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


class WaitingThreads(ThreadPoolExecutor):
    """A pool for calls that wait. Where no thread can be started, the calling one does them."""

    def submit(self, function: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        """Have a thread call `function`, as any executor does.

        If none can be started, it has been called when this returns.
        """
        future: Future[R] = Future()
        waiting: list[_Call[R]] = [(future, partial(function, *arguments, **named))]
        try:
            super().submit(_run, waiting)
        except RuntimeError:  # that, or Python is about to end
            _run(waiting)
        return future


def _run(waiting: list[_Call[R]]) -> None:
    # An executor keeps what it can start no thread for: one that it has may come to it.
    try:
        future, function = waiting.pop()
    except IndexError:
        return
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
        del future  # which `error` would hold by this frame
        if not isinstance(error, Exception):  # an interrupt of the calling thread is not kept
            raise
    else:
        future.set_result(result)
