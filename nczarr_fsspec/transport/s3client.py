"""Clients of s3fs: what they share, how often they send, and how many connections they have.

Source: s3fs 2025.10 to 2026.9, aiobotocore 2.26 to 3.10.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.loaders import create_loader
from fsspec import AbstractFileSystem
from s3fs import S3FileSystem

from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.text import did_you_mean
from nczarr_fsspec.transport.answers import REDIRECTS
from nczarr_fsspec.transport.policy import Timeout, most_connections

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
        folders = session.get_config_variable("data_path")
        session.register_component("data_loader", _loader(folders))
    except Exception:  # noqa: BLE001 - of what the user gave; s3fs says so when it is used
        return
    fs.session = session


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
