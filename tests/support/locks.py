"""Whether a lock is held where it has to be: threads that need it seldom meet by chance."""

from __future__ import annotations

import os

from nczarr_fsspec.forks import ProcessLock


def is_held(lock: ProcessLock) -> bool:
    """Whether any thread of this process holds it."""
    own = lock._locks.get(os.getpid())
    return own is not None and own.locked()
