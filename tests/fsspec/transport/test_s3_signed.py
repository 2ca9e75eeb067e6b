"""Objects read by requests of our own: the same bytes and errors as through s3fs, at less cost."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import pickle
import random
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiobotocore.session
import pytest
import s3fs
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.loaders import JSONFileLoader

from nczarr_fsspec import FsspecStore, RemoteBytes, StoreError, open_source
from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_fsspec.transport import s3client
from nczarr_fsspec.transport.fsspec import FsspecTransport
from nczarr_fsspec.transport.request import Answer, Extent
from nczarr_fsspec.transport.request import Request as Asked
from nczarr_fsspec.transport.s3 import S3Transport
from nczarr_fsspec.transport.s3form import Signer, region_of
from tests.support.servers.httpserver import Request, Server
from tests.support.servers.s3server import S3Server

EMPTY = hashlib.sha256(b"").hexdigest()
CONTENT = bytes(range(256)) * 100
ODD = [
    "a b",
    "a+b;,",
    "a%b",
    "a%20b",
    "a?b=c&d",
    "é/温",
    "[*]",
    "a:b@c",
    '"<>"',
    "a=b",
    "~'()!",
    "a#",
]
#: never sent anywhere else
SECRET = {"key": "AKID", "secret": "Qz7secretQz7secret"}


class Keys(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None = None


pytestmark = pytest.mark.usefixtures("no_aws", "no_waiting")


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that s3fs read."""
    paths: list[str] = []
    read = S3Transport._by_s3fs

    async def told(transport: S3Transport, request: Asked, left: float) -> Answer | None:
        paths.append(request.path)
        return await read(transport, request, left)

    monkeypatch.setattr(S3Transport, "_by_s3fs", told)
    return paths


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> S3Server:
    fs = s3fs.S3FileSystem(**s3_server.signed(), skip_instance_cache=True)
    for name in (s3_server.public, s3_server.private):
        for key in ODD:
            fs.pipe_file(f"{name}/odd/{key}", key.encode())
        fs.pipe_file(f"{name}/odd/v", CONTENT)
        fs.pipe_file(f"{name}/odd/empty", b"")
    return s3_server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({f"/b/d/{n}": CONTENT for n in range(10)}) as running:
        yield running


def options(bucket: S3Server, signed: bool) -> dict[str, Any]:
    return bucket.signed() if signed else {"anon": True, "endpoint_url": bucket.endpoint}


def open_store(root: str, **given: Any) -> FsspecStore:
    return FsspecStore(s3fs.S3FileSystem(**given, skip_instance_cache=True), root)


def at(server: Server, **given: Any) -> FsspecStore:
    """A store at a server that takes every signature."""
    return open_store("b/d", endpoint_url=server.url, **{**SECRET, **given})


def read(store: FsspecStore, key: str, start: int | None = None, stop: int | None = None) -> Any:
    try:
        return store.run(store.get(key, slice(start, stop)))
    except StoreError as error:
        return error


def by_s3fs(root: str, given: dict[str, Any]) -> Any:
    """What the key "v" was before there were requests of our own."""
    store = open_store(root, **given)
    store.transport = FsspecTransport(store.transport.recipe)
    found = read(store, "v")
    store.close()
    return found


class TestSignature:
    def test_example_of_the_reference(self) -> None:
        keys = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
        host = "examplebucket.s3.amazonaws.com"
        headers = {"host": host, "range": "bytes=0-9", "x-amz-content-sha256": EMPTY}
        signed = Signer("us-east-1", headers).sign("/test.txt", keys, "20130524T000000Z")
        assert signed["Authorization"] == (
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        )
        assert region_of(signed["Authorization"]) == "us-east-1"
        assert region_of("AWS AKID:abc=") is None
        assert region_of(signed["Authorization"].replace("/s3/", "/s3express/")) is None

    @pytest.mark.parametrize("token", [None, "to/ken=="])
    def test_the_same_as_botocore(self, token: str | None) -> None:
        host, keys = "127.0.0.1:9", Keys("AKID", "se/cret", token)
        signer = Signer("eu-north-1", {"host": host, "x-amz-content-sha256": EMPTY})
        rng = random.Random(1)
        for _ in range(50):
            path = "/" + "".join(rng.choice("abc/%20~'()!*._-") for _ in range(20))
            request = AWSRequest("GET", f"http://{host}{path}")
            S3SigV4Auth(Credentials(*keys), "s3", "eu-north-1").add_auth(request)
            signed = signer.sign(path, keys, request.context["timestamp"])
            assert signed["Authorization"] == request.headers["Authorization"]
            assert signed.get("X-Amz-Security-Token") == token


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "anonymous"])
class TestServer:
    """A real server: SeaweedFS."""

    def test_odd_keys(self, bucket: S3Server, through: list[str], signed: bool) -> None:
        name = bucket.private if signed else bucket.public
        store = open_store(f"{name}/odd", **options(bucket, signed))
        keys = [*ODD, "v", "empty", "nope", "n o/pe"]
        expected = [*map(str.encode, ODD), CONTENT, b"", None, None]
        assert store.get_many(keys) == expected
        assert store.get_many(keys) == expected
        assert len(through) == 1  # the first
        store.close()
        assert store.get_many(keys) == expected  # with new connections
        store.close()

    def test_ranges(self, bucket: S3Server, through: list[str], signed: bool) -> None:
        name = bucket.private if signed else bucket.public
        given = options(bucket, signed)
        store = open_store(f"{name}/odd", **given)
        read(store, "empty")
        through.clear()
        for start, stop in [(0, 10), (7, None), (None, 9), (25_590, 26_000), (30_000, 30_001)]:
            assert read(store, "v", start, stop) == CONTENT[start:stop]
        assert read(store, "v", 5, 5) == b""
        assert read(store, "empty", 0, 5) == b""
        assert read(store, "nope", 0, 5) is None
        assert set(through) <= {f"{name}/odd/v"}
        assert len(through) <= 1  # the one that asks for nothing
        store.close()

    def test_there_is_no_such_bucket(self, bucket: S3Server, signed: bool) -> None:
        given = options(bucket, signed)
        store = open_store("nobodys/d", **given)
        for _ in range(2):
            error = read(store, "v")
            expected = by_s3fs("nobodys/d", given)
            assert str(error) == str(expected)
            assert type(error) is type(expected)
        if signed:
            assert isinstance(error, DatasetNotFoundError)
        store.close()

    def test_pickled(self, bucket: S3Server, signed: bool) -> None:
        name = bucket.private if signed else bucket.public
        store = open_store(f"{name}/odd", **options(bucket, signed))
        assert store.get_many(["v", "v"]) == [CONTENT, CONTENT]
        again = pickle.loads(pickle.dumps(store))
        assert again.get_many(["v", "a b", "nope"]) == [CONTENT, b"a b", None]
        again.close()
        store.close()

    def test_forked(self, bucket: S3Server, signed: bool) -> None:
        name = bucket.private if signed else bucket.public
        store = open_store(f"{name}/odd", **options(bucket, signed))
        assert store.get_many(["v", "v"]) == [CONTENT, CONTENT]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            os._exit(store.get_many(["v", "a b", "nope"]) != [CONTENT, b"a b", None])
        assert os.waitpid(child, 0)[1] == 0
        assert read(store, "v") == CONTENT
        store.close()


class TestRefused:
    def test_what_is_private(self, bucket: S3Server) -> None:
        store = open_store(f"{bucket.private}/odd", **options(bucket, signed=False))
        self.check(store, bucket, anon=True)

    def test_wrong_secret(self, bucket: S3Server) -> None:
        given = {"key": bucket.access_key, "secret": "Qz7wrongQz7wrong"}
        store = open_store(f"{bucket.private}/odd", endpoint_url=bucket.endpoint, **given)
        self.check(store, bucket, **given)

    def check(self, store: FsspecStore, bucket: S3Server, **given: Any) -> None:
        expected = by_s3fs(f"{bucket.private}/odd", {"endpoint_url": bucket.endpoint, **given})
        assert isinstance(expected, AccessDeniedError)
        for error in [read(store, "v"), read(store, "v"), *store.get_many(["v"] * 5)]:
            assert isinstance(error, AccessDeniedError)
            assert str(error) == str(expected)
            assert "Qz7" not in str(error)
        store.close()

    def test_secrets_changed_meanwhile(self, bucket: S3Server, through: list[str]) -> None:
        """As when credentials are renewed: the next request takes those that hold now."""
        store = open_store(f"{bucket.private}/odd", **bucket.signed())
        assert store.get_many(["v", "v"]) == [CONTENT, CONTENT]
        credentials = store.transport.shared.fs._s3._request_signer._credentials
        right, credentials.secret_key = credentials.secret_key, "Qz7wrong"
        assert isinstance(read(store, "v"), AccessDeniedError)
        credentials.secret_key = right
        through.clear()
        assert read(store, "v") == CONTENT
        assert not through
        store.close()


def names(request: Request) -> set[str]:
    return {name.lower() for name in request.headers}


class TestRequests:
    """What is sent, by a server that takes everything."""

    def test_the_headers_are_those_of_s3fs(self, server: Server, through: list[str]) -> None:
        store = at(server, token="to/ken", requester_pays=True)
        assert (read(store, "0"), read(store, "1")) == (CONTENT, CONTENT)
        assert through == ["b/d/0"]
        first, second = server.requests
        assert names(first) - names(second) == {"amz-sdk-invocation-id", "amz-sdk-request"}
        assert names(second) <= names(first)
        assert second.headers["X-Amz-Security-Token"] == "to/ken"
        assert second.headers["x-amz-request-payer"] == "requester"
        assert (
            second.headers["Authorization"].rpartition("=")[0]
            == first.headers["Authorization"].rpartition("=")[0]
        )
        store.close()

    @pytest.mark.parametrize("place", ["variables", "file"])
    def test_keys_of_this_machine_changed_between_openings(
        self, place: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when somebody logs in again, while other datasets are open."""
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        names = {"aws_access_key_id": "", "aws_secret_access_key": "s", "aws_session_token": "t"}
        stores = []
        for key in ("first", "second-one"):
            keys = {**names, "aws_access_key_id": key}
            if place == "file":
                lines = [f"{name}={value}\n" for name, value in keys.items()]
                (tmp_path / "credentials").write_text("".join(["[default]\n", *lines]))
            for name, value in keys.items() if place == "variables" else ():
                monkeypatch.setenv(name.upper(), value)
            stores.append(open_store("b/d", endpoint_url=server.url))
            assert read(stores[-1], "0") == CONTENT
            assert f"Credential={key}/" in server.requests[-1].headers["Authorization"]
        assert read(stores[0], "1") == CONTENT
        assert "Credential=first/" in server.requests[-1].headers["Authorization"]
        for store in stores:
            store.close()

    @pytest.mark.parametrize("tag", ['"a"', 'W/"a"', "a"])
    def test_weak_tags_are_no_conditions(self, tag: str, server: Server) -> None:
        """By which a service would call every object another one."""
        server.etag = tag
        fs = s3fs.S3FileSystem(**SECRET, endpoint_url=server.url, skip_instance_cache=True)
        source = open_source(fs, "b/d/0")
        assert isinstance(source, RemoteBytes)
        source.run(source.fetch([Extent(0, 4)]))
        assert server.requests[-1].headers.get("If-Match") == (tag if tag[0] == '"' else None)
        source.close()

    def test_a_listing_that_never_ends(self) -> None:
        """Of a service that ignores where to go on; older releases of s3fs notice it."""
        page = (
            b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
            b"<IsTruncated>true</IsTruncated><NextContinuationToken>on</NextContinuationToken>"
            b"<Contents><Key>d/v</Key><Size>1</Size></Contents></ListBucketResult>"
        )
        with Server({"/b": page}) as server:
            store = at(server)
            (found,) = store.list_many([""])
            assert isinstance(found, StoreError)
            assert re.search("never ends|same next token", str(found))
            assert len(server.requests) == 2
            writer = FsspecWriter(store.transport.recipe, "b/d")
            with pytest.raises(StoreError, match=r"never ends|same next token"):
                writer.keys_below("")
            writer.close()
            store.close()

    def test_a_first_round_is_seen_once(self, server: Server, through: list[str]) -> None:
        store = at(server)
        assert store.get_many([str(n) for n in range(10)]) == [CONTENT] * 10
        assert len(through) == 1
        assert len(server.requests) == 10
        store.close()

    @pytest.mark.parametrize(
        "knobs",
        [
            {"unavailable_every": 2},
            {"unavailable_every": 2, "unavailable_status": 500},
            {"cut_every": 2},
            {"reset_every": 2},
        ],
        ids=str,
    )
    def test_trouble_is_tried_again(
        self, server: Server, through: list[str], knobs: dict[str, int]
    ) -> None:
        store = at(server)
        read(store, "0")
        for name, value in knobs.items():
            setattr(server, name, value)
        assert store.get_many([str(n) for n in range(10)]) == [CONTENT] * 10
        assert len(through) == 1
        store.close()

    def test_trouble_that_stays(self, server: Server) -> None:
        store = at(server)
        read(store, "0")
        server.unavailable_every, server.relent = 1, False
        error = read(store, "1")
        assert isinstance(error, StoreError)
        assert str(error) == ("s3://b/d/1: HTTP status 503 Service Unavailable (tried 6 times)")
        store.close()

    def test_redirects_are_left_to_s3fs(self, server: Server, through: list[str]) -> None:
        store = at(server)
        read(store, "0")
        server.redirect = "/elsewhere"
        asked = len(server.requests)
        read(store, "1")
        assert through[-1] == "b/d/1"
        assert "Authorization" in server.requests[asked].headers
        store.close()

    @pytest.mark.parametrize("public", [False, True])
    def test_redirects_take_no_secrets_along(self, public: bool, server: Server) -> None:
        """Aiohttp would leave out the signature only, not a session token."""
        with Server({"/b/d/0": CONTENT}, redirect=server.url) as here:
            keys = SECRET if public else SECRET | {"token": "T0ken"}
            store = at(here, **keys)
            found = read(store, "0")
            store.close()
        if public:
            assert found == CONTENT
            assert "Authorization" not in server.requests[-1].headers
        else:
            assert f"the service redirects to {server.url}/b/d/0" in str(found)
            assert server.requests == []
        assert len(here.requests) == 1

    def test_listings_take_no_secrets_along(self, server: Server) -> None:
        with Server({}, redirect=server.url) as here:
            store = at(here, token="T0ken")
            (found,) = store.list_many([""])
            store.close()
        assert "the service redirects to" in str(found)
        assert server.requests == []

    @pytest.mark.parametrize(
        ("method", "header", "follows"),
        [
            ("GET", "X-Amz-Date", True),
            ("GET", "x-amz-security-token", False),
            ("HEAD", "x-amz-server-side-encryption-customer-key", False),
            ("PUT", "X-Amz-Date", False),
        ],
    )
    def test_what_redirects_take_along(self, method: str, header: str, follows: bool) -> None:
        asked: dict[str, Any] = {}

        class Connected:
            async def request(self, method: str, **how: Any) -> Any:
                asked.update(how)
                return SimpleNamespace(status=200, headers={})

        connected: Any = Connected()
        asyncio.run(s3client._Session(connected).request(method, headers={header: "x"}))
        assert asked["allow_redirects"] is follows

    def test_checksums(
        self, server: Server, through: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crc = base64.b64encode(zlib.crc32(CONTENT).to_bytes(4, "big")).decode()
        sums = {
            "x-amz-checksum-crc32": crc,
            "x-amz-checksum-sha1": base64.b64encode(hashlib.sha1(CONTENT).digest()).decode(),
            "x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(CONTENT).digest()).decode(),
        }
        sent: dict[str, str] = {}
        content = Server._content

        def with_sums(
            server: Server, request: Request, body: bytes, headers: dict[str, str]
        ) -> tuple[int, bytes]:
            headers.update(sent)
            return content(server, request, body, headers)

        monkeypatch.setattr(Server, "_content", with_sums)
        store = at(server)
        read(store, "0")
        for name, right in sums.items():
            for stated in (right, "AAAAAA==-3"):  # the second is of parts
                sent.clear()
                sent[name] = stated
                assert read(store, "1") == CONTENT
            sent[name] = base64.b64encode(b"0" * 4).decode()
            assert "does not have the checksum" in str(read(store, "1"))
            assert read(store, "1", 3, 7) == CONTENT[3:7]  # the sum is that of the whole
        assert through == ["b/d/0"]
        store.close()
        sent = {"x-amz-checksum-crc32": crc}  # rclone states it of a part, botocore refuses that
        store = at(server)
        assert read(store, "0", 3, 7) == CONTENT[3:7]
        store.close()


class TestSessions:
    """Each store has its own, but for botocore's description of S3."""

    def test_descriptions_are_read_once(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = at(server, key="FIRST")
        assert read(first, "0") == CONTENT
        files: list[str] = []
        load = JSONFileLoader.load_file

        def told(loader: JSONFileLoader, path: str) -> Any:
            files.append(path)
            return load(loader, path)

        monkeypatch.setattr(JSONFileLoader, "load_file", told)
        second = at(server, key="SECOND")
        assert read(second, "0") == CONTENT
        assert files == []
        keys = ["FIRST", "SECOND"]
        for request, key in zip(server.requests, keys, strict=True):
            assert f"Credential={key}/" in request.headers["Authorization"]
        sessions = [store.transport.shared.fs.session for store in (first, second)]
        assert sessions[0] is not sessions[1]
        for store in (first, second):
            store.close()

    def test_other_descriptions(self, server: Server, tmp_path: Path) -> None:
        first = at(server)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_DATA_PATH", str(tmp_path))
            second = at(server, key="SECOND")
            assert read(second, "0") == CONTENT
        assert read(first, "0") == CONTENT
        folders = [
            store.transport.shared.fs.session.get_component("data_loader").search_paths
            for store in (first, second)
        ]
        assert [str(tmp_path) in paths for paths in folders] == [False, True]
        for store in (first, second):
            store.close()

    def test_a_session_that_was_given(self, server: Server) -> None:
        session = aiobotocore.session.AioSession()
        store = at(server, session=session)
        assert read(store, "0") == CONTENT
        assert store.transport.shared.fs.session is session
        store.close()

    def test_bad_options(self, server: Server) -> None:
        store = at(server, profile="nobody")
        assert "nobody" in str(read(store, "0"))
        store.close()


class TestLeftToS3fs:
    """What could be different for another object, or is not understood."""

    def check(self, store: FsspecStore, through: list[str], keys: int = 3) -> None:
        through.clear()
        assert store.get_many([str(n) for n in range(keys)]) == [CONTENT] * keys
        assert store.get_many(["0"]) == [CONTENT]
        assert len(through) == keys + 1
        store.close()

    def test_older_signatures(self, server: Server, through: list[str]) -> None:
        self.check(at(server, config_kwargs={"signature_version": "s3"}), through)

    def test_hooks(self, server: Server, through: list[str]) -> None:
        session = aiobotocore.session.AioSession()

        def hook(request: Any, **_: Any) -> None:
            request.headers["X-Path"] = request.url

        session.register("before-send.s3", hook)
        self.check(at(server, session=session), through)
        assert all(request.path in request.headers["X-Path"] for request in server.requests)

    def test_versions(self, server: Server, through: list[str]) -> None:
        additional = {"VersionId": "7"}
        self.check(at(server, s3_additional_kwargs=additional), through)
        assert all("versionId=7" in request.target for request in server.requests)

    def test_classes_of_others(self, server: Server, through: list[str]) -> None:
        class Other(s3fs.S3FileSystem):
            async def _call_s3(self, *args: Any, **options: Any) -> Any:
                return await super()._call_s3(*args, **options)

        fs = Other(**SECRET, endpoint_url=server.url, skip_instance_cache=True)
        self.check(FsspecStore(fs, "b/d"), through)

    def test_proxies(self, server: Server, through: list[str]) -> None:
        with Server({f"/b/d/{n}": CONTENT for n in range(3)}) as proxy:
            host = server.url.removeprefix("http://")
            proxy.files |= {f"//{host}{path}": data for path, data in proxy.files.items()}
            config = {"proxies": {"http": proxy.url}}
            self.check(at(server, config_kwargs=config), through)
            assert proxy.requests
            assert not server.requests

    def test_another_botocore(
        self, server: Server, through: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def changed(request: Any, *args: Any) -> None:
            raise AttributeError

        monkeypatch.setattr("nczarr_fsspec.transport.s3form._handlers", changed)
        self.check(at(server), through)
