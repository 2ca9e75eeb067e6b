from __future__ import annotations

import io
import os
import pickle
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL
from zarr.storage import LocalStore

from nczarr_fsspec.address_policy import AddressPolicy, Allow
from nczarr_fsspec.errors import AccessDeniedError, NCZarrError, URLError
from nczarr_fsspec.places.url import parse_url

HTTP = "https://data.example.org:8443/cmip/run/m.nca?token=hunter2#mode=bytes"
S3 = "s3://bucket/cmip/run/m.nca#aws.profile=lab"
MINIO = "http://127.0.0.1:9000/bucket/run/m%20m.nca#mode=s3"


def resolve(address: str, master: str, allow: Allow = None, **replace: str) -> str:
    return AddressPolicy.of(master, allow=allow, replace=replace).resolve(address)


# ------------------------------------------------------------------------------------ resolution


@pytest.mark.parametrize(
    ("master", "address", "found"),
    [
        (HTTP, "f.nc", "https://data.example.org:8443/cmip/run/f.nc"),
        (HTTP, "./a/../f.nc", "https://data.example.org:8443/cmip/run/f.nc"),
        (HTTP, "../other/f%20g.nc", "https://data.example.org:8443/cmip/other/f%20g.nc"),
        (HTTP, "m/m_tas_[0].nc", "https://data.example.org:8443/cmip/run/m/m_tas_[0].nc"),
        (HTTP, "100%.nc", "https://data.example.org:8443/cmip/run/100%25.nc"),
        (HTTP, "a#1.nc", "https://data.example.org:8443/cmip/run/a%231.nc"),
        (HTTP, "f.nc?v=1", "https://data.example.org:8443/cmip/run/f.nc?v=1"),
        (HTTP, "f.zarr#mode=zarr", "https://data.example.org:8443/cmip/run/f.zarr#mode=zarr"),
        (HTTP, "data:,x", "https://data.example.org:8443/cmip/run/data:,x"),
        (HTTP, "//data.example.org:8443/x.nc", "https://data.example.org:8443/x.nc"),
        (HTTP, "HTTPS://DATA.example.org:8443/x.nc", "HTTPS://DATA.example.org:8443/x.nc"),
        ("https://h.org/d/m.zarr/#mode=zarr", "f.nc", "https://h.org/d/f.nc"),
        ("https://h.org:443/m.nca", "https://h.org/f.nc", "https://h.org/f.nc"),
        ("https://h.org/m.nca", "f.nc", "https://h.org/f.nc"),
        ("https://[2606:4700::1]:80/m.nca", "f.nc", "https://[2606:4700::1]:80/f.nc"),
        ("simplecache::https://h.org/m.nca", "f.nc", "simplecache::https://h.org/f.nc"),
        ("simplecache::https://h.org/m", "https://h.org/f", "simplecache::https://h.org/f"),
        ("https://user:pw@h.org/m.nca", "f.nc", "https://h.org/f.nc"),
        ("dods://h.org/dap/m.nca", "f.nc", "dods://h.org/dap/f.nc"),
        ("https://h.org/dap/m", "f.nc#mode=dap4", "https://h.org/dap/f.nc#mode=dap4"),
        (S3, "f.nc", "s3://bucket/cmip/run/f.nc#aws.profile=lab"),
        (S3, "f%20g.nc", "s3://bucket/cmip/run/f g.nc#aws.profile=lab"),
        (S3, "../f.nc", "s3://bucket/cmip/f.nc#aws.profile=lab"),
        (S3, "f#mode=zarr", "s3://bucket/cmip/run/f#aws.profile=lab&mode=zarr"),
        (S3, "s3://bucket/other/f.nc", "s3://bucket/other/f.nc#aws.profile=lab"),
        ("s3://bucket", "f.nc", "s3://bucket/f.nc"),
        ("s3://bucket/m.zarr/", "f.nc", "s3://bucket/f.nc"),
        (MINIO, "f g#1.nc", "http://127.0.0.1:9000/bucket/run/f%20g%231.nc#mode=s3"),
        (MINIO, "s3://bucket/f.nc", "http://127.0.0.1:9000/bucket/f.nc#mode=s3"),
        ("gs3://bucket/d/m.nca", "f.nc", "gs3://bucket/d/f.nc"),
        ("memory://d/m.nca", "x/f.nc", "memory://d/x/f.nc"),
        ("memory://m.nca", "x/f.nc", "memory://x/f.nc"),
        ("memory://d/m.nca", "../f.nc", "memory://f.nc"),
        ("webdav://m.nca", "f.nc", "webdav://f.nc"),
        ("webdav://m.nca", "webdav://d/f.nc", "webdav://d/f.nc"),
        ("sftp://h.org/m.nca", "f.nc", "sftp://h.org/f.nc"),
        ("/d/m.nca", "f.nc", "/d/f.nc"),
        ("/d/m.nca", "../f.nc", "/f.nc"),
        ("/d/m.nca", "/e/f.nc", "/e/f.nc"),
        ("/d/m.nca", "//e/f.nc", "/e/f.nc"),
        ("/d/m.nca", "file:///e/f%20g.nc", "/e/f g.nc"),
        ("/d/m.nca", "file:/e/f.nc", "/e/f.nc"),
        ("/d/m.nca", "FILE://localhost/e/f.nc", "/e/f.nc"),
        ("/d/m.nca", "f.zarr#mode=nczarr,file", "/d/f.zarr"),
        ("/d/m.nca", "m_tas_[0].nc", "/d/m_tas_[0].nc"),
        ("/d/tree.nczarr/", "f.nc", "/d/f.nc"),
        ("file:///d/m.zip#mode=nczarr,zip", "f.nc", "/d/f.nc"),
        ("/d/m.nca", "https://h.org/f.nc", "https://h.org/f.nc"),
        ("/d/m.nca", "http://127.0.0.1:80/f.nc", "http://127.0.0.1:80/f.nc"),
        ("/d/m.nca", "s3://bucket/f.nc", "s3://bucket/f.nc"),
        ("/d/m.nca", "s3://h.org:99/bucket/f.nc", "https://h.org:99/bucket/f.nc#mode=s3"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="local paths are written as on POSIX")
def test_addresses_are_relative_to_the_master(master: str, address: str, found: str) -> None:
    assert resolve(address, master) == found


def test_names_of_local_files_are_taken_as_they_are_or_decoded(tmp_path: Path) -> None:
    policy = AddressPolicy.of(tmp_path / "m.nca")
    assert policy.resolve("a%20b.nc") == str(tmp_path / "a b.nc")
    (tmp_path / "a%20b.nc").touch()
    assert policy.resolve("a%20b.nc") == str(tmp_path / "a%20b.nc")
    assert policy.resolve(f"{(tmp_path / 'c d.nc').as_uri()}") == str(tmp_path / "c d.nc")
    (tmp_path / "x#zip").touch()
    assert policy.resolve("x#zip") == str(tmp_path / "x#zip")


def test_a_master_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert AddressPolicy.of("m.nca").resolve("f.nc") == str(tmp_path / "f.nc")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert AddressPolicy.of("~/d/m.nca").resolve("f.nc") == str(tmp_path / "d" / "f.nc")


def test_a_place_in_s3_is_found_again_by_its_url() -> None:
    for master in (S3, MINIO, "https://s3.eu-west-1.amazonaws.com/b/m.nca", "gs3://b/m.nca"):
        found = parse_url(resolve("ä b.nc", master))
        own = parse_url(master)
        assert (found.bucket, found.endpoint) == (own.bucket, own.endpoint)
        assert found.key == "/".join((*own.key.split("/")[:-1], "ä b.nc"))


@pytest.mark.parametrize("address", ["", " ", "a\nb", "a\0b", "\x7f"])
@pytest.mark.parametrize("master", [HTTP, S3, "/d/m.nca"])
def test_what_is_no_address(master: str, address: str) -> None:
    with pytest.raises(URLError, match=r"m\.nca.*empty or has control characters"):
        resolve(address, master)


def test_a_master_without_a_name() -> None:
    with pytest.raises(URLError, match="has no name that it is relative to"):
        AddressPolicy.of(None).resolve("f.nc")
    with pytest.raises(AccessDeniedError, match=r"allow=\['https://h\.org/'\]"):
        AddressPolicy.of(None).resolve("https://h.org/f.nc")
    assert AddressPolicy.of(None, allow=True).resolve("https://h.org/f.nc") == "https://h.org/f.nc"


def test_a_master_that_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "m.nca").write_bytes(b"CDF")
    with open(tmp_path / "m.nca", "rb") as file:
        assert AddressPolicy.of(file).resolve("f.nc") == str(tmp_path / "f.nc")
    local = LocalStore(tmp_path / "m.zarr")
    assert AddressPolicy.of(local).resolve("f.nc") == str(tmp_path / "f.nc")
    mapper = fsspec.get_mapper(str(tmp_path / "m.nczarr"))
    assert AddressPolicy.of(mapper).resolve("f.nc") == str(tmp_path / "f.nc")
    opened = fsspec.open("https://h.org/d/m.nca", headers={"X": "hunter2"})
    policy = AddressPolicy.of(opened)
    assert policy.resolve("f.nc") == "https://h.org/d/f.nc"
    assert plain(policy.options("https://h.org/d/f.nc")) == {"headers": {"X": "hunter2"}}
    namelesses: list[object] = [{}, io.BytesIO(b"CDF")]
    for nameless in namelesses:
        with pytest.raises(URLError, match="has no name"):
            AddressPolicy.of(nameless).resolve("f.nc")


def test_a_master_inside_of_a_chain() -> None:
    with pytest.raises(URLError, match="inside of a chain"):
        resolve("f.nc", "zip://m.nca::https://h.org/x.zip")


# --------------------------------------------------------------------------------------- refusals

FOREIGN = [
    *("/etc/passwd", "file:///etc/passwd", "FILE:/etc/passwd", "file://localhost/etc/passwd"),
    *("http://data.example.org:8443/x", "https://data.example.org/x", "https://evil.org/x"),
    *("//evil.org/x", "https://data.example.org:8443.evil.org/x", "s3://other/x", "gs3://bucket/x"),
    *("https://127.0.0.1/x", "https://localhost:8443/x", "https://169.254.169.254/latest"),
    *("memory://x", "reference://x", "ftp://data.example.org/x", "github://a:b@c/x"),
    *(
        "simplecache::https://evil.org/x",
        "zip://x::file:///etc/x.zip",
        "::x",
        "local:///etc/passwd",
    ),
    *("https://data.example.org:8443/b/x#mode=s3", "data.example.org::https://evil.org/x"),
    *("https://evil.s3.amazonaws.com/x", "s3://data.example.org:8443/b/x", "gs://bucket/x"),
    *("https://dａta.example.org:8443/x", "https://data.example.org.:8443/x"),
]
DECEIVING = [
    *("https://data.example.org:8443@evil.org/x", "https://evil.org\\@data.example.org:8443/x"),
    *("https://data.example.org:8443\\.evil.org/x", "https://u:p@data.example.org:8443/x"),
    *("https://data.example.org:8443 .evil.org/x", "https:///evil.org/x", "https://[::1/x"),
    *("\\\\evil.org\\share\\x", "https://data.example.org%2eevil.org/x", "file://evil.org/x"),
    *(
        "a/b::https://evil.org/x",
        "a/x::fe]",
        "https://data.example.org:8443/a::fe]",
        "%2525252525252e",
    ),
    *("..\\..\\x", "https://data.example.org:8443/x#aws.profile=prod", "file:x", "https://a:b:c/x"),
]
ESCAPING = [
    "../../../x",
    "%2e%2e/../../x",
    "a/..%2f..%2f..%2f..%2fx",
    "..;/x",
    "%252e%252e/%252e%252e/../x",
]


@pytest.mark.parametrize("address", FOREIGN)
def test_a_remote_master_names_its_own_host_only(address: str) -> None:
    with pytest.raises((AccessDeniedError, URLError)) as caught:
        resolve(address, HTTP)
    message = str(caught.value)
    assert message.startswith("https://data.example.org:8443/cmip/run/m.nca?token=***")
    assert "hunter2" not in message
    if isinstance(caught.value, AccessDeniedError):
        assert "allow=" in message


@pytest.mark.parametrize("address", DECEIVING)
@pytest.mark.parametrize("master", [HTTP, S3])
def test_addresses_that_deceive_are_errors(master: str, address: str) -> None:
    with pytest.raises((AccessDeniedError, URLError)):
        resolve(address, master)


@pytest.mark.parametrize("address", ESCAPING)
@pytest.mark.parametrize("master", [HTTP, S3, MINIO, "memory://a/b/m"])
def test_nothing_leads_out_of_a_server_or_bucket(master: str, address: str) -> None:
    if master != HTTP and address.startswith(("a/", "..;")):
        master = master.replace("/run", "")
    with pytest.raises(AccessDeniedError):
        resolve(address, master)


LED = "https://cdn.org/pub/m.nca"


@pytest.mark.parametrize(
    ("led", "address"),
    [
        (LED, "https://cdn.org/pub/x"),
        (LED, "https://cdn.org:443/pub/a/x"),
        (LED, "https://data.example.org:8443/x"),
        ("https://data.example.org/cmip/m.nca", "https://data.example.org/cmip/x"),
        ("https://b.s3.amazonaws.com/pub/m.nca", "https://b.s3.amazonaws.com/pub/x"),
    ],
)
def test_a_master_names_what_is_beside_it_where_its_server_redirects_to(
    led: str, address: str
) -> None:
    policy = AddressPolicy.of(HTTP, storage_options={"headers": {"X": "hunter2"}}, led=led)
    found = policy.resolve(address)
    assert ("headers" in policy.options(found)) == ("data.example.org:8443" in address)


@pytest.mark.parametrize(
    ("led", "address"),
    [
        (LED, "https://cdn.org/x"),
        (LED, "https://cdn.org/pub2/x"),
        (LED, "https://cdn.org/pub/../x"),
        (LED, "https://cdn.org/pub/%252e%252e/x"),
        (LED, "http://cdn.org/pub/x"),
        (LED, "https://cdn.org:444/pub/x"),
        (LED, "https://evil.org/pub/x"),
        (LED, "simplecache::https://cdn.org/pub/x"),
        ("https://10.0.0.1/pub/m.nca", "https://10.0.0.1/pub/x"),
        ("https://intranet/pub/m.nca", "https://intranet/pub/x"),
        ("http://127.0.0.1:8000/pub/m.nca", "http://127.0.0.1:8000/pub/x"),
        ("https://b.s3.amazonaws.com/pub/m.nca", "s3://other/pub/x"),
    ],
)
def test_a_redirect_gives_no_other_rights(led: str, address: str) -> None:
    with pytest.raises((AccessDeniedError, URLError)) as caught:
        AddressPolicy.of(HTTP, led=led).resolve(address)
    if "::" not in address and "%" not in address:
        prefix = str(caught.value).partition("allow=['")[2].partition("']")[0]
        assert resolve(address, HTTP, [prefix])


@pytest.mark.parametrize(
    "address",
    [
        *("s3://other/x", "https://bucket.s3.amazonaws.com/x", "gs3://bucket/x", "/etc/passwd"),
        *("s3://h:1/bucket/x", "https://h.org/x", "http://127.0.0.1:9000/bucket/x#mode=s3"),
    ],
)
def test_a_master_in_s3_names_its_own_bucket_only(address: str) -> None:
    with pytest.raises(AccessDeniedError, match=r"its own bucket.*allow=\["):
        resolve(address, S3)


def test_a_bucket_of_another_service_is_another() -> None:
    with pytest.raises(AccessDeniedError):
        resolve("http://127.0.0.1:9001/bucket/x#mode=s3", MINIO)
    with pytest.raises(AccessDeniedError):
        resolve("http://127.0.0.1:9000/other/x#mode=s3", MINIO)


@pytest.mark.parametrize(
    "address",
    [
        *("http://169.254.169.254/x", "http://2852039166/", "https://metadata.google.internal/x"),
        *("memory://x", "ftp://h.org/x", "ssh://h.org/x", "simplecache::https://h.org/x"),
        *("s3://169.254.169.254/b/x", "reference://x", "local:///etc/passwd"),
    ],
)
def test_what_a_local_master_may_not_name(address: str) -> None:
    with pytest.raises(AccessDeniedError, match="allow="):
        resolve(address, "/d/m.nca")


def test_a_local_master_that_is_not_trusted(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    policy = AddressPolicy.of(folder / "m.nca", allow=[])
    assert policy.resolve("f.nc") == str(folder / "f.nc")
    (tmp_path / "secret.nc").touch()
    (folder / "link.nc").symlink_to(tmp_path / "secret.nc")
    for address in ("../secret.nc", "/etc/passwd", "link.nc", "https://h.org/f.nc", "s3://b/k"):
        with pytest.raises(AccessDeniedError, match="files in its own folder"):
            policy.resolve(address)
    allowed = AddressPolicy.of(folder / "m.nca", allow=tmp_path)
    assert allowed.resolve("../secret.nc") == str(tmp_path / "secret.nc")


# ------------------------------------------------------------------------------ allow and replace


@pytest.mark.parametrize(
    ("allow", "address"),
    [
        ("https://evil.org", "https://evil.org/a/x"),
        (["https://evil.org/a/"], "https://evil.org/a/x"),
        (["https://evil.org/a"], "https://EVIL.org:443/b/../a/x"),
        (["https://evil.org/a b/"], "https://evil.org/a%20b/x"),
        (["http://10.0.0.1/"], "http://10.0.0.1/x"),
        (["https://"], "https://evil.org/x"),
        (["s3://"], "s3://b/x"),
        (["s3://b"], "s3://b/x"),
        (["s3://b/c/"], "s3://b/c/x"),
        (["http://10.0.0.1:9000/"], "http://10.0.0.1:9000/b/x#mode=s3"),
        (["http://10.0.0.1:9000/b"], "http://10.0.0.1:9000/b/x#mode=s3"),
        (["/data"], "file:///data/x"),
        (["file:///data/"], "/data/x"),
        (["file:///"], "/data/x"),
        (True, "simplecache::https://evil.org/x"),
        ("*", "http://169.254.169.254/x"),
        ({"https://evil.org/": None}, "https://evil.org/x"),
    ],
)
def test_what_is_allowed(allow: Allow, address: str) -> None:
    assert resolve(address, HTTP, allow)


@pytest.mark.parametrize(
    ("allow", "address"),
    [
        ([], "https://evil.org/x"),
        (False, "https://evil.org/x"),
        (["https://evil.org/a/"], "https://evil.org/ab/x"),
        (["https://evil.org/a/"], "https://evil.org/a/../b/x"),
        (["https://evil.org/a/"], "https://evil.org/a/%2E%2e/b/x"),
        (["https://evil.org/a/"], "https://evil.org/a/%252e%252e/b/x"),
        (["https://evil.org/a/"], "https://evil.org/a/..%2fb/x"),
        (["https://evil.org/a/"], "https://evil.org/a/..;/b/x"),
        (["https://evil.org/a/"], "https://evil.org/a//../../a/../b/x"),
        (["https://evil.org/a/"], "https://evil.org/a//../b/x"),
        (["https://evil.org/"], "https://evil.org.b/x"),
        (["https://evil.org/"], "https://evil.org:1/x"),
        (["https://evil.org/"], "http://evil.org/x"),
        (["https://"], "https://127.1/x"),
        (["https://"], "https://localhost/x"),
        (["https://"], "simplecache::https://evil.org/x"),
        (["s3://"], "s3://127.0.0.1/b/x"),
        (["s3://b"], "s3://bc/x"),
        (["s3://b/c/"], "s3://b/c/../d"),
        (["/data"], "/data/../etc/passwd"),
        (["/data"], "/database/x"),
    ],
)
def test_what_is_below_no_prefix_is_not_allowed(allow: Allow, address: str) -> None:
    with pytest.raises((AccessDeniedError, URLError)):
        resolve(address, HTTP, allow)


@pytest.mark.parametrize("allow", [[""], [7], 7, ["zip://x::https://h.org/a.zip"]])
def test_what_allow_does_not_take(allow: Allow) -> None:
    with pytest.raises(URLError):
        AddressPolicy.of(HTTP, allow=allow)


@pytest.mark.parametrize("address", [a for a in FOREIGN if "::" not in a])
def test_the_error_says_what_to_allow(address: str) -> None:
    with pytest.raises((AccessDeniedError, URLError)) as caught:
        resolve(address, HTTP)
    if isinstance(caught.value, AccessDeniedError):
        prefix = str(caught.value).partition("allow=['")[2].partition("']")[0]
        assert resolve(address, HTTP, [prefix])


@pytest.mark.parametrize(
    ("master", "replace", "address", "found"),
    [
        ("/d/m.nca", {"/old": "/new"}, "/old/f.nc", "/new/f.nc"),
        ("/d/m.nca", {"/old/": "/new/"}, "/old/f.nc", "/new/f.nc"),
        ("/d/m.nca", {"/old": "/new", "/old/a": "/b"}, "/old/a/f.nc", "/b/f.nc"),
        ("/d/m.nca", {"/old": "/new"}, "/older/f.nc", "/older/f.nc"),
        ("/d/m.nca", {"file:///old": "/new"}, "/old/f.nc", "/new/f.nc"),
        ("/d/m.nca", {"/old": "/new"}, "file:///old/f.nc", "/new/f.nc"),
        ("/d/m.nca", {"/d": "/new"}, "f.nc", "/new/f.nc"),
        ("/d/m.nca", {"f.nc": "g.nc"}, "f.nc", "/d/g.nc"),
        ("/d/m.nca", {"/old": ""}, "/old/f.nc", "/d/f.nc"),
        ("/d/m.nca", {"/old": "sub"}, "/old/f.nc", "/d/sub/f.nc"),
        ("/d/m.nca", {"/a": "/b", "/b": "/a"}, "/a/f.nc", "/b/f.nc"),
        (HTTP, {"/old": "https://evil.org/new"}, "/old/f.nc", "https://evil.org/new/f.nc"),
        (HTTP, {"file:///old": "/new"}, "/old/f.nc", "/new/f.nc"),
        (HTTP, {"/old": ""}, "/old/f.nc", "https://data.example.org:8443/cmip/run/f.nc"),
        (HTTP, {"https://data.example.org:8443/cmip": "/new"}, "f.nc", "/new/run/f.nc"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="local paths are written as on POSIX")
def test_replace(master: str, replace: dict[str, str], address: str, found: str) -> None:
    assert resolve(address, master, **replace) == found


def test_what_moved_into_a_chain_is_allowed_only_with_everything() -> None:
    moved = {"/old": "simplecache::https://h.org/new"}
    assert resolve("/old/f.nc", "/d/m", True, **moved) == "simplecache::https://h.org/new/f.nc"
    with pytest.raises(AccessDeniedError, match="allow=True"):
        resolve("/old/f.nc", "/d/m", **moved)


def test_addresses_that_are_encoded_without_end() -> None:
    with pytest.raises(URLError, match="percent-encoded more than"):
        resolve("%25" + "25" * 100_000 + "2e", HTTP)


def test_a_new_prefix_is_allowed_and_no_more() -> None:
    with pytest.raises(AccessDeniedError):
        resolve("/old/../../x", HTTP, **{"/old": "https://evil.org/a/b"})
    with pytest.raises(URLError, match="empty prefix"):
        AddressPolicy.of(HTTP, replace={"": "/x"})
    pairs: Any = [("/x", "/y")]
    with pytest.raises(URLError, match="is not a mapping"):
        AddressPolicy.of(HTTP, replace=pairs)


# ---------------------------------------------------------------------------------------- options


def test_options_are_for_the_place_of_the_master() -> None:
    options = {"headers": {"X-Key": "hunter2"}, "timeout": 5, "max_requests": 3}
    other = {"headers": {"X-Key": "other"}}
    allow = {"https://evil.org/": None, "https://friend.org/": {}, "https://friend.org/a/": other}
    policy = AddressPolicy.of(HTTP, allow=allow, storage_options=options)
    assert plain(policy.options(policy.resolve("f.nc"))) == options
    assert plain(policy.options(policy.resolve("https://evil.org/f.nc"))) == {
        "timeout": 5,
        "max_requests": 3,
        "addressed": True,
    }
    assert plain(policy.options(policy.resolve("https://friend.org/f.nc"))) == {}
    assert plain(policy.options(policy.resolve("https://friend.org/a/f.nc"))) == other
    assert "hunter2" not in repr(policy)
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert again.resolve("f.nc") == policy.resolve("f.nc")


def test_user_and_password_of_the_master_are_for_its_host() -> None:
    policy = AddressPolicy.of("https://user:hunter2@h.org/m.nca", allow=["https://evil.org/"])
    found = policy.resolve("f.nc")
    assert "hunter2" not in found
    assert policy.options(found)["headers"]["Authorization"].startswith("Basic ")
    assert plain(policy.options(policy.resolve("https://evil.org/f.nc"))) == {"addressed": True}
    assert "hunter2" not in repr(policy)


def test_no_keys_for_a_service_that_only_an_address_names() -> None:
    policy = AddressPolicy.of("/d/m.nca", storage_options={"follow_symlinks": True})
    assert plain(policy.options(policy.resolve("f.nc"))) == {"follow_symlinks": True}
    assert plain(policy.options(policy.resolve("https://h.org/b/k#mode=s3"))) == {"anon": True}
    assert plain(policy.options(policy.resolve("s3://b/k"))) == {}
    assert plain(policy.options(policy.resolve("https://b.s3.amazonaws.com/k"))) == {}
    keys = {"key": "K", "secret": "hunter2"}
    policy = AddressPolicy.of(MINIO, storage_options=keys, allow="/d")
    assert plain(policy.options(policy.resolve("f.nc"))) == keys
    assert plain(policy.options(policy.resolve("/d/f.nc"))) == {}


def plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options without where redirects may lead."""
    return {name: value for name, value in options.items() if name != "redirects"}


@pytest.mark.parametrize(
    ("master", "allow", "address", "origins"),
    [
        (HTTP, None, "f", ()),
        ("http://h.org/m", None, "f", ("https://h.org",)),
        ("http://h.org:81/m", None, "f", ()),
        (HTTP, ["https://a.org/x/", "http://", "s3://b", "/d"], "f", ("http://", "https://a.org")),
        (HTTP, {"https://a.org": {}}, "https://a.org/f", ("https://a.org",)),
        (HTTP, True, "f", None),
        ("/d/m", None, "https://h.org/f", None),
        ("/d/m", ["https://h.org"], "https://h.org/f", ("https://h.org",)),
        (HTTP, ["/d"], "/d/f", None),
        (S3, None, "f", None),
        ("simplecache::https://h.org/m", None, "f", None),
    ],
)
def test_where_redirects_may_lead(
    master: str, allow: Allow, address: str, origins: tuple[str, ...] | None
) -> None:
    policy = AddressPolicy.of(master, allow=allow)
    assert policy.options(policy.resolve(address)).get("redirects") == origins


# --------------------------------------------------------------------------------------- hypothesis

_PIECES = st.sampled_from(
    [
        *(
            "https:",
            "http:",
            "HTTPS:",
            "file:",
            "s3:",
            "gs3:",
            "//",
            "/",
            "\\",
            "@",
            ":",
            "::",
            "?",
        ),
        *("#", "#mode=", "s3", "zarr", "..", ".", "%2e", "%2F", "%5c", "%25", "%", "%00", ";", "["),
        *("]", "::1", "data.example.org", ":8443", "evil.org", "127.0.0.1", "localhost", "bucket"),
        *("user:pw", "f.nc", " ", "\t", "\n", "\r", "\0", "ａ", "。", "\u202e", "simplecache", "&"),
        *(
            "aws.profile=x",
            "data.example.org:8443",
            "C:",
            "~",
            "cmip",
            "amazonaws.com",
            "s3.",
            "\xa0",
        ),
    ]
)
_ADDRESSES = st.one_of(st.text(), st.lists(_PIECES, max_size=9).map("".join))


def _found(address: str, master: str) -> Iterator[str]:
    try:
        yield resolve(address, master)
    except NCZarrError as error:
        assert str(error)


@given(_ADDRESSES)
def test_a_remote_master_never_gets_anything_but_its_host(address: str) -> None:
    for found in _found(address, HTTP):
        url = URL(found.partition("#")[0], encoded=True)
        assert (url.scheme, url.host, url.port) == ("https", "data.example.org", 8443)
        assert url.raw_user is None
        parsed = parse_url(found.partition("#")[0])
        assert parsed.bucket is None
        assert parsed.protocol == "https"
        assert ".." not in unquote(unquote(url.raw_path)).split("/")


@given(_ADDRESSES)
def test_a_master_in_s3_never_gets_anything_but_its_bucket(address: str) -> None:
    for found in _found(address, S3):
        url = parse_url(found)
        assert (url.protocol, url.bucket, url.endpoint) == ("s3", "bucket", None)
        assert url.options == {"aws.profile": "lab"}
        assert ".." not in unquote(url.key).split("/")
    for found in _found(address, MINIO):
        url = parse_url(found)
        assert (url.protocol, url.bucket) == ("s3", "bucket")
        assert url.endpoint == "http://127.0.0.1:9000"


@given(_ADDRESSES)
def test_an_untrusted_local_master_never_gets_anything_but_its_folder(address: str) -> None:
    policy = AddressPolicy.of("/no/such/folder/m.nca", allow=())
    try:
        found = policy.resolve(address)
    except NCZarrError:
        return
    assert os.path.realpath(found).startswith("/no/such/folder/")


def test_a_master_in_the_root_folder() -> None:
    assert AddressPolicy.of(os.sep + "m.nca").resolve("a.nc") == os.path.abspath(os.sep + "a.nc")


@given(st.lists(_PIECES, max_size=9).map("".join))
def test_what_is_allowed_below_a_folder_stays_below(rest: str) -> None:
    """As a server sees it that decodes a path once, or twice, and knows two kinds of slashes."""
    try:
        found = resolve(f"https://evil.org/pub/{rest}", HTTP, ["https://evil.org/pub/"])
    except NCZarrError:
        return
    path = URL(found.partition("#")[0], encoded=True).raw_path
    for _ in range(3):
        assert f"{posixpath.normpath(path.replace(chr(92), '/'))}/".startswith("/pub/")
        path = unquote(path)
