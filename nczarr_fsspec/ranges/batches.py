"""Parts of one remote file that many ask for one by one, read together."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from nczarr_fsspec.concurrency import Coalescer, Question
from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.ranges.planner import Integers
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import RemoteBytes, beyond
from nczarr_fsspec.transport.request import END, Extent

_Questions: TypeAlias = list[Question[Extent, memoryview]]


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
        self._parts: Coalescer[Extent, memoryview] = Coalescer(self._fetch)

    async def read(self, start: int, stop: int) -> memoryview:
        """Return the bytes ``[start, stop)``.

        Raises
        ------
        StoreError
            If they are not in the file, or cannot be read.
        """
        return await self._parts.ask(Extent(start, stop))

    async def _fetch(self, questions: _Questions) -> None:
        while questions := [one for one in questions if one.wanted]:
            size = self.file.size
            try:
                await self._read(questions)
            except NCZarrError as error:
                if self.file.size == END and len(questions) > 1:
                    await self._fetch_first(questions)
                    continue
                # a part that is beyond the end must not take the others with it
                outside = [one for one in questions if one.wish.stop > self.file.size]
                again = self.file.size != size or outside
                for one in outside if again else questions:
                    one.fail(beyond(self.file, *one.wish) if again else error)

    async def _fetch_first(self, questions: _Questions) -> None:
        """Fetch the part that starts first, after a request failed while the size was unknown.

        The failed part may be beyond the end, and the answer that tells the size still under
        way.  Parts start nowhere before the first: if that one fails too, all others do.
        """
        try:
            await self._read([min(questions, key=lambda one: one.wish.start)])
        except NCZarrError as error:
            if self.file.size == END:
                for one in questions:
                    one.fail(error)

    async def _read(self, questions: _Questions) -> None:
        async def receive(numbers: Integers, parts: list[memoryview]) -> None:
            for number, data in zip(numbers.tolist(), parts, strict=True):
                questions[number].settle(data)

        starts, stops = np.array([one.wish for one in questions], dtype=np.int64).T
        await self._reader.read_data(starts, stops, receive)
