"""Stores of zarr-python as stores of ours: `ZarrKeyStore` to read them, `ZarrWriter` to write.

The other direction is `nczarr_xarray.zarr.offered`.
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import _get_loop
from zarr.storage import FsspecStore as ZarrFsspecStore
from zarr.storage import LocalStore as ZarrLocalStore
from zarr.storage import ZipStore as ZarrZipStore

from nczarr_fsspec.errors import NCZarrError, StoreError, too_large
from nczarr_fsspec.keystore import ALL, KeyStore, RemoteStore, WritableStore, check_key, creating
from nczarr_fsspec.place import open_keystore
from nczarr_fsspec.places.names import about_icechunk
from nczarr_fsspec.places.url import redact
from nczarr_xarray.zarr.offered import StoreView

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

T = TypeVar("T")


def adopt(store: Store) -> KeyStore:
    """Return our view of a zarr-python store; stores of local files are read directly."""
    if isinstance(store, StoreView):
        return store.keys
    if isinstance(store, ZarrLocalStore):
        return open_keystore(store.root)
    if isinstance(store, ZarrZipStore):
        return open_keystore(store.path)
    return ZarrKeyStore(store)


def adopt_for_writing(store: Store) -> str | ZarrWriter:
    """Return what to write to for a zarr-python store: the path of local files, else a writer."""
    if isinstance(store, (ZarrLocalStore, ZarrZipStore)):
        if store.read_only:
            raise StoreError(str(store), "is open for reading only; open it with read_only=False")
        if isinstance(store, ZarrZipStore) and store._is_open:
            raise StoreError(
                str(store), "is open for writing already, by zarr: name the path of a new archive"
            )
        return str(store.root if isinstance(store, ZarrLocalStore) else store.path)
    if other := about_icechunk(store):
        raise StoreError(str(store), f"is a store of Icechunk{other}")
    return ZarrWriter(store)


class ZarrKeyStore(RemoteStore):
    """Any zarr-python store, read on zarr's own event loop.

    Parameters
    ----------
    store
        Opened for reading if it is not open yet.
    prefix
        In front of all keys; it ends with a slash.
    """

    def __init__(self, store: Store, prefix: str = "") -> None:
        self.store = store
        self.url = redact(f"{store}/{prefix}".rstrip("/"))
        self._prefix = prefix

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return _get_loop()

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        path = self._prefix + check_key(key)
        request: ByteRequest | None = None
        start = part.start or 0
        if part.stop is not None:
            request = RangeByteRequest(start, part.stop)
        elif start < 0:
            request = SuffixByteRequest(-start)
        elif start:
            request = OffsetByteRequest(start)
        try:
            await self.store._ensure_open()
            buffer = await self.store.get(path, default_buffer_prototype(), request)
        except FileNotFoundError:
            return None
        except NCZarrError:
            raise
        except Exception as error:  # noqa: BLE001 - each store raises its own
            raise StoreError(f"{self.url}/{key}", f"cannot be read ({_reason(error)})") from None
        # (not every store takes a range that ends beyond the object)
        if buffer is not None and most is not None and len(buffer) > most:
            raise too_large(f"{self.url}/{key}", most)
        return None if buffer is None else buffer.to_bytes()

    async def list(self, prefix: str) -> frozenset[str] | None:
        if not self.store.supports_listing:
            return None
        try:
            await self.store._ensure_open()
            path = (self._prefix + prefix).rstrip("/")
            names = [name async for name in self.store.list_dir(path)]
        except FileNotFoundError:
            return frozenset()
        except Exception as error:  # noqa: BLE001 - each store raises its own
            reason = f"cannot be listed ({_reason(error)})"
            raise StoreError(f"{self.url}/{prefix}", reason) from None
        return frozenset(name.rstrip("/").rpartition("/")[2] for name in names)

    def close(self) -> None:
        """Leave the store open: it belongs to the caller."""


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

    parallel = 64

    def __init__(self, store: Store, prefix: str = "") -> None:
        self.store = store
        self._prefix = prefix
        self._keys = ZarrKeyStore(store, prefix)
        self.url = self._keys.url
        if store.read_only:
            raise StoreError(self.url, "is open for reading only; open it with read_only=False")
        if not (store.supports_writes and store.supports_deletes and store.supports_listing):
            raise StoreError(self.url, "cannot write, delete and list; choose another store")

    def reader(self) -> ZarrKeyStore:
        return ZarrKeyStore(self.store, self._prefix)

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
        store = self.store
        patterns = isinstance(store, ZarrFsspecStore)  # it takes keys, and its own path, for such
        if isinstance(store, ZarrFsspecStore) and glob.has_magic(store.path):
            store = ZarrFsspecStore(store.fs, path=glob.escape(store.path))

        async def delete(path: str) -> None:
            with suppress(FileNotFoundError):
                await store.delete(glob.escape(path) if patterns else path)

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
            except Exception as error:  # noqa: BLE001 - each store raises its own
                shown = redact(f"{self.store}/{path}")
                raise StoreError(shown, f"cannot be {what} ({_reason(error)})") from None

        return self._keys.run_each(named, paths)


def _reason(error: Exception) -> str:
    """Return what a store says, without secrets: its errors may hold the headers of a request."""
    return redact(str(error)) or type(error).__name__


def _content(data: AnyBuffer) -> Buffer:
    return default_buffer_prototype().buffer.from_bytes(memoryview(data).tobytes())
