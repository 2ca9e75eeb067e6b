"""A store of ours, reading and writing, as one store of zarr-python."""

from __future__ import annotations

import asyncio

from zarr.core.buffer import Buffer

from nczarr_fsspec.keystore import WritableStore
from nczarr_xarray.zarr.offered import StoreView


class WritingView(StoreView):
    """What is read goes through `StoreView`, what is written to the writer of the same keys.

    Nothing of the package is like this: a dataset is changed as a whole. It is here so that what
    zarr-python demands of a store is demanded of each pair of ours.
    """

    supports_writes: bool = True
    supports_deletes: bool = True

    def __init__(self, writer: WritableStore, *, read_only: bool = False) -> None:
        super().__init__(writer.reader())
        self._read_only = read_only
        self.writer = writer

    def __eq__(self, other: object) -> bool:
        # (key stores are equal to themselves only)
        return isinstance(other, WritingView) and other.writer.url == self.writer.url

    def __hash__(self) -> int:
        return hash(self.writer.url)

    def __repr__(self) -> str:
        return f"<WritingView {self.keys.url}>"

    def __reduce__(self) -> tuple[type[WritingView], tuple[WritableStore]]:  # type: ignore[override]
        return type(self), (self.writer,)

    def with_read_only(self, read_only: bool = False) -> WritingView:
        return type(self)(self.writer, read_only=read_only)

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"{value!r} is no Buffer")
        await asyncio.to_thread(self.writer.put, key, value.to_bytes())

    async def delete(self, key: str) -> None:
        self._check_writable()
        await asyncio.to_thread(self.writer.delete, [key])
