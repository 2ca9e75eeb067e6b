"""The event loop of fsspec, where no thread can be started for it at first."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fsspec import asyn

from nczarr_fsspec.transport.shared import background_loop


def test_a_loop_that_got_no_thread_gets_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyn, "loop", [None])
    monkeypatch.setattr(asyn, "iothread", [None])
    with monkeypatch.context() as none_left:
        none_left.setattr(threading.Thread, "start", start)
        for _ in range(2):  # at the second time, fsspec has a loop
            with pytest.raises(RuntimeError, match="can't start new thread"):
                background_loop()
    loop = background_loop()
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "done"), loop).result(60) == "done"
    assert background_loop() is loop
    loop.call_soon_threadsafe(loop.stop)
    asyn.iothread[0].join(60)
    loop.close()
