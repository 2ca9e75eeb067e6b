"""Logins: the credentials that were given for a host are sent to this host, and to no other.

The storage option ``logins`` names hosts, ``netrc`` a file that does. An object of the package
earthaccess may stand in their place; it is known by its attributes, so that the package itself is
not needed.

Source: RFC 7617 (basic), RFC 6750 (bearer); earthaccess 0.17.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import email.message
import os
import re
import tempfile
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from http.cookiejar import Cookie, CookieJar, LoadError, MozillaCookieJar
from netrc import NetrcParseError, netrc
from typing import Any, TypeAlias

from yarl import URL

from nczarr_fsspec.concurrency import Question
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.places.rc import Entry
from nczarr_fsspec.transport.hostrc import password
from nczarr_fsspec.transport.policy import COOKIES_OPTION, LOGINS_OPTION, NETRC_OPTION

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

    async def renewed(self, target: URL, refused: str) -> bool:
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
        self._question: Question[None] = Question()

    async def header(self, refused: str | None = None) -> str:
        """Return the header; a function is called if it is unknown, or was refused."""
        if self._function is not None and self._header in (None, refused):
            await self._question.ask(self._ask)
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


# -- cookies -------------------------------------------------------------------------------------
# Cookies of all hosts on the way to data, each for the host that set it.
#
# Source: RFC 6265, as far as Python's ``http.cookiejar`` has it; Netscape's file of cookies as curl
# writes it.


_SET_COOKIE = "Set-Cookie"
#: domain, path and name of a cookie
_Name: TypeAlias = tuple[str, str, str]


class Cookies:
    """The cookies that servers have set.

    Parameters
    ----------
    known
        Those that another session has; they go back with TLS only.
    file
        Where they are kept for other programs, in Netscape's form; made if it is not there.

    Raises
    ------
    StoreError
        If there is such a file that cannot be read.
    """

    def __init__(self, known: Iterable[Cookie] = (), file: str | None = None) -> None:
        self._file = os.path.expanduser(file) if file else None
        self._jar = _read(self._file) if self._file else MozillaCookieJar()
        for cookie in map(copy.copy, known):
            cookie.secure = True
            self._jar.set_cookie(cookie)

    def __bool__(self) -> bool:
        return len(self._jar) > 0

    def header(self, url: URL) -> str | None:
        """Return the header ``Cookie`` for `url`; None if there is none."""
        if not self:
            return None
        request = _request(url)
        self._jar.add_cookie_header(request)
        return request.get_header("Cookie")

    def learn(self, response: Any, *, secure: bool) -> None:
        """Keep what an answer of aiohttp's sets.

        Parameters
        ----------
        secure
            Whether that goes back with TLS only, also if its server does not say so.
        """
        if _SET_COOKIE not in response.headers:
            return
        message = email.message.Message()
        for text in response.headers.getall(_SET_COOKIE):
            message[_SET_COOKIE] = text
        before = _states(self._jar)
        self._jar.extract_cookies(_Answer(message), _request(response.url))  # type: ignore[arg-type]
        after = _states(self._jar)
        new = [cookie for cookie in self._jar if before.get(_name(cookie)) != after[_name(cookie)]]
        for cookie in new:
            cookie.secure |= secure
        gone = before.keys() - after.keys()
        if self._file is not None and (new or gone):
            self._write(self._file, new, gone)

    def _write(self, file: str, new: Iterable[Cookie], gone: Iterable[_Name]) -> None:
        """Change the file, to which other processes write; where that fails, it stays as it is.

        Only its owner may read it.
        """
        from nczarr_fsspec.local_files import whole_file

        path = os.path.realpath(file)
        with contextlib.suppress(OSError, StoreError):
            jar = _read(path)
            for name in gone:
                with contextlib.suppress(KeyError):
                    jar.clear(*name)
            for cookie in new:
                jar.set_cookie(cookie)
            number, written = tempfile.mkstemp(prefix=".nczarr-", dir=os.path.dirname(path))
            os.close(number)
            with whole_file(path, written):
                jar.save(written, ignore_discard=True)


def _read(file: str) -> MozillaCookieJar:
    """Return the cookies in a file; none if it is not there."""
    jar = MozillaCookieJar()
    try:
        if os.path.getsize(file):
            jar.load(file, ignore_discard=True, ignore_expires=True)
    except FileNotFoundError:
        return jar
    except (OSError, ValueError, UnboundLocalError) as error:  # LoadError quotes lines
        why = "is no file of cookies" if isinstance(error, LoadError) else "cannot be read"
        raise StoreError(file, f"{why} (storage option {COOKIES_OPTION})") from None
    for cookie in jar:
        if not cookie.expires:  # curl's 0: until the session ends
            cookie.expires, cookie.discard = None, True
    jar.clear_expired_cookies()
    return jar


def _name(cookie: Cookie) -> _Name:
    return cookie.domain, cookie.path, cookie.name


def _states(jar: Iterable[Cookie]) -> dict[_Name, tuple[str | None, int | None]]:
    return {_name(cookie): (cookie.value, cookie.expires) for cookie in jar}


class _Answer:
    """An answer as ``http.cookiejar`` looks at it."""

    def __init__(self, message: email.message.Message) -> None:
        self._message = message

    def info(self) -> email.message.Message:
        return self._message


def _request(url: URL) -> urllib.request.Request:
    return urllib.request.Request(str(url.with_user(None)))  # noqa: S310 - nothing is opened
