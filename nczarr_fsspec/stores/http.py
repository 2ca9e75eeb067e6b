"""Plain HTTP(S): ranged, checked and retried requests for the keys of a tree.

Source: RFC 9110 (ranges), observed behaviour of nginx, Apache, S3 and the gaps listed with
each check.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores._http import (
    MISSING,
    content_range,
    failure,
    get,
    is_encoded,
    translated,
    unsatisfied_size,
)
from nczarr_fsspec.stores._retry import TransientError, retried
from nczarr_fsspec.stores.fsspec import FsspecFiles
from nczarr_fsspec.url import redact

#: how servers say that they do not understand ``bytes=-N``
_NO_SUFFIX = frozenset({400, 501})


@dataclass(frozen=True, slots=True)
class _Answer:
    """A piece of a file and where it lies: `partial` if the server honoured the range."""

    body: bytes
    size: int | None
    partial: bool


class HTTPFiles(FsspecFiles):
    """Files of an HTTP server; a path is a URL, which may hold a user and a query."""

    can_list = False

    def describe(self, path: str) -> str:
        return redact(path)

    def join(self, root: str, key: str) -> str:
        """The URL of `key`: each segment encoded, the query of `root` kept at the end."""
        parts = urlsplit(root)
        below = "/".join(quote(part, safe="", errors="surrogatepass") for part in key.split("/"))
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{below}", fragment=""))

    async def read(
        self, path: str, start: int | None = None, stop: int | None = None
    ) -> bytes | None:
        if start is None and stop is None:
            answer = await self._request(path)
        elif stop is not None and stop <= (start or 0):
            return b""
        else:
            answer = await self._request(path, start or 0, stop)
        return None if answer is None else answer.body

    async def read_tail(self, path: str, count: int) -> tuple[bytes, int] | None:
        answer = await self._request(path, -count)
        if answer is None:
            return None
        if answer.size is not None and len(answer.body) == min(count, answer.size):
            return answer.body, answer.size
        # suffix ranges are not understood here; the start and the size say the same
        probe = await self._request(path, 0, 1)
        if probe is None or probe.size is None or not probe.partial:
            raise StoreError(
                self.describe(path),
                "the server does not serve byte ranges, without which an archive cannot be read; "
                "download it, or put simplecache:: before the URL",
            )
        tail = await self.read(path, max(0, probe.size - count), probe.size)
        return None if tail is None else (tail, probe.size)

    async def list(self, path: str) -> None:
        return None  # HTTP has no listing; an HTML index is no contract

    async def _request(
        self, url: str, start: int | None = None, stop: int | None = None
    ) -> _Answer | None:
        """GET, retried; None if there is no such file. A negative `start` counts from the end."""
        return await retried(partial(self._attempt, url, start, stop), self.describe(url))

    async def _attempt(self, url: str, start: int | None, stop: int | None) -> _Answer | None:
        shown = self.describe(url)
        headers = {} if start is None else {"Range": _range_header(start, stop)}
        with translated(shown):
            async with get(self.shared, url, headers) as response:
                status = response.status
                if status in MISSING:
                    return None
                if status == 200:
                    return await self._whole(response, start, stop)
                if status == 206 and start is not None:
                    return await self._part(response, shown, start, stop)
                if status == 416 and start is not None:  # beyond the end, as in a slice
                    size = unsatisfied_size(response.headers.get("Content-Range"))
                    return _Answer(b"", size, partial=True)
                if start is not None and start < 0 and status in _NO_SUFFIX:
                    return _Answer(b"", None, partial=False)
                raise failure(shown, response)

    async def _whole(
        self, response: aiohttp.ClientResponse, start: int | None, stop: int | None
    ) -> _Answer:
        """The answer 200: the file from its beginning, whatever range was asked for."""
        length = None if is_encoded(response) else response.content_length
        if start is not None and start < 0:
            if length is None or length > -start:
                return _Answer(b"", length, partial=False)  # not the whole file for its tail
            start = None
        if stop is None:
            body = await response.read()
        else:
            pieces = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                pieces += piece
                if len(pieces) >= stop:
                    return _Answer(bytes(pieces[start:stop]), length, partial=False)
            body = bytes(pieces)
        if length is not None and len(body) != length:
            raise TransientError(f"the body has {len(body)} of {length} bytes")
        return _Answer(body[start:], length, partial=False)

    async def _part(
        self, response: aiohttp.ClientResponse, url: str, start: int, stop: int | None
    ) -> _Answer:
        """The answer 206: check that it is the range that was asked for, and all of it."""
        if is_encoded(response):
            raise StoreError(url, "the server compressed a byte range, which cannot be undone")
        stated = content_range(response.headers.get("Content-Range"))
        body = await response.read()
        if stated is None:  # a proxy may lose it; then only the length can tell
            if stop is None or start < 0 or len(body) != stop - start:
                raise StoreError(url, "the server sent a byte range without saying which")
            return _Answer(body, None, partial=True)
        first, end, size = stated
        if len(body) != end - first:
            raise TransientError(f"the body has {len(body)} of {end - first} bytes")
        if size is None:
            if start < 0:
                return _Answer(b"", None, partial=False)  # the tail of what?
            wanted = start, end
        else:
            wanted = slice(start, stop).indices(size)[:2]
        if (first, end) != wanted:
            asked = f"{wanted[0]}-{wanted[1] - 1}"
            raise StoreError(url, f"the server sent bytes {first}-{end - 1}, asked for {asked}")
        return _Answer(body, size, partial=True)


def _range_header(start: int, stop: int | None) -> str:
    if start < 0:
        return f"bytes={start}"
    return f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
