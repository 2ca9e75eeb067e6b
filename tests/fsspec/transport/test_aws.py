from __future__ import annotations

import base64
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.keystore import RemoteStore
from nczarr_fsspec.place import open_keystore
from nczarr_fsspec.places.rc import Entry
from nczarr_fsspec.places.url import parse_url
from nczarr_fsspec.transport.options import (
    choose_profile,
    choose_region,
    credentials,
    storage_options,
)
from tests.support.servers.ports import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hunter2"}
PROFILES: dict[str, dict[str, str]] = {
    "default": {"aws_access_key_id": "D", "aws_secret_access_key": "hunter2", "region": "eu1"},
    "lab": {"aws_access_key_id": "L", "aws_secret_access_key": "hunter2", "aws_region": "eu2"},
    "sso": {"sso_session": "x"},
    "place": {"region": "eu3"},
}
RC = [Entry("AWS.PROFILE", "lab"), Entry("AWS.REGION", "rc1")]
#: as many connections as requests in flight
POOL = {"max_pool_connections": RemoteStore.concurrency}


pytestmark = pytest.mark.usefixtures("no_aws")


def write_aws(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / ".aws").mkdir(exist_ok=True)
    (tmp_path / ".aws" / name).write_text(text)


# ---------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("fragment", "rc", "env", "name"),
    [
        ("", [], {}, None),
        ("", [], {"AWS_PROFILE": "sso"}, "sso"),
        ("", RC, {"AWS_PROFILE": "sso"}, "lab"),
        ("#aws.profile=place", RC, {"AWS_PROFILE": "sso"}, "place"),
        ("#aws.profile=no", RC, {"AWS_PROFILE": "sso"}, "no"),
        ("", [Entry("AWS.PROFILE", "lab", "b")], {}, "lab"),
        ("", [Entry("AWS.PROFILE", "lab", "c")], {}, None),
        ("", [Entry("AWS.PROFILE", "no")], KEYS, "no"),
    ],
)
def test_choose_profile(
    fragment: str, rc: list[Entry], env: dict[str, str], name: str | None
) -> None:
    assert choose_profile(parse_url(f"s3://b/k{fragment}"), rc, env, PROFILES) == name


@pytest.mark.parametrize(
    ("fragment", "rc", "env", "source"),
    [
        ("#aws.profile=gone", [], {}, "#aws.profile"),
        ("", [Entry("AWS.PROFILE", "gone")], {}, "AWS.PROFILE in an rc file"),
        ("", [], {"AWS_PROFILE": "gone"}, "environment variable AWS_PROFILE"),
    ],
)
def test_missing_profile_names_the_known_ones(
    fragment: str, rc: list[Entry], env: dict[str, str], source: str
) -> None:
    match = f"{source}: there is no AWS profile 'gone'; known profiles: default, lab, place, sso"
    with pytest.raises(URLError, match=match) as caught:
        choose_profile(parse_url(f"s3://b/k{fragment}"), rc, env, PROFILES)
    assert "hunter2" not in str(caught.value)


ONLY_LAB = {"lab": PROFILES["lab"]}
CONTAINER = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}


@pytest.mark.parametrize(
    ("name", "env", "profiles", "options"),
    [
        ("lab", KEYS, PROFILES, {"profile": "lab"}),
        ("sso", {}, PROFILES, {"profile": "sso"}),
        ("place", KEYS, PROFILES, {"anon": True}),
        ("no", KEYS, PROFILES, {"anon": True}),
        (None, KEYS, PROFILES, {}),
        (None, {"AWS_ACCESS_KEY_ID": "half"}, PROFILES, {"profile": "default"}),
        (None, {}, PROFILES, {"profile": "default"}),
        (None, CONTAINER, PROFILES, {"profile": "default"}),
        (None, CONTAINER, ONLY_LAB, {}),
        (None, {}, ONLY_LAB, {"anon": True}),
        (None, {}, {"default": {"region": "eu1"}}, {"anon": True}),
        (None, {}, {}, {"anon": True}),
    ],
)
def test_credentials(
    name: str | None,
    env: dict[str, str],
    profiles: dict[str, dict[str, str]],
    options: dict[str, Any],
) -> None:
    assert credentials(name, env, profiles) == options


BOTH = {"AWS_REGION": "env1", "AWS_DEFAULT_REGION": "env2"}


@pytest.mark.parametrize(
    ("url", "rc", "env", "profile", "region"),
    [
        ("s3://b/k", [], {}, {}, "us-east-1"),
        ("s3://b/k", [], {"AWS_DEFAULT_REGION": "env2"}, {}, "env2"),
        ("s3://b/k", [], BOTH, {}, "env1"),
        ("s3://b/k", [], BOTH, PROFILES["lab"], "eu2"),
        ("s3://b/k", [], BOTH, {"region": "eu1", "aws_region": "eu2"}, "eu1"),
        ("s3://b/k", RC, BOTH, PROFILES["lab"], "rc1"),
        ("https://b.s3.eu-west-1.amazonaws.com/k", RC, BOTH, PROFILES["lab"], "eu-west-1"),
        ("https://s3.eu-west-1.amazonaws.com/b/k#aws.region=here", RC, BOTH, {}, "here"),
    ],
)
def test_choose_region(
    url: str, rc: list[Entry], env: dict[str, str], profile: dict[str, str], region: str
) -> None:
    assert choose_region(parse_url(url), rc, env, profile) == region


# ---------------------------------------------------------------------------------- options


def options(url: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    return storage_options(parse_url(url), given)


def test_other_protocols_get_what_was_given() -> None:
    given = {"a": {"b": 1}}
    for url in ("file:///x", "https://h/x", "memory://x", "zip://a::https://h/x"):
        assert options(url, given) == given
        assert options(url) == {}


def test_nothing_configured_is_anonymous() -> None:
    assert options("s3://b/k") == {
        "anon": True,
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": POOL,
    }


def test_endpoint_of_another_host_is_path_style() -> None:
    assert options("http://127.0.0.1:8333/b/k#mode=s3") == {
        "anon": True,
        "endpoint_url": "http://127.0.0.1:8333",
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}, **POOL},
    }


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://b.s3.eu-west-1.amazonaws.com/k", None),
        ("https://s3.amazonaws.com/b/k", None),
        (
            "https://b.s3.dualstack.eu-west-1.amazonaws.com/k",
            "https://s3.dualstack.eu-west-1.amazonaws.com",
        ),
        (
            "https://s3-fips.us-gov-west-1.amazonaws.com/b/k",
            "https://s3-fips.us-gov-west-1.amazonaws.com",
        ),
    ],
)
def test_endpoint_of_amazon_is_left_to_botocore(url: str, endpoint: str | None) -> None:
    assert options(url)["endpoint_url"] == endpoint


def test_host_in_the_url_is_stronger_than_a_configured_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    hosts = {
        "s3://b/k": "http://127.0.0.1:1",
        "https://b.s3.eu-west-1.amazonaws.com/k": "https://s3.eu-west-1.amazonaws.com",
        "https://127.0.0.1:2/b/k#s3": "https://127.0.0.1:2",
    }
    for url, host in hosts.items():
        fs = s3fs.S3FileSystem(**options(url), skip_instance_cache=True)
        assert fs.connect().meta.endpoint_url == host


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"client_kwargs": 5}, "client_kwargs: is a mapping, not int"),
        ({"config_kwargs": "x"}, "config_kwargs: is a mapping, not str"),
        (
            {"config_kwargs": {"max_pool_connections": "x"}},
            "max_pool_connections: is a number of connections, not 'x'",
        ),
    ],
)
def test_options_of_the_wrong_kind(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(URLError, match=f"^{reason}"):
        options("s3://b/k", given)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("anom", "'anom'; did you mean anon"), ("profil", "'profil'; did you mean profile")],
)
def test_options_that_s3_does_not_have(name: str, reason: str) -> None:
    with pytest.raises(URLError, match=f"^storage_options: S3 has no option {reason}"):
        open_keystore("s3://b/k", {name: True})


@pytest.mark.parametrize(
    "given",
    [
        {"anon": False},
        {"key": "a", "secret": "b"},
        {"profile": "lab"},
        {"client_kwargs": {"aws_access_key_id": "a", "aws_secret_access_key": "b"}},
    ],
)
def test_given_credentials_win(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "gone")
    chosen = options("s3://b/k#aws.profile=gone", given)
    client = {"region_name": "us-east-1", **given.get("client_kwargs", {})}
    assert chosen == {**given, "client_kwargs": client, "config_kwargs": POOL}


def test_given_endpoint_and_region_win() -> None:
    url = "http://127.0.0.1:8333/b/k#mode=s3&aws.region=eu1"
    given = {"endpoint_url": "http://127.0.0.1:1", "client_kwargs": {"region_name": "eu2"}}
    assert options(url, given) == {"anon": True, **given, "config_kwargs": POOL}
    given = {"client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}, "config_kwargs": {"s3": {}}}
    chosen = options(url, given)
    assert "endpoint_url" not in chosen
    assert chosen["client_kwargs"] == {"endpoint_url": "http://127.0.0.1:1", "region_name": "eu1"}
    assert chosen["config_kwargs"] == {"s3": {}, **POOL}


def test_given_is_not_changed() -> None:
    given: dict[str, Any] = {"client_kwargs": {}, "config_kwargs": {"max_pool_connections": 3}}
    chosen = options("http://127.0.0.1:8333/b/k#mode=s3", given)
    assert given == {"client_kwargs": {}, "config_kwargs": {"max_pool_connections": 3}}
    assert chosen["config_kwargs"]["max_pool_connections"] == 3


def test_configuration_of_fsspec_counts_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    configured = {
        "key": "a",
        "endpoint_url": "http://127.0.0.1:1",
        "client_kwargs": {"region_name": "eu1", "endpoint_url": "http://127.0.0.1:1"},
    }
    monkeypatch.setattr("nczarr_fsspec.transport.options.fsspec_config", {"s3": configured})
    assert options("s3://b/k") == {
        "client_kwargs": configured["client_kwargs"],
        "config_kwargs": POOL,
    }
    here = options("http://127.0.0.1:2/b/k#s3")
    assert here["endpoint_url"] == "http://127.0.0.1:2"
    assert here["client_kwargs"] == {"region_name": "eu1"}
    assert options("gs3://b/k")["anon"] is True


def test_chain() -> None:
    chosen = options("simplecache::s3://b/k#aws.region=eu1", {"simplecache": {"x": 1}})
    assert chosen["simplecache"] == {"x": 1}
    assert chosen["s3"]["anon"] is True
    assert chosen["s3"]["client_kwargs"] == {"region_name": "eu1"}
    chosen = options("simplecache::s3://b/k", {"s3": {"key": "a", "secret": "b"}})
    assert chosen["s3"] == {
        "key": "a",
        "secret": "b",
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": POOL,
    }


# ------------------------------------------------------------------------------------ files


def test_files_of_the_aws_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what netCDF-C's parser fails on: a "#" comment, values of several words, quoted names
    write_aws(
        tmp_path,
        "config",
        "# comment\n[default]\nregion = eu1\n"
        '[profile "my lab"]\nregion=eu2\ncredential_process = some command --with words\n',
    )
    write_aws(
        tmp_path,
        "credentials",
        "# comment\n[default]\n  aws_access_key_id = A\n  aws_secret_access_key = hunter2\n",
    )
    chosen = options("s3://b/k")
    assert chosen["profile"] == "default"
    assert chosen["client_kwargs"] == {"region_name": "eu1"}
    chosen = options("s3://b/k#aws.profile=my lab")
    assert chosen["profile"] == "my lab"
    assert chosen["client_kwargs"] == {"region_name": "eu2"}
    assert options("s3://b/k#aws.profile=no")["anon"] is True
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("[default]\nregion=eu3\n[there]\naws_access_key_id=A\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(elsewhere))
    assert options("s3://b/k")["anon"] is True
    assert options("s3://b/k#aws.profile=there")["profile"] == "there"


def test_rc_file(tmp_path: Path) -> None:
    (tmp_path / ".ncrc").write_text("[s3://b]AWS.PROFILE=lab\nAWS.REGION=eu1\n")
    write_aws(tmp_path, "credentials", "[lab]\naws_access_key_id=A\naws_secret_access_key=S\n")
    assert options("s3://b/k")["profile"] == "lab"
    assert options("s3://b/k")["client_kwargs"] == {"region_name": "eu1"}
    assert options("s3://c/k")["anon"] is True


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "text", ["aws_secret_access_key hunter2", "[x]\nhunter2", "[x]\nk\n hunter2"]
)
def test_broken_file_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    write_aws(tmp_path, "credentials", text)
    with pytest.raises(URLError, match="credentials: is not a valid AWS") as caught:
        options("s3://b/k")
    shown = [f"{error} {error!r}" for error in chain_of(caught.value)]
    assert not any("hunter2" in text for text in shown)


def test_no_secret_in_options_nor_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    write_aws(
        tmp_path,
        "credentials",
        "[default]\naws_access_key_id=A\naws_secret_access_key=hunter2\naws_session_token=hunter2\n",
    )
    assert "hunter2" not in repr(options("s3://b/k"))
    for name, value in (KEYS | {"AWS_SESSION_TOKEN": "hunter2"}).items():
        monkeypatch.setenv(name, value)
    assert "hunter2" not in repr(options("s3://b/k"))
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("fragment", "env", "key", "secret", "token"),
    [
        ("", {}, "D", "ds", "dt"),
        ("#aws.profile=lab", KEYS, "L", "ls", None),
        ("", KEYS, "AKIA", "hunter2", None),
        ("", {**KEYS, "AWS_SESSION_TOKEN": "t"}, "AKIA", "hunter2", "t"),
        ("", {**KEYS, "AWS_PROFILE": "lab"}, "L", "ls", None),
    ],
)
def test_botocore_finds_what_was_chosen(
    fragment: str,
    env: dict[str, str],
    key: str,
    secret: str,
    token: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3fs = pytest.importorskip("s3fs")
    write_aws(
        tmp_path,
        "credentials",
        "[default]\naws_access_key_id=D\naws_secret_access_key=ds\naws_session_token=dt\n"
        "[lab]\naws_access_key_id=L\naws_secret_access_key=ls\n",
    )
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    fs = s3fs.S3FileSystem(**options(f"s3://b/k{fragment}"), skip_instance_cache=True)
    client = fs.connect()
    found = client._request_signer._credentials
    assert (found.access_key, found.secret_key, found.token) == (key, secret, token)


# ------------------------------------------------------------------------- HTTP with a password


def test_password_becomes_a_header() -> None:
    header = "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert options("https://me:p%40ss@h/x") == {"headers": {"Authorization": header}}
    given = {"headers": {"X": "1"}, "block_size": 0}
    assert options("https://me:p%40ss@h/x", given) == {
        "headers": {"Authorization": header, "X": "1"},
        "block_size": 0,
    }
    for name in ("Authorization", "authorization"):
        assert options("https://me:x@h/x", {"headers": {name: "mine"}}) == {
            "headers": {name: "mine"}
        }
    assert options("https://me:x@h/x", {"auth": 1}) == {"auth": 1}
    assert options("simplecache::https://me:p%40ss@h/x") == {
        "https": {"headers": {"Authorization": header}}
    }


class _Server(ThreadingHTTPServer):
    """Answers ``/away`` with a redirect to `elsewhere`, all else with data."""

    def __init__(self, elsewhere: str = "") -> None:
        super().__init__(("127.0.0.1", free_port()), _Handler)
        self.elsewhere = elsewhere
        self.authorizations: list[str | None] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def server_close(self) -> None:
        self.shutdown()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.authorizations.append(self.headers["Authorization"])
        body = b"" if self.path == "/away" else b"data"
        self.send_response(200 if body else 302)
        self.send_header("Content-Length", str(len(body)))
        if not body:
            self.send_header("Location", self.server.elsewhere)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Be quiet."""


def test_password_is_sent_to_its_host_only() -> None:
    pytest.importorskip("aiohttp")
    with _Server() as two, _Server(f"http://{two.address}/here") as one:
        url = parse_url(f"http://me:pw@{one.address}/away")
        fs, path = fsspec.core.url_to_fs(url.base, **storage_options(url), skip_instance_cache=True)
        assert fs.cat_file(path) == b"data"
        assert one.authorizations == ["Basic " + base64.b64encode(b"me:pw").decode()]
        assert two.authorizations == [None]


def test_missing_s3fs_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ImportError, match=r"pip install 'nczarr-xarray\[s3\]'"):
        options("s3://b/k")


def test_choosing_makes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("connected")

    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert options("s3://b/k")["anon"] is True


def test_profiles_that_changed_are_read_again(tmp_path: Path) -> None:
    url = parse_url("s3://b/k")
    for region in ("eu-1", "eu-12"):
        write_aws(tmp_path, "config", f"[default]\nregion = {region}\n")
        assert storage_options(url)["client_kwargs"] == {"region_name": region}
