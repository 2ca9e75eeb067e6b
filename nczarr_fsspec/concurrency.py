"""Coroutines side by side, wishes of one turn of an event loop, and threads that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

W = TypeVar("W")
R = TypeVar("R")
_Call: TypeAlias = "tuple[Future[R], Callable[[], R]]"


def at_once(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that nothing suspends, in the calling thread, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: R = stop.value
        return result
    coroutine.close()
    raise TypeError(f"{coroutine!r} waits for something where all has to be at hand")


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


# -- asked once ----------------------------------------------------------------------------------
# Questions that several coroutines have, asked by one of them.


T = TypeVar("T")


class AskedOnce(Generic[T]):
    """A question that one coroutine asks for all of its event loop that wait for the answer."""

    def __init__(self) -> None:
        self._asking: asyncio.Future[T] | None = None

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return or raise what `question` does, or the one of another that is under way."""
        while (told := await self.told()) is not None:
            if not told.cancelled():
                return told.result()
        with self.asking() as asking:
            try:
                answer = await question()
            except Exception as error:
                asking.set_exception(error)
                asking.exception()  # there may be nothing that waits for it
                raise
            asking.set_result(answer)
            return answer

    @contextmanager
    def asking(self) -> Iterator[asyncio.Future[T]]:
        """Ask, for all that wait; they get the result of the future, if it has one."""
        asking = self._asking = asyncio.get_running_loop().create_future()
        try:
            yield asking
        finally:
            asking.cancel()  # of no effect on one that is done
            if self._asking is asking:
                self._asking = None

    async def told(self) -> asyncio.Future[T] | None:
        """Wait for the one that asks, and return what came of it; None if there is none."""
        asking = self._asking
        # after a fork, the one under way belongs to a loop that does not run here
        if asking is None or asking.get_loop() is not asyncio.get_running_loop():
            return None
        await asyncio.wait([asking])
        return asking


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
