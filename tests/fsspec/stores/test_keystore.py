"""Waiting for an event loop from other threads, and stores that wait for nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from fsspec.asyn import get_loop

from nczarr_fsspec.keystore import ALL, LocalStore, OnLoop


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


class Plain(LocalStore):
    """As other packages write one."""

    url = "plain"

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        return b"0123"[part] if key == "x" else None

    def list(self, prefix: str) -> frozenset[str]:
        return frozenset({"x"})


def test_coroutines_of_a_local_store_run_in_the_calling_thread() -> None:
    store = Plain()

    async def both() -> tuple[list[Any], threading.Thread]:
        found = await store.together(store.fetch("x", slice(1, 3)), store.names(""))
        return found, threading.current_thread()

    assert store.run(both()) == ([b"12", {"x"}], threading.current_thread())
    assert store.get_many(["x", "y"]) == [b"0123", None]
    assert store.list_many(["", "g"]) == [{"x"}, {"x"}]


def test_a_local_store_that_waits_is_an_error() -> None:
    ended = False

    async def waits() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(0)
        finally:
            ended = True

    with pytest.raises(TypeError, match="waits for something where all has to be at hand"):
        Plain().run(waits())
    assert ended
