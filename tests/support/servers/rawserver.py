"""A server that writes what it likes to whoever connects to it, each in a thread."""

from __future__ import annotations

import socketserver
import threading
from abc import abstractmethod
from contextlib import suppress
from typing import Any, Self

from tests.support.servers.ports import free_port


class RawServer:
    """A context manager.

    Attributes
    ----------
    url
        Of its root, without a slash at the end.
    """

    url: str

    @abstractmethod
    def serve(self, reader: Any, writer: Any) -> None:
        """Talk over one connection, which is closed afterwards, or after an `OSError`."""

    def __enter__(self) -> Self:
        serve = self.serve

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True
            timeout = 30

            def handle(self) -> None:
                with suppress(OSError, ValueError):  # the client went away
                    serve(self.rfile, self.wfile)

        class TCPServer(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = TCPServer(("127.0.0.1", free_port()), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
