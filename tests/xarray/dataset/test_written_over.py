"""A tree that is written over object by object while it is open: never values of neither state."""

from __future__ import annotations

import itertools
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_xarray import to_nczarr
from nczarr_xarray.backend.data_store import NCZarrDataStore
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.dataset.stored_chunks import StoredChunks
from tests.support.builders.trees import read_tree, write_tree
from tests.support.servers.httpserver import Server
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


Put = Callable[[Mapping[str, bytes]], None]
#: What is said of an array that is another one.
ANOTHER = r"v/(\.zarray|zarr\.json) is another one now.*open it again"


def tree(folder: Path, zarr_format: Any, dtype: str, value: float = 1.0) -> dict[str, bytes]:
    """Return what zarr-python writes, documents first."""
    path = folder / f"{next(NUMBERS)}"
    encoding = {"v": {"chunks": (1, 4)}}
    made = dataset(6, value, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        made.to_zarr(path, zarr_format=zarr_format, consolidated=True, encoding=encoding)
    found = read_tree(path)
    return {name: found[name] for name in sorted(found, key=lambda name: "/c/" in name)}


def of_array(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith("v/")}


@pytest.fixture
def web() -> Iterator[Server]:
    with Server({}, etag='"as the time does"') as server:
        yield server


def on_the_web(web: Server) -> Put:
    def put(files: Mapping[str, bytes]) -> None:
        if web.files:
            web.modified = formatdate(time.time() + 2, usegmt=True)
        web.files |= {f"/d/{name}": data for name, data in files.items()}

    return put


@pytest.fixture(params=["folder", "memory", "mapping", "http", "s3"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path, web: Server) -> tuple[Place, Put]:
    """A place, and what puts objects there one by one."""
    name = f"written-over-{next(NUMBERS)}"
    if request.param == "folder":
        return (tmp_path / "d", {}), lambda files: void(write_tree(tmp_path / "d", files))
    if request.param == "mapping":
        objects: dict[str, bytes] = {}
        return (objects, {}), objects.update
    if request.param == "http":
        return (f"{web.url}/d", {}), on_the_web(web)
    url, options = f"memory://{name}", {}
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        url, options = f"s3://{server.private}/{name}", server.signed()
    fs, root = fsspec.url_to_fs(url, **options)

    def put(files: Mapping[str, bytes]) -> None:
        for key, data in files.items():
            fs.pipe_file(f"{root}/{key}", data)

    return (url, options), put


def void(_: object) -> None:
    """Return nothing."""


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("key", [slice(None), 1])
class TestAnotherType:
    """No chunk is missing, and each has as many bytes as before."""

    def test_reading_is_an_error(
        self, elsewhere: tuple[Place, Put], tmp_path: Path, zarr_format: int, key: Any
    ) -> None:
        place, put = elsewhere
        put(tree(tmp_path, zarr_format, "i4"))
        with opened(place) as ds:
            assert (ds.v[0] == 1).all()
            if str(place[0]).startswith("s3"):
                time.sleep(1.1)  # its times are in seconds
            put(of_array(tree(tmp_path, zarr_format, "f4", 2.0)))
            for _ in range(2):
                with pytest.raises(StoreError, match=ANOTHER):
                    ds.v[key].load()

    def test_other_values_are_none(
        self, elsewhere: tuple[Place, Put], tmp_path: Path, zarr_format: int, key: Any
    ) -> None:
        place, put = elsewhere
        put(tree(tmp_path, zarr_format, "i4"))
        with opened(place) as ds:
            put(of_array(tree(tmp_path, zarr_format, "i4", 2.0)))
            for _ in range(2):
                assert (ds.v[key] == 2).all()


class TestAskedOnce:
    """Over a network, nothing is asked while nothing is written."""

    @pytest.fixture(params=[2, 3])
    def remote(self, request: pytest.FixtureRequest, web: Server, tmp_path: Path) -> Any:
        on_the_web(web)(tree(tmp_path, request.param, "i4"))
        return request.param

    def asked(self, web: Server) -> int:
        """Count requests for what describes the array."""
        return sum(r.path.endswith(("v/.zarray", "v/zarr.json")) for r in web.requests)

    def test_nothing_changes(
        self, web: Server, remote: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
        with opened((f"{web.url}/d", {})) as ds:
            ds.v[0].load()
            before = self.asked(web)
            for row in range(1, 6):
                ds.v[row].load()
            assert self.asked(web) == before

    def test_a_while_is_believed(self, web: Server, remote: int, tmp_path: Path) -> None:
        with opened((f"{web.url}/d", {})) as ds:
            ds.v[0].load()
            before = self.asked(web)
            on_the_web(web)(of_array(tree(tmp_path, remote, "i4", 2.0)))
            for row in range(1, 6):
                assert (ds.v[row] == 2).all()
            assert self.asked(web) == before + 1

    def test_in_the_second_of_the_opening(
        self, web: Server, remote: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which of the two came first is not known: it is asked when a while has passed."""
        web.date = "Sun, 29 Nov 2026 12:00:00 GMT"
        with opened((f"{web.url}/d", {})) as ds:
            ds.v[0].load()
            on_the_web(web)(of_array(tree(tmp_path, remote, "f4", 2.0)))
            web.modified = web.date
            ds.v[1].load()
            monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
            with pytest.raises(StoreError, match=ANOTHER):
                ds.v[1].load()

    def test_a_worker_notices(self, web: Server, remote: int, tmp_path: Path) -> None:
        with opened((f"{web.url}/d", {})) as ds:
            ds.v[0].load()
            other = pickle.dumps(ds)
        on_the_web(web)(of_array(tree(tmp_path, remote, "f4", 2.0)))
        with pickle.loads(other) as ds, pytest.raises(StoreError, match=ANOTHER):
            ds.v.load()


def test_a_file_that_is_replaced_before_its_coordinates_are_read_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata and what xarray makes indexes of are of one state, as of a master that grows."""
    contents = []
    for rows in (100_000, 100_001):
        wide = xr.Dataset({"v": ("t", np.arange(rows))}, {"t": np.arange(rows) / 2})
        wide.to_netcdf(tmp_path / f"{rows}.nc", encoding={"t": {"chunksizes": (rows,)}})
        contents.append((tmp_path / f"{rows}.nc").read_bytes())
    touched, calls = NCZarrDataStore.touched, 0
    with Server({"/a.nc": contents[0]}, etag="md5") as server:

        def replacing(self: NCZarrDataStore) -> Any:
            nonlocal calls
            calls += 1
            server.files["/a.nc"] = contents[min(calls, 1)]
            return touched(self)

        monkeypatch.setattr(NCZarrDataStore, "touched", replacing)
        with xr.open_dataset(f"{server.url}/a.nc", engine="nczarr") as dataset:
            assert dataset.indexes["t"].tolist() == [n / 2 for n in range(100_001)]
            assert dataset["v"].values.tolist() == [*range(100_001)]
    assert calls == 2
