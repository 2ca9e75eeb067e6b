"""Objects in S3, read as s3fs reads them, without what botocore does anew for each.

Nine tenths of the CPU time that s3fs takes for an object are botocore's, for the parameters, the
endpoint and the answer of one more call. Within a bucket they come to the same for every object.
So s3fs reads the first one, a handler sees the request that botocore is to send for it, and other
requests differ from that in path, range, date and signature only. They use botocore's own
connections (its pool, certificates, timeouts) and its credentials, which it renews in time.

That is done only where it is sure to be the same: the request that was seen, signed here, has the
signature that botocore gave it; its URL is the expected one; no proxy is in between, and nobody
but botocore has handlers that look at requests or change them. So no list of special cases
is needed (directory buckets, older signatures, versions, access points, ...). They are left to
s3fs, and so are all answers but the usual ones: s3fs asks again, follows, renews and explains.

Source: GetObject in the S3 API reference; aiobotocore 2.26 to 3.10.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import re
import weakref
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError
from botocore.loaders import create_loader
from fsspec import AbstractFileSystem
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS
from yarl import URL

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.stores.fsspec import _MISSING, FsspecFiles, _fail, _is_beyond, within
from nczarr_fsspec.transport.answers import (
    exactly,
    is_encoded,
    part_of_file,
    range_header,
    up_to,
    whole_file,
)
from nczarr_fsspec.transport.http import (
    BUSY,
    MISSING,
    TOO_MANY_FILES,
    TRANSIENT,
    connecting,
    failure,
    gate,
    retry_after,
    translated,
)
from nczarr_fsspec.transport.policy import TOO_LONG, Clock, Timeout, TransientError
from nczarr_fsspec.transport.signature import Signer, region_of

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
#: headers that belong to one request
_OF_ONE = frozenset(
    {"authorization", "range", "x-amz-date", "x-amz-security-token", "x-amzn-trace-id"}
    | {"amz-sdk-invocation-id", "amz-sdk-request"}
)
_NO_SUCH_KEY = re.compile(rb"<Code>\s*NoSuchKey\s*</Code>")
#: bytes of an error's document that are read
_ERROR_BYTES = 1 << 16
#: checksums that S3 keeps of objects and botocore compares, unless that takes another library
_CHECKSUMS: dict[str, Callable[[bytes], bytes]] = {
    "x-amz-checksum-crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda body: hashlib.sha256(body).digest(),
}

#: what S3 calls being asked too often
_SLOW_DOWN = frozenset({"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"})
#: what botocore raises when time is up, and when a connection goes
_LATE = (ReadTimeoutError, ConnectTimeoutError, TimeoutError)
_BROKEN = (*S3_RETRYABLE_ERRORS, *_LATE, ConnectionError)
#: bytes of a body that are copied at a time, at most
_PIECE = 1 << 18

#: what looks at the requests of the running read
_look: ContextVar[_Look | None] = ContextVar("_look", default=None)


def share_descriptions(fs: AbstractFileSystem) -> None:
    """Have `fs`, which is new, make its client from descriptions of S3 that were read before.

    Every session of botocore reads and parses them again, which is five sixths of the time that
    making a client takes. Nothing else is shared: credentials and settings are the session's own.
    """
    if not isinstance(fs, S3FileSystem) or fs.session is not None:
        return
    if type(fs).set_session is not S3FileSystem.set_session:
        return
    try:
        session = AioSession(**fs.kwargs)
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    except Exception:  # noqa: BLE001 - of what the user gave; s3fs says so when it is used
        return
    fs.session = session


def send_once(fs: AbstractFileSystem, timeout: Timeout) -> None:
    """Have `fs`, which is new, send each request once and within `timeout`: we try again.

    What the user says to botocore stays as it is.
    """
    fs.retries = 1
    limits = {"connect_timeout": timeout.connect, "read_timeout": timeout.first_byte}
    ours: dict[str, Any] = {name: limit for name, limit in limits.items() if limit != math.inf}
    fs.config_kwargs = {
        **ours,
        "retries": {"total_max_attempts": 1},
        **(fs.config_kwargs or {}),
    }


@lru_cache(maxsize=1)  # those of S3 take 12 MB
def _loader(folders: str | None) -> Any:
    """Reads descriptions of services, each once in this process, there and in botocore."""
    return create_loader(folders)


class S3Files(FsspecFiles):
    """Objects of a filesystem of s3fs; a path is bucket and key."""

    once = True

    async def read(
        self,
        path: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        bucket, _, key = path.partition("/")
        if stop is not None and stop <= (start or 0):
            return b""
        slow = partial(self._by_s3fs, path, start, stop, most)
        if not key or (start or 0) < 0 or "?versionId=" in key:
            return await slow()
        fs = self.shared.fs
        try:
            await fs.set_session()  # makes a new client where the connections were closed
            client = await fs.get_s3(bucket)
            forms = _forms.get(client)
            if forms is None:
                forms = _forms[client] = _Forms()
                client.meta.events.register("before-send.s3.GetObject", _see)
        except Exception:  # noqa: BLE001 - of what the user gave; s3fs says so again, and we its words
            return await slow()
        if bucket not in forms.known:
            if bucket not in forms.looking:
                look = _Look(fs, client, bucket, key, forms)
                return await look.during(slow())
            await forms.looking[bucket].wait()
        form = forms.known.get(bucket)
        if form is None:
            return await slow()
        shown = self.describe(path)
        attempt = partial(form.read, key, start, stop, most, shown, self.timeout)
        try:
            return await self._throttle.retried(attempt, shown)
        except _UnusualError:
            return await slow()

    def transient(self, error: Exception) -> TransientError | None:
        return _transient(error)

    async def _by_s3fs(
        self, path: str, start: int | None, stop: int | None, most: int | None
    ) -> bytes | None:
        """`read` as s3fs does, whose subclasses may do it in their own way."""
        own = type(self.recipe)._cat_file is S3FileSystem._cat_file  # noqa: SLF001
        read = self._get if own else self._read
        attempt = partial(read, path, start, stop, most)
        return await self._throttle.retried(attempt, self.describe(path))

    async def _get(
        self, path: str, start: int | None, stop: int | None, most: int | None, left: float
    ) -> bytes | None:
        ranged = start is not None or stop is not None
        request = {"Range": range_header(start or 0, stop)} if ranged else {}
        bound = math.inf if most is None else most
        if ranged:
            bound = math.inf if stop is None else stop - (start or 0)
        try:
            async with get_object(self, path, left, **request) as (answer, pieces):
                count = answer["ContentLength"]
                if count <= bound:
                    return bytes(await exactly(pieces, count))
        except (StoreError, TransientError):
            raise
        except _MISSING as error:
            self.check_bucket(error, path)
            return None
        except Exception as error:  # noqa: BLE001 - botocore's, and what s3fs makes of them
            if ranged and _is_beyond(error):
                return b""
            _fail(self.recipe, path, error)
        if ranged:
            raise StoreError(self.describe(path), "the server does not serve byte ranges")
        raise too_large(self.describe(path), int(bound))


@asynccontextmanager
async def get_object(
    files: S3Files, path: str, left: float, **request: Any
) -> AsyncIterator[tuple[dict[str, Any], AsyncIterator[bytes]]]:
    """Send one request by s3fs: the answer of GetObject, and its body in pieces.

    Parameters
    ----------
    left
        Seconds that it may take in all.
    request
        Further parameters of GetObject.

    Raises
    ------
    TransientError
        If it is worth another try. Else what s3fs raises.
    """
    fs = files.shared.fs
    bucket, key, version = fs.split_path(path)
    which = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
    which |= getattr(fs, "req_kw", {})  # who pays
    clock = asyncio.get_running_loop().time
    end = clock() + left
    try:
        async with within(left):
            answer = await fs._call_s3("get_object", **which, **request)  # noqa: SLF001
    except TransientError:
        raise
    except Exception as error:
        if (transient := _transient(error)) is not None:
            raise transient from None
        raise
    body = answer["Body"]
    try:
        async with Clock(files.timeout, end - clock()) as watch:
            watch.body()
            yield answer, _watched(body.iter_chunks(_PIECE), watch)
    except _BROKEN as error:
        raise TransientError(f"{type(error).__name__}: {error}") from None
    finally:
        body.close()


async def _watched(pieces: AsyncIterator[bytes], clock: Clock) -> AsyncIterator[bytes]:
    have = 0
    async for piece in pieces:
        have += len(piece)
        if have >= clock.mark:
            clock.came(have)
        yield piece


def _transient(error: Exception) -> TransientError | None:
    """What to try again of what s3fs raises, when it does not do so itself."""
    cause = error.__cause__ or error
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        meta = response.get("ResponseMetadata", {})
        status, code = meta.get("HTTPStatusCode"), response.get("Error", {}).get("Code", "")
        busy = status in BUSY or code in _SLOW_DOWN
        if not (busy or status in TRANSIENT or code == "RequestTimeout"):
            return None
        wait = retry_after(meta.get("HTTPHeaders", {}).get("retry-after"))
        return TransientError(f"HTTP status {status} ({code})", wait, busy=busy)
    if isinstance(cause, _BROKEN):
        cost = TOO_LONG if isinstance(cause, _LATE) else 1
        return TransientError(f"{type(cause).__name__}: {cause}", cost=cost)
    return None


class _UnusualError(Exception):
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

    async def read(
        self,
        key: str,
        start: int | None,
        stop: int | None,
        most: int | None,
        shown: str,
        limits: Timeout,
        left: float,
    ) -> bytes | None:
        """Read an object or a part, once.

        Raises
        ------
        TransientError
            If it is worth another try.
        StoreError
            If the connection cannot be made, or the answer is not to be trusted.
        _UnusualError
            If s3fs is to be asked.
        """
        if self.session.closed:
            raise _UnusualError
        url, headers = await self._request(key)
        if start is not None or stop is not None:
            start = start or 0
            headers["Range"] = range_header(start, stop)
        with translated(shown):
            try:
                asked = self.session.get(
                    url, headers=headers, allow_redirects=False, timeout=connecting(limits)
                )
                async with gate(self.session), Clock(limits, left) as clock, asked as response:
                    clock.body()
                    status = response.status
                    if is_encoded(response):
                        raise _UnusualError
                    if status == 200:
                        answer = await whole_file(response, clock, shown, start, stop, most)
                        if start is None:
                            _compare(answer.body, response.headers)
                        return answer.body
                    if status == 206 and start is not None:
                        part = await part_of_file(response, clock, shown, start, stop, most)
                        return part.body
                    if status == 416 and start is not None:  # beyond the end, as in a slice
                        return b""
                    if status in MISSING and _NO_SUCH_KEY.search(
                        await up_to(response, clock, shown, _ERROR_BYTES)
                    ):
                        return None
                    if status in TRANSIENT:
                        raise failure(shown, response)
            except aiohttp.ClientConnectorError as error:
                if error.errno in TOO_MANY_FILES:
                    raise
                # botocore knows for how long to try
        raise _UnusualError

    async def _request(self, key: str) -> tuple[URL, dict[str, str]]:
        """URL and headers of a request for `key`."""
        try:
            url = URL(self.base + quote(key, safe="/~"), encoded=True)
        except UnicodeEncodeError:
            raise _UnusualError from None
        if self.signer is None:
            return url, dict(self.headers)
        try:
            credentials = await self.credentials.get_frozen_credentials()
        except Exception:  # noqa: BLE001 - they cannot be renewed, and anybody may say so
            raise _UnusualError from None
        return url, self.headers | self.signer.sign(url.raw_path, credentials)


@dataclass(frozen=True, slots=True)
class _Forms:
    """Those of a client, by bucket.

    Attributes
    ----------
    known : dict
        None where s3fs has to do everything.
    looking : dict
        What is set as soon as the first request shows which.
    """

    known: dict[str, Form | None] = field(default_factory=dict)
    looking: dict[str, asyncio.Event] = field(default_factory=dict)


_forms: weakref.WeakKeyDictionary[Any, _Forms] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the request for `key` in `bucket`, which `client` is about to send."""

    fs: S3FileSystem
    client: Any
    bucket: str
    key: str
    forms: _Forms

    async def during(self, reading: Awaitable[T]) -> T:
        """Look while s3fs reads."""
        found = self.forms.looking[self.bucket] = asyncio.Event()
        token = _look.set(self)
        try:
            return await reading
        finally:
            _look.reset(token)
            self.forms.looking.pop(self.bucket)
            found.set()

    async def see(self, request: Any) -> None:
        """Take the form of `request`; others who wait for it need not wait for the answer."""
        try:
            form = await _form_of(request, self.key, self.fs, self.client)
        except Exception:  # noqa: BLE001 - of another botocore; it is no reason not to read
            form = None
        self.forms.known[self.bucket] = form
        self.forms.looking[self.bucket].set()


async def _see(request: Any, **_: Any) -> None:
    """Handle ``before-send`` of botocore."""
    look = _look.get()
    if look is not None:
        await look.see(request)


async def _form_of(request: Any, key: str, fs: S3FileSystem, client: Any) -> Form | None:
    """The form of `request`, which botocore sent for `key`; None if it is not sure to have one."""
    http = client._endpoint.http_session  # noqa: SLF001
    ending = quote(key, safe="/~")
    base = request.url.removesuffix(ending)
    if (
        not isinstance(http, AIOHTTPSession)
        or http._proxy_config.proxy_url_for(request.url) is not None  # noqa: SLF001
        or any(getattr(type(fs), name) is not getattr(S3FileSystem, name) for name in _METHODS)
        or not all(map(_is_of_botocore, _handlers(client)))
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
    session = await http._get_session(None)  # noqa: SLF001
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
    ranged = {"range": sent["Range"]} if "Range" in sent else {}
    again = Signer(region, signed | ranged).sign(
        url.raw_path, await credentials.get_frozen_credentials(), sent["X-Amz-Date"]
    )
    if again["Authorization"] != sent["Authorization"]:
        return None
    return Form(session, base, headers, Signer(region, signed), credentials)


def _handlers(client: Any) -> list[Any]:
    """Who hears of requests for objects."""
    known = client.meta.events._emitter._handlers  # noqa: SLF001
    found = [known.prefix_search(f"{event}.s3.GetObject") for event in _EVENTS]
    return [handler for handlers in found for handler in handlers if handler is not _see]


def _is_of_botocore(handler: Any) -> bool:
    function = getattr(handler, "func", handler)  # of a partial
    return _BOTOCORE.fullmatch(getattr(function, "__module__", None) or "") is not None


def _compare(body: bytes, headers: Mapping[str, str]) -> None:
    """Compare `body` with the checksum that S3 sent, if it sent one of the whole object."""
    for name, checksum in _CHECKSUMS.items():
        stated = headers.get(name)
        if stated and "-" not in stated:  # "-N" is a sum of the sums of N parts
            if base64.b64encode(checksum(body)).decode() != stated:
                raise TransientError(f"the body does not have the checksum {stated} ({name})")
            return
