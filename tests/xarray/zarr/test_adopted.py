"""Stores of zarr-python, read as ours: parts of objects, as shards are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import MemoryStore, ObjectStore

import nczarr_xarray
from nczarr_fsspec.keystore import ALL
from nczarr_xarray.zarr._adopted import ZarrKeyStore, ZarrWriter

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
