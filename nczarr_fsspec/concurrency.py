"""Coroutines side by side, questions that are answered together, bounds, threads that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from nczarr_fsspec.errors import NCZarrError

if TYPE_CHECKING:
    # takes as long as half of numpy to import; what is at hand is read without it
    import asyncio

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
    import asyncio

    futures = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*futures))
    except BaseException:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        raise


class Question(Generic[W, R]):
    """Something that coroutines wait for, to be settled or failed once.

    Attributes
    ----------
    wish
        What is asked for.
    key : hashable
        What others ask with that are to get the same answer; None if none are.
    futures : list of asyncio.Future
        One for each that waits.
    is_open : bool
        Whether others may still join.
    task : asyncio.Task or None
        Which answers it, once that has begun; and `turn`, all that it answers.
    """

    __slots__ = ("futures", "is_open", "key", "task", "turn", "wish")

    def __init__(self, wish: W, key: Hashable) -> None:
        self.wish = wish
        self.key = key
        self.futures: list[asyncio.Future[R]] = []
        self.is_open = True
        self.turn: list[Question[W, R]] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether something still waits for the answer."""
        return any(not future.done() for future in self.futures)

    def settle(self, result: R) -> None:
        """Hand the answer to all that wait for it; of no effect if they have one."""
        self.is_open = False
        for future in self.futures:
            if not future.done():
                future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Raise an error where the answer is awaited; one of ours, as an error for each."""
        self.is_open = False
        for future in self.futures:
            if not future.done():
                own = copy(error) if isinstance(error, NCZarrError) else error
                own.__cause__ = error.__cause__
                future.set_exception(own)


class Coalescer(Generic[W, R]):
    """Has all that is asked for in one turn of an event loop answered together.

    Safe in threads and after a fork: each event loop has turns of its own.

    Parameters
    ----------
    answer
        Awaited with the questions of a turn, in a task. It settles each as soon as it can; with an
        error that it raises, those fail that are not settled. It is cancelled once none of its
        questions is wanted any more.
    """

    def __init__(
        self, answer: Callable[[list[Question[W, R]]], Coroutine[Any, Any, object]]
    ) -> None:
        self._answer = answer
        self._turns: dict[asyncio.AbstractEventLoop, list[Question[W, R]]] = {}
        self._shared: dict[Hashable, Question[W, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # of which a loop keeps no reference

    async def ask(self, wish: W, key: Hashable = None, *, after: bool = False) -> R:
        """Wait for the answer to one wish.

        Parameters
        ----------
        key
            What is asked with the same key, and is not answered yet, gets the same answer.
        after
            Whether an answer for which an earlier turn has asked is of no use. Such a one is waited
            for; then all that did so ask once.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        question = None
        if key is not None:
            key = loop, key
            question = self._shared.get(key)
            while after and question is not None and question.task is not None:
                await asyncio.wait([question.task])
                question = self._shared.get(key)
        if question is None or not question.is_open:
            question = Question(wish, key)
            if key is not None:
                self._shared[key] = question
            turn = self._turns.setdefault(loop, [])
            turn.append(question)
            if len(turn) == 1:
                loop.call_soon(self._send, loop)  # behind all that is ready to run in this turn
        future: asyncio.Future[R] = loop.create_future()
        question.futures.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if (task := question.task) and not any(one.wanted for one in question.turn):
                self._end(question.turn)
                task.cancel()
                await asyncio.wait([task])
            raise

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        turn = self._turns.pop(loop)
        questions = [question for question in turn if question.wanted]
        self._end(question for question in turn if not question.wanted)
        if not questions:
            return
        task = loop.create_task(self._run(questions))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for question in questions:
            question.task, question.turn = task, questions

    async def _run(self, questions: list[Question[W, R]]) -> None:
        try:
            await self._answer(questions)
        except Exception as error:  # noqa: BLE001 - it is raised where they are awaited
            for question in questions:
                question.fail(error)
        finally:
            self._end(questions)

    def _end(self, questions: Iterable[Question[W, R]]) -> None:
        """Have those that ask the same from now on ask anew."""
        for question in questions:
            question.is_open = False
            if self._shared.get(question.key) is question:
                del self._shared[question.key]


class Once(Coalescer[Callable[[], Awaitable[R]], R]):
    """Calls coroutine functions, each for all that ask by one key while it runs."""

    def __init__(self) -> None:
        super().__init__(self._call_all)

    async def ask(
        self, wish: Callable[[], Awaitable[R]], key: Hashable = "", *, after: bool = False
    ) -> R:
        """Return or raise what `wish` does, or the one with this key that is under way."""
        return await super().ask(wish, key, after=after)

    async def _call_all(self, questions: list[Question[Callable[[], Awaitable[R]], R]]) -> None:
        await gather_or_cancel(*map(self._call, questions))

    async def _call(self, question: Question[Callable[[], Awaitable[R]], R]) -> None:
        try:
            question.settle(await question.wish())
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            question.fail(error)


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
        import asyncio

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
