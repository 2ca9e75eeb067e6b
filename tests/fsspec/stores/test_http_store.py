"""Plain HTTP: which requests are made, and what becomes of every kind of answer."""

from __future__ import annotations

import asyncio
import email.utils
import pickle
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import fsspec
import pytest

from nczarr_fsspec import FsspecStore, StoreError, ZipStore, open_keystore
from nczarr_fsspec.errors import DatasetNotFoundError
from nczarr_fsspec.keystore import RemoteStore
from nczarr_fsspec.place import Place
from nczarr_fsspec.transport import answers, http, throttle
from nczarr_fsspec.transport import policy as _policy
from nczarr_fsspec.transport.policy import most_connections
from tests.support.builders.trees import write_tree
from tests.support.servers.httpserver import Request, Server
from tests.support.servers.ports import free_port
from tests.support.servers.realservers import Nginx, nginx, range_server

CONTENT = bytes(range(256)) * 100


pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"/d/v/0": CONTENT, "/d/empty": b""}) as running:
        yield running


@pytest.fixture
def store(server: Server) -> Iterator[FsspecStore]:
    opened = open_keystore(f"{server.url}/d")
    assert isinstance(opened, FsspecStore)
    yield opened
    opened.close()


class Unsized(Server):
    """Says of no file how large it is, and knows no range from the end.

    Attributes
    ----------
    once
        Whether a file is gone when it has been asked for.
    """

    once = False

    def answer_to(self, handler: BaseHTTPRequestHandler, request: Request, number: int) -> None:
        content = self.files.get(request.path)
        if content is None:
            super().answer_to(handler, request, number)
            return
        if self.once:
            self.files = {}
        first = request.range == "bytes=0-0"
        handler.send_response(206 if first else 200)
        if first:
            handler.send_header("Content-Range", "bytes 0-0/*")
            handler.send_header("Content-Length", "1")
        handler.end_headers()
        handler.close_connection = not first
        with suppress(ConnectionError):  # the client may have seen enough
            handler.wfile.write(content[:1] if first else content)


def read(store: FsspecStore, key: str, start: int | None = None, stop: int | None = None) -> Any:
    return store.run(store.get(key, slice(start, stop)))


def failure(store: FsspecStore, key: str = "v/0") -> StoreError:
    (result,) = store.get_many([key])
    assert isinstance(result, StoreError)
    return result


class TestRequests:
    def test_opening_costs_nothing_and_a_key_one_request(
        self, server: Server, store: FsspecStore
    ) -> None:
        assert server.requests == []
        assert read(store, "v/0") == CONTENT
        (request,) = server.requests
        assert (request.path, request.range) == ("/d/v/0", None)
        assert request.headers["Accept-Encoding"] == "identity"

    @pytest.mark.parametrize(
        "key", ["a b", "a#b", "a%b", "a%20b", "a?b=c&d", "é/温", "[*]", "a+b;,", "a:b@c", '"<>"']
    )
    def test_keys_are_encoded(self, server: Server, store: FsspecStore, key: str) -> None:
        server.files[f"/d/{key}"] = b"yes"
        assert read(store, key) == b"yes"
        assert server.requests[0].target.isascii()
        assert " " not in server.requests[0].target

    @pytest.mark.parametrize(
        ("root", "target"),
        [
            ("/d", "/d/v/0"),
            ("/d/", "/d/v/0"),
            ("/d?token=a%2Fb&x", "/d/v/0?token=a%2Fb&x"),
            ("/d/?x=1/2", "/d/v/0?x=1/2"),
            ("/d#mode=nczarr", "/d/v/0"),
            ("/a%20b/d", "/a%20b/d/v/0"),
            ("/a b/é", "/a%20b/%C3%A9/v/0"),
            ("", "/v/0"),
            ("?x", "/v/0?x"),
        ],
    )
    def test_the_query_stays_at_the_end(self, server: Server, root: str, target: str) -> None:
        store = open_keystore(server.url + root)
        store.get_many(["v/0"])
        assert [request.target for request in server.requests] == [target]
        store.close()

    def test_options_reach_the_request(self, server: Server) -> None:
        store = open_keystore(
            f"{server.url}/d",
            {"headers": {"X-Mine": "1"}, "client_kwargs": {"headers": {"X-Session": "2"}}},
        )
        assert store.get_many(["v/0"]) == [CONTENT]
        headers = server.requests[0].headers
        assert (headers["X-Mine"], headers["X-Session"]) == ("1", "2")
        assert headers["Accept-Encoding"] == "identity"
        store.close()

    def test_connections_are_kept(self, server: Server, store: FsspecStore) -> None:
        for _ in range(10):
            read(store, "v/0")
        assert server.connections == 1


class TestRanges:
    @pytest.mark.parametrize("ranges", ["ok", "ignored", "no-total"])
    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 10), (100, 5000), (25_000, None), (None, 7), (25_590, 30_000)]
    )
    def test_slices(
        self, server: Server, store: FsspecStore, ranges: str, start: Any, stop: Any
    ) -> None:
        server.ranges = ranges
        assert read(store, "v/0", start, stop) == CONTENT[start:stop]

    def test_only_the_range_moves(self, server: Server, store: FsspecStore) -> None:
        read(store, "v/0", 100, 200)
        assert (server.requests[0].range, server.bytes_sent) == ("bytes=100-199", 100)

    @pytest.mark.parametrize("ranges", ["ok", "ignored"])
    def test_beyond_the_end_is_empty(self, server: Server, store: FsspecStore, ranges: str) -> None:
        server.ranges = ranges
        assert read(store, "v/0", 50_000, 60_000) == b""
        assert read(store, "empty", 0, 10) == b""
        assert read(store, "nope", 0, 10) is None

    def test_the_end_of_a_file_whose_size_nobody_says(self) -> None:
        with Unsized({"/d/v/0": CONTENT}) as server:
            opened = open_keystore(f"{server.url}/d")
            assert isinstance(opened, FsspecStore)
            with pytest.raises(StoreError, match="its size cannot be found out"):
                read(opened, "v/0", -100)
            with pytest.raises(StoreError, match="does not say how large it is"):
                opened.run(opened.size("v/0"))
            assert read(opened, "v/0") == CONTENT  # its end is where the connection ends
            opened.close()

    def test_a_file_that_goes_before_its_end_is_asked_for(self) -> None:
        with Unsized({"/d/v/0": CONTENT}, missing_status=404) as server:
            opened = open_keystore(f"{server.url}/d")
            assert isinstance(opened, FsspecStore)
            server.once = True
            assert read(opened, "v/0", -100) is None
            assert opened.run(opened.size("v/0")) is None
            opened.close()

    def test_another_range_than_asked_for_is_refused(
        self, server: Server, store: FsspecStore
    ) -> None:
        server.ranges = "shifted"
        with pytest.raises(StoreError, match="sent bytes 101-200, asked for 100-199"):
            read(store, "v/0", 100, 200)

    def test_without_content_range_the_length_decides(
        self, server: Server, store: FsspecStore
    ) -> None:
        server.ranges = "unsaid"
        assert read(store, "v/0", 100, 200) == CONTENT[100:200]
        with pytest.raises(StoreError, match="without saying which"):
            read(store, "v/0", 100, 50_000)

    def test_a_compressed_file_is_what_it_inflates_to(
        self, server: Server, store: FsspecStore
    ) -> None:
        server.gzip, server.ranges = True, "ignored"
        assert read(store, "v/0") == CONTENT
        assert read(store, "v/0", 100, 200) == CONTENT[100:200]


class TestAnswers:
    @pytest.mark.parametrize("status", [404, 410])
    def test_missing(self, server: Server, store: FsspecStore, status: int) -> None:
        server.missing_status = status
        assert read(store, "nope") is None
        assert len(server.requests) == 1

    @pytest.mark.parametrize(
        ("status", "hint"), [(400, ""), (401, "credentials"), (403, "denied"), (451, "")]
    )
    def test_refusals_name_status_and_url(
        self, server: Server, store: FsspecStore, status: int, hint: str
    ) -> None:
        server.missing_status = status
        error = failure(store, "nope")
        assert error.object == f"{server.url}/d/nope"
        assert f"HTTP status {status}" in error.reason
        assert hint in error.reason
        assert len(server.requests) == 1  # not worth another try

    def test_redirects_are_followed(self, server: Server, store: FsspecStore) -> None:
        server.redirect = "/moved"
        server.files["/moved/d/v/0"] = b"there"
        assert read(store, "v/0") == b"there"
        server.redirect = "/loop"
        server.files.clear()
        assert read(store, "v/0") is None

    def test_a_redirect_to_nowhere(self, server: Server, store: FsspecStore) -> None:
        server.redirect = "x:"
        assert "cannot be read" in failure(store).reason

    def test_nobody_there(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", free_port()))
            store = open_keystore(f"http://127.0.0.1:{unused.getsockname()[1]}/d")
            assert isinstance(store, FsspecStore)
            error = failure(store)
        assert "cannot connect" in error.reason
        store.close()

    def test_a_redirect_to_a_broken_url(self, server: Server, store: FsspecStore) -> None:
        server.redirect = "http://user:hunter22@[broken"
        error = failure(store)
        assert "hunter22" not in str(error)


class TestRetries:
    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_transient_statuses(self, server: Server, store: FsspecStore, status: int) -> None:
        server.unavailable_every, server.unavailable_status = 1, status
        assert read(store, "v/0") == CONTENT
        assert [request.status for request in server.requests] == [status, 200]

    @pytest.mark.parametrize("fault", ["reset_every", "cut_every", "unavailable_every"])
    def test_every_other_request_fails(
        self, server: Server, store: FsspecStore, fault: str
    ) -> None:
        setattr(server, fault, 2)
        keys = [f"v/{i}" for i in range(50)]
        server.files.update({f"/d/{key}": key.encode() * 100 for key in keys})
        assert store.get_many(keys) == [key.encode() * 100 for key in keys]
        assert len(server.requests) > 60

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            ("unavailable_every", "HTTP status 503 Service Unavailable"),
            ("cut_every", "ClientPayloadError"),
            ("reset_every", "ServerDisconnectedError"),
        ],
    )
    def test_it_gives_up(self, server: Server, store: FsspecStore, fault: str, reason: str) -> None:
        setattr(server, fault, 1)
        server.relent = False
        error = failure(store)
        assert reason in error.reason
        assert f"tried {_policy.ATTEMPTS} times" in error.reason
        # aiohttp itself repeats a request once where a kept connection was closed
        assert _policy.ATTEMPTS <= len(server.requests) <= 2 * _policy.ATTEMPTS

    def test_waits_double_and_vary(
        self, server: Server, store: FsspecStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits = record_waits(monkeypatch)
        monkeypatch.setattr(_policy, "FIRST_WAIT", 1.0)
        server.unavailable_every, server.relent = 1, False
        failure(store)
        assert len(waits) == _policy.ATTEMPTS - 1
        for attempt, wait in enumerate(waits):
            assert 2**attempt / 2 <= wait <= 2**attempt

    def test_the_wish_of_the_server_counts(
        self, server: Server, store: FsspecStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits = record_waits(monkeypatch)
        server.unavailable_every, server.retry_after = 1, "7"
        assert read(store, "v/0") == CONTENT
        now = time.time()  # and for as long as the request takes
        monkeypatch.setattr(answers, "time", SimpleNamespace(time=lambda: now))
        server.retry_after = email.utils.formatdate(now + 20, usegmt=True)
        assert read(store, "v/0", 0, 3) == CONTENT[:3]
        server.retry_after = "soon"
        assert read(store, "v/0", 0, 4) == CONTENT[:4]
        assert waits[0] == 7
        assert 19 < waits[1] <= 20
        assert waits[2] == 0  # FIRST_WAIT of these tests
        monkeypatch.setattr(_policy, "FIRST_WAIT", 4.0)
        server.retry_after = "0"
        assert read(store, "v/0", 0, 5) == CONTENT[:5]
        assert 2 <= waits[3] <= 4

    def test_a_wish_that_is_too_long_is_the_end(self, server: Server, store: FsspecStore) -> None:
        server.unavailable_every, server.retry_after = 1, "3600"
        reason = failure(store).reason
        assert "HTTP status 503" in reason
        assert "the server asks for a pause of 3600 s (tried 1 times)" in reason
        assert len(server.requests) == 1


def record_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have requests be tried again at once; returns the seconds that they should have waited."""
    waits: list[float] = []

    async def fake(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    # of this module only: others sleep, too, as aiohttp does
    instead = SimpleNamespace(**{**vars(asyncio), "sleep": fake})
    monkeypatch.setattr(throttle, "asyncio", instead)
    return waits


class TestSecrets:
    def test_user_and_password_of_the_url(self, server: Server) -> None:
        server.password = "me:p@ss/w:ord"
        address = server.url.removeprefix("http://")
        store = open_keystore(f"http://me:p%40ss%2Fw%3Aord@{address}/d#mode=nczarr")
        assert isinstance(store, FsspecStore)
        assert store.get_many(["v/0"]) == [CONTENT]
        assert pickle.loads(pickle.dumps(store)).get_many(["v/0"]) == [CONTENT]
        server.password = "changed:since"
        error = failure(store)
        assert "status 401" in error.reason
        assert "storage_options" in error.reason
        for text in (repr(store), store.url, str(error), repr(error)):
            assert "p@ss" not in text
            assert "p%40ss" not in text
        store.close()

    @pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
    def test_auth_option(self, server: Server) -> None:
        server.password = "me:hunter22"
        auth = aiohttp.BasicAuth("me", "hunter22")
        for options in ({"auth": auth}, {"client_kwargs": {"auth": auth}}):
            store = open_keystore(f"{server.url}/d", options)
            assert store.get_many(["v/0"]) == [CONTENT]
            store.close()

    def test_tokens_of_the_query(self, server: Server) -> None:
        store = open_keystore(f"{server.url}/d?X-Amz-Signature=hunter22&part=1")
        assert isinstance(store, FsspecStore)
        assert store.get_many(["v/0"]) == [CONTENT]
        server.missing_status = 403
        error = failure(store, "nope")
        assert "part=1" in error.object
        for text in (repr(store), store.url, str(error)):
            assert "hunter22" not in text
        server.unavailable_every, server.relent = 1, False
        assert "hunter22" not in str(failure(store))
        store.close()


class TestProcess:
    def test_close_closes_sockets(self, server: Server) -> None:
        # with options of its own, for stores with the same ones share connections
        fs = fsspec.filesystem("http", headers={"X-Test": "sockets"})
        store = FsspecStore(fs, f"{server.url}/d")

        def connections() -> int:
            """Sockets of this process that are connected to the server."""
            port = f":{int(server.url.rpartition(':')[2]):04X}"
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            return sum(row[2].endswith(port) and row[3] == "01" for row in rows)

        assert store.get_many([f"v/{i}" for i in range(20)])[0] == CONTENT
        assert connections() > 0
        store.close()
        wait_until(lambda: connections() == 0)

    def test_the_session_is_made_as_the_user_wants(self, server: Server) -> None:
        async def make(**kwargs: Any) -> aiohttp.ClientSession:
            return aiohttp.ClientSession(headers={"X-Made": "here"})

        store = FsspecStore(fsspec.filesystem("http", get_client=make), f"{server.url}/d")
        assert store.get_many(["v/0"]) == [CONTENT]
        assert server.requests[0].headers["X-Made"] == "here"
        store.close()


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 60 s"
        time.sleep(0.01)


class TestNginx:
    @pytest.fixture
    def real(self, tmp_path: Path) -> Iterator[Nginx]:
        (tmp_path / "www").mkdir()
        with nginx(tmp_path / "www", tmp_path) as running:
            yield running

    def test_tree_and_zip(self, real: Nginx, tmp_path: Path) -> None:
        vectors = Path(__file__).parents[2] / "data" / "vectors"
        source = vectors / "dims-nczarr+zip-4.10.1.dataset.zip"
        local = ZipStore(source)
        keys = [f"{prefix}{name}" for prefix in ("", "g1/", "x/") for name in (".zattrs", "0")]
        expected = local.get_many(keys)
        assert sum(value is not None for value in expected) >= 4
        www = tmp_path / "www"
        shutil.copy(source, www / "d.zip")
        found = zip(keys, expected, strict=True)
        write_tree(www / "tree # é", {k: data for k, data in found if isinstance(data, bytes)})
        for target in ("d.zip", "tree%20%23%20%C3%A9#mode=nczarr"):
            store = open_keystore(f"{real.plain}/gzip/{target}")
            assert store.get_many(keys) == expected
            store.close()


class TestManyAtATime:
    def test_connections_are_as_many_as_requests(self, server: Server) -> None:
        cases: list[tuple[dict[str, Any], int]] = [
            ({}, RemoteStore.concurrency),
            ({"client_kwargs": {"trust_env": True}}, RemoteStore.concurrency),
            ({"get_client": few_connections}, 7),
        ]
        for options, limit in cases:
            store = open_keystore(f"{server.url}/d", options)
            assert store.get_many(["v/0"]) == [CONTENT]
            assert isinstance(store, FsspecStore)
            assert store.transport.shared.fs._session.connector.limit == limit
            store.close()

    def test_they_are_few_of_the_files_that_may_be_open(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resource = pytest.importorskip("resource")
        for files, connections in [
            (256, 64),
            (20_000, 192),
            (resource.RLIM_INFINITY, 192),
            (9, 16),
        ]:
            monkeypatch.setattr(resource, "getrlimit", lambda kind, n=files: (n, n))
            assert most_connections() == connections

    def test_a_busy_server_gets_fewer_requests(self, tmp_path: Path) -> None:
        for number in range(400):
            (tmp_path / str(number)).write_bytes(b"x" * number)
        with range_server(tmp_path) as server:
            server.set(latency_ms=5, busy=8)
            store = open_keystore(server.url)
            keys = [str(number) for number in range(400)]
            assert store.get_many(keys) == [b"x" * number for number in range(400)]
            assert isinstance(store, FsspecStore)
            assert store.transport.throttle(server.url).limit < most_connections()
            store.close()


async def few_connections(loop: Any, **options: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=7), **options)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_member_of_an_archive_that_is_not_there(server: Server, kind: str) -> None:
    with pytest.raises(DatasetNotFoundError, match=rf"^{kind}://x\.nc::{server.url}/gone"):
        Place.of(f"{kind}://x.nc::{server.url}/gone").open()


@pytest.mark.parametrize("chain", ["", "simplecache::", "bytes::"])
def test_short_addresses_are_no_chains(chain: str) -> None:
    """To fsspec, ``::`` links a chain; hosts have the short spelling, by which logins know them."""
    place = Place.of(f"{chain}http://[2606:4700::1]:8080/x%20y")
    assert place.path == "http://[2606:4700:0:0:0:0:0:1]:8080/x%20y"
    assert http.address(place.path) == "http://[2606:4700::1]:8080/x%20y"


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_requests_at_a_time_than_the_user_wants(tmp_path: Path, most: int) -> None:
    keys = [f"v/{number}" for number in range(12)]
    (tmp_path / "v").mkdir()
    for key in keys:
        (tmp_path / key).write_bytes(CONTENT)
    with range_server(tmp_path) as server:
        store = Place.of(server.url, {"max_requests": most}).open().data
        server.set(latency_ms=20)
        assert isinstance(store, FsspecStore)
        with closing(pickle.loads(pickle.dumps(store))) as again:
            assert again.get_many(keys) == [CONTENT] * len(keys)
        assert 0 < server.control("stats")["max_inflight"] <= most
        store.close()
