"""What netCDF's run-time configuration says of one URL of HTTP: its keys ``HTTP.*``, as options.

Those that are secret are looked up where requests are sent (`nczarr_fsspec.transport.hostrc`).

Source: ``ncauth`` and ``auth.md`` of netCDF-C 4.9.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.places.rc import load_rc, lookup
from nczarr_fsspec.places.url import NetCDFURL
from nczarr_fsspec.transport.policy import COOKIES_OPTION, NETRC_OPTION, TIMEOUT_OPTION

#: storage options, and the keys that say them where the caller does not
_OPTIONS = {
    NETRC_OPTION: ("HTTP.NETRC",),
    COOKIES_OPTION: (
        *("HTTP.COOKIEJAR", "HTTP.COOKIE_JAR"),
        *("HTTP.COOKIEFILE", "HTTP.COOKIE_FILE"),
    ),
    "proxy": ("HTTP.PROXY.SERVER", "HTTP.PROXY_SERVER"),
}
#: what options have to be, if they are given
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "headers": ("a mapping of names to texts", (Mapping, list, tuple)),
    "client_kwargs": ("a mapping", (Mapping,)),
    NETRC_OPTION: ("a path, True or False", (str, os.PathLike, bool)),
    COOKIES_OPTION: ("a path", (str, os.PathLike)),
}
_TIMEOUTS = {"whole": "HTTP.TIMEOUT", "connect": "HTTP.CONNECTTIMEOUT"}


def http_options(url: NetCDFURL, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which fsspec opens an HTTP URL; what is `given` is stronger.

    Raises
    ------
    URLError
        If an option is of the wrong kind, or an rc file has a timeout that is no number.
    """
    options = dict(given)
    for name, (what, kinds) in _KINDS.items():
        if not isinstance(given.get(name), (*kinds, type(None))):
            raise URLError(name, f"is {what}, not {type(given[name]).__name__}")
    if type(given.get("auth")) in (str, tuple, list):
        raise URLError("auth", 'is an aiohttp.BasicAuth; for a pair, logins={"https://host": pair}')
    headers = dict(given.get("headers") or {})
    said = "auth" in given or any(str(name).lower() == "authorization" for name in headers)
    if url.userinfo and not said:
        token = base64.b64encode(url.userinfo.encode(errors="surrogateescape")).decode()
        headers["Authorization"] = f"Basic {token}"
    # of a chain, the rest is opened by fsspec itself, which knows none of this
    entries = load_rc() if url.protocol in (url.target_protocol, "bytes") else []
    if entries:
        for option, keys in _OPTIONS.items():
            found = next(filter(None, (lookup(entries, key, url) for key in keys)), None)
            if found is not None:
                options.setdefault(option, found)
        agent = lookup(entries, "HTTP.USERAGENT", url)
        if agent and not _names_agent(given):
            headers["User-Agent"] = agent
        limits = {name: lookup(entries, key, url) for name, key in _TIMEOUTS.items()}
        seconds = {name: _seconds(_TIMEOUTS[name], text) for name, text in limits.items() if text}
        if seconds:
            options.setdefault(TIMEOUT_OPTION, seconds)
    return options | {"headers": headers} if headers else options


def _names_agent(given: Mapping[str, Any]) -> bool:
    places = given, given.get("client_kwargs") or {}
    return any(
        name.lower() == "user-agent" for place in places for name in place.get("headers") or {}
    )


def _seconds(key: str, text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise URLError(f"{key} in an rc file", f"is a number of seconds, not {text!r}")
    return seconds or None
