"""A slow line, and a file behind it, in virtual time.

The model of requests: the first byte comes `latency` seconds after the request,
on a new connection twice that; a connection carries one request at a time and
at most `rate` bytes a second, all of them together `line`. Nothing here waits
for real time, and every run is the same.

`cases` are reads of real layouts. ``python -m bench.planner`` prints what the
planner and the reader make of them.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import HEAD_BYTES, Limits, RemoteBytes
from nczarr_fsspec.transport.request import Extent

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result of `coroutine` and the virtual seconds it took; nothing may be left running."""
    loop = Loop()
    try:
        result = loop.run_until_complete(coroutine)
        loop.run_until_complete(asyncio.sleep(0))  # generators that were left end in tasks
        left = asyncio.all_tasks(loop)
        assert not left, left
        return result, loop.now
    finally:
        loop.close()


class Loop(asyncio.SelectorEventLoop):
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
    def __init__(self, loop: Loop) -> None:
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


class VirtualBytes(RemoteBytes):
    """A file in memory behind a `Line`; counts what is asked for.

    Parameters
    ----------
    data
        The file; or its size, if its bytes do not matter.
    fault
        Called with the number of each request before it is answered; may raise.
    """

    def __init__(
        self,
        data: bytes | int,
        limits: Limits | None = None,
        *,
        line: float = 125e6,
        head: int = HEAD_BYTES,
        fault: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.url = "memory://file"
        self.data = data
        self.size = data if isinstance(data, int) else len(data)
        self.validator = "1"
        self.head = self._bytes(0, min(head, self.size))
        self._limits = limits or Limits()
        self.line = Line(self._limits.bandwidth, line)
        self.idle = 1  # the connection that brought the head
        self.opened = 1
        self.busy = 0
        self.most_busy = 0
        self.requests: list[list[Extent]] = []
        self.fault = fault

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def limits(self) -> Limits:
        return self._limits

    def _bytes(self, start: int, stop: int) -> bytes:
        return bytes(stop - start) if isinstance(self.data, int) else self.data[start:stop]

    async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
        check(extents, self.size, self._limits.ranges)
        number = len(self.requests)
        self.requests.append(list(extents))
        fresh = not self.idle
        self.idle -= not fresh
        self.opened += fresh
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            await asyncio.sleep(self._limits.latency * (1 + fresh))
            if self.fault:
                await self.fault(number)
            header = 150 * len(extents) if len(extents) > 1 else 0
            await self.line.carry(header + sum(stop - start for start, stop in extents))
        finally:
            self.busy -= 1
            self.idle += 1
        return [self._bytes(start, stop) for start, stop in extents]

    @property
    def moved(self) -> int:
        """Bytes sent after the head."""
        return sum(stop - start for extents in self.requests for start, stop in extents)


def check(extents: Sequence[Extent], size: int, ranges: int) -> None:
    """Assert what `RemoteBytes.fetch` demands."""
    assert 1 <= len(extents) <= ranges
    last = -1
    for start, stop in extents:
        assert last < start < stop <= size, extents
        last = stop


# the reads


async def swallow(numbers: Any, views: list[memoryview]) -> None:
    """A receiver that takes no time."""


def decoding(seconds_per_byte: float, cores: int = 2) -> Any:
    """A receiver that takes as long as `cores` processors would."""
    gate: list[asyncio.Semaphore] = []

    async def receive(numbers: Any, views: list[memoryview]) -> None:
        if not gate:
            gate.append(asyncio.Semaphore(cores))
        async with gate[0]:
            await asyncio.sleep(seconds_per_byte * sum(map(len, views)))

    return receive


def spread(count: int, size: int, file: int, seed: int = 0) -> tuple[Any, Any]:
    """Pieces of `size` bytes all over a file."""
    rng = np.random.default_rng(seed)
    slot = (file - HEAD_BYTES) // count
    starts = HEAD_BYTES + np.arange(count) * slot + rng.integers(0, max(1, slot - size), count)
    return starts, starts + size


def dense(count: int, size: int, every: int = 64, gap: int = 2600) -> tuple[Any, Any]:
    """Chunks one behind the other, with a node of the index between every 64 of them."""
    starts = HEAD_BYTES + np.arange(count) * size + np.arange(count) // every * gap
    return starts, starts + size


Rounds = list[list[Extent]]


def cases() -> dict[str, tuple[int, Rounds, tuple[Any, Any] | None]]:
    """Name: size of the file, read rounds of metadata after the head, pieces of data."""
    mb = 1_000_000

    def nodes(count: int, size: int, file: int) -> list[Extent]:
        low, high = spread(count, size, file, seed=1)
        return [Extent(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]

    tiny = 103 * mb
    inner = [Extent(50 * mb + 7000 * i, 50 * mb + 7000 * i + 2600) for i in range(4)]
    tree = [inner, nodes(230, 2600, tiny)]
    records = HEAD_BYTES + np.arange(365) * 518_408
    headers = nodes(200, 600, 81 * mb)
    return {
        "10,512 chunks: step": (
            tiny,
            [inner, nodes(3, 2600, tiny)],
            spread(72, 9800, 3 * mb),
        ),
        "10,512 chunks: point": (tiny, tree, spread(146, 9800, tiny)),
        "10,512 chunks: full": (tiny, tree, dense(10_512, 9_700)),
        "730 chunks: point = full": (92 * mb, [inner[:2]], dense(730, 124_700)),
        "2,500 chunks of 16 kB: full": (42 * mb, [], dense(2_500, 16_000)),
        "2,500 chunks of 16 kB of 3 variables": (
            150 * mb,
            [],
            (HEAD_BYTES + np.arange(2500) * 48_000, HEAD_BYTES + np.arange(2500) * 48_000 + 16_000),
        ),
        "365 records of 4 bytes": (190 * mb, [], (records, records + 4)),
        "365 records of 259 kB: full": (190 * mb, [], (records, records + 259_200)),
        "200 scattered headers, 5 rounds": (
            81 * mb,
            [
                headers[:1],
                headers[1:8],
                headers,
                headers_after(headers, 4500),
                headers_far(headers),
            ],
            None,
        ),
        "one contiguous run of 95 MB": (96 * mb, [], dense(95, mb, gap=0)),
        "one contiguous run of 2 MB": (95 * mb, [], dense(2, mb, gap=0)),
    }


def headers_after(headers: list[Extent], distance: int) -> list[Extent]:
    return [Extent(start + distance, stop + distance) for start, stop in headers]


def headers_far(headers: list[Extent]) -> list[Extent]:
    return headers_after(headers, 60_000)


async def perform(
    source: VirtualBytes, rounds: Rounds, data: tuple[Any, Any] | None, receive: Any = swallow
) -> None:
    """Open the file and read."""
    await asyncio.sleep(2 * source.limits.latency)
    await source.line.carry(len(source.head))
    reader = RangeReader(source)
    for read_round in rounds:
        await reader.read_metadata(read_round)
    if data is not None:
        await reader.read_data(*data, receive)
