"""Who the user is to each host: the credentials that were given for it, and no others.

The storage option ``logins`` names hosts, ``netrc`` a file that does. An object of the package
earthaccess may stand in their place; it is known by its attributes, so that the package itself is
not needed.

Source: RFC 7617 (basic), RFC 6750 (bearer); earthaccess 0.17.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from http.cookiejar import Cookie, CookieJar
from netrc import NetrcParseError, netrc
from typing import Any, TypeAlias

from yarl import URL

from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.rc import Entry
from nczarr_fsspec.transport.hostrc import password
from nczarr_fsspec.url import redact

#: the storage options that are ours
LOGINS_OPTION = "logins"
NETRC_OPTION = "netrc"

#: User and password; a token; or what returns one of them, called again when it is refused.
Credential: TypeAlias = "tuple[str, str] | str | Callable[[], tuple[str, str] | str]"

#: where NASA's users log in, unless an object of earthaccess says another host
_EARTHDATA = "urs.earthdata.nasa.gov"
_WHAT = (
    "is a mapping of hosts to (user, password), a token or a function that returns one of these, "
    "or what earthaccess.login() returns"
)
_NAME = re.compile(r"(https?://)?[^/@]+")
_NAMES = "is no name of a host: write https://host, without a path, and with its port if it has one"


class Logins:
    """Which header ``Authorization`` each host gets.

    Parameters
    ----------
    given
        The storage option ``logins``: credentials by host, or an object of earthaccess.
    netrc_file
        The storage option ``netrc``: a path; True for that of the variable ``NETRC``, else
        ``~/.netrc``.
    entries
        Of rc files, which come between the two.
    everywhere
        Whether entries for no host are for the one that the user named.

    Raises
    ------
    URLError
        If `given` is neither.
    """

    def __init__(
        self,
        given: Any = None,
        netrc_file: Any = None,
        entries: Sequence[Entry] = (),
        *,
        everywhere: bool = True,
    ) -> None:
        self._session = given if _is_session(given) else None
        if self._session is None and not isinstance(given or {}, Mapping):
            raise URLError(LOGINS_OPTION, _WHAT)
        self._hosts: dict[str, Credential] = {}
        if self._session is None:
            for name, credential in (given or {}).items():
                if not isinstance(name, str) or not _is_credential(credential):
                    raise URLError(f"{LOGINS_OPTION}: {name}", _WHAT)
                host = name.lower().rstrip("/")
                if not _NAME.fullmatch(host):  # it would never be that of a request
                    raise URLError(f"{LOGINS_OPTION}: {redact(name)}", _NAMES)
                self._hosts[host] = credential
        self._netrc_file = netrc_file
        self._entries = [entry for entry in entries if entry.key.startswith("HTTP.CREDENTIALS.")]
        self._everywhere = everywhere
        self._returned: dict[str, str] = {}  # what functions returned, by host

    def __bool__(self) -> bool:
        own = self._hosts or self._session is not None
        return bool(own or self._entries or self._netrc_file)

    async def header(self, target: URL, *, own: bool, downgraded: bool) -> str | None:
        """Return the header for `target`; None if nothing is for it.

        Parameters
        ----------
        own
            Whether its origin is that of the URL which the user named.
        downgraded
            Whether a request that began with TLS was led to a host without.

        Raises
        ------
        StoreError
            If the netrc file cannot be read.
        """
        if downgraded:
            return None
        name = self._name(target)
        if name is not None:
            credential = self._hosts[name]
            if not callable(credential):
                return _header(credential)
            if name not in self._returned:
                self._returned[name] = await _called(credential, name)
            return self._returned[name]
        if self._session is not None:
            found = _of_session(self._session, target, own=own)
            if found is not None:
                return found
        if self._entries:
            pair = password(self._entries, target, everywhere=own and self._everywhere)
            if pair is not None:
                return _header(pair)
        line = self._netrc.get(target.host or "")
        return None if line is None else _header((line[0] or line[1], line[2]))

    async def renewed(self, target: URL, refused: str) -> bool:
        """Tell whether there is another header for `target` than the one that it refused."""
        name = self._name(target)
        credential = None if name is None else self._hosts[name]
        if name is None or not callable(credential):
            return False
        if self._returned.get(name) == refused:  # else another request has asked meanwhile
            self._returned[name] = await _called(credential, name)
        return self._returned[name] != refused

    @property
    def cookies(self) -> Iterable[Cookie]:
        """Those that a session of earthaccess has."""
        found = getattr(self._session, "cookies", None)
        return found if isinstance(found, CookieJar) else ()

    def _name(self, target: URL) -> str | None:
        """Return the name by which `target` was given; one without scheme and port is for TLS."""
        if not self._hosts:
            return None
        host = target.host_subcomponent or ""
        names = [f"{target.scheme}://{host}:{target.port}", f"{host}:{target.port}"]
        if target.is_default_port():
            names.append(f"{target.scheme}://{host}")
        if target.scheme == "https" and target.port == 443:
            names.append(host)
        return next((name for name in names if name in self._hosts), None)

    @cached_property
    def _netrc(self) -> Mapping[str, tuple[str, str, str]]:
        """Lines of the netrc file, by host; its default, which names none, is for nobody."""
        if not self._netrc_file:
            return {}
        path = self._netrc_file
        if path is True:
            path = os.environ.get("NETRC") or "~/.netrc"
        path = os.path.expanduser(path)
        try:
            lines = netrc(path).hosts
        except NetrcParseError as error:  # whose words may be a password
            reason = f"line {error.lineno} is not one of a netrc file"
        except (OSError, UnicodeDecodeError) as error:
            reason = f"cannot be read (storage option {NETRC_OPTION}): {_reason(error)}"
        else:
            return {host: line for host, line in lines.items() if host != "default"}
        raise StoreError(path, reason)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _is_credential(value: Any) -> bool:
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    if pair and all(isinstance(part, str) for part in value):
        return True
    return isinstance(value, str) or callable(value)


def _header(credential: Any) -> str:
    """Return the header for a user and password, a token, or what is a header already."""
    if not isinstance(credential, str):
        pair = ":".join(credential).encode(errors="surrogateescape")
        return f"Basic {base64.b64encode(pair).decode()}"
    credential = credential.strip()
    return credential if " " in credential else f"Bearer {credential}"


async def _called(credential: Callable[[], Any], name: str) -> str:
    """Call a function of the user, which may ask a server, in a thread."""
    try:
        found = await asyncio.to_thread(credential)
    except Exception as error:
        reason = f"the function for it failed: {type(error).__name__}"
        raise StoreError(f"{LOGINS_OPTION}: {name}", reason) from error
    if callable(found) or not _is_credential(found):
        raise StoreError(f"{LOGINS_OPTION}: {name}", "the function for it returned no credentials")
    return _header(found)


# ---- earthaccess


def _is_session(value: Any) -> bool:
    """Tell whether `value` is what earthaccess logs in with, or a session that it makes."""
    auth = hasattr(value, "authenticated") and hasattr(value, "token")
    return auth or (hasattr(value, "headers") and hasattr(value, "hooks"))


def _of_session(session: Any, target: URL, *, own: bool) -> str | None:
    """Return what an object of earthaccess has for `target`.

    The token is for the host that the user named, user and password for the login host.
    """
    login_host = getattr(getattr(session, "system", None), "edl_hostname", None) or _EARTHDATA
    pair = getattr(session, "username", None), getattr(session, "password", None)
    if hasattr(session, "token"):
        token = (session.token or {}).get("access_token")
        bearer = f"Bearer {token}" if token else None
    else:
        bearer = session.headers.get("Authorization")
        pair = session.auth if isinstance(getattr(session, "auth", None), tuple) else pair
        for hook in session.hooks.get("response", ()):
            if hasattr(hook, "hostname") and isinstance(getattr(hook, "auth", None), tuple):
                login_host, pair = hook.hostname, hook.auth
    if target.host == login_host and target.scheme == "https":
        return _header(pair) if all(pair) else bearer
    return bearer if own else None
