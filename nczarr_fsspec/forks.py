"""Forks: what a child process must not share with its parent."""

from __future__ import annotations

import io
import mmap
import os
import threading

FORKED = (
    "is a file object that another process has opened, which after a fork may share its position "
    "with this one, so that both would read wrong data; open the dataset here, or by its path"
)
#: file objects whose position a parent and its fork never share
_IN_MEMORY = (io.BytesIO, mmap.mmap)


def may_share_position(value: object) -> bool:
    """Tell whether `file` is a file object whose position a parent and its fork share."""
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
