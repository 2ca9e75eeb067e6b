"""Caches of fsspec in front of files that cannot be reached, or only in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.cached import SimpleCacheFileSystem

from nczarr_fsspec.errors import AccessDeniedError, StoreError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.place import open_keystore
from nczarr_fsspec.stores.fsspec import FsspecStore
from tests.support.servers.httpserver import Server

CHUNK = bytes(range(1, 251)) * 4


@pytest.fixture(params=["simplecache", "filecache", "blockcache"])
def cache(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def behind(cache: str, server: Server, folder: Path) -> KeyStore:
    storage = {name: {"cache_storage": str(folder / name)} for name in cache.split("::")}
    return open_keystore(f"{cache}::{server.url}/t#mode=nczarr", storage)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning")  # a block cache leaves one
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"unavailable_every": 1, "unavailable_status": 500}, StoreError),
        ({"unavailable_every": 1, "unavailable_status": 403}, AccessDeniedError),
        ({"reset_every": 1}, StoreError),
        ({"cut_every": 1}, StoreError),
    ],
)
def test_a_failure_is_neither_an_absence_nor_kept(
    cache: str, faults: dict[str, int], error: type[Exception], tmp_path: Path
) -> None:
    """Else fill values were read, or what came of a chunk, or zeros."""
    with Server({"/t/v/0": CHUNK}, relent=False) as server:
        store = behind(cache, server, tmp_path)
        assert store.get_many(["v/1"]) == [None]
        vars(server).update(faults)
        with pytest.raises(error):
            store.get_one("v/0")
        vars(server).update(dict.fromkeys(faults, 0))
        assert store.get_many(["v/0", "v/1"]) == [CHUNK, None]
        requests = len(server.requests)
        assert store.get_many(["v/0"]) == [CHUNK]
        assert len(server.requests) == requests
        store.close()


@pytest.mark.usefixtures("no_waiting")
def test_what_a_cache_could_not_find_is_read_again(tmp_path: Path) -> None:
    class Away(fsspec.AbstractFileSystem):
        cachable = False
        calls = 0

        def exists(self, path: str, **_: Any) -> bool:
            type(self).calls += 1
            return self.calls > 1

        def cat_file(self, path: str, *_: Any, **__: Any) -> bytes:
            return CHUNK

        def get_file(self, path: str, to: str, **_: Any) -> None:
            Path(to).write_bytes(CHUNK)

    store = FsspecStore(SimpleCacheFileSystem(fs=Away(), cache_storage=str(tmp_path)), "t")
    assert store.get_many(["v/0"]) == [CHUNK]
    assert Away.calls in (0, 2)  # fsspec 2025.10 does not ask before it reads
    store.close()
