"""Pauses of Python's garbage collection."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
