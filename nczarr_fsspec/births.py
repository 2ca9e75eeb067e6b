"""When a file or directory was made, which `os.stat` does not say on Linux."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import Any

#: Of ``linux/stat.h``: relative paths count from the working directory; the bit of the time; bytes
#: of the structure, and where in it the bits and the time are.
_CURRENT, _BIRTH, _SIZE, _AT = -100, 0x800, 256, 80


def birth_of(path: str) -> int | None:
    """Return when what is at `path` was made, in nanoseconds; None if the system does not tell."""
    if sys.platform != "linux":
        status: Any = os.stat(path)
        made = getattr(status, "st_birthtime", None)
        return None if made is None else round(made * 1e9)
    statx = _statx()
    found = ctypes.create_string_buffer(_SIZE)
    if statx is None or statx(_CURRENT, os.fsencode(path), 0, _BIRTH, found) != 0:
        return None
    (known,) = struct.unpack_from("I", found)
    seconds, nanoseconds = struct.unpack_from("qI", found, _AT)
    return int(seconds) * 10**9 + int(nanoseconds) if known & _BIRTH else None


@cache
def _statx() -> Any:
    """Return the function of the C library; None where it has none."""
    with suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).statx
    return None
