"""Byte sources: what is asked for, and what becomes of every kind of answer."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import errno
import io
import mmap
import os
import pickle
import ssl
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from nczarr_fsspec import DatasetNotFoundError, StoreError, URLError
from nczarr_fsspec.ranges.local import FileObjectBytes, LocalFileBytes, open_file_object, open_local
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.remote import open_source
from nczarr_fsspec.ranges.source import HEAD_BYTES, Known, LocalBytes, RemoteBytes
from nczarr_fsspec.transport import answers as _answers
from nczarr_fsspec.transport import bodies
from nczarr_fsspec.transport import bodies as _bodies
from nczarr_fsspec.transport import bodies as _buffer
from nczarr_fsspec.transport import http as _http
from nczarr_fsspec.transport import policy as _policy
from nczarr_fsspec.transport.bodies import LARGE
from nczarr_fsspec.transport.policy import RequestLimits, Timeout, most_connections
from nczarr_fsspec.transport.request import Extent, FileVersion, TransientError
from nczarr_fsspec.transport.throttle import RECOVERY, Throttle
from tests.support.faults.locks import lock_is_held, watch_locks
from tests.support.servers.httpserver import Server
from tests.support.servers.realservers import (
    FAULTS,
    Nginx,
    RangeServer,
    nginx,
    python_server,
    range_server,
)
from tests.support.servers.s3server import S3Server
from tests.support.servers.virtualnet import run

CONTENT = bytes(range(251)) * 8000  # 2 MB, in which no two places 251 bytes apart look alike
WIDE = 300 * 20_000
EXTENTS = [
    Extent(100_000, 100_007),
    Extent(300_000, 300_001),
    Extent(1_000_000, 1_400_000),
    Extent(len(CONTENT) - 9, len(CONTENT)),
]


pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "root"
    folder.mkdir()
    (folder / "x.bin").write_bytes(CONTENT)
    (folder / "empty").write_bytes(b"")
    (folder / "small").write_bytes(b"tiny")
    (folder / "wide.bin").write_bytes((CONTENT[:251] * (WIDE // 251 + 1))[:WIDE])
    return folder


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[RangeServer]:
    with range_server(root) as server:
        yield server


@pytest.fixture(scope="module")
def real(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx(root, tmp_path_factory.mktemp("nginx")) as running:
        yield running


@pytest.fixture
def server(running: RangeServer) -> RangeServer:
    running.set()
    return running


@pytest.fixture
def unknown(root: Path) -> Iterator[RangeServer]:
    """A server of its own: that others have been busy may be remembered."""
    with range_server(root) as server:
        yield server


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens sources, and closes them in the end."""
    sources: list[Any] = []

    def open_url(url: str, options: dict[str, Any] | None = None, **known: Any) -> Any:
        fs, path = fsspec.core.url_to_fs(url, **(options or {}))
        source = open_source(fs, path, **known)
        sources.append(source)
        return source

    yield open_url
    for source in sources:
        source.close()


def fetch(source: RemoteBytes | LocalBytes, extents: list[Extent] = EXTENTS) -> list[bytes]:
    if isinstance(source, LocalBytes):
        return [bytes(source.read(*extent)) for extent in extents]
    return [bytes(data) for data in source.run(source.fetch(extents))]


def expected(extents: list[Extent] = EXTENTS) -> list[bytes]:
    return [CONTENT[start:stop] for start, stop in extents]


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_bytes_are_right(self, server: RangeServer, opened: Any, fault: str) -> None:
        server.set(**FAULTS[fault])
        source = opened(f"{server.url}/x.bin")
        assert source.size == len(CONTENT)
        assert source.head == CONTENT[: len(source.head)]
        assert len(source.head) >= HEAD_BYTES
        for _ in range(4):  # also with what was learned
            assert fetch(source) == expected()
        assert bool(source.validator) == ("noetag" not in FAULTS[fault])

    def test_another_range_is_refused(self, server: RangeServer, opened: Any) -> None:
        server.set(badcr=1)
        with pytest.raises(StoreError, match=r"sent bytes 1-65535, asked for 0-65535"):
            opened(f"{server.url}/x.bin")
        server.set()
        source = opened(f"{server.url}/x.bin")
        server.set(badcr=1)
        with pytest.raises(StoreError, match=r"sent bytes 100001-100006, asked for 100000-100006"):
            fetch(source, EXTENTS[:1])

    @pytest.mark.parametrize("knobs", [{}, {"weak": 1}, {"nolen": 1}, {"norange": 1}, {"nocr": 1}])
    @pytest.mark.parametrize("several", [False, True])
    def test_a_file_that_changes_is_refused(
        self, server: RangeServer, opened: Any, knobs: dict[str, int], several: bool
    ) -> None:
        server.set(**(knobs | {"norange": 0}))
        source = opened(f"{server.url}/x.bin")
        server.change("/x.bin", **knobs)
        with pytest.raises(StoreError, match="has changed while it was read") as caught:
            fetch(source, EXTENTS if several else EXTENTS[:1])
        assert "open it again" in str(caught.value)

    def test_another_size_without_validators_is_refused(
        self, server: RangeServer, opened: Any, root: Path
    ) -> None:
        server.set(noetag=1)
        (root / "grows").write_bytes(CONTENT)
        source = opened(f"{server.url}/grows")
        (root / "grows").write_bytes(CONTENT + b"!")
        with pytest.raises(StoreError, match=f"it had {len(CONTENT)} bytes"):
            fetch(source, EXTENTS[:1])
        with pytest.raises(StoreError, match=f"it had {len(CONTENT)} bytes"):
            fetch(source)
        (root / "grows").write_bytes(CONTENT[:10])
        with pytest.raises(StoreError, match=f"it had {len(CONTENT)} bytes and has 10"):
            fetch(source, EXTENTS[:1])

    def test_a_server_that_stays_broken(self, server: RangeServer, opened: Any) -> None:
        source = opened(f"{server.url}/x.bin")
        for fault, reason in (("e503", "503"), ("trunc", "ClientPayloadError"), ("reset", "Disc")):
            server.set(**{fault: 1})
            with pytest.raises(StoreError, match=rf"{reason}.*tried {_policy.ATTEMPTS} times"):
                fetch(source, EXTENTS[2:3])

    def test_a_cut_body_of_unknown_length_is_noticed(
        self, server: RangeServer, opened: Any
    ) -> None:
        source = opened(f"{server.url}/x.bin")
        server.set(nolen=2, trunc=1)
        with pytest.raises(StoreError, match="200000 of 400000 bytes"):
            fetch(source, EXTENTS[2:3])


class TestRequests:
    def test_opening_is_one_request(self, server: RangeServer, opened: Any) -> None:
        source = opened(f"{server.url}/x.bin")
        assert server.ranges == ["bytes=0-65535"]
        assert (source.size, source.head) == (len(CONTENT), CONTENT[:HEAD_BYTES])
        assert source.url == f"{server.url}/x.bin"
        (request,) = server.control("log")
        assert request["m"] == "GET"

    @pytest.mark.parametrize("knobs", [{}, {"norange": 1}, {"nolen": 1}, {"noetag": 1}])
    def test_small_and_empty_files(
        self, server: RangeServer, opened: Any, knobs: dict[str, int]
    ) -> None:
        server.set(**knobs)
        empty = opened(f"{server.url}/empty")
        assert (empty.size, empty.head) == (0, b"")
        small = opened(f"{server.url}/small")
        assert (small.size, small.head) == (4, b"tiny")
        assert fetch(small, [Extent(1, 3)]) == [b"in"]
        assert server.requests == 3 - knobs.get("norange", 0)

    def test_several_ranges_are_one_request(self, server: RangeServer, opened: Any) -> None:
        source = opened(f"{server.url}/x.bin")
        assert source.limits.ranges == 100
        many = [Extent(at, at + 5) for at in range(100_000, 1_900_000, 1000)]
        assert fetch(source, many[:100]) == expected(many[:100])
        assert server.requests == 2
        assert max(len(text or "") for text in server.ranges) < 4096
        assert fetch(source, many) == expected(many)
        assert server.requests == 2 + len(many) // 100

    def test_a_header_of_the_farthest_ranges_is_short(self) -> None:
        digits = len(str(2**63 - 1))
        assert len("bytes=") + _http.RANGES * (2 * digits + 2) < 4096 + 8

    @pytest.mark.parametrize("limit", [0, 2])
    def test_without_several_ranges_they_go_one_by_one(
        self, server: RangeServer, opened: Any, limit: int
    ) -> None:
        server.set(max_ranges=limit)
        source = opened(f"{server.url}/x.bin")
        assert fetch(source) == expected()
        assert source.limits.ranges == 1
        assert server.requests == 2 + len(EXTENTS)
        assert fetch(source) == expected()
        assert server.requests == 2 + 2 * len(EXTENTS)

    def test_a_server_that_answers_the_first_of_several_is_asked_for_one(self, opened: Any) -> None:
        with Server({"/x.bin": CONTENT}, ranges="first") as server:
            source = opened(f"{server.url}/x.bin")
            assert fetch(source) == expected()
            assert source.limits.ranges == 1
            assert len(server.requests) == 1 + len(EXTENTS)

    def test_redirects_are_remembered(self, server: RangeServer, opened: Any) -> None:
        server.set(redirect=1)
        source = opened(f"{server.url}/x.bin")
        assert server.requests == 2
        for count in range(3, 7):
            assert fetch(source) == expected()
            assert server.requests == count

    def test_reopening_is_one_request(self, server: RangeServer, opened: Any) -> None:
        for knobs in ({}, {"weak": 1}):
            server.set(**knobs)
            first = opened(f"{server.url}/x.bin")
            known = Known(first.size, first.validator)
            again = opened(f"{server.url}/x.bin", known=known)
            assert (again.size, again.validator, again.head) == (*known, b"")
            assert server.requests == 2
            assert [request["status"] for request in server.control("log")] == [206, 304]
            assert fetch(again) == expected()
            other = opened(f"{server.url}/x.bin", known=Known(5, '"another"'))
            assert (other.size, other.head) == (len(CONTENT), CONTENT[:HEAD_BYTES])
            assert other.validator == known.validator

    def test_reopening_a_server_without_validators(self, server: RangeServer, opened: Any) -> None:
        server.set(noetag=1)
        again = opened(f"{server.url}/x.bin", known=Known(len(CONTENT), ""))
        assert again.head == CONTENT[:HEAD_BYTES]

    def test_what_is_not_there(self, server: RangeServer, opened: Any) -> None:
        with pytest.raises(DatasetNotFoundError, match="no such file"):
            opened(f"{server.url}/nope")
        assert server.requests == 1
        with pytest.raises(StoreError, match="cannot connect") as caught:
            opened("http://127.0.0.1:9/x.bin")
        assert not isinstance(caught.value, FileNotFoundError)

    def test_limits_are_measured(self, unknown: RangeServer, opened: Any) -> None:
        unknown.set(latency_ms=20, bw_conn=10_000_000)
        again = opened(f"{unknown.url}/x.bin")
        fetch(again, EXTENTS[2:3])
        assert again.limits.latency >= 0.02
        # how fast a body comes depends on the machine: test_server_state.py has a clock of its own
        assert again.limits.concurrency == most_connections()

    def test_connections_of_the_user_count(self, server: RangeServer, opened: Any) -> None:
        async def make(loop: Any, **options: Any) -> aiohttp.ClientSession:
            return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=7), **options)

        source = opened(f"{server.url}/x.bin", {"get_client": make})
        assert source.limits.concurrency == 7

    def test_a_busy_server_gets_fewer_requests(self, unknown: RangeServer, opened: Any) -> None:
        unknown.set(max_ranges=0, latency_ms=5)
        source = opened(f"{unknown.url}/wide.bin")
        fetch(source, [Extent(0, 1), Extent(9, 10)])  # one range at a time
        unknown.set(max_ranges=0, latency_ms=20, busy=8)
        starts = np.arange(0, WIDE - 7, WIDE // 300, dtype=np.int64)
        content = bytes(CONTENT[:251]) * (WIDE // 251 + 1)
        found: dict[int, bytes] = {}

        async def receive(numbers: Any, views: list[memoryview]) -> None:
            found.update(zip(numbers.tolist(), map(bytes, views), strict=True))

        source.run(RangeReader(source).read_data(starts, starts + 7, receive))
        assert found == {n: content[at : at + 7] for n, at in enumerate(starts.tolist())}
        log = [request["status"] for request in unknown.control("log")]
        assert log.count(206) >= 290  # the first ones came with opening
        assert 503 in log
        assert source.limits.concurrency < most_connections()
        assert pickle.loads(pickle.dumps(source)).limits == source.limits


class TestWhole:
    def test_one_download_serves_everything(self, server: RangeServer, opened: Any) -> None:
        server.set(norange=1)
        source = opened(f"{server.url}/x.bin")
        assert fetch(source) == expected()
        assert source.head == CONTENT[:HEAD_BYTES]
        assert server.requests == 1
        copy = pickle.loads(pickle.dumps(source))
        assert len(pickle.dumps(source)) < 10_000
        assert fetch(copy) == expected()  # many requests at once, one of which is read
        assert fetch(copy) == expected()
        copy.close()

    @pytest.mark.parametrize("knobs", [{}, {"nolen": 1}, {"nolen": 2}])
    def test_it_is_bounded(self, server: RangeServer, opened: Any, knobs: dict[str, int]) -> None:
        server.set(norange=1, **knobs)
        with pytest.raises(StoreError, match="does not serve byte ranges") as caught:
            opened(f"{server.url}/x.bin", max_whole=len(CONTENT) - 1)
        assert "max_whole" in str(caught.value)
        assert "simplecache::" in str(caught.value)
        assert opened(f"{server.url}/x.bin", max_whole=len(CONTENT)).size == len(CONTENT)

    def test_the_option_is_not_for_fsspec(self) -> None:
        options: dict[str, Any] = {"max_whole": 5, "headers": {}, "timeout": 3}
        limits = RequestLimits.take(options, "u")
        assert limits == RequestLimits(Timeout(whole=3), max_whole=5)
        assert options == {"headers": {}}
        assert RequestLimits.take({"timeout": None}, "u") == RequestLimits()
        for wrong in (-1, "5", True, 2.0):
            with pytest.raises(URLError, match="max_whole is a number of bytes"):
                RequestLimits.take({"max_whole": wrong}, "u")
        with pytest.raises(URLError, match="max_requests is a number of requests, not 0"):
            RequestLimits.take({"max_requests": 0}, "u")

    def test_pythons_server(self, root: Path, opened: Any) -> None:
        with python_server(root) as url:
            source = opened(f"{url}/x.bin")
            assert (source.size, fetch(source)) == (len(CONTENT), expected())
            assert opened(f"{url}/empty").size == 0
            with pytest.raises(DatasetNotFoundError):
                opened(f"{url}/nope")
            known = Known(source.size, source.validator)
            again = opened(f"{url}/x.bin", known=known)  # it knows no tags
            assert again.validator == source.validator
            assert fetch(again) == expected()


class TestOtherProcesses:
    def test_a_pickle_needs_no_request(self, server: RangeServer, opened: Any) -> None:
        source = opened(f"{server.url}/x.bin")
        fetch(source)
        before = server.requests
        copy = pickle.loads(pickle.dumps(source))
        assert (copy.size, copy.validator, copy.url) == (source.size, source.validator, source.url)
        assert copy.limits == source.limits
        assert server.requests == before
        assert fetch(copy) == expected()
        assert server.requests == before + 1
        copy.close()

    def test_a_pickle_knows_where_the_redirect_led(self, server: RangeServer, opened: Any) -> None:
        server.set(redirect=1)
        copy = pickle.loads(pickle.dumps(opened(f"{server.url}/x.bin")))
        fetch(copy)
        assert server.requests == 3
        copy.close()

    def test_a_pickle_refuses_a_file_that_changed(self, server: RangeServer, opened: Any) -> None:
        copy = pickle.loads(pickle.dumps(opened(f"{server.url}/x.bin")))
        server.change("/x.bin")
        with pytest.raises(StoreError, match="has changed"):
            fetch(copy)
        copy.close()

    def test_another_interpreter(self, server: RangeServer, opened: Any) -> None:
        data = pickle.dumps(opened(f"{server.url}/x.bin"))
        script = """
import pickle, sys
from nczarr_fsspec.transport.request import Extent
source = pickle.load(sys.stdin.buffer)
(data,) = source.run(source.fetch([Extent(9, 99)]))
sys.stdout.buffer.write(data)
"""
        command = [sys.executable, "-W", "error", "-c", script]
        done = subprocess.run(command, input=data, capture_output=True, check=True)
        assert done.stdout == CONTENT[9:99]
        assert done.stderr == b""

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_a_fork(self, server: RangeServer, opened: Any) -> None:
        source = opened(f"{server.url}/x.bin")
        assert fetch(source) == expected()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if fetch(source) == expected() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert fetch(source) == expected()


class TestSecrets:
    @pytest.fixture
    def two(self) -> Iterator[tuple[Server, Server]]:
        """A server that redirects to another host (port), and that."""
        with Server({"/x.bin": CONTENT}) as there:
            with Server({"/x.bin": CONTENT}, redirect=there.url) as here:
                yield here, there

    @pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
    @pytest.mark.parametrize(
        "options",
        [
            {"headers": {"X-Api-Key": "hunter22", "Authorization": "Bearer hunter22"}},
            {"headers": {"Cookie": "session=hunter22"}},
            {"cookies": {"session": "hunter22"}},
            {"client_kwargs": {"headers": {"X-Api-Key": "hunter22", "Authorization": "hunter22"}}},
            {"client_kwargs": {"cookies": {"session": "hunter22"}}},
            {"client_kwargs": {"auth": ("me", "hunter22")}},
            {"auth": ("me", "hunter22")},
            {"userinfo": True},
        ],
        ids=lambda options: "-".join(options) + ("-in" if "client_kwargs" in options else ""),
    )
    def test_they_stay_with_the_host(
        self, two: tuple[Server, Server], opened: Any, options: dict[str, Any]
    ) -> None:
        here, there = two
        url = f"{here.url}/x.bin"
        options = {**options, "client_kwargs": dict(options.get("client_kwargs", {}))}
        for place in (options, options["client_kwargs"]):
            if "auth" in place:
                place["auth"] = aiohttp.BasicAuth(*place["auth"])
        if options.pop("userinfo", False):
            url = url.replace("://", "://me:hunter22@")
        source = opened(url, options)
        assert fetch(source, EXTENTS[:1]) == expected(EXTENTS[:1])
        token = base64.b64encode(b"me:hunter22").decode()
        sent = f"{here.requests[0].target} {here.requests[0].headers}"
        assert "hunter22" in sent or token in sent
        assert (len(here.requests), len(there.requests)) == (1, 2)  # remembered
        for request in there.requests:
            sent = f"{request.target} {request.headers}"
            assert "hunter22" not in sent
            assert token not in sent
            assert request.headers["Accept-Encoding"] == "identity"
        assert "hunter22" not in f"{source} {source.url}"

    def test_on_the_same_host_they_are_kept(self, opened: Any) -> None:
        with Server({"/b/x.bin": CONTENT}, password="me:hunter22") as server:
            server.files["/x.bin"] = CONTENT
            url = f"{server.url}/x.bin".replace("://", "://me:hunter22@")
            assert opened(url).size == len(CONTENT)
            server.redirect = "/b"
            source = opened(url)
            assert fetch(source, EXTENTS[:1]) == expected(EXTENTS[:1])
            assert server.requests[-1].path == "/b/x.bin"

    @pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
    def test_ways_to_give_them(
        self, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Server({"/x.bin": CONTENT}, password="me:hunter22") as server:
            url = f"{server.url}/x.bin"
            token = base64.b64encode(b"me:hunter22").decode()
            (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter22\n")
            (tmp_path / "netrc").chmod(0o600)
            monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
            for options in (
                {"auth": aiohttp.BasicAuth("me", "hunter22")},
                {"headers": {"Authorization": f"Basic {token}"}},
                {"client_kwargs": {"trust_env": True}},
            ):
                assert opened(url, options).size == len(CONTENT)
            with pytest.raises(StoreError, match=r"401.*storage_options"):
                opened(url)

    def test_the_host_behind_a_redirect_that_wants_some(
        self, two: tuple[Server, Server], opened: Any
    ) -> None:
        here, there = two
        there.password = "me:hunter22"
        with pytest.raises(StoreError, match="401") as caught:
            opened(f"{here.url}/x.bin", {"headers": {"Authorization": "Bearer abc"}})
        assert "hunter22" not in str(caught.value)

    def test_where_a_redirect_led_may_expire(self, two: tuple[Server, Server], opened: Any) -> None:
        here, there = two
        source = opened(f"{here.url}/x.bin")
        with Server({"/x.bin": CONTENT}) as elsewhere:
            for gone in (403, 410, 404):
                there.files.clear()
                there.missing_status = gone
                here.redirect = elsewhere.url
                count = len(here.requests)
                assert fetch(source, EXTENTS[:1]) == expected(EXTENTS[:1])
                assert len(here.requests) == count + 1
                assert fetch(source, EXTENTS[:1]) == expected(EXTENTS[:1])
                assert len(here.requests) == count + 1
                there.files["/x.bin"] = CONTENT
                here.redirect = there.url
                elsewhere.files.clear()
                assert fetch(source, EXTENTS[:1]) == expected(EXTENTS[:1])
                elsewhere.files["/x.bin"] = CONTENT
            there.files.clear()
            elsewhere.files.clear()
            with pytest.raises(DatasetNotFoundError):
                fetch(source, EXTENTS[:1])

    def test_a_target_that_fails_is_forgotten(
        self, two: tuple[Server, Server], opened: Any
    ) -> None:
        here, there = two
        source = opened(f"{here.url}/x.bin")
        there.unavailable_every, there.relent = 1, False
        with Server({"/x.bin": CONTENT}) as elsewhere:
            here.redirect = elsewhere.url
            assert fetch(source, EXTENTS[:1]) == expected(EXTENTS[:1])

    @pytest.mark.parametrize(
        ("shown", "target", "hint"),
        [
            ("https://me:***@a.org/x", "https://a.org/login", ""),
            ("https://a.org/x", "https://a.org:443/login", ""),
            ("http://a.org/x", "https://a.org/x", "write https:// in the URL"),
            ("http://a.org/b.org", "https://b.org/x", "redirected to b.org, which"),
            ("http://a.org/x", "http://a.org:81/x", "redirected to http://a.org:81, which"),
            ("a.org", "http://a.org/x", ""),
        ],
    )
    def test_why_there_are_none(self, shown: str, target: str, hint: str) -> None:
        said = _answers.redirected(shown, URL(target))
        assert hint in said
        assert bool(said) == bool(hint)

    def test_params_are_part_of_the_url(self, server: RangeServer, opened: Any) -> None:
        server.set(redirect=1)
        source = opened(f"{server.url}/x.bin", {"params": {"part": "1"}})
        fetch(source)
        paths = [request["path"] for request in server.control("log")]
        assert paths == ["/x.bin?part=1", "/x.bin?sig=abc", "/x.bin?sig=abc"]

    def test_endless_redirects(self, opened: Any) -> None:
        with Server({}, redirect="/a") as server:
            server.redirect = f"{server.url}/a"
            with Server({}, redirect=server.url) as other:
                server.redirect = other.url
                with pytest.raises(StoreError, match="redirects"):
                    opened(f"{server.url}/x.bin")
                assert len(server.requests) + len(other.requests) <= 12


class TestNginx:
    def test_plain(self, real: Nginx, opened: Any) -> None:
        before = real.answered()
        source = opened(f"{real.plain}/x.bin")
        assert (source.size, source.head) == (len(CONTENT), CONTENT[:HEAD_BYTES])
        assert fetch(source) == expected()
        assert source.limits.ranges == 100
        lines = real.answered()[len(before) :]
        assert len(lines) == 2
        assert lines[0].startswith("206 bytes=0-65535 65536")
        assert lines[1].startswith("206 bytes=100000-100006,")

    def test_tls(self, real: Nginx, opened: Any) -> None:
        context = ssl.create_default_context(cafile=real.authority)
        source = opened(f"{real.tls}/x.bin", {"ssl": context})
        assert fetch(source) == expected()
        with pytest.raises(StoreError, match=r"cannot connect.*[Cc]ertificate"):
            opened(f"{real.tls}/x.bin")

    def test_small_and_empty_files(self, real: Nginx, opened: Any) -> None:
        assert opened(f"{real.plain}/empty").size == 0
        assert opened(f"{real.plain}/small").head == b"tiny"
        with pytest.raises(DatasetNotFoundError):
            opened(f"{real.plain}/nope")

    def test_passwords(self, real: Nginx, opened: Any) -> None:
        url = f"{real.plain}/locked/x.bin"
        with pytest.raises(StoreError, match="401"):
            opened(url)
        assert fetch(opened(url.replace("://", "://me:hunter22@"))) == expected()

    def test_reopening(self, real: Nginx, opened: Any, root: Path) -> None:
        os.utime(root / "x.bin", (1e9, 1e9))  # its tag is that of the second and the size
        first = opened(f"{real.plain}/x.bin")
        known = Known(first.size, first.validator)
        assert opened(f"{real.plain}/x.bin", known=known).head == b""
        by_time = Known(first.size, f"{email.utils.formatdate(1e9, usegmt=True)};{first.size}")
        # one that was replaced by an older one might be called the same
        assert opened(f"{real.plain}/x.bin", known=by_time).head == CONTENT[:HEAD_BYTES]

    def test_redirects(self, real: Nginx, opened: Any) -> None:
        assert fetch(opened(f"{real.plain}/moved/y")) == expected()

    def test_the_tls_context_stays_with_the_host(self, real: Nginx, opened: Any) -> None:
        """It may hold a client's certificate, or trust whom nobody else does."""
        context = ssl.create_default_context(cafile=real.authority)
        assert opened(f"{real.tls}/moved/y", {"ssl": context}).size == len(CONTENT)
        for trust in (context, False):
            with Server({}, redirect=real.tls) as here:
                with pytest.raises(StoreError, match=r"cannot connect.*(?i:certificate)"):
                    opened(f"{here.url}/x.bin", {"ssl": trust})

    def test_a_file_that_is_replaced(self, real: Nginx, opened: Any, root: Path) -> None:
        (root / "replaced").write_bytes(CONTENT)
        source = opened(f"{real.plain}/replaced")
        assert fetch(source) == expected()
        (root / "new").write_bytes(CONTENT[::-1])
        os.utime(root / "new", (10**9, 10**9))
        (root / "new").replace(root / "replaced")
        for extents in (EXTENTS, EXTENTS[:1]):
            with pytest.raises(StoreError, match="has changed while it was read"):
                fetch(source, extents)


class TestS3:
    @pytest.fixture
    def bucket(self, s3_server: S3Server) -> Iterator[Any]:
        fs = fsspec.filesystem("s3", **s3_server.signed())
        fs.pipe_file(f"{s3_server.private}/r/x.bin", CONTENT)
        fs.pipe_file(f"{s3_server.public}/r/x.bin", CONTENT)
        fs.pipe_file(f"{s3_server.private}/r/empty", b"")
        yield fs
        fs.clear_instance_cache()

    def test_signed(self, bucket: Any, s3_server: S3Server, opened: Any) -> None:
        source = opened(f"s3://{s3_server.private}/r/x.bin", s3_server.signed())
        assert (source.size, source.head) == (len(CONTENT), CONTENT[:HEAD_BYTES])
        assert source.validator.startswith('"')
        assert source.limits.ranges == 1
        assert fetch(source) == expected()
        copy = pickle.loads(pickle.dumps(source))
        assert fetch(copy) == expected()
        copy.close()

    def test_anonymous(self, bucket: Any, s3_server: S3Server, opened: Any) -> None:
        options = {"anon": True, "endpoint_url": s3_server.endpoint}
        assert fetch(opened(f"s3://{s3_server.public}/r/x.bin", options)) == expected()
        with pytest.raises(StoreError, match="choose credentials"):
            opened(f"s3://{s3_server.private}/r/x.bin", options)

    def test_what_is_not_there(self, bucket: Any, s3_server: S3Server, opened: Any) -> None:
        with pytest.raises(DatasetNotFoundError, match="no such object"):
            opened(f"s3://{s3_server.private}/r/nope", s3_server.signed())
        with pytest.raises(DatasetNotFoundError, match="no such bucket"):
            opened("s3://nobucket/r/nope", s3_server.signed())

    def test_empty(self, bucket: Any, s3_server: S3Server, opened: Any) -> None:
        source = opened(f"s3://{s3_server.private}/r/empty", s3_server.signed())
        assert (source.size, source.head) == (0, b"")

    def test_reopening(self, bucket: Any, s3_server: S3Server, opened: Any) -> None:
        url = f"s3://{s3_server.private}/r/x.bin"
        first = opened(url, s3_server.signed())
        known = Known(first.size, first.validator)
        again = opened(url, s3_server.signed(), known=known)
        assert (again.size, again.validator, again.head) == (*known, b"")
        assert fetch(again) == expected()
        other = opened(url, s3_server.signed(), known=Known(4, '"another"'))
        assert (other.size, other.validator) == known

    def test_an_object_that_changes_is_refused(
        self, bucket: Any, s3_server: S3Server, opened: Any
    ) -> None:
        path = f"{s3_server.private}/r/changing"
        for new in (CONTENT[::-1], b"short"):
            bucket.pipe_file(path, CONTENT)
            source = opened(f"s3://{path}", s3_server.signed())
            bucket.pipe_file(path, new)
            with pytest.raises(StoreError, match="changed while it was read"):
                fetch(source, EXTENTS[:1])

    def test_the_same_bucket_over_plain_http(
        self, bucket: Any, s3_server: S3Server, opened: Any
    ) -> None:
        source = opened(f"{s3_server.endpoint}/{s3_server.public}/r/x.bin")
        assert fetch(source) == expected()


class TestOtherFilesystems:
    def test_a_cache_in_front(self, server: RangeServer, opened: Any, tmp_path: Path) -> None:
        source = opened(
            f"simplecache::{server.url}/x.bin", {"simplecache": {"cache_storage": str(tmp_path)}}
        )
        assert (source.size, fetch(source)) == (len(CONTENT), expected())

    def test_memory(self, opened: Any) -> None:
        fs = fsspec.filesystem("memory")
        fs.pipe_file("/ranges/x.bin", CONTENT)
        source = opened("memory://ranges/x.bin")
        assert isinstance(source, LocalBytes)
        assert (source.size, fetch(source)) == (len(CONTENT), expected())
        assert source.head == CONTENT[:HEAD_BYTES]
        with pytest.raises(StoreError, match="beyond the end"):
            source.read(0, len(CONTENT) + 1)
        for missing in ("memory://ranges/nope", "memory://ranges"):
            with pytest.raises(DatasetNotFoundError):
                opened(missing)
        fs.rm("/ranges", recursive=True)

    def test_a_filesystem_of_anybody(self, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        class Flaky(fsspec.AbstractFileSystem):
            protocol = "flaky"
            cachable = False
            calls = 0

            def info(self, path: str, **options: Any) -> dict[str, Any]:
                if path != "x":
                    raise FileNotFoundError(path)
                return {"name": path, "size": len(CONTENT), "type": "file", "mtime": 12.5}

            def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
                Flaky.calls += 1
                if Flaky.calls % 3 == 0:
                    raise ConnectionResetError("gone")
                data = CONTENT[start:end]
                return data[:-1] if Flaky.calls % 3 == 1 else data

        source = open_source(Flaky(), "x")
        assert (source.size, source.validator) == (len(CONTENT), f"mtime=12.5;{len(CONTENT)}")
        assert fetch(source, EXTENTS[:1]) == expected(EXTENTS[:1])
        with pytest.raises(DatasetNotFoundError):
            open_source(Flaky(), "y")
        source.close()


class TestLocal:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "x.bin"
        path.write_bytes(CONTENT)
        return path

    def test_what_is_behind_the_end(self, path: Path) -> None:
        source, size = open_local(path), len(CONTENT)
        for start in (0, size - 5, size):
            with pytest.raises(StoreError, match=rf"end of the file \({size} bytes\)"):
                source.read(start, size + 1)
            with pytest.raises(StoreError, match=rf"end of the file \({size} bytes\)"):
                source.read_many([0, start], [5, size + 1])
            with pytest.raises(StoreError, match=rf"end of the file \({size} bytes\)"):
                source.read_into(start, memoryview(bytearray(size - start + 1)))

    def test_reading(self, path: Path, opened: Any) -> None:
        for source in (open_local(path), opened(f"file://{path}"), opened(str(path))):
            assert isinstance(source, LocalFileBytes)
            assert (source.size, fetch(source)) == (len(CONTENT), expected())
            assert source.head == CONTENT[:HEAD_BYTES]
            source.close()
            assert fetch(source) == expected()
            copy = pickle.loads(pickle.dumps(source))
            assert (copy.size, copy.validator, copy.head) == (source.size, source.validator, b"")
            assert fetch(copy) == expected()

    def test_the_end(self, path: Path) -> None:
        with pytest.raises(StoreError, match=r"end of the file \(2008000 bytes\)"):
            open_local(path).read(10, len(CONTENT) + 1)

    @pytest.mark.parametrize("how", ["written", "replaced", "shortened"])
    def test_a_file_that_changes(self, path: Path, how: str) -> None:
        source = open_local(path)
        text = pickle.dumps(source)
        if how == "replaced":
            other = path.with_name("other")
            other.write_bytes(CONTENT[::-1])
            other.replace(path)
            assert fetch(source) == expected()  # the old one, which is still open
            source.close()
        elif how == "shortened":
            os.truncate(path, 10)
        else:
            with path.open("r+b") as file:
                file.write(b"!")
            os.utime(path, ns=(1, 1))
        for stale in (source, pickle.loads(text)):
            with pytest.raises(StoreError, match="has changed since it was opened"):
                stale.read(0, 4)

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetNotFoundError):
            open_local(tmp_path / "nope")
        with pytest.raises(DatasetNotFoundError, match="a directory"):
            open_local(tmp_path)
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(StoreError, match="not a regular file"):
            open_local(tmp_path / "fifo")

    def test_file_objects(self, path: Path) -> None:
        with path.open("rb") as file:
            source = open_file_object(file)
            assert (source.url, source.size, fetch(source)) == (
                str(path),
                len(CONTENT),
                expected(),
            )
            source.close()
            assert not file.closed
        with pytest.raises(StoreError, match="closed file"):
            source.read(0, 1)
        memory = open_file_object(io.BytesIO(CONTENT), "here")
        assert fetch(memory) == expected()
        assert memory.url == "here"
        with pytest.raises(StoreError, match="beyond the end"):
            memory.read(0, len(CONTENT) + 1)

    def test_file_objects_that_return_less(self) -> None:
        class Slow(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                return super().read(min(size or 0, 7))

        assert fetch(FileObjectBytes(Slow(CONTENT)), EXTENTS[:1]) == expected(EXTENTS[:1])

    def test_no_thread_moves_a_file_object_before_it_was_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch_locks(monkeypatch)
        held: set[bool] = set()

        class Watched(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                held.add(lock_is_held())
                return super().read(size)

        assert fetch(FileObjectBytes(Watched(CONTENT))) == expected()
        assert held == {True}

    def test_text_files(self) -> None:
        with pytest.raises(StoreError, match="binary mode"):
            open_file_object(io.StringIO("text"))  # type: ignore[arg-type]


def body_of(parts: list[tuple[int, bytes]], size: int, preamble: bytes = b"") -> bytes:
    """A ``multipart/byteranges`` body as nginx (with the preamble) and Apache write it."""
    pieces = [preamble]
    for start, data in parts:
        stated = f"Content-Range: bytes {start}-{start + len(data) - 1}/{size}"
        pieces += [b"--MARK\r\nContent-Type: a/b\r\n", stated.encode(), b"\r\n\r\n", data, b"\r\n"]
    return b"".join([*pieces, b"--MARK--\r\n"])


class TestMultipart:
    @given(
        st.lists(st.tuples(st.integers(0, 10**12), st.binary(min_size=1)), min_size=1),
        st.sampled_from([b"", b"\r\n"]),
    )
    def test_any_parts(self, parts: list[tuple[int, bytes]], preamble: bytes) -> None:
        found = bodies.multipart_parts(body_of(parts, 10**13, preamble), b"MARK")
        assert found is not None
        assert [(where.start, bytes(data)) for where, data in found] == parts
        assert {where.size for where, _ in found} == {10**13}

    def test_parts_of_another_length_than_they_say(self) -> None:
        whole = body_of([(0, b"abc"), (10, b"d" * 50)], 100)
        for wrong in (b"bytes 10-58/", b"bytes 10-60/"):
            assert bodies.multipart_parts(whole.replace(b"bytes 10-59/", wrong), b"MARK") is None
        # where the end would be, data look like one
        whole = body_of([(10, b"d" * 20 + b"--" + b"d" * 28)], 100)
        assert (
            bodies.multipart_parts(whole.replace(b"bytes 10-59/", b"bytes 10-21/"), b"MARK") is None
        )

    def test_data_may_look_like_boundaries(self) -> None:
        data = b"\r\n--MARK\r\n\r\n--MARK--\r\n"
        found = bodies.multipart_parts(body_of([(5, data)], 100), b"MARK")
        assert found is not None
        assert bytes(found[0][1]) == data

    @given(st.data())
    def test_damage_is_noticed_or_harmless(self, data: st.DataObject) -> None:
        """What still parses has parts of the stated length; nothing raises or runs on."""
        whole = body_of([(0, b"abc"), (10, b"d" * 50)], 100)
        kind = data.draw(st.sampled_from(["cut", "change", "insert"]))
        at = data.draw(st.integers(0, len(whole) - 1))
        noise = data.draw(st.binary(min_size=1, max_size=3))
        broken = {
            "cut": whole[:at],
            "change": whole[:at] + noise + whole[at + len(noise) :],
            "insert": whole[:at] + noise + whole[at:],
        }[kind]
        for where, piece in bodies.multipart_parts(broken, b"MARK") or []:
            assert len(piece) == where.stop - where.start
        if kind == "cut" and at < len(whole) - 4:
            assert bodies.multipart_parts(broken, b"MARK") is None

    @pytest.mark.parametrize(
        ("text", "mark"),
        [
            ("multipart/byteranges; boundary=abc", b"abc"),
            ('Multipart/ByteRanges; charset=x; boundary="a b"', b"a b"),
            ("multipart/byteranges", None),
            ("application/octet-stream; boundary=abc", None),
            ("", None),
        ],
    )
    def test_boundaries(self, text: str, mark: bytes | None) -> None:
        assert bodies.multipart_boundary(text) == mark

    def test_extents_are_cut_out(self) -> None:
        found = bodies.multipart_parts(body_of([(100, b"0123456789"), (0, b"ab")], 200), b"MARK")
        assert found is not None
        assert bytes(bodies.cut_from_parts(found, Extent(102, 105)) or b"") == b"234"
        assert bytes(bodies.cut_from_parts(found, Extent(0, 2)) or b"") == b"ab"
        assert bodies.cut_from_parts(found, Extent(109, 111)) is None
        assert bodies.cut_from_parts(found, Extent(50, 60)) is None


async def in_pieces(body: bytes, length: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), length):
        yield body[at : at + length]


class TestBodies:
    @pytest.mark.parametrize("count", [0, 1, LARGE - 1, LARGE, len(CONTENT)])
    def test_pieces_become_one_body(self, count: int) -> None:
        body = asyncio.run(_bodies.exactly(in_pieces(CONTENT[:count], 10_007), count))
        assert body == CONTENT[:count]
        assert body.readonly

    @pytest.mark.parametrize("count", [1000, 1_000_000])
    def test_other_lengths_are_noticed(self, count: int) -> None:
        for length, reason in ((count - 1, f"has {count - 1} of {count}"), (count + 1, "has more")):
            with pytest.raises(TransientError, match=reason):
                asyncio.run(_bodies.exactly(in_pieces(CONTENT[:length], 10_007), count))

    def test_large_ones_are_not_in_the_allocators_heap(
        self, server: RangeServer, opened: Any
    ) -> None:
        """They would stay in it when they are let go, beside a result that grows."""
        source = opened(f"{server.url}/x.bin")
        small = source.run(source.fetch([Extent(70_000, 70_009)]))
        large = source.run(source.fetch([Extent(100_000, 1_900_000)]))
        assert isinstance(small[0].obj, bytearray)
        assert isinstance(large[0].obj, mmap.mmap)
        pages = weakref.ref(large[0].obj)
        large.clear()
        assert pages() is None

    def test_no_memory_is_no_failure_of_the_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object, **__: object) -> mmap.mmap:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        monkeypatch.setattr(mmap, "mmap", refused)
        body = asyncio.run(_bodies.exactly(in_pieces(CONTENT, 10_007), len(CONTENT)))
        assert body == CONTENT  # there is some elsewhere
        with pytest.raises(MemoryError):
            _buffer.buffer(1 << 60)


FIRST = {"ETag": '"a"', "Last-Modified": "Mon"}


class TestVersion:
    @pytest.mark.parametrize(
        ("first", "later", "size", "same"),
        [
            (FIRST, FIRST, None, True),
            (FIRST, {"ETag": 'W/"a"'}, None, True),
            (FIRST, {"ETag": '"a"', "Last-Modified": "Tue"}, 9, True),
            (FIRST, {"ETag": '"b"', "Last-Modified": "Mon"}, 9, False),
            (FIRST, {"Last-Modified": "Mon"}, None, True),
            (FIRST, {"Last-Modified": "Tue"}, 9, False),
            (FIRST, {}, 9, True),
            (FIRST, {}, None, False),
            (FIRST, FIRST, 8, False),
            ({"Last-Modified": "Mon"}, {"ETag": '"a"', "Last-Modified": "Tue"}, 9, False),
            ({"Last-Modified": "Mon"}, {"ETag": '"a"'}, 9, True),
            ({}, {}, None, True),
            ({}, {}, 8, False),
            ({}, {"ETag": '"a"'}, None, True),
        ],
    )
    def test_what_counts_as_the_same(
        self, first: dict[str, str], later: dict[str, str], size: int | None, same: bool
    ) -> None:
        version, found = FileVersion.of(first, 9), FileVersion.of(later, size)
        if same:
            version.agreeing(found, "u")
        else:
            with pytest.raises(StoreError, match=r"has changed|no longer says"):
                version.agreeing(found, "u")

    def test_what_turns_up_later_counts_from_then_on(self) -> None:
        version = FileVersion().agreeing(FileVersion.of({"ETag": '"a"'}, None), "u")
        with pytest.raises(StoreError):
            version.agreeing(FileVersion.of({"ETag": '"b"'}, None), "u")

    @pytest.mark.parametrize(
        ("modified", "date", "telling"),
        [
            ("Sat, 21 Nov 2026 20:00:00 GMT", "Sat, 21 Nov 2026 20:01:00 GMT", True),
            ("Sat, 21 Nov 2026 20:00:00 GMT", "Sat, 21 Nov 2026 20:00:59 GMT", False),
            ("Sat, 21 Nov 2026 20:00:00 GMT", "Sat, 21 Nov 2026 19:00:00 GMT", False),
            ("Sat, 21 Nov 2026 20:00:00 GMT", "Sat, 21 Nov 2026 23:00:00", False),
            ("Sat, 21 Nov 2026 20:00:00 GMT", "", False),
            ("Mon", "Tue", False),
            ("", "Sat, 21 Nov 2026 20:01:00 GMT", False),
        ],
    )
    def test_a_time_tells_versions_apart_if_it_is_past(
        self, modified: str, date: str, telling: bool
    ) -> None:
        headers = {"Last-Modified": modified, "Date": date}
        version = FileVersion.of(headers, 9)
        assert version.validator == (f"{modified};9" if telling else "")
        again = FileVersion.known(9, f"{modified};9")
        assert again.validator == (f"{modified};9" if modified else "")
        assert FileVersion.of({"ETag": '"a"', **headers}, 9).validator == ('"a"' if telling else "")


class TestThrottle:
    @staticmethod
    def run(throttle: Throttle, answers: list[bool]) -> int:
        """One request for each, all at once, which is told "busy" if False; most at a time."""
        now = most = 0

        async def attempt(answers: list[bool], left: float) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            if not answers.pop():
                raise TransientError("busy", busy=True)

        async def go() -> None:
            await asyncio.gather(*(throttle.retried(partial(attempt, [True, one] if not one
                                   else [one]), "u") for one in answers))  # fmt: skip

        asyncio.run(go())
        return most

    def test_one_cut_for_all_that_were_sent_before(self) -> None:
        throttle = Throttle(64)
        assert self.run(throttle, [False] * 20) == 20
        assert throttle.limit in (32, 33)
        assert self.run(throttle, [True] * 100) <= 40

    @pytest.mark.parametrize("capacity", [1, 8, 50])
    def test_it_finds_what_a_server_takes(self, capacity: int) -> None:
        """A busy server refuses the first of many requests, few of their next tries."""
        most, seconds = 192, 0.005
        throttle = Throttle(most)
        busy = refused = 0

        async def attempt(left: float) -> None:
            nonlocal busy, refused
            busy += 1
            try:
                too_many = busy > capacity
                await asyncio.sleep(seconds)
            finally:
                busy -= 1
            if too_many:
                refused += 1
                raise TransientError("busy", busy=True)

        async def go() -> None:
            await asyncio.gather(*(throttle.retried(attempt, "u") for _ in range(600)))

        run(go())
        assert most - capacity <= refused < 3 * most
        assert throttle.limit < max(2 * capacity, 20)

    def test_it_recovers_slowly_and_not_beyond(self) -> None:
        throttle = Throttle(64)
        throttle.cap(4)
        self.run(throttle, [False])
        assert throttle.limit == 2
        self.run(throttle, [True] * (RECOVERY - 2))
        assert throttle.limit == 2
        self.run(throttle, [True])
        assert throttle.limit == 3
        self.run(throttle, [True] * 10 * RECOVERY)
        assert throttle.limit == 4

    def test_one_request_is_always_allowed(self) -> None:
        throttle = Throttle(2)
        for _ in range(3):
            self.run(throttle, [False])
        assert throttle.limit == 1

    def test_a_refused_request_waits_while_others_are_answered(self) -> None:
        throttle = Throttle(64)
        tries = 0

        async def refused(times: int, left: float) -> str:
            nonlocal tries
            tries += 1
            if tries <= times:
                raise TransientError("busy", busy=True)
            return "served"

        async def answered(left: float) -> None:
            await asyncio.sleep(0)

        async def others(count: int) -> None:
            for _ in range(count):
                await throttle.retried(answered, "u")

        async def go(times: int, count: int) -> str | None:
            nonlocal tries
            tries = 0
            served, *_ = await asyncio.gather(
                throttle.retried(partial(refused, times), "u"), *(others(count) for _ in range(8))
            )
            return served

        assert asyncio.run(go(3 * _policy.ATTEMPTS, 100)) == "served"
        with pytest.raises(StoreError, match="busy"):
            asyncio.run(go(10**6, 100))
        assert _policy.ATTEMPTS < tries < 1000
        with pytest.raises(StoreError, match="tried 6 times"):
            asyncio.run(go(6, 0))

    def test_those_who_give_up_leave_room(self) -> None:
        throttle = Throttle(4)

        async def busy(left: float) -> None:
            raise TransientError("busy", busy=True)

        async def answered(left: float) -> str:
            return "served"

        async def go() -> None:
            tasks = [asyncio.ensure_future(throttle.retried(busy, "u")) for _ in range(8)]
            for _ in range(9):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            served = [throttle.retried(answered, "u") for _ in range(4)]
            assert await asyncio.wait_for(asyncio.gather(*served), 60) == ["served"] * 4

        asyncio.run(go())


@pytest.mark.slow
def test_many_at_once(server: RangeServer, opened: Any) -> None:
    server.set(latency_ms=50)
    source = opened(f"{server.url}/x.bin")
    extents = [Extent(at, at + 700) for at in range(0, len(CONTENT) - 700, 997)]

    async def go() -> list[Any]:
        return await asyncio.gather(*(source.fetch([extent]) for extent in extents))

    assert [bytes(data) for (data,) in source.run(go())] == expected(extents)
    assert server.control("stats")["max_inflight"] > 1  # how many depends on the machine
