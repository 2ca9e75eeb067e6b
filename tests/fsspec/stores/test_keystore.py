"""Waiting for an event loop from other threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from fsspec.asyn import get_loop

from nczarr_fsspec.keystore import OnLoop


class Something(OnLoop):
    url = "memory://something"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = get_loop()
        return loop


def test_an_interrupted_wait_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted(future: Future[Any], timeout: float | None = None) -> Any:
        assert begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Something().run(work())
    assert ended.wait(60)
