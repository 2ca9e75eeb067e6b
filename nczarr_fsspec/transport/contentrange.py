"""The header ``Content-Range``: which bytes of a file an answer has.

Source: RFC 9110 section 14.4.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nczarr_fsspec.transport.request import Extent

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


# -- multipart -----------------------------------------------------------------------------------
# ``multipart/byteranges``: several ranges of a file in one answer.
#
# Source: RFC 9110 section 14.6, RFC 2046 section 5.1; bodies of nginx and Apache.


#: bytes of a part's header at most
_HEADER_BYTES = 4096
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)

#: where a part lies in the file, and its bytes
Part = tuple[ContentRange, memoryview]


def boundary(content_type: str) -> bytes | None:
    """Return the boundary that ``Content-Type`` states; None if that is another type."""
    if content_type.partition(";")[0].strip().lower() != "multipart/byteranges":
        return None
    found = _BOUNDARY.search(content_type)
    return None if found is None else (found[1] or found[2]).encode("latin-1", "replace")


def parts(body: bytes, mark: bytes) -> list[Part] | None:
    """Split a body; None if it is not what the standard demands.

    The length of a part is the one that its ``Content-Range`` states: data may hold
    anything, also what looks like a boundary.

    Parameters
    ----------
    body
        From its first to its last byte.
    mark
        The `boundary`.
    """
    found: list[Part] = []
    view = memoryview(body)
    delimiter = b"--" + mark
    at = body.find(delimiter)
    if at not in (0, 2) or body[:at] not in (b"", b"\r\n"):
        return None
    at += len(delimiter)
    while not body.startswith(b"--", at):
        end = body.find(b"\r\n\r\n", at, at + _HEADER_BYTES)
        if end < 0:
            return None
        lines = body[at:end].decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in lines)
        stated = [text for name, _, text in named if name.strip().lower() == "content-range"]
        if len(stated) != 1 or (where := content_range(stated[0])) is None:
            return None
        start = end + 4
        stop = start + where.stop - where.start
        if not body.startswith(b"\r\n" + delimiter, stop):
            return None
        found.append((where, view[start:stop]))
        at = stop + 2 + len(delimiter)
    return found


def cut(found: list[Part], extent: Extent) -> memoryview | None:
    """Return the bytes of `extent`, if they are in one of the parts."""
    for where, data in found:
        if where.start <= extent.start and extent.stop <= where.stop:
            return data[extent.start - where.start : extent.stop - where.start]
    return None
