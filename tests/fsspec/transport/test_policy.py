"""How long requests may take, in virtual time, and how often they are tried."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Self

import aiohttp
import pytest
from fsspec.implementations.http import HTTPFileSystem

from nczarr_fsspec import FsspecStore, StoreError, URLError
from nczarr_fsspec.place import Place
from nczarr_fsspec.transport import policy as _policy
from nczarr_fsspec.transport import throttle
from nczarr_fsspec.transport.policy import ATTEMPTS, WINDOW, Timeout, most_connections
from nczarr_fsspec.transport.request import Request, TransientError
from nczarr_fsspec.transport.s3form import Form
from nczarr_fsspec.transport.throttle import Throttle
from tests.support.servers.virtualhttp import Connector, Make, Reply, Session, empty, every, nothing
from tests.support.servers.virtualnet import run

LIMITS = Timeout()
#: what waits between tries take at most
WAITS = _policy.FIRST_WAIT * 2**ATTEMPTS


def silent(*_: str) -> Reply:
    return Reply(1e9, nothing, 200)


def silent_body(*_: str) -> Reply:
    return Reply(0, nothing, 200)


def drip(*_: str) -> Reply:
    return Reply(0, every(1, b"x"), 200)


def steady(*_: str) -> Reply:
    """Fast enough, and without an end."""
    return Reply(0, every(1, bytes(2 * int(LIMITS.rate))), 200)


def busy(*_: str) -> Reply:
    return Reply(0, empty, 503)


async def over_http(session: Session, **options: Any) -> None:
    async def get_client(**_: Any) -> Any:
        return session

    given = {"get_client": get_client, "skip_instance_cache": True, **options}
    store = Place.of("http://h/d", given).open().data
    assert isinstance(store, FsspecStore)
    try:
        await store.get("x")
    finally:
        store.transport.shared.fs._session = None


async def over_s3(session: Session, **options: Any) -> None:
    form = Form(session, "http://h/b/", {}, None, None)  # type: ignore[arg-type]
    limits = Timeout.parse(options.get("timeout", LIMITS), "u")
    attempt = partial(form.send, "x", Request("b/x", "s3://b/x"), limits)
    await Throttle(4, limits).retried(attempt, "s3://b/x")


def given_up(read: Any, make: Make, **options: Any) -> tuple[str, float, int]:
    """The error, the virtual seconds until it came, and how many requests were sent."""
    session = Session(make)

    async def go() -> str:
        with pytest.raises(StoreError) as caught:
            await read(session, **options)
        return str(caught.value)

    text, seconds = run(go())
    return text, seconds, session.requests


@pytest.mark.parametrize("read", [over_http, over_s3])
class TestGivenUp:
    """The worst cases that docs/remote.md states; silence is in the table of faults."""

    def test_a_body_without_end(self, read: Any) -> None:
        text, seconds, requests = given_up(read, steady)
        assert "the request took too long" in text
        assert requests == 1
        assert seconds == pytest.approx(LIMITS.whole, abs=1)

    def test_a_busy_server(
        self, read: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(throttle, "BETWEEN_MESSAGES", 0)
        with caplog.at_level(logging.INFO, "nczarr_fsspec.transport"):
            text, seconds, requests = given_up(read, busy)
        assert "HTTP status 503" in text
        assert requests == ATTEMPTS
        assert seconds <= WAITS
        assert "HTTP status 503 OK; trying again in" in caplog.text
        assert re.search(r"HTTP status 503.*; \d+ requests at a time from now on", caplog.text)
        # without logging configured, Python shows warnings on standard error, and these not
        assert {record.levelno for record in caplog.records} == {logging.INFO}

    def test_seconds_for_the_whole(self, read: Any) -> None:
        for make in (silent, silent_body, drip, steady):
            text, seconds, _ = given_up(read, make, timeout=5)
            assert "the request took too long" in text
            assert seconds == pytest.approx(5, abs=0.1)

    def test_each_limit(self, read: Any) -> None:
        limits = {"connect": 1, "first_byte": 2, "rate": 0.5}
        _, seconds, _ = given_up(read, silent, timeout=limits)
        assert 6 <= seconds <= 7
        text, seconds, _ = given_up(read, drip, timeout={**limits, "whole": 500})
        assert "the request took too long" in text  # one byte a second is enough
        assert seconds == pytest.approx(500, abs=1)


def test_what_is_slow_but_comes() -> None:
    async def speak(reply: Reply) -> AsyncIterator[bytes]:
        for _ in range(40):
            await asyncio.sleep(WINDOW * 0.9)
            yield bytes(int(LIMITS.rate * WINDOW) + 1)

    session = Session(lambda *_: Reply(LIMITS.first_byte, speak, 200))
    _, seconds = run(over_http(session))
    assert session.requests == 1
    assert seconds > 1000


def test_those_that_wait_are_given_up_together() -> None:
    """As many requests as a tree has at first: no longer than one, whatever the queue."""

    async def refused(left: float) -> None:
        raise TransientError("HTTP status 503", busy=True)

    async def go(count: int) -> list[Any]:
        throttle = Throttle(8)
        waiting = [throttle.retried(refused, str(n)) for n in range(count)]
        return await asyncio.gather(*waiting, return_exceptions=True)

    _, alone = run(go(1))
    for count in (8, 50):
        errors, seconds = run(go(count))
        assert all(isinstance(error, StoreError) for error in errors)
        assert alone <= 8
        assert seconds <= WAITS


def test_a_wait_for_a_connection_is_not_a_wait_for_the_server() -> None:
    """Hosts with a throttle each share the connections of one session."""
    free = asyncio.Semaphore(2)

    class Taking(Reply):
        async def begin(self) -> Self:
            await free.acquire()
            return await super().begin()

        async def __aexit__(self, *error: object) -> None:
            free.release()

    def make(*_: str) -> Reply:
        return Taking(LIMITS.first_byte, empty)

    async def get_client(**_: Any) -> Any:
        return session

    async def go() -> list[bytes | None]:
        return await asyncio.gather(*(store.get(str(n)) for n in range(5) for store in stores))

    session = Session(make)
    session.connector = Connector(limit=2)
    fs = HTTPFileSystem(get_client=get_client, skip_instance_cache=True)
    stores = [FsspecStore(fs, f"http://{host}/d") for host in ("one", "two")]
    found, seconds = run(go())
    assert found == [b""] * 10
    assert session.requests == 10  # none is tried again
    assert seconds == pytest.approx(5 * LIMITS.first_byte)
    for store in stores:
        store.transport.shared.fs._session = None


class TestOption:
    def test_forms(self) -> None:
        assert Timeout.parse(5, "u") == Timeout(whole=5)
        assert Timeout.parse({"rate": None, "first_byte": 2.5}, "u") == Timeout(
            rate=0, first_byte=2.5
        )
        assert Timeout.parse({"whole": None}, "u").whole == math.inf
        theirs = aiohttp.ClientTimeout(total=7, sock_connect=3, sock_read=4)
        assert Timeout.parse(theirs, "u") == Timeout(connect=3, first_byte=4, whole=7)

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ("soon", "timeout whole is a number of seconds, not 'soon'"),
            (-1, "not -1"),
            (0, "not 0"),
            (math.nan, "not nan"),
            (True, "not True"),
            ({"rate": -5}, "a rate in bytes per second, not -5"),
            ({"read": 5, "connect": 1}, "timeout has no read; it has connect, first_byte, rate"),
        ],
    )
    def test_mistakes(self, value: Any, reason: str) -> None:
        with pytest.raises(URLError) as caught:
            Place.of("http://h/d", {"timeout": value}).open()
        assert reason in str(caught.value)

    def test_the_same_for_s3(self) -> None:
        store = (
            Place.of("s3://b/d#mode=nczarr", {"timeout": {"connect": 3, "first_byte": 4}})
            .open()
            .data
        )
        assert isinstance(store, FsspecStore)
        shared = store.transport.shared
        assert shared.timeout == Timeout(connect=3, first_byte=4)
        assert shared.fs.config_kwargs["connect_timeout"] == 3
        assert shared.fs.config_kwargs["read_timeout"] == 4
        assert shared.fs.retries == 1

    def test_what_a_filesystem_was_given(self) -> None:
        import s3fs
        from fsspec.implementations.http import HTTPFileSystem

        from nczarr_fsspec.transport.s3client import Connections

        config = {"connect_timeout": 3, "read_timeout": 4, "retries": {"max_attempts": 9}}
        fs = s3fs.S3FileSystem(config_kwargs=config, anon=True, skip_instance_cache=True)
        files = FsspecStore(fs, "b/d").transport
        assert files.timeout == Timeout(connect=3, first_byte=4)
        assert files.shared.fs.config_kwargs == {
            "max_pool_connections": most_connections(),
            "http_session_cls": Connections,
            **config,
        }
        http = HTTPFileSystem(timeout=9, skip_instance_cache=True)
        assert FsspecStore(http, "http://h/d").transport.timeout == Timeout(whole=9)


def test_only_a_host_that_has_answered_may_come_back() -> None:
    gone = TransientError("nobody listens", absent=True)

    async def read(throttle: Throttle, *outcomes: object) -> object:
        left = iter(outcomes)

        async def attempt(seconds: float) -> object:
            outcome = next(left)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return await throttle.retried(attempt, "u")

    async def go() -> object:
        throttle = Throttle(1)
        with pytest.raises(StoreError, match=r"u: nobody listens$"):
            await read(throttle, gone)
        await read(throttle, 1)
        return await read(throttle, gone, gone, 2)

    assert run(go())[0] == 2


@pytest.mark.parametrize(("asked", "tries"), [(59.0, 6), (61.0, 1)])
def test_how_long_a_pause_may_be(asked: float, tries: int) -> None:
    """A server that asks for an hour gets none: the program would stand still."""
    count = 0

    async def attempt(left: float) -> None:
        nonlocal count
        count += 1
        raise TransientError("busy", asked, busy=False)

    timeout = Timeout(whole=1e6)
    with pytest.raises(StoreError, match=rf"busy.*\(tried {tries} times\)"):
        run(Throttle(1, timeout).retried(attempt, "x"))
    assert count == tries
