"""The keys ``HTTP.*`` of netCDF's rc files, as servers see them."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.place import Place
from nczarr_fsspec.places.url import parse_url
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_fsspec.transport.options import storage_options
from tests.support.servers.certificates import PASSWORD, Certificates, make_certificates
from tests.support.servers.httpserver import Request, Server
from tests.support.servers.loginserver import USER, Archive, name_hosts

DATA = b"CDF\x01" + bytes(60)
Write = Callable[..., None]


@pytest.fixture
def rc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the lines of the rc file that applies."""
    path = tmp_path / "rc"
    monkeypatch.setenv("NCRCENV_RC", str(path))
    monkeypatch.delenv("NCRCENV_IGNORE", raising=False)

    def write(*lines: str) -> None:
        path.write_text("\n".join(lines))

    write()
    return write


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """A server that redirects to another origin, and that."""
    with Server({"/x.nc": DATA}) as there, Server({"/x.nc": DATA}) as here:
        here.redirect = there.url
        yield here, there


def opened(url: str, **options: Any) -> None:
    source = Place.of(f"{url}/x.nc#mode=bytes", options).open().data
    assert isinstance(source, ByteSource)
    assert source.head == DATA
    source.close()


def said(server: Server) -> list[str]:
    """User and password, or what else each request says."""
    texts = [request.headers.get("Authorization", "") for request in server.requests]
    return [
        base64.b64decode(text[6:]).decode() if text.startswith("Basic ") else text for text in texts
    ]


class TestCredentials:
    @pytest.mark.parametrize(
        "lines",
        [
            ["HTTP.CREDENTIALS.USERNAME=m%e", "HTTP.CREDENTIALS.PASSWORD=a:b"],
            ["HTTP.CREDENTIALS.USER=m%e", "HTTP.CREDENTIALS.PASSWORD=a:b"],
            ["HTTP.CREDENTIALS.USERPASSWORD=m%25e:a%3ab"],
        ],
    )
    @pytest.mark.parametrize(
        "place", ["", "[http://127.0.0.1:{port}]", "[http://127.0.0.1:{port}/x.nc]"]
    )
    def test_spellings(
        self, rc: Write, servers: tuple[Server, Server], lines: list[str], place: str
    ) -> None:
        here, there = servers
        rc(*(place.format(port=here.url.rpartition(":")[2]) + line for line in lines))
        opened(here.url)
        assert (said(here), said(there)) == (["m%e:a:b"], [""])

    @pytest.mark.parametrize(
        "place", ["[http://127.0.0.1]", "[http://localhost:{port}]", "[http://127.0.0.1:{port}/y]"]
    )
    def test_other_places(self, rc: Write, servers: tuple[Server, Server], place: str) -> None:
        here, there = servers
        rc(f"{place.format(port=here.url.rpartition(':')[2])}HTTP.CREDENTIALS.USERPASSWORD=a:b")
        opened(here.url)
        assert (said(here), said(there)) == ([""], [""])

    def test_the_target_of_a_redirect(self, rc: Write, servers: tuple[Server, Server]) -> None:
        here, there = servers
        rc(f"[{there.url}]HTTP.CREDENTIALS.USERPASSWORD=a:b")
        opened(here.url)
        assert (said(here), said(there)) == ([""], ["a:b"])

    def test_a_line_that_is_written_while_a_file_is_open(
        self, rc: Write, servers: tuple[Server, Server], tmp_path: Path
    ) -> None:
        """As a user does who was refused; the files in use keep the connections open."""
        here, _ = servers
        here.redirect = None
        with closing(Place.of(f"{here.url}/x.nc#mode=bytes", {}).open().data):
            rc("HTTP.CREDENTIALS.USERPASSWORD=a:b")
            opened(here.url)
            (tmp_path / "netrc").write_text("machine 127.0.0.1 login n password o")
            rc(f"HTTP.NETRC={tmp_path}/netrc")
            opened(here.url)
            (tmp_path / "netrc").write_text("machine 127.0.0.1 login n password p")
            opened(here.url)
        assert said(here) == ["", "a:b", "n:o", "n:p"]

    def test_what_is_stronger(
        self, rc: Write, servers: tuple[Server, Server], tmp_path: Path
    ) -> None:
        here, _ = servers
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login n password n")
        rc("HTTP.CREDENTIALS.USERPASSWORD=a:b", f"HTTP.NETRC={tmp_path}/netrc")
        opened(here.url)
        opened(here.url, logins={here.url: ("c", "d")})
        opened(here.url, headers={"Authorization": "e"})
        opened(here.url.replace("://", "://f:g@"))
        assert said(here) == ["a:b", "c:d", "e", "f:g"]

    def test_a_host_that_a_dataset_names(self, rc: Write, servers: tuple[Server, Server]) -> None:
        """It gets what is for it, and nothing that is for all."""
        here, there = servers
        rc("HTTP.CREDENTIALS.USERPASSWORD=a:b", f"[{there.url}]HTTP.CREDENTIALS.USERPASSWORD=c:d")
        here.redirect = None
        policy = AddressPolicy.of("/d/m.nca")
        for server in servers:
            opened(server.url, **policy.options(f"{server.url}/x.nc"))
        assert (said(here), said(there)) == ([""], ["c:d"])
        policy = AddressPolicy.of(f"{here.url}/m.nca")
        opened(here.url, **policy.options(f"{here.url}/f.nc"))
        assert said(here)[1:] == ["a:b"]  # the host of the master, which the caller named

    def test_no_secret_becomes_an_option(self, rc: Write) -> None:
        rc("HTTP.CREDENTIALS.USERPASSWORD=a:hunter22", "HTTP.SSL.KEYPASSWORD=hunter22")
        assert "hunter22" not in repr(storage_options(parse_url("https://h.org/x.nc")))


class TestChain:
    @pytest.fixture
    def archive(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
        name_hosts(monkeypatch)
        with Archive({"/x.nc": DATA}) as running:
            yield running

    def test_netrc_and_cookies(self, rc: Write, archive: Archive, tmp_path: Path) -> None:
        """Files as netCDF-C and curl use them: the next program need not log in."""
        (tmp_path / "netrc").write_text(f"machine login.test login {USER[0]} password {USER[1]}")
        rc(f"HTTP.NETRC={tmp_path}/netrc", f"HTTP.COOKIEJAR={tmp_path}/cookies")
        opened(archive.at("data"))
        jar = tmp_path / "cookies"
        assert "data.test" in jar.read_text()
        assert jar.stat().st_mode & 0o777 == 0o600
        # as curl marks cookies of a session
        jar.write_text("\n".join(
            "\t".join("0" if n == 4 else field for n, field in enumerate(line.split("\t")))
            for line in jar.read_text().split("\n")
        ))  # fmt: skip
        opened(archive.at("data"))
        assert archive.logins == 1
        assert len(archive.to("login")) == 1
        opened(
            archive.at("data"), netrc=str(tmp_path / "netrc"), cookie_jar=str(tmp_path / "other")
        )
        assert archive.logins == 2

    def test_credentials_of_the_login_host(self, rc: Write, archive: Archive) -> None:
        rc(f"[{archive.at('login')}]HTTP.CREDENTIALS.USERPASSWORD={':'.join(USER)}")
        opened(archive.at("data"))
        assert archive.logins == 1

    def test_a_file_that_is_no_cookie_jar(self, archive: Archive, tmp_path: Path) -> None:
        (tmp_path / "cookies").write_text("hunter22\n")
        with pytest.raises(StoreError, match="is no file of cookies") as caught:
            opened(archive.at("data"), cookie_jar=str(tmp_path / "cookies"))
        assert "hunter22" not in str(caught.value)
        assert (tmp_path / "cookies").read_text() == "hunter22\n"


class TestOptions:
    @pytest.mark.parametrize(
        ("lines", "given", "options"),
        [
            ([], {}, {}),
            (["HTTP.TIMEOUT=7"], {}, {"timeout": {"whole": 7.0}}),
            (["HTTP.TIMEOUT=0"], {}, {"timeout": {"whole": None}}),
            (["HTTP.CONNECTTIMEOUT=7"], {}, {"timeout": {"connect": 7.0}}),
            (["HTTP.TIMEOUT=7"], {"timeout": 3}, {"timeout": 3}),
            (["HTTP.USERAGENT=me"], {}, {"headers": {"User-Agent": "me"}}),
            (
                ["HTTP.USERAGENT=me"],
                {"headers": {"user-agent": "you"}},
                {"headers": {"user-agent": "you"}},
            ),
            (["HTTP.PROXY.SERVER=http://p:1"], {}, {"proxy": "http://p:1"}),
            (["HTTP.PROXY_SERVER=http://p:1"], {}, {"proxy": "http://p:1"}),
            (["HTTP.COOKIE_FILE=c", "HTTP.COOKIEJAR=j"], {}, {"cookie_jar": "j"}),
            (["[https://h.org]HTTP.NETRC=a", "HTTP.NETRC=b"], {}, {"netrc": "a"}),
            (["[https://i.org]HTTP.NETRC=a"], {}, {}),
            (["HTTP.DEFLATE=1", "HTTP.VERBOSE=1"], {}, {}),
        ],
    )
    def test_keys(
        self, rc: Write, lines: list[str], given: dict[str, Any], options: dict[str, Any]
    ) -> None:
        rc(*lines)
        assert storage_options(parse_url("https://h.org/x.nc"), given) == options

    def test_chains_get_none(self, rc: Write) -> None:
        rc("HTTP.NETRC=a")
        assert storage_options(parse_url("simplecache::https://h.org/x.nc")) == {}
        assert storage_options(parse_url("bytes::https://h.org/x.nc")) == {"https": {"netrc": "a"}}

    @pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
    def test_no_number(self, rc: Write, text: str) -> None:
        rc(f"HTTP.TIMEOUT={text}")
        with pytest.raises(URLError, match=r"HTTP\.TIMEOUT in an rc file: is a number of seconds"):
            opened("https://h.org")

    def test_user_agent(self, rc: Write, servers: tuple[Server, Server]) -> None:
        rc("HTTP.USERAGENT=me")
        opened(servers[0].url)
        assert {r.headers["User-Agent"] for server in servers for r in server.requests} == {"me"}

    def test_proxy(self, rc: Write, servers: tuple[Server, Server]) -> None:
        proxy, _ = servers
        proxy.redirect = None
        proxy.files["//h.org/x.nc"] = DATA
        rc(f"HTTP.PROXY.SERVER={proxy.url.replace('://', '://a:b@')}")
        opened("http://h.org")
        assert proxy.requests[0].target == "http://h.org/x.nc"
        assert proxy.requests[0].headers["Proxy-Authorization"] == "Basic YTpi"


class TestCertificates:
    @pytest.fixture
    def strict(self, files: Certificates) -> Iterator[Server]:
        """A server that wants a certificate."""
        with Server({"/x.nc": DATA}, tls=files.tls(ssl.CERT_REQUIRED)) as running:
            yield running

    def test_authority(self, rc: Write, files: Certificates) -> None:
        with Server({"/x.nc": DATA}, tls=files.tls()) as there:
            with Server({"/x.nc": DATA}, tls=files.tls(), redirect=there.url) as here:
                with pytest.raises(StoreError, match="cannot connect"):
                    opened(here.url)
                rc(f"HTTP.SSL.CAINFO={files.authority}")
                opened(here.url)
                assert there.requests
                rc(f"[https://other.org]HTTP.SSL.CAINFO={files.authority}")
                with pytest.raises(StoreError, match="cannot connect"):
                    opened(here.url)

    @pytest.mark.parametrize("key", ["VALIDATE", "VERIFYPEER"])
    def test_no_validation(self, rc: Write, files: Certificates, key: str) -> None:
        """Of the host that was named; where that redirects to is looked at as ever."""
        with Server({"/x.nc": DATA}, tls=files.tls()) as here:
            rc(f"HTTP.SSL.{key}=0")
            opened(here.url)
            with Server({"/x.nc": DATA}, redirect=here.url) as first:
                with pytest.raises(StoreError, match="cannot connect"):
                    opened(first.url)

    def test_certificate_of_the_user(self, rc: Write, files: Certificates, strict: Server) -> None:
        lines = [
            f"HTTP.SSL.CAINFO={files.authority}",
            f"HTTP.SSL.CERTIFICATE={files.client}",
            f"HTTP.SSL.KEY={files.key}",
            f"HTTP.SSL.KEYPASSWORD={PASSWORD}",
        ]
        rc(*lines)
        opened(strict.url)
        assert [subject_of(request) for request in strict.requests] == ["client"]
        rc(lines[0], *(f"[{strict.url}]{line}" for line in lines[1:]))
        opened(strict.url)
        assert len(strict.requests) == 2

    def test_it_is_shown_to_no_other_host(
        self, rc: Write, files: Certificates, strict: Server
    ) -> None:
        rc(
            f"HTTP.SSL.CAINFO={files.authority}",
            f"HTTP.SSL.CERTIFICATE={files.client}",
            f"HTTP.SSL.KEY={files.key}",
            f"HTTP.SSL.KEYPASSWORD={PASSWORD}",
        )
        with Server({"/x.nc": DATA}, tls=files.tls(ssl.CERT_OPTIONAL)) as there:
            strict.redirect = there.url
            opened(strict.url)
            assert [subject_of(request) for request in there.requests] == [""]
            opened(there.url, addressed=True)
            assert [subject_of(request) for request in there.requests] == ["", ""]
            opened(there.url)
            assert [subject_of(request) for request in there.requests] == ["", "", "client"]

    @pytest.mark.parametrize(
        ("key", "reason"),
        [("CAINFO", "is no file of certificates"), ("CERTIFICATE", "is no certificate with its")],
    )
    @pytest.mark.parametrize("exists", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_files_that_cannot_be_read(
        self, rc: Write, tmp_path: Path, key: str, reason: str, exists: bool
    ) -> None:
        path = tmp_path / "file.pem"
        if exists:
            path.write_text("hunter22")
        rc(f"HTTP.SSL.{key}={path}")
        with pytest.raises(StoreError, match=f"{reason}.*HTTP.SSL.{key}") as caught:
            opened("https://127.0.0.1:9")
        assert str(path) in str(caught.value)
        assert "hunter22" not in str(caught.value)

    def test_wrong_password_of_the_key(self, rc: Write, files: Certificates) -> None:
        rc(f"HTTP.SSL.CERTIFICATE={files.client}", f"HTTP.SSL.KEY={files.key}")
        with pytest.raises(StoreError, match="is no certificate with its key"):
            opened("https://127.0.0.1:9")


def subject_of(request: Request) -> str:
    """The name in the certificate of the client; empty if it has shown none."""
    found = request.certificate or {}
    return str(dict(part[0] for part in found.get("subject", ())).get("commonName", ""))
