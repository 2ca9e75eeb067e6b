"""Read parts of a selection that are in remote files, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self

from nczarr_fsspec.concurrency import Budget, gather_or_cancel
from nczarr_fsspec.keystore import OnLoop
from nczarr_xarray.chunks.threads import in_pool
from nczarr_xarray.dataset.file import loop_of
from nczarr_xarray.dataset.fragment_opener import Opening, RemoteFragment
from nczarr_xarray.dataset.fragment_parts import Part

#: Remote fragments that are opened and read at a time.
AT_A_TIME = 256
#: Fragments that are begun together: threads wake each other less often.
_TOGETHER = 32


class RemoteParts:
    """Reads parts on the loop of their files while others are being found. A context manager.

    Leaving it ends what has not ended.

    Parameters
    ----------
    read
        Reads a part of a fragment; tells whether that could be done in this way.
    read_others
        Reads some of those parts for which it could not, in a thread that may wait; returns the
        rest.
    most
        Bytes that parts which are read at a time may take; None if only their number is limited.
    cost
        Says how many one takes at most.
    """

    def __init__(
        self,
        read: Callable[[Part, Opening | RemoteFragment], Coroutine[Any, Any, bool]],
        read_others: Callable[[list[Part]], list[Part]],
        most: int | None,
        cost: Callable[[Part], int],
    ) -> None:
        self._read = read
        self._read_others = read_others
        self._gate = asyncio.Semaphore(AT_A_TIME)
        self._budget = None if most is None else Budget(most)
        self._cost = cost
        self._next: list[tuple[Part, Opening | RemoteFragment]] = []
        self._coming: list[Future[None]] = []
        self._left: list[Part] = []

    def add(self, part: Part, found: Opening | RemoteFragment | None) -> None:
        """Begin to read a part soon, if what was found of its fragment is a remote file."""
        if found is None or _loop_of(found) is None:
            self._left.append(part)
            return
        self._next.append((part, found))
        if len(self._next) == _TOGETHER:
            self._begin()

    def left(self) -> list[Part]:
        """Wait for all parts; return those that have to be read in another way."""
        self._begin()
        for one in self._coming:
            one.result()
        return self._left

    def _begin(self) -> None:
        together, self._next = self._next, []
        files = _loop_of(together[0][1]) if together else None
        if files is not None:
            self._coming.append(files.start(self._read_together(together)))

    async def _read_together(self, parts: list[tuple[Part, Opening | RemoteFragment]]) -> None:
        done = await gather_or_cancel(*(self._read_one(part, found) for part, found in parts))
        left = [part for (part, _), read in zip(parts, done, strict=True) if not read]
        if left:
            self._left += await in_pool(self._read_others, left)

    async def _read_one(self, part: Part, found: Opening | RemoteFragment) -> bool:
        async with self._gate:
            if self._budget is None:
                return await self._read(part, found)
            cost = self._cost(part)
            await self._budget.take(cost)
            try:
                return await self._read(part, found)
            finally:
                self._budget.give(cost)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._coming:
            one.cancel()


def _loop_of(found: Opening | RemoteFragment) -> OnLoop | None:
    """Return what runs coroutines on the loop of a fragment, if it has one."""
    return loop_of(found.reader.store) if isinstance(found, Opening) else found.source
