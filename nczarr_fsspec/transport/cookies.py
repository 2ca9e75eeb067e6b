"""Cookies of all hosts on the way to data, each for the host that set it.

Source: RFC 6265, as far as Python's ``http.cookiejar`` has it; Netscape's file of cookies as curl
writes it.
"""

from __future__ import annotations

import contextlib
import copy
import email.message
import os
import tempfile
import urllib.request
from collections.abc import Iterable
from http.cookiejar import Cookie, LoadError, MozillaCookieJar
from typing import Any, TypeAlias

from yarl import URL

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.transport.policy import COOKIES_OPTION

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
