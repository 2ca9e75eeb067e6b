"""The gate of writers, whose locks are held where they have to be: `tests.support.faults.locks`."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import dask.array as da
import pytest
import xarray as xr

from nczarr_fsspec.errors import StoreError
from nczarr_xarray import to_nczarr
from nczarr_xarray.export import chunk_writer
from nczarr_xarray.export.chunk_writer import ChunkWriter, Gate, Gated
from tests.support.faults.locks import lock_is_held, watch_locks


def test_one_thread_at_a_time_changes_a_chunk_of_several_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[tuple[str, bool]] = []

    def watch(name: str) -> None:
        real = getattr(ChunkWriter, name)

        def watched(self: ChunkWriter, *args: Any) -> Any:
            held.append((name, self.gate.lock.locked()))
            return real(self, *args)

        monkeypatch.setattr(ChunkWriter, name, watched)

    for name in ("seen_before", "put_chunk"):
        watch(name)
    blocks = xr.Dataset({"v": ("x", da.arange(4, chunks=2))})
    to_nczarr(blocks, tmp_path / "d", encoding={"v": {"chunks": (4,)}}, safe_chunks=False)
    assert held == [("seen_before", True), ("put_chunk", True)] * 2


def test_copies_of_a_writer_find_one_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_locks(monkeypatch)
    held: list[bool] = []

    class Gates(WeakValueDictionary[Any, Gate]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            held.append(lock_is_held())
            return super().setdefault(key, default)

    monkeypatch.setattr(chunk_writer, "GATES", Gates())
    writer = Gated()
    assert pickle.loads(pickle.dumps(writer)).gate is writer.gate
    assert held == [True, True]


def test_a_gate_that_is_shut_has_nobody_inside() -> None:
    """No thread comes between looking at it and going in."""
    gate, inside, entered = Gate(), [0], threading.Event()

    def work() -> None:
        while True:
            with gate:
                inside.append(1)
                entered.set()
                inside.append(-1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work) for _ in range(4)]
            assert entered.wait(60)
            gate.shut()
            count = len(inside)
            for one in working:
                with pytest.raises(StoreError, match="was given up"):
                    one.result(60)
    finally:
        sys.setswitchinterval(interval)
    assert len(inside) == count
    assert sum(inside) == 0


def test_threads_take_and_report_items_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[threading.Lock] = []

    def make() -> threading.Lock:
        made.append(threading.Lock())
        return made[-1]

    def items() -> Iterator[int]:
        for number in range(5):
            held.append(made[-1].locked())
            yield number

    held: list[bool] = []
    monkeypatch.setattr(
        chunk_writer, "threading", SimpleNamespace(**{**vars(threading), "Lock": make})
    )
    put = Gated().each(
        items(),
        lambda number: number,
        threads=2,
        done=lambda _: held.append(made[-1].locked()),
        within=nullcontext(),
    )
    assert put == 10
    assert held == [True] * 10


@pytest.mark.parametrize("first", [False, True])
def test_work_is_done_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """A thread that there is may do what was queued for one that could not be started."""
    real = threading.Thread.start
    started: list[threading.Thread] = []

    def start(self: threading.Thread) -> None:
        if len(started) == first:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    done: list[int] = []
    put = Gated().each(
        iter(range(100)), lambda number: 2, threads=4, done=done.append, within=nullcontext()
    )
    assert sorted(done) == [*range(100)]
    assert put == 200


@pytest.mark.parametrize("threads", [1, 3])
def test_the_error_of_an_item_ends_the_work(threads: int) -> None:
    items = iter(range(100))

    def work(number: int) -> int:
        raise StoreError(str(number), "cannot be written")

    with pytest.raises(StoreError, match="cannot be written"):
        Gated().each(items, work, threads=threads, done=print, within=nullcontext())
    assert len([*items]) >= 100 - threads
