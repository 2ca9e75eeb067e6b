"""Keys for S3 that are good for a while: from functions, programs and single sign-on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nczarr_fsspec import FsspecStore, StoreError
from nczarr_fsspec.errors import AccessDeniedError, URLError
from nczarr_fsspec.place import Place, open_filesystem, open_keystore
from nczarr_fsspec.places.url import parse_url
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_fsspec.transport import s3client
from nczarr_fsspec.transport.options import storage_options
from nczarr_fsspec.transport.request import Extent
from nczarr_fsspec.transport.s3client import seconds_until, session_of
from tests.support.servers.httpserver import Request, Server
from tests.support.servers.s3proxy import proxy_to
from tests.support.servers.s3server import S3Server

pytest.importorskip("s3fs")

CONTENT = bytes(range(256)) * 1024
EXTENTS = [Extent(at, at + 10) for at in range(1 << 17, 1 << 18, 1 << 13)]
_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>over</Message></Error>"
LATER = "2999-01-01 00:00:00+00:00"


@dataclass
class Bucket(Server):
    """Serves objects to keys that are good for so many requests.

    Parameters
    ----------
    good_for
        How often; for ever if 0.
    pays
        Whether the reader has to.
    """

    good_for: int = 0
    pays: bool = False
    etag: str | None = '"1"'

    @property
    def keys(self) -> list[str]:
        """The keys that requests were signed with."""
        found = [
            re.search("Credential=([^/]*)/", request.headers.get("Authorization", ""))
            for request in self.requests
        ]
        return [match[1] if match else "" for match in found]

    def answer_to(self, handler: BaseHTTPRequestHandler, request: Request, number: int) -> None:
        keys = self.keys[:number]
        if self.good_for and keys.count(keys[-1]) > self.good_for:
            self._refuse(handler, 400, _EXPIRED)
        elif self.pays and request.headers.get("x-amz-request-payer") != "requester":
            self._refuse(handler, 403, _EXPIRED.replace(b"ExpiredToken", b"AccessDenied"))
        else:
            super().answer_to(handler, request, number)

    def _refuse(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


pytestmark = pytest.mark.usefixtures("no_aws", "no_waiting")


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Bucket({"/b/x.nc": b"CDF\x01" + CONTENT[4:], "/b/d/0": CONTENT}) as running:
        yield running


def function(end: object = LATER) -> tuple[Callable[[], dict[str, Any]], list[str]]:
    """Return a function that makes keys as NASA's archives have them, and those that it made."""
    made: list[str] = []

    def make() -> dict[str, Any]:
        made.append(f"KEY{len(made)}")
        keys = {"accessKeyId": made[-1], "secretAccessKey": "hunter22", "sessionToken": made[-1]}
        return {**keys, "expiration": end}

    return make, made


def opened(bucket: Bucket, **options: Any) -> RemoteFileBytes:
    source = Place.of("s3://b/x.nc#mode=bytes", {"endpoint_url": bucket.url, **options}).open().data
    assert isinstance(source, RemoteFileBytes)
    return source


def read(source: RemoteFileBytes) -> None:
    parts = source.run(source.fetch(EXTENTS))
    assert [bytes(part) for part in parts] == [CONTENT[start:stop] for start, stop in EXTENTS]


class TestFunctions:
    def test_they_are_asked_once(self, bucket: Bucket) -> None:
        make, made = function()
        first, second = (opened(bucket, credentials=make) for _ in range(2))
        read(first)
        read(second)
        assert made == ["KEY0"]
        assert set(bucket.keys) == {"KEY0"}
        assert {r.headers["X-Amz-Security-Token"] for r in bucket.requests} == {"KEY0"}
        assert first.transport.shared is second.transport.shared
        first.close()
        second.close()

    @pytest.mark.parametrize("good_for", [pytest.param(3, marks=pytest.mark.slow), 10])
    def test_keys_that_expire(self, bucket: Bucket, good_for: int) -> None:
        """In the middle of a read, as S3 says so; no clock is asked."""
        make, made = function(None)
        source = opened(bucket, credentials=make)
        bucket.good_for = good_for
        for extent in EXTENTS:  # one after the other, so that each key is used up
            (part,) = source.run(source.fetch([extent]))
            assert bytes(part) == CONTENT[extent.start : extent.stop]
        read(source)
        assert len(made) >= len(EXTENTS) // good_for
        source.close()

    @pytest.mark.slow
    def test_those_that_end_soon_are_not_used(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 1000.0
        monkeypatch.setattr(s3client, "time", SimpleNamespace(time=lambda: now))
        make, made = function(2000)
        source = opened(bucket, credentials=make)
        count = len(made)
        now = 1701.0
        source.run(source.fetch(EXTENTS[:1]))
        assert len(made) > count >= 1
        source.close()

    def test_those_that_have_ended(self, bucket: Bucket) -> None:
        make, made = function("2001-01-01 00:00:00+00:00")
        with pytest.raises(StoreError, match=r"have ended already \(2001-01-01"):
            opened(bucket, credentials=make)
        assert len(made) == 1
        assert not bucket.requests

    def test_all_that_wait_get_the_error(self) -> None:
        """A source that fails is not called by one request after the other."""
        calls: list[int] = []
        go = threading.Event()

        def fails() -> Any:
            assert go.wait(60)
            calls.append(1)
            raise RuntimeError

        async def read() -> list[Any]:
            keys = await session_of(fails).get_credentials()
            tasks = [asyncio.ensure_future(keys.get_frozen_credentials()) for _ in range(100)]
            await asyncio.sleep(0)
            go.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        assert {type(error) for error in asyncio.run(read())} == {StoreError}
        assert len(calls) == 1

    @pytest.mark.slow
    def test_after_pickling(self, bucket: Bucket) -> None:
        source = opened(bucket, credentials=keys_of_workers)
        again = pickle.loads(pickle.dumps(source))
        read(again)
        assert set(bucket.keys) == {"WORKER"}
        again.close()
        source.close()

    @pytest.mark.slow
    def test_trees(self, bucket: Bucket) -> None:
        make, _ = function(None)
        store = open_keystore(
            "s3://b/d#mode=nczarr", {"endpoint_url": bucket.url, "credentials": make}
        )
        assert isinstance(store, FsspecStore)
        bucket.good_for = 2
        for _ in range(5):
            assert store.get_many(["0"]) == [CONTENT]
        store.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_objects_of_botocore(self, bucket: Bucket, asynchronous: bool) -> None:
        """Those renew themselves, and say when that is due."""
        made: list[str] = []

        def frozen() -> Any:
            made.append("")
            return SimpleNamespace(access_key=f"KEY{len(made)}", secret_key="s", token="t")

        async def awaited() -> Any:
            return frozen()

        get = awaited if asynchronous else frozen
        keys = SimpleNamespace(get_frozen_credentials=get, refresh_needed=lambda: len(made) % 2)
        source = opened(bucket, credentials=keys)
        read(source)
        assert len(set(bucket.keys)) > 1
        source.close()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "keys",
        [
            {"AccessKeyId": "K", "SecretAccessKey": "S", "SessionToken": "T", "Expiration": LATER},
            {"Credentials": {"AccessKeyId": "K", "SecretAccessKey": "S", "SessionToken": "T"}},
            {"access_key": "K", "secret_key": "S", "token": "T", "expiry_time": LATER},
            {"aws_access_key_id": "K", "aws_secret_access_key": "S", "aws_session_token": "T"},
            {"key": "K", "secret": "S", "token": "T"},
        ],
    )
    def test_spellings(self, bucket: Bucket, keys: dict[str, Any]) -> None:
        source = opened(bucket, credentials=lambda: keys)
        assert set(bucket.keys) == {"K"}
        assert bucket.requests[0].headers["X-Amz-Security-Token"] == "T"
        source.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("found", [None, {}, {"key": "hunter22"}, ["hunter22"], "hunter22"])
    def test_what_is_no_key(self, bucket: Bucket, found: Any) -> None:
        with pytest.raises(StoreError, match="returned no mapping with key and secret") as caught:
            opened(bucket, credentials=lambda: found)
        assert "hunter22" not in str(caught.value)
        assert not bucket.requests

    @pytest.mark.slow
    def test_a_function_that_fails(self, bucket: Bucket) -> None:
        def fails() -> Any:
            raise RuntimeError("hunter22")

        with pytest.raises(StoreError, match="the function failed: RuntimeError") as caught:
            opened(bucket, credentials=fails)
        assert "hunter22" not in str(caught.value)

    def test_no_function(self) -> None:
        with pytest.raises(URLError, match="must be a function"):
            storage_options(parse_url("s3://b/k"), {"credentials": {"key": "k"}})

    @pytest.mark.slow
    def test_keys_that_stay_expired(self, bucket: Bucket) -> None:
        source = opened(bucket, credentials=lambda: {"key": "K", "secret": "S"})
        bucket.good_for = 1
        with pytest.raises(StoreError, match=r"the credentials have expired \(tried 6 times"):
            read(source)
        source.close()


def test_keys_that_expire_before_any_request(s3_server: S3Server, tmp_path: Path) -> None:
    """Lists, puts and all else is done with other keys, as reads are."""
    calls = 0

    def make() -> dict[str, str]:
        nonlocal calls
        calls += 1
        return {"key": s3_server.access_key, "secret": s3_server.secret_key}

    (tmp_path / "file").write_bytes(CONTENT)
    with proxy_to(s3_server) as proxy:
        url = f"http://127.0.0.1:{proxy.server_address[1]}"
        root = f"{s3_server.private}/renewed"
        options = {"endpoint_url": url, "credentials": make}
        fs, _ = open_filesystem(parse_url(f"s3://{root}"), options)
        writer, store = FsspecWriter(fs, root), FsspecStore(fs, root)
        before = 0
        proxy.expired = lambda: calls <= max(before, 1)
        requests: list[Callable[[], Any]] = [
            lambda: writer.put("a", CONTENT),
            lambda: writer.create("b", CONTENT),
            lambda: writer.upload("c", str(tmp_path / "file")),
            lambda: writer.keys_below(""),
            lambda: store.run(store.list("")),
            lambda: store.get_many(["a", "b", "c"]),
            lambda: writer.move([("a", "d")]),
            lambda: writer.delete(["b", "c"]),
        ]
        for request in requests:
            before = calls
            request()
            assert calls > before
        proxy.expired = lambda: False
        assert writer.keys_below("") == ["d"]
        assert store.get_many(["d"]) == [CONTENT]
        writer.close()
        store.close()


def keys_of_workers() -> dict[str, str]:
    return {"key": "WORKER", "secret": "S"}


def test_the_same_function_has_one_session() -> None:
    class Account:
        def keys(self) -> dict[str, str]:
            return {}

    account = Account()
    first = session_of(account.keys)
    assert session_of(account.keys) is first
    assert session_of(Account().keys) is not first


@pytest.mark.parametrize(
    ("end", "seconds"),
    [
        ("1970-01-01 00:01:00+00:00", 60),
        ("1970-01-01T00:01:00Z", 60),
        ("1970-01-01T01:01:00+01:00", 60),
        ("1970-01-01T00:01:00", 60),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), 60),
        (60, 60),
        (None, float("inf")),
        ("soon", float("inf")),
    ],
)
def test_when_keys_end(end: object, seconds: float) -> None:
    assert seconds_until(end) == seconds


@pytest.mark.slow
class TestProfiles:
    """What botocore renews by itself, with the name of a profile only."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        (tmp_path / ".aws").mkdir()

    def test_a_program(
        self, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first keys that it makes end soon, so that it is run again."""
        program = tmp_path / "keys.py"
        program.write_text(
            "import json, os, sys\n"
            "made = sys.argv[1]\n"
            "count = os.path.getsize(made) if os.path.exists(made) else 0\n"
            "open(made, 'a').write('.')\n"
            f"end = {soon()!r} if count < 2 else '2999-01-01T00:00:00Z'\n"
            "print(json.dumps(dict(Version=1, AccessKeyId=f'KEY{count}', SecretAccessKey='s',\n"
            "    SessionToken='t', Expiration=end)))\n"
        )
        run = f"{sys.executable} {program} {tmp_path}/made"
        (tmp_path / ".aws" / "config").write_text(f"[profile lab]\ncredential_process = {run}\n")
        monkeypatch.setenv("AWS_PROFILE", "lab")
        source = opened(bucket)
        for extent in EXTENTS[:4]:
            source.run(source.fetch([extent]))
        assert bucket.keys[-1] == "KEY2"
        assert len(set(bucket.keys)) > 1
        assert (tmp_path / "made").read_text() == "..."
        source.close()

    def test_single_sign_on(
        self, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = {"accessKeyId": "SSO", "secretAccessKey": "s", "sessionToken": "t"}
        role = {"roleCredentials": {**keys, "expiration": 32472144000000}}
        start = "https://lab.awsapps.example/start"
        (tmp_path / ".aws" / "config").write_text(
            f"[profile lab]\nsso_start_url = {start}\nsso_region = eu-west-1\n"
            "sso_account_id = 123456789012\nsso_role_name = reader\n"
        )
        cache = tmp_path / ".aws" / "sso" / "cache"
        cache.mkdir(parents=True)
        token = {"accessToken": "hunter22", "expiresAt": "2999-01-01T00:00:00Z", "startUrl": start}
        name = hashlib.sha1(start.encode(), usedforsecurity=False).hexdigest()
        (cache / f"{name}.json").write_text(json.dumps(token))
        folder = "botocore.credentials.SSOProvider._SSO_TOKEN_CACHE_DIR"
        monkeypatch.setattr(folder, str(cache))
        with Server({"/federation/credentials": json.dumps(role).encode()}) as portal:
            monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", portal.url)
            source = opened(bucket, profile="lab")
            read(source)
            assert set(bucket.keys) == {"SSO"}
            assert portal.requests[0].headers["x-amz-sso_bearer_token"] == "hunter22"
            source.close()


def soon() -> str:
    """Return a time at which botocore no longer waits: in a minute."""
    return (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


class TestReadersWhoPay:
    def test_the_header_is_sent_with_everything(self, bucket: Bucket) -> None:
        bucket.pays = True
        keys = {"key": "K", "secret": "S", "requester_pays": True}
        source = opened(bucket, **keys)
        read(source)
        source.close()
        store = open_keystore("s3://b/d#mode=nczarr", {"endpoint_url": bucket.url, **keys})
        assert isinstance(store, FsspecStore)
        assert store.get_many(["0", "0"]) == [CONTENT, CONTENT]
        store.list_many([""])
        assert {r.headers.get("x-amz-request-payer") for r in bucket.requests} == {"requester"}
        store.close()

    @pytest.mark.slow
    def test_the_message_says_how(self, bucket: Bucket) -> None:
        bucket.pays = True
        with pytest.raises(AccessDeniedError, match=r"requester_pays.*missing objects"):
            opened(bucket, key="K", secret="S")
