"""Questions that several coroutines have, asked by one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class AskedOnce(Generic[T]):
    """A question that one coroutine asks for all of its event loop that wait for the answer."""

    def __init__(self) -> None:
        self._asking: asyncio.Future[T] | None = None

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return or raise what `question` does, or the one of another that is under way."""
        while (told := await self.told()) is not None:
            if not told.cancelled():
                return told.result()
        with self.asking() as asking:
            try:
                answer = await question()
            except Exception as error:
                asking.set_exception(error)
                asking.exception()  # there may be nothing that waits for it
                raise
            asking.set_result(answer)
            return answer

    @contextmanager
    def asking(self) -> Iterator[asyncio.Future[T]]:
        """Ask, for all that wait; they get the result of the future, if it has one."""
        asking = self._asking = asyncio.get_running_loop().create_future()
        try:
            yield asking
        finally:
            asking.cancel()  # of no effect on one that is done
            if self._asking is asking:
                self._asking = None

    async def told(self) -> asyncio.Future[T] | None:
        """Wait for the one that asks, and return what came of it; None if there is none."""
        asking = self._asking
        # after a fork, the one under way belongs to a loop that does not run here
        if asking is None or asking.get_loop() is not asyncio.get_running_loop():
            return None
        await asyncio.wait([asking])
        return asking
