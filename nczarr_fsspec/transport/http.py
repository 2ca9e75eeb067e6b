"""Plain HTTP(S): redirects without leaks, ranged requests, checked answers.

fsspec's ``HTTPFileSystem`` neither retries nor compares what it got with what
it asked for; its session is used here, with the user's headers, credentials
and client options.

Source: RFC 9110 (ranges, redirects), aiohttp 3.12 to 3.14, observed behaviour of nginx, Apache,
S3.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from ipaddress import IPv6Address
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
from fsspec import AbstractFileSystem
from yarl import URL

from nczarr_fsspec.errors import RedirectError, StoreError, URLError
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.transport.answers import REDIRECTS, read_answer, refusal
from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.policy import (
    DEFAULT_LIMITS,
    NETRC_OPTION,
    TIMEOUT_OPTION,
    Clock,
    RequestLimits,
    Timeout,
)
from nczarr_fsspec.transport.request import Answer, Extent, Request, TransientError, range_text
from nczarr_fsspec.transport.request_options import RequestOptions, login_files, understood
from nczarr_fsspec.transport.sessions import gate, translated
from nczarr_fsspec.transport.shared import SharedFilesystem
from nczarr_fsspec.transport.throttle import Throttle

#: extents that one request names: 4 KiB of header at most, which servers take
RANGES = 100
#: how many signed URLs a request tries before it asks for one of its own
WAYS = 3
#: already legal in a URL, so that what is percent-encoded stays as it is
_LEGAL = "%/:?#[]@!$&'()*+,;=-._~"


class HTTPTransport(Transport):
    """Files of HTTP servers; a path is a URL, which may hold a user and a query."""

    can_list = False
    serves_ranges: bool | None = None
    ranges = RANGES

    def __init__(self, recipe: AbstractFileSystem, limits: RequestLimits = DEFAULT_LIMITS) -> None:
        super().__init__(recipe, limits)
        login_files.read(recipe.kwargs.get(NETRC_OPTION))

    def timeout_of(self, recipe: AbstractFileSystem) -> Timeout:
        given = recipe.kwargs.get(TIMEOUT_OPTION, recipe.client_kwargs.get(TIMEOUT_OPTION))
        return Timeout() if given is None else Timeout.parse(given, "HTTPFileSystem")

    def describe(self, path: str) -> str:
        # most have nothing that could be secret, and every chunk passes here
        return redact(path) if "@" in path or "?" in path else path

    def join(self, root: str, key: str) -> str:
        """Return the URL of `key`: each segment encoded, the query of `root` kept at the end."""
        base, query = _divided(root)
        return f"{base}{quote(key, safe='/', errors='surrogatepass')}{query}"

    def throttle(self, path: str) -> Throttle:
        parts = path.split("/", 3)
        if len(parts) < 3 or parts[1]:
            raise URLError(redact(path), "is no URL of HTTP, https://host/path")
        return self.shared.throttle(parts[2])

    async def list(self, path: str) -> None:
        return None  # HTTP has no listing; an HTML index is no contract

    async def fetch(self, request: Request) -> Answer | None:
        answer = await super().fetch(request)
        if not request.tail or answer is None or answer.parts != [None]:
            return answer
        # suffix ranges are not understood here; the start and the size say the same
        for probe in ([Extent(0, 1)], []):
            asked = request._replace(tail=0, extents=probe)
            answer = await super().fetch(asked)
            if answer is None:
                return None
            if answer.version.size >= 0:
                break
        else:
            raise StoreError(request.shown, "its size cannot be found out")
        size = answer.version.size
        end = [Extent(max(0, size - request.tail), size)]
        version = None if request.server is None else answer.version
        return await super().fetch(request._replace(tail=0, extents=end, version=version))

    async def _attempt(self, request: Request, left: float) -> Answer | None:
        server, now = request.server, asyncio.get_running_loop().time
        if server is None or server.target is None:
            return await self._exchange(request, left, None)
        end = now() + left
        answers = []

        async def ask_again() -> None:
            answers.append(await self._exchange(request, end - now(), None))

        for _ in range(WAYS):
            via = server.target
            if via is None:
                break
            try:
                answer = await self._exchange(request, end - now(), via)
                if answer is not None:
                    return answer
            except TransientError:
                server.leave(via)
                raise
            except StoreError:
                pass
            server.leave(via)  # where a redirect led may be good for a while only
            if server.target is not None:  # another has been told meanwhile
                continue
            await server.asking.ask(ask_again)
            if answers:  # it was not another's that told where to go now
                return answers[0]
        return await self._exchange(request, end - now(), None)

    async def _exchange(self, request: Request, left: float, via: str | None) -> Answer | None:
        path, server = request.path, request.server
        headers = {"Range": range_text(request)} if request.ranged else {}
        # Asked by time, a server may also call a file the same that was replaced by an older one.
        if request.unless is not None and request.unless.etag:
            headers["If-None-Match"] = request.unless.etag
        with translated(request.shown):
            shared = self.shared
            if server is not None:
                with understood():
                    await shared.fs.set_session()  # which the wait below is not about
            now = asyncio.get_running_loop().time
            began = now()
            async with get(shared, path, headers, left, via) as (response, clock):
                waited = now() - began
                answer = await read_answer(response, clock, request)
                self.led = str(response.url.with_user(None).with_query(None).with_fragment(None))
                said = response.headers.get("Accept-Ranges", "").strip().lower()
                if response.status == 206 or said == "bytes":
                    self.serves_ranges = True
                elif response.status == 200 and request.ranged:
                    self.serves_ranges = False
                if server is not None and answer is not None:
                    server.arrived(str(response.url), via or address(path), waited)
        return answer


@asynccontextmanager
async def get(
    shared: SharedFilesystem,
    url: str,
    headers: Mapping[str, str],
    left: float,
    via: str | None = None,
) -> AsyncIterator[tuple[aiohttp.ClientResponse, Clock]]:
    """GET `url`, following redirects; uncompressed unless the user's headers say otherwise.

    What the user gave (headers, credentials, cookies, of each request and of the session,
    and the TLS context of each request) goes to the origin of `url` only. aiohttp sends all
    but three headers on to wherever a redirect leads, also the ``auth`` and ``cookies`` of a
    session. Logins, netrc and the cookies of servers know their hosts.

    Parameters
    ----------
    shared
        An HTTP filesystem.
    url
        May hold user and password.
    headers
        Of this request, such as ``Range``; none of them secret.
    left
        Seconds that it may take, body included.
    via
        Where `url` is known to lead: it is asked instead.
    """
    with understood():
        options = await RequestOptions.of(shared)
        first = _legal(url)
        if options.params:
            first = first.extend_query(options.params)
    hops, renewals = options.hops, 1
    target = first if via is None else _legal(via)
    headers = {"Accept-Encoding": "identity", **headers}
    async with gate(options.session), Clock(shared.timeout, left) as clock:
        while True:
            with understood():
                request, said = await options.ask(headers, first, target)
                response = await request
            async with response:
                options.learn(response, first)
                refused = said is not None and response.status in (401, 403)
                if renewals and refused and await options.logins.renewed(response.url, said):
                    renewals -= 1
                    continue
                location = response.headers.get("Location")
                if response.status not in REDIRECTS or location is None or hops == 0:
                    clock.body(response.status)
                    yield response, clock
                    return
                target = response.url.join(_legal(location))
                if (reason := refusal(first, target, options.origins)) is not None:
                    raise RedirectError(redact(url), reason)
            hops -= 1


def address(url: str) -> str:
    """Return how `url` is asked for: legally encoded, without user and password."""
    return str(_legal(url).with_user(None))


@lru_cache(maxsize=256)  # a request needs it twice
def _legal(url: str) -> URL:
    """Return a URL, legally encoded, and its host in one spelling.

    That is lower case, names as name servers know them, and addresses as short as can be.
    """
    found = URL(quote(url, safe=_LEGAL), encoded=True)
    host = (found if url.isascii() else URL(url)).raw_host or ""
    if ":" in host:
        with suppress(ValueError):  # which aiohttp says
            host = IPv6Address(host).compressed
    return found if found.raw_host in (host.lower(), None) else found.with_host(host.lower())


@lru_cache(maxsize=8)  # every chunk passes here
def _divided(root: str) -> tuple[str, str]:
    """Cut a URL in two: up to a slash at the end of the path, and the query."""
    parts = urlsplit(root)
    base = parts._replace(path=f"{parts.path.rstrip('/')}/", query="", fragment="")
    return urlunsplit(base), f"?{parts.query}" if parts.query else ""
