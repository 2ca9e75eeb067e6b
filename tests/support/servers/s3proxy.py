"""A proxy in front of S3 that fails, or lets something happen, at a request of choice."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.servers.ports import free_port
from tests.support.servers.s3server import S3Server


class Proxy(ThreadingHTTPServer):
    """Stands between a client and S3, and lets chosen changes fail.

    Attributes
    ----------
    first, how
        From which change on, counted by `number`, all of them fail, and with which status;
        ``"cut"`` ends the connection instead.
    put_always
        If given, puts an object (path, body) where a request says to put it on a condition.
    expired
        Tells whether requests are answered that their keys have expired.
    at
        What is done at a request, counted by `requests`, whose connection is cut then. Meanwhile
        no other request is answered.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", free_port()), _Forward)
        self.endpoint = endpoint
        self.number = 0
        self.first = 10**9
        self.how: int | str = 503
        self.put_always: Callable[[str, bytes], object] | None = None
        self.expired: Callable[[], bool] = lambda: False
        self.at: dict[int, Callable[[], None]] = {}
        self.requests = 0
        self.lock = threading.Lock()

    def fails(self) -> bool:
        """Whether this change fails, and all after it do."""
        with self.lock:
            self.number += 1
            return self.number >= self.first

    def interrupted(self) -> bool:
        """Do what is to be done at this request; whether there was something."""
        with self.lock:
            self.requests += 1
            what = self.at.pop(self.requests, None)
            if what is not None:
                what()
        return what is not None


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.interrupted():
            self.close_connection = True
            return
        if self.server.expired():
            self.answer_to(400, {}, _XML.replace(b"ServiceUnavailable", b"ExpiredToken"))
            return
        if self.command in ("PUT", "POST", "DELETE") and self.server.fails():
            if self.server.how == "cut":
                self.close_connection = True
                return
            self.answer_to(int(self.server.how), {}, _XML)
            return
        if self.server.put_always is not None and self.headers.get("If-Match"):
            self.server.put_always(self.path.partition("?")[0].strip("/"), body)
            self.answer_to(200, {"ETag": '"0"'}, b"")
            return
        request = urllib.request.Request(
            self.server.endpoint + self.path, body or None, dict(self.headers), method=self.command
        )
        try:
            with urllib.request.urlopen(request) as found:
                self.answer_to(found.status, dict(found.headers), found.read())
        except urllib.error.HTTPError as error:
            self.answer_to(error.code, dict(error.headers), error.read())
        except (OSError, http.client.HTTPException):  # the server has ended meanwhile
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any  # noqa: N815 - as http.server calls them

    def answer_to(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        length = headers.get("Content-Length", str(len(body)))
        for name, value in headers.items():
            if name not in ("Content-Length", "Transfer-Encoding", "Connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


_XML = b"<Error><Code>ServiceUnavailable</Code><Message>no</Message></Error>"


@contextmanager
def proxy_to(server: S3Server) -> Iterator[Proxy]:
    proxy = Proxy(server.endpoint)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
