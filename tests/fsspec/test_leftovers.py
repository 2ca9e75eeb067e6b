"""One request of several fails for good: nothing of the others is left under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import AccessDeniedError, StoreError
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.stores.references import read_json
from nczarr_fsspec.transport.fsspec import FsspecTransport
from nczarr_fsspec.transport.request import Answer, Extent, FileVersion, Request
from tests.support.servers.virtualnet import run

URL = "https://h.org/x.nc"
SIZE = 1 << 26


class Refusing(FsspecTransport):
    """Refuses one request after a second; the others would be tried again for an hour."""

    def __init__(self) -> None:
        super().__init__(MemoryFileSystem())
        self.asked = 0

    async def fetch(self, request: Request) -> Answer:
        self.asked += 1
        if self.asked == 2:
            await asyncio.sleep(1)
            raise AccessDeniedError(request.shown, "401")
        await asyncio.sleep(3600)
        return Answer([], FileVersion())


def file() -> RemoteFileBytes:
    source = RemoteFileBytes(Refusing(), URL, URL, 0).unasked()
    source.size = SIZE
    return source


async def fetch() -> None:
    await file().fetch([Extent(at, at + 1) for at in range(0, SIZE, 1 << 16)])


async def references() -> None:
    await read_json(file())


async def itself() -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise StoreError(URL, "is broken")

    await gather_or_cancel(asyncio.sleep(3600), fails(), asyncio.sleep(3600))


@pytest.mark.parametrize("read", [fetch, references, itself])
def test_nothing_is_left(read: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def refused() -> None:
        with pytest.raises(StoreError):
            await read()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others

    _, seconds = run(refused())
    assert seconds == 1
