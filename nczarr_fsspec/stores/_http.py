"""Requests over fsspec's HTTP session: redirects without leaks, and what answers say.

fsspec's ``HTTPFileSystem`` neither retries nor compares what it got with what
it asked for; its session is used here, with the user's headers, credentials
and client options.

Source: RFC 9110 (ranges, redirects, retries), aiohttp 3.12 to 3.14, observed
behaviour of nginx, Apache, S3.
"""

from __future__ import annotations

import errno
import re
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from fsspec import AbstractFileSystem
from yarl import URL

from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError, StoreError
from nczarr_fsspec.stores._buffer import buffer
from nczarr_fsspec.stores._retry import TransientError
from nczarr_fsspec.stores._shared import SharedFilesystem
from nczarr_fsspec.url import redact

#: no total limit, for large chunks over slow lines are fine; silence is not
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
#: answers that say there is no such file
MISSING = frozenset({404, 410})

#: answers after which another try may succeed
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
#: those of them that mean "too many requests"
_BUSY = frozenset({429, 503})
#: errors of this machine that mean the same
TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONTENT_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d+)", re.IGNORECASE)
_HINTS = {
    401: "; it wants credentials: put user:password@ before the host or give storage_options",
    403: "; access is denied (some servers say so of files that do not exist, too)",
}
#: already legal in a URL, so that what is percent-encoded stays as it is
_LEGAL = "%/:?#[]@!$&'()*+,;=-._~"
#: options of a request that are meant for the host that the user named; ``ssl`` may hold a
#: client's certificate, or turn verification off. Proxies are the way to all hosts.
_PRIVATE = ("auth", "cookies", "server_hostname", "ssl")
#: for each session of a user one that has its connections but none of its secrets
_strangers: weakref.WeakKeyDictionary[aiohttp.ClientSession, aiohttp.ClientSession]
_strangers = weakref.WeakKeyDictionary()
#: for each filesystem what its requests have in common; sessions may be those of several
_habits: weakref.WeakKeyDictionary[SharedFilesystem, _Habits] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Habits:
    """What all requests of a filesystem have in common.

    Attributes
    ----------
    given : dict
        Headers of the user, who may change them.
    options, public : dict
        Further arguments of a request to the origin that the user named, and to others.
    params : dict
        Added to the query.
    hops : int
        How many redirects are followed.
    """

    given: Mapping[str, str]
    options: dict[str, Any]
    public: dict[str, Any]
    params: Any
    hops: int

    @classmethod
    def of(cls, fs: AbstractFileSystem) -> _Habits:
        options: dict[str, Any] = dict(fs.kwargs)
        given = options.pop("headers", None) or {}
        params = options.pop("params", None)
        follow = options.pop("allow_redirects", True)
        hops = int(options.pop("max_redirects", 10)) if follow else 0
        if "timeout" not in options and "timeout" not in fs.client_kwargs:
            options["timeout"] = TIMEOUT
        options["allow_redirects"] = False
        public = {name: value for name, value in options.items() if name not in _PRIVATE}
        return cls(given, options, public, params, hops)


@asynccontextmanager
async def get(
    shared: SharedFilesystem, url: str, headers: Mapping[str, str], via: str | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """GET `url`, following redirects; uncompressed unless the user's headers say otherwise.

    What the user gave (headers, credentials, cookies, of each request and of the session,
    and the TLS context of each request) goes to the origin of `url` only. aiohttp sends all
    but three headers on to wherever a redirect leads, also the ``auth`` and ``cookies`` of a
    session. netrc knows its hosts.

    Parameters
    ----------
    shared
        An HTTP filesystem.
    url
        May hold user and password.
    headers
        Of this request, such as ``Range``; none of them secret.
    via
        Where `url` is known to lead: it is asked instead.
    """
    fs = shared.fs
    session = await fs.set_session()
    habits = _habits.get(shared)
    if habits is None:
        habits = _habits[shared] = _Habits.of(fs)
    given, hops = habits.given, habits.hops
    first = _legal(url)
    if habits.params:
        first = first.extend_query(habits.params)
    target = first if via is None else _legal(via)
    headers = {"Accept-Encoding": "identity", **headers}
    while True:
        if target is first or target.origin() == first.origin():
            if first.raw_user is not None and target.raw_user is None:
                target = target.with_user(first.user).with_password(first.password)
            request = session.get(target, headers={**headers, **given}, **habits.options)
        else:
            request = _stranger(session, given).get(target, headers=headers, **habits.public)
        async with request as response:
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None or hops == 0:
                yield response
                return
            target = response.url.join(_legal(location))
        hops -= 1


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Turn the exceptions of aiohttp into `TransientError`, or `StoreError` if they will stay."""
    try:
        yield
    except (TransientError, StoreError):
        raise
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
        reason = f"{type(error).__name__}: {redact(str(error))}"
        if getattr(error, "errno", None) in TOO_MANY_FILES:
            raise TransientError(reason, busy=True) from None
        if _is_final(error):
            raise StoreError(shown, f"cannot connect: {reason}") from None
        raise TransientError(reason) from None
    except (aiohttp.ClientError, ValueError) as error:
        reason = f"{type(error).__name__}: {redact(str(error))}"
        raise StoreError(shown, f"cannot be read: {reason}") from None


def failure(shown: str, response: aiohttp.ClientResponse) -> StoreError | TransientError:
    """What to raise for an answer that is of no use."""
    status = response.status
    said = f"HTTP status {status} {response.reason or ''}".rstrip()
    if status in TRANSIENT:
        wait = _retry_after(response.headers.get("Retry-After"))
        return TransientError(said, wait, busy=status in _BUSY)
    if status in MISSING:
        return DatasetNotFoundError(shown, f"there is no such file ({said})")
    if status in _REDIRECTS:
        return StoreError(shown, f"{said}: there are too many redirects, or one to nowhere")
    said += _HINTS.get(status, "")
    if status not in _HINTS:
        return StoreError(shown, said)
    said += _redirected(shown, response.url)
    return AccessDeniedError(shown, said)


def _redirected(shown: str, target: URL) -> str:
    """Why a server may have had no credentials: it is not the one that the user named."""
    try:
        first = URL(shown).origin()
    except ValueError:
        return ""
    if target.origin() == first:
        return ""
    if target.scheme == "https" and (first.scheme, first.host) == ("http", target.host):
        return "; it was redirected to https, where no credentials go: write https:// in the URL"
    named = target.host if target.host != first.host else target.origin()
    return f"; it was redirected to {named}, which gets no credentials but netrc's"


class ContentRange(NamedTuple):
    """Bytes ``[start, stop)`` of a file of `size` bytes (None if the server does not say)."""

    start: int
    stop: int
    size: int | None


def content_range(header: str | None) -> ContentRange | None:
    """Parse ``Content-Range``; None if it is missing or makes no sense."""
    stated = _CONTENT_RANGE.fullmatch((header or "").strip())
    if stated is None:
        return None
    size = None if stated[3] == "*" else int(stated[3])
    found = ContentRange(int(stated[1]), int(stated[2]) + 1, size)
    sensible = found.start < found.stop and (size is None or found.stop <= size)
    return found if sensible else None


def unsatisfied_size(header: str | None) -> int | None:
    """The size of the file, from ``Content-Range`` of the answer 416."""
    stated = _UNSATISFIED.fullmatch((header or "").strip())
    return None if stated is None else int(stated[1])


def is_encoded(response: aiohttp.ClientResponse) -> bool:
    """Whether the body was compressed on its way."""
    return response.headers.get("Content-Encoding", "identity").lower() != "identity"


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of a file and where it lies: `partial` if the server honoured the range."""

    body: bytes
    size: int | None
    partial: bool


def range_header(start: int, stop: int | None) -> str:
    """The header ``Range``; a negative `start` counts from the end."""
    if start < 0:
        return f"bytes={start}"
    return f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"


async def whole_file(
    response: aiohttp.ClientResponse, length: int | None, start: int | None, stop: int | None
) -> Answer:
    """The answer 200: the file from its beginning, whatever range was asked for.

    Parameters
    ----------
    length
        How long the body should be, if that is known.
    """
    if start is not None and start < 0:
        if length is None or length > -start:
            return Answer(b"", length, partial=False)  # not the whole file for its tail
        start = None
    if stop is None:
        body = await response.read()
    else:
        pieces = bytearray()
        async for piece in response.content.iter_chunked(1 << 16):
            pieces += piece
            if len(pieces) >= stop:
                return Answer(bytes(pieces[start:stop]), length, partial=False)
        body = bytes(pieces)
    if length is not None and len(body) != length:
        raise TransientError(f"the body has {len(body)} of {length} bytes")
    return Answer(body[start:] if start else body, length, partial=False)


async def part_of_file(
    response: aiohttp.ClientResponse, shown: str, start: int, stop: int | None
) -> Answer:
    """The answer 206: check that it is the range that was asked for, and all of it."""
    stated = content_range(response.headers.get("Content-Range"))
    body = await response.read()
    if stated is None:  # a proxy may lose it; then only the length can tell
        if stop is None or start < 0 or len(body) != stop - start:
            raise StoreError(shown, "the server sent a byte range without saying which")
        return Answer(body, None, partial=True)
    first, end, size = stated
    if len(body) != end - first:
        raise TransientError(f"the body has {len(body)} of {end - first} bytes")
    if size is None:
        if start < 0:
            return Answer(b"", None, partial=False)  # the tail of what?
        wanted = start, end
    else:
        wanted = slice(start, stop).indices(size)[:2]
    if (first, end) != wanted:
        asked = f"{wanted[0]}-{wanted[1] - 1}"
        raise StoreError(shown, f"the server sent bytes {first}-{end - 1}, asked for {asked}")
    return Answer(body, size, partial=True)


async def up_to(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body; if it has more than `most` bytes, at least one more than that."""
    pieces = []
    have = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        have += len(piece)
        if have > most:
            response.close()
            break
    return b"".join(pieces)


async def exactly(pieces: AsyncIterator[bytes], count: int) -> memoryview:
    """A body that comes in pieces and must have `count` bytes.

    Raises
    ------
    TransientError
        If it has less or more.
    """
    body = buffer(count)
    have = 0
    async for piece in pieces:
        begin, have = have, have + len(piece)
        if have > count:
            raise TransientError(f"the body has more than {count} bytes")
        body[begin:have] = piece
    if have < count:
        raise TransientError(f"the body has {have} of {count} bytes")
    return body.toreadonly()


def address(url: str) -> str:
    """How `url` is asked for: legally encoded, without user and password."""
    return str(_legal(url).with_user(None))


def _legal(url: str) -> URL:
    return URL(quote(url, safe=_LEGAL), encoded=True)


def _stranger(session: aiohttp.ClientSession, given: Mapping[str, str]) -> aiohttp.ClientSession:
    """A session for hosts that the user did not name."""
    stranger = _strangers.get(session)
    if stranger is None or stranger.closed:
        agents = [*given.items(), *session.headers.items()]
        stranger = aiohttp.ClientSession(
            connector=session.connector,
            connector_owner=False,
            headers={name: value for name, value in agents[::-1] if name.lower() == "user-agent"},
            timeout=session.timeout,
            trust_env=session.trust_env,
        )
        _strangers[session] = stranger
        weakref.finalize(session, stranger.detach)  # or it complains that it was not closed
    return stranger


def _is_final(error: Exception) -> bool:
    """Whether there is no such host, nobody listening there, or a bad certificate."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return False
    return not isinstance(error.os_error, (ConnectionResetError, TimeoutError))


def _retry_after(header: str | None) -> float:
    """Seconds to wait, from either form of ``Retry-After``; 0 if it says nothing sensible."""
    if header is None:
        return 0.0
    try:
        if header.strip().isdigit():
            return float(header)
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
