"""Signatures of S3 requests that read an object: GET, without query and body.

Source: "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)" in the
S3 API reference.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from typing import Any

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
