"""Connections of botocore's: secrets stay with their host, and bad certificates are named.

Source: aiobotocore 2.26 to 3.10, which lets aiohttp follow redirects (botocore itself follows none
but those to other regions, with a new signature).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession

from nczarr_fsspec.places.url import redact
from nczarr_fsspec.transport.answers import REDIRECTS

#: headers that aiohttp would send to where a redirect leads, too: a session token, and the keys
#: that S3 encrypts objects with
_SECRET = re.compile("x-amz-.*(token|customer-key)", re.IGNORECASE)

#: where S3 says in which region a bucket is
_REGION = "x-amz-bucket-region"


class Connections(AIOHTTPSession):  # type: ignore[misc]  # it has no types
    """What aiobotocore sends requests with."""

    async def plain_session(self) -> aiohttp.ClientSession:
        """Return the session for requests that go through no proxy."""
        session: aiohttp.ClientSession = (await self._get_session(None)).session
        return session

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
