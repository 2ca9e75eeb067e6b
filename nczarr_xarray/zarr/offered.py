"""Stores of ours as stores of zarr-python: `StoreView` to read them, `StoreSink` to write."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Self, TypeAlias
from weakref import WeakSet

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from nczarr_fsspec.concurrency import Coalescer, Question, gather_or_cancel
from nczarr_fsspec.errors import StoreError, refuse_pointer
from nczarr_fsspec.keystore import (
    ALL,
    ZARR_METADATA,
    KeyStore,
    RemoteStore,
    WritableStore,
)
from nczarr_fsspec.stores.missing_chunks import Presence

_Wish: TypeAlias = tuple[str, slice, int | None]
_Read: TypeAlias = Question[_Wish, bytes | None]
#: Seconds for which the tasks of a failed read are waited for, and how often it is looked whether
#: more have begun, with the seconds between.
_PATIENCE, _LOOKS, _PAUSE = 10.0, 20, 0.01
#: Reads of local files that a thread does in a row: to hand one over takes as long as a few reads.
IN_A_ROW = 4


class StoreView(Store):
    """A key store as a read-only zarr-python store.

    Parameters
    ----------
    keys
        The store to read.
    read_only
        True; zarr-python's stores all have it.

    Attributes
    ----------
    most : int or None
        Bytes that an object may have that holds no metadata; None if that is not known.
    presence : Presence or None
        Of the only array that is read; None for a whole tree.

    Raises
    ------
    StoreError
        If it is to be written.
    """

    supports_writes: bool = False
    supports_deletes: bool = False
    supports_listing: bool = True

    def __init__(self, keys: KeyStore, *, read_only: bool = True) -> None:
        if not read_only:
            raise StoreError(keys.url, "can be opened for reading only")
        super().__init__(read_only=True)
        self.keys = keys
        self.most: int | None = None
        self.presence: Presence | None = None
        # of stores that know it without reading: whether a key is one of an object
        self._known: Callable[[str], bool] | None = getattr(keys, "is_object", None)
        self._reads: Coalescer[_Wish, bytes | None] = Coalescer(self._send)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreView) and other.keys == self.keys

    def __hash__(self) -> int:
        return hash(self.keys)

    def __repr__(self) -> str:
        return f"<StoreView {self.keys.url}>"

    def __reduce__(self) -> tuple[type[StoreView], tuple[KeyStore]]:
        return type(self), (self.keys,)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        part = ALL
        if isinstance(byte_range, RangeByteRequest):
            part = slice(byte_range.start, byte_range.end)
        elif isinstance(byte_range, OffsetByteRequest):
            part = slice(byte_range.offset, None)
        elif isinstance(byte_range, SuffixByteRequest):
            # (`-0` would be the beginning)
            part = slice(-byte_range.suffix, None) if byte_range.suffix else slice(0, 0)
        elif byte_range is not None:
            raise TypeError(f"Unexpected byte_range, got {byte_range!r}.")
        data = await self._get(key, part)
        if data is None:
            return None
        refuse_pointer(key, data)
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def _get(self, key: str, part: slice) -> bytes | None:
        is_metadata = key.rpartition("/")[2] in ZARR_METADATA
        wish = key, part, self.keys.max_metadata if is_metadata else self.most
        if (reading := _READING.get()) is None:
            return await self._reads.ask(wish)
        reading.begin(self.keys.url)
        return await reading.ask(wish, self._reads.ask)

    async def _send(self, reads: builtins.list[_Read]) -> None:
        """Have all reads of a turn done; handing them over one by one takes longer."""
        keys = self.keys
        back = _Back(asyncio.get_running_loop())
        presence = self.presence
        if isinstance(keys, RemoteStore):
            # at once, so that it sees what can be merged
            asyncio.run_coroutine_threadsafe(_get(keys, reads, back, presence), keys.loop)
            return

        def answer(some: builtins.list[_Read]) -> None:
            keys.run(_get(keys, some, back, presence))

        for at in range(0, len(reads), IN_A_ROW):
            back.loop.run_in_executor(None, answer, reads[at : at + IN_A_ROW])

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> builtins.list[Buffer | None]:
        reads = (self.get(key, prototype, part) for key, part in key_ranges)
        return await gather_or_cancel(*reads)

    async def exists(self, key: str) -> bool:
        return await self._get(key, slice(0, 0 if self._known else 1)) is not None

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def delete(self, key: str) -> None:
        self._check_writable()

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        (names,) = await asyncio.to_thread(self.keys.list_many, [prefix.strip("/")])
        if isinstance(names, StoreError):
            raise names
        if names is None:
            raise StoreError(self.keys.url, "cannot be listed")
        for name in sorted(names):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        parent, _, _ = prefix.rpartition("/")
        async for key in self._walk(parent.strip("/")):
            if key.startswith(prefix):
                yield key

    async def list(self) -> AsyncIterator[str]:
        async for key in self._walk(""):
            yield key

    async def _walk(self, prefix: str) -> AsyncIterator[str]:
        async for name in self.list_dir(prefix):
            key = f"{prefix}/{name}" if prefix else name
            if await self.exists(key) if self._known is None else self._known(key):
                yield key
            else:
                async for below in self._walk(key):
                    yield below


class Reading:
    """A read by zarr-python, which leaves its other tasks alone when one fails. A context manager.

    After an error it ends them, and waits for that: what is left at the end of a program cannot run
    any more, and says so in hundreds of messages. The tasks know their read by the context that
    they take from the calling thread.

    Parameters
    ----------
    joint
        Whether it is of several selections: what they all want is fetched once.
    """

    def __init__(self, *, joint: bool = False) -> None:
        #: by key and part
        self._answers: dict[tuple[Any, ...], asyncio.Task[bytes | None]] | None
        self._answers = {} if joint else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._refused = 0
        self._failed = False

    def begin(self, url: str) -> None:
        """Note the task that asks for something; `StoreError` if the read has failed."""
        if self._failed:
            self._refused += 1
            raise StoreError(url, "is not read any more: another part of the selection failed")
        task = asyncio.current_task()
        if task is not None:
            self._loop = task.get_loop()
            self._tasks.add(task)

    async def ask(
        self, wish: _Wish, ask: Callable[[_Wish], Coroutine[Any, Any, bytes | None]]
    ) -> bytes | None:
        """Return what `ask` does, which is asked once in a joint read."""
        if self._answers is None:
            return await ask(wish)
        key, part, _ = wish
        task = self._answers.get((key, part.start, part.stop))
        if task is None:
            task = self._answers[key, part.start, part.stop] = asyncio.create_task(ask(wish))
        return await task  # which ends with any of those that wait: the read has failed then

    def __enter__(self) -> Self:
        self._token = _READING.set(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        _READING.reset(self._token)
        if kind is not None and self._loop is not None and self._loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_PATIENCE)

    async def _end(self) -> None:
        self._failed = True
        before = -1
        while self._refused != before:  # those that waited for their turn get it, and fail
            before = self._refused
            left = [task for task in self._tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            # what waits for its turn may wait for others that decode in threads
            for _ in range(_LOOKS):
                await asyncio.sleep(_PAUSE)
                if self._refused != before:
                    break


_READING: ContextVar[Reading | None] = ContextVar("_READING", default=None)


class _Back:
    """Takes answers to the event loop on which they were asked for, those of a moment together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._answers: list[Callable[[], None]] = []

    def take(self, answer: Callable[[], None]) -> None:
        """Call `answer` on the loop, from any thread."""
        with self._lock:
            self._answers.append(answer)
            first = len(self._answers) == 1
        if first:
            with suppress(RuntimeError):  # it is closed: nothing waits any more
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            answers, self._answers = self._answers, []
        for answer in answers:
            answer()


async def _get(keys: KeyStore, reads: list[_Read], back: _Back, presence: Presence | None) -> None:
    missing: list[_Read] = []

    async def get(read: _Read) -> None:
        try:
            data = await keys.fetch(*read.wish)
        except BaseException as error:  # noqa: BLE001 - what waits for it must get it
            back.take(partial(read.fail, error))
            return
        if data is None:
            missing.append(read)
        else:
            back.take(partial(read.settle, data))

    await keys.together(*map(get, reads))
    removed: BaseException | None = None
    try:
        if missing and presence is not None:
            await presence.check()
    except BaseException as error:  # noqa: BLE001 - as above
        removed = error
    for read in missing:
        back.take(partial(read.fail, removed) if removed else partial(read.settle, None))


class StoreSink(Store):
    """A writable store as a zarr-python store, for new arrays of which whole objects are written.

    So nothing is there when it is asked for, as the rest of a shard at an edge is. What zarr-python
    deletes was never there, too: an object of nothing but the fill value.

    Parameters
    ----------
    store
        The store to write to.
    within
        A context in which each object is put. If one fails, zarr-python goes on with others after
        its caller got the error: the context can keep them out.

    Attributes
    ----------
    put : int
        The number of objects that were put.
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = False

    def __init__(self, store: WritableStore, within: AbstractContextManager[None]) -> None:
        super().__init__(read_only=False)
        self._store = store
        self._within = within
        self.put = 0

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<StoreSink {self._store.url}>"

    async def set(self, key: str, value: Buffer) -> None:
        await asyncio.to_thread(self._put, key, value.to_bytes())
        self.put += 1

    def _put(self, key: str, data: bytes) -> None:
        with self._within:
            self._store.put(key, data)

    async def delete(self, key: str) -> None:
        return None

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        return None

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        return [None for _ in key_ranges]

    async def exists(self, key: str) -> bool:
        return False

    async def list(self) -> AsyncIterator[str]:
        raise StoreError(self._store.url, "cannot be listed")
        yield ""

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise StoreError(self._store.url, "cannot be listed")
        yield ""

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        raise StoreError(self._store.url, "cannot be listed")
        yield ""
