"""Keys for S3 that are good for a while: from functions, programs and single sign-on."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec import FsspecStore
from nczarr_fsspec.errors import AccessDeniedError
from nczarr_fsspec.place import Place, open_keystore
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.transport.request import Extent
from tests.support.servers.httpserver import Request, Server

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
