"""Read rounds: parsers of file formats as coroutines that await bytes.

A parser awaits ``read(...)``, and ``together(...)`` where several parts can be
read independently. A parser does no I/O and knows no event loop: `read_rounds`
runs it until all its parts await bytes, and yields what they await. That is one
read round. The driver answers all of it at once, from a file, from a network
or, in the tests, from memory. So the number of rounds is the number of
dependent round trips.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.keystore import Listing, Object

S = TypeVar("S")
T = TypeVar("T")
#: A parser, or a part of one.
Parsing: TypeAlias = Coroutine[Any, Any, T]


class Read:
    """A request of a parser for bytes; see `read` and `read_some`.

    Parameters
    ----------
    data
        These bytes, if they are at hand: then nothing is waited for.
    """

    __slots__ = ("data", "least", "length", "start")

    def __init__(self, start: int, length: int, least: int, data: memoryview | None = None) -> None:
        self.start = start
        self.length = length
        self.least = least
        self.data = data

    def __await__(self) -> Generator[Read, memoryview, memoryview]:
        return (yield self) if self.data is None else self.data

    def __repr__(self) -> str:
        return f"Read({self.start}, {self.length})"


def read(start: int, length: int) -> Read:
    """Await exactly `length` bytes from `start`; raise `FormatError` if the file ends before."""
    return Read(start, length, length)


def read_some(start: int, length: int, least: int = 1) -> Read:
    """Await `length` bytes from `start`, or fewer at the end of the file, but `least` at least."""
    return Read(start, length, least)


async def all_of(reads: Iterable[Read]) -> list[memoryview]:
    """Await the bytes of several reads in one round, in order."""
    listed = list(reads)
    if len(listed) == 1:
        return [await listed[0]]
    parts: list[Any] = [one.__await__() for one in listed]  # what coroutines would delegate to
    return await together(parts)


class _Together:
    """A request of a parser for the results of parts that run already."""

    __slots__ = ("results", "waiting")

    def __init__(self, results: list[Any], waiting: list[_Waiting]) -> None:
        self.results = results  # those of the waiting parts are still missing
        self.waiting = waiting

    def __await__(self) -> Generator[_Together, None, None]:
        yield self


async def together(parts: Iterable[Parsing[T]]) -> list[T]:
    """Run all `parts` at the same time; return their results in order.

    The first error of a part ends the others and is raised.
    """
    listed = list(parts)
    if len(listed) == 1:
        return [await listed[0]]
    results: list[Any] = [None] * len(listed)
    waiting: list[_Waiting] = []
    try:
        for slot, part in enumerate(listed):
            try:
                waiting.append((slot, part, part.send(None)))
            except StopIteration as stop:
                results[slot] = stop.value
    except BaseException:
        for part in listed:
            part.close()
        raise
    if waiting:
        del listed  # thousands of such lists may exist at a time
        await _Together(results, waiting)
    return results


async def both(first: Parsing[S], second: Parsing[T]) -> tuple[S, T]:
    """Run two parts with results of different types; see `together`."""
    parts: list[Parsing[Any]] = [first, second]
    results = await together(parts)
    return results[0], results[1]


class Once(Generic[T]):
    """A part that runs once, whose result several parts may await.

    Await it within one run of `read_rounds` only.

    Parameters
    ----------
    part
        Begins the part. An error of the part is raised in all that await it.
    """

    __slots__ = ("begun", "part", "result", "waiting")

    def __init__(self, part: Callable[[], Parsing[T]]) -> None:
        self.part: Callable[[], Parsing[T]] | None = part
        self.result: tuple[T] | NCZarrError | None = None
        self.begun = False
        self.waiting: list[_Task] = []

    def __await__(self) -> Generator[Once[T], None, None]:
        yield self

    async def get(self) -> T:
        """Await the result."""
        if self.result is None:
            await self
        if isinstance(self.result, tuple):
            return self.result[0]
        assert self.result is not None
        raise self.result.with_traceback(None)  # the traceback would grow with each await

    async def run(self) -> None:
        """Run the part."""
        assert self.part is not None
        part, self.part = self.part(), None  # the function often refers to the owner of this
        try:
            self.result = (await part,)
        except NCZarrError as error:
            self.result = error


async def caught(part: Parsing[T]) -> T | NCZarrError:
    """Return the result of `part`, or the error that it raised."""
    try:
        return await part
    except NCZarrError as error:
        return error


#: A part of `together`: its position, its coroutine, and what it awaits.
_Waiting: TypeAlias = "tuple[int, Parsing[Any], Read | _Together | Once[Any]]"


class _Task:
    """A running coroutine, and the task or tasks that wait for it."""

    __slots__ = ("children", "coroutine", "ended", "missing", "once", "parent", "results", "slot")

    def __init__(
        self,
        coroutine: Parsing[Any],
        parent: _Task | None = None,
        slot: int = 0,
        once: Once[Any] | None = None,
    ) -> None:
        self.coroutine = coroutine
        self.parent = parent
        self.slot = slot
        self.once = once
        self.ended = False
        self.children: list[_Task] | tuple[()] = ()
        self.results: list[Any] | None = None
        self.missing = 0

    def end(self) -> None:
        """Close this coroutine and all it waits for."""
        pending = [self]
        while pending:
            task = pending.pop()
            if not task.ended:
                task.ended = True
                task.coroutine.close()
            pending.extend(task.children)
            task.children = ()


def read_rounds(
    parsing: Parsing[T],
) -> Generator[list[Read], list[memoryview | NCZarrError], T]:
    """Run `parsing` in read rounds: yield the reads it awaits, receive bytes or errors.

    Returns
    -------
    The result of `parsing`; errors that it does not catch are raised.
    """
    root = _Task(parsing)
    running = _Running()
    running.ready.append((root, None))
    try:
        while True:
            running.run()
            if root.ended:
                result: T = running.result
                return result
            waiting = [(task, awaited) for task, awaited in running.blocked if not task.ended]
            running.blocked = []
            assert waiting, "parts that await each other"
            answers = yield [awaited for _, awaited in waiting]
            running.ready.extend(
                (task, answer) for (task, _), answer in zip(waiting, answers, strict=True)
            )
    finally:
        root.end()
        for task in running.shared:
            task.end()


class _Running:
    """The tasks of a parser.

    Attributes
    ----------
    ready : deque
        Tasks that can go on, each with the result it awaited.
    blocked : list
        Tasks that wait for bytes.
    shared : list
        The tasks that run the parts of `Once`.
    result
        The result of the parser.
    """

    def __init__(self) -> None:
        self.ready: deque[tuple[_Task, Any]] = deque()
        self.blocked: list[tuple[_Task, Read]] = []
        self.shared: list[_Task] = []
        self.result: Any = None

    def run(self) -> None:
        """Run all tasks until each awaits bytes; raise the error of the parser."""
        ready = self.ready
        while ready:
            task, value = ready.popleft()
            if task.ended:
                continue
            try:
                if isinstance(value, BaseException):
                    awaited = task.coroutine.throw(value)
                else:
                    awaited = task.coroutine.send(value)
            except StopIteration as stop:
                task.ended = True
                self._finish(task, stop.value)
            except Exception as error:
                task.ended = True
                if task.parent is None:
                    raise
                for sibling in task.parent.children:
                    sibling.end()
                task.parent.children = ()
                ready.append((task.parent, error))
            else:
                self._wait(task, awaited)

    def _wait(self, task: _Task, awaited: Read | _Together | Once[Any]) -> None:
        """Note what a task awaits, and what that awaits in turn."""
        pending = [(task, awaited)]
        while pending:
            task, awaited = pending.pop()
            if isinstance(awaited, Read):
                self.blocked.append((task, awaited))
            elif isinstance(awaited, _Together):
                task.results = awaited.results
                task.missing = len(awaited.waiting)
                task.children = [_Task(part, task, slot) for slot, part, _ in awaited.waiting]
                pending += [
                    (child, one[2])
                    for child, one in zip(task.children[::-1], awaited.waiting[::-1], strict=True)
                ]
            elif awaited.result is not None:  # it has ended meanwhile
                self.ready.append((task, None))
            else:
                awaited.waiting.append(task)
                if not awaited.begun:
                    awaited.begun = True
                    task = _Task(awaited.run(), once=awaited)
                    self.shared.append(task)
                    self.ready.append((task, None))

    def _finish(self, task: _Task, value: Any) -> None:
        """Hand the result of a task to the tasks that await it."""
        parent = task.parent
        if parent is not None:
            assert parent.results is not None
            parent.results[task.slot] = value
            parent.missing -= 1
            if not parent.missing:
                parent.children = ()
                self.ready.append((parent, None))
        elif task.once is not None:
            self.ready.extend((one, None) for one in task.once.waiting)
            task.once.waiting = []
        else:
            self.result = value


# -- objects -------------------------------------------------------------------------------------
# Read rounds of a tree: what a format awaits of its objects (of one file: `rounds`).


@dataclass(frozen=True, slots=True)
class ReadRound:
    """A read round: objects to read and prefixes to list, all in one go."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...] = ()

    def __await__(self) -> Generator[ReadRound, Answer, Answer]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answers of the store in the order of the `ReadRound`: None where there is nothing.

    A listing of None means that the store cannot list.
    """

    objects: Sequence[Object]
    listings: Sequence[Listing] = ()


# -- garbage collection ----------------------------------------------------------------------------
# Pauses of Python's, while a parser makes objects that stay.


class _Pauses:
    """Counts the pauses in force, for the collector of the whole process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._enabled = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Resume the collection in a child process, which lacks the threads that paused it."""
        self._lock = threading.Lock()
        if self._count:
            self._count = 0
            if self._enabled:
                gc.enable()

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count = max(0, self._count - 1)  # 0 in the child of a fork
            if self._enabled and not self._count:
                gc.enable()


_pauses = _Pauses()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collection of this process within the block.

    The metadata of a variable become some hundred objects, all of which stay. The collector visits
    all of them again and again as their number grows. That took half of the time of opening 10,000
    variables.
    """
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()
