"""Answers of HTTP in virtual time: a session of aiohttp's without a network.

What a server does is a `Make`: from the path and the range of a request to a `Reply`. It is run
by `tests.support.servers.virtualnet.run`, so nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

from yarl import URL

Speaker: TypeAlias = Callable[["Reply"], AsyncIterator[bytes]]


@dataclass
class Reply:
    """An answer of aiohttp's.

    Parameters
    ----------
    before
        Seconds until it begins.
    speak
        Makes its body.
    """

    before: float
    speak: Speaker
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    begun: bool = False
    closed: bool = False

    url: URL = field(default_factory=URL)

    reason = "OK"

    @property
    def content_length(self) -> int | None:
        length = self.headers.get("Content-Length")
        return None if length is None else int(length)

    @property
    def content(self) -> Self:
        return self

    async def begin(self) -> Self:
        """Wait for the beginning, as the request does that is awaited or entered."""
        self.begun = True
        await asyncio.sleep(self.before)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.begin().__await__()

    async def __aenter__(self) -> Self:
        return self if self.begun else await self.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def close(self) -> None:
        self.closed = True

    def iter_any(self) -> AsyncIterator[bytes]:
        return self.speak(self)


Make: TypeAlias = Callable[[str, str], Reply]


@dataclass(eq=False)
class Connector:
    """The connections of a session: how many there may be."""

    limit: int
    limit_per_host: int = 0


class Session:
    """A session of aiohttp's whose server is `make`, called with path and header ``Range``."""

    closed = False

    def __init__(self, make: Make) -> None:
        self.make = make
        self.requests = 0
        self.connector: Connector | None = None

    def get(self, url: Any, *, headers: Any, **options: Any) -> Reply:
        self.requests += 1
        reply = self.make(URL(url).path, headers.get("Range", ""))
        reply.url = URL(url)
        return reply

    async def close(self) -> None: ...


async def nothing(reply: Reply) -> AsyncIterator[bytes]:
    """Send nothing, ever."""
    await asyncio.sleep(1e9)
    yield b""


async def empty(reply: Reply) -> AsyncIterator[bytes]:
    """Send a body of no bytes."""
    return
    yield b""


def every(seconds: float, piece: bytes) -> Speaker:
    """Send `piece` after each `seconds`, without end."""

    async def speak(reply: Reply) -> AsyncIterator[bytes]:
        while not reply.closed:
            await asyncio.sleep(seconds)
            yield piece

    return speak


def paced(content: bytes, rate: float, piece: int = 1 << 16) -> Speaker:
    """Send `content` at so many bytes per second."""

    async def speak(reply: Reply) -> AsyncIterator[bytes]:
        for at in range(0, len(content), piece):
            part = content[at : at + piece]
            await asyncio.sleep(len(part) / rate)
            yield part

    return speak


def serving(
    files: dict[str, bytes], latency: float = 0.0, rate: float = 1e9, tag: str = '"1"'
) -> Make:
    """Return a server of `files` by path, which serves single ranges."""

    def make(path: str, asked: str) -> Reply:
        if path not in files:
            return Reply(latency, empty, 404)
        whole = files[path]
        size, status = len(whole), 200
        long_past = {"Last-Modified": "Sun, 06 Nov 1994 12:00:00 GMT"}
        headers = {"ETag": tag, **long_past, "Date": "Sun, 06 Nov 1994 13:00:00 GMT"}
        start, stop = 0, size
        if asked:
            status = 206
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if first:
                start, stop = int(first), min(size, int(last) + 1 if last else size)
            else:
                start = max(0, size - int(last))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        headers["Content-Length"] = str(stop - start)
        return Reply(latency, paced(whole[start:stop], rate), status, headers)

    return make
