"""One file behind any fsspec filesystem that has to be waited for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from fsspec.implementations.cached import CachingFileSystem

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError
from nczarr_fsspec.ranges.source import HEAD_BYTES, Extent, Limits, RemoteBytes
from nczarr_fsspec.stores.fsspec import _MISSING, BROKEN, FsspecFiles, _fail, within, words
from nczarr_fsspec.transport.policy import TransientError
from nczarr_fsspec.transport.throttle import Throttle

#: what filesystems call what changes with a file; the first that is there counts
_VERSIONS = (
    *("ETag", "etag", "e_tag", "generation", "md5Hash", "content_md5", "version_id"),
    *("mtime", "modified", "last_modified", "LastModified", "updated"),
)


class FsspecBytes(RemoteBytes):
    """A file of a filesystem of which nothing is known. Made by `open`.

    Its answers name no version, so that a file that changes while it is read is noticed only
    if it becomes too short; the validator is what the filesystem said when it was opened.

    Parameters
    ----------
    files
        The connections.
    path
        In the filesystem.
    url
        How messages name the file.
    """

    size = -1
    head: bytes = b""
    limits = Limits()

    def __init__(self, files: FsspecFiles, path: str, url: str) -> None:
        self._files = files
        self._path = path
        self.url = url
        self.validator = ""
        self._throttle = Throttle(self.limits.concurrency, files.timeout)

    @classmethod
    def open(cls, files: FsspecFiles, path: str, url: str) -> Self:
        """Ask for size and first bytes, from any thread; errors as `open_source`."""
        source = cls(files, path, url)
        try:
            source.run(source._begin())
        except BaseException:
            source.close()
            raise
        return source

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._files.loop

    async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
        return list(await asyncio.gather(*map(self._one, extents)))

    def close(self) -> None:
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "head"}

    async def _begin(self) -> None:
        shared = self._files.shared
        if isinstance(shared.fs, CachingFileSystem):
            await self._begin_cached()
            return
        info, head = await asyncio.gather(
            self._retried("info"),
            self._retried("cat_file", start=0, end=HEAD_BYTES, **shared.one_request),
        )
        if info.get("type") == "directory":
            raise DatasetNotFoundError(self.url, "is a directory, not a file")
        if info.get("size") is None:
            raise StoreError(self.url, "its size cannot be found out")
        self.size = int(info["size"])
        if len(head) == min(HEAD_BYTES, self.size):
            self.head = bytes(head)
        stated = [f"{name}={info[name]}" for name in _VERSIONS if info.get(name) is not None]
        if stated:
            self.validator = f"{stated[0]};{self.size}"

    async def _begin_cached(self) -> None:
        """Open a file of one of fsspec's caches.

        What these say of a file is about the one that they would fetch now, not about what they
        have; some say that there is none where there is no listing.
        """
        with await self._retried("open", mode="rb") as file:
            await asyncio.to_thread(file.seek, 0, os.SEEK_END)
            self.size = file.tell()
        if self.size:
            self.head = await self._one(Extent(0, min(HEAD_BYTES, self.size)))

    async def _one(self, extent: Extent) -> bytes:
        return await self._throttle.retried(partial(self._read, extent), self.url)

    async def _read(self, extent: Extent, left: float) -> bytes:
        start, stop = extent
        options = self._files.shared.one_request | {"start": start, "end": stop}
        data: bytes = await self._call("cat_file", options, left)
        if len(data) != stop - start:
            raise TransientError(f"{len(data)} bytes came of {start}-{stop - 1}")
        return data

    async def _retried(self, method: str, **options: Any) -> Any:
        return await self._throttle.retried(partial(self._call, method, options), self.url)

    async def _call(self, method: str, options: dict[str, Any], left: float) -> Any:
        try:
            async with within(left):
                return await self._files.shared.call(method, self._path, **options)
        except TransientError:
            raise
        except _MISSING:
            raise DatasetNotFoundError(self.url, "there is no such file") from None
        except BROKEN as error:
            raise TransientError(words(self._files.recipe, error)) from None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            _fail(self._files.recipe, self._path, error)
