"""When a file or directory was made, which `os.stat` does not say on Linux."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import Any

#: Of ``linux/stat.h``: relative paths count from the working directory; the bit of the time.
_CURRENT, _BIRTH = -100, 0x800
#: The structure that is filled in; the bits, the seconds and the nanoseconds in it.
_Status: Any = ctypes.c_char * 256
_FIELDS = struct.Struct("=I76xqI")


def birth_of(path: str) -> int | None:
    """Return when what is at `path` was made, in nanoseconds; None if the system does not tell."""
    if sys.platform != "linux":
        status: Any = os.stat(path)
        made = getattr(status, "st_birthtime", None)
        return None if made is None else round(made * 1e9)
    statx = _statx()
    found = _Status()
    if statx is None or statx(_CURRENT, os.fsencode(path), 0, _BIRTH, found) != 0:
        return None
    known, seconds, nanoseconds = _FIELDS.unpack_from(found)
    return int(seconds) * 10**9 + int(nanoseconds) if known & _BIRTH else None


@cache
def _statx() -> Any:
    """Return the function of the C library; None where it has none."""
    with suppress(AttributeError, OSError, TypeError):
        function = ctypes.CDLL(None).statx
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, _Status)
        return function
    return None
