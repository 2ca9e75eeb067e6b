"""Plain HTTP(S): ranged, checked and retried requests over fsspec's own session.

fsspec's ``HTTPFileSystem`` neither retries nor compares what it got with what
it asked for; its session is used here, with the user's headers, credentials
and client options, and the answers are checked.

Source: RFC 9110 (ranges, retries), observed behaviour of nginx, Apache, S3 and
the gaps listed with each check.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
from yarl import URL

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.fsspec import FsspecFiles
from nczarr_fsspec.url import redact

#: requests for one range at most, and the first of the doubling waits between them, in seconds
ATTEMPTS = 6
FIRST_WAIT = 0.25
#: a server that wants a longer wait than this, in seconds, is believed and not asked again
LONGEST_WAIT = 60.0
#: no total limit, for large chunks over slow lines are fine; silence is not
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)

_MISSING = frozenset({404, 410})
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
#: how servers say that they do not understand ``bytes=-N``
_NO_SUFFIX = frozenset({400, 501})
_CONTENT_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d+)", re.IGNORECASE)
_HINTS = {
    401: "; it wants credentials: put user:password@ before the host or give storage_options",
    403: "; access is denied (some servers say so of files that do not exist, too)",
}
#: already legal in a URL, so that what is percent-encoded stays as it is
_LEGAL = "%/:?#[]@!$&'()*+,;=-._~"


@dataclass(frozen=True, slots=True)
class _Answer:
    """A piece of a file and where it lies: `partial` if the server honoured the range."""

    body: bytes
    size: int | None
    partial: bool


class _TransientError(Exception):
    """Worth another try, after `wait` seconds if the server said so."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


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
        wait, attempt = FIRST_WAIT, 0
        while True:
            attempt += 1
            asked = None
            try:
                return await self._attempt(url, start, stop)
            except _TransientError as error:
                reason, asked = str(error), error.wait
            except StoreError:
                raise
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
                reason = f"{type(error).__name__}: {redact(str(error))}"
                if _is_final(error):
                    raise StoreError(self.describe(url), f"cannot connect: {reason}") from None
            except (aiohttp.ClientError, ValueError) as error:
                reason = f"{type(error).__name__}: {redact(str(error))}"
                raise StoreError(self.describe(url), f"cannot be read: {reason}") from None
            if attempt == ATTEMPTS or (asked is not None and asked > LONGEST_WAIT):
                raise StoreError(self.describe(url), f"{reason} (tried {attempt} times)")
            jitter = random.uniform(0.5, 1)  # noqa: S311 - no secret
            await asyncio.sleep(wait * jitter if asked is None else asked)
            wait *= 2

    async def _attempt(self, url: str, start: int | None, stop: int | None) -> _Answer | None:
        fs = self.shared.fs
        options: dict[str, Any] = dict(fs.kwargs)
        headers = {"Accept-Encoding": "identity", **(options.pop("headers", None) or {})}
        if start is not None:
            headers["Range"] = _range_header(start, stop)
        if "timeout" not in options and "timeout" not in fs.client_kwargs:
            options["timeout"] = TIMEOUT
        session = await fs.set_session()
        legal = URL(quote(url, safe=_LEGAL), encoded=True)
        async with session.get(legal, headers=headers, **options) as response:
            status = response.status
            if status in _MISSING:
                return None
            if status == 200:
                return await self._whole(response, start, stop)
            if status == 206 and start is not None:
                return await self._part(response, self.describe(url), start, stop)
            if status == 416 and start is not None:  # beyond the end, as in a slice
                size = _UNSATISFIED.fullmatch(response.headers.get("Content-Range", ""))
                return _Answer(b"", int(size[1]) if size else None, partial=True)
            if start is not None and start < 0 and status in _NO_SUFFIX:
                return _Answer(b"", None, partial=False)
            said = f"HTTP status {status} {response.reason or ''}".rstrip()
            if status in _TRANSIENT:
                raise _TransientError(said, _retry_after(response.headers.get("Retry-After")))
            raise StoreError(self.describe(url), said + _HINTS.get(status, ""))

    async def _whole(
        self, response: aiohttp.ClientResponse, start: int | None, stop: int | None
    ) -> _Answer:
        """The answer 200: the file from its beginning, whatever range was asked for."""
        length = None if _is_encoded(response) else response.content_length
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
            raise _TransientError(f"the body has {len(body)} of {length} bytes")
        return _Answer(body[start:], length, partial=False)

    async def _part(
        self, response: aiohttp.ClientResponse, url: str, start: int, stop: int | None
    ) -> _Answer:
        """The answer 206: check that it is the range that was asked for, and all of it."""
        if _is_encoded(response):
            raise StoreError(url, "the server compressed a byte range, which cannot be undone")
        stated = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        body = await response.read()
        if stated is None:  # a proxy may lose it; then only the length can tell
            if stop is None or start < 0 or len(body) != stop - start:
                raise StoreError(url, "the server sent a byte range without saying which")
            return _Answer(body, None, partial=True)
        first, last = int(stated[1]), int(stated[2])
        if len(body) != last - first + 1:
            raise _TransientError(f"the body has {len(body)} of {last - first + 1} bytes")
        if stated[3] == "*":
            if start < 0:
                return _Answer(b"", None, partial=False)  # the tail of what?
            size, wanted = None, (start, last)
        else:
            size = int(stated[3])
            begin, end, _ = slice(start, stop).indices(size)
            wanted = begin, end - 1
        if (first, last) != wanted:
            asked = f"{wanted[0]}-{wanted[1]}"
            raise StoreError(url, f"the server sent bytes {first}-{last}, asked for {asked}")
        return _Answer(body, size, partial=True)


def _is_final(error: Exception) -> bool:
    """Whether there is no such host, nobody listening there, or a bad certificate."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return False
    return not isinstance(error.os_error, (ConnectionResetError, TimeoutError))


def _is_encoded(response: aiohttp.ClientResponse) -> bool:
    return response.headers.get("Content-Encoding", "identity").lower() != "identity"


def _range_header(start: int, stop: int | None) -> str:
    if start < 0:
        return f"bytes={start}"
    return f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"


def _retry_after(header: str | None) -> float | None:
    """Seconds to wait, from either form of ``Retry-After``; None if it says nothing sensible."""
    if header is None:
        return None
    try:
        if header.strip().isdigit():
            return float(header)
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
