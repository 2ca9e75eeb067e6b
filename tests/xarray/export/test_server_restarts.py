"""S3 is killed and started again while a dataset is read or written; it stays old or new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec.errors import NCZarrError, StoreError
from tests.support.faults.killing import SCENARIOS, Target, ours
from tests.support.servers.s3proxy import Proxy, proxy_to
from tests.support.servers.s3server import Weed, seaweed

pytestmark = pytest.mark.slow  # a server of its own, that starts many times


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    with seaweed(tmp_path_factory.mktemp("weed")) as found:
        yield found


def target_at(weed: Weed, name: str, proxy: Proxy | None = None) -> Target:
    port = None if proxy is None else proxy.server_address[1]
    options: dict[str, Any] = {
        "key": weed.server.access_key,
        "secret": weed.server.secret_key,
        "client_kwargs": {
            "endpoint_url": weed.server.endpoint if port is None else f"http://127.0.0.1:{port}"
        },
    }
    return Target(f"s3://{weed.server.private}/restarts/{name}", options)


def restart(weed: Weed) -> None:
    weed.kill()
    weed.start()


#: At which requests, as parts of all. The server takes many seconds to start.
PARTS = (0.5,)


def test_while_it_is_read(weed: Weed, tmp_path: Path) -> None:
    direct = target_at(weed, tmp_path.name)
    SCENARIOS["new"].change(direct)
    whole = ours(direct)
    with proxy_to(weed.server) as proxy:
        through = target_at(weed, tmp_path.name, proxy)
        assert ours(through) == whole
        for request in [int(part * proxy.requests) for part in PARTS]:
            proxy.requests, proxy.at = 0, {request: lambda: restart(weed)}
            try:
                assert ours(through) == whole, request
            except StoreError:  # where it starts so slowly that no time is left to try again
                assert ours(through) == whole
            assert not proxy.at


@pytest.mark.parametrize("name", ["unaligned region"])
def test_while_it_is_written(weed: Weed, name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    with proxy_to(weed.server) as proxy:

        def prepared(part: int) -> tuple[Target, Target]:
            direct = target_at(weed, f"{tmp_path.name}/{part}")
            if scenario.before is not None:
                scenario.before(direct)
            return direct, target_at(weed, f"{tmp_path.name}/{part}", proxy)

        direct, through = prepared(0)
        old = ours(direct)
        proxy.requests = 0
        scenario.change(through)
        total, new = proxy.requests, ours(direct)
        for request in [int(part * total) for part in PARTS]:
            direct, through = prepared(request)
            proxy.requests, proxy.at = 0, {request: lambda: restart(weed)}
            try:
                scenario.change(through)
            except NCZarrError as error:
                assert "restarts/" in str(error)
                seen = ours(direct)
                assert seen in (old, new, "incomplete" if old == "none" else old)
                if seen != new:
                    scenario.change(direct)
            assert not proxy.at, f"there was no request {request}"
            assert ours(direct) == new
