"""Where the work is done: in the calling thread, a few threads of this process, or an event loop.

The codec libraries let go of the interpreter's lock while they work, so threads pay; how many,
and for which chunks, is decided here.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakSet

from nczarr_fsspec.concurrency import gather_or_cancel

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

# -- processors ------------------------------------------------------------------------------------


def processors(root: str = "/") -> int:
    """Return how many processors this process may use.

    These are the processors of its affinity (from Python 3.13 on, ``PYTHON_CPU_COUNT`` comes
    first), but no more than the quota of its control groups. A container may have the time of two
    processors on a machine of 64: there, 64 threads would use that time up at once and then stop.
    The files of the system are below `root`.
    """
    count: int | None
    if sys.version_info >= (3, 13):
        count = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    return min(count or 1, quota(root))


@cache
def quota(root: str) -> int:
    """Return the processor limit of the control groups, rounded up as joblib and dask do."""
    least = sys.maxsize
    try:
        lines = Path(root, "proc/self/cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):  # not Linux, say
        return least
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if not controllers:  # version 2
            folder, names = "", ["cpu.max"]
        elif "cpu" in controllers.split(","):
            folder, names = "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        # each group has a quota; a container sees its own as the root, whatever the path says
        path = PurePosixPath(group.lstrip("/"))
        for place in (path, *path.parents):
            files = [Path(root, "sys/fs/cgroup", folder, place, name) for name in names]
            with suppress(OSError, ValueError):  # no such file, or "max"
                quota, period = map(
                    int, " ".join(file.read_text("utf-8") for file in files).split()
                )
                if quota > 0 and period > 0:
                    least = min(least, -(-quota // period))
    return least


T = TypeVar("T")

# -- threads ---------------------------------------------------------------------------------------


#: Below this many bytes a second thread costs more than it saves (a hand-over takes 30 us).
INLINE_BYTES = 1 << 18
#: Bytes of decoded chunks up to which an event loop decodes them itself, of one array at a time.
ON_LOOP_BYTES = INLINE_BYTES // 8
#: Bytes of decoded chunks that a thread takes at a time from the common list: what a processor's
#: own cache holds. Of fewer, what is done once for all of them is a tenth of the time.
BATCH_BYTES = 1 << 20
#: Chunks of this many bytes are worth a thread, whatever has to be done with them.
LARGE_BYTES = 1 << 16
#: So long a small chunk has the interpreter's lock, or waits for it where others want it, too.
LOCK_SECONDS = 10e-6
#: Less work than this is done sooner by one thread than another one has begun to be of use: it has
#: to be woken, and both lose time to each other's turns.
HELP_SECONDS = 2e-3
#: Help for chunks up to half of a batch is tried out where there are so many batches: what is
#: copied rather than decoded is limited by memory and by the system, and takes two threads a fourth
#: longer than one. (Larger ones take them a fourth less.)
MANY_BATCHES = 16
#: So many batches are done with help before it is judged.
TRIAL_BATCHES = 6
#: Help that makes it so many times as fast is not judged further: to work alone would cost more.
GAIN = 1.8
#: Help comes again if it makes it so many times as fast.
_CLEARLY = 1.05


class Pool:
    """The threads of this process, started at the first need and again after a fork.

    Attributes
    ----------
    callers : WeakSet
        The teams that read now. One that an interrupt has kept from leaving is gone with its read.
    helpers : int
        How many threads of the pool help them. These count themselves, as no interrupt meets them.
    """

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None
        self.callers: WeakSet[object] = WeakSet()
        self.helpers = 0

    def spare(self) -> int:
        """Return how many processors no read has."""
        return max(0, processors() - len(self.callers) - self.helpers)

    def hire(self, most: int, work: Callable[[], None]) -> int:
        """Ask threads that no other read has for help, `most` at most; return how many."""
        count = min(most, self.spare())
        with suppress(RuntimeError):  # no thread can be started, or Python is about to end
            for _ in range(count):
                self.get().submit(work)
        return count

    def begin(self) -> bool:
        """Count this thread of the pool as a helper, if it still has a processor."""
        with self.lock:
            room = self.spare() > 0
            self.helpers += room
        return room

    def end(self) -> None:
        """Count this thread of the pool no more."""
        with self.lock:
            self.helpers -= 1

    def get(self) -> ThreadPoolExecutor:
        with self.lock:
            if self.executor is None:
                from concurrent.futures import ThreadPoolExecutor

                self.executor = ThreadPoolExecutor(processors(), thread_name_prefix="nczarr")
            return self.executor


POOL = Pool()


def items_at_a_time(count: int, nbytes: int, *, chunks: int = 1) -> int:
    """Return how many of `count` items of `nbytes` a thread takes at a time.

    Enough to be worth it, and for the threads that will share them to end together: not more than
    there are processors now, nor than there is work for.

    Parameters
    ----------
    chunks
        As of `share`.
    """
    helpers = min(POOL.spare() - 1, (count * nbytes - 1) // INLINE_BYTES)
    turns = 4 * (helpers + 1) if helpers > 0 else 1
    # of small chunks never so few that what is done once for all of them costs more than they do
    fewest = INLINE_BYTES // max(1, nbytes) if nbytes < LARGE_BYTES * chunks else 1
    return max(1, min(BATCH_BYTES // max(1, nbytes), max(fewest, count // turns)))


def share(
    function: Callable[[list[T]], None],
    items: Sequence[T],
    nbytes: int,
    *,
    chunks: int = 1,
    turns: int | None = None,
) -> None:
    """Call `function` on batches of `items`, in this thread and, if it pays, in the pool.

    A chunk takes the interpreter's lock several times. Where little else has to be done, as for
    small chunks that are hardly compressed, threads only wait for each other: two take as long as
    one, or longer. So this thread begins small chunks alone, and gets as much help as the time they
    take makes room for: because of a slow codec, say, or a slow disk. Help that makes nothing
    faster is sent away.

    Parameters
    ----------
    nbytes
        Bytes that one item is about.
    chunks
        Chunks that one item is about.
    turns
        How often an item takes the interpreter's lock, if that is not once for each chunk.
    """
    count = len(items)
    if count <= 1 or count * nbytes <= INLINE_BYTES:
        if count:
            function(list(items))
        return
    turns = chunks if turns is None else turns
    size = items_at_a_time(count, nbytes, chunks=chunks)
    most = -(-count // size) - 1
    with Team(function, items, size) as team:
        if nbytes < LARGE_BYTES * max(chunks, turns):
            most = min(most, team.pace(count, turns))
        elif most >= MANY_BATCHES and nbytes < BATCH_BYTES // 2:
            team.work_alone()
        team.try_help(most)
        team.work()


class Team(Generic[T]):
    """One caller of `share`, and the threads that help it.

    Nothing depends on a free thread, nor on whether one can be started: who does not come is not
    waited for, and who comes too late finds nothing to do. There is no lock that an interrupt of
    the caller could leave taken.
    """

    def __init__(self, function: Callable[[list[T]], None], items: Sequence[T], size: int) -> None:
        self._function = function
        self._items = items
        self._size = size
        self._starts = itertools.count(0, size)
        self._over = False
        self._error: BaseException | None = None
        # threads that help, a sign of each that has ended, and whether any came and is wanted
        self._helping: set[int] = set()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self.came = False
        self._wanted = True
        # one for each batch that is done, and the least time that an item took this thread alone
        self._batches: list[None] = []
        self._alone = math.inf

    def __enter__(self) -> Team[T]:
        POOL.callers.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._over = True  # before it looks: who begins to help looks for it afterwards
            while self._helping:
                self._ended.get()
        finally:
            POOL.callers.discard(self)
        if kind is None and self._error is not None:
            raise self._error

    def pace(self, count: int, turns: int) -> int:
        """Work alone while that is as fast; how many threads may help then."""
        last = math.inf  # what is slow once may be an accident, unless it is the first
        begin = time.perf_counter()
        while done := self._do_batch():
            now = time.perf_counter()
            each, begin = (now - begin) / (done * turns), now
            count -= done
            surely, last = min(last, each), each
            self._alone = surely * turns
            # this thread is one, and as much again is lost by handing the lock to and fro
            room = int(surely / LOCK_SECONDS) - 2
            if room > 0 and surely * turns * count >= HELP_SECONDS:
                return room
        return 0

    def work_alone(self) -> int:
        """Do one batch without help, once helpers have gone, and time it; return its items."""
        while self._helping and self._do_batch():
            pass
        begin = time.perf_counter()
        if done := self._do_batch():
            self._alone = min(self._alone, (time.perf_counter() - begin) / done)
        return done

    def hire(self, most: int) -> int:
        """Ask for up to `most` threads of the pool; return how many."""
        self._wanted = True
        return POOL.hire(most, self._help) if most > 0 else 0

    def try_help(self, most: int) -> None:
        """Have `most` threads help for some batches, and send them away if that was not faster."""
        begin, before = time.perf_counter(), len(self._batches)
        if not self.hire(most):
            return
        while (done := len(self._batches) - before) < TRIAL_BATCHES:
            if not self.came:  # the pool may be busy; what has not come cannot be judged
                begin, before = time.perf_counter(), before + done
            if not self._do_batch():
                return
        each = (time.perf_counter() - begin) / (done * self._size)
        if each * GAIN > self._alone:
            self._wanted = False
            # what was timed before was the beginning, which takes longer
            if self.work_alone() and each * _CLEARLY < self._alone:
                self.hire(most)

    def work(self) -> None:
        """Work until nothing is left."""
        while self._do_batch():
            pass

    def _help(self) -> None:
        if not POOL.begin():
            return
        me = threading.get_ident()
        self._helping.add(me)
        self.came = True
        try:
            room = processors()
            # threads of callers are enough: with dask's, those of the pool would only compete
            while self._wanted and len(POOL.callers) + POOL.helpers <= room and self._do_batch():
                pass
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            self._error = self._error or error
        finally:
            POOL.end()
            self._helping.discard(me)
            self._ended.put(None)

    def _do_batch(self) -> int:
        """Do the next items; return how many these were."""
        if self._over or self._error is not None:
            return 0
        start = next(self._starts)
        batch = list(self._items[start : start + self._size])
        if batch:
            self._function(batch)
            self._batches.append(None)
        return len(batch)


async def in_own_thread(function: Callable[[], T]) -> T:
    """Run what may wait for the event loop, and for the pool, in a thread of its own."""
    return await _run_by([_start_thread], function)


async def in_pool(function: Callable[..., T], *arguments: Any) -> T:
    """Have a thread of the pool call `function`, which may wait for the loop, and await it."""
    # once the main thread has ended, all pools have; this read goes on
    return await _run_by([_submit, _start_thread], partial(function, *arguments))


async def _run_by(
    ways: Sequence[Callable[[Callable[[], None]], object]], function: Callable[[], T]
) -> T:
    """Have `function` run in the first of `ways` that can be had, and await what it returns.

    Raises
    ------
    RuntimeError
        If no thread can be started.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    turns = itertools.count()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        # An executor keeps what it can start no thread for: one that it has may come to it, even
        # after the read, when the result is the user's.
        if next(turns) or done.cancelled():
            return
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  (it is raised where the result is awaited)
            failure = error
        with suppress(RuntimeError):  # the loop may have been closed
            loop.call_soon_threadsafe(settle, result, failure)

    failure = None
    for way in ways:
        try:
            way(run)
        except RuntimeError as error:
            failure = error
        else:
            return await done
    assert failure is not None
    raise failure


def _submit(run: Callable[[], None]) -> None:
    import asyncio

    # by the loop, as one whose time is virtual has no threads
    asyncio.get_running_loop().run_in_executor(POOL.get(), run)


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="nczarr-apart", daemon=True).start()


def _run_here(run: Callable[[], None]) -> None:
    run()


def in_threads(
    scatter: Callable[[Any, list[Any]], None], nbytes: int, *, inline: bool
) -> Callable[[Any, list[Any]], Awaitable[None]]:
    """Return what takes pieces on an event loop, and has the pool scatter them.

    Parameters
    ----------
    scatter
        Takes numbers of pieces and their bytes.
    nbytes
        Bytes that one piece becomes.
    inline
        Whether `scatter` may be called on the loop itself, if it is but little.
    """

    async def receive(numbers: Any, data: list[Any]) -> None:
        count = len(numbers)
        if inline and count * nbytes <= ON_LOOP_BYTES:
            scatter(numbers, data)
            return
        shares = max(1, min(processors(), count, count * nbytes // INLINE_BYTES))
        bounds = [count * i // shares for i in range(shares + 1)]
        # it waits for nothing: where no thread can be had, the loop itself does it
        await gather_or_cancel(
            *(
                _run_by([_submit, _run_here], partial(scatter, numbers[a:b], data[a:b]))
                for a, b in itertools.pairwise(bounds)
            )
        )

    return receive
