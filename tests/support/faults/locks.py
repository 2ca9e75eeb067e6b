"""Whether a lock is held where it has to be: threads that need it seldom meet by chance."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import pytest

from nczarr_fsspec.forks import ProcessLock

_LOCK = threading.Lock
_held: set[int] = set()


def lock_is_held() -> bool:
    """Whether any thread holds a lock, of those that `watch_locks` watches."""
    return bool(_held)


def watch_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch the locks that threads hold: those of processes, and others made from now on."""
    _held.clear()
    monkeypatch.setattr(threading, "Lock", _Watched)
    enter, leave = ProcessLock.__enter__, ProcessLock.__exit__

    def entered(lock: ProcessLock) -> None:
        enter(lock)
        _held.add(id(lock))

    def left(lock: ProcessLock, *error: object) -> None:
        _held.discard(id(lock))
        leave(lock, *error)

    monkeypatch.setattr(ProcessLock, "__enter__", entered)
    monkeypatch.setattr(ProcessLock, "__exit__", left)


class _Watched:
    def __init__(self) -> None:
        self.lock = _LOCK()
        self.locked = self.lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self.lock.acquire(blocking, timeout)
        if taken:
            _held.add(id(self))
        return taken

    def release(self) -> None:
        _held.discard(id(self))
        self.lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class LastUsed(OrderedDict[Any, Any]):
    """What a cache keeps, in the order of use; notes whether a lock was held for each change.

    It takes the place of `OrderedDict` in the module of the cache.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: list[bool] = []
        made.append(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.held.append(lock_is_held())
        super().__setitem__(key, value)

    def move_to_end(self, key: Any, last: bool = True) -> None:
        self.held.append(lock_is_held())
        super().move_to_end(key, last)

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        self.held.append(lock_is_held())
        return super().popitem(last)


#: Those that were made, the last one last.
made: list[LastUsed] = []


def watch_cache(monkeypatch: pytest.MonkeyPatch, module: str) -> list[LastUsed]:
    """Watch the locks and the caches that a module makes from now on; return these caches."""
    watch_locks(monkeypatch)
    made.clear()
    monkeypatch.setattr(f"{module}.OrderedDict", LastUsed)
    return made
