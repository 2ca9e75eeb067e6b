"""Text for people: on one line, for terminals and for records; numbers, sizes and hints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import SupportsIndex

from nczarr_fsspec.errors import URLError

_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([kKMGTPEZY]?)(i?)(?:[bB](?:ytes)?)?\s*")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6, "Z": 7, "Y": 8}


def printable(text: str) -> str:
    """Return a text as one line without control characters, which names of files may have."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural if need be: ``4 groups``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], numbers: int = 0) -> Iterator[str]:
    """Yield the lines of a table.

    Parameters
    ----------
    numbers
        Columns at its end that are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column < len(row) - numbers else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about a name that is not among `names`."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def parse_size(size: str | SupportsIndex, option: str = "size") -> int:
    """Return a size in bytes.

    Parameters
    ----------
    size
        A number of bytes, or text: ``"50MB"`` is 50,000,000, ``"50MiB"`` 52,428,800 bytes.
    option
        How messages name it.

    Raises
    ------
    URLError
        If it is no size, or less than one byte.
    """
    if isinstance(size, str):
        found = _SIZE.fullmatch(size)
        if found is None or (found[3] and not found[2]):
            raise _no_size(size, option)
        number = float(found[1]) if "." in found[1] else int(found[1])
        count = int(number * (1024 if found[3] else 1000) ** _POWERS[found[2]])
    else:
        try:
            count = index(size)
        except TypeError:  # a configuration may have anything
            raise _no_size(size, option) from None
    if count < 1:
        raise URLError(option, f"{size!r} is less than one byte")
    return count


def _no_size(size: object, option: str) -> URLError:
    return URLError(option, f"{size!r:.80} is no size; write a number of bytes, or '50MB'")


def format_size(size: int) -> str:
    """Return a number of bytes with three digits: ``778 kB``."""
    if size < 1000:
        return f"{size} B"
    power = min((len(str(size)) - 1) // 3, 6)
    return f"{size / 1000**power:.3g} {' kMGTPE'[power]}B"
