"""Sessions of aiohttp: which request gets which connection, and what goes wrong.

Source: aiohttp 3.12 to 3.14.
"""

from __future__ import annotations

import asyncio
import errno
import math
import re
import ssl
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.transport.answers import BUSY, PROXY_LOGIN, TRANSIENT, retry_after
from nczarr_fsspec.transport.policy import TOO_LONG, Timeout
from nczarr_fsspec.transport.request import TransientError

#: errors of this machine that mean "too many requests"
TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
#: how TLS says that certificates are the reason
_CERTIFICATE = re.compile("CERTIFICATE|UNKNOWN_CA")
_UNTRUSTED = (
    "; if the certificate is signed by the server itself or by an authority of yours, trust that: "
    "storage_options={'ssl': ssl.create_default_context(cafile='its.pem')}, HTTP.SSL.CAINFO in an "
    "rc file, or SSL_CERT_FILE"
)
#: for each session of a user one that has its connections but none of its secrets
_strangers: weakref.WeakKeyDictionary[aiohttp.ClientSession, aiohttp.ClientSession]
_strangers = weakref.WeakKeyDictionary()
#: what requests pass to get a connection, so that a wait for one counts as none for the server
_gates: weakref.WeakKeyDictionary[aiohttp.BaseConnector, asyncio.Semaphore]
_gates = weakref.WeakKeyDictionary()


def connecting(timeout: Timeout) -> aiohttp.ClientTimeout:
    """Return what aiohttp is to see to; the rest is done by `Clock`."""
    return aiohttp.ClientTimeout(
        total=None, sock_connect=None if timeout.connect == math.inf else timeout.connect
    )


def connections(session: aiohttp.ClientSession) -> int:
    """Return how many connections `session` may have at a time."""
    connector = getattr(session, "connector", None)
    limits = [getattr(connector, name, 0) for name in ("limit", "limit_per_host")]
    return min(filter(None, limits), default=1 << 20)  # 0 is none


def gate(session: aiohttp.ClientSession) -> asyncio.Semaphore:
    """Return what requests of `session` pass, so that each finds a connection free.

    Each host has a throttle, and all of them share these connections.
    """
    connector = getattr(session, "connector", None)
    found = None if connector is None else _gates.get(connector)
    if found is None:
        found = asyncio.Semaphore(connections(session))
        if connector is not None:
            _gates[connector] = found
    return found


def stranger(session: aiohttp.ClientSession, given: Mapping[str, str]) -> aiohttp.ClientSession:
    """Return a session for hosts that the user did not name."""
    found = _strangers.get(session)
    if found is None or found.closed:
        agents = [*given.items(), *session.headers.items()]
        found = aiohttp.ClientSession(
            connector=session.connector,
            connector_owner=False,
            headers={name: value for name, value in agents[::-1] if name.lower() == "user-agent"},
            timeout=session.timeout,
            cookie_jar=aiohttp.DummyCookieJar(),  # `Cookies` has those of all hosts
            # not trust_env, with which aiohttp sends lines of netrc: see `proxy_of`
        )
        _strangers[session] = found
        weakref.finalize(session, found.detach)  # or it complains that it was not closed
    return found


def proxy_of(session: aiohttp.ClientSession, target: URL) -> str | None:
    """Return the proxy for `target` that the environment names, if `session` trusts that."""
    if not getattr(session, "trust_env", False) or proxy_bypass(target.host or ""):
        return None
    return getproxies().get(target.scheme)


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Turn the exceptions of aiohttp into `TransientError`, or `StoreError` if they will stay."""
    try:
        yield
    except (TransientError, StoreError, URLError):
        raise
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
        if (transient := failed_connection(error)) is not None:
            raise transient from None
        reason = f"cannot connect: {type(error).__name__}: {redact(str(error))}"
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            reason += _UNTRUSTED
        raise StoreError(shown, reason) from None
    except MemoryError:
        raise StoreError(shown, "does not fit into memory") from None
    except aiohttp.ClientHttpProxyError as error:
        if (transient := busy_proxy(error)) is not None:
            raise transient from None
        login = PROXY_LOGIN if error.status == 407 else ""
        raise StoreError(shown, f"cannot connect: {_of_proxy(error)}{login}") from None
    except (aiohttp.ClientError, ValueError) as error:
        said = redact(str(error))
        if isinstance(error, aiohttp.InvalidURL):  # of a proxy; it may lack the scheme
            said = said.rpartition("@")[2]
        elif isinstance(error, aiohttp.ClientResponseError):  # it begins with a status of its own
            said = error.message.partition("\n")[0].rstrip(":")
        raise StoreError(shown, f"cannot be read: {type(error).__name__}: {said}") from None


def busy_proxy(error: aiohttp.ClientHttpProxyError) -> TransientError | None:
    """Return that a proxy makes no connection now; None if it will not do so later, either."""
    if error.status not in TRANSIENT:
        return None
    wait = retry_after(error.headers.get("Retry-After") if error.headers else None)
    return TransientError(_of_proxy(error), wait, busy=error.status in BUSY)


def _of_proxy(error: aiohttp.ClientHttpProxyError) -> str:
    return f"the proxy answers HTTP status {error.status} {error.message}".rstrip()


def failed_connection(error: Exception) -> TransientError | None:
    """Return what aiohttp says of a connection, to be tried again; None for a bad certificate."""
    reason = f"{type(error).__name__}: {redact(str(error))}"
    # with TLS 1.3 a client's certificate is refused behind the connection
    if isinstance(error.__cause__, ssl.SSLError) and _CERTIFICATE.search(str(error.__cause__)):
        return None
    if getattr(error, "errno", None) in TOO_MANY_FILES:
        return TransientError(reason, busy=True)
    cause = getattr(error, "os_error", None)  # a bad certificate has none in aiohttp 3.12
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(
        cause, (ConnectionResetError, TimeoutError)
    ):
        if isinstance(error, aiohttp.ClientSSLError):
            return None
        return TransientError(f"cannot connect: {reason}", absent=True)
    return TransientError(reason, cost=TOO_LONG if isinstance(error, TimeoutError) else 1)
