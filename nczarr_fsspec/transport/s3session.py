"""Sessions of aiobotocore whose credentials come from a function, again and again.

For credentials that end while data are read, and that no profile of the AWS tools makes: those
of NASA's archives, or of a service of one's own.

Source: aiobotocore 2.26 to 3.10; earthaccess 0.17.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials

from nczarr_fsspec.concurrency import AskedOnce
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.transport.policy import CREDENTIALS_OPTION
from nczarr_fsspec.transport.s3client import use_shared_descriptions

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
        self._credentials = _Renewed(source)

    @property
    def number(self) -> int:
        """How many times they were asked for."""
        return self._credentials.number

    def expired(self, number: int) -> bool:
        """Ask for others, as S3 says that those which were the `number`-th have expired."""
        return self._credentials.expired(number)

    def __reduce__(self) -> tuple[Any, ...]:
        return session_of, (self._source,)


class _Renewed(AioCredentials):  # type: ignore[misc]
    """Credentials that are asked for when they are needed, by one request for all that wait."""

    method = "function"
    account_id = None

    def __init__(self, source: Any) -> None:
        self._source = source
        self._known: ReadOnlyCredentials | None = None
        self._due = math.inf
        self._question: AskedOnce[ReadOnlyCredentials] = AskedOnce()
        self.number = 0

    def expired(self, number: int) -> bool:
        if not callable(self._source):
            return False
        if number == self.number:
            self._known = None
        return True

    async def get_frozen_credentials(self) -> Any:
        if not callable(self._source):
            return await self._of_botocore()
        if self._known is None or time.time() >= self._due:
            return await self._question.ask(self._renewed)
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
