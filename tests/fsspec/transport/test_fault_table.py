"""One table of faults for all that is read over HTTP: keys of a tree, members of a zip, a file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nczarr_fsspec import FsspecStore, RemoteBytes, RemoteZipStore, StoreError, open_keystore
from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError
from nczarr_fsspec.resolve import open_data
from nczarr_fsspec.stores.zipformat import TAIL_BYTES
from nczarr_fsspec.transport import policy as _policy
from nczarr_fsspec.transport.request import Extent
from tests.support.archives import NOISE, make_zip
from tests.support.httpserver import Server

START, STOP = 70_000, 170_000
PAGE = b"<!DOCTYPE html><html><body>No such page</body></html>"
KINDS = ("keys", "zip", "file")

Read = Callable[[], bytes | None]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_policy, "FIRST_WAIT", 0.0)


@pytest.fixture
def server() -> Iterator[Server]:
    # what fills the end of the archive keeps the other member out of the first answer
    members = {".zgroup": b"{}", "v/0": NOISE, "w": bytes(TAIL_BYTES)}
    archive = make_zip(members, zipfile.ZIP_STORED)
    files = {"/d/v/0": NOISE, "/d.zip": archive, "/x.bin": NOISE}
    with Server(files, etag='"1"') as running:
        yield running


@pytest.fixture
def opened(server: Server) -> Iterator[Callable[..., Read]]:
    """Open one kind of target; what comes back reads the same bytes of it."""
    closing: list[Any] = []

    def open_kind(kind: str, **options: Any) -> Read:
        if kind == "file":
            source = open_data(f"{server.url}/x.bin#mode=bytes", options)
            assert isinstance(source, RemoteBytes)
            closing.append(source)
            return lambda: bytes(source.run(source.fetch([Extent(START, STOP)]))[0])
        name = {"keys": "d", "zip": "d.zip"}[kind]
        store = open_keystore(f"{server.url}/{name}", options)
        assert isinstance(store, (FsspecStore, RemoteZipStore))
        closing.append(store)
        return lambda: store.run(store.get("v/0", slice(START, STOP)))

    yield open_kind
    for one in closing:
        one.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"unavailable_every": 1},
        {"unavailable_every": 1, "retry_after": "0"},
        {"unavailable_every": 1, "unavailable_status": 429},
        {"unavailable_every": 1, "unavailable_status": 500},
        {"cut_every": 1},
        {"reset_every": 1},
        {"ranges": "ignored"},
        {"ranges": "ignored", "gzip": True},
        {"ranges": "no-total"},
        {"ranges": "unsaid"},
    ],
    ids=str,
)
def test_the_bytes_are_right(
    server: Server, opened: Callable[..., Read], kind: str, fault: dict[str, Any]
) -> None:
    read = opened(kind)
    for name, value in fault.items():
        setattr(server, name, value)
    assert read() == NOISE[START:STOP]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fault", "kind_of_error", "reason"),
    [
        ({"ranges": "shifted"}, StoreError, r"sent bytes \d+-\d+, asked for \d+-\d+"),
        ({"ranges": "gzip"}, StoreError, "compressed a byte range"),
        ({"unavailable_every": 1, "relent": False}, StoreError, "503.*tried 6 times"),
        ({"cut_every": 1, "relent": False}, StoreError, "tried 6 times"),
        ({"reset_every": 1, "relent": False}, StoreError, "tried 6 times"),
        ({"unavailable_every": 1, "retry_after": "3600"}, StoreError, "503.*tried 1 times"),
        ({"files": {}, "missing_status": 403}, AccessDeniedError, "HTTP status 403"),
        ({"files": {}, "missing_status": 401}, AccessDeniedError, "401.*wants credentials"),
        ({"password": "me:hunter22"}, AccessDeniedError, "401"),
    ],
    ids=str,
)
def test_what_is_refused(
    server: Server,
    opened: Callable[..., Read],
    kind: str,
    fault: dict[str, Any],
    kind_of_error: type[Exception],
    reason: str,
) -> None:
    read = opened(kind)
    for name, value in fault.items():
        setattr(server, name, value)
    with pytest.raises(kind_of_error, match=reason) as caught:
        read()
    assert server.url in str(caught.value)


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
    source = open_data(f"{server.url}/x.bin#mode=bytes")
    assert isinstance(source, RemoteBytes)
    before = source.limits.concurrency
    server.unavailable_every, server.relent = 1, False
    with pytest.raises(StoreError, match="503"):
        read()
    assert source.limits.concurrency < before
    source.close()
