"""What answers bring: which bytes of a file, and these: bounded, watched by a clock, inflated.

Source: RFC 9110 (content codings; ``Content-Range`` in section 14.4).
"""

from __future__ import annotations

import mmap
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.transport.policy import Clock
from nczarr_fsspec.transport.request import Extent, TransientError

# -- Content-Range -------------------------------------------------------------------------------

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


def multipart_boundary(content_type: str) -> bytes | None:
    """Return the boundary that ``Content-Type`` states; None if that is another type."""
    if content_type.partition(";")[0].strip().lower() != "multipart/byteranges":
        return None
    found = _BOUNDARY.search(content_type)
    return None if found is None else (found[1] or found[2]).encode("latin-1", "replace")


def multipart_parts(body: bytes, mark: bytes) -> list[Part] | None:
    """Split a body; None if it is not what the standard demands.

    The length of a part is the one that its ``Content-Range`` states: data may hold
    anything, also what looks like a boundary.

    Parameters
    ----------
    body
        From its first to its last byte.
    mark
        The `multipart_boundary`.
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


def cut_from_parts(found: list[Part], extent: Extent) -> memoryview | None:
    """Return the bytes of `extent`, if they are in one of the parts."""
    for where, data in found:
        if where.start <= extent.start and extent.stop <= where.stop:
            return data[extent.start - where.start : extent.stop - where.start]
    return None


# -- buffer --------------------------------------------------------------------------------------
# Memory for what comes over a network.


#: from this size on, in bytes, memory is pages of its own
LARGE = 1 << 17


def buffer(count: int) -> memoryview:
    """Return memory for `count` bytes, writable; they are zero.

    A large one is pages of its own, which the system has back as soon as nothing refers to them.
    The C library's allocator would keep them: it takes from its heap what is no larger than blocks
    that were freed before, and so this grows by all buffers that were ever held at a time.
    """
    if count < LARGE:
        return memoryview(bytearray(count))
    try:
        pages = mmap.mmap(-1, count, access=mmap.ACCESS_COPY)  # of no other process
    except OSError:  # no memory, which `bytearray` says better, or too many mappings
        return memoryview(bytearray(count))
    if hasattr(mmap, "MADV_HUGEPAGE"):  # touching small ones for the first time takes long
        with suppress(OSError):  # of a kernel without
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


# -- bodies --------------------------------------------------------------------------------------


#: forms of compression that can be undone in bounds: zlib's ``wbits`` for each
_GZIP, _DEFLATE = 31, 15
_INFLATABLE = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _DEFLATE}
#: what names no compression; services that speak S3 keep the second, which is one of uploads
_PLAIN = frozenset({"", "aws-chunked", "identity"})
#: bytes that are inflated at a time
INFLATED = 1 << 20


class Response(Protocol):
    """An answer of HTTP: aiohttp's, or botocore's in the same form."""

    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content_length(self) -> int | None: ...
    @property
    def content(self) -> Any: ...
    @property
    def url(self) -> Any: ...
    def close(self) -> None: ...


def encoding_of(response: Response) -> str:
    """Return how the body was compressed on its way; ``""`` if it was not."""
    words = response.headers.get("Content-Encoding", "").lower().split(",")
    return ", ".join(word for word in map(str.strip, words) if word not in _PLAIN)


async def pieces(response: Response, clock: Clock, shown: str) -> AsyncIterator[bytes]:
    """Return the body as it comes, inflated if it was compressed on its way; `clock` watches."""
    inflater, encoding = None, encoding_of(response)
    if encoding:
        if encoding not in _INFLATABLE:
            reason = f"the server compressed it ({encoding:.40}), though it was asked not to"
            raise StoreError(shown, reason)
        inflater = _Inflater(_INFLATABLE[encoding])
    have = 0
    async for piece in response.content.iter_any():
        have += len(piece)
        if clock.seen is not None:
            clock.seen.nbytes += len(piece)
        if have >= clock.mark:
            clock.came(have)
        if inflater is None:
            yield piece
        else:
            async for plain in inflater.inflate(piece):
                yield plain
    if inflater is not None:
        inflater.end()


async def at_most(response: Response, clock: Clock, shown: str, most: int | None) -> bytes:
    """Return the body.

    Raises
    ------
    TooLargeError
        If it has more than `most` bytes; not many more have been read then.
    """
    if most is None:
        return b"".join([piece async for piece in pieces(response, clock, shown)])
    if (response.content_length or 0) > most:
        raise too_large(shown, most)
    body = await up_to(response, clock, shown, most)
    if len(body) > most:
        raise too_large(shown, most)
    return body


async def up_to(response: Response, clock: Clock, shown: str, most: int) -> bytes:
    """Return the body; if it has more than `most` bytes, at least one more than that."""
    parts = []
    have = 0
    async for piece in pieces(response, clock, shown):
        parts.append(piece)
        have += len(piece)
        if have > most:
            response.close()
            break
    return b"".join(parts)


class _Inflater:
    """Undoes the compression of a body, so much at a time."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._stream = zlib.decompressobj(bits)
        self._begun = False

    async def inflate(self, piece: bytes) -> AsyncIterator[bytes]:
        full = False
        while piece or full:
            if self._stream.eof:
                if self._bits == _DEFLATE:
                    raise TransientError("the body is compressed, and has more than that")
                self._stream = zlib.decompressobj(self._bits)  # gzip may have several members
            if not self._begun and self._bits == _DEFLATE and piece[0] & 15 != 8:
                self._stream = zlib.decompressobj(-15)  # some servers leave zlib's header out
            self._begun = True
            try:
                plain = self._stream.decompress(piece, INFLATED)
            except zlib.error as error:
                raise TransientError(f"the body is compressed and damaged ({error})") from None
            # there may be more in it also if it has taken all of the piece
            full = len(plain) == INFLATED and not self._stream.eof
            piece = self._stream.unused_data or self._stream.unconsumed_tail
            if plain:
                yield plain

    def end(self) -> None:
        if self._begun and not self._stream.eof:
            raise TransientError("the body is compressed and ends early")


async def exactly(pieces: AsyncIterator[bytes], count: int) -> memoryview:
    """Return a body that comes in pieces and must have `count` bytes.

    Raises
    ------
    TransientError
        If it has less or more.
    """
    body = buffer(count)
    have = 0
    async for piece in pieces:
        begin, have = have, have + len(piece)
        if have > count:
            raise TransientError(f"the body has more than {count} bytes")
        body[begin:have] = piece
    if have < count:
        raise TransientError(f"the body has {have} of {count} bytes")
    return body.toreadonly()
