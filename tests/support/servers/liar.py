"""An HTTP server that lies (`tests.support.servers.lies`).

What it does to a request depends on a seed and the request only, however many come at once.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers.lies import ENDLESS, LIES, Reply, Told, honest
from tests.support.servers.rawserver import RawServer

_BLOCK = bytes(1 << 16)


@dataclass
class Case:
    """One file as the liar serves it.

    Parameters
    ----------
    versions
        Contents of the file. If there are several, each answer is about one of
        them, and has its tag.
    seed
        Of the lies.
    rate
        Share of the answers that are lies.
    """

    versions: tuple[bytes, ...]
    seed: str
    rate: float
    requests: int = 0
    #: bodies without an end of which all was read that there was
    swallowed: int = 0
    told: list[str] = field(default_factory=list)
    _asked: dict[str, int] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def draw(self, wanted: str) -> random.Random:
        """Chance for one request."""
        with self._lock:
            self.requests += 1
            again = self._asked[wanted] = self._asked.get(wanted, 0) + 1
        return random.Random(f"{self.seed}/{wanted}/{again}")


class Liar(RawServer):
    """The server; `cases` are by path."""

    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}

    def serve(self, reader: Any, writer: Any) -> None:
        while _serve(self, reader, writer):
            pass

    def added(self, name: str, case: Case) -> str:
        """The URL of a case."""
        self.cases[f"/{name}"] = case
        return f"{self.url}/{name}"


# -- answers -----------------------------------------------------------------------------------


def _serve(liar: Liar, reader: Any, writer: Any) -> bool:
    """Answer one request; whether there may be another."""
    line = reader.readline(65536)
    if not line:
        return False
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers = {}
    while (header := reader.readline(65536).strip()) != b"":
        name, _, value = header.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    case = liar.cases.get(path.partition("?")[0])
    if case is None or method != "GET":
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return True
    wanted = headers.get("range", "")
    rng = case.draw(f"{path} {wanted}")
    content = rng.choice(case.versions)
    tag = f'"{case.versions.index(content)}"'
    if headers.get("if-none-match") == tag:
        writer.write(f"HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n".encode())
        return True
    reply = honest(content, wanted, tag)
    if rng.random() < case.rate:
        lie = rng.choice(LIES)
        case.told.append(lie.__name__)
        lie(reply, Told(content, wanted, path, len(case.versions) > 1, rng))
    return _send(reply, case, writer, rng)


def _send(reply: Reply, case: Case, writer: Any, rng: random.Random) -> bool:
    body = reply.body
    time.sleep(reply.wait)
    head = [f"HTTP/1.1 {reply.status}", *(f"{name}: {value}" for name, value in reply.headers)]
    length = str(len(body)) if reply.length is None else reply.length
    if reply.chunked:
        head.append("Transfer-Encoding: chunked")
    elif reply.endless:
        head.append("Connection: close")
    elif length:
        head.append(f"Content-Length: {length}")
    else:
        head.append("Connection: close")
    writer.write("\r\n".join(head).encode("latin-1", "replace") + b"\r\n\r\n")
    body = body if reply.cut is None else body[: reply.cut]

    def put(data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data) if reply.chunked and data else data)

    step = max(1, -(-len(body) // (reply.pieces or 1)))
    for at in range(0, len(body), step):
        put(body[at : at + step])
        if reply.pieces:
            time.sleep(0.002)
    if reply.endless:
        block = reply.endless * max(1, len(_BLOCK) // len(reply.endless))
        for _ in range(ENDLESS // len(block)):
            put(block)
        case.swallowed += 1
    elif reply.chunked and reply.cut is None:
        writer.write(b"0\r\n\r\n")
    ends = reply.close or reply.endless or reply.cut is not None or not (reply.chunked or length)
    return not ends
