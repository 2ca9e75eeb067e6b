"""A transport whose requests take as long as they would on a network, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.policy import most_connections
from nczarr_fsspec.transport.recording import SEEN
from nczarr_fsspec.transport.request import Answer, FileVersion, Request
from nczarr_fsspec.transport.throttle import Throttle
from nczarr_xarray.tools.predict.network import Network
from tests.support.servers.virtualnet import Line, Loop

T = TypeVar("T")


class VirtualTransport(Transport):
    """Files that begin with some bytes, and have zeros behind them.

    Attributes
    ----------
    nbytes : int
        Bytes that were sent.
    """

    can_list = False
    ranges = 100

    def __init__(self, network: Network, start: bytes = b"", size: int = 0) -> None:
        # (there is no filesystem to make the like of, which `Transport.__init__` is about)
        self.network = network
        self.start, self.size = start, size
        self.nbytes = 0
        self._loop = Loop()
        self._throttle = Throttle(most_connections())
        self._line = Line(network.rate, network.bandwidth)
        self._idle = 0

    @property
    def loop(self) -> Loop:
        """The loop, in virtual time."""
        return self._loop

    def describe(self, path: str) -> str:
        return path

    def throttle(self, path: str) -> Throttle:
        return self._throttle

    async def carry(self, nbytes: int) -> None:
        """Wait until an answer of so many bytes has come."""
        fresh = not self._idle
        self._idle -= not fresh
        await asyncio.sleep(self.network.latency + self.network.connecting * fresh)
        if (seen := SEEN.get()) is not None:
            seen.begins(206)
        await self._line.carry(nbytes)
        self._idle += 1
        self.nbytes += nbytes

    async def _attempt(self, request: Request, left: float) -> Answer | None:
        extents = [(0, self.size)] if request.extents is None else request.extents
        spans = [(start, max(start, min(stop, self.size))) for start, stop in extents]
        await self.carry(sum(stop - start for start, stop in spans))
        return Answer(
            [self._read(*span) for span in spans], FileVersion(etag='"1"', size=self.size)
        )

    def _read(self, start: int, stop: int) -> bytes:
        found = self.start[start:stop]
        return found + bytes(stop - start - len(found))

    async def list(self, path: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Keep the loop, which the test closes."""


class VirtualFile(RemoteFileBytes):
    """The file of a `VirtualTransport`."""

    def __init__(self, transport: VirtualTransport) -> None:
        super().__init__(transport, "x", "x", 0)
        self.transport = transport
        self.run(self.begin(None))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.transport.loop.run_until_complete(coroutine)
