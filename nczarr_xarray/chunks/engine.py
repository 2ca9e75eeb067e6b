"""The chunk engine: plan, fetch, decode, place.

Local stores are read by a few threads, each fetching, decoding and placing
whole chunks (the codec libraries let go of the interpreter lock). Remote stores
keep many requests in flight on their event loop and hand what arrives to the
same threads. Nothing here knows a file format.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import LocalStore, RemoteStore
from nczarr_fsspec.writable import processors
from nczarr_xarray.chunks.codecs import Decoder
from nczarr_xarray.chunks.plan import ChunkTask, Plan
from nczarr_xarray.model import ChunkedArray, FileChunks, FileStrides

T = TypeVar("T")

#: Below this many bytes a second thread costs more than it saves (a hand-over takes 30 us).
INLINE_BYTES = 1 << 18
#: Bytes of decoded chunks in flight at most, for one remote read.
IN_FLIGHT_BYTES = 1 << 28
#: Chunks a thread takes at a time from the common list, at least.
BATCH = 8


class _Pool:
    """The threads of this process, started at the first need and again after a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.executor: ThreadPoolExecutor | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.executor = None

    def get(self) -> ThreadPoolExecutor:
        with self.lock:
            if self.executor is None:
                self.executor = ThreadPoolExecutor(processors(), thread_name_prefix="nczarr")
            return self.executor


_pool = _Pool()


class ChunkReader:
    """Reads selections of one array. Holds no handles; made once per array and process."""

    __slots__ = ("_array", "_decoder", "_fill")

    def __init__(self, array: ChunkedArray) -> None:
        self._array = array
        self._decoder = Decoder(array)
        self._fill = fill_element(array)

    def read(self, store: LocalStore, plan: Plan) -> np.ndarray[Any, Any]:
        """Read what `plan` selects, in the calling thread and the pool.

        Raises
        ------
        FormatError, StoreError
            Naming the chunk that cannot be decoded or read.
        """
        result = allocate(self._array, plan)

        def place(batch: Sequence[ChunkTask]) -> None:
            stored = [store.get(self._key(task)) for task in batch]
            if None in stored:
                for task, data in zip(batch, stored, strict=True):
                    self._place(task, self._key(task), data, plan, result)
            else:
                self._decoder.place_many(stored, self._key, batch, plan.axes, result)

        share(place, plan.tasks(), plan.count, self._decoder.nbytes)
        return plan.finish(result)

    async def read_remote(self, store: RemoteStore, plan: Plan) -> np.ndarray[Any, Any]:
        """Read what `plan` selects; must run on the store's loop.

        Raises
        ------
        FormatError, StoreError
            Naming the chunk that cannot be decoded or read.
        """
        result = allocate(self._array, plan)
        tasks = plan.tasks()
        nbytes = self._decoder.nbytes
        in_flight = min(plan.count, store.concurrency, max(4, IN_FLIGHT_BYTES // max(nbytes, 1)))
        gate = store.gate()
        inline = nbytes <= INLINE_BYTES // 8 and not self._decoder.needs_libhdf5

        async def work() -> None:
            for task in tasks:
                key = self._key(task)
                async with gate:
                    data = await store.get(key)
                if inline:
                    self._place(task, key, data, plan, result)
                else:
                    await in_pool(self._place, task, key, data, plan, result)

        await gather_or_cancel(*(work() for _ in range(in_flight)))
        return plan.finish(result)

    def _key(self, task: ChunkTask) -> str:
        array = self._array
        return f"{array.path}/{array.separator.join(map(str, task.position)) or '0'}"

    def _place(
        self,
        task: ChunkTask,
        key: str,
        data: bytes | None,
        plan: Plan,
        result: np.ndarray[Any, Any],
    ) -> None:
        if data is None:
            result[task.target] = self._fill
            return
        self._decoder.place(data, key, task, plan.axes, result)


def fill_element(array: ChunkedArray | FileChunks | FileStrides) -> Any:
    """What elements that are not stored read as."""
    if array.fill is not None:
        return array.fill
    return "" if array.dtype.kind == "O" else np.zeros((), dtype=array.dtype)[()]


def allocate(array: ChunkedArray | FileChunks | FileStrides, plan: Plan) -> np.ndarray[Any, Any]:
    """Room for the result of `plan`.

    Raises
    ------
    FormatError
        If there is none.
    """
    try:
        # placing chunks swaps bytes on the way: the result is always native
        return np.empty(plan.shape, dtype=array.dtype.newbyteorder("="))
    except (MemoryError, ValueError) as error:
        raise FormatError(
            array.path, f"a selection of shape {plan.shape} does not fit ({error})"
        ) from None


def share(function: Callable[[list[T]], None], items: Iterable[T], count: int, nbytes: int) -> None:
    """Call `function` on batches of `items`, in this thread and, if it pays, in the pool.

    Parameters
    ----------
    count
        Number of items.
    nbytes
        Bytes that one item is about.
    """
    if count <= 1 or count * nbytes <= INLINE_BYTES:
        function(list(items))
        return
    remaining = iter(items)
    lock = threading.Lock()
    failed = threading.Event()

    size = max(BATCH, min(INLINE_BYTES // max(1, nbytes), count // (4 * processors())))

    def take() -> list[T]:
        with lock:
            return [] if failed.is_set() else list(itertools.islice(remaining, size))

    def work() -> None:
        try:
            while batch := take():
                function(batch)
        except BaseException:
            failed.set()
            raise

    batches = -(-count // size)
    helpers = [_pool.get().submit(work) for _ in range(min(processors(), batches) - 1)]
    try:
        work()  # the caller works too: no progress ever depends on a free thread
    finally:
        wait([helper for helper in helpers if not helper.cancel()])
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


async def in_pool(function: Callable[..., T], *arguments: Any) -> T:
    """Have a thread of the pool call `function`, and await what it returns."""
    return await asyncio.get_running_loop().run_in_executor(_pool.get(), function, *arguments)


def in_threads(
    place: Callable[[Any, list[memoryview]], None], nbytes: int, *, inline: bool = True
) -> Callable[[np.ndarray[Any, Any], list[memoryview]], Awaitable[None]]:
    """What takes pieces on an event loop, and has the pool place them.

    Parameters
    ----------
    place
        Takes numbers of pieces and their bytes.
    nbytes
        Bytes that one piece becomes.
    inline
        Whether `place` may be called on the loop itself, if it is but little.
    """

    async def receive(numbers: np.ndarray[Any, Any], data: list[memoryview]) -> None:
        count = len(numbers)
        if inline and count * nbytes <= INLINE_BYTES // 8:
            place(numbers, data)
            return
        shares = max(1, min(processors(), count, count * nbytes // INLINE_BYTES))
        bounds = [count * i // shares for i in range(shares + 1)]
        await gather_or_cancel(
            *(in_pool(place, numbers[a:b], data[a:b]) for a, b in itertools.pairwise(bounds))
        )

    return receive


async def gather_or_cancel(*coroutines: Any) -> list[Any]:
    """`asyncio.gather` that leaves nothing running when one of them fails."""
    futures = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*futures))
    except BaseException:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        raise
