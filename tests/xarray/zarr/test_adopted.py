"""Stores of zarr-python, read as ours: parts of objects, as shards are read."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, ZipStore

import nczarr_xarray
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import ALL
from nczarr_xarray.zarr.adopted import ZarrKeyStore, ZarrWriter

VALUES = np.arange(1e4).reshape(100, 100)


def memory() -> Store:
    return MemoryStore()


def objects() -> Store:
    stores = pytest.importorskip("obstore.store")
    return ObjectStore(stores.MemoryStore())


@pytest.fixture(params=[memory, objects])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.parametrize(
    "part", [ALL, slice(3, None), slice(0, 4), slice(3, 7), slice(-3, None)], ids=str
)
def test_parts(store: Store, part: slice) -> None:
    data = bytes(range(10))
    ZarrWriter(store).put("v/0", data)
    assert sync(ZarrKeyStore(store).get("v/0", part)) == data[part]


@pytest.mark.parametrize("location", ["start", "end"])
def test_shards(store: Store, location: str) -> None:
    shards: Any = {"shape": (50, 50), "index_location": location}
    array = zarr.create_array(
        store,
        name="v",
        shape=VALUES.shape,
        dtype=VALUES.dtype,
        chunks=(10, 10),
        shards=shards,
        dimension_names=("y", "x"),
    )
    array[:] = VALUES
    view = zarr.open_array(nczarr_xarray.open_store(store), path="v", mode="r")
    np.testing.assert_array_equal(view[5:60, 7], VALUES[5:60, 7])
    with xr.open_dataset(store, engine="nczarr", consolidated=False) as ds:  # type: ignore[arg-type]
        np.testing.assert_array_equal(ds.v[5:60, 7], VALUES[5:60, 7])
    report = nczarr_xarray.doctor(store)
    box = report.predictions[0].costs["box"]
    assert box is not None
    assert box.requests > 1


DATASET = xr.Dataset({"v": (("y", "x"), VALUES)}, {"x": np.arange(100)})


def in_memory(folder: Path) -> Store:
    return MemoryStore()


def local(folder: Path, **options: Any) -> Store:
    return LocalStore(folder / "d", **options)


def archive(folder: Path, read_only: bool = False) -> Store:
    return ZipStore(folder / "d.zip", mode="r" if read_only else "w", read_only=read_only)


def named_like_a_pattern(folder: Path) -> Store:
    return FsspecStore.from_url(f"memory://{folder}/d [1]*?")


def mapper_named_like_a_pattern(folder: Path) -> Any:
    return fsspec.get_mapper(f"memory://{folder}/m [1]*?")


@pytest.mark.parametrize(
    "make", [in_memory, local, archive, named_like_a_pattern, mapper_named_like_a_pattern]
)
def test_stores_are_written(make: Any, tmp_path: Path) -> None:
    store = make(tmp_path)
    nczarr_xarray.to_nczarr(DATASET, store, encoding={"v": {"chunks": (50, 50)}})
    nczarr_xarray.to_nczarr(DATASET[["v"]] * 2, store, mode="a")
    with xr.open_dataset(store, engine="nczarr") as found:
        xr.testing.assert_equal(found.load(), DATASET.assign(v=DATASET.v * 2))


@pytest.mark.parametrize("make", [local, archive])
def test_files_that_are_open_for_reading_only(make: Any, tmp_path: Path) -> None:
    for place in ("d", "d.zip"):
        nczarr_xarray.to_nczarr(DATASET, tmp_path / place)
    store = make(tmp_path, read_only=True)
    with pytest.raises(StoreError, match="is open for reading only; open it with read_only=False"):
        nczarr_xarray.to_nczarr(DATASET * 2, store, mode="w")
    with xr.open_dataset(store, engine="nczarr") as found:
        xr.testing.assert_equal(found.load(), DATASET)


def test_our_own_view_of_a_dataset(tmp_path: Path) -> None:
    nczarr_xarray.to_nczarr(DATASET, tmp_path / "d")
    view: Any = nczarr_xarray.open_store(tmp_path / "d")
    with xr.open_dataset(view, engine="nczarr") as found:
        xr.testing.assert_equal(found.load(), DATASET)


class Unlisted(MemoryStore):
    supports_listing = False


def test_a_store_that_cannot_list() -> None:
    content: dict[str, Any] = {}
    nczarr_xarray.to_nczarr(DATASET, MemoryStore(content))
    store: Any = Unlisted(content)
    assert sync(ZarrKeyStore(store).list("")) is None
    with xr.open_dataset(store, engine="nczarr") as found:  # NCZarr lists its members itself
        xr.testing.assert_equal(found.load(), DATASET)
    with pytest.raises(StoreError, match="cannot write, delete and list; choose another store"):
        nczarr_xarray.to_nczarr(DATASET, store, mode="w")


def test_more_bytes_than_wanted(store: Store) -> None:
    ZarrWriter(store).put("v/0", bytes(10))
    with pytest.raises(StoreError, match="v/0: "):
        sync(ZarrKeyStore(store).get("v/0", ALL, 9))
    assert sync(ZarrKeyStore(store).get("v/0", ALL, 10)) == bytes(10)


class Telling(MemoryStore):
    """Tells its secrets, as stores over HTTP do."""

    def __str__(self) -> str:
        return "<Telling(https://user:secret1@host/d?sig=secret2)>"

    async def _fail(self, *_: Any) -> Any:
        raise OSError("403, url='https://user:secret1@host/d?sig=secret2'")

    get = set = _fail  # type: ignore[assignment]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        yield await self._fail()


def test_secrets_of_a_store_are_not_shown() -> None:
    keys, writer = ZarrKeyStore(Telling()), ZarrWriter(Telling())
    assert "secret" not in keys.url
    for fail in (
        lambda: sync(keys.get("v/0")),
        lambda: sync(keys.list("v")),
        lambda: writer.put("v/0", b""),
    ):
        with pytest.raises(StoreError, match="403") as caught:
            fail()
        assert "sig=secret" not in "".join(traceback.format_exception(caught.value))
