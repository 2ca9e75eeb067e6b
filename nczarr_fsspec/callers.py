"""Where a warning belongs: to the line of the user's code that led to it."""

from __future__ import annotations

import sys

#: Packages whose lines say nothing to a user.
_OURS = frozenset(("contextlib", "nczarr_fsspec", "nczarr_xarray", "xarray"))


def caller_level() -> int:
    """Return the `stacklevel` by which a warning of the calling function names the user's code.

    In a thread of a pool there is none: then the outermost line is named.
    """
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - as `warnings` does
    while frame.f_globals.get("__name__", "").partition(".")[0] in _OURS and frame.f_back:
        level, frame = level + 1, frame.f_back
    return level
