"""Clients of s3fs: what they share, how often they send, and how many connections they have.

Source: s3fs 2025.10 to 2026.9, aiobotocore 2.26 to 3.10.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.loaders import create_loader
from fsspec import AbstractFileSystem
from s3fs import S3FileSystem

from nczarr_fsspec.concurrency import Once
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.text import did_you_mean
from nczarr_fsspec.transport.answers import REDIRECTS
from nczarr_fsspec.transport.policy import CREDENTIALS_OPTION, Timeout, most_connections

#: headers that aiohttp would send to where a redirect leads, too: a session token, and the keys
#: that S3 encrypts objects with
_SECRET = re.compile("x-amz-.*(token|customer-key)", re.IGNORECASE)

#: where S3 says in which region a bucket is
_REGION = "x-amz-bucket-region"


class Connections(AIOHTTPSession):  # type: ignore[misc]  # it has no types
    """What aiobotocore sends requests with."""

    async def _get_session(self, proxy_url: str | None) -> Session:
        try:
            return Session(await super()._get_session(proxy_url))
        except OSError as error:  # SSLError is one
            files = (self._verify, self._cert_file, self._key_file)
            names = " or ".join(name for name in files if isinstance(name, str))
            reason = error.strerror or str(error)
            raise ValueError(f"certificates cannot be used ({names}): {reason}") from error


@dataclass(frozen=True, slots=True)
class Session:
    """A session of aiohttp that follows redirects only of what others may see."""

    session: aiohttp.ClientSession

    async def request(self, method: str, *, headers: Mapping[str, str], **how: Any) -> Any:
        public = method in ("GET", "HEAD") and not any(map(_SECRET.fullmatch, headers))
        answer = await self.session.request(method, headers=headers, allow_redirects=public, **how)
        target = answer.headers.get("Location")
        # one to another region is botocore's to follow, which it does by asking for that
        if answer.status in REDIRECTS and target and _REGION not in answer.headers:
            answer.close()
            place = redact(target).partition("?")[0]
            raise ValueError(
                f"the service redirects to {place}, where no secrets and data are sent"
            )
        return answer


#: what botocore's connections are called among its settings, and how many it has unless told
_POOL = "max_pool_connections"
_POOL_SIZE = 10
#: what the body of an answer has to be where its status alone does not say what was done: some
#: services and proxies send 200 before that, and then end
_BODIES = {
    "CompleteMultipartUpload": b"CompleteMultipartUploadResult",
    "CopyObject": b"CopyObjectResult",
    "CreateMultipartUpload": b"InitiateMultipartUploadResult",
    "DeleteObjects": b"DeleteResult",
    "ListObjectsV2": b"ListBucketResult",
    "UploadPartCopy": b"CopyPartResult",
}
_ROOT = re.compile(rb"(?:\s|<\?[^>]*>|<!--.*?-->)*<(?:[\w.-]+:)?([\w.-]+)", re.DOTALL)
#: the continuation tokens that the running listing has sent
_tokens: ContextVar[set[str] | None] = ContextVar("_tokens", default=None)


def check_options(fs: S3FileSystem) -> None:
    """Raise `URLError` for an option of `fs` that neither s3fs nor aiobotocore has.

    They themselves find it out at the first request, by a `TypeError` that names a function.
    """
    for name in fs.kwargs.keys() - inspect.signature(AioSession).parameters.keys():
        known = [*inspect.signature(S3FileSystem.__init__).parameters, "profile"]
        reason = f"S3 has no option {name!r}{did_you_mean(name, known)}"
        raise URLError("storage_options", reason)


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
        use_shared_descriptions(session)
    except Exception:  # noqa: BLE001 - of what the user gave; s3fs says so when it is used
        return
    fs.session = session


def use_shared_descriptions(session: Any) -> None:
    """Have a session of botocore read descriptions of services as all others do."""
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))


def send_once(fs: AbstractFileSystem, timeout: Timeout) -> None:
    """Have `fs`, which is new, send each request once and within `timeout`: it is tried again here.

    What the user says to botocore stays as it is.
    """
    fs.retries = 1
    limits = {"connect_timeout": timeout.connect, "read_timeout": timeout.first_byte}
    ours: dict[str, Any] = {name: limit for name, limit in limits.items() if limit != math.inf}
    fs.config_kwargs = {
        **ours,
        _POOL: most_connections(),
        "retries": {"total_max_attempts": 1},
        "http_session_cls": Connections,
        **(fs.config_kwargs or {}),
    }


def pool_size(fs: AbstractFileSystem) -> int:
    """Return how many requests botocore sends at a time; more would wait for a connection."""
    return int((fs.config_kwargs or {}).get(_POOL, _POOL_SIZE))


@lru_cache(maxsize=1)  # those of S3 take 12 MB
def _loader(folders: str | None) -> Any:
    """Return what reads descriptions of services, each once in this process."""
    return create_loader(folders)


async def check_bodies(fs: AbstractFileSystem, path: str) -> None:
    """Have the client for a path check answers whose body says whether the request was carried out.

    A listing in which a page would come twice is an error then, too.
    """
    with suppress(Exception):  # which s3fs raises again
        await fs.set_session()
        events = (await fs.get_s3(fs.split_path(path)[0])).meta.events
        for operation in _BODIES:
            events.register(
                f"before-parse.s3.{operation}", _check_body, unique_id=f"nczarr-{operation}"
            )
        event = "before-parameter-build.s3.ListObjectsV2"
        events.register(event, _note_token, unique_id="nczarr-tokens")


def _check_body(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Make an answer without its result one of status 500, after which it is tried again."""
    wanted = _BODIES[operation_model.name]
    if response_dict["status_code"] != 200:
        return
    found = _ROOT.match(response_dict["body"])
    if found is None or found[1] != wanted:
        response_dict["status_code"] = 500
        response_dict["body"] = b"<Error><Code>AnswerWithout%b</Code></Error>" % wanted


async def list_below(fs: AbstractFileSystem, path: str, delimiter: str = "/") -> list[str]:
    """Return the names below a path, without asking for the path itself where there are none.

    Raises
    ------
    StoreError
        If the service sends a continuation again, as one does that ignores it: the listing would
        never end, and s3fs goes on with it.
    """
    await check_bodies(fs, path)
    before = _tokens.set(set())
    try:
        entries = await fs._lsdir(path, delimiter=delimiter, refresh=True)
    finally:
        _tokens.reset(before)
    return [entry["name"] for entry in entries]


def _note_token(params: dict[str, Any], **_: Any) -> None:
    sent, token = _tokens.get(), params.get("ContinuationToken")
    if sent is None or not token:
        return
    if token in sent:
        place = f"s3://{params.get('Bucket')}/{params.get('Prefix', '')}"
        raise StoreError(place, "its listing never ends: the same page would come again")
    sent.add(token)


#: how the parts are called: by NASA, the AWS tools, botocore and s3fs; without ``_``
_NAMES = {
    "key": ("accesskeyid", "awsaccesskeyid", "accesskey", "key"),
    "secret": ("secretaccesskey", "awssecretaccesskey", "secretkey", "secret"),
    "token": ("sessiontoken", "awssessiontoken", "token"),
    "end": ("expiration", "expirytime", "expires"),
}
#: seconds before they end that new ones are asked for, at most
_EARLY = 300.0
_sessions: WeakValueDictionary[Any, RenewedSession] = WeakValueDictionary()


def session_of(source: Any) -> RenewedSession:
    """Return the session with credentials from `source`: the same one for the same source.

    Parameters
    ----------
    source
        A function that returns them as a mapping, in the spelling of NASA, the AWS tools,
        botocore or s3fs; or an object of botocore's or aiobotocore's that renews them itself.

    Raises
    ------
    URLError
        If it is neither.
    """
    if not callable(source) and not hasattr(source, "get_frozen_credentials"):
        kind = type(source).__name__
        reason = f"must be a function that returns keys as a mapping, not {kind}"
        raise URLError(CREDENTIALS_OPTION, reason)
    try:
        found = _sessions.get(source)
        if found is None:
            found = _sessions[source] = RenewedSession(source)
    except TypeError:  # it cannot be hashed
        return RenewedSession(source)
    return found


class RenewedSession(AioSession):  # type: ignore[misc]  # aiobotocore has no types
    """A session whose credentials `session_of` describes; picklable if their source is."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        use_shared_descriptions(self)
        self._source = source
        self._credentials = self.renewing = _Renewed(source)

    def __reduce__(self) -> tuple[Any, ...]:
        return session_of, (self._source,)


class _Renewed(AioCredentials):  # type: ignore[misc]
    """Credentials that are asked for when they are needed, by one request for all that wait.

    Attributes
    ----------
    number : int
        How many times they were asked for.
    """

    method = "function"
    account_id = None

    def __init__(self, source: Any) -> None:
        self._source = source
        self._known: ReadOnlyCredentials | None = None
        self._due = math.inf
        self._asking: Once[ReadOnlyCredentials] = Once()
        self.number = 0

    def expired(self, number: int) -> bool:
        """Ask for others, as S3 says that those which were the `number`-th have expired."""
        if not callable(self._source):
            return False
        if number == self.number:
            self._known = None
        return True

    async def get_frozen_credentials(self) -> Any:
        if not callable(self._source):
            return await self._of_botocore()
        if self._known is None or time.time() >= self._due:
            return await self._asking.ask(self._renewed)
        return self._known

    async def _of_botocore(self) -> Any:
        needed = getattr(self._source, "refresh_needed", bool)()
        frozen = self._source.get_frozen_credentials
        found = await asyncio.to_thread(frozen) if needed else frozen()
        return await found if inspect.isawaitable(found) else found  # aiobotocore's

    async def _renewed(self) -> ReadOnlyCredentials:
        began = time.time()
        found = await asyncio.to_thread(_called, self._source)
        end = seconds_until(found["end"])
        if end <= time.time():
            reason = f"the function returned keys that have ended already ({found['end']})"
            raise StoreError(CREDENTIALS_OPTION, reason)
        self.number += 1
        self._known = ReadOnlyCredentials(found["key"], found["secret"], found["token"])
        self._due = end - min(_EARLY, (end - began) / 2)
        return self._known


def _called(function: Callable[[], Any]) -> dict[str, Any]:
    try:
        found = function()
    except Exception as error:
        reason = f"the function failed: {type(error).__name__}"
        raise StoreError(CREDENTIALS_OPTION, reason) from error
    if isinstance(found, Mapping):
        found = found.get("Credentials", found)  # as STS answers
    if isinstance(found, Mapping):
        plain = {str(name).lower().replace("_", ""): value for name, value in found.items()}
        parts = {
            part: next((plain[name] for name in names if plain.get(name)), None)
            for part, names in _NAMES.items()
        }
        if parts["key"] and parts["secret"]:
            return parts
    raise StoreError(CREDENTIALS_OPTION, "the function returned no mapping with key and secret")


def seconds_until(end: Any) -> float:
    """Return when credentials end, in seconds of the epoch; never if that is not said."""
    if isinstance(end, (int, float)):
        return float(end)
    try:
        moment = end if isinstance(end, datetime) else datetime.fromisoformat(str(end))
    except ValueError:
        return math.inf
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
