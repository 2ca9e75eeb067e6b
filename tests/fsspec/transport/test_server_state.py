"""What requests learn of the way to a file, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fsspec.implementations.http import HTTPFileSystem
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.transport.http import HTTPTransport
from nczarr_fsspec.transport.policy import Timeout
from nczarr_fsspec.transport.request import FASTEST, Extent, Request, ServerState
from nczarr_fsspec.transport.s3form import Form
from tests.support.servers.virtualhttp import Reply, Session, serving
from tests.support.servers.virtualnet import run

MB = 1_000_000
CONTENT = bytes(4 * MB)


async def body(count: int, seconds: float) -> memoryview:
    await asyncio.sleep(seconds)
    return memoryview(bytes(count))


def learnt(*bodies: tuple[int, float]) -> float | None:
    """Return the bandwidth after these bodies (bytes, seconds), one after the other."""
    server = ServerState(1, 0)

    async def go() -> None:
        for count, seconds in bodies:
            assert len(await server.timed(body(count, seconds))) == count

    run(go())
    return server.bandwidth


class TestBandwidth:
    @given(count=st.integers(MB, 5 * MB), rate=st.floats(1e3, 5e8))
    def test_it_is_that_of_a_large_body(self, count: int, rate: float) -> None:
        assert learnt((count, count / rate)) == pytest.approx(rate)

    def test_the_most_seen_counts(self) -> None:
        assert learnt((MB, 1), (MB, 0.1), (MB, 0.5)) == pytest.approx(10 * MB)

    def test_what_took_no_time_was_waiting_here(self) -> None:
        assert learnt((MB, 0)) == FASTEST

    def test_small_bodies_tell_only_if_they_are_slow(self) -> None:
        assert learnt((1000, 5)) is None
        assert learnt((50_000, 0.001)) is None
        assert learnt((50_000, 0.1)) == pytest.approx(500_000)

    def test_bodies_that_share_the_line_do_not_make_it_slow(self) -> None:
        server = ServerState(1, 0)

        async def go() -> None:
            await asyncio.gather(*(server.timed(body(MB, 1)) for _ in range(4)))

        run(go())
        assert server.bandwidth == 50 * MB

    def test_a_body_that_fails_tells_nothing(self) -> None:
        server = ServerState(1, 0)

        async def broken() -> memoryview:
            await asyncio.sleep(1)
            raise OSError("cut")

        async def go() -> None:
            with pytest.raises(OSError, match="cut"):
                await server.timed(broken())
            assert server.bandwidth is None
            await server.timed(body(MB, 1))

        run(go())
        assert server.bandwidth == pytest.approx(MB)  # alone, for the other is over


async def over_http(session: Session, server: ServerState, extents: list[Extent]) -> None:
    async def get_client(**_: Any) -> Any:
        return session

    transport = HTTPTransport(HTTPFileSystem(get_client=get_client, skip_instance_cache=True))
    try:
        for extent in extents:
            await transport.fetch(Request("http://h/d/x", "u", [extent], server=server))
    finally:
        transport.shared.fs._session = None


async def over_s3(session: Session, server: ServerState, extents: list[Extent]) -> None:
    form = Form(session, "http://h/d/", {}, None, None)  # type: ignore[arg-type]
    for extent in extents:
        await form.send("x", Request("d/x", "u", [extent], server=server), Timeout(), 60)


@pytest.mark.parametrize("read", [over_http, over_s3])
class TestTransports:
    def test_latency_and_bandwidth(self, read: Any) -> None:
        session = Session(serving({"/d/x": CONTENT}, latency=0.02, rate=10e6))
        server = ServerState(1, 0)
        _, seconds = run(read(session, server, [Extent(0, 2 * MB)]))
        assert server.latency == pytest.approx(0.02)
        assert server.bandwidth == pytest.approx(10e6)
        assert seconds == pytest.approx(0.22)

    def test_the_least_latency_counts(self, read: Any) -> None:
        waits = iter([0.5, 0.05, 0.2])

        def make(path: str, asked: str) -> Reply:
            return serving({"/d/x": CONTENT}, next(waits))(path, asked)

        server = ServerState(1, 0)
        run(read(Session(make), server, [Extent(0, 10)] * 3))
        assert server.latency == pytest.approx(0.05)
