"""An archive as NASA's: data, logins and signed URLs, each at a host of its own.

One server of 127.0.0.1 plays all hosts, and tells them by the header ``Host``.
"""

from __future__ import annotations

import base64
import socket
import threading
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.support.servers.httpserver import Request, Server

USER = ("me", "hunter22")
TOKEN = "T0ken22"


def name_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all names below ``.test`` be this machine."""
    find = socket.getaddrinfo

    def found(host: Any, *args: Any, **options: Any) -> Any:
        here = isinstance(host, str) and host.endswith(".test")
        return find("127.0.0.1" if here else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", found)


@dataclass
class Archive(Server):
    """Serves files by way of a login; needs `name_hosts`.

    ``data.test`` wants a cookie or the token, else it redirects to ``login.test``, which wants
    user and password and sends back. Then ``data.test`` redirects to a signed URL at
    ``store.test``, which refuses whatever else says who the user is.

    Parameters
    ----------
    good_for
        How many requests a signature is good for.
    login_for
        How many signed URLs there are for a cookie.

    Attributes
    ----------
    signed, logins
        How many signatures were made, and cookies.
    """

    good_for: int = 1 << 30
    login_for: int = 1 << 30
    token: str = TOKEN
    etag: str | None = '"1"'
    signed: int = 0
    logins: int = 0
    uses: dict[str, int] = field(default_factory=dict)
    _counting: Any = field(default_factory=threading.Lock, repr=False)

    def at(self, host: str) -> str:
        """Return the URL of a host."""
        return f"{'http' if self.tls is None else 'https'}://{host}.test:{self.port}"

    def to(self, host: str) -> list[Request]:
        """Return the requests that a host got."""
        name = f"{host}.test:{self.port}"
        return [request for request in self.requests if request.headers["Host"] == name]

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def answer_to(self, handler: BaseHTTPRequestHandler, request: Request, number: int) -> None:
        query = {
            name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()
        }
        request.headers = {name.title(): text for name, text in request.headers.items()}
        host = request.headers["Host"].partition(".")[0]
        answer = {"data": self._data, "login": self._login, "store": self._store}[host]
        with self._counting:  # requests that come at once get signatures of their own
            status, headers = answer(request, query)
        if status:
            request.status = status
            handler.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                handler.send_header(name, value)
            handler.end_headers()
            return
        super().answer_to(handler, request, number)

    def _used(self, what: str, most: int) -> bool:
        """Tell whether something is used too often."""
        self.uses[what] = self.uses.get(what, 0) + 1
        return self.uses[what] > most

    def _data(self, request: Request, query: dict[str, str]) -> tuple[int, dict[str, str]]:
        if request.path == "/login":
            self.logins += 1
            cookie = f"session={self.logins}; Path=/; HttpOnly"
            return 302, {"Set-Cookie": cookie, "Location": query["state"]}
        session = SimpleCookie(request.headers.get("Cookie", "")).get("session")
        name = "" if session is None else f"session {session.value}"
        by_token = request.headers.get("Authorization") == f"Bearer {self.token}"
        if not by_token and "Authorization" in request.headers:
            return 401, {}
        if not by_token and (not name or self._used(name, self.login_for)):
            return 302, {"Location": f"{self.at('login')}/ask?{urlencode({'state': request.path})}"}
        self.signed += 1
        return 303, {"Location": f"{self.at('store')}{request.path}?Signature={self.signed}"}

    def _login(self, request: Request, query: dict[str, str]) -> tuple[int, dict[str, str]]:
        basic = base64.b64encode(":".join(USER).encode()).decode()
        if request.headers.get("Authorization") != f"Basic {basic}":
            return 401, {}
        back = f"{self.at('data')}/login?{urlencode({'code': 'C', **query})}"
        return 302, {"Set-Cookie": "urs=1; Path=/", "Location": back}

    def _store(self, request: Request, query: dict[str, str]) -> tuple[int, dict[str, str]]:
        if {"Authorization", "Cookie"} & request.headers.keys():
            return 400, {}
        if self._used(query.get("Signature", ""), self.good_for):
            return 403, {}
        return 0, {}
