"""What all requests of an HTTP filesystem have in common, and what each host on their way gets."""

from __future__ import annotations

import contextlib
import copy
import email.message
import os
import re
import tempfile
import urllib.request
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.cookiejar import Cookie, LoadError, MozillaCookieJar
from http.cookies import CookieError
from typing import Any, TypeAlias

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.places.rc import Entry, load_rc
from nczarr_fsspec.text import did_you_mean
from nczarr_fsspec.transport.answers import same_origin
from nczarr_fsspec.transport.logins import Certificates, Logins, netrc_path
from nczarr_fsspec.transport.options import FileState, file_state
from nczarr_fsspec.transport.policy import (
    ADDRESSED_OPTION,
    COOKIES_OPTION,
    HTTP_OPTIONS,
    LIMIT_OPTIONS,
    LOGINS_OPTION,
    NETRC_OPTION,
    REDIRECTS_OPTION,
)
from nczarr_fsspec.transport.sessions import connecting, connections, proxy_of, stranger
from nczarr_fsspec.transport.shared import SharedFilesystem

#: options of a request that are meant for the host that was asked for; ``ssl`` may hold a
#: client's certificate, or turn verification off. Proxies are the way to all hosts.
_PRIVATE = ("auth", "cookies", "server_hostname", "ssl")
#: options that are often given, besides ours; a misspelt one may be meant for one of them
_OFTEN = ("headers", "params", "auth", "ssl", "proxy", "cookies", "client_kwargs", "max_whole")
#: those of each filesystem; sessions may be those of several
_known: weakref.WeakKeyDictionary[SharedFilesystem, RequestOptions] = weakref.WeakKeyDictionary()


class _LoginFiles:
    """The rc files, and the netrc files that are in use, as they were at the last opening.

    Connections stay open as long as any dataset does. A user who was refused writes a line into
    such a file, and opens the URL again.

    Attributes
    ----------
    entries : list of Entry
        Of the rc files; another object whenever one of the files has changed.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: by path of a netrc file
        self._states: dict[str, FileState] = {}

    def read(self, netrc_file: Any) -> None:
        """Read the rc files, and look at the netrc file that an option names."""
        entries, path = load_rc(), netrc_path(netrc_file)
        now = file_state(path)
        if entries != self.entries or now != self._states.setdefault(path, now):
            self.entries, self._states[path] = entries, now


login_files = _LoginFiles()


@contextmanager
def understood() -> Iterator[None]:
    """Raise `URLError` for options that aiohttp, or yarl, does not take."""
    try:
        yield
    # aiohttp's own messages name its functions
    except (TypeError, AttributeError, CookieError) as error:
        unknown = re.search("unexpected keyword argument '([^']+)'", str(error))
        reason = f"HTTP cannot use them: {error}"
        if unknown is not None:
            name = unknown[1]
            known = (*HTTP_OPTIONS, *LIMIT_OPTIONS, *_OFTEN)
            reason = f"HTTP has no option {name!r}{did_you_mean(name, known)}"
        raise URLError("storage_options", reason) from None


class RequestOptions:
    """What the options of a filesystem say of its requests.

    Parameters
    ----------
    session
        A ClientSession: the connections, and what the user gave to all of them.
    shared
        An HTTP filesystem.
    entries
        Of the rc files.

    Attributes
    ----------
    given : dict
        Headers of the user, who may change them.
    options, public : dict
        Further arguments of a request to the origin that was asked for, and to others.
    params : dict
        Added to the query.
    hops : int
        How many redirects are followed.
    origins : tuple of str or None
        Where to; see `nczarr_fsspec.transport.answers`.
    named : bool
        Whether the caller named the URLs, and not a dataset.
    logins : Logins
        Who the user is to each host.
    cookies : Cookies
        What hosts gave.
    certificates : Certificates
        TLS, host by host.
    """

    def __init__(self, session: Any, shared: SharedFilesystem, entries: list[Entry]) -> None:
        options: dict[str, Any] = dict(shared.fs.kwargs)
        ours = {name: options.pop(name, None) for name in HTTP_OPTIONS}
        self.session, self.entries = session, entries
        self.given: Mapping[str, str] = options.pop("headers", None) or {}
        self.params = options.pop("params", None)
        follow = options.pop("allow_redirects", True)
        self.hops = int(options.pop("max_redirects", 10)) if follow else 0
        options["timeout"] = connecting(shared.timeout)
        options["allow_redirects"] = options["auto_decompress"] = False
        self.options = options
        self.public = {name: value for name, value in options.items() if name not in _PRIVATE}
        self.origins: tuple[str, ...] | None = ours[REDIRECTS_OPTION]
        self.named = not ours[ADDRESSED_OPTION]
        self.logins = Logins(ours[LOGINS_OPTION], ours[NETRC_OPTION], entries)
        self.cookies = Cookies(self.logins.cookies, ours[COOKIES_OPTION])
        self.certificates = Certificates(entries)

    @classmethod
    async def of(cls, shared: SharedFilesystem) -> RequestOptions:
        """Return those of an HTTP filesystem, made anew for a session, or new `login_files`."""
        session = await shared.fs.set_session()
        found = _known.get(shared)
        entries = login_files.entries
        if found is None or found.session is not session or found.entries is not entries:
            found = _known[shared] = cls(session, shared, entries)
            shared.cap(connections(session))
        return found

    async def ask(
        self, headers: Mapping[str, str], first: URL, target: URL
    ) -> tuple[Any, str | None]:
        """Return a request for `target`, to which that for `first` led, and whom it says it is.

        Parameters
        ----------
        headers
            Of this request; none of them secret.
        """
        own = target is first or same_origin(target, first)
        if own and first.raw_user is not None and target.raw_user is None:
            target = target.with_user(first.user).with_password(first.password)
        session = self.session if own else stranger(self.session, self.given)
        options = self.options if own else self.public
        proxy = None if own or "proxy" in options else proxy_of(self.session, target)
        if proxy is not None:
            options = {**options, "proxy": proxy}
        if "ssl" not in options:
            tls = self.certificates.context(target, everywhere=own and self.named)
            options = options if tls is None else {**options, "ssl": tls}
        sent: Mapping[str, str] = {**headers, **self.given} if own else headers
        downgraded = first.scheme == "https" != target.scheme
        if downgraded or not (self.logins or self.cookies):
            return session.get(target, headers=sent, **options), None
        sent = CIMultiDict(sent)
        also: Mapping[str, str] = getattr(session, "headers", {})
        said = None
        given = self.options.get("auth") or getattr(self.session, "auth", None)
        given = given or "Authorization" in sent or "Authorization" in also
        if not own or not (given or target.raw_user is not None):
            said = await self.logins.header(
                target, own=own and self.named, clear=self._is_clear(first)
            )
            if said is not None:
                sent["Authorization"] = said
        cookie = self.cookies.header(target)
        if cookie is not None:
            users = sent.get("Cookie") or also.get("Cookie")
            sent["Cookie"] = f"{users}; {cookie}" if users else cookie
        return session.get(target, headers=sent, **options), said

    def learn(self, response: aiohttp.ClientResponse, first: URL) -> None:
        """Keep the cookies of an answer to which a request for `first` led."""
        secure = response.url.scheme == "https" and not self._is_clear(first)
        self.cookies.learn(response, secure=secure)

    def _is_clear(self, first: URL) -> bool:
        """Tell whether the caller named a URL without TLS."""
        return self.named and first.scheme != "https"


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
