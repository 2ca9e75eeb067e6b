"""Who reads chunks: the calling thread alone, or with help from the pool."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest

from nczarr_xarray.chunks import threads
from nczarr_xarray.chunks.threads import (
    HELP_SECONDS,
    LARGE_BYTES,
    LOCK_SECONDS,
    TRIAL_BATCHES,
    share,
)

SMALL = LARGE_BYTES // 4


class Team:
    """Stands for one that reads."""


class Work:
    """Stands for the time that chunks take, and sees when help is asked for.

    Attributes
    ----------
    done : list of int
        Items in the order of their end.
    hired : list of tuple
        How many items were done when help was asked for, and how many threads might help.
    sent_away : bool
        Whether a thread worked alone after it had had help.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[int] = []
        self.hired: list[tuple[int, int]] = []
        self.sent_away = False
        self._now = 0.0
        self._lock = threading.Lock()
        self._hire = threads.POOL.hire
        monkeypatch.setattr(threads, "processors", lambda: 4)
        monkeypatch.setattr(threads, "time", self)
        monkeypatch.setattr(threads.POOL, "hire", self.hire)
        work_alone = threads.Team.work_alone

        def alone(team: threads.Team[int]) -> int:
            self.sent_away |= bool(self.hired)
            return work_alone(team)

        monkeypatch.setattr(threads.Team, "work_alone", alone)

    def perf_counter(self) -> float:
        return self._now

    def tick(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds

    def hire(self, most: int, work: Callable[[], None]) -> int:
        self.hired.append((len(self.done), most))
        return self._hire(most, work)

    def share(
        self,
        seconds: Callable[[int], float],
        count: int,
        nbytes: int,
        chunks: int,
        turns: int | None = None,
    ) -> None:
        def function(batch: list[int]) -> None:
            with self._lock:
                self._now += sum(map(seconds, batch))
                self.done += batch

        share(function, range(count), nbytes * chunks, chunks=chunks, turns=turns)
        assert sorted(self.done) == list(range(count))


@pytest.fixture(autouse=True)
def at_rest() -> Iterator[None]:
    """Let no test see threads of another one, and none leave a read or a helper that counts."""
    end_threads()
    yield
    end_threads()
    assert (len(threads.POOL.callers), threads.POOL.helpers) == (0, 0)


def end_threads() -> None:
    """Wait for the pool to end: help that comes too late counts for a moment."""
    executor, threads.POOL.executor = threads.POOL.executor, None
    if executor is not None:
        executor.shutdown()


@pytest.fixture
def work(at_rest: None, monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def test_quick_small_chunks_are_read_by_one_thread(work: Work) -> None:
    work.share(lambda _: LOCK_SECONDS * 2.9, 1000, SMALL, 1)
    assert work.hired == []
    assert work.done == list(range(1000))  # in order


@pytest.mark.parametrize("chunks", [1, 5])
def test_slow_small_chunks_get_as_much_help_as_they_have_room_for(work: Work, chunks: int) -> None:
    work.share(lambda _: LOCK_SECONDS * 4.5 * chunks, 1000, SMALL, chunks)
    batch = threads.items_at_a_time(1000, SMALL * chunks, chunks=chunks)
    assert work.hired == [(batch, 2)]  # three threads have room, and one of them is the caller


def test_small_chunks_that_are_decoded_together_get_help(work: Work) -> None:
    """They are quick, but the lock is taken once for all chunks of an item."""
    work.share(lambda _: LOCK_SECONDS * 4.5, 1000, SMALL, 5, turns=1)
    batch = threads.items_at_a_time(1000, SMALL * 5, chunks=5)
    assert work.hired == [(batch, 2)]


def test_long_parts_of_plain_chunks_get_no_help_at_once(work: Work) -> None:
    """Little is done without the lock, which is taken for each several times."""
    work.share(lambda _: LOCK_SECONDS * 2.9 * 3, 70, 2 * LARGE_BYTES, 1, turns=3)
    assert work.hired == []


def test_large_chunks_get_help_at_once(work: Work) -> None:
    work.share(lambda _: 0, 10, LARGE_BYTES, 1)
    assert work.hired == [(0, 9)]


@pytest.mark.parametrize(
    ("helped", "after", "times"),
    [
        pytest.param(0.5, 1.0, 1, id="much faster: it stays"),
        pytest.param(0.7, 1.0, 2, id="faster: it goes and comes again"),
        pytest.param(0.7, 0.6, 1, id="the beginning was slow: it goes"),
        pytest.param(1.5, 1.0, 1, id="slower: it goes"),
    ],
)
@pytest.mark.parametrize("nbytes", [SMALL, 2 * LARGE_BYTES])
def test_help_goes_if_one_thread_is_as_fast(
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    nbytes: int,
    helped: float,
    after: float,
    times: int,
) -> None:
    class Executor:
        def submit(self, function: Callable[[], None]) -> None:
            """Come, but leave all to the caller, so that items are done in order."""
            team = function.__self__  # type: ignore[attr-defined]
            team.came = True

    monkeypatch.setattr(threads.POOL, "executor", Executor())
    count = 4000
    batch = threads.items_at_a_time(count, nbytes)
    trial = batch * (1 + TRIAL_BATCHES)

    def seconds(item: int) -> float:
        return HELP_SECONDS * (1.0 if item < batch else helped if item < trial else after)

    work.share(seconds, count, nbytes, 1)
    hired = [batch, trial + batch][:times]
    assert [done for done, _ in work.hired] == hired
    assert work.sent_away == (helped > 0.5)


def test_help_that_was_sent_away_does_no_more(work: Work) -> None:
    """But for the batch that it has begun. (Times add up here, as if all waited for each other.)"""
    caller = threading.get_ident()
    came = threading.Event()
    begun_after: list[bool] = []

    def function(batch: list[int]) -> None:
        if threading.get_ident() != caller:
            begun_after.append(work.sent_away)
            came.set()
        elif work.hired and not work.sent_away:
            assert came.wait(60)
        work.tick(HELP_SECONDS * len(batch))

    share(function, range(4000), 2 * LARGE_BYTES)
    assert work.sent_away
    assert begun_after
    assert begun_after.count(True) <= work.hired[0][1]


def test_one_accident_is_no_slow_codec(work: Work) -> None:
    batch = threads.items_at_a_time(10_000, SMALL)
    slow = {20 * batch, 40 * batch, 60 * batch, 61 * batch}
    work.share(lambda item: float(item in slow), 10_000, SMALL, 1)
    assert [done for done, _ in work.hired] == [62 * batch]


@pytest.mark.parametrize("chunks", [1, 5])
def test_small_chunks_are_read_by_one_thread_if_little_is_left_after_the_first(
    work: Work, chunks: int
) -> None:
    each = 5 * LOCK_SECONDS  # there is room for help
    first = threads.items_at_a_time(0, SMALL * chunks, chunks=chunks)
    count = first + round(HELP_SECONDS / each / chunks)
    work.share(lambda _: 0.99 * each * chunks, count, SMALL, chunks)
    assert work.hired == []
    work.done.clear()
    work.share(lambda _: 1.01 * each * chunks, count, SMALL, chunks)
    assert [done for done, _ in work.hired] == [first]


@pytest.mark.parametrize(
    ("processors", "reading", "count", "expected"),
    [
        pytest.param(1, 0, 10_000, 64, id="one processor"),
        pytest.param(2, 0, 10_000, 64, id="two"),
        pytest.param(64, 0, 10_000, 39, id="64"),
        pytest.param(64, 0, 16, 16, id="too little for a second thread"),
        pytest.param(64, 0, 25, 16, id="too little for a third"),
        pytest.param(64, 0, 100, 16, id="too little for 64"),
        pytest.param(16, 15, 100, 64, id="16 threads of dask on 16"),
        pytest.param(4, 0, 1000, 62, id="four"),
        pytest.param(64, 61, 400, 33, id="62 threads of dask on 64"),
        pytest.param(2, 15, 100, 64, id="16 threads of dask on two"),
    ],
)
def test_small_chunks_are_taken_by_the_row_on_any_machine(
    monkeypatch: pytest.MonkeyPatch, processors: int, reading: int, count: int, expected: int
) -> None:
    monkeypatch.setattr(threads, "processors", lambda: processors)
    monkeypatch.setattr(threads, "POOL", pool := threads.Pool())
    callers = [Team() for _ in range(reading)]
    pool.callers.update(callers)
    assert threads.items_at_a_time(count, SMALL) == expected


def test_few_bytes_are_read_by_one_thread(work: Work) -> None:
    work.share(lambda _: 1.0, 100, 1, 1)
    assert work.hired == []


@pytest.mark.parametrize("failing", ["caller", "helper"])
def test_an_error_ends_the_work_of_all(work: Work, failing: str) -> None:
    caller = threading.get_ident()
    two = threading.Barrier(2, timeout=60)
    seen: set[int] = set()
    taken: list[int] = []

    def function(batch: list[int]) -> None:
        taken.extend(batch)
        me = threading.get_ident()
        if me not in seen and len(seen) < 2:
            seen.add(me)
            two.wait()  # one fails once both have begun
        if (me == caller) == (failing == "caller"):
            raise OSError("a disk failed")

    with pytest.raises(OSError, match="a disk failed"):
        share(function, range(2), LARGE_BYTES * 8)
    assert sorted(taken) == [0, 1]
    taken.clear()
    seen.update({-1, -2})
    with pytest.raises(OSError, match="a disk failed"):
        share(function, range(10**6), LARGE_BYTES * 8)
    assert len(taken) < 10**6


@pytest.mark.parametrize("queued", [False, True])
def test_reads_go_on_where_no_thread_can_be_had(
    work: Work, monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    late: list[Callable[[], None]] = []

    class Executor:
        def submit(self, function: Callable[[], None]) -> None:
            if queued:  # as executors do before they start a thread for it
                late.append(function)
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads.POOL, "executor", Executor())
    work.share(lambda _: 0, 100, LARGE_BYTES, 1)
    for function in late:
        function()
    assert len(work.done) == 100


def test_what_a_late_helper_has_begun_is_waited_for(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it could only be queued, and another thread of the pool came to it."""
    begun = threading.Event()
    done: list[int] = []
    go_on = threading.Event()

    class Executor:
        def submit(self, function: Callable[[], None]) -> None:
            threading.Thread(target=function).start()
            assert begun.wait(60)
            raise RuntimeError("can't start new thread")

    def function(batch: list[int]) -> None:
        if threading.get_ident() == caller:
            go_on.set()
        else:
            begun.set()
            assert go_on.wait(60)
        done.extend(batch)

    caller = threading.get_ident()
    monkeypatch.setattr(threads.POOL, "executor", Executor())
    share(function, range(50), LARGE_BYTES * 8)
    assert sorted(done) == list(range(50))


def test_help_that_is_late_is_not_judged_before_it_comes(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool may be busy with chunks of remote files."""
    late: list[Callable[[], None]] = []

    class Executor:
        def submit(self, function: Callable[[], None]) -> None:
            late.append(function)

    caller = threading.get_ident()
    done: dict[bool, int] = {True: 0, False: 0}

    def function(batch: list[int]) -> None:
        work.tick(HELP_SECONDS)
        mine = threading.get_ident() == caller
        done[mine] += len(batch)
        if mine and done[True] == len(batch) * 3 * TRIAL_BATCHES:
            helper = threading.Thread(target=late[0])
            helper.start()
            helper.join()

    monkeypatch.setattr(threads.POOL, "executor", Executor())
    share(function, range(4000), 2 * LARGE_BYTES)
    assert done[True] + done[False] == 4000
    assert done[False]


def test_a_read_that_an_interrupt_kept_from_leaving_counts_no_more(work: Work) -> None:
    team = threads.Team(lambda _: None, range(3), 1)
    team.__enter__()  # and an interrupt comes before the read begins
    assert len(threads.POOL.callers) == 1
    del team
    gc.collect()
    work.share(lambda _: 0, 10, LARGE_BYTES, 1)


def _receive_all(scatter: Callable[[list[int], list[bytes]], None]) -> None:
    count = 4
    receive = threads.in_threads(scatter, 2 * threads.INLINE_BYTES, inline=True)
    asyncio.run(_awaited(receive(np.arange(count), [b""] * count)))


async def _awaited(coming: Awaitable[None]) -> None:
    await coming


@pytest.mark.parametrize("queued", [False, True])
def test_an_event_loop_decodes_itself_where_no_thread_can_be_had(
    monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    late: list[Callable[[], None]] = []
    done: list[int] = []

    class Executor:
        def submit(self, function: Callable[[], None]) -> None:
            if queued:  # as executors do before they start a thread for it
                late.append(function)
            raise RuntimeError("can't start new thread")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads.POOL, "executor", Executor())
    monkeypatch.setattr(threading.Thread, "start", start)
    _receive_all(lambda numbers, _: done.extend(numbers))
    assert sorted(done) == [0, 1, 2, 3]
    for function in late:  # a thread that there is comes to it when the result is the user's
        function()
    assert len(done) == 4


def test_what_may_wait_for_the_loop_is_an_error_where_no_thread_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "POOL", threads.Pool())
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asyncio.run(threads.in_pool(list))
    monkeypatch.undo()
    assert asyncio.run(threads.in_pool(list)) == []
