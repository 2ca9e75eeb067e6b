"""What is between us and a server: proxies, certificates, and what is none of HTTP."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import s3fs
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, StoreError, URLError
from nczarr_fsspec.place import Place
from nczarr_fsspec.transport.request import Answer, Extent, FileVersion, Request
from nczarr_fsspec.transport.s3 import S3Transport
from tests.support.servers.certificates import Certificates, make_certificates
from tests.support.servers.httpserver import Server
from tests.support.servers.ports import free_port
from tests.support.servers.rawserver import RawServer

DATA = b"CDF\x01" + bytes(60)
PASSWORD = "hunter22"
KEYS = {"key": "AKID", "secret": "Qz7secretQz7secret"}

pytestmark = pytest.mark.usefixtures("no_aws", "no_waiting")
Opening = Callable[[str, dict[str, Any]], str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Answering(RawServer):
    """Answers every request in the same way, and closes the connection."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.requests: list[dict[str, str]] = []

    def serve(self, reader: Any, writer: Any) -> None:
        first = reader.readline().decode()
        if not first:
            return
        lines = [line.decode().strip() for line in iter(reader.readline, b"\r\n")]
        self.requests.append({"": first} | dict(line.split(": ", 1) for line in lines))
        writer.write(self.answer(self.requests[-1]))

    def answer(self, request: dict[str, str]) -> bytes:
        return b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % self.head


def by_http(url: str, options: dict[str, Any]) -> str:
    """Return what the error says of a file."""
    with pytest.raises(NCZarrError) as caught:
        Place.of(f"{url}/b/x.nc#mode=bytes", options).open()
    return str(caught.value)


def by_s3(url: str, options: dict[str, Any]) -> str:
    """Return what the error says of an object; ``proxy`` is as for HTTP."""
    settings: dict[str, Any] = dict(KEYS)
    settings["client_kwargs"] = {"endpoint_url": url} | options.pop("client_kwargs", {})
    if "proxy" in options:
        proxies = dict.fromkeys(("http", "https"), options.pop("proxy"))
        settings["config_kwargs"] = {"proxies": proxies}
    settings |= options
    with pytest.raises(StoreError) as caught:
        Place.of("s3://b/x.nc#mode=bytes", settings).open()
    return str(caught.value)


@pytest.mark.parametrize("opening", [by_http, by_s3])
@pytest.mark.parametrize(
    ("status", "tries"),
    [(b"407 Proxy Authentication Required", 1), (b"302 Found", 1), (b"503 Busy", 6)],
)
def test_a_proxy_that_does_not_connect(opening: Opening, status: bytes, tries: int) -> None:
    """It is asked again, as a server is, if that may help."""
    with Answering(status) as server:
        proxy = server.url.replace("://", f"://me:{PASSWORD}@")
        said = opening("https://h.test", {"proxy": proxy})
    assert [request[""] for request in server.requests] == [
        "CONNECT h.test:443 HTTP/1.1\r\n"
    ] * tries
    assert "proxy" in said
    assert PASSWORD not in said


def test_a_proxy_that_wants_credentials() -> None:
    with Answering(b"407 Proxy Authentication Required") as server:
        for scheme in ("http", "https"):
            said = by_http(f"{scheme}://h.test", {"proxy": server.url})
            assert said.startswith(f"{scheme}://h.test/b/x.nc: ")
            assert "HTTP status 407" in said
            assert "write user:password@ before the host of the proxy" in said
    assert len(server.requests) == 2


@pytest.mark.parametrize("proxy", ["me:{}@h.test:1", "http://me:{}@h.test:99999"])
@pytest.mark.parametrize("trusted", [False, True])
def test_the_password_of_a_proxy_without_a_scheme(
    proxy: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = proxy.format(PASSWORD)
    options: dict[str, Any] = {"proxy": proxy}
    if trusted:
        for name in ("http_proxy", "no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy)
        options = {"client_kwargs": {"trust_env": True}}
    said = by_http("http://h.test", options)
    assert said.startswith("http://h.test/b/x.nc: ")
    assert PASSWORD not in said


@pytest.mark.parametrize("opening", [by_http, by_s3])
def test_a_certificate_that_the_server_wants(opening: Opening, files: Certificates) -> None:
    """With TLS 1.3 it says so behind the connection, and will say so again."""
    with Server({"/b/x.nc": DATA}, tls=files.tls(ssl.CERT_REQUIRED)) as server:
        trusted: dict[str, Any] = {"client_kwargs": {"verify": files.authority}}
        if opening is by_http:
            trusted = {"ssl": ssl.create_default_context(cafile=files.authority)}
        said = opening(server.url, trusted)
    assert server.requests == []
    assert "tried" not in said
    assert "CERTIFICATE_REQUIRED" in said


@pytest.mark.parametrize("wrong", ["authority", "client"])
def test_certificates_that_are_none(wrong: str, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    options = {
        "authority": {"client_kwargs": {"verify": str(text)}},
        "client": {"config_kwargs": {"client_cert": str(text)}},
    }
    said = by_s3(f"https://127.0.0.1:{free_port()}", options[wrong])
    assert "certificates cannot be used" in said
    assert str(text) in said
    assert "tried" not in said


@pytest.mark.parametrize("bundle", [False, True])
def test_certificates_that_are_not_there(bundle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {} if bundle else {"client_kwargs": {"verify": "/no/such.pem"}}
    if bundle:
        monkeypatch.setenv("AWS_CA_BUNDLE", "/no/such.pem")
    said = by_s3(f"https://127.0.0.1:{free_port()}", options)
    assert "(/no/such.pem): No such file" in said
    assert "tried" not in said


@pytest.mark.parametrize("opening", [by_http, by_s3])
def test_what_is_not_http(opening: Opening) -> None:
    class Other(Answering):
        def answer(self, request: dict[str, str]) -> bytes:
            return b"SSH-2.0-x\r\n" + PASSWORD.encode() + b"\r\n\r\n"

    with Other(b"") as server:
        said = opening(server.url, {})
    assert len(server.requests) == 1
    assert "Bad status line" in said or "Expected HTTP/" in said  # as aiohttp's releases have it
    assert "\n" not in said


def test_a_checksum_of_what_has_not_changed() -> None:
    """As rclone states it with 304, over which aiobotocore stumbles if it reads that first."""
    known = FileVersion('"a"', "", 9)

    class Same(Answering):
        def answer(self, request: dict[str, str]) -> bytes:
            assert request["If-None-Match"] == known.etag
            head = b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nx-amz-checksum-sha256: AAAA\r\n'
            return head + b"Connection: close\r\n\r\n"

    with Same(b"") as server:
        fs = s3fs.S3FileSystem(**KEYS, endpoint_url=server.url, skip_instance_cache=True)
        transport = S3Transport(fs)
        reading = transport.fetch(Request("b/x.nc", "s3://b/x.nc", [Extent(0, 5)], unless=known))
        answer = asyncio.run_coroutine_threadsafe(reading, transport.loop).result(30)
        transport.close()
    assert answer == Answer((), known)
    assert len(server.requests) == 2


@pytest.mark.parametrize("host", ["[fe80::1%25eth0]", "[fe80::1%eth0]"])
def test_hosts_of_one_link(host: str) -> None:
    with pytest.raises(URLError, match="has no valid host"):
        xr.open_dataset(f"http://{host}:9/x.nc", engine="nczarr")


def test_hdfs_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(ImportError, match=r"hdfs://h/x\.nc: .*pip install pyarrow"):
        xr.open_dataset("hdfs://h/x.nc", engine="nczarr")
