"""A network in virtual time: an event loop whose clock jumps, and a line that transfers share.

The first byte of an answer comes `Network.latency` after its request, and later by as much again if
a connection has to be opened; a connection carries one answer at a time. Nothing here waits for
real time, and every run is the same.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from nczarr_fsspec.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Network:
    """The way to a server.

    Parameters
    ----------
    latency
        Seconds from a request to the first byte of its answer.
    bandwidth
        Bytes per second of all connections together.
    per_connection
        Bytes per second of one of them at most.
    to_connect
        Seconds that a new connection takes; None for one latency, as TCP does.

    Raises
    ------
    UsageError
        If there can be no such network.
    """

    latency: float = 0.05
    bandwidth: float = 125e6
    per_connection: float = 50e6
    to_connect: float | None = None

    def __post_init__(self) -> None:
        for name, least, unit in (
            ("latency", 0, "seconds from 0 on"),
            ("bandwidth", 1, "bytes per second from 1 on"),
            ("per_connection", 1, "bytes per second from 1 on"),
        ):
            value = getattr(self, name)
            if not (isinstance(value, Real) and least <= float(value) < math.inf):
                raise UsageError(name, f"{value!r} is no number of {unit}")

    @property
    def connecting(self) -> float:
        """Seconds that a new connection takes."""
        return self.latency if self.to_connect is None else self.to_connect


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait: its clock is moved on instead."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now

    def run_in_executor(  # type: ignore[override]  # the future of a result that is there
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call what a thread would: it takes no time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - what waits for it must get it
            future.set_exception(error)
        return future

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(future)
        with ThreadPoolExecutor(1) as threads:  # this thread has a loop that runs, as in Jupyter
            return threads.submit(self._run, future).result()

    def _run(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run a future; after an error, end what it has begun: zarr-python leaves tasks alone."""
        run: Callable[[Any], T] = super().run_until_complete
        try:
            return run(future)
        except BaseException:
            run(asyncio.sleep(0))  # what is to be called soon may begin tasks
            while rest := asyncio.all_tasks(self):
                for task in rest:
                    task.cancel()
                run(asyncio.gather(*rest, return_exceptions=True))
            raise


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.owner = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will happen")
        if timeout > 0:
            # the loop's clock resolution lets it run what is due that soon
            self.owner.now += timeout
        return super().select(0)


class Line:
    """Shares `line` bytes per second among transfers of at most `rate` each."""

    def __init__(self, rate: float, line: float) -> None:
        self.rate = rate
        self.line = line
        self.carried = 0.0  # by each of the transfers since the beginning
        self.since = 0.0
        self.ends: list[tuple[float, int, asyncio.Future[None]]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.number = 0

    async def carry(self, nbytes: int) -> None:
        """Wait until so many bytes have come through."""
        self._advance()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.number += 1
        heapq.heappush(self.ends, (self.carried + nbytes, self.number, done))
        self._plan()
        await done

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.ends:
            self.carried += (now - self.since) * min(self.rate, self.line / len(self.ends))
        self.since = now

    def _plan(self) -> None:
        if self.timer:
            self.timer.cancel()
        if self.ends:
            left = max(0.0, self.ends[0][0] - self.carried)
            speed = min(self.rate, self.line / len(self.ends))
            self.timer = asyncio.get_running_loop().call_later(left / speed, self._end)

    def _end(self) -> None:
        self._advance()
        # the first has come, whatever rounding says
        self.carried = max(self.carried, self.ends[0][0])
        while self.ends and self.ends[0][0] <= self.carried + 1e-3:
            done = heapq.heappop(self.ends)[2]
            if not done.done():
                done.set_result(None)
        self._plan()
