"""Locks are held where they have to be (see `tests.support.faults.locks`)."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fsspec import AbstractFileSystem
from fsspec.asyn import get_loop
from fsspec.implementations.chained import ChainedFileSystem

from nczarr_fsspec.ranges import index_memory
from nczarr_fsspec.ranges.index_memory import IndexMemory
from nczarr_fsspec.transport.policy import Timeout
from nczarr_fsspec.transport.shared import SharedFilesystem
from tests.support.faults.locks import LastUsed


def test_what_is_remembered_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_memory, "MOST_FILES", 2)
    remembered = IndexMemory()
    files = remembered._files = LastUsed(remembered._lock)
    for name in ("a", "b", "b", "c"):
        source: Any = SimpleNamespace(identity=name, size=1, validator="x")
        remembered.of(source)
    assert list(files) == ["b", "c"]
    assert files.held == [True] * len(files.held)


class Waiting(AbstractFileSystem):
    """Its calls wait for a thread of the event loop, as looking up a host does."""

    protocol: ClassVar[str] = "waiting"
    cachable = False
    lock = threading.Lock()

    def cat_file(self, *_: Any, **__: Any) -> bool:
        alone = self.lock.acquire(blocking=False)
        asyncio.run_coroutine_threadsafe(asyncio.to_thread(int), get_loop()).result(60)
        if alone:
            self.lock.release()
        return alone


class WaitingCache(Waiting, ChainedFileSystem):
    """One that threads share."""


@pytest.mark.parametrize("kind", [Waiting, WaitingCache])
def test_calls_that_wait_for_the_loop_leave_it_its_threads(kind: type[Waiting]) -> None:
    shared = SharedFilesystem(kind(), Timeout())

    async def many() -> list[bool]:
        return await asyncio.gather(*(shared.call("cat_file", "x") for _ in range(64)))

    alone = asyncio.run_coroutine_threadsafe(many(), shared.loop).result()
    # fsspec's caches hand out files that are still being written
    assert all(alone) or kind is Waiting
