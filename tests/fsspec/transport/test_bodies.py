"""Bodies that were compressed on their way: they come as they were, bounded, or are refused."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from nczarr_fsspec.errors import StoreError, TooLargeError
from nczarr_fsspec.transport.answers import read_answer
from nczarr_fsspec.transport.bodies import INFLATED, at_most, exactly, up_to
from nczarr_fsspec.transport.policy import Clock, Timeout
from nczarr_fsspec.transport.request import (
    Answer,
    Extent,
    FileVersion,
    Request,
    ServerState,
    TransientError,
)

DATA = bytes(range(256)) * 1000


class Content:
    """A body that comes in pieces of so many bytes."""

    def __init__(self, body: bytes, size: int) -> None:
        self.parts = [body[at : at + size] for at in range(0, len(body), size)]

    async def iter_any(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


class Body:
    """The answer of a server."""

    status = 200
    reason: str | None = "OK"
    url: Any = "http://h/x"

    def __init__(self, body: bytes, encoding: str = "", size: int = 1000) -> None:
        self.headers: Mapping[str, str] = {"Content-Encoding": encoding} if encoding else {}
        self.content_length: int | None = len(body)
        self.content: Any = Content(body, size)
        self.closed = False

    def close(self) -> None:
        self.closed = True


def whole(body: Body, most: int | None = None) -> bytes:
    async def main() -> bytes:
        return await at_most(body, Clock(Timeout()), "x", most)

    return asyncio.run(main())


def raw(data: bytes) -> bytes:
    """Deflate without zlib's header."""
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("size", [1, 7, 10**6])
@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("identity", DATA),
        (" ", DATA),
        ("aws-chunked", DATA),
        ("Identity, aws-chunked", DATA),
        ("aws-chunked,gzip", gzip.compress(DATA)),
        ("gzip", gzip.compress(DATA)),
        ("X-GZip", gzip.compress(DATA)),
        ("gzip", gzip.compress(DATA[:70_000]) + gzip.compress(b"") + gzip.compress(DATA[70_000:])),
        (" deflate ", zlib.compress(DATA)),
        ("deflate", raw(DATA)),  # as some servers send it
    ],
)
def test_a_compressed_body_is_inflated(encoding: str, body: bytes, size: int) -> None:
    assert whole(Body(body, encoding, size)) == DATA


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 100])
def test_other_forms_of_compression_are_refused(encoding: str) -> None:
    with pytest.raises(StoreError, match="the server compressed it"):
        whole(Body(DATA, encoding))


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", gzip.compress(DATA)), ("deflate", zlib.compress(DATA)), ("deflate", raw(DATA))],
)
def test_a_compressed_body_that_is_cut_or_damaged_is_asked_for_again(
    encoding: str, body: bytes
) -> None:
    with pytest.raises(TransientError, match="compressed and ends early"):
        whole(Body(body[:-5], encoding))
    with pytest.raises(TransientError, match="compressed and damaged"):
        whole(Body(body[:4] + b"\xff" * 100 + body[104:], encoding))


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        ("gzip", gzip.compress(DATA), "compressed and damaged"),
        ("deflate", zlib.compress(DATA), "has more than that"),
        ("deflate", raw(DATA), "has more than that"),
    ],
)
def test_what_follows_a_compressed_body_is_not_collected(
    encoding: str, body: bytes, reason: str
) -> None:
    with pytest.raises(TransientError, match=reason):
        whole(Body(body + bytes(100), encoding))


def test_all_of_a_full_buffer_comes() -> None:
    """zlib may have taken all of a body, and still have some of it to give."""
    for count in range(INFLATED, INFLATED + 300):
        body = raw(bytes(count))
        assert len(whole(Body(body, "deflate", len(body)))) == count


def test_an_empty_body_is_empty_whatever_its_form() -> None:
    assert whole(Body(b"", "gzip")) == b""


def test_no_more_is_inflated_than_asked_for() -> None:
    """A few bytes may become very many."""
    bomb = gzip.compress(bytes(1 << 28), compresslevel=1)
    body = Body(bomb, "gzip", len(bomb))
    body.content_length = None
    with pytest.raises(TooLargeError):
        whole(body, 1 << 20)
    assert body.closed


def test_the_beginning_of_a_body_is_enough() -> None:
    async def main(body: Body, most: int) -> bytes:
        return await up_to(body, Clock(Timeout()), "x", most)

    long = Body(DATA)
    assert asyncio.run(main(long, 1500)) == DATA[:2000]
    assert long.closed
    short = Body(DATA[:1500])
    assert asyncio.run(main(short, 1500)) == DATA[:1500]
    assert not short.closed


@pytest.mark.parametrize(("count", "message"), [(4, None), (3, "more than 3"), (5, "4 of 5")])
def test_a_body_of_a_known_length(count: int, message: str | None) -> None:
    async def main() -> bytes:
        return bytes(await exactly(Content(b"four", 2).iter_any(), count))

    if message is None:
        assert asyncio.run(main()) == b"four"
        return
    with pytest.raises(TransientError, match=message):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("extents", "whole", "stated"),
    [
        (None, False, True),
        ([Extent(5, 2000)], False, True),
        ([Extent(5, 2000)], True, True),
        ([Extent(5, 2000)], True, False),
    ],
)
def test_a_body_that_ends_early(extents: list[Extent] | None, whole: bool, stated: bool) -> None:
    """Libraries of HTTP mostly tell; where they do not, the length does that the server stated.

    Without one, as of HTTP/1.0, the size does that a file which is kept whole is known to have.
    """
    body = Body(DATA[:1500])
    body.content_length = len(DATA) if stated else None
    version = FileVersion(etag='"1"', size=len(DATA))
    body.headers = {"ETag": '"1"'}
    server = ServerState(1, 1 << 20) if whole else None
    request = Request("x", "x", extents, version=version, server=server)

    async def answer() -> Answer | None:
        return await read_answer(body, Clock(Timeout()), request)

    with pytest.raises(TransientError, match=f"the body has 1500 of {len(DATA)} bytes"):
        asyncio.run(answer())
