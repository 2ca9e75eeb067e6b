"""Answers of HTTP servers about a file: honest ones, and what can be wrong with them.

Lengths, ranges, sizes, parts, versions, redirects and worse. What no lie does is to
send bytes of a file at a place where they are not, with headers that are in order:
that nobody can find out.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Bytes of a body that has no end; nobody should read as many.
ENDLESS = 32 << 20
#: Seconds for which a silent server is silent.
SILENCE = 0.4
_BOUNDARY = "LIAR"
_NUMBERS = ("0", "1", "-1", "", "+5", "1_0", "0x10", "²", "9" * 30, "9" * 5000, "NaN")


@dataclass
class Reply:
    """An answer: headers as they are sent, and a body that may have no end."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes
    length: str | None = None
    chunked: bool = False
    endless: bytes = b""
    cut: int | None = None
    close: bool = False
    pieces: int = 0
    wait: float = 0.0

    def replace(self, name: str, value: str | None) -> None:
        self.headers = [(n, v) for n, v in self.headers if n.lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))


def honest(content: bytes, wanted: str, tag: str) -> Reply:
    """The answer to a request for some ranges."""
    headers = [("ETag", tag), ("Accept-Ranges", "bytes")]
    extents = _extents(wanted, len(content))
    if not extents:
        return Reply("200 OK", headers, content)
    if len(extents) == 1:
        start, stop = extents[0]
        headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}"))
        return Reply("206 Partial Content", headers, content[start:stop])
    headers.append(("Content-Type", f"multipart/byteranges; boundary={_BOUNDARY}"))
    return Reply("206 Partial Content", headers, multipart(content, extents))


def multipart(content: bytes, extents: list[tuple[int, int]]) -> bytes:
    """A body of several parts."""
    parts = [part(content, start, stop) for start, stop in extents]
    return b"\r\n".join([*parts, f"--{_BOUNDARY}--\r\n".encode()])


def part(content: bytes, start: int, stop: int) -> bytes:
    where = f"Content-Range: bytes {start}-{stop - 1}/{len(content)}"
    return f"--{_BOUNDARY}\r\n{where}\r\n\r\n".encode() + content[start:stop]


def _extents(wanted: str, size: int) -> list[tuple[int, int]]:
    spans = re.findall(r"(\d+)-(\d+)", wanted)
    return [(int(a), min(int(b) + 1, size)) for a, b in spans if int(a) < size]


@dataclass
class Told:
    """To whom and about what: the true content, the ranges asked for, the path."""

    content: bytes
    wanted: str
    path: str
    tagged: bool
    rng: random.Random

    @property
    def extents(self) -> list[tuple[int, int]]:
        return _extents(self.wanted, len(self.content))


Lie = Callable[[Reply, Told], None]


def _lies() -> Iterator[Lie]:
    def cut(reply: Reply, told: Told) -> None:
        reply.cut = told.rng.randrange(len(reply.body) + 1)
        reply.length = str(len(reply.body))

    def shorter(reply: Reply, told: Told) -> None:
        reply.body = reply.body[: told.rng.randrange(len(reply.body) + 1)]
        reply.chunked = told.rng.random() < 0.5

    def longer(reply: Reply, told: Told) -> None:
        if reply.status.startswith("200"):  # or it would be a longer file
            reply.length = str(len(reply.body))
            reply.close = True
        else:
            reply.chunked = told.rng.random() < 0.5
        reply.body += told.rng.randbytes(told.rng.choice((1, 100, 70_000)))

    def no_length(reply: Reply, told: Told) -> None:
        reply.length = ""

    def odd_length(reply: Reply, told: Told) -> None:
        reply.length = told.rng.choice(_NUMBERS)
        reply.close = True

    def two_lengths(reply: Reply, told: Told) -> None:
        reply.headers.append(("Content-Length", str(told.rng.randrange(100))))
        reply.close = True

    def endless(reply: Reply, told: Told) -> None:
        reply.endless, reply.chunked = b"\0" * 4096, told.rng.random() < 0.5

    def endless_parts(reply: Reply, told: Told) -> None:
        mark = f"multipart/byteranges; boundary={_BOUNDARY}"
        reply.replace("Content-Type", mark)
        reply.endless = told.rng.choice((part(told.content, 0, 9) + b"\r\n", b"x" * 999))

    def slow(reply: Reply, told: Told) -> None:
        reply.pieces = 20

    def silent(reply: Reply, told: Told) -> None:
        reply.wait = SILENCE

    def whole(reply: Reply, told: Told) -> None:
        reply.status, reply.body = "200 OK", told.content
        reply.replace("Content-Range", None)
        reply.chunked = told.rng.random() < 0.3

    def whole_but_part(reply: Reply, told: Told) -> None:
        reply.status = "200 OK"

    def status(reply: Reply, told: Told) -> None:
        reply.status = told.rng.choice((
            "204 No Content", "304 Not Modified", "400 Bad", "401 Who", "403 No", "404 Not Found",
            "410 Gone", "416 Range", "429 Slow", "500 Oh", "501 No", "503 Busy", "999 Odd", "20 x",
            "2000 OK", "abc", "",
        ))  # fmt: skip
        reply.headers.append(("Retry-After", told.rng.choice(("0", "-5", "²", "9" * 30, "soon"))))
        reply.replace("Content-Range", told.rng.choice((None, "bytes */0", "bytes */²")))
        reply.close = True

    def redirect(reply: Reply, told: Told) -> None:
        reply.status = told.rng.choice(("301 Moved", "302 Found", "303 Other", "307 Temp", "308 P"))
        hop = told.rng.randrange(1000)
        reply.headers.append(("Location", told.rng.choice((
            told.path, f"{told.path}?{hop}", f"{told.path.partition('?')[0]}?{hop}", "", "//", "#",
            "http://", "http://[", "http://127.0.0.1:1/x", "http://127.0.0.1:99999/", "ftp://h/x",
            "file:///etc/passwd", "http://é/", "http://a b/",
            "/" + "x" * 9000, "javascript:1",
        ))))  # fmt: skip

    def shifted(reply: Reply, told: Told) -> None:
        """Honestly another range."""
        if len(told.extents) != 1:
            return
        start, stop = (max(0, at + told.rng.choice((-9, -1, 0, 1, 9))) for at in told.extents[0])
        stop = min(max(stop, start + 1), len(told.content))
        reply.body = told.content[start:stop]
        reply.replace("Content-Range", f"bytes {start}-{stop - 1}/{len(told.content)}")

    def other_size(reply: Reply, told: Told) -> None:
        if len(told.extents) == 1:
            start, stop = told.extents[0]
            size = told.rng.choice(("*", str(stop), "1", "9" * 17, "9" * 19, "9" * 30, "9" * 5000))
            reply.replace("Content-Range", f"bytes {start}-{stop - 1}/{size}")

    def odd_range(reply: Reply, told: Told) -> None:
        # not shorter or longer, or it would be right by chance and wrong in truth
        odd = told.rng.choice(("bytes 5-4/9", "bytes 0-0", "bytes=0-9/9", "pages 1-2/3", "-1-3/5",
                               "bytes 1-²/3", "bytes " + "9" * 5000 + "-" + "9" * 5001 + "/*",
                               "bytes 9-10/5", "bytes */100", "x" * 9000))  # fmt: skip
        reply.replace("Content-Range", odd)

    def no_range(reply: Reply, told: Told) -> None:
        reply.replace("Content-Range", None)

    def no_validator(reply: Reply, told: Told) -> None:
        if not told.tagged:
            reply.replace("ETag", None)

    def other_tag(reply: Reply, told: Told) -> None:
        tag = told.rng.choice(('W/"0"', '"9"', "0", "", '"', "x" * 5000))
        reply.replace("ETag", tag)

    def encoded(reply: Reply, told: Told) -> None:
        reply.headers.append(("Content-Encoding", told.rng.choice(("gzip", "deflate", "br", "x"))))
        if told.rng.random() < 0.5:
            reply.body = gzip.compress(reply.body)
        elif told.rng.random() < 0.5:  # a bomb
            reply.body = gzip.compress(bytes(ENDLESS), 1)

    def several(reply: Reply, told: Told) -> None:
        """Parts that are missing, more, merged, in other order, or not what they say."""
        rng, content = told.rng, told.content
        extents = told.extents or [(0, len(content))]
        kind = rng.choice(("missing", "more", "merged", "shuffled", "overlapping", "lying"))
        if kind == "missing":
            extents = [extent for extent in extents if rng.random() < 0.6] or extents[:1]
        elif kind == "more":
            starts = [rng.randrange(len(content) - 1) for _ in range(rng.choice((1, 500)))]
            extents += [(start, start + 1) for start in starts]
        elif kind == "merged":
            extents = [(extents[0][0], extents[-1][1])]
        elif kind == "shuffled":
            rng.shuffle(extents)
        elif kind == "overlapping":
            extents = [(max(0, a - 50), min(len(content), b + 50)) for a, b in extents]
        reply.status = "206 Partial Content"
        reply.replace("Content-Range", None)
        reply.replace("Content-Type", f"multipart/byteranges; boundary={_BOUNDARY}")
        reply.body = multipart(content, extents)
        if kind == "lying":  # the length of a part, not its bytes
            at = rng.randrange(len(reply.body))
            reply.body = reply.body[:at] + reply.body[at + rng.choice((1, 7)) :]
            stated = f"bytes {extents[0][0]}-{extents[0][1] - 1}/".encode()
            longer = f"bytes {extents[0][0]}-{extents[0][1] + 20}/".encode()
            reply.body = reply.body.replace(stated, longer)

    def odd_parts(reply: Reply, told: Told) -> None:
        rng = told.rng
        mark = rng.choice((_BOUNDARY, "", '"', "x" * 71, "WRONG", "a b", "\xe9", "--", "."))
        reply.replace("Content-Type", f"multipart/byteranges; boundary={mark}")
        start = f"--{_BOUNDARY}\r\n".encode()
        reply.body = rng.choice((
            start + b"X: " + b"y" * 100_000 + b"\r\n\r\n" + reply.body,
            start + b"Content-Range: bytes 0-9/9999\r\n" * 2 + b"\r\n0123456789\r\n" + start,
            start + b"Content-Range: bytes 0-" + b"9" * 5000 + b"/*\r\n\r\nabc",
            start * 10_000, start[:-2] + b"--\r\n", b"\r\n" * 10_000, b"", b"--", reply.body[:-8],
        ))  # fmt: skip

    def huge_header(reply: Reply, told: Told) -> None:
        reply.headers.append(("X-Huge", "x" * told.rng.choice((9_000, 300_000))))

    def many_headers(reply: Reply, told: Told) -> None:
        reply.headers += [(f"X-{n}", "y" * 20) for n in range(5000)]

    def no_http(reply: Reply, told: Told) -> None:
        reply.status = told.rng.choice(("\r\n\r\n", "200", "200 OK\nA: b", "\0\xff", "x" * 9999))
        reply.close = True

    def chunked_and_not(reply: Reply, told: Told) -> None:
        reply.headers.append(("Transfer-Encoding", told.rng.choice(("chunked", "gzip", "x"))))
        reply.close = True

    def object_store(reply: Reply, told: Told) -> None:
        reply.headers.append(("x-amz-request-id", "1"))

    yield from (
        cut, shorter, longer, no_length, odd_length, two_lengths, endless, endless_parts, slow,
        silent, whole, whole_but_part, status, redirect, shifted, other_size, odd_range, no_range,
        no_validator, other_tag, encoded, several, several, odd_parts, huge_header, many_headers,
        no_http, chunked_and_not, object_store,
    )  # fmt: skip


LIES = tuple(_lies())
