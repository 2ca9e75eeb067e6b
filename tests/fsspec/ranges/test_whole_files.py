from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes, RemoteBytes
from nczarr_fsspec.ranges.whole_files import DiskCache, Keeping, KeptFileBytes
from nczarr_fsspec.transport import policy as _policy
from tests.support.faults.locks import is_held
from tests.support.servers.realservers import RangeServer, range_server

CONTENT = os.urandom(1 << 10) * 700
LARGE = os.urandom(1 << 16) * 300


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(_policy, "FIRST_WAIT", 0.0)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("S3_NC_CONFIG", raising=False)
    memory.clear()
    yield
    memory.clear()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    root = tmp_path_factory.mktemp("files") / "root"
    root.mkdir()
    (root / "x.nc").write_bytes(CONTENT)
    (root / "large.nc").write_bytes(LARGE)
    (root / "tiny.nc").write_bytes(b"tiny")
    (root / "empty.nc").write_bytes(b"")
    with range_server(root) as server:
        yield server


@pytest.fixture
def server(running: RangeServer) -> RangeServer:
    running.set()
    return running


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"persist": True, "cache_location": str(tmp_path / "cache")}


def opened(url: str, options: dict[str, Any]) -> ByteSource:
    found = Place.of(f"{url}#mode=bytes", options).open().data
    assert isinstance(found, ByteSource)
    return found


def whole(source: ByteSource) -> bytes:
    assert isinstance(source, LocalBytes)
    return bytes(source.read(0, source.size))


@pytest.mark.parametrize(
    ("name", "data"),
    [("x", CONTENT), ("large", LARGE), ("tiny", b"tiny")],
)
def test_a_file_is_fetched_once(
    server: RangeServer, options: dict[str, Any], name: str, data: bytes
) -> None:
    url = f"{server.url}/{name}.nc"
    first = opened(url, options)
    assert isinstance(first, KeptFileBytes)
    assert (first.url, first.size, first.head) == (url, len(data), data[:65536])
    assert whole(first) == data
    first.close()
    server.set()
    again = opened(url, options)
    assert whole(again) == data
    assert server.requests == 1  # whether it is another version
    memory.clear()  # as in another process
    assert whole(opened(url, options)) == data
    assert server.requests == 2


def test_another_version_is_fetched(server: RangeServer, options: dict[str, Any]) -> None:
    url = f"{server.url}/x.nc"
    assert whole(opened(url, options)) == CONTENT
    server.change("/x.nc")
    assert whole(opened(url, options)) == CONTENT
    assert len(list(Path(options["cache_location"], "nczarr").glob("*.file"))) == 2


def test_threads_do_not_fetch_a_file_at_the_same_time(
    server: RangeServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remote file is closed when it has been fetched, also under a thread that fetches it."""
    source = opened(f"{server.url}/x.nc", options)
    assert isinstance(source, KeptFileBytes)
    source.close()
    held: list[bool] = []

    def watched(*given: Any, real: Any = DiskCache.open) -> int:
        held.append(is_held(source._opening))
        return int(real(*given))

    monkeypatch.setattr(DiskCache, "open", watched)
    assert whole(source) == CONTENT
    assert held == [True]


def test_a_file_that_was_removed_is_fetched_again(
    server: RangeServer, options: dict[str, Any]
) -> None:
    folder = Path(options["cache_location"], "nczarr")
    source = opened(f"{server.url}/x.nc", options)
    copy = pickle.loads(pickle.dumps(source))
    (kept,) = folder.glob("*.file")
    kept.unlink()
    assert whole(source) == CONTENT  # it is open
    assert not kept.exists()
    assert whole(copy) == CONTENT
    assert kept.exists()
    source.close()
    kept.unlink()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: whole(source), range(8))) == {CONTENT}
    copy.close()
    kept.unlink()
    server.change("/x.nc")
    with pytest.raises(StoreError, match="changed"):
        whole(copy)


def test_the_cap_holds(server: RangeServer, options: dict[str, Any]) -> None:
    options["max_cache_size"] = len(CONTENT) + 10
    folder = Path(options["cache_location"], "nczarr")
    assert whole(opened(f"{server.url}/x.nc", options)) == CONTENT
    source = opened(f"{server.url}/large.nc", options)
    assert isinstance(source, RemoteBytes)  # larger than the cache
    source.close()
    assert whole(opened(f"{server.url}/tiny.nc", options)) == b"tiny"
    assert len(list(folder.glob("*.file"))) == 2
    options["max_cache_size"] = f"{len(CONTENT)}B"
    (path,) = (path for path in folder.glob("*.file") if path.stat().st_size > 10)
    path.unlink()
    assert whole(opened(f"{server.url}/x.nc", options)) == CONTENT
    assert [path.stat().st_size for path in folder.glob("*.file")] == [len(CONTENT)]


def test_without_a_version_nothing_is_kept(server: RangeServer, options: dict[str, Any]) -> None:
    server.set(noetag=1)
    source = opened(f"{server.url}/x.nc", options)
    assert isinstance(source, RemoteBytes)
    source.close()


def test_diskless(server: RangeServer, tmp_path: Path) -> None:
    for name, data in (("x", CONTENT), ("large", LARGE), ("empty", b"")):
        source = opened(f"{server.url}/{name}.nc", {"diskless": True})
        requests = server.requests
        assert whole(source) == data
        assert server.requests == requests
    limit = {"s3nc": {"max_object_size_for_memory": len(CONTENT)}}
    assert isinstance(opened(f"{server.url}/x.nc", {"diskless": True, **limit}), LocalBytes)
    source = opened(f"{server.url}/large.nc", {"diskless": True, **limit})
    assert isinstance(source, RemoteBytes)
    source.close()


def test_a_configuration_says_where(server: RangeServer, tmp_path: Path) -> None:
    config = {"cache_location": str(tmp_path / "c"), "max_cache_size": "1MB"}
    source = opened(f"{server.url}/x.nc", {"persist": True, "s3nc": config})
    assert whole(source) == CONTENT
    assert len(list((tmp_path / "c" / "nczarr").glob("*.file"))) == 1
    large = opened(f"{server.url}/large.nc", {"persist": True, "s3nc": config})
    assert isinstance(large, RemoteBytes)
    large.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"persist": 1}, "persist is True or False"),
        ({"diskless": "yes"}, "diskless is True or False"),
        ({"persist": True, "diskless": True}, "exclude each other"),
        ({"cache_location": "/x"}, "need persist=True"),
        ({"max_cache_size": 7}, "need persist=True"),
        ({"persist": True}, "needs cache_location"),
        ({"persist": True, "cache_location": 7}, "needs cache_location"),
        ({"persist": True, "cache_location": "/x", "max_cache_size": "?"}, "is no size"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(URLError, match=reason):
        Keeping.take(dict(options), "https://h.org/x")


def test_a_server_that_fails_leaves_nothing(server: RangeServer, options: dict[str, Any]) -> None:
    source = opened(f"{server.url}/large.nc", options)
    copy = pickle.loads(pickle.dumps(source))
    source.close()
    (kept,) = Path(options["cache_location"], "nczarr").glob("*.file")
    kept.unlink()
    server.set(badcr=1)
    with pytest.raises(StoreError):
        whole(copy)
    assert not list(kept.parent.glob("*.part"))
    server.set()
    assert whole(copy) == LARGE
