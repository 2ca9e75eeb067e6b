from __future__ import annotations

import pickle
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.places.url import (
    MODES,
    NetCDFURL,
    expand_modes,
    is_url,
    parse_url,
    redact,
)


def mode_of(fragment: str) -> set[str]:
    return set(parse_url(f"memory://x#{fragment}").mode)


# ------------------------------------------------------------------------------- fragments


@pytest.mark.parametrize(
    ("fragment", "mode"),
    [
        ("", ""),
        ("mode=", ""),
        ("mode=nczarr", "nczarr"),
        ("nczarr", "nczarr"),
        ("zarr", "zarr nczarr"),
        ("mode=zarr", "zarr nczarr"),
        ("xarray", "xarray zarr nczarr"),
        ("mode=xarray", "xarray zarr nczarr"),
        ("noxarray", "noxarray nczarr"),
        ("mode=zarr,noxarray", "noxarray zarr nczarr"),
        ("mode=xarray,noxarray", "noxarray zarr nczarr"),
        ("bytes", "bytes"),
        ("mode=bytes", "bytes"),
        ("mode=bytes,nczarr", "bytes"),
        ("mode=xarray&bytes", "bytes"),
        ("mode=nczarr,zip,consolidated", "nczarr zip consolidated"),
        ("mode=nczarr&zip&consolidated", "nczarr zip consolidated"),
        ("mode=nczarr&mode=zip", "nczarr zip"),
        ("mode=nczarr,file,nczarr&mode=file", "nczarr file"),
        ("file", "file"),
        ("mode=v2,nczarr", "v2 nczarr"),
        ("MODE=NCZarr,Zip", "nczarr zip"),
        ("mode=nczarr%2Czip", "nczarr zip"),
        ("mode=nczarr, zip", "nczarr zip"),
        ("mode=nczarr,,zip&&", "nczarr zip"),
    ],
)
def test_modes(fragment: str, mode: str) -> None:
    assert mode_of(fragment) == set(mode.split())


def test_macro_s3_is_nczarr_and_mode_s3_is_not() -> None:
    assert parse_url("https://h/b/k#s3").mode == {"s3", "nczarr"}
    assert parse_url("https://h/b/k#mode=s3").mode == {"s3"}
    assert parse_url("https://h/b/k#s3&bytes").mode == {"s3", "bytes"}
    assert parse_url("https://h/b/k#gs3").mode == {"gs3", "nczarr"}


@pytest.mark.parametrize("fragment", ["bogus", "mode=nczarr,bogus", "mode=bogus&nczarr"])
def test_unknown_mode_lists_the_known_ones(fragment: str) -> None:
    with pytest.raises(URLError, match="unknown fragment mode 'bogus'") as caught:
        mode_of(fragment)
    assert all(mode in str(caught.value) for mode in MODES)


def test_unknown_key_lists_the_known_ones() -> None:
    with pytest.raises(URLError, match=r"unknown fragment key 'foo'.*aws\.profile, aws\.region"):
        mode_of("mode=nczarr&foo=bar")


@pytest.mark.parametrize(
    ("fragment", "why"),
    [
        ("mode=dap2", "DAP"),
        ("dap4", "DAP"),
        ("mode=netcdf-3", "content"),
        ("mode=bytes,netcdf-4", "content"),
        ("classic", "content"),
        ("enhanced", "content"),
        ("mode=udf0", "user-defined"),
        ("mode=nczarr,file,zip", "exclude each other"),
        ("bytes=1", "write #mode=bytes"),
        ("aws.profile=a&aws.profile=b", "twice"),
        ("mode=s3", "need an s3://"),
    ],
)
def test_refused_fragments(fragment: str, why: str) -> None:
    with pytest.raises(URLError, match=why):
        mode_of(fragment)


def test_options() -> None:
    url = parse_url("s3://b/k#mode=nczarr&AWS.Profile=a%20b&aws.region=eu-west-1&log&show=fetch")
    assert url.options == {
        "aws.profile": "a b",
        "aws.region": "eu-west-1",
        "log": "",
        "show": "fetch",
    }
    assert url.mode == {"nczarr", "s3"}
    assert url.region == "eu-west-1"


# ------------------------------------------------------------------------------- locations


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///p/x.file#mode=nczarr,file", "/p/x.file"),
        ("file:/p/x.file", "/p/x.file"),
        ("FILE:///p/x.file", "/p/x.file"),
        ("file:///p/x.file/", "/p/x.file"),
        ("file:///p/q/../x.file", "/p/x.file"),
        ("file:///p/a%20b.file", "/p/a%20b.file"),
        ("file:///p/a b?c.file", "/p/a b?c.file"),
        ("file:///C:/p/x", "C:/p/x"),
        ("file://C:/p/x", "C:/p/x"),
    ],
)
def test_local(text: str, path: str) -> None:
    url = parse_url(text)
    assert (url.protocol, url.path, url.base) == ("file", path, f"file://{path}")


def test_local_relative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("file://sub/x.file#nczarr").path == str(Path.cwd() / "sub" / "x.file")


@pytest.mark.parametrize("text", ["file://", "file:///", "file:////etc", "file:/#nczarr"])
def test_local_without_path(text: str) -> None:
    with pytest.raises(URLError, match="file:///absolute/path"):
        parse_url(text)


@pytest.mark.parametrize(
    ("text", "base", "path", "query"),
    [
        ("https://h/p/x.nc#bytes", "https://h/p/x.nc", "/p/x.nc", ""),
        ("HTTP://h:8080/p/x", "http://h:8080/p/x", "/p/x", ""),
        ("https://h/p%20x?a=1&b=2#bytes", "https://h/p%20x?a=1&b=2", "/p%20x", "a=1&b=2"),
        ("https://h", "https://h", "", ""),
        ("http://[::1]:80/x", "http://[::1]:80/x", "/x", ""),
        ("simplecache::https://h/x", "simplecache::https://h/x", "/x", ""),
    ],
)
def test_http(text: str, base: str, path: str, query: str) -> None:
    url = parse_url(text)
    assert (url.base, url.path, url.query, url.bucket) == (base, path, query, None)


def test_http_userinfo_is_apart() -> None:
    url = parse_url("https://me:p%40ss@h:443/x?a=1#bytes")
    assert url.base == "https://h:443/x?a=1"
    assert url.userinfo == "me:p@ss"
    assert url.text == "https://***@h:443/x?a=1#bytes"
    assert "p@ss" not in repr(url)
    assert "p%40ss" not in repr(url)


@pytest.mark.parametrize(
    ("text", "protocol", "target", "base", "path"),
    [
        ("memory://a/b#nczarr", "memory", "memory", "memory://a/b", "a/b"),
        ("abfs://c@acct/d?e", "abfs", "abfs", "abfs://c@acct/d?e", "c@acct/d?e"),
        ("zip://in::https://h/x.zip", "zip", "https", "zip://in::https://h/x.zip", "/x.zip"),
        ("simplecache::s3://b/k", "simplecache", "s3", "simplecache::s3://b/k", "b/k"),
        ("a1::b2::s3://b/k/", "a1", "s3", "a1::b2::s3://b/k", "b/k"),
        ("zip::/p/x.zip", "zip", "file", "zip::file:///p/x.zip", "/p/x.zip"),
    ],
)
def test_other_and_chained(text: str, protocol: str, target: str, base: str, path: str) -> None:
    url = parse_url(text)
    assert (url.protocol, url.target_protocol, url.base, url.path) == (protocol, target, base, path)


@pytest.mark.parametrize(
    "text", ["dods://h/x", "dap4://h/x", "DODS://h/x#nczarr", "simplecache::dap4://h/x"]
)
def test_dap_schemes(text: str) -> None:
    with pytest.raises(URLError, match="DAP"):
        parse_url(text)


@pytest.mark.parametrize("text", ["", "x.nc", "/p/x", "C:\\x", "C://x", "a:b", "x#mode=nczarr"])
def test_no_url(text: str) -> None:
    assert not is_url(text)
    with pytest.raises(URLError, match="is not a URL"):
        parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://",
        "https:///x",
        "https://h:x/y",
        "https://h:0/y",
        "https://h:65536/y",
        "https://[::1/y",
        "https://a:b:c/y",
        "s3://",
        "s3:///k",
        "https://h/#mode=s3",
        "https://s3.amazonaws.com/",
        "memory://a\0b",
        "file:///a\nb",
        "https://s3.amazonaws.com/b/a%00",
    ],
)
def test_bad_locations(text: str) -> None:
    with pytest.raises(URLError):
        parse_url(text)


# -------------------------------------------------------------------------------------- S3

AWS = "https://s3.us-west-2.amazonaws.com"


@pytest.mark.parametrize(
    ("text", "bucket", "key", "region", "endpoint"),
    [
        # the rows of netCDF-C's table
        ("s3://B/k/e", "B", "k/e", None, None),
        ("https://b.s3.us-west-2.amazonaws.com/k", "b", "k", "us-west-2", AWS),
        ("https://b.s3.amazonaws.com/k", "b", "k", None, "https://s3.amazonaws.com"),
        ("https://s3.us-west-2.amazonaws.com/B/k", "B", "k", "us-west-2", AWS),
        ("https://s3.amazonaws.com/B/k", "B", "k", None, "https://s3.amazonaws.com"),
        ("https://s3.eu1.site.org/B/k#s3", "B", "k", "eu1", "https://s3.eu1.site.org"),
        ("https://b.s3.eu1.site.org/k#s3", "b", "k", "eu1", "https://s3.eu1.site.org"),
        ("https://site.org/B/k#s3", "B", "k", None, "https://site.org"),
        # hosts without a region label, ports, plain http, addresses
        ("https://s3.site.org/B/k#s3", "B", "k", None, "https://s3.site.org"),
        ("https://b.s3.site.org/k#s3", "b", "k", None, "https://s3.site.org"),
        ("https://site.org:9000/B/k#mode=s3", "B", "k", None, "https://site.org:9000"),
        ("http://127.0.0.1:8333/B/k#mode=nczarr,s3", "B", "k", None, "http://127.0.0.1:8333"),
        ("http://[::1]:8333/B/k#mode=s3", "B", "k", None, "http://[::1]:8333"),
        ("s3://127.0.0.1/B/k", "B", "k", None, "https://127.0.0.1"),
        ("s3://localhost:9000/B/k", "B", "k", None, "https://localhost:9000"),
        ("s3://s3.eu1.site.org/B/k", "B", "k", "eu1", "https://s3.eu1.site.org"),
        ("s3://b.s3.eu1.site.org/k", "b", "k", "eu1", "https://s3.eu1.site.org"),
        ("s3://s3.us-west-2.amazonaws.com/B/k", "B", "k", "us-west-2", AWS),
        # a bucket's name may have dots
        ("s3://my.data.set/k", "my.data.set", "k", None, None),
        ("https://my.data.s3.us-west-2.amazonaws.com/k", "my.data", "k", "us-west-2", AWS),
        # other names of Amazon's hosts
        ("https://s3-us-west-2.amazonaws.com/B/k", "B", "k", "us-west-2", AWS.replace(".", "-", 1)),
        (
            "https://b.s3.dualstack.us-west-2.amazonaws.com/k",
            "b",
            "k",
            "us-west-2",
            "https://s3.dualstack.us-west-2.amazonaws.com",
        ),
        (
            "https://s3.cn-north-1.amazonaws.com.cn/B/k",
            "B",
            "k",
            "cn-north-1",
            "https://s3.cn-north-1.amazonaws.com.cn",
        ),
        # keys
        ("s3://b", "b", "", None, None),
        ("s3://b/", "b", "", None, None),
        ("s3://b/k/", "b", "k", None, None),
        ("s3://b/k%20e", "b", "k%20e", None, None),
        ("https://s3.amazonaws.com/B/k%20e/", "B", "k e", None, "https://s3.amazonaws.com"),
        ("s3://b/k#aws.region=eu-west-1", "b", "k", "eu-west-1", None),
        (f"{AWS}/B/k#aws.region=eu-west-1", "B", "k", "eu-west-1", AWS),
    ],
)
def test_s3(text: str, bucket: str, key: str, region: str | None, endpoint: str | None) -> None:
    url = parse_url(text)
    assert (url.bucket, url.key, url.region, url.endpoint) == (bucket, key, region, endpoint)
    assert url.path == f"{bucket}/{key}".rstrip("/")
    assert url.base == f"s3://{url.path}"
    assert url.protocol == "s3"
    assert "s3" in url.mode


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("gs3://b/k", None),
        ("https://storage.googleapis.com/b/k", None),
        ("https://b.storage.googleapis.com/k#mode=gs3", None),
        ("https://b.storage.googleapis.com/k#mode=s3", None),
        ("gs3://storage.googleapis.com/b/k", None),
        ("http://127.0.0.1:8333/b/k#mode=gs3", "http://127.0.0.1:8333"),
        ("gs3://127.0.0.1:8333/b/k", "https://127.0.0.1:8333"),
    ],
)
def test_gs3(text: str, endpoint: str | None) -> None:
    url = parse_url(text)
    assert (url.protocol, url.base, url.endpoint) == ("gs3", "gs3://b/k", endpoint)
    assert "gs3" in url.mode


@pytest.mark.parametrize(
    "text",
    [
        "https://b.s3.amazonaws.com/k?X-Amz-Signature=0123",
        "https://u:p@s3.amazonaws.com/b/k",
        "https://storage.googleapis.com/b/k?X-Goog-Signature=0123",
        "https://abc.execute-api.us-east-1.amazonaws.com/b/k",
        "https://b.s3-website-us-east-1.amazonaws.com/k",
        "https://notamazonaws.com/b/k",
        "https://s3.us-east-1.amazonaws.com.evil.org/b/k",
        "https://s3.site.org/b/k",
    ],
)
def test_stays_http(text: str) -> None:
    assert parse_url(text).protocol == "https"
    assert parse_url(text).bucket is None


@pytest.mark.parametrize("text", ["s3://u:p@b/k", "s3://b/k?versionId=1", "https://u:p@h/b/k#s3"])
def test_s3_takes_no_user_and_no_query(text: str) -> None:
    with pytest.raises(URLError, match="no user, password or query"):
        parse_url(text)


# ---------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://u:p@h/x@y", "https://***@h/x@y"),
        ("https://u:p@ss@h/x", "https://***@h/x"),
        ("https://u:p/a?s#s@h/x", "https://***@h/x"),
        ("https://token@h/x", "https://***@h/x"),
        ("a::https://u:p@h/x", "a::https://***@h/x"),
        ("dir://a.nc::https://u:p@h", "dir://a.nc::https://***@h"),
        ("zip://a::https://u:p/q@h/x.zip?sig=0", "zip://a::https://***@h/x.zip?sig=***"),
        ("github://org:repository@main/x", "github://org:repository@main/x"),
        ("https://h/x?jwt=a.b&ticket=c", "https://h/x?jwt=***&ticket=***"),
        ("https://h:8080/x@y", "https://h:8080/x@y"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("https://h/x?a=1&X-Amz-Signature=00&b=2#bytes", None),
        ("https://h/x?token=00", "https://h/x?token=***"),
        ("https://h/x?X%2DAmz%2DCredential=00", "https://h/x?X%2DAmz%2DCredential=***"),
        ("https://h/x?sv=1&sig=a%2F=&se=2", "https://h/x?sv=1&sig=***&se=2"),
        ("zip://a::https://h/x?sig=00::b", "zip://a::https://h/x?sig=***::b"),
        ("s3://b/k#aws.secret_access_key=00", "s3://b/k#aws.secret_access_key=***"),
        ("s3://b/k#aws.profile=key", "s3://b/k#aws.profile=key"),
        ("no URL, a: b@c", "no URL, a: b@c"),
        ("at https://h/x?sig=00: gone, ask a@b", "at https://h/x?sig=*** gone, ask a@b"),
        ("https://h/x: Forbidden, ask a@b", "https://h/x: Forbidden, ask a@b"),
        ("https://h/x?s3cr3t: Forbidden", "https://h/x?***: Forbidden"),
        ("https://h/x?a=b&s3cr3t==#bytes", "https://h/x?a=b&***#bytes"),
        ("https://h/x?raw&20240101&v2", "https://h/x?raw&20240101&v2"),
        ("https://h/x.dods?time1[0:10],lat1234[3]", "https://h/x.dods?time1[0:10],lat1234[3]"),
        ("/d/a?b2cdefg.nc", "/d/a?b2cdefg.nc"),
    ],
)
def test_redact(text: str, masked: str | None) -> None:
    if masked is None:
        masked = "https://h/x?a=1&X-Amz-Signature=***&b=2#bytes"
    assert redact(text) == masked
    assert redact(masked) == masked


# ------------------------------------------------------------------------------- properties

SCHEMES = ["file", "http", "https", "s3", "gs3", "memory", "dods", "simplecache::s3", "Zz"]
NAMES = st.text(string.ascii_lowercase + string.digits + "-", min_size=3, max_size=12).filter(
    lambda name: name.strip("-") == name
)
SECRETS = st.text(string.ascii_letters + string.digits + "/+=", min_size=8, max_size=30).map(
    "Qz7".__add__  # so that it is neither a port nor a word of a message
)


def parsed_or_none(text: str) -> NetCDFURL | None:
    try:
        return parse_url(text)
    except URLError:
        return None


@given(st.sampled_from(SCHEMES), st.text())
def test_parse_raises_url_error_or_nothing(scheme: str, rest: str) -> None:
    text = f"{scheme}://{rest}"
    url = parsed_or_none(text)
    assert pickle.loads(pickle.dumps(url)) == url
    assert hash(url) == hash(parsed_or_none(text))


@given(
    st.sampled_from(SCHEMES),
    st.text(":/@#?&=%[].,0189ahostmodez", max_size=40),
)
def test_parse_raises_url_error_or_nothing_on_punctuation(scheme: str, rest: str) -> None:
    url = parsed_or_none(f"{scheme}://{rest}")
    assert url is None or url.base


@given(st.data(), st.sets(st.sampled_from(sorted(MODES - {"file"})), min_size=1))
def test_mode_does_not_depend_on_spelling(data: st.DataObject, words: set[str]) -> None:
    repeated = data.draw(st.lists(st.sampled_from(sorted(words)), max_size=5)) + sorted(words)
    order = data.draw(st.permutations(repeated))
    cut = data.draw(st.integers(0, len(order)))
    spelled = [f"mode={','.join(order[:cut])}", *(f"mode={word}" for word in order[cut:])]
    url = parse_url(f"https://h/b/k#{'&'.join(data.draw(st.permutations(spelled)))}")
    assert url.mode == expand_modes(words) == expand_modes(url.mode)


@given(NAMES, st.lists(NAMES, min_size=1, max_size=4), st.sets(st.sampled_from(sorted(MODES))))
def test_s3_round_trip(bucket: str, parts: list[str], words: set[str]) -> None:
    words -= {"gs3", "file"}
    first = parse_url(f"s3://{bucket}/{'/'.join(parts)}#mode={','.join(words)}")
    assert (first.bucket, first.key) == (bucket, "/".join(parts))
    assert parse_url(f"{first.base}#mode={','.join(first.mode)}").mode == first.mode
    for host in (f"{bucket}.s3.eu-west-1.amazonaws.com", f"s3.eu-west-1.amazonaws.com/{bucket}"):
        again = parse_url(f"https://{host}/{first.key}#mode={','.join(first.mode)}")
        assert (again.base, again.mode, again.region) == (first.base, first.mode, "eu-west-1")


@given(NAMES, SECRETS, st.sampled_from(["", "#bytes", "#bogus", ":99999/x", "#mode=s3", "/x?a=1"]))
def test_password_never_shows(user: str, secret: str, tail: str) -> None:
    text = f"https://{user}:{secret}@host{tail}"
    try:
        shown = repr(parse_url(text))
    except URLError as error:
        shown = f"{error} {error!r}"
    assert secret not in shown


def test_a_password_that_looks_like_a_port_never_shows() -> None:
    with pytest.raises(URLError, match=r"^https://\*\*\*@host/x\.nc: .* write %23"):
        parse_url("https://user:12#x@host/x.nc")


@pytest.mark.parametrize("secret", ["first#second", "#second", "a#second=third", "a#bytes&second"])
def test_the_end_of_a_password_never_shows(secret: str) -> None:
    with pytest.raises(URLError, match="in a password, write %23") as caught:
        parse_url(f"https://user:{secret}@host/x.nc#mode=bytes")
    assert "second" not in str(caught.value)


@given(SECRETS)
def test_signature_never_shows(secret: str) -> None:
    text = f"https://h/x?X-Amz-Signature={secret}&X-Amz-Expires=60"
    assert secret not in repr(parse_url(text))
    assert secret in parse_url(text).base
    with pytest.raises(URLError) as caught:
        parse_url(f"{text}#bogus")
    assert secret not in str(caught.value)
