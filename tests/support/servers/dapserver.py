"""A server of OPeNDAP (DAP2) for arrays of float32, as far as netCDF-C asks one."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import numpy as np

from tests.support.servers.ports import free_port


def _dds(name: str, data: np.ndarray, dims: tuple[str, ...]) -> str:
    lengths = "".join(f"[{dim} = {n}]" for dim, n in zip(dims, data.shape, strict=True))
    return f"Dataset {{\n    Float32 {name}{lengths};\n}} x;\n"


def _part(data: np.ndarray, constraint: str) -> np.ndarray:
    """Take what a constraint such as ``tas[0:1:3][2]`` asks for."""
    key = []
    for hyperslab in re.findall(r"\[([0-9:]+)\]", constraint):
        bounds = [int(number) for number in hyperslab.split(":")]
        first, step, last = bounds[0], bounds[1] if len(bounds) == 3 else 1, bounds[-1]
        key.append(slice(first, last + 1, step))
    return data[tuple(key)]


@contextmanager
def dap_server(
    name: str, data: np.ndarray, dims: tuple[str, ...], attributes: dict[str, str]
) -> Iterator[str]:
    """Serve one variable at the URL that is yielded."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            path, _, query = unquote(self.path).partition("?")
            part = _part(data, query)
            if path.endswith(".dds"):
                body = _dds(name, part, dims).encode()
            elif path.endswith(".das"):
                lines = "".join(f'String {key} "{text}";\n' for key, text in attributes.items())
                body = f"Attributes {{\n {name} {{\n{lines} }}\n}}\n".encode()
            elif path.endswith(".dods"):
                count = np.array([part.size] * 2, ">u4").tobytes()
                head = f"{_dds(name, part, dims)}Data:\n".encode()
                body = head + count + part.astype(">f4").tobytes()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("XDODS-Server", "dods/3.7")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
