"""Small reads of a file that begin together go out together, as those of many variables do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import numpy as np

from nczarr_fsspec.ranges.planner import Integers

#: Takes the numbers of some pieces and their bytes.
Receive: TypeAlias = Callable[[Integers, list[memoryview]], Awaitable[None]]
Read: TypeAlias = Callable[[Integers, Integers, Receive], Awaitable[None]]
#: Reads of data of no more bytes go out together with others of the same turn of the event loop.
SMALL_READ = 1 << 18


def by_owner(first: Integers, numbers: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield whose pieces some of those are that were read together, and which of `numbers` these.

    Parameters
    ----------
    first
        The number of the first piece of each owner, ascending.
    """
    owners = np.searchsorted(first, numbers, side="right") - 1
    order = np.argsort(owners, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if len(numbers) else ():
        yield int(owners[own[0]]), own


class SmallReads:
    """Makes one read of those that begin in the same turn of the event loop.

    What fails then is tried again alone, so that errors and cancelling are those of one read.

    Parameters
    ----------
    read
        Reads the pieces from starts to stops, and hands each over.
    """

    def __init__(self, read: Read) -> None:
        self._read_pieces = read
        self._members: list[_Member] = []  # of the next read

    async def read(self, low: Integers, high: Integers, receive: Receive) -> None:
        """Read pieces together with others, and hand each over as soon as it is there."""
        member = _Member(low, high, receive)
        self._members.append(member)
        if len(self._members) == 1:
            asyncio.get_running_loop().call_soon(self._send)  # when all of this turn have begun
        await member.wait()
        left = member.left
        if len(left):

            async def receive_left(numbers: Integers, views: list[memoryview]) -> None:
                await receive(left[numbers], views)

            await self._read_pieces(low[left], high[left], receive_left)

    def _send(self) -> None:
        """Begin to read for all small reads of this turn."""
        members = [member for member in self._members if not member.ended.done()]
        self._members = []
        if len(members) == 1:
            members[0].ended.set_result(None)  # it reads by itself
        elif members:
            task = asyncio.get_running_loop().create_task(self._read_together(members))
            for member in members:
                member.reading, member.members = task, members

    async def _read_together(self, members: list[_Member]) -> None:
        counts = [len(member.low) for member in members]
        first = np.concatenate([[0], np.cumsum(counts)])

        async def receive(numbers: Integers, views: list[memoryview]) -> None:
            tasks = []
            for owner, own in by_owner(first, numbers):
                if not members[owner].ended.done():
                    pieces = [views[i] for i in own.tolist()]
                    tasks.append(members[owner].hand_over(numbers[own] - first[owner], pieces))
            if not tasks:
                return
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                raise

        low = np.concatenate([member.low for member in members])
        high = np.concatenate([member.high for member in members])
        try:
            with contextlib.suppress(Exception):  # a read that has not got all is tried alone
                await self._read_pieces(low, high, receive)
        finally:
            for member in members:
                if not member.ended.done():
                    member.ended.set_result(None)


class _Member:
    """A small read of data that goes out with others."""

    def __init__(self, low: Integers, high: Integers, receive: Receive) -> None:
        self.low, self.high = low, high
        self._receive = receive
        #: pieces that have not been received yet
        self.left: Integers = np.arange(len(low))
        #: done when the read of all brings nothing more, or with what `receive` has raised
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: the read of all, and whose it is
        self.reading: asyncio.Task[None] | None = None
        self.members: list[_Member] = [self]
        self._receiving: set[asyncio.Task[None]] = set()

    def hand_over(self, numbers: Integers, views: list[memoryview]) -> asyncio.Task[None]:
        """Begin to hand pieces over; others do not see an error, nor that it is cancelled."""
        task = asyncio.get_running_loop().create_task(self._handed_over(numbers, views))
        self._receiving.add(task)
        task.add_done_callback(self._receiving.discard)
        return task

    async def _handed_over(self, numbers: Integers, views: list[memoryview]) -> None:
        try:
            await self._receive(numbers, views)
        except Exception as error:  # noqa: BLE001 - raised where the read is awaited
            if not self.ended.done():
                self.ended.set_exception(error)
        else:
            # (mostly all come at once, for which sorting takes long)
            every = len(numbers) == len(self.left)
            self.left = self.left[:0] if every else np.setdiff1d(self.left, numbers)

    async def wait(self) -> None:
        """Wait for the end; of what is wanted no longer, nothing is left running."""
        try:
            await self.ended
        except BaseException:
            unwanted = list(self._receiving)
            if self.reading and all(member.ended.done() for member in self.members):
                unwanted.append(self.reading)
            for task in unwanted:
                task.cancel()
            if unwanted:
                await asyncio.wait(unwanted)
            raise
