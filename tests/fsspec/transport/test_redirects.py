from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
import xarray as xr
from yarl import URL

import nczarr_xarray
from nczarr_fsspec.address_policy import AddressPolicy, Allow
from nczarr_fsspec.errors import AccessDeniedError, RedirectError
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_fsspec.transport.answers import refusal
from nczarr_fsspec.transport.http import address
from nczarr_fsspec.transport.policy import Timeout
from nczarr_fsspec.transport.request_options import RequestOptions
from tests.support.servers.httpserver import Server

#: that of a machine of a cloud, in digits that are not ASCII's
CIRCLED = "http://\u2460\u2465\u2468.254.169.254/b"
DATA = b"CDF\x01" + bytes(28)


@pytest.mark.parametrize(
    ("first", "target", "origins"),
    [
        ("https://h.org/a", "https://h.org/b", ()),
        ("https://h.org/a", "https://h.org:443/b", ()),
        ("https://h.org/a", "https://cdn.org/b", None),
        ("https://h.org/a", "http://10.0.0.1/b", None),
        ("https://h.org/a", "https://cdn.org/b", ("https://cdn.org",)),
        ("https://h.org/a", "https://cdn.org/b", ("https://",)),
        ("http://169.254.169.254/a", "http://169.254.169.254:81/b", None),
    ],
)
def test_redirects_that_are_followed(
    first: str, target: str, origins: tuple[str, ...] | None
) -> None:
    assert refusal(URL(first), URL(target), origins) is None


@pytest.mark.parametrize(
    ("first", "target", "origins"),
    [
        ("https://h.org/a", "http://169.254.169.254/b", None),
        ("https://h.org/a", "http://metadata.google.internal/b", None),
        ("https://h.org/a", "https://cdn.org/b", ()),
        ("https://h.org/a", "http://h.org/b", ()),
        ("https://h.org/a", "https://h.org:444/b", ()),
        ("https://h.org/a", "https://127.0.0.1/b", ("https://",)),
        ("https://h.org/a", "https://localhost/b", ("https://",)),
        ("https://h.org/a", "http://cdn.org/b", ("https://",)),
    ],
)
def test_redirects_that_are_not(first: str, target: str, origins: tuple[str, ...] | None) -> None:
    assert "its server redirects to" in str(refusal(URL(first), URL(target), origins))


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://H.org/B c?d=\u00e9", "http://h.org/B%20c?d=%C3%A9"),
        ("http://b\u00fccher.example:81/%41", "http://xn--bcher-kva.example:81/%41"),
        ("http://B\u00dcCHER.example/\u00e9", "http://xn--bcher-kva.example/%C3%A9"),
        (CIRCLED, "http://169.254.169.254/b"),
    ],
)
def test_hosts_are_asked_for_as_name_servers_know_them(url: str, asked: str) -> None:
    assert address(url) == asked


def test_redirects_to_secrets_in_other_digits() -> None:
    assert "secrets" in str(refusal(URL("https://h.org/a"), URL(address(CIRCLED)), None))


@pytest.mark.parametrize(
    ("target", "own"),
    [
        ("https://h.org/b", True),
        ("https://h.org:443/b", True),
        ("https://h.org:444/b", False),
        ("https://a.h.org/b", False),
    ],
)
@pytest.mark.parametrize("first", ["https://h.org/a", "https://H.org:443/a"])
def test_who_gets_the_headers(
    first: str, target: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that is written, and is the usual one, makes no other host."""
    filesystem: Any = SimpleNamespace(
        fs=SimpleNamespace(kwargs={"headers": {"X-Key": "secret"}}), timeout=Timeout()
    )

    async def asked() -> Any:
        async with aiohttp.ClientSession() as session:
            options = RequestOptions(session, filesystem, [])
            return (await options.ask({"Range": "bytes=0-1"}, URL(first), URL(target)))[0]

    def get(self: Any, url: URL, **options: Any) -> Any:
        return options["headers"]

    monkeypatch.setattr(aiohttp.ClientSession, "get", get)
    assert ("X-Key" in asyncio.run(asked())) is own


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    with Server({"/f.nc": DATA}) as here, Server({"/f.nc": DATA}) as there:
        here.redirect = there.url
        yield here, there


def opened(policy: AddressPolicy) -> ByteSource:
    target = policy.resolve("f.nc")
    found = Place.of(f"{target}#mode=bytes", policy.options(target)).open().data
    assert isinstance(found, ByteSource)
    found.close()
    return found


def test_a_fragment_is_not_read_where_its_server_redirects_to(
    servers: tuple[Server, Server],
) -> None:
    here, there = servers
    with pytest.raises(AccessDeniedError, match=rf"allow=\['{there.url}/'\]"):
        opened(AddressPolicy.of(f"{here.url}/m.nca"))
    assert not there.requests
    allowed: list[Allow] = [[f"{there.url}/"], True]
    for allow in allowed:
        assert opened(AddressPolicy.of(f"{here.url}/m.nca", allow=allow)).head == DATA


def test_what_the_caller_names_may_be_elsewhere(servers: tuple[Server, Server]) -> None:
    here, _ = servers
    found = Place.of(f"{here.url}/f.nc").open().data
    assert isinstance(found, ByteSource)
    assert found.head == DATA
    found.close()


class TestMasters:
    """A master that a redirect leads to, and its fragments."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> dict[str, bytes]:
        written = xr.Dataset({"v": (("y", "x"), np.arange(40.0).reshape(4, 10))})
        written.nczarr.to_cfa(str(tmp_path / "m.nca"), subarray_shape={"y": 2}, relative=True)
        paths = (path for path in tmp_path.rglob("*") if path.is_file())
        return {f"/d/{path.relative_to(tmp_path)}": path.read_bytes() for path in paths}

    def test_they_are_led_there_too(self, files: dict[str, bytes]) -> None:
        with Server(files) as there, Server({}, redirect=there.url) as here:
            with xr.open_dataset(f"{here.url}/d/m.nca", engine="nczarr") as found:
                assert found["v"].values.tolist() == np.arange(40.0).reshape(4, 10).tolist()

    def test_they_may_be_named_there(self, tmp_path: Path) -> None:
        """A master that names its fragments by the URL to which it is redirected."""
        with Server({}) as there, Server({}, redirect=there.url) as here:
            written = xr.Dataset({"v": ("x", np.arange(4.0))})
            written.to_netcdf(tmp_path / "f.nc", engine="netcdf4")
            there.files["/d/f.nc"] = (tmp_path / "f.nc").read_bytes()
            nczarr_xarray.aggregate([f"{there.url}/d/f.nc"], str(tmp_path / "m.nca"), dim="x")
            there.files["/d/m.nca"] = (tmp_path / "m.nca").read_bytes()
            with xr.open_dataset(f"{here.url}/d/m.nca", engine="nczarr") as found:
                assert found["v"].values.tolist() == [0, 1, 2, 3]

    def test_they_are_led_nowhere_else(self, files: dict[str, bytes]) -> None:
        """And what is refused is not asked for in other ways."""
        master = files.pop("/d/m.nca")
        with Server(files) as there, Server({"/d/m.nca": master}, redirect=there.url) as here:
            here.redirect = None
            with xr.open_dataset(f"{here.url}/d/m.nca", engine="nczarr") as found:
                here.redirect = there.url
                before = len(here.requests)
                with pytest.raises(RedirectError, match=rf"allow=\['{there.url}/'\]"):
                    found["v"][0].load()
            assert not there.requests
            assert len(here.requests) - before <= 2
