"""Text on one line, for terminals and for records."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text as one line without control characters, which names of files may have."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
