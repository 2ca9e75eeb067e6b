"""Logins: the credentials that were given for a host are sent to this host, and to no other.

The storage option ``logins`` names hosts, ``netrc`` a file that does. An object of the package
earthaccess may stand in their place; it is known by its attributes, so that the package itself is
not needed. netCDF's rc files have passwords and certificates of hosts. They are looked up where
requests are sent: so they are in no pickle, and a host to which a redirect leads has its own.

Keys of rc files that are for no host are for all that the caller names, but not for those to which
a redirect leads or that a dataset names; netCDF-C sends them there, too. Which authorities are
trusted (``HTTP.SSL.CAINFO`` and ``CAPATH``) is no secret, and holds for all.

Source: RFC 7617 (basic), RFC 6750 (bearer); earthaccess 0.17; ``ncauth`` and ``auth.md`` of
netCDF-C 4.9.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from http.cookiejar import Cookie, CookieJar
from netrc import NetrcParseError, netrc
from typing import Any, TypeAlias
from urllib.parse import unquote

from yarl import URL

from nczarr_fsspec.concurrency import Once
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.places.rc import Entry, find
from nczarr_fsspec.transport.policy import LOGINS_OPTION, NETRC_OPTION

#: scheme, host and port
_Origin: TypeAlias = "tuple[str, str, int | None]"
_NAME = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9a-f:.]+\]|[\w.\-]+)(?::(?P<port>[0-9]{1,5}))?/*"
)
_PORTS = {"http": 80, "https": 443}

#: where NASA's users log in, unless an object of earthaccess says another host
_EARTHDATA = "urs.earthdata.nasa.gov"
_CREDENTIALS = "(user, password), a token or a function that returns one of these"
_WHAT = f"must be a mapping of hosts to {_CREDENTIALS}, or what earthaccess.login() returns"
_NAMES = "is no name of a host: write https://host, without a path, and with its port if it has one"


class Logins:
    """Which header ``Authorization`` each host gets.

    Without TLS nothing is sent but what names ``http://`` itself: a name in `given`, the URL of a
    line in an rc file, or the URL that the caller opens. Tokens of earthaccess are for TLS only.

    Parameters
    ----------
    given
        The storage option ``logins``: credentials by host, or an object of earthaccess.
    netrc_file
        The storage option ``netrc``: a path; True for that of the variable ``NETRC``, else
        ``~/.netrc``.
    entries
        Of rc files, which come between the two.

    Raises
    ------
    URLError
        If `given` is neither a mapping nor such an object, or a name in it is no host.
    """

    def __init__(
        self, given: Any = None, netrc_file: Any = None, entries: Sequence[Entry] = ()
    ) -> None:
        self._session = given if _is_session(given) else None
        hosts = {} if self._session is not None else given or {}
        if not isinstance(hosts, Mapping):
            raise URLError(LOGINS_OPTION, _WHAT)
        self._hosts = {_named(name): _Login(str(name), own) for name, own in hosts.items()}
        self._netrc_file = netrc_file
        self._entries = [entry for entry in entries if entry.key.startswith("HTTP.CREDENTIALS.")]

    def __bool__(self) -> bool:
        own = self._hosts or self._session is not None
        return bool(own or self._entries or self._netrc_file)

    async def header(self, target: URL, *, own: bool, clear: bool) -> str | None:
        """Return the header for `target`; None if nothing is for it.

        Parameters
        ----------
        own
            Whether its origin is that of the URL which the caller named.
        clear
            Whether the caller named a URL without TLS.

        Raises
        ------
        StoreError
            If the netrc file cannot be read, or a function has returned no credentials.
        """
        if (login := self._hosts.get(_origin(target))) is not None:
            return await login.header()
        tls = target.scheme == "https"
        if self._session is not None and tls:
            found = _of_session(self._session, target, own=own)
            if found is not None:
                return found
        if self._entries:
            pair = password(self._entries, target, everywhere=own)
            if pair is not None:
                return _header(pair)
        line = self._netrc.get(target.host or "") if tls or clear else None
        return None if line is None else _header((line[0] or line[1], line[2]))

    async def renewed(self, target: URL, refused: str | None) -> bool:
        """Tell whether there is another header for `target` than the one that it refused."""
        login = self._hosts.get(_origin(target))
        return login is not None and await login.header(refused) != refused

    @property
    def cookies(self) -> Iterable[Cookie]:
        """Those that a session of earthaccess has."""
        found = getattr(self._session, "cookies", None)
        return found if isinstance(found, CookieJar) else ()

    @cached_property
    def _netrc(self) -> Mapping[str, tuple[str, str, str]]:
        """Lines of the netrc file, by host; its default, which names no host, is for none."""
        path = netrc_path(self._netrc_file)
        if not path:
            return {}
        try:
            lines = netrc(path).hosts
        except NetrcParseError as error:  # whose words may be a password
            reason = f"line {error.lineno} is not one of a netrc file"
        except (OSError, UnicodeDecodeError) as error:
            reason = f"cannot be read (storage option {NETRC_OPTION}): {_reason(error)}"
        else:
            return {host.lower(): line for host, line in lines.items() if host != "default"}
        raise StoreError(path, reason)


def netrc_path(given: Any) -> str:
    """Return where the netrc file is that the storage option ``netrc`` names; empty for none."""
    path = (os.environ.get("NETRC") or "~/.netrc") if given is True else given
    return os.path.expanduser(path) if path else ""


class _Login:
    """Credentials for one host.

    Parameters
    ----------
    name
        Of the host, for messages.
    credential
        What was given.

    Raises
    ------
    URLError
        If these are none.
    """

    def __init__(self, name: str, credential: Any) -> None:
        self._shown = f"{LOGINS_OPTION}: {name}"
        if not _is_credential(credential):
            raise URLError(self._shown, f"must be {_CREDENTIALS}")
        self._function = credential if callable(credential) else None
        self._header = None if callable(credential) else _header(credential)
        self._asking: Once[None] = Once()

    async def header(self, refused: str | None = None) -> str:
        """Return the header; a function is called if it is unknown, or was refused."""
        if self._function is not None and self._header in (None, refused):
            await self._asking.ask(self._ask)
        assert self._header is not None
        return self._header

    async def _ask(self) -> None:
        """Call the function of the user, which may ask a server, in a thread."""
        assert self._function is not None
        try:
            found = await asyncio.to_thread(self._function)
        except Exception as error:
            reason = f"the function for it failed: {type(error).__name__}"
            raise StoreError(self._shown, reason) from error
        if callable(found) or not _is_credential(found):
            raise StoreError(self._shown, "the function for it returned no credentials")
        self._header = _header(found)


def _origin(url: URL) -> _Origin:
    return url.scheme, url.raw_host or "", url.port


def _named(name: Any) -> _Origin:
    """Return the origin for which credentials are given; without scheme, one of TLS."""
    if not isinstance(name, str):
        raise URLError(f"{LOGINS_OPTION}: {name!r}", _NAMES)
    match = _NAME.fullmatch(name.lower())
    if match is None:  # what is before @ may be a password
        raise URLError(f"{LOGINS_OPTION}: {name.rpartition('@')[2]}", _NAMES)
    scheme = match["scheme"] or "https"
    port = int(match["port"]) if match["port"] else _PORTS[scheme]
    return scheme, match["host"].strip("[]"), port


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


# ---- earthaccess


def _is_session(value: Any) -> bool:
    """Tell whether `value` is what earthaccess logs in with, or a session that it makes."""
    auth = hasattr(value, "authenticated") and hasattr(value, "token")
    return auth or (hasattr(value, "headers") and hasattr(value, "hooks"))


def _of_session(session: Any, target: URL, *, own: bool) -> str | None:
    """Return what an object of earthaccess has for `target`, a URL with TLS.

    The token is for the host that the caller named, user and password for the login host.
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
    if target.host == login_host:
        return _header(pair) if all(pair) else bearer
    return bearer if own else None


# -- rc files ----------------------------------------------------------------------------------
# Passwords and certificates of hosts, as netCDF's rc files have them.


_OFF = frozenset({"0", "false", "no", "off"})


def password(entries: Sequence[Entry], target: URL, *, everywhere: bool) -> tuple[str, str] | None:
    """Return user and password for `target`, if there are some.

    Those of an https URL do not go without TLS.

    Parameters
    ----------
    everywhere
        Whether those that are for no host are for it.
    """
    if target.scheme != "https":
        entries = [entry for entry in entries if entry.scheme != "https"]

    def value(key: str) -> str | None:
        return _value(entries, f"HTTP.CREDENTIALS.{key}", target, everywhere=everywhere)

    user, secret = value("USERNAME") or value("USER"), value("PASSWORD")
    if user and secret is not None:
        return user, secret
    both = value("USERPASSWORD")
    if not both or ":" not in both:
        return None
    user, _, secret = both.partition(":")
    return unquote(user), unquote(secret)


def _value(entries: Sequence[Entry], key: str, target: URL, *, everywhere: bool) -> str | None:
    host = target.host_subcomponent or ""
    places = [(f"{host}:{target.port}", target.path)]
    if target.is_default_port():
        places.append((host, target.path))
    return find(entries, key, places, everywhere=everywhere)


class Certificates:
    """TLS of hosts as rc files have it: whom to trust, and which certificate to show."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = [entry for entry in entries if entry.key.startswith("HTTP.SSL.")]
        self._made: dict[tuple[str | None, ...], ssl.SSLContext] = {}

    def context(self, target: URL, *, everywhere: bool) -> ssl.SSLContext | None:
        """Return the TLS context for `target`; None for the usual one. Parameters as `password`.

        Raises
        ------
        StoreError
            If a file cannot be read.
        """
        if not self._entries or target.scheme != "https":
            return None

        def value(key: str, *, everywhere: bool = everywhere) -> str | None:
            return _value(self._entries, f"HTTP.SSL.{key}", target, everywhere=everywhere) or None

        certificate, key = value("CERTIFICATE"), value("KEY")
        off = (name for name in ("VALIDATE", "VERIFYPEER") if (value(name) or "").lower() in _OFF)
        cafile, capath = value("CAINFO", everywhere=True), value("CAPATH", everywhere=True)
        settings = cafile, capath, certificate or key, key, value("KEYPASSWORD"), next(off, None)
        if not any(settings):
            return None
        if settings not in self._made:
            self._made[settings] = _context(*settings)
        return self._made[settings]


def _context(*settings: str | None) -> ssl.SSLContext:
    cafile, capath, certificate, key = (name and os.path.expanduser(name) for name in settings[:4])
    secret, unchecked = settings[4:]
    try:
        made = ssl.create_default_context(cafile=cafile, capath=capath)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise StoreError(
            cafile or capath or "", f"is no file of certificates (HTTP.SSL.CAINFO): {_why(error)}"
        ) from None
    if unchecked:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate:
        try:  # without a password, one would be asked for at the terminal
            made.load_cert_chain(certificate, key, secret or "")
        except (OSError, ValueError) as error:
            reason = f"is no certificate with its key (HTTP.SSL.CERTIFICATE): {_why(error)}"
            raise StoreError(certificate, reason) from None
    return made


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
