"""Files behind any fsspec filesystem of which nothing else is known."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, TypeVar

from fsspec.implementations.cached import CachingFileSystem

from nczarr_fsspec.errors import NCZarrWarning, StoreError, caller_level, too_large
from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.filesystems import (
    EXPIRED,
    check_bucket,
    fail,
    is_absent,
    is_beyond,
    is_broken,
    is_in_front,
    keys_number,
    names_below,
    renewed,
    within,
    without_secrets,
)
from nczarr_fsspec.transport.request import (
    END,
    SETTLED,
    Answer,
    Extent,
    FileVersion,
    Request,
    TransientError,
    moment,
)

T = TypeVar("T")

#: what filesystems call what no two versions have in common, what may be no more than a time in
#: another form, and the times of changes; the first that is there counts
_STRONG = ("generation", "version_id", "md5Hash", "md5Checksum", "content_md5", "sha")
_TAGS = (*_STRONG, "ETag", "etag", "e_tag")
_TIMES = (
    *("mtime", "modified", "last_modified", "LastModified", "updated"),
    *("modify", "modificationTime", "modifiedTime"),
)
clock = time.time


class FsspecTransport(Transport):
    """Files of a filesystem that does not say of which version the bytes are that it returns.

    So it is asked what it knows of a file before the first bytes are read, and again after all
    that come: the version is of what is stated in common.
    """

    async def _attempt(self, request: Request, left: float) -> Answer | None:
        answer = await self._asked(request.path, self._answered(request), left)
        if answer is not None and answer.version.size >= 0 and not answer.version.modified:
            fs = self.shared.fs
            if request.server is not None and not is_in_front(fs):
                warn_of(type(fs).__name__)
        return answer

    async def _answered(self, request: Request) -> Answer:
        try:
            return await self._read(request)
        except Exception as error:
            if request.ranged and is_beyond(error):  # as in a slice
                version = request.version or FileVersion()
                if version.size >= 0:
                    version = version.agreeing(await self._version(request.path), request.shown)
                return Answer([b""], version)
            raise

    async def _read(self, request: Request) -> Answer:
        path, extents, version = request.path, request.extents or (), request.version
        if request.extents is None and not request.tail:
            most = request.most
            data = await self.shared.read(path, *(() if most is None else (0, most + 1)))
            if most is not None and len(data) > most:
                raise too_large(request.shown, most)
            return Answer([data], FileVersion())
        if version is None or version.size < 0:
            opening = request.server is not None or not extents
            version = await self._version(path) if opening else FileVersion()
        if request.tail:
            extents = [Extent(max(0, version.size - request.tail), version.size)]
        read = self.shared.read
        parts = [await read(path, low, None if high >= END else high) for low, high in extents]
        if request.server is not None and extents and not is_in_front(self.shared.fs):
            # an answer that was asked for before these bytes had come proves nothing
            now = await request.server.asking.ask(partial(self._version, path), after=True)
            version = version.agreeing(now, request.shown)
        for (start, stop), part in zip(extents, parts, strict=True):
            if version.size >= 0 and len(part) != max(0, min(stop, version.size) - start):
                raise TransientError(f"{len(part)} bytes came of {start}-{stop - 1}")
        return Answer(parts, version)

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
        recent = name not in _STRONG and any(_is_recent(info.get(time)) for time in _TIMES)
        return FileVersion("", stated, int(info["size"]), "-" if recent else "")

    async def list(self, path: str) -> frozenset[str] | None:
        async def attempt(left: float) -> Iterable[str] | None:
            return await self._asked(path, self._names_below(path), left)

        try:
            found = await self.retried(attempt, Request(path, self.describe(path)), "list")
        except NotImplementedError:
            return None
        return frozenset() if found is None else names_below(path, found)

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
        if not is_broken(error):
            return None
        return TransientError(without_secrets(self.recipe, error))


@cache
def warn_of(name: str) -> None:
    """Warn, once, of a filesystem that states nothing that changes with a file."""
    warnings.warn(
        f"{name} of fsspec states neither tags nor times of files: a file that is replaced by one "
        "of the same size while it is open is not noticed, and its values may be of two versions",
        NCZarrWarning,
        stacklevel=caller_level(),
    )


def _is_recent(changed: Any) -> bool:
    """Tell whether a file may have changed again since, at a time that is stated alike."""
    if isinstance(changed, str):
        digits = changed.partition(".")[0].isdecimal()  # as FTP has it
        with suppress(ValueError):
            text = f"{changed[:8]}T{changed[8:14]}" if digits else changed
            changed = moment(changed) or datetime.fromisoformat(text)
    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    return changed is not None and (isinstance(changed, str) or clock() - changed < SETTLED)
