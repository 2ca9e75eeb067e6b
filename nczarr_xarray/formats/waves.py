"""Formats as coroutines that wait for bytes, all that can be waited for together in one wave.

A parser of a file format is written as coroutines that ``await read(...)`` and,
where several things can be read independently, ``await together(...)``. It does
no I/O and knows no event loop: `waves` runs it and says, wave by wave, which
bytes all of its branches are waiting for. Whoever drives it answers from a
file, from a network, or, in the tests, from memory. The number of waves is the
number of dependent round trips.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, TypeAlias, TypeVar

from nczarr_fsspec.errors import NCZarrError

T = TypeVar("T")
#: A parser, or a part of one.
Parsing: TypeAlias = Coroutine[Any, Any, T]


class Read:
    """A wish for bytes; see `read` and `read_some`."""

    __slots__ = ("least", "length", "start")

    def __init__(self, start: int, length: int, least: int) -> None:
        self.start = start
        self.length = length
        self.least = least

    def __await__(self) -> Generator[Read, memoryview, memoryview]:
        return (yield self)

    def __repr__(self) -> str:
        return f"Read({self.start}, {self.length})"


def read(start: int, length: int) -> Read:
    """Await exactly `length` bytes from `start`; `FormatError` if the file ends before."""
    return Read(start, length, length)


def read_some(start: int, length: int, least: int = 1) -> Read:
    """Await `length` bytes from `start`, or those up to the end of the file, but `least`."""
    return Read(start, length, least)


class _Together:
    __slots__ = ("parts",)

    def __init__(self, parts: list[Parsing[Any]]) -> None:
        self.parts = parts

    def __await__(self) -> Generator[_Together, list[Any], list[Any]]:
        return (yield self)


async def together(parts: Iterable[Parsing[T]]) -> list[T]:
    """Run all `parts` side by side; their results in order.

    The first error of a part ends the others and is raised.
    """
    listed = list(parts)
    if not listed:
        return []
    return await _Together(listed)


async def caught(part: Parsing[T]) -> T | NCZarrError:
    """The result of `part`, or the error that it raised."""
    try:
        return await part
    except NCZarrError as error:
        return error


class _Task:
    """A running coroutine and what waits for it."""

    __slots__ = ("children", "coroutine", "ended", "missing", "parent", "results", "slot")

    def __init__(self, coroutine: Parsing[Any], parent: _Task | None, slot: int) -> None:
        self.coroutine = coroutine
        self.parent = parent
        self.slot = slot
        self.ended = False
        self.children: list[_Task] = []
        self.results: list[Any] = []
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
            task.children = []


def waves(
    parsing: Parsing[T],
) -> Generator[list[Read], list[memoryview | NCZarrError], T]:
    """Run `parsing`: yields what it waits for, takes the bytes (or why there are none).

    Returns
    -------
    The result of `parsing`; errors that it does not catch are raised.
    """
    root = _Task(parsing, None, 0)
    ready: deque[tuple[_Task, Any]] = deque([(root, None)])
    blocked: list[tuple[_Task, Read]] = []
    try:
        while True:
            while ready:
                task, value = ready.popleft()
                if task.ended:
                    continue
                try:
                    if isinstance(value, BaseException):
                        wish = task.coroutine.throw(value)
                    else:
                        wish = task.coroutine.send(value)
                except StopIteration as stop:
                    task.ended = True
                    if task is root:
                        result: T = stop.value
                        return result
                    _deliver(task, stop.value, ready)
                except Exception as error:
                    task.ended = True
                    if task.parent is None:
                        raise
                    for sibling in task.parent.children:
                        sibling.end()
                    task.parent.children = []
                    ready.append((task.parent, error))
                else:
                    if isinstance(wish, Read):
                        blocked.append((task, wish))
                    else:
                        _start(task, wish.parts, ready)
            waiting = [(task, wish) for task, wish in blocked if not task.ended]
            blocked = []
            answers = yield [wish for _, wish in waiting]
            ready.extend((task, answer) for (task, _), answer in zip(waiting, answers, strict=True))
    finally:
        root.end()


def _start(task: _Task, parts: list[Parsing[Any]], ready: deque[tuple[_Task, Any]]) -> None:
    task.missing = len(parts)
    task.results = [None] * len(parts)
    task.children = [_Task(part, task, slot) for slot, part in enumerate(parts)]
    ready.extend((child, None) for child in task.children)


def _deliver(task: _Task, value: Any, ready: deque[tuple[_Task, Any]]) -> None:
    parent = task.parent
    assert parent is not None
    parent.results[task.slot] = value
    parent.missing -= 1
    if not parent.missing:
        parent.children = []
        ready.append((parent, parent.results))
