"""Threads that mostly wait: for a server, or for a disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

R = TypeVar("R")


class WaitingThreads(ThreadPoolExecutor):
    """A pool for calls that wait. Where no thread can be started, the calling one does them."""

    def submit(self, function: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        """Have a thread call `function`, as any executor does.

        If none can be started, it has been called when this returns.
        """
        future: Future[R] = Future()
        waiting: list[tuple[Future[R], Callable[[], R]]]
        waiting = [(future, partial(function, *arguments, **named))]
        try:
            super().submit(_run, waiting)
        except RuntimeError:  # that, or Python is about to end
            _run(waiting)
        return future


def _run(waiting: list[tuple[Future[R], Callable[[], R]]]) -> None:
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
