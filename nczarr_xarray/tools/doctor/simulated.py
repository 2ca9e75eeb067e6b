"""A dataset as it would be behind a network: real metadata, requests in virtual time.

Everything above the transport is the engine itself, so what it asks for here is what it asks for.
"""

from __future__ import annotations

import asyncio
import builtins
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from nczarr_fsspec.keystore import ALL, Object, RemoteStore
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.policy import most_connections
from nczarr_fsspec.transport.recording import SEEN
from nczarr_fsspec.transport.request import Answer, Data, Extent, FileVersion, Request
from nczarr_fsspec.transport.throttle import Throttle
from nczarr_xarray.tools.doctor.network import Line, Network, VirtualLoop

T = TypeVar("T")

#: Whether the bytes that are read now do not matter, and may be zeros.
BLANK: ContextVar[bool] = ContextVar("BLANK", default=False)
#: The steps of a task that depends on no other one; None if they count for all.
STEPS: ContextVar[list[tuple[float, float]] | None] = ContextVar("STEPS", default=None)
#: What paths of fragments begin with.
FRAGMENT = "fragment of "
#: What a part of an answer has besides its bytes, if there are several.
_PART_HEADER = 150
#: What a list of names takes.
_LISTING = 1 << 10
_VERSION = FileVersion(etag='"1"')


@dataclass(slots=True)
class Round:
    """What is asked of a tree at a time.

    Parameters
    ----------
    keys
        With the part of each, as of `RemoteStore.get`.
    prefixes
        That are listed.
    """

    keys: list[tuple[str, slice]] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)


class Content(ABC):
    """What the server has. Its bytes are read from the real dataset, or are none of its own.

    Parameters
    ----------
    ranges
        Extents that one request may name.
    can_list
        Whether it lists names.
    """

    def __init__(self, ranges: int, *, can_list: bool) -> None:
        self.ranges = ranges
        self.can_list = can_list

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the bytes of a file; None if there is none."""

    @abstractmethod
    def read(self, path: str, start: int, stop: int) -> Data:
        """Return bytes of a file."""

    def fetched(self, paths: Iterable[str]) -> None:
        """Get ready what will be asked for together."""

    def index(self, path: str, part: slice) -> bytes | None:
        """Return the index of a shard of Zarr 3, which is a part of it; None if there is none."""
        return None

    def list(self, path: str) -> frozenset[str] | None:
        """Return the names directly below a path; None where listing is impossible."""
        return None


class SimulatedTransport(Transport):
    """Requests that take as long as they would on a network, in virtual time; counts them.

    Attributes
    ----------
    requests, nbytes : int
        How many were sent, and the bytes that came of files.
    steps : list of (float, float)
        When each step that takes a round trip, at least, began and ended.
    """

    def __init__(self, content: Content, network: Network) -> None:
        # (there is no filesystem to make the like of, which `Transport.__init__` is about)
        self.content = content
        self.network = network
        self.ranges = content.ranges
        self.can_list = content.can_list
        self.requests = self.nbytes = 0
        self.steps: list[tuple[float, float]] = []
        self._loop = VirtualLoop()
        self._throttle = Throttle(most_connections())
        self._line = Line(min(network.per_connection, network.bandwidth), network.bandwidth)
        self._idle = 0

    @property
    def loop(self) -> VirtualLoop:
        return self._loop

    def describe(self, path: str) -> str:
        return path

    def throttle(self, path: str) -> Throttle:
        return self._throttle

    async def step(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await what takes one round trip, if it sends anything."""
        sent, began = self.requests, self._loop.now
        result = await coroutine
        if self.requests > sent and self._loop.now > began:
            own = STEPS.get()
            (self.steps if own is None else own).append((began, self._loop.now))
        return result

    @property
    def rounds(self) -> int:
        """The steps that had to wait for each other: the longest chain of them."""
        count, end = 0, -1.0
        for began, ended in sorted(self.steps, key=lambda step: step[1]):
            if began >= end:
                count, end = count + 1, ended
        return count

    async def list(self, path: str) -> frozenset[str] | None:
        if not self.can_list:
            return None
        await self._carry(_LISTING)
        return self.content.list(path)

    async def _attempt(self, request: Request, left: float) -> Answer | None:
        content, path, server = self.content, request.path, request.server
        size = content.size(path)
        if size is None:
            await self._carry(0)
            return None
        extents = [(0, size)] if request.extents is None else request.extents
        if request.tail:
            extents = [(max(0, size - request.tail), size)]
        spans = [(start, max(start, min(stop, size))) for start, stop in extents]
        nbytes = sum(stop - start for start, stop in spans)
        parts = [content.read(path, start, stop) for start, stop in spans]
        several = len(parts) > 1
        opened = await self._begin()
        try:
            body = self._body(parts, nbytes + several * _PART_HEADER * len(parts))
            if server is None or several or not parts:
                await body
            else:
                await server.timed(body)
        finally:
            self._idle += 1
        if server is not None:
            server.arrived("", "", self.network.latency + opened)
        self.nbytes += nbytes
        return Answer(parts, _VERSION._replace(size=size))

    async def _body(self, parts: Sequence[Data], nbytes: int) -> memoryview:
        await self._line.carry(nbytes)
        return memoryview(parts[0] if parts else b"")

    async def _begin(self) -> float:
        """Wait for the first byte of an answer; return the seconds that connecting took."""
        self.requests += 1
        fresh = not self._idle
        self._idle -= not fresh
        opened = self.network.connecting * fresh
        await asyncio.sleep(self.network.latency + opened)
        if (seen := SEEN.get()) is not None:
            seen.begins(HTTPStatus.OK)
        return opened

    async def _carry(self, nbytes: int) -> None:
        await self._begin()
        await self._line.carry(nbytes)
        self._idle += 1

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.close()


class SimulatedFile(RemoteFileBytes):
    """One file behind a `SimulatedTransport`."""

    def __init__(self, transport: SimulatedTransport, path: str, url: str) -> None:
        super().__init__(transport, path, url, 0)
        self.transport = transport

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.transport.loop.run_until_complete(coroutine)

    async def begin(self, known: Known | None, tail: int = 0) -> None:
        await self.transport.step(super().begin(known, tail))

    def close(self) -> None:
        """Keep the transport, which counts on."""


class SimulatedStore(RemoteStore):
    """A tree behind a `SimulatedTransport`.

    Parameters
    ----------
    prefix
        What its paths begin with, for the content of the server.
    """

    def __init__(self, transport: SimulatedTransport, url: str, prefix: str = "") -> None:
        self.url = url
        self.transport = transport
        self.can_list = transport.can_list
        self.prefix = prefix

    @property
    def loop(self) -> VirtualLoop:
        return self.transport.loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(self.transport.step(coroutine))

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        extents = None if part == ALL else [Extent(part.start, part.stop)]
        request = Request(f"{self.prefix}{key}", key, extents, most=most)
        answer = await self.transport.fetch(request)
        return None if answer is None else bytes(answer.parts[0] or b"")

    async def list(self, prefix: str) -> frozenset[str] | None:
        return await self.transport.list(f"{self.prefix}{prefix}")

    async def gather_objects(
        self, keys: Iterable[str], most: int | None = None
    ) -> builtins.list[Object]:
        listed = tuple(keys)
        self.transport.content.fetched([f"{self.prefix}{key}" for key in listed])
        return await super().gather_objects(listed, most)


class NotedStore(SimulatedStore):
    """Notes what is asked of it.

    Attributes
    ----------
    rounds : list of Round
        One after the other.
    """

    def __init__(self, transport: SimulatedTransport, url: str) -> None:
        super().__init__(transport, url)
        self.rounds: list[Round] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self.rounds.append(Round())
        return super().run(coroutine)

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        self.rounds[-1].keys.append((key, part))
        return await super().get(key, part, most)

    async def list(self, prefix: str) -> frozenset[str] | None:
        self.rounds[-1].prefixes.append(prefix)
        return await super().list(prefix)
