"""Objects in S3: by requests of this package where these are sure to be right, else by s3fs.

Source: GetObject in the S3 API reference (ranges, conditions); s3fs 2025.10 to 2026.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from aiohttp import ClientHttpProxyError, ClientResponseError
from botocore.exceptions import (
    BotoCoreError,
    ConnectTimeoutError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    ReadTimeoutError,
)
from fsspec import AbstractFileSystem
from multidict import CIMultiDict
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.transport.answers import BUSY, TRANSIENT, read_answer, retry_after
from nczarr_fsspec.transport.filesystems import is_beyond, s3_code
from nczarr_fsspec.transport.fsspec import FsspecTransport
from nczarr_fsspec.transport.policy import TOO_LONG, Clock, Timeout
from nczarr_fsspec.transport.request import (
    Answer,
    FileVersion,
    Request,
    TransientError,
    changed,
    range_text,
)
from nczarr_fsspec.transport.s3client import list_below
from nczarr_fsspec.transport.s3form import UnusualError, condition, forms_of
from nczarr_fsspec.transport.sessions import busy_proxy, failed_connection

#: what S3 calls being asked too often
_SLOW_DOWN = frozenset({"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"})
#: what it calls a failure that may pass, in answers with another status, too
_PASSING = frozenset({"InternalError", "ServiceUnavailable", "RequestTimeout"})
#: how it says that an object is another version, and that it is the one that is known
_CHANGED = frozenset({"412", "PreconditionFailed"})
_SAME = frozenset({"304", "NotModified"})
#: what botocore raises when time is up, and when a connection goes or a body came damaged (rclone
#: states the checksum of the whole object with a part; the next try is by `Form`, and right)
_LATE = (ReadTimeoutError, ConnectTimeoutError, TimeoutError)
_BROKEN = (*S3_RETRYABLE_ERRORS, *_LATE, ConnectionError, FlexibleChecksumError)
#: what will stay of the errors that botocore does not know: a file of certificates that is not
#: there, settings of a proxy, what is not HTTP, redirects without end
_LASTING = (FileNotFoundError, PermissionError, ValueError, BotoCoreError, ClientResponseError)
#: what s3fs cuts a key at: the rest is the version that is wanted
_VERSION = "?versionId="
#: bytes of a body that are copied at a time, at most
_PIECE = 1 << 18


class S3Transport(FsspecTransport):
    """Objects of a filesystem of s3fs; a path is bucket and key.

    Requests for a version are conditional: S3 compares the entity tags. The answers are
    compared as well, for not every server that speaks S3 knows conditions.
    """

    noun = "object"

    def timeout_of(self, recipe: AbstractFileSystem) -> Timeout:
        config = recipe.config_kwargs or {}
        names = {"connect_timeout": "connect", "read_timeout": "first_byte"}
        given = {ours: config[name] for name, ours in names.items() if name in config}
        return Timeout.parse(given, type(recipe).__name__)

    def join(self, root: str, key: str) -> str:
        path = super().join(root, key)
        if _VERSION in path:  # another object would be read, or replaced
            raise StoreError(self.describe(path), f"has {_VERSION!r}, which names another object")
        return path

    async def _attempt(self, request: Request, left: float) -> Answer | None:
        fs, clock = self.shared.fs, asyncio.get_running_loop().time
        end = clock() + left
        bucket, _, key = request.path.partition("/")
        forms = await forms_of(fs, bucket) if key and _VERSION not in key else None
        if forms is not None and bucket not in forms.known:
            if bucket not in forms.looking:
                return await forms.look(fs, bucket, key, self.by_s3fs(request, left))
            await forms.looking[bucket].wait()
        form = None if forms is None else forms.known.get(bucket)
        if form is not None:
            try:
                return await form.send(key, request, self.timeout, left)
            except UnusualError:
                pass
        return await self.by_s3fs(request, end - clock())

    async def by_s3fs(self, request: Request, left: float) -> Answer | None:
        """Return the answer to `request` by s3fs, whose subclasses may read in their own way."""
        own = type(self.recipe)._cat_file is S3FileSystem._cat_file
        if not own and request.server is None:
            return await super()._attempt(request, left)
        return await self._asked(request.path, self._sent(request), left)

    async def _sent(self, request: Request) -> Answer | None:
        """Return the answer to `request`, sent once by s3fs; or raise what that raises."""
        fs = self.shared.fs
        bucket, key, version = fs.split_path(request.path)
        given = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        given |= getattr(fs, "req_kw", {})  # which account pays
        given |= {name.replace("-", ""): text for name, text in condition(request).items()}
        if request.ranged:
            given["Range"] = range_text(request)
        try:
            response = _Response(await fs._call_s3("get_object", **given))
            try:
                async with Clock(self.timeout) as clock:
                    clock.body(response.status)
                    return await read_answer(response, clock, request)
            finally:
                response.close()
        except Exception as error:
            code = s3_code(error)
            if code in _SAME and request.unless is not None:
                return Answer((), request.unless)
            if request.version is not None and (code in _CHANGED or is_beyond(error)):
                raise changed(request.shown, f"S3 answers {code}") from None
            if request.ranged and is_beyond(error):  # as in a slice
                return Answer([b""], FileVersion(size=0) if request.extents else FileVersion())
            raise

    async def _names_below(self, path: str) -> Iterable[str]:
        return await list_below(self.shared.fs, path)

    def transient(self, error: Exception) -> TransientError | None:
        cause = error.__cause__ or error
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            meta = response.get("ResponseMetadata", {})
            status, code = meta.get("HTTPStatusCode"), response.get("Error", {}).get("Code", "")
            busy = status in BUSY or code in _SLOW_DOWN
            if not (busy or status in TRANSIENT or code in _PASSING):
                return None
            wait = retry_after(meta.get("HTTPHeaders", {}).get("retry-after"))
            said = f"HTTP status {status} ({code})" if status else code
            return TransientError(said, wait, busy=busy)
        inner = cause.kwargs.get("error") if isinstance(cause, BotoCoreError) else None
        if isinstance(inner, ClientHttpProxyError):
            return busy_proxy(inner)
        # what botocore calls so may be a connection that was made, and that ended
        if isinstance(cause, EndpointConnectionError) and isinstance(inner, OSError):
            return failed_connection(inner)
        if type(cause) is HTTPClientError and isinstance(inner, _LASTING):
            return None
        # aiobotocore takes the checksum of a 304, as rclone states it, for one of a body
        checksum = isinstance(cause, TypeError) and "ChecksumBody" in str(cause)
        if isinstance(cause, _BROKEN) or checksum:  # the next try is by `Form`, and right
            cost = TOO_LONG if isinstance(cause, _LATE) else 1
            return TransientError(f"{type(cause).__name__}: {cause}", cost=cost)
        return None


class _Response:
    """An answer of botocore's to GetObject, as `read_answer` takes it."""

    reason = ""
    url = None

    def __init__(self, answer: dict[str, Any]) -> None:
        self._body = answer["Body"]
        self.status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
        self.content_length: int | None = answer["ContentLength"]
        headers = CIMultiDict(answer["ResponseMetadata"]["HTTPHeaders"])
        headers.popall("Content-Encoding", None)  # what was stored is what is wanted
        self.headers: Mapping[str, str] = headers
        self.content = self

    def iter_any(self) -> AsyncIterator[bytes]:
        pieces: AsyncIterator[bytes] = self._body.iter_chunks(_PIECE)
        return pieces

    def close(self) -> None:
        self._body.close()
