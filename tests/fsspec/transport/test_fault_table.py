"""One table of faults for all that is read over HTTP and S3: keys, members of a zip, a file.

What takes time, or has no end, is answered in virtual time; the rest by a server.
"""

from __future__ import annotations

import asyncio
import gzip
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import product
from typing import Any

import pytest

from nczarr_fsspec import FsspecStore, RemoteBytes, RemoteStore, RemoteZipStore, StoreError
from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError
from nczarr_fsspec.place import Place
from nczarr_fsspec.stores.zipformat import TAIL_BYTES
from nczarr_fsspec.transport import s3
from nczarr_fsspec.transport.policy import WINDOW, Timeout
from nczarr_fsspec.transport.request import Extent
from nczarr_fsspec.transport.s3form import Form, Forms
from tests.support.builders.archives import NOISE, make_zip
from tests.support.faults.memory import little_memory
from tests.support.servers.httpserver import Server
from tests.support.servers.virtualhttp import Reply, Session, every, nothing, paced, serving
from tests.support.servers.virtualnet import run

START, STOP = 70_000, 170_000
PAGE = b"<!DOCTYPE html><html><body>No such page</body></html>"
KINDS = ("keys", "zip", "file")
#: over what they are read
WAYS = ("http", "s3")
#: signatures are made, and not looked at
SECRET = {"key": "AKID", "secret": "Qz7secretQz7secret", "skip_instance_cache": True}
TARGETS = {"keys": "b/d#mode=nczarr", "zip": "b/d.zip", "file": "b/x.bin#mode=bytes"}

Read = Callable[[], bytes | None]


pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    # what fills the end of the archive keeps the other member out of the first answer
    members = {".zgroup": b"{}", "v/0": NOISE, "w": bytes(TAIL_BYTES)}
    archive = make_zip(members, zipfile.ZIP_STORED)
    return {"/b/d/.zgroup": b"{}", "/b/d/v/0": NOISE, "/b/d.zip": archive, "/b/x.bin": NOISE}


@pytest.fixture
def server(files: dict[str, bytes]) -> Iterator[Server]:
    with Server(dict(files), etag='"1"') as running:
        yield running


def target(kind: str, way: str, host: str, options: dict[str, Any]) -> RemoteBytes | RemoteStore:
    """Open one kind of target."""
    if way == "s3":
        root, options = "s3:/", {**SECRET, "endpoint_url": host, **options}
    else:
        root = host
    opened = Place.of(f"{root}/{TARGETS[kind]}", options).open().data
    assert isinstance(opened, (RemoteBytes, FsspecStore, RemoteZipStore))
    if isinstance(opened, FsspecStore):  # the other kinds have sent a request, too
        assert opened.run(opened.get(".zgroup")) == b"{}"
    return opened


async def part_of(opened: RemoteBytes | RemoteStore) -> bytes | None:
    """Read the same bytes of every kind."""
    if isinstance(opened, RemoteBytes):
        return bytes((await opened.fetch([Extent(START, STOP)]))[0])
    return await opened.get("v/0", slice(START, STOP))


@pytest.fixture
def opened(server: Server) -> Iterator[Callable[..., Read]]:
    """Open one kind of target; what comes back reads the same bytes of it."""
    closing: list[RemoteBytes | RemoteStore] = []

    def open_kind(kind: str, way: str = "http", **options: Any) -> Read:
        one = target(kind, way, server.url, options)
        closing.append(one)
        return lambda: one.run(part_of(one))

    yield open_kind
    for one in closing:
        one.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "fault"),
    [
        *product(
            WAYS,
            [
                {},
                {"unavailable_every": 1},
                {"unavailable_every": 1, "retry_after": "0"},
                {"unavailable_every": 1, "unavailable_status": 429},
                {"unavailable_every": 1, "unavailable_status": 500},
                {"cut_every": 1},
                {"reset_every": 1},
                {"ranges": "ignored"},
                {"ranges": "no-total"},
                {"ranges": "unsaid"},
                {"ranges": "200"},
                {"ranges": "200-whole"},
            ],
        ),
        ("http", {"ranges": "ignored", "gzip": True}),  # S3 sends what was stored
    ],
    ids=str,
)
def test_the_bytes_are_right(
    server: Server, opened: Callable[..., Read], kind: str, way: str, fault: dict[str, Any]
) -> None:
    read = opened(kind, way)
    for name, value in fault.items():
        setattr(server, name, value)
    assert read() == NOISE[START:STOP]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fault", "kind_of_error", "reason"),
    [
        ({"ranges": "shifted"}, StoreError, r"sent bytes \d+-\d+, asked for \d+-\d+"),
        ({"ranges": "gzip"}, StoreError, "compressed a byte range|the body has more than"),
        ({"unavailable_every": 1, "relent": False}, StoreError, "503.*tried 6 times"),
        ({"cut_every": 1, "relent": False}, StoreError, "tried 6 times"),
        ({"reset_every": 1, "relent": False}, StoreError, "tried 6 times"),
        ({"unavailable_every": 1, "retry_after": "3600"}, StoreError, "503.*tried 1 times"),
        (
            {"files": {}, "missing_status": 403},
            AccessDeniedError,
            "HTTP status 403|Forbidden; choose credentials",
        ),
        (
            {"files": {}, "missing_status": 401},
            AccessDeniedError,
            "401.*(got no|choose) credentials",
        ),
        ({"password": "me:hunter22"}, AccessDeniedError, "401"),
    ],
    ids=str,
)
def test_what_is_refused(
    server: Server,
    opened: Callable[..., Read],
    kind: str,
    way: str,
    fault: dict[str, Any],
    kind_of_error: type[Exception],
    reason: str,
) -> None:
    read = opened(kind, way)
    for name, value in fault.items():
        setattr(server, name, value)
    with pytest.raises(kind_of_error, match=reason) as caught:
        read()
    assert (server.url if way == "http" else "s3://b/") in str(caught.value)


@pytest.mark.parametrize("kind", ["zip", "file"])
class TestOneVersion:
    """What has several requests is of one version; a key is an object of its own."""

    def test_another_tag(self, server: Server, opened: Callable[..., Read], kind: str) -> None:
        read = opened(kind)
        server.etag = '"2"'
        with pytest.raises(StoreError, match=r"has changed while it was read.*open it again"):
            read()

    def test_another_size(self, server: Server, opened: Callable[..., Read], kind: str) -> None:
        server.etag = None
        read = opened(kind)
        server.files = {path: content + b"!" for path, content in server.files.items()}
        with pytest.raises(StoreError, match="has changed while it was read"):
            read()

    def test_a_page_instead(self, server: Server, opened: Callable[..., Read], kind: str) -> None:
        read = opened(kind)
        server.files, server.missing_status, server.missing_body = {}, 200, PAGE
        with pytest.raises(StoreError, match="has changed while it was read"):
            read()

    def test_it_goes_away(self, server: Server, opened: Callable[..., Read], kind: str) -> None:
        read = opened(kind)
        server.files = {}
        with pytest.raises(DatasetNotFoundError, match=r"has disappeared.*404"):
            read()


def test_a_key_that_is_missing(server: Server, opened: Callable[..., Read]) -> None:
    read = opened("keys")
    server.files = {}
    assert read() is None


@pytest.mark.parametrize("kind", KINDS)
def test_secrets_stay_with_the_host(server: Server, opened: Callable[..., Read], kind: str) -> None:
    with Server(dict(server.files), etag='"1"') as there:
        read = opened(kind, headers={"X-Api-Key": "hunter22"})
        server.redirect = there.url
        assert read() == NOISE[START:STOP]
        assert "hunter22" in str(server.requests[-1].headers)
        assert there.requests
        assert not any("hunter22" in str(request.headers) for request in there.requests)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_to_a_host_share_one_bound(
    server: Server, opened: Callable[..., Read], kind: str
) -> None:
    """A busy server gets fewer requests of everything that is read from it."""
    read = opened(kind)
    source = Place.of(f"{server.url}/b/x.bin#mode=bytes").open().data
    assert isinstance(source, RemoteBytes)
    before = source.limits.concurrency
    server.unavailable_every, server.relent = 1, False
    with pytest.raises(StoreError, match="503"):
        read()
    assert source.limits.concurrency < before
    source.close()


# in virtual time

#: bytes of what has no end, sent at a time
BLOCK = bytes(1 << 16)
#: what is read of it at most: as much as may be kept, and what comes with it
MAX_WHOLE = 1 << 20
BOMB = gzip.compress(bytes(200 << 20), 1)


class Struck:
    """A server in virtual time that serves `files`, until its answers get a fault."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.rightly = serving(files)
        self.fault: Callable[[Struck, Reply], None] = lambda _, reply: None
        self.requests = self.sent = 0

    def __call__(self, path: str, asked: str) -> Reply:
        reply = self.rightly(path, asked)
        self.fault(self, reply)
        self.requests += 1
        return reply

    def silent(self, reply: Reply) -> None:
        reply.before = 1e9

    def stopped(self, reply: Reply) -> None:
        reply.speak = nothing

    def dripping(self, reply: Reply) -> None:
        reply.speak = every(1, b"x")

    def endless(self, reply: Reply) -> None:
        async def speak(reply: Reply) -> AsyncIterator[bytes]:
            while not reply.closed:
                await asyncio.sleep(0.001)
                self.sent += len(BLOCK)
                assert self.sent < 64 << 20, "it is read on and on"
                yield BLOCK

        reply.headers.pop("Content-Length")
        reply.speak = speak

    def endless_whole(self, reply: Reply) -> None:
        self.endless(reply)
        reply.headers.pop("Content-Range", None)
        reply.status = 200

    def bomb(self, reply: Reply) -> None:
        reply.headers = {"ETag": reply.headers["ETag"], "Content-Encoding": "gzip"}
        reply.speak = paced(BOMB, 1e9)
        reply.status = 200

    def bomb_of_range(self, reply: Reply) -> None:
        reply.headers["Content-Encoding"] = "gzip"
        reply.speak = paced(BOMB, 1e9)


async def all_of(opened: RemoteBytes | RemoteStore) -> bytes | None:
    """Read a whole member; of a file a part of the same size."""
    if isinstance(opened, RemoteBytes):
        return await part_of(opened)
    return await opened.get("v/0", most=len(NOISE))


NO_ANSWER = "no answer came in time (storage option timeout: connect 30"
TOO_SLOW = "bytes came too slowly (storage option timeout"
TOO_LARGE = f"has more than {len(NOISE)} bytes"
TOO_MANY = "bytes (tried 6 times)"
NO_RANGES = f"larger than the {MAX_WHOLE} bytes that are kept in memory (storage option max_whole"
COMPRESSED = "the server compressed a byte range"
LIMITS = Timeout()
#: fault, reason, and what it costs at most: requests, seconds
WAITING = [
    (Struck.silent, NO_ANSWER, 2, 2 * (LIMITS.connect + LIMITS.first_byte)),
    (Struck.stopped, TOO_SLOW, 2, 2 * WINDOW),
    (Struck.dripping, TOO_SLOW, 2, 2 * WINDOW),
]
#: of parts of an archive or a file; and of a key, all of which is read
NEVER_ENDING = (
    [*WAITING, (Struck.endless, TOO_MANY, 6, 1), (Struck.endless_whole, NO_RANGES, 1, 1)],
    [*WAITING, (Struck.endless, TOO_LARGE, 1, 1)],
)
#: over HTTP only, for S3 sends what was stored
INFLATING = (
    [(Struck.bomb, NO_RANGES, 1, 1), (Struck.bomb_of_range, COMPRESSED, 1, 1)],
    [(Struck.bomb, TOO_LARGE, 1, 1)],
)


@pytest.mark.parametrize(
    ("fault", "kind", "way", "reason", "requests", "seconds"),
    [
        (fault, kind, way, *outcome)
        for kind in KINDS
        for way, fault, *outcome in [
            *((way, *row) for way in WAYS for row in NEVER_ENDING[kind == "keys"]),
            *(("http", *row) for row in INFLATING[kind == "keys"]),
        ]
    ],
    ids=lambda value: getattr(value, "__name__", value if value in (*KINDS, *WAYS) else ""),
)
def test_what_never_ends_is_given_up(
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Struck, Reply], None],
    kind: str,
    way: str,
    reason: str,
    requests: int,
    seconds: float,
) -> None:
    server = Struck(files)
    session = Session(server)

    async def get_client(**_: Any) -> Any:
        return session

    async def forms_of(*_: Any) -> Any:
        return Forms(None, {"b": Form(session, "http://h/b/", {}, None, None)})  # type: ignore[arg-type]

    monkeypatch.setattr(s3, "forms_of", forms_of)
    options = {"get_client": get_client} if way == "http" else {}
    limit = {} if kind == "keys" else {"max_whole": MAX_WHOLE}
    given = {"skip_instance_cache": True, **options, **limit}
    opened = target(kind, way, "http://h", given)
    if isinstance(opened, RemoteZipStore):
        opened.list_many([""])  # reads its directory
    server.fault, server.requests = fault, 0

    async def read() -> str:
        with pytest.raises(StoreError) as caught:
            await all_of(opened)
        return str(caught.value)

    with little_memory(20 << 20):
        text, took = run(read())
    opened.close()
    assert reason in text
    assert server.requests == requests
    assert took <= seconds + 1
    assert server.sent <= 2 * MAX_WHOLE
