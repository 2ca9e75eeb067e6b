"""Text for terminals."""

from __future__ import annotations

import sys


def printable(text: str) -> str:
    """Make `text` one line that cannot command a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def report(error: Exception) -> None:
    """Write one line about `error` to stderr."""
    print(f"nczarr: {printable(str(error))}", file=sys.stderr)
