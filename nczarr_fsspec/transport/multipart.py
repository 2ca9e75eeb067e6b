"""``multipart/byteranges``: several ranges of a file in one answer.

Source: RFC 9110 section 14.6, RFC 2046 section 5.1; bodies of nginx and Apache.
"""

from __future__ import annotations

import re

from nczarr_fsspec.transport.contentrange import ContentRange, content_range
from nczarr_fsspec.transport.request import Extent

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
        stated = [line.partition(":")[2] for line in lines if _names_range(line)]
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


def _names_range(line: str) -> bool:
    return line.partition(":")[0].strip().lower() == "content-range"
