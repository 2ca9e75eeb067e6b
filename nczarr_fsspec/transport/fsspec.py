"""Files behind any fsspec filesystem of which nothing else is known."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from fsspec.implementations.cached import CachingFileSystem

from nczarr_fsspec.coroutines import gather_or_cancel
from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.filesystems import (
    BROKEN,
    EXPIRED,
    check_bucket,
    fail,
    is_absent,
    is_beyond,
    keys_number,
    names_below,
    renewed,
    within,
    without_secrets,
)
from nczarr_fsspec.transport.policy import TransientError
from nczarr_fsspec.transport.request import END, Answer, Extent, Request
from nczarr_fsspec.transport.version import SETTLED, FileVersion

T = TypeVar("T")

#: what filesystems call what changes with a file; the first that is there counts
_TAGS = ("ETag", "etag", "e_tag", "generation", "md5Hash", "content_md5", "version_id")
_TIMES = ("mtime", "modified", "last_modified", "LastModified", "updated")
_now = time.time


class FsspecTransport(Transport):
    """Files of a filesystem that does not say of which version the bytes are that it returns.

    A file that changes while it is read is noticed only if it becomes too short; its version is
    what the filesystem says when the file is opened.
    """

    async def _attempt(self, request: Request, left: float) -> Answer | None:
        return await self._asked(request.path, self._answered(request), left)

    async def _answered(self, request: Request) -> Answer:
        try:
            return await self._read(request)
        except Exception as error:
            if request.ranged and is_beyond(error):  # as in a slice
                return Answer([b""], request.version or FileVersion())
            raise

    async def _read(self, request: Request) -> Answer:
        path, extents = request.path, request.extents or ()
        if request.extents is None and not request.tail:
            return Answer([await self._whole(request)], FileVersion())
        unknown = request.version is None or request.version.size < 0
        opening = unknown and (request.route is not None or not extents)
        if request.tail:
            version = await self._version(path)
            extents = [Extent(max(0, version.size - request.tail), version.size)]
            parts = await self._parts(path, extents)
        elif opening and not isinstance(self.shared.fs, CachingFileSystem):
            reading = self._parts(path, extents)
            version, parts = await gather_or_cancel(self._version(path), reading)
        else:
            version = await self._version(path) if opening else request.version or FileVersion()
            parts = await self._parts(path, extents)
        for (start, stop), part in zip(extents, parts, strict=True):
            if version.size >= 0 and len(part) != max(0, min(stop, version.size) - start):
                raise TransientError(f"{len(part)} bytes came of {start}-{stop - 1}")
        return Answer(parts, version)

    async def _whole(self, request: Request) -> bytes:
        most = request.most
        limits = {} if most is None else {"start": 0, "end": most + 1}
        shared = self.shared
        data: bytes = await shared.call("cat_file", request.path, **limits, **shared.one_request)
        if most is not None and len(data) > most:
            raise too_large(request.shown, most)
        return data

    async def _parts(self, path: str, extents: Sequence[Extent]) -> list[bytes]:
        shared, found = self.shared, []
        for start, stop in extents:
            options = {"start": start, "end": None if stop >= END else stop, **shared.one_request}
            found.append(await shared.call("cat_file", path, **options))
        return found

    async def _version(self, path: str) -> FileVersion:
        if isinstance(self.shared.fs, CachingFileSystem):
            # What a cache says of a file is about the one that it would fetch now, not about what
            # it has; some say that there is none where there is no listing.
            with await self.shared.call("open", path, mode="rb") as file:
                await asyncio.to_thread(file.seek, 0, os.SEEK_END)
                return FileVersion(size=file.tell())
        info = await self.shared.call("info", path)
        if info.get("type") == "directory":
            raise IsADirectoryError(path)
        if info.get("size") is None:
            raise StoreError(self.describe(path), "its size cannot be found out")
        name = next((name for name in _TAGS + _TIMES if info.get(name) is not None), None)
        stated = "" if name is None else f"{name}={info[name]}"
        recent = name in _TIMES and _is_recent(info[name])
        return FileVersion("", stated, int(info["size"]), "-" if recent else "")

    async def list(self, path: str) -> frozenset[str] | None:
        attempt = partial(self._list, path)
        try:
            found = await self._retried(attempt, Request(path, self.describe(path)), "list")
        except NotImplementedError:
            return None
        return frozenset() if found is None else names_below(path, found)

    async def _list(self, path: str, left: float) -> Iterable[str] | None:
        return await self._asked(path, self._names_below(path), left)

    async def _names_below(self, path: str) -> Iterable[str]:
        found: Iterable[str] = await self.shared.call("ls", path, detail=False)
        return found

    async def _asked(self, path: str, call: Awaitable[T], left: float) -> T | None:
        """Return what `call` returns about `path`; None if that is not there."""
        number = keys_number(self.shared.fs)
        try:
            async with within(left):
                return await call
        except (TransientError, NotImplementedError):
            raise
        except MemoryError:
            raise StoreError(self.describe(path), "does not fit into memory") from None
        except Exception as error:  # noqa: BLE001 - a filesystem is foreign code
            if is_absent(error, path):
                check_bucket(self.recipe, path, error)
                return None
            if renewed(self.shared.fs, error, number):
                raise TransientError(EXPIRED) from None
            if (transient := self.transient(error)) is not None:
                raise transient from None
            fail(self.recipe, path, error)

    def transient(self, error: Exception) -> TransientError | None:
        """Return what to try again of the errors of the filesystem; None if it will not pass."""
        if not isinstance(error, BROKEN):
            return None
        return TransientError(without_secrets(self.recipe, error))


def _is_recent(changed: Any) -> bool:
    """Tell whether a file may have changed again since, at a time that is stated alike."""
    if isinstance(changed, str):
        with suppress(ValueError):
            changed = datetime.fromisoformat(changed)
    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    return isinstance(changed, (int, float)) and _now() - changed < SETTLED
