"""Whether a lock is held where it has to be: threads that need it seldom meet by chance."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from nczarr_fsspec.forks import ProcessLock


def is_held(lock: ProcessLock | threading.Lock) -> bool:
    """Whether any thread of this process holds it."""
    own = lock._locks.get(os.getpid()) if isinstance(lock, ProcessLock) else lock
    return own is not None and own.locked()


class LastUsed(OrderedDict[Any, Any]):
    """What a cache keeps, in the order of use; notes whether its lock was held for each change."""

    def __init__(self, lock: ProcessLock | threading.Lock) -> None:
        super().__init__()
        self.lock = lock
        self.held: list[bool] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        self.held.append(is_held(self.lock))
        super().__setitem__(key, value)

    def move_to_end(self, key: Any, last: bool = True) -> None:
        self.held.append(is_held(self.lock))
        super().move_to_end(key, last)

    def popitem(self, last: bool = True) -> tuple[Any, Any]:
        self.held.append(is_held(self.lock))
        return super().popitem(last)
