"""s3fs against a real server with the options that `storage_options` chooses."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import fsspec
import pytest

from nczarr_fsspec.gs3 import GS3FileSystem
from nczarr_fsspec.place import Place
from nczarr_fsspec.places.url import parse_url
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_fsspec.transport.options import storage_options
from tests.support.servers.s3server import S3Server, s3_server  # noqa: F401  # the fixture

KEY = "data/x"


@pytest.fixture
def machine(no_aws: None, tmp_path: Path) -> Path:
    """Home directory of a machine without AWS settings and rc files."""
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:  # noqa: F811
    fs = fsspec.filesystem("s3", **s3_server.signed(), skip_instance_cache=True)
    for bucket in (s3_server.public, s3_server.private):
        fs.pipe_file(f"{bucket}/{KEY}", bucket.encode())
    return s3_server


def write_profile(home: Path, name: str, key: str, secret: str) -> None:
    text = f"# a comment\n[{name}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    (home / ".aws" / "credentials").write_text(text)


def filesystem(text: str, given: dict[str, Any] | None = None) -> tuple[Any, str]:
    url = parse_url(text)
    options = storage_options(url, given)
    fs, path = fsspec.core.url_to_fs(url.base, **options, skip_instance_cache=True)
    return fs, path


def read(text: str, given: dict[str, Any] | None = None) -> bytes:
    fs, path = filesystem(text, given)
    data: bytes = fs.cat_file(path)
    return data


def test_anonymous_read(machine: Path, server: S3Server) -> None:
    fs, path = filesystem(server.url(KEY))
    assert fs.cat_file(path) == b"public"
    assert fs.cat_file(path, start=1, end=3) == b"ub"
    assert fs.ls(f"{server.public}/data", detail=False) == [f"{server.public}/{KEY}"]
    with pytest.raises(PermissionError):
        fs.pipe_file(path, b"changed")
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{path}.missing")


def test_anonymous_cannot_read_what_is_private(machine: Path, server: S3Server) -> None:
    with pytest.raises(PermissionError):
        read(server.url(KEY, bucket=server.private))


def test_signed_by_profile(machine: Path, server: S3Server) -> None:
    write_profile(machine, "lab", server.access_key, server.secret_key)
    url = server.url(KEY, "&aws.profile=lab", server.private)
    fs, path = filesystem(url)
    assert fs.cat_file(path) == b"private"
    fs.pipe_file(f"{path}.new", b"written")
    assert fs.cat_file(f"{path}.new") == b"written"
    fs.rm_file(f"{path}.new")
    with pytest.raises(PermissionError):
        read(server.url(KEY, bucket=server.private))  # there is no default profile
    with pytest.raises(PermissionError):
        read(server.url(KEY, "&aws.profile=no", server.private))


def test_signed_by_rc_file(machine: Path, server: S3Server) -> None:
    write_profile(machine, "lab", server.access_key, server.secret_key)
    (machine / ".ncrc").write_text(f"[{server.endpoint}/{server.private}]AWS.PROFILE=lab\n")
    assert read(server.url(KEY, bucket=server.private)) == b"private"


def test_signed_by_default_profile(machine: Path, server: S3Server) -> None:
    write_profile(machine, "default", server.access_key, server.secret_key)
    assert read(server.url(KEY, bucket=server.private)) == b"private"


def test_signed_by_environment(
    machine: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(machine, "default", "wrong", "wrong")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    assert read(server.url(KEY, bucket=server.private)) == b"private"


def test_signed_by_storage_options(machine: Path, server: S3Server) -> None:
    url = f"s3://{server.private}/{KEY}"
    assert read(url, server.signed()) == b"private"
    assert read(f"simplecache::{url}", {"s3": server.signed()}) == b"private"


def test_chain_gets_the_credentials(machine: Path, server: S3Server) -> None:
    write_profile(machine, "lab", server.access_key, server.secret_key)
    url = server.url(KEY, "&aws.profile=lab", server.private)
    assert read(f"simplecache::{url}") == b"private"


def test_region_and_configured_endpoint(
    machine: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / ".aws" / "config").write_text(
        f"[profile lab]\nregion = eu-north-1\nendpoint_url = {server.endpoint}\n"
        f"aws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n"
    )
    fs, path = filesystem(f"s3://{server.private}/{KEY}#aws.profile=lab")
    assert fs.cat_file(path) == b"private"
    assert fs.s3.meta.region_name == "eu-north-1"


def test_wrong_secret_never_shows(
    machine: Path, server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "Qz7wrongQz7wrongQz7wrong"
    write_profile(machine, "lab", server.access_key, secret)
    url = server.url(KEY, "&aws.profile=lab", server.private)
    fs, path = filesystem(url)
    with pytest.raises(PermissionError) as caught:
        fs.cat_file(path)
    shown = "".join(traceback.format_exception(caught.value))
    shown += repr(fs) + repr(fs.storage_options) + fs.to_json() + caplog.text
    assert "StringToSign" in caplog.text  # the most talkative level was on
    assert secret not in shown


def test_gs3(machine: Path, server: S3Server) -> None:
    assert GS3FileSystem(skip_instance_cache=True).endpoint_url == "https://storage.googleapis.com"
    fs = GS3FileSystem(**server.signed(), skip_instance_cache=True)
    assert fs.cat_file(f"gs3://{server.private}/{KEY}") == b"private"
    assert fs.ls(f"gs3://{server.private}/data", detail=False) == [f"{server.private}/{KEY}"]
    assert fs.unstrip_protocol(f"{server.private}/{KEY}") == f"gs3://{server.private}/{KEY}"
    client = {"endpoint_url": server.endpoint}
    assert (
        GS3FileSystem(anon=True, client_kwargs=client).cat_file(f"{server.public}/{KEY}")
        == b"public"
    )


def test_gs3_url(machine: Path, server: S3Server) -> None:
    assert fsspec.get_filesystem_class("gs3") is GS3FileSystem  # by the entry point
    write_profile(machine, "default", server.access_key, server.secret_key)
    url = f"{server.endpoint}/{server.private}/{KEY}#mode=gs3"
    assert parse_url(url).protocol == "gs3"
    assert read(url) == b"private"
    assert read(f"gs3://{server.private}/{KEY}", {"endpoint_url": server.endpoint}) == b"private"


def test_a_file_object_of_a_version_is_read_as_of_that_version(server: S3Server) -> None:
    fs = fsspec.filesystem("s3", **server.signed(), version_aware=True, skip_instance_cache=True)
    fs.mkdir("versions")
    status = {"Status": "Enabled"}
    fs.call_s3("put_bucket_versioning", Bucket="versions", VersioningConfiguration=status)
    put = [
        fs.call_s3("put_object", Bucket="versions", Key="x.bin", Body=body)["VersionId"]
        for body in (b"old version", b"new version")
    ]
    for version, content in zip(put, (b"old version", b"new version"), strict=True):
        for file in (
            fs.open("versions/x.bin", version_id=version),
            fs.open(f"versions/x.bin?versionId={version}"),
        ):
            assert content_of(file) == content


def test_a_file_object_of_a_version_in_another_service() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/versions/x.bin", b"old version")
    file = fs.open("/versions/x.bin")
    file.generation = 1  # as those of gcsfs have it
    fs.pipe_file("/versions/x.bin", b"new version")
    assert content_of(file) == b"old version"


def content_of(file: Any) -> bytes:
    source = Place.of(file).open().data
    assert isinstance(source, ByteSource)
    return bytes(source.head)
