"""Object stores of obspec, such as those of obstore, as a filesystem of fsspec."""

from __future__ import annotations

from typing import Any

from fsspec.asyn import AsyncFileSystem


class ObspecFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of a store that has obspec's ``HeadAsync`` and ``GetRangeAsync``, to be read.

    The store sends its requests itself, with its own credentials, and tries again by itself.

    Parameters
    ----------
    store
        The store.
    base
        The URL of its root, for messages.
    identity
        What tells this store from others; its text need not.
    """

    protocol = "obspec"
    cachable = False

    def __init__(self, store: Any, base: str, identity: int, **options: Any) -> None:
        super().__init__(**options)
        self.store = store
        self.base = base

    def unstrip_protocol(self, name: str) -> str:
        return f"{self.base.rstrip('/')}/{name.lstrip('/')}"

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        found = await self.store.head_async(path)
        return {"type": "file", **found}

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        start = start or 0
        if end is None or start < 0 or end < 0:  # which count from the end
            size = (await self.store.head_async(path))["size"]
            start, end, _step = slice(start, end).indices(size)
        if start >= end:  # which stores refuse
            return b""
        return bytes(await self.store.get_range_async(path, start=start, end=end))
