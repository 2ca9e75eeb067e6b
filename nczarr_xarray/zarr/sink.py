"""`StoreSink`: what zarr-python encodes goes into a store of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.writable import WritableStore


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
        return [await self.get(key, prototype, part) for key, part in key_ranges]

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
