"""One file behind HTTP(S): every answer is checked to be what was asked for, of one version.

Source: RFC 9110 sections 8.8 (validators), 13 (conditional requests), 14 (ranges); observed
behaviour of nginx, Apache, S3, Python's ``http.server``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import aiohttp

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges.source import HEAD_BYTES, Extent, Known, Limits, RemoteBytes
from nczarr_fsspec.transport import multipart
from nczarr_fsspec.transport.answers import (
    ContentRange,
    content_range,
    exactly,
    is_encoded,
    pieces,
    unsatisfied_size,
    up_to,
    wrong_range,
)
from nczarr_fsspec.transport.http import address, failure, get, translated
from nczarr_fsspec.transport.http_files import HTTPFiles
from nczarr_fsspec.transport.policy import Clock, TransientError
from nczarr_fsspec.transport.throttle import Throttle
from nczarr_fsspec.transport.version import Version, condition

T = TypeVar("T")
_Answered = Callable[[aiohttp.ClientResponse, Clock], Awaitable[T]]
_Bytes = bytes | memoryview

#: requests in flight; aiohttp keeps 100 connections
CONCURRENCY = 96
#: extents that one request names: 4 KiB of header at most, which servers take
RANGES = 100
#: bodies of this size and more, in bytes, tell the bandwidth
_TELLING = 1 << 18
#: smaller ones do if they take longer than this, in seconds
_SLOW = 0.01
#: bytes per second; more is what a body had waiting when nobody read it
_FASTEST = 1e9
#: how refusing several ranges looks; a server that ignores them says 200
_ONE_RANGE = frozenset({200, 400, 416, 501})
#: headers of object stores, all of which answer one range at a time
_OBJECT_STORES = ("x-amz-request-id", "x-goog-generation", "x-ms-request-id")
_UNKNOWN = Limits()
#: limits for what is in memory
_HELD = Limits(concurrency=CONCURRENCY, ranges=1 << 16, latency=1e-6, bandwidth=_FASTEST)


class HTTPBytes(RemoteBytes):
    """One version of a file of an HTTP server. Made by `open`.

    All answers must be about one `Version`. A server that ignores ranges sends the whole file:
    that answer is kept in memory.

    Parameters
    ----------
    files
        The connections.
    path
        The URL with its secrets.
    url
        How messages name the file.
    max_whole
        Bytes to keep in memory at most.
    """

    head: bytes = b""
    # what a pickle leaves behind
    _whole: bytes | None = None
    _keeping: asyncio.Future[bytes] | None = None
    # what is learned on the way
    _via: str | None = None
    _ranges = RANGES
    _latency: float | None = None
    _bandwidth: float | None = None
    _bodies = 0  # that are being read

    def __init__(self, files: HTTPFiles, path: str, url: str, max_whole: int) -> None:
        self._files = files
        self._path = path
        self.url = url
        self._max_whole = max_whole
        self._version = Version(url)
        self._throttle = Throttle(CONCURRENCY, files.timeout)
        self.size = -1
        self.validator = ""

    @classmethod
    def open(
        cls, files: HTTPFiles, path: str, url: str, known: Known | None, max_whole: int
    ) -> HTTPBytes:
        """Send the first request, from any thread; parameters and errors as `open_source`."""
        source = cls(files, path, url, max_whole)
        try:
            source.run(source._begin(known))
        except BaseException:
            source.close()
            raise
        return source

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._files.loop

    @property
    def limits(self) -> Limits:
        if self._whole is not None:
            return _HELD
        return Limits(
            self._throttle.limit,
            self._ranges,
            _UNKNOWN.latency if self._latency is None else self._latency,
            _UNKNOWN.bandwidth if self._bandwidth is None else self._bandwidth,
        )

    async def fetch(self, extents: Sequence[Extent]) -> list[_Bytes]:
        limit = self.limits.ranges
        if limit > 1 and len(extents) > 1 and self._whole is None:
            batches = [extents[at : at + limit] for at in range(0, len(extents), limit)]
            found = await asyncio.gather(*map(self._several, batches))
            return [data for batch in found for data in batch]
        return list(await asyncio.gather(*map(self._one, extents)))

    def close(self) -> None:
        self._whole = None
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        volatile = ("head", "_whole", "_keeping", "_bodies")
        return {name: value for name, value in self.__dict__.items() if name not in volatile}

    # ---- the kinds of request

    async def _begin(self, known: Known | None) -> None:
        """Ask for the first bytes; from the answer come size and validator, too."""
        headers = {"Range": f"bytes=0-{HEAD_BYTES - 1}", **condition(known)}
        version = self._version
        if await self._request(headers, partial(self._first, known=known)):
            if version.size < 0:
                await self._request({}, self._only_size)
            if not min(version.size, HEAD_BYTES) <= len(self.head) <= version.size:
                self.head = b""  # cut, by a server that did not say how long it would be
        else:
            assert known is not None
            version.resume(known)
        self.size, self.validator = version.size, version.validator
        connector = getattr(await self._files.shared.fs.set_session(), "connector", None)
        for name in ("limit", "limit_per_host"):  # 0 is none
            self._throttle.cap(getattr(connector, name, 0) or CONCURRENCY)

    async def _one(self, extent: Extent) -> _Bytes:
        """One extent by one request."""
        whole = self._whole
        if whole is not None:
            return memoryview(whole)[extent.start : extent.stop]
        headers = {"Range": f"bytes={extent.start}-{extent.stop - 1}"}
        return await self._request(headers, partial(self._part, extent=extent))

    async def _several(self, extents: Sequence[Extent]) -> list[_Bytes]:
        """Several extents by one request; what that does not bring, by others."""
        if len(extents) == 1:
            return [await self._one(extents[0])]
        wanted = ",".join(f"{start}-{stop - 1}" for start, stop in extents)
        headers = {"Range": f"bytes={wanted}"}
        parts = await self._request(headers, partial(self._parts, extents=extents))
        found = [multipart.cut(parts, extent) for extent in extents]
        lacking = [extent for extent, data in zip(extents, found, strict=True) if data is None]
        if len(lacking) == len(extents):
            self._ranges = 1
        rest = iter(await self.fetch(lacking) if lacking else [])
        return [next(rest) if data is None else data for data in found]

    async def _request(self, headers: dict[str, str], answered: _Answered[T]) -> T:
        return await self._throttle.retried(partial(self._attempt, headers, answered), self.url)

    async def _attempt(self, headers: dict[str, str], answered: _Answered[T], left: float) -> T:
        via = self._via
        try:
            return await self._exchange(headers, answered, left, via)
        except (StoreError, TransientError) as error:
            if via is None:
                raise
            if self._via == via:  # where a redirect led may be good for a while only
                self._via = None
            if isinstance(error, TransientError):
                raise
        return await self._exchange(headers, answered, left, None)

    async def _exchange(
        self, headers: dict[str, str], answered: _Answered[T], left: float, via: str | None
    ) -> T:
        with translated(self.url):
            await self._files.shared.fs.set_session()  # which the wait below is not about
            began = time.perf_counter()
            asked = get(self._files.shared, self._path, headers, left, via)
            async with asked as (response, clock):
                waited = time.perf_counter() - began
                result = await answered(response, clock)
                target = str(response.url)
        if target == (via or address(self._path)):
            self._latency = min(self._latency or waited, waited)
        else:  # it took another request to be told where to go
            self._via = target
        return result

    # ---- what becomes of the answers

    async def _first(
        self, response: aiohttp.ClientResponse, clock: Clock, known: Known | None
    ) -> bool:
        """The answer to the first request; False if the file is still the `known` one."""
        if response.status == 304 and known is not None:
            return False
        self._version.begin(response.headers)
        if response.status == 200:
            self.head = (await self._keep(response, clock))[:HEAD_BYTES]
        elif response.status == 206:
            stated = self._stated(response)
            if stated is None:  # a proxy may lose it
                self.head = await up_to(response, clock, self.url, HEAD_BYTES)
            elif stated.start > 0 or stated.stop > HEAD_BYTES:
                raise wrong_range(self.url, stated, 0, HEAD_BYTES)
            else:
                self.head = bytes(await self._body(response, clock, stated.stop))
                self._version.size = -1 if stated.size is None else stated.size
        elif response.status == 416:  # of an empty file there are no first bytes
            size = unsatisfied_size(response.headers.get("Content-Range"))
            if size:
                raise failure(self.url, response)
            self._version.size = -1 if size is None else 0
        else:
            raise failure(self.url, response)
        if any(name in response.headers for name in _OBJECT_STORES):
            self._ranges = 1
        return True

    async def _only_size(self, response: aiohttp.ClientResponse, clock: Clock) -> None:
        """The answer without a range: how long its body would be, unless that is not said."""
        if response.status != 200:
            raise failure(self.url, response)
        length = _length(response)
        if length is None:
            self.head = (await self._keep(response, clock))[:HEAD_BYTES]
        else:
            self._version.check(response.headers, None)
            self._version.size = length
            response.close()

    async def _part(self, response: aiohttp.ClientResponse, clock: Clock, extent: Extent) -> _Bytes:
        """The answer to a request for one extent."""
        if response.status == 200:
            return memoryview(await self._keep(response, clock))[extent.start : extent.stop]
        if response.status == 416:
            size = unsatisfied_size(response.headers.get("Content-Range"))
            if size not in (None, self.size):
                raise self._version.changed(f"it had {self.size} bytes and has {size}")
        if response.status != 206:
            raise failure(self.url, response)
        stated = self._stated(response)
        count = extent.stop - extent.start
        self._version.check(response.headers, stated and stated.size)
        if stated is None and response.content_length not in (None, count):
            raise StoreError(self.url, "the server sent a byte range without saying which")
        if stated is not None and stated[:2] != extent:
            raise wrong_range(self.url, stated, *extent)
        return await self._body(response, clock, count)

    async def _parts(
        self, response: aiohttp.ClientResponse, clock: Clock, extents: Sequence[Extent]
    ) -> list[multipart.Part]:
        """The answer to a request for several extents; no parts if the server cannot do that."""
        if response.status in _ONE_RANGE:
            response.close()  # not a whole file for a few of its bytes
            return []
        if response.status != 206:
            raise failure(self.url, response)
        wanted = sum(stop - start for start, stop in extents)
        most = 2 * wanted + (1 << 20)  # headers, and gaps that the server filled
        stated = content_range(response.headers.get("Content-Range"))
        mark = multipart.boundary(response.headers.get("Content-Type", ""))
        parts: list[multipart.Part] | None = None
        if is_encoded(response):
            pass
        elif mark is not None:
            parts = multipart.parts(await up_to(response, clock, self.url, most), mark)
        elif stated is not None and stated.stop - stated.start <= most:
            body = await self._body(response, clock, stated.stop - stated.start)
            parts = [(stated, body)]
        if not parts:
            response.close()
            return []
        for part, _ in parts:
            self._version.check(response.headers, part.size)
        return parts

    async def _keep(self, response: aiohttp.ClientResponse, clock: Clock) -> bytes:
        """Download the whole file, which the server sent though it was asked for a part.

        However many such answers there are at a time, one of them is read.
        """
        if self._whole is not None:
            response.close()
            return self._whole
        keeping = self._keeping
        # after a fork, the one under way belongs to a loop that does not run here
        if keeping is not None and keeping.get_loop() is asyncio.get_running_loop():
            response.close()
            clock.rest()
            return await asyncio.shield(keeping)
        keeping = self._keeping = asyncio.get_running_loop().create_future()
        try:
            whole = self._whole = await self._download(response, clock)
        except BaseException as error:
            again = error if isinstance(error, StoreError) else TransientError(str(error))
            keeping.set_exception(again)
            keeping.exception()  # there may be nobody who waits for it
            raise
        else:
            keeping.set_result(whole)
            return whole
        finally:
            self._keeping = None

    async def _download(self, response: aiohttp.ClientResponse, clock: Clock) -> bytes:
        length = _length(response)
        known = self._version.size
        if known >= 0:
            self._version.check(response.headers, length)
        if (length or 0) <= self._max_whole:
            body = await up_to(response, clock, self.url, self._max_whole)
            if len(body) <= self._max_whole:
                expected = known if length is None and known >= 0 else length
                if expected is not None and len(body) != expected:
                    raise TransientError(f"the body has {len(body)} of {expected} bytes")
                self._version.size = len(body)
                return body
        held = "" if length is None else f" of {length} bytes"
        raise StoreError(
            self.url,
            f"the server does not serve byte ranges, and the file{held} is larger than the "
            f"{self._max_whole} bytes that are kept in memory (storage option max_whole); "
            "download it, or put simplecache:: before the URL",
        )

    async def _body(self, response: aiohttp.ClientResponse, clock: Clock, count: int) -> memoryview:
        """Exactly `count` bytes."""
        began = time.perf_counter()
        alone = not self._bodies
        self._bodies += 1
        try:
            body = await exactly(pieces(response, clock, self.url), count)
        finally:
            self._bodies -= 1
        took = time.perf_counter() - began
        if count >= _TELLING or (count >= _TELLING // 8 and took > _SLOW):
            speed = min(count / max(took, 1e-9), _FASTEST)
            # those that share the line tell what it carries at least
            least = 0.0 if alone and not self._bodies else _UNKNOWN.bandwidth
            self._bandwidth = max(self._bandwidth or least, speed)
        return body

    # ---- checks

    def _stated(self, response: aiohttp.ClientResponse) -> ContentRange | None:
        """Which range an answer for one says it is; None if it does not say."""
        if is_encoded(response):
            raise StoreError(self.url, "the server compressed a byte range, which cannot be undone")
        if response.content_type == "multipart/byteranges":
            raise StoreError(self.url, "the server sent several byte ranges, asked for one")
        header = response.headers.get("Content-Range")
        stated = content_range(header)
        if stated is None and header is not None:
            raise StoreError(self.url, f"the server sent no possible byte range: {header[:60]!r}")
        return stated


def _length(response: aiohttp.ClientResponse) -> int | None:
    """Of the file in an answer 200; None if the answer does not say."""
    return None if is_encoded(response) else response.content_length
