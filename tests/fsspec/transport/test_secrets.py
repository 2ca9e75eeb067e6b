"""Secrets go to no host and over no channel that they are not for, as servers see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.cookiejar import Cookie, CookieJar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from nczarr_fsspec.address_policy import AddressPolicy, Allow
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges.source import ByteSource
from tests.support.servers.certificates import Certificates, make_certificates
from tests.support.servers.httpserver import Server
from tests.support.servers.loginserver import TOKEN, USER, Archive, name_hosts

DATA = b"CDF\x01" + bytes(60)
SECRETS = {"Authorization", "Cookie", "X-Key"}
Write = Callable[..., None]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def rc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Certificates) -> Write:
    """Writes the lines of the rc file that applies; the authority of the test is trusted."""
    path = tmp_path / "rc"
    monkeypatch.setenv("NCRCENV_RC", str(path))
    monkeypatch.delenv("NCRCENV_IGNORE", raising=False)

    def write(*lines: str) -> None:
        path.write_text("\n".join([f"HTTP.SSL.CAINFO={files.authority}", *lines]))

    write()
    return write


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server without TLS."""
    name_hosts(monkeypatch)
    with Server({"/x.nc": DATA}) as running:
        yield running


@pytest.fixture
def safe(files: Certificates) -> Iterator[Server]:
    """A server with TLS."""
    with Server({"/x.nc": DATA}, tls=files.tls()) as running:
        yield running


def opened(url: str, options: dict[str, Any] | None = None) -> None:
    source = Place.of(f"{url}/x.nc#mode=bytes", options).open().data
    assert isinstance(source, ByteSource)
    assert source.head == DATA
    source.close()


def told(server: Server) -> list[dict[str, str]]:
    """What each request says that is secret."""
    return [
        {name: text for name, text in request.headers.items() if name in SECRETS}
        for request in server.requests
    ]


SESSION = SimpleNamespace(
    headers={"Authorization": "Bearer T0ken"}, hooks={}, auth=None, cookies=CookieJar()
)


class TestAddressed:
    """Hosts that a dataset names, as `allow` has them."""

    @pytest.mark.parametrize(
        ("allow", "chain"),
        [
            ({"http://": {}}, ""),
            ({"http://": {"headers": {"X-More": "1"}}}, ""),
            ({"http://": {"logins": SESSION}}, ""),
            (["http://"], ""),
            (True, ""),
            (True, "bytes::"),
            (None, ""),
        ],
    )
    @pytest.mark.parametrize("master", ["/d/m.nca", "https://h.org/m.nca"])
    def test_what_is_for_no_host(
        self, rc: Write, plain: Server, allow: Allow, chain: str, master: str, tmp_path: Path
    ) -> None:
        (tmp_path / "netrc").write_text("machine there.test login me password hunter22\n")
        rc("HTTP.CREDENTIALS.USERPASSWORD=a:b", f"HTTP.NETRC={tmp_path}/netrc")
        if allow is None:
            master = "/d/m.nca"
        policy = AddressPolicy.of(
            master, allow=allow, storage_options={"headers": {"X-Key": "master"}}
        )
        target = policy.resolve(f"{chain}{plain.url.replace('127.0.0.1', 'there.test')}/x.nc")
        opened(target.removesuffix("/x.nc"), policy.options(target))
        assert told(plain) == [{}]

    def test_what_the_caller_gives_for_the_place(self, rc: Write, plain: Server) -> None:
        rc("HTTP.CREDENTIALS.USERPASSWORD=a:b")
        policy = AddressPolicy.of("/d/m.nca", allow={f"{plain.url}/": {}})
        target = policy.resolve(f"{plain.url}/x.nc")
        opened(plain.url, policy.options(target))
        assert told(plain) == [{"Authorization": "Basic YTpi"}]

    def test_a_master_in_a_chain(self, plain: Server, safe: Server) -> None:
        """Its own host gets what is for it, and redirects of fragments are looked at."""
        options = {"http": {"headers": {"X-Key": "own"}}}
        policy = AddressPolicy.of(f"bytes::{plain.url}/m.nca", storage_options=options)
        target = policy.resolve("x.nc")
        opened(target.removesuffix("/x.nc"), policy.options(target))
        assert told(plain) == [{"X-Key": "own"}]
        assert policy.options(target)["http"]["redirects"] == ()


@pytest.mark.parametrize("kind", ["token", "password", "session"])
def test_earthaccess(
    rc: Write, files: Certificates, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Objects with the attributes of its `Auth`, and of the session that this makes."""
    token, (user, password) = {"access_token": TOKEN}, USER
    auth = SimpleNamespace(authenticated=True, token=token, username=None, password=None)
    auth.system = SimpleNamespace(edl_hostname="login.test")
    if kind == "password":
        auth.token, auth.username, auth.password = None, user, password
    if kind == "session":
        headers = {"Authorization": f"Bearer {TOKEN}"}
        auth = SimpleNamespace(headers=headers, hooks={}, auth=None, cookies=CookieJar())
    name_hosts(monkeypatch)
    with Archive({"/x.nc": DATA}, tls=files.tls()) as archive:
        opened(archive.at("data"), {"logins": auth})
        sent = {
            host: {request.headers.get("Authorization", "")[:6] for request in archive.to(host)}
            for host in ("data", "login", "store")
        }
    by_token = {"data": {"Bearer"}, "login": set(), "store": {""}}
    by_password = {"data": {""}, "login": {"Basic "}, "store": {""}}
    assert sent == (by_password if kind == "password" else by_token)


class TestTrustedEnvironment:
    """With ``trust_env``, aiohttp looks for proxies, and sends lines of netrc to all hosts."""

    OPTIONS: ClassVar[dict[str, Any]] = {"client_kwargs": {"trust_env": True}}

    @pytest.fixture(autouse=True)
    def environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "netrc").write_text("default login me password hunter22\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    def test_netrc_is_not_for_where_a_redirect_leads(self, plain: Server) -> None:
        with Server({}, redirect=plain.url) as first:
            opened(first.url, self.OPTIONS)
        assert "Authorization" in told(first)[0]  # as aiohttp has it
        assert told(plain) == [{}]

    def test_proxies_are(self, plain: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", plain.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with Server({}, redirect="http://far.test") as first:
            opened(first.url, self.OPTIONS)
        assert [request.target for request in plain.requests] == ["http://far.test/x.nc"]


class TestWithoutTLS:
    def test_a_line_of_an_rc_file_for_tls(self, rc: Write, plain: Server) -> None:
        for scheme in ("https", "HTTPS"):
            rc(f"[{plain.url.replace('http', scheme)}]HTTP.CREDENTIALS.USERPASSWORD=a:b")
            opened(plain.url)
        assert told(plain) == [{}, {}]

    def test_such_a_line_with_tls(self, rc: Write, safe: Server) -> None:
        for url in (safe.url, safe.url.replace("https", "http")):
            rc(f"[{url}]HTTP.CREDENTIALS.USERPASSWORD=a:b")
            opened(safe.url)
        assert told(safe) == [{"Authorization": "Basic YTpi"}] * 2

    def test_the_token_of_a_session(self, rc: Write, plain: Server, safe: Server) -> None:
        for server in (plain, safe):
            opened(server.url, {"logins": SESSION})
        assert told(plain) == [{}]
        assert told(safe) == [{"Authorization": "Bearer T0ken"}]

    def test_the_cookies_of_a_session(self, rc: Write, plain: Server, safe: Server) -> None:
        """They stay as they are for their owner."""
        jar = CookieJar()
        parts = *("session", "1", None, False), *("127.0.0.1", True, False), *("/", True)
        jar.set_cookie(Cookie(0, *parts, False, None, True, None, None, {}))
        session = SimpleNamespace(headers={}, hooks={}, auth=None, cookies=jar)
        for server in (plain, safe):
            opened(server.url, {"logins": session})
        assert (told(plain), told(safe)) == ([{}], [{"Cookie": "session=1"}])
        assert [cookie.secure for cookie in jar] == [False]

    def test_what_a_redirect_leads_to(
        self, rc: Write, plain: Server, safe: Server, tmp_path: Path
    ) -> None:
        """Both are 127.0.0.1, and cookies know no ports."""
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter22\n")
        rc(f"[{plain.url}]HTTP.CREDENTIALS.USERPASSWORD=a:b")
        safe.redirect, safe.cookie = plain.url, "session=1; Path=/"
        options = {"netrc": str(tmp_path / "netrc"), "logins": {plain.url: "T0ken"}}
        opened(safe.url, options)
        opened(safe.url, options)
        assert "Authorization" in told(safe)[0]
        assert told(plain) == [{}] * 2

    def test_cookies_that_were_set_with_tls(
        self, rc: Write, plain: Server, safe: Server, tmp_path: Path
    ) -> None:
        """The file of cookies says so, to other programs as well."""
        safe.cookie = "session=1; Path=/; Max-Age=600"
        options = {"cookie_jar": str(tmp_path / "cookies")}
        opened(safe.url, options)
        opened(plain.url, options)
        opened(safe.url, options)
        assert told(plain) == [{}]
        assert told(safe)[-1] == {"Cookie": "session=1"}
