"""What answers of HTTP say, and their bodies: bounded, watched by a clock, checked.

Source: RFC 9110 (ranges, content codings).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.transport.buffer import buffer
from nczarr_fsspec.transport.policy import Clock, TransientError

_CONTENT_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d+)", re.IGNORECASE)
#: forms of compression that can be undone in bounds: zlib's ``wbits`` for each
_INFLATABLE = {"gzip": 31, "x-gzip": 31, "deflate": 15}
#: bytes that are inflated at a time
_INFLATED = 1 << 20


class ContentRange(NamedTuple):
    """Bytes ``[start, stop)`` of a file of `size` bytes (None if the server does not say)."""

    start: int
    stop: int
    size: int | None


def content_range(header: str | None) -> ContentRange | None:
    """Parse ``Content-Range``; None if it is missing or makes no sense."""
    stated = _CONTENT_RANGE.fullmatch((header or "").strip())
    if stated is None:
        return None
    size = None if stated[3] == "*" else int(stated[3])
    found = ContentRange(int(stated[1]), int(stated[2]) + 1, size)
    sensible = found.start < found.stop and (size is None or found.stop <= size)
    return found if sensible else None


def unsatisfied_size(header: str | None) -> int | None:
    """The size of the file, from ``Content-Range`` of the answer 416."""
    stated = _UNSATISFIED.fullmatch((header or "").strip())
    return None if stated is None else int(stated[1])


def is_encoded(response: aiohttp.ClientResponse) -> bool:
    """Whether the body was compressed on its way."""
    return response.headers.get("Content-Encoding", "identity").lower() != "identity"


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of a file and where it lies: `partial` if the server honoured the range."""

    body: bytes
    size: int | None
    partial: bool


def range_header(start: int, stop: int | None) -> str:
    """The header ``Range``; a negative `start` counts from the end."""
    if start < 0:
        return f"bytes={start}"
    return f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"


async def whole_file(
    response: aiohttp.ClientResponse,
    clock: Clock,
    shown: str,
    start: int | None,
    stop: int | None,
    most: int | None,
) -> Answer:
    """The answer 200: the file from its beginning, whatever range was asked for.

    Parameters
    ----------
    start, stop
        What was asked for.
    most
        Bytes that may be read.
    """
    length = None if is_encoded(response) else response.content_length
    if start is not None and start < 0:
        if length is None or length > -start:
            return Answer(b"", length, partial=False)  # not the whole file for its tail
        start = None
    if stop is not None and (length is None or length > stop):
        body = await up_to(response, clock, shown, stop - 1)
        if len(body) >= stop:
            return Answer(body[start:stop], length, partial=False)
    else:
        body = await at_most(response, clock, shown, most)
    if length is not None and len(body) != length:
        raise TransientError(f"the body has {len(body)} of {length} bytes")
    return Answer(body[start:] if start else body, length, partial=False)


async def part_of_file(
    response: aiohttp.ClientResponse,
    clock: Clock,
    shown: str,
    start: int,
    stop: int | None,
    most: int | None,
) -> Answer:
    """The answer 206: check that it is the range that was asked for, and all of it."""
    stated = content_range(response.headers.get("Content-Range"))
    asked = -start if start < 0 else None if stop is None else stop - start
    if stated is not None and asked is not None and stated.stop - stated.start > asked:
        raise wrong_range(shown, stated, start, stop)
    body = await at_most(response, clock, shown, most if asked is None else asked)
    if stated is None:  # a proxy may lose it; then only the length can tell
        if stop is None or start < 0 or len(body) != stop - start:
            raise StoreError(shown, "the server sent a byte range without saying which")
        return Answer(body, None, partial=True)
    first, end, size = stated
    if len(body) != end - first:
        raise TransientError(f"the body has {len(body)} of {end - first} bytes")
    if size is None:
        if start < 0:
            return Answer(b"", None, partial=False)  # the tail of what?
        wanted = start, end
    else:
        wanted = slice(start, stop).indices(size)[:2]
    if (first, end) != wanted:
        raise wrong_range(shown, stated, *wanted)
    return Answer(body, size, partial=True)


def wrong_range(shown: str, sent: ContentRange, start: int, stop: int | None) -> StoreError:
    """The error for another range than ``[start, stop)``; a negative `start` is from the end."""
    asked = range_header(start, stop).removeprefix("bytes=")
    return StoreError(
        shown, f"the server sent bytes {sent.start}-{sent.stop - 1}, asked for {asked}"
    )


async def pieces(
    response: aiohttp.ClientResponse, clock: Clock, shown: str
) -> AsyncIterator[bytes]:
    """The body as it comes, inflated if it was compressed on its way; `clock` watches."""
    inflater = _inflater(response, shown) if is_encoded(response) else None
    have = 0
    async for piece in response.content.iter_any():
        have += len(piece)
        if have >= clock.mark:
            clock.came(have)
        if inflater is None:
            yield piece
        else:
            async for plain in inflater.inflate(piece):
                yield plain
    if inflater is not None:
        inflater.end()


async def at_most(
    response: aiohttp.ClientResponse, clock: Clock, shown: str, most: int | None
) -> bytes:
    """The body.

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


async def up_to(response: aiohttp.ClientResponse, clock: Clock, shown: str, most: int) -> bytes:
    """The body; if it has more than `most` bytes, at least one more than that."""
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
        while piece:
            if not self._begun and self._bits == 15 and piece[0] & 15 != 8:
                self._stream = zlib.decompressobj(-15)  # some servers leave zlib's header out
            self._begun = True
            try:
                plain = self._stream.decompress(piece, _INFLATED)
            except zlib.error as error:
                raise TransientError(f"the body is compressed and damaged ({error})") from None
            piece = self._stream.unconsumed_tail
            if plain:
                yield plain

    def end(self) -> None:
        if self._begun and not self._stream.eof:
            raise TransientError("the body is compressed and ends early")


def _inflater(response: aiohttp.ClientResponse, shown: str) -> _Inflater:
    encoding = response.headers["Content-Encoding"].strip().lower()
    if encoding not in _INFLATABLE:
        raise StoreError(
            shown, f"the server compressed it ({encoding:.40}), though it was asked not to"
        )
    return _Inflater(_INFLATABLE[encoding])


async def exactly(pieces: AsyncIterator[bytes], count: int) -> memoryview:
    """A body that comes in pieces and must have `count` bytes.

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
