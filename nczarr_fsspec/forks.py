"""Forks: what a child process must not share with its parent."""

from __future__ import annotations

import functools
import io
import mmap
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

FORKED = (
    "is a file object that another process has opened, which after a fork may share its position "
    "with this one, so that both would read wrong data; open the dataset here, or by its path"
)
#: file objects whose position a parent and its fork never share
_IN_MEMORY = (io.BytesIO, mmap.mmap)


def may_share_position(value: object) -> bool:
    """Tell whether `value` is a file object whose position a parent and its fork share."""
    return hasattr(value, "read") and hasattr(value, "seek") and type(value) not in _IN_MEMORY


class ProcessLock:
    """A lock among the threads of one process.

    The child of a fork finds the lock free: it has only one of its parent's threads, so a lock that
    another thread held would never be released.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        process = os.getpid()
        lock = self._locks.get(process)
        if lock is None:
            lock = self._locks.setdefault(process, threading.Lock())
        lock.acquire()

    def __exit__(self, *_: object) -> None:
        lock = self._locks.get(os.getpid())
        if lock is not None:  # if not, this thread took it before the fork
            lock.release()

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()  # a copy is another lock


class cached_property(functools.cached_property[T]):  # noqa: N801, TID251 - it takes its place
    """That of functools as it is since Python 3.12, without a lock.

    That of 3.11 has one lock for all instances. If a thread holds it while the process is forked,
    the child waits for ever. What several threads compute at once is the same.
    """

    if sys.version_info < (3, 12) and not TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
