"""Requests over fsspec's HTTP session: redirects without leaks, and what answers say.

fsspec's ``HTTPFileSystem`` neither retries nor compares what it got with what
it asked for; its session is used here, with the user's headers, credentials
and client options.

Source: RFC 9110 (ranges, redirects, retries), aiohttp 3.12 to 3.14, observed
behaviour of nginx, Apache, S3.
"""

from __future__ import annotations

import asyncio
import errno
import math
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import aiohttp
from fsspec import AbstractFileSystem
from yarl import URL

from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    StoreError,
)
from nczarr_fsspec.transport.policy import (
    TIMEOUT_OPTION,
    TOO_LONG,
    Clock,
    Timeout,
    TransientError,
)
from nczarr_fsspec.transport.shared import SharedFilesystem
from nczarr_fsspec.url import redact

#: answers that say there is no such file
MISSING = frozenset({404, 410})

#: answers after which another try may succeed
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
#: those of them that mean "too many requests"
BUSY = frozenset({429, 503})
#: errors of this machine that mean the same
TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
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
#: what a request passes to have one of the connections; to wait for one is not to wait for a server
_gates: weakref.WeakKeyDictionary[aiohttp.BaseConnector, asyncio.Semaphore]
_gates = weakref.WeakKeyDictionary()


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
    def of(cls, fs: AbstractFileSystem, timeout: Timeout) -> _Habits:
        options: dict[str, Any] = dict(fs.kwargs)
        given = options.pop("headers", None) or {}
        params = options.pop("params", None)
        follow = options.pop("allow_redirects", True)
        hops = int(options.pop("max_redirects", 10)) if follow else 0
        options.pop(TIMEOUT_OPTION, None)
        options["timeout"] = connecting(timeout)
        options["allow_redirects"] = options["auto_decompress"] = False
        public = {name: value for name, value in options.items() if name not in _PRIVATE}
        return cls(given, options, public, params, hops)


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
    session. netrc knows its hosts.

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
    fs = shared.fs
    session = await fs.set_session()
    habits = _habits.get(shared)
    if habits is None:
        habits = _habits[shared] = _Habits.of(fs, shared.timeout)
    given, hops = habits.given, habits.hops
    first = _legal(url)
    if habits.params:
        first = first.extend_query(habits.params)
    target = first if via is None else _legal(via)
    headers = {"Accept-Encoding": "identity", **headers}
    async with gate(session), Clock(shared.timeout, left) as clock:
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
                    clock.body()
                    yield response, clock
                    return
                target = response.url.join(_legal(location))
            hops -= 1


def connecting(timeout: Timeout) -> aiohttp.ClientTimeout:
    """What aiohttp is to see to; the rest is done by `Clock`."""
    return aiohttp.ClientTimeout(
        total=None, sock_connect=None if timeout.connect == math.inf else timeout.connect
    )


def gate(session: aiohttp.ClientSession) -> asyncio.Semaphore:
    """What requests of `session` pass, so that each finds a connection free."""
    connector = getattr(session, "connector", None)
    found = None if connector is None else _gates.get(connector)
    if found is None:
        limits = [getattr(connector, name, 0) for name in ("limit", "limit_per_host")]
        found = asyncio.Semaphore(min(filter(None, limits), default=1 << 20))  # 0 is none
        if connector is not None:
            _gates[connector] = found
    return found


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
        cost = TOO_LONG if isinstance(error, TimeoutError) else 1
        raise TransientError(reason, cost=cost) from None
    except MemoryError:
        raise StoreError(shown, "does not fit into memory") from None
    except (aiohttp.ClientError, ValueError) as error:
        reason = f"{type(error).__name__}: {redact(str(error))}"
        raise StoreError(shown, f"cannot be read: {reason}") from None


def failure(shown: str, response: aiohttp.ClientResponse) -> StoreError | TransientError:
    """What to raise for an answer that is of no use."""
    status = response.status
    said = f"HTTP status {status} {response.reason or ''}".rstrip()
    if status in TRANSIENT:
        wait = retry_after(response.headers.get("Retry-After"))
        return TransientError(said, wait, busy=status in BUSY)
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


def retry_after(header: str | None) -> float:
    """Seconds to wait, from either form of ``Retry-After``; 0 if it says nothing sensible."""
    if header is None:
        return 0.0
    try:
        if header.strip().isdigit():
            return float(header)
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
