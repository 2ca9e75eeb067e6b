"""Plain HTTP(S): ranged, checked and retried requests for the keys of a tree.

Source: RFC 9110 (ranges), observed behaviour of nginx, Apache, S3 and the gaps listed with
each check.
"""

from __future__ import annotations

from functools import partial
from urllib.parse import quote, urlsplit, urlunsplit

from fsspec import AbstractFileSystem

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.fsspec import FsspecFiles
from nczarr_fsspec.transport.answers import (
    Answer,
    is_encoded,
    part_of_file,
    range_header,
    unsatisfied_size,
    whole_file,
)
from nczarr_fsspec.transport.http import MISSING, failure, get, translated
from nczarr_fsspec.transport.policy import Timeout
from nczarr_fsspec.url import redact

#: how servers say that they do not understand ``bytes=-N``
_NO_SUFFIX = frozenset({400, 501})


class HTTPFiles(FsspecFiles):
    """Files of an HTTP server; a path is a URL, which may hold a user and a query."""

    can_list = False

    def __init__(self, recipe: AbstractFileSystem, timeout: Timeout | None = None) -> None:
        super().__init__(recipe, timeout)
        self._divided = "", "", ""  # the last root, and what `_divided` makes of it

    def describe(self, path: str) -> str:
        # most have nothing that could be secret, and every chunk passes here
        return redact(path) if "@" in path or "=" in path else path

    def join(self, root: str, key: str) -> str:
        """The URL of `key`: each segment encoded, the query of `root` kept at the end."""
        last, base, query = self._divided
        if root != last:
            base, query = _divided(root)
            self._divided = root, base, query
        return f"{base}{quote(key, safe='/', errors='surrogatepass')}{query}"

    async def read(
        self,
        path: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        if start is None and stop is None:
            answer = await self._request(path, most=most)
        elif stop is not None and stop <= (start or 0):
            return b""
        else:
            answer = await self._request(path, start or 0, stop, most)
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
        self,
        url: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> Answer | None:
        """GET, retried; None if there is no such file. A negative `start` counts from the end."""
        shown = self.describe(url)
        attempt = partial(self._attempt, url, start, stop, most, shown)
        return await self._throttle.retried(attempt, shown)

    async def _attempt(
        self,
        url: str,
        start: int | None,
        stop: int | None,
        most: int | None,
        shown: str,
        left: float,
    ) -> Answer | None:
        headers = {} if start is None else {"Range": range_header(start, stop)}
        with translated(shown):
            async with get(self.shared, url, headers, left) as (response, clock):
                status = response.status
                if status in MISSING:
                    return None
                if status == 200:
                    return await whole_file(response, clock, shown, start, stop, most)
                if status == 206 and start is not None:
                    if is_encoded(response):
                        raise StoreError(
                            shown, "the server compressed a byte range, which cannot be undone"
                        )
                    return await part_of_file(response, clock, shown, start, stop, most)
                if status == 416 and start is not None:  # beyond the end, as in a slice
                    size = unsatisfied_size(response.headers.get("Content-Range"))
                    return Answer(b"", size, partial=True)
                if start is not None and start < 0 and status in _NO_SUFFIX:
                    return Answer(b"", None, partial=False)
                raise failure(shown, response)


def _divided(root: str) -> tuple[str, str]:
    """A URL without its fragment, in two: up to a slash at the end of the path, and the query."""
    parts = urlsplit(root)
    base = parts._replace(path=f"{parts.path.rstrip('/')}/", query="", fragment="")
    return urlunsplit(base), f"?{parts.query}" if parts.query else ""
