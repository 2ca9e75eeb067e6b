"""Text for people: on one line, for terminals and for records; numbers of things, and hints."""

from __future__ import annotations

from collections.abc import Iterable


def printable(text: str) -> str:
    """Return a text as one line without control characters, which names of files may have."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural if need be: ``4 groups``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about a name that is not among `names`."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""
