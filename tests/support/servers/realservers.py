"""Servers as subprocesses: the range server with faults, nginx with and without TLS, Python's."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.ports import free_port

#: seconds to come up at most
PATIENCE = 60
#: The path of requests that are no part of a test.
_MARK = "/_mark"

#: faults of `RangeServer` that a client must get along with, by their knobs
FAULTS: dict[str, dict[str, int]] = {
    "none": {},
    "every 5th request 503": {"e503": 5},
    "every 3rd request 429": {"e429": 3},
    "every 5th body cut": {"trunc": 5},
    "every 2nd body cut": {"trunc": 2},
    "every 3rd connection dropped": {"reset": 3},
    "range ignored": {"norange": 1},
    "range ignored, chunked": {"norange": 1, "nolen": 1},
    "range ignored, until the connection closes": {"norange": 1, "nolen": 2},
    "chunked": {"nolen": 1},
    "until the connection closes": {"nolen": 2},
    "until the connection closes, cut": {"nolen": 2, "trunc": 3},
    "no Accept-Ranges": {"noaccept": 1},
    "HEAD 403": {"nohead": 403},
    "HEAD without length": {"headnolen": 1},
    "206 without Content-Range": {"nocr": 1},
    "206 without Content-Range, cut": {"nocr": 1, "trunc": 3},
    "206 without Content-Range, chunked": {"nocr": 1, "nolen": 1},
    "no validators": {"noetag": 1},
    "no validators, no Content-Range": {"noetag": 1, "nocr": 1},
    "weak tags": {"weak": 1},
    "gzip on whole answers": {"gzip": 1},
    "gzip on 206": {"gzip": 2},
    "redirect": {"redirect": 1},
    "no multi-range": {"max_ranges": 0},
    "no suffix ranges": {"suffix": 501},
}


@dataclass(frozen=True)
class RangeServer:
    """``tests/support/servers/rangeserver.py`` at `url`, which says what its knobs are."""

    url: str

    def control(self, command: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/_ctl/{command}") as answer:
            return json.load(answer)

    def set(self, **knobs: float) -> None:
        """Turn `knobs`, all others off, and forget what was counted."""
        self.control("default")
        self.control("reset")
        for name, value in knobs.items():
            assert "error" not in self.control(f"set?{name}={value}")

    def change(self, path: str, **knobs: float) -> None:
        """From now on all files have other validators."""
        self.set(etagchange=1, **knobs)
        with urllib.request.urlopen(f"{self.url}{path}") as answer:
            answer.read()

    @property
    def requests(self) -> int:
        return int(self.control("stats")["requests"])

    @property
    def ranges(self) -> list[str | None]:
        return [request["range"] for request in self.control("log")]


@dataclass(frozen=True)
class Nginx:
    """A running nginx.

    Attributes
    ----------
    plain, tls : str
        URLs of its root.
    authority : Path
        The certificate to trust.
    log : Path
        A line for each request: status, range, bytes sent, path.
    """

    plain: str
    tls: str
    authority: Path
    log: Path

    def answered(self) -> list[str]:
        """List the lines of all requests that were answered before this call.

        A client may have its answer before nginx has written the line. The one
        worker writes it before it takes another request, so one is sent first.
        """
        urllib.request.urlopen(f"{self.plain}{_MARK}").close()
        return [line for line in self.log.read_text().splitlines() if not line.endswith(_MARK)]


@contextmanager
def range_server(root: Path) -> Iterator[RangeServer]:
    port = free_port()
    script = Path(__file__).with_name("rangeserver.py")
    command = [sys.executable, str(script), "--root", str(root), "--port", str(port)]
    with running(command, root, port):
        yield RangeServer(f"http://127.0.0.1:{port}")


@contextmanager
def python_server(root: Path) -> Iterator[str]:
    """``python -m http.server``, which knows no ranges; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with running(command, root, port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def nginx(root: Path, folder: Path) -> Iterator[Nginx]:
    """nginx that serves `root`, with its configuration, keys and logs in `folder`."""
    for program in ("nginx", "openssl"):
        if shutil.which(program) is None:
            if os.environ.get("CI"):
                pytest.fail(f"there is no {program}")
            pytest.skip(f"NO REAL SERVER TESTED: there is no {program}; apt-get install {program}")
    _make_certificate(folder)
    plain, tls = free_port(), free_port()
    config = folder / "nginx.conf"
    config.write_text(f"""
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 256; }}
http {{
  log_format ranges '$status $http_range $body_bytes_sent $uri';
  access_log {folder}/access ranges;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{plain}; listen 127.0.0.1:{tls} ssl; root {root};
    ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key;
    location {_MARK} {{ return 204; }}
    location /locked/ {{ auth_basic "who"; auth_basic_user_file {folder}/users; alias {root}/; }}
    location /moved/ {{ return 302 /x.bin; }}
    location /gzip/ {{ gzip on; gzip_types *; alias {root}/; }}
  }}
}}
""")
    (folder / "users").write_text("me:{PLAIN}hunter22\n")
    with running(["nginx", "-p", str(folder), "-c", str(config)], folder, plain):
        yield Nginx(
            f"http://127.0.0.1:{plain}",
            f"https://localhost:{tls}",
            folder / "authority.pem",
            folder / "access",
        )


def _make_certificate(folder: Path) -> None:
    """An authority of our own, and a server's certificate signed by it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(
        *("req", "-x509", *key, "-subj", "/CN=tests"),
        *("-addext", "keyUsage=critical,keyCertSign"),
        *("-keyout", "authority.key", "-out", "authority.pem"),
    )
    openssl(
        *("req", "-x509", *key, "-subj", "/CN=localhost"),
        *("-CA", "authority.pem", "-CAkey", "authority.key"),
        *("-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE"),
        *("-keyout", "server.key", "-out", "server.pem"),
    )


@contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """Run `command` in `folder` from when it listens on `port`."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        log.seek(0)
                        pytest.fail(f"{command[0]} does not listen: {log.read().decode()}")
                time.sleep(0.02)
            yield
        finally:
            process.terminate()
            process.wait()
