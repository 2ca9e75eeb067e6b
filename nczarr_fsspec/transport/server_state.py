"""How a server sends one file: from where, how fast, and whether in ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nczarr_fsspec.concurrency import Once
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.transport.policy import Clock, TransientError

#: bodies of this size and more, in bytes, tell the bandwidth
TELLING = 1 << 18
#: smaller ones do if they take longer than this, in seconds
_SLOW = 0.01
#: bytes per second; more is what a body had waiting when it was not read
FASTEST = 1e9
#: the least bandwidth that bodies which share the line tell, in bytes per second
_SHARED = 50e6


def tells_bandwidth(nbytes: int, seconds: float) -> bool:
    """Tell whether a body of so many bytes, which took so long, shows how fast bytes come."""
    return nbytes >= TELLING or (nbytes >= TELLING // 8 and seconds > _SLOW)


class ServerState:
    """What the requests for one file learn of its server, for those that follow.

    Parameters
    ----------
    ranges
        Extents that one request may name.
    max_whole
        Bytes of the file that may be kept in memory if its server does not serve ranges.

    Attributes
    ----------
    target : str or None
        Where a redirect led.
    latency : float or None
        Seconds from a request to the first byte of its answer, the least seen.
    bandwidth : float or None
        Bytes per second of one connection, the most seen.
    whole : bytes or None
        All of the file, once its server has sent that instead of a range.
    asking : Once
        Where the file is, or of which version: one request asks for all readers.
    """

    def __init__(self, ranges: int, max_whole: int) -> None:
        self.ranges = ranges
        self.max_whole = max_whole
        self.target: str | None = None
        self.latency: float | None = None
        self.bandwidth: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Start with what a pickle leaves behind."""
        self.whole: bytes | None = None
        self._keeping: asyncio.Future[bytes] | None = None
        self._bodies = 0  # that are being read
        self.asking: Once[Any] = Once()

    async def keep(
        self,
        download: Callable[[], Awaitable[bytes]],
        refuse: Callable[[], None],
        clock: Clock,
    ) -> bytes:
        """Return all of the file; of several downloads at a time only one is read."""
        if self.whole is not None:
            refuse()
            return self.whole
        keeping = self._keeping
        # after a fork, the one under way belongs to a loop that does not run here
        if keeping is not None and keeping.get_loop() is asyncio.get_running_loop():
            refuse()
            clock.rest()
            return await asyncio.shield(keeping)
        keeping = self._keeping = asyncio.get_running_loop().create_future()
        try:
            whole = self.whole = await download()
        except BaseException as error:
            again = error if isinstance(error, StoreError) else TransientError(str(error))
            keeping.set_exception(again)
            keeping.exception()  # there may be nothing that waits for it
            raise
        else:
            keeping.set_result(whole)
            return whole
        finally:
            self._keeping = None

    async def timed(self, body: Awaitable[memoryview]) -> memoryview:
        """Await `body`, and learn the bandwidth, by the clock of the loop."""
        clock = asyncio.get_running_loop().time
        began = clock()
        alone = not self._bodies
        self._bodies += 1
        try:
            data = await body
        finally:
            self._bodies -= 1
        took, count = clock() - began, len(data)
        if tells_bandwidth(count, took):
            speed = min(count / max(took, 1e-9), FASTEST)
            least = 0.0 if alone and not self._bodies else _SHARED
            self.bandwidth = max(self.bandwidth or least, speed)
        return data

    def arrived(self, target: str, asked: str, waited: float) -> None:
        """Note that an answer came from `target`, after so many seconds, when `asked` was asked."""
        if target == asked:
            self.latency = min(self.latency or waited, waited)
        else:  # it took another request to be told where to go
            self.target = target

    def leave(self, target: str) -> None:
        """Ask no longer where a redirect led."""
        if self.target == target:
            self.target = None

    def __getstate__(self) -> dict[str, Any]:
        volatile = ("whole", "_keeping", "_bodies", "asking")
        return {name: value for name, value in self.__dict__.items() if name not in volatile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin()
        self.__dict__.update(state)
