from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from nczarr_fsspec.concurrency import WaitingThreads


@pytest.fixture
def startable(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what sets how many threads can still be started."""
    start = threading.Thread.start

    def limit(count: int) -> None:
        left = iter(range(count))

        def limited(self: threading.Thread) -> None:
            if next(left, None) is None:
                raise RuntimeError("can't start new thread")
            start(self)

        monkeypatch.setattr(threading.Thread, "start", limited)

    return limit


@pytest.mark.parametrize("threads", [0, 1, 2, 8])
def test_each_call_is_made_once_however_many_threads_there_are(
    startable: Callable[[int], None], threads: int
) -> None:
    calls: list[int] = []

    def called(number: int) -> int:
        calls.append(number)
        return number**2

    startable(threads)
    with WaitingThreads(8) as pool:
        assert [*pool.map(called, range(100))] == [number**2 for number in range(100)]
    assert sorted(calls) == [*range(100)]


def test_the_calling_thread_works_where_no_other_can(startable: Callable[[int], None]) -> None:
    startable(0)
    with WaitingThreads(8) as pool:
        future = pool.submit(threading.get_ident)
        assert future.done()
        assert future.result() == threading.get_ident()


@pytest.mark.parametrize("threads", [0, 1])
def test_errors_are_those_of_the_results(startable: Callable[[int], None], threads: int) -> None:
    def called(number: int) -> int:
        if number == 3:
            raise ValueError(number)
        return number

    startable(threads)
    with WaitingThreads(2) as pool:
        found = pool.map(called, range(5))
        assert [next(found) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="3"):
            next(found)


def test_an_interrupt_of_the_calling_thread_is_not_kept(startable: Callable[[int], None]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    startable(0)
    with WaitingThreads(2) as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(interrupted)


def test_a_cancelled_call_is_not_made() -> None:
    calls: list[Any] = []
    begun, go_on = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        assert go_on.wait(60)

    with WaitingThreads(1) as pool:
        pool.submit(first)
        assert begun.wait(60)
        second = pool.submit(calls.append, None)
        assert second.cancel()
        go_on.set()
    assert not calls
    assert second.cancelled()


def test_an_error_holds_nothing_that_only_the_collector_frees() -> None:
    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    def called() -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise ValueError

    gc.disable()
    try:
        with WaitingThreads(1) as pool:
            future = pool.submit(called)
        assert held[0]() is not None
        del future
        assert held[0]() is None
    finally:
        gc.enable()
