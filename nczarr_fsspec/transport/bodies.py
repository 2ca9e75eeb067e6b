"""Bodies of answers: bounded, watched by a clock, inflated where they were compressed.

Source: RFC 9110 (content codings).
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.transport.policy import Clock
from nczarr_fsspec.transport.request import TransientError

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
