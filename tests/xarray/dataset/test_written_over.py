"""A tree that is written over object by object while it is open: never values of neither state."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_xarray import to_nczarr
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.dataset.stored_chunks import StoredChunks
from tests.support.builders.trees import read_tree
from tests.support.servers.s3server import S3Server

NUMBERS = itertools.count()
CHUNKS = {"v": {"chunks": (1, 4), "_FillValue": -9.0}}

Place = tuple[Any, dict[str, Any]]
Change = Callable[[Any, dict[str, Any]], Any]


def dataset(rows: int = 6, value: float = 1.0, dtype: str = "f8") -> xr.Dataset:
    return xr.Dataset({"v": (("t", "x"), np.full((rows, 4), value, dtype))})


def put(values: xr.Dataset, place: Place, encoding: Any = CHUNKS, **more: Any) -> None:
    target, options = place
    more = {"mode": "w", "unlimited_dims": ["t"], **more}
    to_nczarr(values, target, storage_options=options, encoding=encoding, **more)


def opened(place: Place, **options: Any) -> xr.Dataset:
    target, storage_options = place
    given = {"storage_options": storage_options, "cache": False, **options}
    return xr.open_dataset(target, engine="nczarr", **given)


@pytest.fixture(params=["foreign file", "memory", "mapping", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A dataset that a new one replaces object by object."""
    number = next(NUMBERS)
    found: Place
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        found = f"s3://{server.private}/written-over-{number}", server.signed()
    elif request.param == "memory":
        found = f"memory://written-over-{number}", {}
    else:
        found = ({} if request.param == "mapping" else tmp_path / "d", {})
    put(dataset(), found)
    if request.param == "foreign file":
        (tmp_path / "d" / "notes.txt").write_text("mine")
    return found


def shorter(place: Place) -> None:
    put(dataset(2, 2.0), place)


def narrower(place: Place) -> None:
    put(dataset(6, 2.0).isel(x=slice(2)), place, {"v": {"chunks": (1, 2), "_FillValue": -9.0}})


def integers(place: Place) -> None:
    put(dataset(6, 2, "i8"), place, {"v": {"chunks": (1, 4)}})


def packed(place: Place) -> None:
    """As large as before, and with the same array; only what decodes it is another."""
    put(dataset(6, 2.0), place, {"v": {**CHUNKS["v"], "scale_factor": 0.5}})


def one_dimension(place: Place) -> None:
    put(xr.Dataset({"v": ("t", np.full(6, 2.0))}), place, {"v": {"chunks": (1,)}})


@pytest.mark.parametrize("change", [shorter, narrower, integers, packed, one_dimension])
@pytest.mark.parametrize("key", [slice(None), slice(4, 6), 0])
def test_reading_is_an_error(place: Place, change: Callable[[Place], None], key: Any) -> None:
    with opened(place) as ds:
        assert (ds.v[0] == 1).all()
        change(place)
        for _ in range(2):
            with pytest.raises(NCZarrError, match="open it again"):
                ds.v[key].load()
    with opened(place) as ds:
        assert (ds.v == 2).all()


def test_a_worker_notices(place: Place) -> None:
    if place[0] == {} or isinstance(place[0], dict):
        pytest.skip("a mapping is copied with what is pickled")
    with opened(place) as ds:
        other = pickle.dumps(ds)
    shorter(place)
    with pickle.loads(other) as ds, pytest.raises(StoreError, match="open it again"):
        ds.v.load()


def test_chunks_as_they_are_stored(place: Place) -> None:
    target, options = place
    with open_hierarchy(target, storage_options=options) as found:
        stored = StoredChunks(found.reader(found.hierarchy.root.variables["v"]))
        chunks = stored.locate(np.arange(2))
        assert all(stored.fetch(chunks))
        integers(place)
        with pytest.raises(StoreError, match=r"is another one now.*open it again"):
            stored.fetch(chunks)


def test_other_changes_are_none(place: Place) -> None:
    """Values, appended ones and other variables do no harm."""
    target, options = place
    with opened(place) as ds:
        to_nczarr(dataset(3, 4.0), target, storage_options=options, append_dim="t")
        assert (ds.v == 1).all()
        to_nczarr(xr.Dataset({"w": ("z", [1.0])}), target, storage_options=options, mode="a")
        assert (ds.v == 1).all()
        shorter(place)
        with pytest.raises(StoreError, match="open it again"):
            ds.v.load()


@pytest.mark.parametrize("consolidated", [None, True])
def test_consolidated_metadata(s3_server: S3Server, consolidated: bool | None) -> None:
    found = f"s3://{s3_server.private}/written-over-{next(NUMBERS)}", s3_server.signed()
    put(dataset(), found, consolidated=True)
    with opened(found, consolidated=consolidated) as ds:
        assert (ds.v[0] == 1).all()
        put(dataset(6, 2, "i8"), found, {"v": {"chunks": (1, 4)}}, consolidated=True)
        with pytest.raises(StoreError, match=r"v/\.zarray is another one now \(.*open it again"):
            ds.v.load()


@pytest.mark.parametrize("consolidated", [None, False])
def test_whenever_it_happens(consolidated: bool | None) -> None:
    """Before or after any object is moved: old values, new ones where both fit, or an error."""
    place: Place = {}, {}
    put(dataset(), place, consolidated=True)
    steps: list[dict[str, bytes]] = []

    class Noted(dict[str, bytes]):
        def __setitem__(self, key: str, value: bytes) -> None:
            super().__setitem__(key, value)
            steps.append(dict(self))

        def __delitem__(self, key: str) -> None:
            super().__delitem__(key)
            steps.append(dict(self))

    integers((Noted(place[0]), {}))
    good = 0
    for step in steps:
        target = dict(place[0])
        with opened((target, {}), consolidated=consolidated) as ds:
            target.clear()
            target.update(step)
            try:
                values = ds.v.values
            except NCZarrError:
                continue
            good += 1
            assert (values == 1).all()
    assert 0 < good < len(steps)


class TestOtherPrograms:
    """These leave the root as it was: the array is looked at where a chunk is missing."""

    def test_zarr_python(self, tmp_path: Path) -> None:
        memory = fsspec.filesystem("memory")
        root = f"/written-over-{next(NUMBERS)}"

        def write(rows: int) -> None:
            path = tmp_path / f"{rows}"
            encoding = {"v": {"chunks": (1, 4)}}
            dataset(rows).to_zarr(path, zarr_format=2, consolidated=False, encoding=encoding)
            if memory.exists(root):
                memory.rm(root, recursive=True)
            memory.pipe(read_tree(path, f"{root}/"))

        write(6)
        with opened((f"memory:/{root}", {})) as ds:
            write(2)
            with pytest.raises(StoreError, match=r"v/\.zarray is another one now.*open it again"):
                ds.v.load()

    @pytest.mark.parametrize("shards", [None, (2, 4)])
    def test_zarr_3(self, tmp_path: Path, shards: Any) -> None:
        memory = fsspec.filesystem("memory")
        root = f"/written-over-{next(NUMBERS)}"

        def write(rows: int) -> None:
            path = tmp_path / f"{rows}"
            encoding = {"v": {"chunks": (1, 4), "shards": shards}}
            dataset(rows).to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)
            if memory.exists(root):
                memory.rm(root, recursive=True)
            memory.pipe(read_tree(path, f"{root}/"))

        write(6)
        with opened((f"memory:/{root}", {})) as ds:
            write(2)
            with pytest.raises(StoreError, match=r"v/zarr\.json is another one now.*open it again"):
                ds.v.load()
