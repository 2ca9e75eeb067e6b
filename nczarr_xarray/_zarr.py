"""Everything we use of zarr-python, in both directions.

`ZarrKeyStore` lets our reader read any zarr-python store, `ZarrWriter` lets us
write to one, and `StoreView` lets zarr-python read any of ours.
"""

from __future__ import annotations

import asyncio
import builtins
import glob
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import _get_loop
from zarr.storage import FsspecStore as ZarrFsspecStore
from zarr.storage import LocalStore as ZarrLocalStore
from zarr.storage import ZipStore as ZarrZipStore

from nczarr_fsspec import open_keystore
from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore, check_key
from nczarr_fsspec.writable import WritableStore, creating
from nczarr_xarray.views.keys import FileKeys
from nczarr_xarray.views.turns import Turn, fail, settle

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

T = TypeVar("T")
_Wish: TypeAlias = tuple[str, int | None, int | None]


def adopt(store: Store) -> KeyStore:
    """Our view of a zarr-python store; stores of local files are read directly."""
    if isinstance(store, StoreView):
        return store.keys
    if isinstance(store, ZarrLocalStore):
        return open_keystore(store.root)
    if isinstance(store, ZarrZipStore):
        return open_keystore(store.path)
    return ZarrKeyStore(store)


def adopt_for_writing(store: Store) -> str | ZarrWriter:
    """What to write to in place of a zarr-python store: the path of local files, else a writer."""
    if isinstance(store, (ZarrLocalStore, ZarrZipStore)):
        if store.read_only:
            raise StoreError(str(store), "is open for reading only; open it with read_only=False")
        return str(store.root if isinstance(store, ZarrLocalStore) else store.path)
    return ZarrWriter(store)


class ZarrKeyStore(RemoteStore):
    """Any zarr-python store, read on zarr's own event loop.

    Parameters
    ----------
    store
        Opened for reading if it is not open yet.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.url = str(store)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return _get_loop()

    async def get(
        self, key: str, start: int | None = None, stop: int | None = None
    ) -> bytes | None:
        check_key(key)
        request: ByteRequest | None = None
        if stop is not None:
            request = RangeByteRequest(start or 0, stop)
        elif start:
            request = OffsetByteRequest(start)
        try:
            await self.store._ensure_open()
            buffer = await self.store.get(key, default_buffer_prototype(), request)
        except FileNotFoundError:
            return None
        except NCZarrError:
            raise
        except Exception as error:  # each store raises its own
            raise StoreError(f"{self.url}/{key}", f"cannot be read ({error})") from error
        return None if buffer is None else buffer.to_bytes()

    async def list(self, prefix: str) -> frozenset[str] | None:
        if not self.store.supports_listing:
            return None
        try:
            await self.store._ensure_open()
            names = [name async for name in self.store.list_dir(prefix)]
        except FileNotFoundError:
            return frozenset()
        except Exception as error:
            raise StoreError(f"{self.url}/{prefix}", f"cannot be listed ({error})") from error
        return frozenset(name.rstrip("/").rpartition("/")[2] for name in names)

    def close(self) -> None:
        """Leave the store open: it belongs to whoever made it."""


class _ZarrKeysBelow(ZarrKeyStore):
    """The keys of a zarr-python store below one prefix."""

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(store)
        self._prefix = prefix
        self.url = f"{self.url}/{prefix}".rstrip("/")

    async def get(
        self, key: str, start: int | None = None, stop: int | None = None
    ) -> bytes | None:
        return await super().get(self._prefix + check_key(key), start, stop)

    async def list(self, prefix: str) -> frozenset[str] | None:
        return await super().list((self._prefix + prefix).rstrip("/"))


class ZarrWriter(WritableStore):
    """Any zarr-python store that can be changed, on zarr's own event loop.

    `create` is atomic in this process, and among processes where the store's
    ``set_if_not_exists`` is; then contents must differ for one to be told True.

    Parameters
    ----------
    store
        Opened if it is not open yet. Stores of local files are better written
        by their path.
    prefix
        The root of the dataset, ``""`` or ending in ``/``.

    Raises
    ------
    StoreError
        If the store is open for reading only, or can never be changed or listed.
    """

    parallel = RemoteStore.concurrency

    def __init__(self, store: Store, prefix: str = "") -> None:
        self.store = store
        self._prefix = prefix
        self._keys = _ZarrKeysBelow(store, prefix)
        self.url = self._keys.url
        if store.read_only:
            raise StoreError(self.url, "is open for reading only; open it with read_only=False")
        if not (store.supports_writes and store.supports_deletes and store.supports_listing):
            raise StoreError(self.url, "cannot write, delete and list; choose another store")

    def reader(self) -> ZarrKeyStore:
        return _ZarrKeysBelow(self.store, self._prefix)

    def put(self, key: str, data: AnyBuffer) -> None:
        content = _content(data)
        self._each(lambda path: self.store.set(path, content), [key], "written")

    def create(self, key: str, data: AnyBuffer) -> bool:
        content = _content(data)

        async def create(path: str) -> bool:
            if await self.store.exists(path):
                return False
            await self.store.set_if_not_exists(path, content)  # which does not tell
            stored = await self.store.get(path, default_buffer_prototype())
            return stored is not None and stored.to_bytes() == content.to_bytes()

        with creating:
            return self._each(create, [key], "written")[0]

    def delete(self, keys: Iterable[str]) -> None:
        async def delete(path: str) -> None:
            if isinstance(self.store, ZarrFsspecStore):  # it takes a key for a pattern
                path = glob.escape(path)
            with suppress(FileNotFoundError):
                await self.store.delete(path)

        self._each(delete, keys, "deleted")

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        pairs = [(source, target) for source, target in pairs if source != target]
        targets = {
            self._prefix + check_key(source): self._prefix + check_key(target)
            for source, target in pairs
        }

        async def copy(path: str) -> None:
            content = await self.store.get(path, default_buffer_prototype())
            if content is not None:
                await self.store.set(targets[path], content)
            elif not await self.store.exists(targets[path]):
                raise FileNotFoundError("there is no such key")

        sources = [source for source, _ in pairs]
        self._each(copy, sources, "moved")
        self.delete(sources)

    def keys_below(self, prefix: str) -> list[str]:
        async def find(path: str) -> list[str]:
            return [key async for key in self.store.list_prefix(path)]

        start = f"{self._prefix}{check_key(prefix)}/" if prefix else self._prefix
        (found,) = self._run(find, [start], "listed")
        return sorted(key.removeprefix(self._prefix) for key in found if key.startswith(start))

    def child(self, prefix: str) -> ZarrWriter:
        return ZarrWriter(self.store, f"{self._prefix}{check_key(prefix)}/")

    def _each(
        self, function: Callable[[str], Awaitable[T]], keys: Iterable[str], what: str
    ) -> list[T]:
        return self._run(function, [self._prefix + check_key(key) for key in keys], what)

    def _run(
        self, function: Callable[[str], Awaitable[T]], paths: Iterable[str], what: str
    ) -> list[T]:
        """Call `function` on each path, `parallel` at a time; raise the first error."""

        async def named(path: str) -> T:
            try:
                await self.store._ensure_open()
                return await function(path)
            except NCZarrError:
                raise
            except Exception as error:  # each store raises its own
                raise StoreError(f"{self.store}/{path}", f"cannot be {what} ({error})") from error

        results: list[T] = []
        for result in self._keys.run(self._keys.gather(named, paths)):
            if isinstance(result, StoreError):
                raise result
            results.append(result)
        return results


def _content(data: AnyBuffer) -> Buffer:
    return default_buffer_prototype().buffer.from_bytes(memoryview(data).tobytes())


class StoreView(Store):
    """A key store as a read-only zarr-python store.

    Parameters
    ----------
    keys
        The store to read.
    read_only
        True; zarr-python's stores all have it.

    Raises
    ------
    StoreError
        If it is to be written.
    """

    supports_writes: bool = False
    supports_deletes: bool = False
    supports_listing: bool = True
    supports_partial_writes: Literal[False] = False  # abstract up to zarr-python 3.1.0

    def __init__(self, keys: KeyStore, *, read_only: bool = True) -> None:
        if not read_only:
            raise StoreError(keys.url, "can be opened for reading only")
        super().__init__(read_only=True)
        self.keys = keys
        self._turn: Turn[_Wish, bytes | None] = Turn(self._send)

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
        start: int | None = None
        stop: int | None = None
        if isinstance(byte_range, RangeByteRequest):
            start, stop = byte_range.start, byte_range.end
        elif isinstance(byte_range, OffsetByteRequest):
            start = byte_range.offset
        elif isinstance(byte_range, SuffixByteRequest):
            start = -byte_range.suffix
        elif byte_range is not None:
            raise TypeError(f"Unexpected byte_range, got {byte_range!r}.")
        data = await self._get(key, start, stop)
        buffer = (prototype or default_buffer_prototype()).buffer
        return None if data is None else buffer.from_bytes(data)

    async def _get(self, key: str, start: int | None, stop: int | None) -> bytes | None:
        keys = self.keys
        if isinstance(keys, LocalStore):
            return await asyncio.to_thread(keys.get, key, start, stop)
        return await self._turn.ask((key, start, stop))

    def _send(
        self, wishes: builtins.list[_Wish], futures: builtins.list[asyncio.Future[bytes | None]]
    ) -> None:
        """Ask the other event loop for all `wishes` at once: so it sees what can be merged."""
        keys, loop = self.keys, asyncio.get_running_loop()
        assert isinstance(keys, RemoteStore)

        async def get(wish: _Wish, future: asyncio.Future[bytes | None]) -> None:
            try:
                done = partial(settle, future, await keys.get(*wish))
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                done = partial(fail, future, error)
            with suppress(RuntimeError):  # the loop of whoever asked is closed
                loop.call_soon_threadsafe(done)

        async def get_all() -> None:
            await asyncio.gather(*map(get, wishes, futures))

        asyncio.run_coroutine_threadsafe(get_all(), keys.loop)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> builtins.list[Buffer | None]:
        return builtins.list(
            await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))
        )

    async def exists(self, key: str) -> bool:
        # of a file nothing is read that way
        nothing = isinstance(self.keys, FileKeys)
        return await self._get(key, 0, 0 if nothing else 1) is not None

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def set_partial_values(
        self, key_start_values: Iterable[tuple[str, int, bytes]]
    ) -> None:  # abstract up to zarr-python 3.1.0
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
        keys = self.keys
        async for name in self.list_dir(prefix):
            key = f"{prefix}/{name}" if prefix else name
            if keys.is_object(key) if isinstance(keys, FileKeys) else await self.exists(key):
                yield key
            else:
                async for below in self._walk(key):
                    yield below
