"""Requests for objects of S3 as botocore makes them, without what it does anew for each.

Nine tenths of the CPU time that s3fs takes for an object are botocore's, for the parameters, the
endpoint and the answer of one more call. Within a bucket they come to the same for every object.
So s3fs reads the first one, a handler sees the request that botocore is to send for it, and other
requests differ from that in path, range, condition, date and signature only. They use botocore's
own connections (its pool, certificates, timeouts) and its credentials, which it renews in time.

That is done only where it is sure to be the same: the request that was seen, signed here, has the
signature that botocore gave it; its URL is the expected one; no proxy is in between, and nothing
but botocore has handlers that look at requests or change them. So no list of special cases
is needed (directory buckets, older signatures, versions, access points, ...). They are left to
s3fs, and so are all answers but the usual ones: s3fs asks again, follows, renews and explains.

Source: GetObject in the S3 API reference; aiobotocore 2.26 to 3.10.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import time
import weakref
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from s3fs import S3FileSystem
from yarl import URL

from nczarr_fsspec.transport.answers import TRANSIENT, read_answer
from nczarr_fsspec.transport.bodies import encoding_of, up_to
from nczarr_fsspec.transport.policy import Clock, Timeout
from nczarr_fsspec.transport.recording import MISSING
from nczarr_fsspec.transport.request import Answer, Data, Request, TransientError, range_text
from nczarr_fsspec.transport.s3client import Connections
from nczarr_fsspec.transport.sessions import TOO_MANY_FILES, connecting, translated

# -- signature -----------------------------------------------------------------------------------
# Signatures of S3 requests that read an object: GET, without query and body.
#
# They are as in "Authenticating Requests: Using the Authorization Header (AWS Signature
# Version 4)" in the
# S3 API reference.


_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=.+/\d{8}/([^/]+)/s3/aws4_request, SignedHeaders=.+, Signature=.+"
)


def region_of(authorization: str) -> str | None:
    """Return the region that a request was signed for; None if by another kind of signature."""
    found = _AUTHORIZATION.fullmatch(authorization)
    return None if found is None else found[1]


class Signer:
    """Signs requests that differ in nothing but their path.

    Parameters
    ----------
    region
        Of the bucket.
    headers
        What is signed besides date and token, by names in lower case.
    """

    def __init__(self, region: str, headers: dict[str, str]) -> None:
        self._region = region
        self._headers = headers
        self._last: tuple[Any, Any] | None = None  # date and credentials

    def sign(self, path: str, credentials: Any, date: str | None = None) -> dict[str, str]:
        """Return the headers that a request for `path`, percent-encoded, needs besides.

        Parameters
        ----------
        credentials
            With attributes ``access_key``, ``secret_key`` and ``token`` (or None).
        date
            Now, unless given.
        """
        last = date or int(time.time()), credentials
        if last != self._last:
            self._begin(date or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), credentials)
            self._last = last
        request = hashlib.sha256(f"GET\n{path}\n\n{self._signed}".encode()).hexdigest()
        signature = hmac.digest(self._key, f"{self._scope}\n{request}".encode(), "sha256").hex()
        return {**self._added, "Authorization": f"{self._authorization}{signature}"}

    def _begin(self, date: str, credentials: Any) -> None:
        """Compute what is the same for all paths."""
        self._added = {"X-Amz-Date": date}
        if credentials.token:
            self._added["X-Amz-Security-Token"] = credentials.token
        headers = self._headers | {name.lower(): text for name, text in self._added.items()}
        lines = [f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers)]
        names = ";".join(sorted(headers))
        self._signed = f"{''.join(lines)}\n{names}\n{headers['x-amz-content-sha256']}"
        scope = f"{date[:8]}/{self._region}/s3/aws4_request"
        self._scope = f"AWS4-HMAC-SHA256\n{date}\n{scope}"
        self._key = f"AWS4{credentials.secret_key}".encode()
        for part in scope.split("/"):
            self._key = hmac.digest(self._key, part.encode(), "sha256")
        credential = f"Credential={credentials.access_key}/{scope}"
        self._authorization = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature="


# -- s3form --------------------------------------------------------------------------------------


T = TypeVar("T")

#: methods that have to be s3fs's own
_METHODS = ("_call_s3", "_cat_file", "_get_s3_method_kwargs", "get_s3", "set_session", "split_path")
#: where botocore lets others look at a call and change it
_EVENTS = (
    *("provide-client-params", "before-parameter-build", "before-endpoint-resolution"),
    *("before-call", "request-created", "choose-signer", "before-sign", "before-send"),
    *("response-received", "needs-retry", "after-call", "after-call-error"),
)
_BOTOCORE = re.compile(r"(?:aio)?botocore(?:\..*)?")
#: headers that belong to one request, and those of them that botocore signs
_ASKED = ("range", "if-match", "if-none-match")
_OF_ONE = frozenset(
    {"authorization", "x-amz-date", "x-amz-security-token", "x-amzn-trace-id"}
    | {"amz-sdk-invocation-id", "amz-sdk-request", *_ASKED}
)
_NO_SUCH_KEY = re.compile(rb"<Code>\s*NoSuchKey\s*</Code>")
#: bytes of an error's document that are read
_ERROR_BYTES = 1 << 16
#: checksums that S3 keeps of objects and botocore compares, unless that takes another library
_CHECKSUMS: dict[str, Callable[[Data], bytes]] = {
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
}
#: answers that are the same for every request; the rest is for s3fs
_USUAL = frozenset({200, 206, 304, 416}) | TRANSIENT

#: what looks at the requests of the running read
_look: ContextVar[Callable[[Any], Awaitable[None]] | None]
_look = ContextVar("_look", default=None)


class UnusualError(Exception):
    """Something that s3fs knows better."""


@dataclass(frozen=True, slots=True)
class Form:
    """What requests for the objects of one bucket have in common.

    Attributes
    ----------
    session : aiohttp.ClientSession
        The connections.
    base : str
        URL of the bucket, with a slash at its end.
    headers : dict
        Sent with every request.
    signer : Signer or None
        None if requests are anonymous.
    credentials : object
        What aiobotocore renews.
    """

    session: aiohttp.ClientSession
    base: str
    headers: dict[str, str]
    signer: Signer | None
    credentials: Any

    async def send(self, key: str, request: Request, limits: Timeout, left: float) -> Answer | None:
        """Return the answer to `request`, which is for the object `key`; None if there is none.

        Raises
        ------
        TransientError
            If it is worth another try.
        StoreError
            If the connection cannot be made, or the answer is not to be trusted.
        UnusualError
            If s3fs is to be asked.
        """
        if self.session.closed:
            raise UnusualError
        url, headers = await self._address(key)
        headers |= condition(request)
        if request.ranged:
            headers["Range"] = range_text(request)
        with translated(request.shown):
            try:
                now = asyncio.get_running_loop().time
                began = now()
                asked = self.session.get(
                    url, headers=headers, allow_redirects=False, timeout=connecting(limits)
                )
                async with Clock(limits, left) as clock, asked as response:
                    if request.server is not None:
                        request.server.arrived("", "", now() - began)
                    clock.body(response.status)
                    if encoding_of(response):
                        raise UnusualError
                    if response.status in MISSING and _NO_SUCH_KEY.search(
                        await up_to(response, clock, request.shown, _ERROR_BYTES)
                    ):
                        return None
                    if response.status in _USUAL:
                        answer = await read_answer(response, clock, request)
                        if answer is not None and request.extents is None and not request.tail:
                            _compare(answer.parts[0], response.headers)
                        return answer
            except aiohttp.ClientConnectorError as error:
                if error.errno in TOO_MANY_FILES:
                    raise
                # botocore knows for how long to try
        raise UnusualError

    async def _address(self, key: str) -> tuple[URL, dict[str, str]]:
        """Return the URL and headers of a request for `key`."""
        try:
            url = URL(self.base + quote(key, safe="/~"), encoded=True)
        except UnicodeEncodeError:
            raise UnusualError from None
        if self.signer is None:
            return url, dict(self.headers)
        try:
            credentials = await self.credentials.get_frozen_credentials()
        except Exception:  # noqa: BLE001 - they cannot be renewed, and any library may say so
            raise UnusualError from None
        return url, self.headers | self.signer.sign(url.raw_path, credentials)


@dataclass(frozen=True, slots=True)
class Forms:
    """Those of a client, by bucket.

    Attributes
    ----------
    known : dict
        None where s3fs has to do everything.
    looking : dict
        What is set as soon as the first request shows which.
    """

    client: Any
    known: dict[str, Form | None] = field(default_factory=dict)
    looking: dict[str, asyncio.Event] = field(default_factory=dict)

    async def look(self, fs: S3FileSystem, bucket: str, key: str, reading: Awaitable[T]) -> T:
        """Await `reading`, by which s3fs reads the first object of `bucket`, and see its form."""
        found = self.looking[bucket] = asyncio.Event()

        async def see(request: Any) -> None:
            """Take the form of `request`; others that wait for it need not wait for the answer."""
            try:
                form = await _form_of(request, key, fs, self.client)
            except Exception:  # noqa: BLE001 - of another botocore; it is no reason not to read
                form = None
            self.known[bucket] = form
            found.set()

        token = _look.set(see)
        try:
            return await reading
        finally:
            _look.reset(token)
            self.looking.pop(bucket)
            found.set()


_forms: weakref.WeakKeyDictionary[Any, Forms] = weakref.WeakKeyDictionary()


async def forms_of(fs: S3FileSystem, bucket: str) -> Forms | None:
    """Return the forms of the client that `fs` uses for `bucket`; None if it has no client."""
    try:
        await fs.set_session()  # makes a new client where the connections were closed
        client = await fs.get_s3(bucket)
        forms = _forms.get(client)
        if forms is None:
            forms = _forms[client] = Forms(weakref.proxy(client))
            client.meta.events.register("before-send.s3.GetObject", _see)
    except Exception:  # noqa: BLE001 - of what the user gave; s3fs raises it again
        return None
    return forms


def condition(request: Request) -> dict[str, str]:
    """Return the headers of a request for one version of an object only, or for another one."""
    headers = {}
    # a weak tag, which proxies make of others, matches nothing: answers are compared by it
    if request.version is not None and request.version.etag.startswith('"'):
        headers["If-Match"] = request.version.etag
    if request.unless is not None and request.unless.etag:
        headers["If-None-Match"] = request.unless.etag
    return headers


async def _see(request: Any, **_: Any) -> None:
    """Handle ``before-send`` of botocore."""
    look = _look.get()
    if look is not None:
        await look(request)


async def _form_of(request: Any, key: str, fs: S3FileSystem, client: Any) -> Form | None:
    """Return the form of `request`, which botocore sent for `key`; None if there is doubt."""
    http = client._endpoint.http_session  # noqa: SLF001
    ending = quote(key, safe="/~")
    base = request.url.removesuffix(ending)
    if (
        not isinstance(http, Connections)
        or http._proxy_config.proxy_url_for(request.url) is not None  # noqa: SLF001
        or any(getattr(type(fs), name) is not getattr(S3FileSystem, name) for name in _METHODS)
        or not all(map(_BOTOCORE.fullmatch, map(_module_of, handlers_of(client))))
        or request.method != "GET"
        or request.body
        or f"{base}{ending}" != request.url
        or not base.endswith("/")
        or "?" in base
    ):
        return None
    sent = {
        name: text if isinstance(text, str) else text.decode()
        for name, text in request.headers.items()
    }
    headers = {name: text for name, text in sent.items() if name.lower() not in _OF_ONE}
    headers["Accept-Encoding"] = "identity"  # which aiobotocore adds behind the handler
    session = (await http._get_session(None)).session  # noqa: SLF001
    authorization = request.headers.get("Authorization")
    if authorization is None:
        return Form(session, base, headers, None, None)
    region = region_of(sent["Authorization"])
    credentials = client._request_signer._credentials  # noqa: SLF001
    if region is None or credentials is None:
        return None
    url = URL(request.url, encoded=True)
    signed = {"host": url.host_port_subcomponent or ""}
    for name, text in headers.items():
        if name.lower().startswith("x-amz-"):
            signed[name.lower()] = text
    asked = {name.lower(): text for name, text in sent.items() if name.lower() in _ASKED}
    again = Signer(region, signed | asked).sign(
        url.raw_path, await credentials.get_frozen_credentials(), sent["X-Amz-Date"]
    )
    if again["Authorization"] != sent["Authorization"]:
        return None
    return Form(session, base, headers, Signer(region, signed), credentials)


def handlers_of(client: Any) -> list[Any]:
    """Return the handlers that botocore calls for requests for objects."""
    known = client.meta.events._emitter._handlers  # noqa: SLF001
    found = [known.prefix_search(f"{event}.s3.GetObject") for event in _EVENTS]
    return [handler for handlers in found for handler in handlers if handler is not _see]


def _module_of(handler: Any) -> str:
    return getattr(getattr(handler, "func", handler), "__module__", None) or ""  # of a partial


def _compare(body: Data | None, headers: Mapping[str, str]) -> None:
    """Compare `body` with the checksum that S3 sent, if it sent one of the whole object."""
    for name, checksum in _CHECKSUMS.items():
        stated = headers.get(name)
        if stated and "-" not in stated:  # "-N" is a sum of the sums of N parts
            if base64.b64encode(checksum(body or b"")).decode() != stated:
                raise TransientError(f"the body does not have the checksum {stated} ({name})")
            return
