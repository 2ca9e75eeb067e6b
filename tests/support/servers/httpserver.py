"""A small HTTP server on 127.0.0.1 whose faults can be chosen."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import socket
import ssl
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from tests.support.servers.ports import free_port


@dataclass
class Request:
    """One request as it was answered."""

    target: str
    range: str | None
    headers: dict[str, str]
    status: int = 0
    sent: int = 0
    certificate: Any = None

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # by default 5, so that the kernel drops connections made at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may go away
            super().handle_error(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Read what a client of TLS still sends: else the system resets the connection.

        A reset takes back what was said last, such as which certificate is wanted.
        """
        if isinstance(request, ssl.SSLSocket):
            with suppress(OSError):
                request.shutdown(socket.SHUT_WR)
                request.settimeout(5)
                while request.recv(1 << 16):
                    pass
        super().shutdown_request(request)


@dataclass
class Server:
    """Serves a mapping of paths to bytes; a context manager.

    Every ``..._every=N`` knob strikes each Nth request (1 is all of them).  It strikes the
    same target and range once only if `relent`, so that a client that tries again succeeds.

    Parameters
    ----------
    files
        Percent-decoded absolute path -> content.
    unavailable_every, retry_after, unavailable_status
        Answer an error status, with this ``Retry-After``.
    cut_every
        Send half of the body and close the connection.
    reset_every
        Close the connection without an answer.
    missing_status, missing_body
        The answer about files that do not exist.
    ranges
        ``"ok"``, ``"ignored"`` (200 and the whole file), ``"no-suffix"``
        (``bytes=-N`` ignored), ``"no-suffix-501"`` (refused), ``"shifted"``
        (honestly another range), ``"unsaid"`` (no ``Content-Range``),
        ``"no-total"`` (``Content-Range: bytes a-b/*``), ``"gzip"`` (compressed), ``"first"``
        (of several only the first), ``"200"`` (the range with that status, as rclone has it),
        ``"200-whole"`` (the whole file, though a range is stated).
    gzip
        Compress whole answers, whatever the client accepts.
    password, scheme
        Demand ``user:password``, and say that this way of HTTP is wanted for it.
    hidden
        Answer 403 for all names that begin with a dot.
    redirect
        Answer 302 to the same path below this prefix.
    etag, modified
        Entity tag of all files, by which ``If-None-Match`` is answered, and their time. ``"md5"``
        makes the tag of each file of what it holds.
    date
        What every answer says that the time is.
    cookie
        Set by every answer.
    tls
        Speak HTTPS with this; requests then have the client's certificate.
    """

    files: dict[str, bytes] = field(repr=False)  # hypothesis warns of long ones
    unavailable_every: int = 0
    unavailable_status: int = 503
    retry_after: str | None = None
    cut_every: int = 0
    reset_every: int = 0
    missing_status: int = 404
    missing_body: bytes = b"no such file"
    ranges: str = "ok"
    gzip: bool = False
    password: str | None = None
    scheme: str = "Basic"
    hidden: bool = False
    redirect: str | None = None
    etag: str | None = None
    modified: str = "Sun, 06 Nov 1994 12:00:00 GMT"
    date: str | None = None
    cookie: str | None = None
    relent: bool = True
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list, repr=False)
    connections: int = 0

    def __enter__(self) -> Self:
        server = self
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with lock:
                    server.connections += 1

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                request = Request(self.path, self.headers.get("Range"), dict(self.headers))
                if isinstance(self.connection, ssl.SSLSocket):
                    request.certificate = self.connection.getpeercert()
                with lock:
                    server.requests.append(request)
                    number = len(server.requests)
                server.answer_to(self, request, number)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return server.date or super().date_time_string(timestamp)

        self._struck: set[tuple[str, str | None]] = set()
        self._http = _HTTPServer(("127.0.0.1", free_port()), Handler)
        if self.tls is not None:
            self._http.socket = self.tls.wrap_socket(
                self._http.socket,
                server_side=True,
                do_handshake_on_connect=False,  # but in the thread of the connection
            )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._http.server_address[1]}"

    @property
    def bytes_sent(self) -> int:
        return sum(request.sent for request in self.requests)

    def answer_to(self, handler: BaseHTTPRequestHandler, request: Request, number: int) -> None:
        def strikes(every: int) -> bool:
            if every == 0 or number % every:
                return False
            again = (request.target, request.range) in self._struck
            self._struck.add((request.target, request.range))
            return not (again and self.relent)

        if strikes(self.reset_every):
            request.status = -1
            handler.close_connection = True
            return
        headers: dict[str, str] = {}
        content = self.files.get(request.path)
        etag = self.etag
        if etag == "md5" and content is not None:
            etag = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
        if strikes(self.unavailable_every):
            request.status, body = self.unavailable_status, b"busy"
            if self.retry_after is not None:
                headers["Retry-After"] = self.retry_after
        elif self.password and not self._knows(request.headers.get("Authorization", "")):
            request.status, body = 401, b"who are you?"
            headers["WWW-Authenticate"] = f'{self.scheme} realm="here", nonce="1"'
        elif self.redirect and not request.target.startswith(self.redirect):
            request.status, body = 302, b""
            headers["Location"] = self.redirect + request.target
        elif self.hidden and request.path.rpartition("/")[2].startswith("."):
            request.status, body = 403, b"hidden"
        elif content is None:
            request.status, body = self.missing_status, self.missing_body
        elif etag is not None and request.headers.get("If-None-Match") == etag:
            request.status, body = 304, b""
        else:
            if self.ranges in ("ok", "no-suffix"):
                headers["Accept-Ranges"] = "bytes"
            request.status, body = self.content_for(request, content, headers)
        if etag is not None and content is not None:
            headers["ETag"] = etag
            headers["Last-Modified"] = self.modified
        if self.cookie is not None:
            headers["Set-Cookie"] = self.cookie
        cut = strikes(self.cut_every)
        handler.send_response(request.status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        body = body[: len(body) // 2] if cut else body
        request.sent = len(body)
        with suppress(ConnectionError):  # the client may have seen enough
            handler.wfile.write(body)
        handler.close_connection = handler.close_connection or cut

    def _knows(self, said: str) -> bool:
        user, _, password = (self.password or "").partition(":")
        if self.scheme == "Basic":
            return said == "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        uri = re.search('uri="([^"]*)"', said)
        first, last = f"{user}:here:{password}", f"GET:{uri[1] if uri else ''}"
        return said.startswith("Digest ") and _md5(f"{_md5(first)}:1:{_md5(last)}") in said

    def content_for(
        self, request: Request, content: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        wanted = request.range or ""
        if self.ranges == "first":
            wanted = wanted.partition(",")[0]
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
        suffix = asked is not None and not asked[1]
        if suffix and self.ranges == "no-suffix-501":
            return 501, b""
        ignored = self.ranges == "ignored" or (suffix and self.ranges == "no-suffix")
        if asked is None or ignored:
            if self.gzip:
                headers["Content-Encoding"] = "gzip"
                return 200, gzip.compress(content)
            return 200, content
        if suffix:
            start, stop = max(0, len(content) - int(asked[2])), len(content)
        else:
            start = int(asked[1])
            stop = min(int(asked[2]) + 1 if asked[2] else len(content), len(content))
        if start >= len(content):
            headers["Content-Range"] = f"bytes */{len(content)}"
            return 416, b"out of range"
        if self.ranges == "shifted":
            start, stop = start + 1, min(stop + 1, len(content))
        total = "*" if self.ranges == "no-total" else len(content)
        if self.ranges != "unsaid":
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        body = content[start:stop]
        if self.ranges == "gzip":
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body)
        if self.ranges.startswith("200"):
            return 200, content if self.ranges == "200-whole" else body
        return 206, body
