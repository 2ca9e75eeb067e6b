from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import AccessDeniedError, URLError
from nczarr_fsspec.place import open_filesystem
from nczarr_fsspec.places.s3netcdf4 import Config, Host, configuration, located, parse_config
from nczarr_fsspec.places.url import parse_url

V8 = """
{
  "version": "8",
  "hosts":
  {
    "minio":
    {
      "alias": "s3://minio",
      "url": "150.246.130.8:9000",
      "accessKey": "ACCESS",
      "secretKey": "hunter2, ]}",
      "api": "S3v4"
    },
  },
  "cache_location": "/scratch/cache",
  "max_cache_size": "128MB",
  "max_object_size_for_memory": "2PB",
  "max_object_size": "1MB",
  "read_threads" : 8,
  "write_threads" : "4"
}
"""
V9 = """
{
    "version": "9",
    "hosts": {
        "s3://tenancy-0": {
            "alias": "tenancy-0",
            "url": "https://tenancy-0.jc.rl.ac.uk/",
            "credentials": {"accessKey": "ACCESS", "secretKey": "hunter2"},
            "backend": "s3aioFileObject",
            "api": "S3v4"
        },
        "open": {"url": "http://[::1]:9000"}
    },
    "backends": {"s3aioFileObject": {"maximum_part_size": "50MB"}},
    "cache_location": "~/.cache",
    "resource_allocation" : {"memory": "1GB", "filehandles": 20}
}
"""


pytestmark = pytest.mark.usefixtures("no_aws")


# ------------------------------------------------------------------------------------- the files


def test_version_8_with_the_comma_of_its_example() -> None:
    config = parse_config(V8, "x.json")
    host = Host("minio", "http://150.246.130.8:9000", "ACCESS", "hunter2, ]}")
    assert config == Config({"minio": host}, "/scratch/cache", 128_000_000, 2 * 10**15, 1_000_000)


def test_version_9(tmp_path: Path) -> None:
    config = parse_config(V9, "x.json")
    assert config.hosts == {
        "tenancy-0": Host("tenancy-0", "https://tenancy-0.jc.rl.ac.uk", "ACCESS", "hunter2"),
        "open": Host("open", "http://[::1]:9000"),
    }
    assert config.cache_location == str(tmp_path / ".cache")
    assert config.max_cache_size is None


@pytest.mark.parametrize(
    ("size", "count"),
    [
        *(("7", 7), (7, 7), ("7B", 7), ("7kB", 7_000), ("1.5GB", 1_500_000_000)),
        *(("7EB", 7 * 10**18), ("7ZB", 7 * 10**21), ("7YB", 7 * 10**24)),
    ],
)
def test_sizes_are_decimal(size: Any, count: int) -> None:
    assert configuration({"max_cache_size": size}).max_cache_size == count


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON: line 1, column 2"),
        ("[]", "is not a configuration"),
        ('{"version": "7"}', "version '7' is not known"),
        ('{"hosts": [1]}', "hosts is not a mapping"),
        ('{"hosts": {"a": 1}}', "host 'a' is not a mapping"),
        ('{"hosts": {"a": {"url": 1}}}', "host 'a': url is not text"),
        ('{"hosts": {"a": {}}}', "host 'a': its url is not"),
        ('{"hosts": {"a": {"url": "http://hunter2@h"}}}', "host 'a': its url is not"),
        ('{"hosts": {"a": {"url": "ftp://h"}}}', "host 'a': its url is not"),
        ('{"hosts": {"a": {"url": "h", "alias": "a/b"}}}', "host 'a': its alias"),
        ('{"hosts": {"a": {"url": "h", "api": "S3v2"}}}', "api 'S3v2' is not served"),
        ('{"hosts": {"a": {"url": "h", "secretKey": "hunter2"}}}', "both are needed"),
        ('{"hosts": {"a": {"url": "h"}, "b": {"url": "h", "alias": "a"}}}', "'a' is given twice"),
        ('{"max_cache_size": "many"}', "max_cache_size: 'many' is no size"),
        ('{"max_cache_size": 1.5}', "max_cache_size: 1.5 is no size"),
        ('{"max_cache_size": {}}', "max_cache_size: {} is no size"),
        ('{"version": ' + "9" * 5000 + "}", "has numbers or a depth"),
        ("[" * 100_000, "has numbers or a depth"),
        ('{"hosts": {"a": {"credentials": 5}}}', "host 'a': credentials is not a mapping"),
        ('{"cache_location": 7}', "cache_location is not the name of a folder"),
    ],
)
def test_what_is_wrong_is_said_without_keys(text: str, reason: str) -> None:
    with pytest.raises(URLError) as caught:
        parse_config(text, "x.json")
    assert str(caught.value).startswith("x.json")
    assert reason in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_no_error_holds_the_text_of_the_file() -> None:
    with pytest.raises(URLError) as caught:
        parse_config('{"secretKey": "hunter2"', "x.json")
    assert caught.value.__context__ is None
    assert "hunter2" not in repr(configuration({"hosts": {"a": {"url": "h"}}}))
    assert "hunter2" not in repr(parse_config(V8, "x"))


def test_which_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configuration() == Config()
    (tmp_path / ".s3nc4.json").write_text('{"version": "8", "max_object_size": 8}')
    assert configuration().max_object_size == 8
    (tmp_path / ".s3nc.json").write_text('{"version": "9", "max_object_size": 9}')
    assert configuration().max_object_size == 9
    monkeypatch.setenv("S3_NC_CONFIG", "~/other.json")
    with pytest.raises(URLError, match=r"other\.json.*there is no such configuration"):
        configuration()
    (tmp_path / "other.json").write_text('{"max_object_size": 7}')
    assert configuration().max_object_size == 7
    assert configuration(tmp_path / ".s3nc4.json").max_object_size == 8
    assert configuration(False) == Config()
    assert configuration(Config(max_object_size=3)).max_object_size == 3
    with pytest.raises(URLError, match="s3nc"):
        configuration(True)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    (tmp_path / ".s3nc.json").write_text('{"max_object_size": 1}')
    assert configuration().max_object_size == 1
    (tmp_path / ".s3nc.json").write_text('{"max_object_size": 22}')
    assert configuration().max_object_size == 22


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / ".s3nc.json").mkdir()
    with pytest.raises(URLError, match="cannot be read"):
        configuration()


# --------------------------------------------------------------------------------------- aliases


def test_an_alias_is_a_service() -> None:
    config = parse_config(V8, "x")
    url, keys = located(parse_url("s3://minio/test/run/x.nca#aws.region=r"), config)
    assert (url.bucket, url.key, url.base) == ("test", "run/x.nca", "s3://test/run/x.nca")
    assert (url.endpoint, url.region) == ("http://150.246.130.8:9000", "r")
    assert url.text == "s3://minio/test/run/x.nca#aws.region=r"
    assert keys == {"key": "ACCESS", "secret": "hunter2, ]}"}
    assert "hunter2" not in repr(url)
    assert b"hunter2" not in pickle.dumps(url)
    url, _ = located(parse_url("simplecache::s3://minio/test/x"), config)
    assert url.base == "simplecache::s3://test/x"
    assert located(parse_url("s3://minio/b/k#aws.profile=lab"), config)[1] == {}
    assert located(parse_url("s3://open/b/k"), parse_config(V9, "x"))[1] == {"anon": True}


@pytest.mark.parametrize(
    "text",
    [
        *("s3://min/test/x", "s3://MINIO/b/x"),
        *("gs3://minio/x", "https://h.org/minio/x", "s3://minio:1/b/x", "s3://minio2/x"),
    ],
)
def test_what_is_no_alias(text: str) -> None:
    url = parse_url(text)
    assert located(url, parse_config(V8, "x")) == (url, {})


def test_an_alias_without_a_bucket() -> None:
    with pytest.raises(URLError, match="write s3://minio/BUCKET/KEY"):
        located(parse_url("s3://minio"), parse_config(V8, "x"))


def test_without_a_configuration_nothing_changes() -> None:
    url = parse_url("s3://minio/test/x")
    assert located(url) == (url, {})
    fs, path = open_filesystem(url, {"key": "K", "secret": "S"})
    assert path == "minio/test/x"
    assert fs.storage_options["key"] == "K"
    assert "endpoint_url" not in fs.storage_options


def test_the_filesystem_of_an_alias(tmp_path: Path) -> None:
    (tmp_path / ".s3nc4.json").write_text(V8)
    url = parse_url("s3://minio/test/x")
    fs, path = open_filesystem(url, None)
    assert path == "test/x"
    options = fs.storage_options
    assert (options["key"], options["secret"]) == ("ACCESS", "hunter2, ]}")
    assert options["endpoint_url"] == "http://150.246.130.8:9000"
    assert options["config_kwargs"]["s3"] == {"addressing_style": "path"}
    own = open_filesystem(url, {"key": "K", "secret": "S"})[0].storage_options
    assert (own["key"], own["secret"]) == ("K", "S")
    anonymous = open_filesystem(url, {"anon": True})[0].storage_options
    assert "key" not in anonymous
    assert open_filesystem(url, {"s3nc": False})[1] == "minio/test/x"
    cached, path = open_filesystem(parse_url("simplecache::s3://minio/test/x"), None)
    assert path == "test/x"
    assert cached.fs.storage_options["key"] == "ACCESS"


# ----------------------------------------------------------------------------- aliases in masters

CONFIG = {"hosts": {"minio": {"url": "127.0.0.1:9000", "accessKey": "K", "secretKey": "hunter2"}}}
OPTIONS = {"s3nc": CONFIG}


@pytest.mark.parametrize(
    ("master", "address", "found"),
    [
        ("/d/x.nca", "s3://minio/test/x_[0].nc", "s3://minio/test/x_[0].nc"),
        ("s3://minio/test/run/x.nca", "s3://minio/test/f.nc", "s3://minio/test/f.nc"),
        ("s3://minio/test/run/x.nca", "s3://test/f.nc", "s3://minio/test/f.nc"),
        ("s3://minio/test/run/x.nca", "f.nc", "s3://minio/test/run/f.nc"),
        ("s3://minio/test/x.nca", "http://127.0.0.1:9000/test/f#mode=s3", "s3://minio/test/f"),
        (
            "http://127.0.0.1:9000/test/x.nca#mode=s3",
            "s3://minio/test/f.nc",
            "http://127.0.0.1:9000/test/f.nc#mode=s3",
        ),
    ],
)
def test_addresses_with_aliases(master: str, address: str, found: str) -> None:
    policy = AddressPolicy.of(master, storage_options=OPTIONS)
    assert policy.resolve(address) == found
    assert policy.options(found) == OPTIONS
    assert "hunter2" not in repr(policy)


def test_an_alias_is_not_a_way_out() -> None:
    for master in ("https://h.org/m.nca", "s3://bucket/m.nca", "s3://minio/test/m.nca"):
        policy = AddressPolicy.of(master, storage_options=OPTIONS)
        for address in ("s3://minio/other/f.nc", "s3://minio", "s3://minio/test/../other/f.nc"):
            with pytest.raises((AccessDeniedError, URLError)):
                policy.resolve(address)
    for allow in ("s3://minio", "s3://minio/other/", "http://127.0.0.1:9000/other"):
        policy = AddressPolicy.of("https://h.org/m.nca", storage_options=OPTIONS, allow=[allow])
        assert policy.resolve("s3://minio/other/f.nc") == "s3://minio/other/f.nc"
        assert policy.options("s3://minio/other/f.nc") == OPTIONS
