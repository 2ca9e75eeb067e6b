"""Parts of one remote file that many ask for one by one, read together."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.concurrency import Turn, fail, settle
from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import RemoteBytes, beyond
from nczarr_fsspec.transport.request import END


class _Wanted(NamedTuple):
    """A part that a read waits for."""

    start: int
    stop: int
    future: asyncio.Future[memoryview]


class Batches:
    """Reads one file: what is wanted of it in one turn of the event loop is asked for together.

    Parameters
    ----------
    file
        Its size need not be known; then one of the first answers tells it.
    """

    def __init__(self, file: RemoteBytes) -> None:
        self.file = file
        self._reader = RangeReader(file)
        self._turn: Turn[tuple[int, int], memoryview] = Turn(self._send)
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, start: int, stop: int) -> memoryview:
        """Return the bytes ``[start, stop)``.

        Raises
        ------
        StoreError
            If they are not in the file, or cannot be read.
        """
        return await self._turn.ask((start, stop))

    def _send(
        self, extents: list[tuple[int, int]], futures: list[asyncio.Future[memoryview]]
    ) -> None:
        pairs = zip(extents, futures, strict=True)
        wanted = [_Wanted(start, stop, future) for (start, stop), future in pairs]
        task = asyncio.get_running_loop().create_task(self._fetch(wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        left = len(wanted)

        def one_less(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                task.cancel()  # nothing waits for it; if all were answered, it is at its end

        for future in futures:
            future.add_done_callback(one_less)

    async def _fetch(self, wanted: list[_Wanted]) -> None:
        while wanted := [one for one in wanted if not one.future.done()]:
            size = self.file.size
            try:
                await self._read(wanted)
            except NCZarrError as error:
                if self.file.size == END and len(wanted) > 1:
                    await self._fetch_first(wanted)
                    continue
                # a part that is beyond the end must not take the others with it
                outside = [one for one in wanted if one.stop > self.file.size]
                again = self.file.size != size or outside
                for one in outside if again else wanted:
                    problem = beyond(self.file, one.start, one.stop) if again else _copy(error)
                    fail(one.future, problem)
            except Exception as error:  # noqa: BLE001 - it is raised where they are awaited
                for one in wanted:
                    fail(one.future, error)

    async def _fetch_first(self, wanted: list[_Wanted]) -> None:
        """Fetch the part that starts first, after a request failed while the size was unknown.

        The failed part may be beyond the end, and the answer that tells the size still under
        way.  Parts start nowhere before the first: if that one fails too, all others do.
        """
        first = min(
            (one for one in wanted if not one.future.done()),
            key=lambda one: one.start,
            default=None,
        )
        if first is None:
            return
        await self._fetch([first])
        error = None if first.future.cancelled() else first.future.exception()
        if self.file.size == END and isinstance(error, NCZarrError):
            for one in wanted:
                fail(one.future, _copy(error))

    async def _read(self, wanted: list[_Wanted]) -> None:
        async def receive(numbers: Any, parts: list[memoryview]) -> None:
            for number, data in zip(numbers.tolist(), parts, strict=True):
                settle(wanted[number].future, data)

        starts = np.array([one.start for one in wanted], dtype=np.int64)
        stops = np.array([one.stop for one in wanted], dtype=np.int64)
        await self._reader.read_data(starts, stops, receive)


def _copy(error: NCZarrError) -> NCZarrError:
    """Return an error like another: each of those that wait raises its own."""
    return type(error)(error.object, error.reason)
