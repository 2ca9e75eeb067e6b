"""Cookies of all hosts on the way to data, each for the host that set it.

Source: RFC 6265, as far as Python's ``http.cookiejar`` has it; Netscape's file of cookies as curl
writes it.
"""

from __future__ import annotations

import contextlib
import email.message
import os
import urllib.request
from collections.abc import Iterable
from http.cookiejar import Cookie, LoadError, MozillaCookieJar
from typing import Any

from yarl import URL

from nczarr_fsspec.errors import StoreError

#: the storage option that names a file of them
COOKIES_OPTION = "cookie_jar"

_SET_COOKIE = "Set-Cookie"


class Cookies:
    """What servers gave to be shown again.

    Parameters
    ----------
    known
        Those that another session has.
    file
        Where they are kept for other programs, in Netscape's form; made if it is not there.

    Raises
    ------
    StoreError
        If there is such a file that cannot be read.
    """

    def __init__(self, known: Iterable[Cookie] = (), file: str | None = None) -> None:
        self._jar = MozillaCookieJar()
        self._file = os.path.expanduser(file) if file else None
        if self._file is not None:
            self._read(self._file)
        for cookie in known:
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

    def learn(self, response: Any) -> None:
        """Keep what an answer of aiohttp's sets."""
        if _SET_COOKIE not in response.headers:
            return
        message = email.message.Message()
        for text in response.headers.getall(_SET_COOKIE):
            message[_SET_COOKIE] = text
        self._jar.extract_cookies(_Answer(message), _request(response.url))  # type: ignore[arg-type]
        if self._file is not None:
            self._write(self._file)

    def _read(self, file: str) -> None:
        try:
            if os.path.getsize(file):
                self._jar.load(file, ignore_discard=True, ignore_expires=True)
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError, ValueError) as error:  # LoadError quotes lines
            why = "is no file of cookies" if isinstance(error, LoadError) else "cannot be read"
            raise StoreError(file, f"{why} (storage option {COOKIES_OPTION})") from None
        for cookie in self._jar:
            if not cookie.expires:  # curl's 0: until the session ends
                cookie.expires, cookie.discard = None, True
        self._jar.clear_expired_cookies()

    def _write(self, file: str) -> None:
        """Replace the file, which only its owner may read; where that fails, it stays as it is."""
        new = f"{file}.{os.getpid()}"
        with contextlib.suppress(OSError):
            os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o600))
            self._jar.save(new, ignore_discard=True)
            os.replace(new, file)


class _Answer:
    """An answer as ``http.cookiejar`` looks at it."""

    def __init__(self, message: email.message.Message) -> None:
        self._message = message

    def info(self) -> email.message.Message:
        return self._message


def _request(url: URL) -> urllib.request.Request:
    return urllib.request.Request(str(url.with_user(None)))  # noqa: S310 - nothing is opened
