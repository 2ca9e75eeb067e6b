"""Logins: by way of other hosts, kept, renewed, and sent to nobody else."""

from __future__ import annotations

import asyncio
import base64
import itertools
import pickle
import threading
from collections.abc import Coroutine, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from yarl import URL

from nczarr_fsspec.errors import AccessDeniedError, StoreError, URLError
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.transport.logins import Logins
from nczarr_fsspec.transport.request import Extent
from tests.support.servers.httpserver import Server
from tests.support.servers.loginserver import TOKEN, USER, Archive, name_hosts

CONTENT = bytes(np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8))
#: apart from each other, behind what opening brings, one request for each
EXTENTS = [Extent(at, at + 10) for at in range(1 << 17, 1 << 20, 1 << 15)]
BASIC = "Basic " + base64.b64encode(":".join(USER).encode()).decode()


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    name_hosts(monkeypatch)
    with Archive({"/d/x.nc": b"CDF\x01" + CONTENT[4:]}) as running:
        yield running


@pytest.fixture
def netrc(tmp_path: Path) -> str:
    path = tmp_path / "netrc"
    path.write_text(f"machine login.test login {USER[0]} password {USER[1]}\n")
    path.chmod(0o600)
    return str(path)


def opened(archive: Archive, **options: Any) -> RemoteFileBytes:
    source = Place.of(f"{archive.at('data')}/d/x.nc#mode=bytes", options).open().data
    assert isinstance(source, RemoteFileBytes)
    return source


def read(source: RemoteFileBytes) -> None:
    """Read many ranges at the same time; a request has one."""

    async def ask() -> list[Any]:
        return [part for (part,) in await asyncio.gather(*(source.fetch([e]) for e in EXTENTS))]

    parts = source.run(ask())
    assert [bytes(part) for part in parts] == [CONTENT[start:stop] for start, stop in EXTENTS]


def told(archive: Archive, header: str) -> dict[str, set[str]]:
    """The values of a header that each host got."""
    return {
        host: {r.headers[header] for r in archive.to(host) if header in r.headers}
        for host in ("data", "login", "store")
    }


class TestChain:
    def test_netrc(self, archive: Archive, netrc: str) -> None:
        source = opened(archive, netrc=netrc)
        hosts = [request.headers["Host"].partition(".")[0] for request in archive.requests]
        assert hosts == ["data", "login", "data", "data", "store"]
        read(source)
        assert told(archive, "Authorization") == {"data": set(), "login": {BASIC}, "store": set()}
        assert told(archive, "Cookie") == {"data": {"session=1"}, "login": set(), "store": set()}
        # the signed URL is remembered
        assert (archive.signed, len(archive.to("data"))) == (1, 3)
        source.close()

    @pytest.mark.slow
    def test_a_cookie_is_kept_for_the_next_file(self, archive: Archive, netrc: str) -> None:
        archive.files["/d/y.nc"] = archive.files["/d/x.nc"]
        first = opened(archive, netrc=netrc)
        second = Place.of(f"{archive.at('data')}/d/y.nc#mode=bytes", {"netrc": netrc}).open().data
        assert archive.logins == 1
        assert len(archive.to("login")) == 1
        first.close()
        assert isinstance(second, RemoteFileBytes)
        second.close()

    @pytest.mark.parametrize(
        "good_for", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 5))]
    )
    def test_signatures_that_expire(self, archive: Archive, netrc: str, good_for: int) -> None:
        source = opened(archive, netrc=netrc)
        archive.good_for = good_for
        read(source)
        assert archive.logins == 1
        # one request asks for all that wait
        assert archive.signed <= 1 + len(EXTENTS)
        source.close()

    def test_a_signature_that_expires_once_is_renewed_once(
        self, archive: Archive, netrc: str
    ) -> None:
        source = opened(archive, netrc=netrc)
        archive.uses["1"] = archive.good_for
        read(source)
        assert archive.signed == 2
        source.close()

    def test_a_login_that_ends(self, archive: Archive, netrc: str) -> None:
        source = opened(archive, netrc=netrc)
        archive.good_for = archive.login_for = 3
        read(source)
        assert archive.logins > 1
        assert told(archive, "Authorization")["store"] == set()
        source.close()

    def test_after_pickling(self, archive: Archive, netrc: str) -> None:
        source = opened(archive, netrc=netrc)
        again = pickle.loads(pickle.dumps(source))
        archive.good_for = 4
        read(again)
        again.close()
        source.close()

    @pytest.mark.slow
    def test_values(self, archive: Archive, netrc: str, tmp_path: Path) -> None:
        values = np.arange(20_000.0).reshape(100, 200)
        written = xr.Dataset({"v": (("y", "x"), values)})
        written.to_netcdf(
            tmp_path / "v.nc", engine="h5netcdf", encoding={"v": {"chunksizes": (5, 200)}}
        )
        archive.files["/d/v.nc"] = (tmp_path / "v.nc").read_bytes()
        archive.good_for = 2
        target = f"{archive.at('data')}/d/v.nc"
        with xr.open_dataset(target, engine="nczarr", storage_options={"netrc": netrc}) as found:
            xr.testing.assert_identical(found.load(), written)


class TestGiven:
    def test_a_pair_for_the_login_host(self, archive: Archive) -> None:
        source = opened(archive, logins={archive.at("login"): USER})
        assert told(archive, "Authorization") == {"data": set(), "login": {BASIC}, "store": set()}
        source.close()

    @pytest.mark.parametrize("credential", [TOKEN, f"Bearer {TOKEN}", lambda: TOKEN])
    def test_a_token_for_the_host_of_the_data(self, archive: Archive, credential: Any) -> None:
        source = opened(archive, logins={archive.at("data"): credential})
        read(source)
        bearer = f"Bearer {TOKEN}"
        assert told(archive, "Authorization") == {"data": {bearer}, "login": set(), "store": set()}
        source.close()

    def test_a_token_that_expires(self, archive: Archive) -> None:
        """In the middle of a read: the function is asked for the next one."""
        tokens: list[str] = []

        def token() -> str:
            tokens.append(f"{TOKEN}{len(tokens)}")
            return tokens[-1]

        archive.token = f"{TOKEN}0"
        source = opened(archive, logins={archive.at("data"): token})
        archive.token, archive.good_for = f"{TOKEN}1", 3
        read(source)
        assert len(tokens) == 2
        archive.token = "another"
        with pytest.raises(AccessDeniedError, match="401"):
            read(source)
        source.close()

    @pytest.mark.parametrize("kind", ["password", "token", "session"])
    def test_earthaccess(self, kind: str) -> None:
        """Objects with the attributes of its `Auth`, and of the session that this makes."""
        token = {"access_token": TOKEN}
        auth = SimpleNamespace(authenticated=True, token=token, username=None, password=None)
        auth.system = SimpleNamespace(edl_hostname="login.test")
        if kind == "password":
            auth.token, (auth.username, auth.password) = None, USER
        if kind == "session":
            hook = SimpleNamespace(hostname="login.test", auth=USER)
            auth = SimpleNamespace(
                headers={"Authorization": f"Bearer {TOKEN}"},
                hooks={"response": [hook]},
                auth=None,
                cookies=CookieJar(),
            )
        target = URL("https://login.test/ask")
        logins = Logins(auth)
        asked = [
            run(logins.header(target, own=False, clear=True)),
            run(logins.header(URL("https://data.test/d/x.nc"), own=True, clear=True)),
            run(logins.header(URL("https://store.test/d/x.nc"), own=False, clear=True)),
            run(logins.header(URL("http://data.test/d/x.nc"), own=True, clear=True)),
        ]
        bearer = f"Bearer {TOKEN}"
        assert (
            asked
            == {
                "password": [BASIC, None, None, None],
                "token": [bearer, bearer, None, None],
                "session": [BASIC, bearer, None, None],
            }[kind]
        )

    def test_what_the_user_says_of_the_host_is_stronger(self, archive: Archive) -> None:
        said = {"headers": {"authorization": f"Bearer {TOKEN}"}}
        source = opened(archive, **said, logins={archive.at("data"): "wrong"})
        assert told(archive, "Authorization")["data"] == {f"Bearer {TOKEN}"}
        source.close()

    def test_cookies_of_the_user_stay(self, archive: Archive, netrc: str) -> None:
        source = opened(archive, headers={"Cookie": "mine=1"}, netrc=netrc)
        assert told(archive, "Cookie") == {
            "data": {"mine=1", "mine=1; session=1"},
            "login": set(),
            "store": set(),
        }
        source.close()


class TestRefused:
    def test_the_login_host_is_named(self, archive: Archive) -> None:
        with pytest.raises(AccessDeniedError, match=r"redirected to login\.test.*logins") as caught:
            opened(archive)
        assert f"{archive.at('data')}/d/x.nc" in str(caught.value)

    def test_wrong_password(self, archive: Archive) -> None:
        logins = {archive.at("login"): (USER[0], "Qz7wrong")}
        with pytest.raises(AccessDeniedError, match="401") as caught:
            opened(archive, logins=logins)
        assert "Qz7" not in str(caught.value)

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            (["h"], "logins: must be a mapping of hosts"),
            ("token", "logins: must be a mapping of hosts"),
            (object(), "logins: must be a mapping of hosts"),
            ({"h": 3}, r"logins: h: must be \(user, password\), a token or"),
            ({"h": ("a", "b", "c")}, r"logins: h: must be \(user, password\), a token or"),
            ({3: "t"}, "logins: 3: is no name of a host: write https://host"),
        ],
    )
    def test_what_cannot_be_understood(self, archive: Archive, given: Any, reason: str) -> None:
        with pytest.raises(URLError, match=reason):
            opened(archive, logins=given)
        assert not archive.requests
        with pytest.raises(URLError):
            Logins(given)

    @pytest.mark.parametrize(
        "name",
        [
            *("https://h.org/data", "ftp://h.org", "h.org/data", "https://", "", "h.org:port"),
            *("https://me:hunter22@h.org", "me:hunter22@h.org", "h.org?x", "h.org#x", "h org"),
        ],
    )
    def test_a_name_that_is_none_of_a_host(self, archive: Archive, name: str) -> None:
        with pytest.raises(URLError, match="is no name of a host") as caught:
            opened(archive, logins={name: "token"})
        assert "hunter22" not in str(caught.value)
        assert not archive.requests

    @pytest.mark.parametrize("name", ["h", "h:8443", "http://[::1]:80", "HTTPS://h/"])
    def test_names_of_hosts(self, name: str) -> None:
        assert Logins({name: "token"})

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("machine login.test login me hunter22 x y", r"line \d+ is not one of a netrc"),
            (None, "cannot be read .storage option netrc.: No such file"),
        ],
    )
    def test_netrc_files(self, archive: Archive, tmp_path: Path, text: str, reason: str) -> None:
        path = tmp_path / "lines"
        if text is not None:
            path.write_text(text)
        with pytest.raises(StoreError, match=reason) as caught:
            opened(archive, netrc=str(path))
        assert str(path) in str(caught.value)
        assert "hunter22" not in str(caught.value)

    def test_a_function_that_fails(self, archive: Archive) -> None:
        def fails() -> str:
            raise RuntimeError("hunter22")

        for function in (fails, lambda: 3):
            with pytest.raises(StoreError, match="the function for it") as caught:
                opened(archive, logins={archive.at("data"): function})
            assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("fails", [False, True])
def test_a_function_is_called_once_for_all_that_wait(fails: bool) -> None:
    """Each token ends the one before it, as some servers have it."""
    calls: list[int] = []
    go = threading.Event()

    def token() -> str:
        assert go.wait(60)
        calls.append(len(calls))
        if fails:
            raise RuntimeError
        return f"t{len(calls)}"

    async def together(*waiting: Coroutine[Any, Any, Any]) -> list[Any]:
        tasks = [asyncio.ensure_future(one) for one in waiting]
        await asyncio.sleep(0)  # now each has asked, or waits
        go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        go.clear()
        return found

    async def read() -> None:
        logins, target = Logins({"h.org": token}), URL("https://h.org/x")
        found = await together(*(logins.header(target, own=True, clear=False) for _ in range(100)))
        if fails:
            assert {type(error) for error in found} == {StoreError}
        else:
            assert found == ["Bearer t1"] * 100
            found = await together(*(logins.renewed(target, "Bearer t1") for _ in range(100)))
            assert found == [True] * 100
            assert await logins.renewed(target, "Bearer t1")  # it was under way for long

    asyncio.run(read())
    assert len(calls) == (1 if fails else 2)


def run(found: Any) -> Any:
    """Run a coroutine that does not wait."""
    try:
        found.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("waited")


HOSTS: list[tuple[str, str, bool]] = [
    ("h.org", "https://h.org/x", True),
    ("H.org", "https://h.org/x", True),
    ("https://h.org/", "https://h.org:443/x", True),
    ("h.org:443", "https://h.org/x", True),
    ("h.org:8443", "https://h.org:8443/x", True),
    ("http://h.org", "http://h.org/x", True),
    ("h.org", "http://h.org/x", False),
    ("h.org", "https://h.org:8443/x", False),
    ("https://h.org", "http://h.org/x", False),
    ("h.org", "https://www.h.org/x", False),
    ("h.org", "https://h.org.evil.net/x", False),
    ("org", "https://h.org/x", False),
    ("h.org:80", "http://h.org/x", False),
    ("http://[::1]:80/", "http://[::1]/x", True),
    ("[::1]", "https://[::1]/x", True),
]


@pytest.mark.parametrize(("name", "target", "sent"), HOSTS)
def test_names_of_hosts(name: str, target: str, sent: bool) -> None:
    for own in (False, True):
        found = Logins({name: "t"}).header(URL(target), own=own, clear=True)
        assert run(found) == ("Bearer t" if sent else None)


def test_netrc_goes_without_tls_where_the_caller_begins_without(netrc: str) -> None:
    asked = [
        run(Logins(None, netrc).header(URL(f"{scheme}://login.test/"), own=own, clear=clear))
        for scheme, own, clear in itertools.product(("https", "http"), (True, False), (True, False))
    ]
    assert asked == [BASIC] * 4 + [BASIC, None] * 2


def test_hosts_in_capitals(archive: Archive) -> None:
    url = f"{archive.at('data').replace('data.test', 'DATA.Test')}/d/x.nc#mode=bytes"
    found = Place.of(url, {"logins": {archive.at("data"): TOKEN}}).open().data
    assert isinstance(found, RemoteFileBytes)
    assert found.head
    assert told(archive, "Authorization")["data"] == {f"Bearer {TOKEN}"}
    found.close()


def test_the_default_of_netrc_is_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    path.write_text("machine h.org login a password b\ndefault login c password d\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    logins = Logins(None, True)
    asked = [
        run(logins.header(URL(f"https://{host}/"), own=True, clear=True))
        for host in ("h.org", "other.org", "default")
    ]
    assert asked == ["Basic YTpi", None, None]


def test_cookies_of_one_host_are_for_no_other() -> None:
    """The second server plays a host of its own; both would be told by their ports only."""
    with Server({"/x.nc": CONTENT}, etag='"1"') as there, Server({}, redirect=there.url) as here:
        url = here.url.replace("127.0.0.1", "localhost")
        source = Place.of(f"{url}/x.nc#mode=bytes", {"cookies": {"mine": "1"}}).open().data
        assert isinstance(source, RemoteFileBytes)
        source.close()
        assert "Cookie" in here.requests[0].headers
        assert not any("Cookie" in request.headers for request in there.requests)
