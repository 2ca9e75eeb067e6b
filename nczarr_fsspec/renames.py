"""Renames in one step that `os.rename` does not know."""

from __future__ import annotations

import ctypes
import os
import sys

#: Flags of ``renameat2`` (Linux) and of ``renamex_np`` (macOS).
_ONLY_NEW, _EXCHANGE = 1, 2
_ONLY_NEW_MACOS, _EXCHANGE_MACOS = 4, 2


def exchange(one: str, other: str) -> bool:
    """Exchange the names of two directories in one step; return False if the system cannot."""
    return _rename(one, other, _EXCHANGE, _EXCHANGE_MACOS) == 0


def rename_to_new(old: str, new: str) -> bool:
    """Rename a file, in one step, where nothing is yet; return False if the system cannot.

    Raises
    ------
    FileExistsError
        If there is something.
    """
    failed = _rename(old, new, _ONLY_NEW, _ONLY_NEW_MACOS)
    if failed and os.path.lexists(new):
        raise FileExistsError(new)
    return failed == 0


def _rename(one: str, other: str, flag: int, flag_macos: int) -> int:
    """Call the function of the C library; what it returns, or 1 if there is none."""
    try:
        library = ctypes.CDLL(None)
        names = os.fsencode(one), os.fsencode(other)
        if sys.platform == "darwin":
            return int(library.renamex_np(*names, flag_macos))
        current = -100  # AT_FDCWD: relative paths count from the working directory
        return int(library.renameat2(current, names[0], current, names[1], flag))
    except (AttributeError, OSError, TypeError):
        return 1
