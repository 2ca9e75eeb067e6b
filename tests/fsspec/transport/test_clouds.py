"""Google's and Azure's stores, by filesystems that behave as gcsfs and adlfs do."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.asyn import AsyncFileSystem

from nczarr_fsspec import ByteRangeFileSystem, FsspecStore, RemoteZipStore, StoreError, open_source
from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.destination import open_destination
from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError
from nczarr_fsspec.place import Place, open_keystore
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.transport import fsspec as _fsspec
from nczarr_fsspec.transport.request import Extent
from nczarr_xarray import to_nczarr
from tests.support.builders.archives import make_zip

SECRET = "Qz7secret"


class HttpError(Exception):
    """As gcsfs raises it."""

    code = 401


class HttpResponseError(Exception):
    """As Azure's package raises it."""

    status_code = 403


class NotSatisfiableError(Exception):
    """What a range of an empty object is answered with."""

    code = 416


class Cloud(AsyncFileSystem):
    """Objects below buckets; no range may begin behind their end."""

    cachable = False
    objects: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[tuple[str, Any, Any]]] = []
    refusal: ClassVar[Exception | None] = None
    tag: ClassVar[dict[str, str]] = {}

    def __init__(self, *args: Any, token: str = "", account_name: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.said = token or account_name

    def _find(self, path: str) -> bytes:
        refusal = type(self).refusal
        if refusal is not None:
            raise refusal
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        content = self._find(path)
        self.asked.append((self.said, start, end))
        if start is not None and start >= len(content):
            raise NotSatisfiableError(path)
        return content[start:end]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        if path not in self.objects and any(n.startswith(f"{path}/") for n in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        return {"name": path, "size": len(self._find(path)), "type": "file", **self.tag}

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        below = {
            name[len(path) + 1 :].partition("/")[0]
            for name in self.objects
            if name.startswith(f"{path}/")
        }
        return [f"{path}/{name}" for name in sorted(below)]

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.objects[path] = bytes(value)

    async def _rm_file(self, path: str, **_: Any) -> None:
        self._find(path)
        del self.objects[path]

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        self.objects[path2] = self._find(path1)


class GoogleCloud(Cloud):
    protocol = ("gs", "gcs")
    objects: ClassVar[dict[str, bytes]] = {}


class AzureCloud(Cloud):
    protocol = "abfs"
    objects: ClassVar[dict[str, bytes]] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return str(super()._strip_protocol(str(path).replace("az://", "abfs://")))


CLOUDS: dict[str, type[Cloud]] = {
    "gs": GoogleCloud,
    "gcs": GoogleCloud,
    "abfs": AzureCloud,
    "az": AzureCloud,
}
LOGINS = {"gs": "token", "gcs": "token", "abfs": "account_name", "az": "account_name"}


@pytest.fixture(autouse=True)
def clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    known = sys.modules["fsspec.registry"]._registry
    for name, cloud in CLOUDS.items():
        monkeypatch.setitem(known, name, cloud)
        cloud.objects.clear()
        monkeypatch.setattr(cloud, "tag", {"generation": "1", "etag": "a"})
    Cloud.asked.clear()


@pytest.fixture(
    params=["gs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gcs", "abfs", "az"))]
)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def dataset() -> xr.Dataset:
    return xr.Dataset({"v": (("y", "x"), np.arange(20.0).reshape(4, 5), {"units": "m"})})


def test_files(protocol: str, tmp_path: Path) -> None:
    dataset().to_netcdf(tmp_path / "v.nc", engine="h5netcdf")
    CLOUDS[protocol].objects["b/d/v.nc"] = (tmp_path / "v.nc").read_bytes()
    options = {LOGINS[protocol]: SECRET}
    target = f"{protocol}://b/d/v.nc"
    with xr.open_dataset(target, engine="nczarr", storage_options=options) as found:
        xr.testing.assert_identical(found.load(), dataset())
    assert {said for said, _, _ in Cloud.asked} == {SECRET}
    assert all(start is not None for _, start, _ in Cloud.asked)  # by ranges


def test_trees(protocol: str) -> None:
    options = {LOGINS[protocol]: SECRET}
    to_nczarr(dataset(), f"{protocol}://b/d", storage_options=options)
    with xr.open_dataset(f"{protocol}://b/d", engine="nczarr", storage_options=options) as found:
        xr.testing.assert_identical(found.load(), dataset())


def test_sizes_of_chunks(protocol: str) -> None:
    CLOUDS[protocol].objects.update({"b/d/v/0": b"abc", "b/d/v/1": b""})
    store = open_keystore(f"{protocol}://b/d#mode=nczarr")
    assert isinstance(store, FsspecStore)
    assert store.run(store.gather(store.size, ["v/0", "v/1", "v/2"])) == [3, 0, None]
    store.close()


def test_what_was_read_is_asked_for_again_if_it_has_changed(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = CLOUDS[protocol]
    cloud.objects["b/x.nc"] = b"CDF\x01" + bytes(60)
    opened = []
    for generation in ("1", "1", "2"):
        monkeypatch.setattr(cloud, "tag", {"generation": generation})
        source = Place.of(f"{protocol}://b/x.nc#mode=bytes").open().data
        assert isinstance(source, RemoteFileBytes)
        opened.append(source.validator)
        (part,) = source.run(source.fetch([Extent(0, 4)]))
        assert bytes(part) == b"CDF\x01"
        source.close()
    assert opened[0] == opened[1] != opened[2]


def test_the_archive_that_is_changed_is_read_in_the_given_time(protocol: str) -> None:
    CLOUDS[protocol].objects["b/x.zip"] = make_zip({".zgroup": b"{}"})
    destination = open_destination(f"{protocol}://b/x.zip", {"timeout": {"connect": 7}})
    archive = destination.open_archive()
    assert isinstance(archive, RemoteZipStore)
    assert isinstance(archive.source, RemoteFileBytes)
    assert archive.source.transport.timeout.connect == 7
    archive.close()


@pytest.mark.parametrize("tail", [0, 9])
def test_an_empty_file(protocol: str, tail: int) -> None:
    """A range of it is refused, and only then its size is asked for."""
    CLOUDS[protocol].objects["b/empty"] = b""
    fs = fsspec.filesystem(protocol)
    source = open_source(fs, "b/empty", tail=tail)
    assert (source.size, source.head) == (0, b"")
    source.close()
    files = ByteRangeFileSystem(fs=fs)
    assert files.cat_file("b/empty") == b""
    assert files.info("b/empty")["size"] == 0


@pytest.mark.parametrize(
    "changed",
    [
        *(1_000_000, 1_000_000.5, datetime(1970, 1, 12, 13, 46, 40)),  # noqa: DTZ001  # of UTC
        *(datetime(1970, 1, 12, 13, 46, 40, tzinfo=UTC), "1970-01-12T13:46:40Z"),
        *("19700112134640", "19700112134640.25", "Mon, 12 Jan 1970 13:46:40 GMT"),
    ],
    ids=repr,
)
def test_a_time_tells_a_version_only_when_it_is_past(
    protocol: str, changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the same second another version may get the same time, and a tag made of that."""
    CLOUDS[protocol].objects["b/x.nc"] = b"CDF\x01" + bytes(60)
    fs = fsspec.filesystem(protocol)
    found = []
    for now, tag in [
        *((1_000_030, {"mtime": changed}), (1_000_061, {"mtime": changed})),
        *((1_000_030, {"mtime": changed, "etag": "a"}), (1_000_030, {"mtime": "yesterday"})),
    ]:
        monkeypatch.setattr(_fsspec, "clock", lambda now=now: now)
        monkeypatch.setattr(CLOUDS[protocol], "tag", tag)
        source = open_source(fs, "b/x.nc")
        found.append(source.validator)
        source.close()
    assert found == ["", f"mtime={changed};64", "", ""]


def test_what_is_not_there(protocol: str) -> None:
    with pytest.raises(DatasetNotFoundError, match="there is no such file"):
        Place.of(f"{protocol}://b/x.nc#mode=bytes").open()
    store = open_keystore(f"{protocol}://b/d#mode=nczarr")
    assert isinstance(store, FsspecStore)
    assert store.get_many(["x"]) == [None]
    store.close()


@pytest.mark.parametrize(
    "refusal",
    [
        HttpError("Invalid Credentials, 401"),
        HttpResponseError(f"Server failed to authenticate the request: {SECRET}"),
        OSError("Forbidden: b/x.nc\nCaller does not have storage.objects.get access"),
        PermissionError(f"no {SECRET}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_refused(
    protocol: str, refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CLOUDS[protocol], "refusal", refusal)
    options = {LOGINS[protocol]: SECRET, "connection_string": SECRET}
    with pytest.raises(AccessDeniedError, match="for public data") as caught:
        Place.of(f"{protocol}://b/x.nc#mode=bytes", options).open()
    assert LOGINS[protocol] in str(caught.value)
    assert SECRET not in str(caught.value)


def test_other_errors_say_nothing_of_logins(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOUDS[protocol], "refusal", RuntimeError("broken"))
    with pytest.raises(StoreError, match="broken") as caught:
        Place.of(f"{protocol}://b/x.nc#mode=bytes").open()
    assert not isinstance(caught.value, AccessDeniedError)
    assert "public data" not in str(caught.value)


def test_only_a_key_error_that_names_the_file_says_that_it_is_missing(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk would be read as the fill value where an answer was not understood."""
    store = open_keystore(f"{protocol}://b/d#mode=nczarr")
    monkeypatch.setattr(CLOUDS[protocol], "refusal", KeyError("size"))
    (found,) = store.get_many(["v/0.1"])
    assert isinstance(found, StoreError)
    assert "d/v/0.1: cannot be read: KeyError: 'size'" in str(found)
    missing = KeyError("There is no item named 'd/v/0.1' in the archive")
    monkeypatch.setattr(CLOUDS[protocol], "refusal", missing)
    assert store.get_many(["v/0.1"]) == [None]
    store.close()


def test_options_are_for_the_bucket_of_the_master(protocol: str) -> None:
    options = {LOGINS[protocol]: SECRET}
    policy = AddressPolicy.of(f"{protocol}://b/d/m.nca", storage_options=options, allow=True)
    assert policy.options(policy.resolve("f.nc")) == options
    for elsewhere in (f"{protocol}://other/f.nc", "https://h.org/f.nc", "s3://b/f.nc"):
        assert SECRET not in repr(policy.options(policy.resolve(elsewhere)))


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_connections_are_closed_when_nobody_refers_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As gcsfs has it: what closes them gets three arguments."""
    closed = threading.Event()

    class Session:
        async def close(self) -> None:
            closed.set()

    class Connected(GoogleCloud):
        async def _cat_file(self, *args: Any, **options: Any) -> bytes:
            weakref.finalize(self, self.close_session, self.loop, Session(), False)
            return await super()._cat_file(*args, **options)

    monkeypatch.setitem(CLOUDS, "gs", Connected)
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "gs", Connected)
    Connected.objects["b/x.nc"] = b"CDF\x01" + bytes(60)
    source = Place.of("gs://b/x.nc#mode=bytes").open().data
    assert isinstance(source, RemoteFileBytes)
    source.close()
    del source
    end = time.monotonic() + 60
    while not closed.is_set() and time.monotonic() < end:
        gc.collect()  # again: the loop's thread may still have held the answer the last time
        closed.wait(0.05)
    assert closed.is_set()
