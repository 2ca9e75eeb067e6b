"""The header ``Content-Range``: which bytes of a file an answer has.

Source: RFC 9110 section 14.4.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# (a file has no more digits, and Python refuses to make a number of thousands)
_RANGE = re.compile(r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d{1,18})", re.IGNORECASE)


class ContentRange(NamedTuple):
    """Bytes ``[start, stop)`` of a file of `size` bytes (None if the server does not say)."""

    start: int
    stop: int
    size: int | None


def content_range(header: str | None) -> ContentRange | None:
    """Parse ``Content-Range``; None if it is missing or makes no sense."""
    stated = _RANGE.fullmatch((header or "").strip())
    if stated is None:
        return None
    size = None if stated[3] == "*" else int(stated[3])
    found = ContentRange(int(stated[1]), int(stated[2]) + 1, size)
    sensible = found.start < found.stop and (size is None or found.stop <= size)
    return found if sensible else None


def unsatisfied_size(header: str | None) -> int | None:
    """Return the size of the file, from ``Content-Range`` of the answer 416."""
    stated = _UNSATISFIED.fullmatch((header or "").strip())
    return None if stated is None else int(stated[1])
