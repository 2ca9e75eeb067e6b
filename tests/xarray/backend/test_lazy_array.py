"""Remote variables that xarray reads one after the other are read together, and nothing else is."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_xarray import FormatError, StoreError
from nczarr_xarray.backend import lazy_array
from tests.support.builders.trees import read_tree
from tests.support.marks import needs_new_xarray
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server

#: Variables of the datasets here, and the bytes of each: a file does not come with its beginning.
COUNT, NBYTES = 40, 32 << 10
NAMES = [f"v{number}" for number in range(COUNT)]
KINDS = pytest.mark.parametrize("kind", ["nc", "nczarr"])


def made() -> xr.Dataset:
    values = np.arange(NBYTES // 8, dtype="f8").reshape(-1, 32)
    ds = xr.Dataset({name: (("y", "x"), values + i) for i, name in enumerate(NAMES)})
    for name in NAMES[::4]:  # of which xarray's writers read the values to encode them
        ds[name].encoding = {"dtype": "i8", "scale_factor": 0.5, "_FillValue": -1}
    ds["flag"] = "y", values[:, 0] % 3 == 0
    ds["name"] = "y", np.array([b"%06d" % number for number in values[:, 0]])
    return ds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one dataset as a file and as a tree."""
    folder = tmp_path_factory.mktemp("together")
    made().to_netcdf(folder / "d.nc", engine="netcdf4")
    made().nczarr.to_nczarr(folder / "d.nczarr")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server(read_tree(folder, "/")) as server:
        yield server


def opened(server: Server, kind: str, **options: Any) -> xr.Dataset:
    return xr.open_dataset(f"{server.url}/d.{kind}", engine="nczarr", **options)


def rounds_of(action: Callable[[], Any]) -> int:
    with nczarr_xarray.trace() as trace:
        action()
    return trace.summary.rounds


def keys(server: Server, since: int) -> set[str]:
    """Return what was asked for, without metadata."""
    paths = {request.path.removeprefix("/d.nczarr/") for request in server.requests[since:]}
    return {path for path in paths if "/." not in f"/{path}"}


#: how a dataset is written to a path
WRITERS: dict[str, Callable[[xr.Dataset, Path], Any]] = {
    "netcdf4": lambda ds, path: ds.to_netcdf(path, engine="netcdf4"),
    "h5netcdf": lambda ds, path: ds.to_netcdf(path, engine="h5netcdf"),
    "zarr": lambda ds, path: ds.to_zarr(path, zarr_format=2, consolidated=False),
    "nczarr": lambda ds, path: ds.nczarr.to_nczarr(path),
    # then values are not read before they are written
    "netcdf4, bare": lambda ds, path: ds.drop_encoding().to_netcdf(path, engine="netcdf4"),
    "zarr, bare": lambda ds, path: ds.drop_encoding().to_zarr(path, zarr_format=2),
    "nczarr, bare": lambda ds, path: ds.drop_encoding().nczarr.to_nczarr(path),
    "zarr, over another": lambda ds, path: [
        it.to_zarr(path, mode="a", zarr_format=2, consolidated=False) for it in (made(), ds)
    ],
}
PLACES = {"y": xr.DataArray([1, 100, 7], dims="p"), "x": xr.DataArray([3, 2, 1], dims="p")}


@KINDS
@pytest.mark.parametrize("cache", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "select",
    [
        pytest.param(lambda ds: ds, id="all"),
        pytest.param(lambda ds: ds.isel(y=3), id="step", marks=pytest.mark.slow),
        pytest.param(
            lambda ds: ds.isel(y=[5, 1], x=slice(None, None, 7)).transpose("x", ...),
            id="outer",
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda ds: ds.isel(PLACES), id="points", marks=pytest.mark.slow),
    ],
)
def test_a_dataset_is_loaded_in_one_round(
    server: Server, kind: str, select: Callable[[xr.Dataset], xr.Dataset], cache: bool
) -> None:
    with opened(server, kind, cache=cache) as ds:
        assert rounds_of(select(ds).compute) == 1
        part = select(ds)
        assert rounds_of(part.load) <= 1  # chunks of a part are remembered
        xr.testing.assert_identical(part, select(made()))
        assert rounds_of(part.load) == 0


@pytest.mark.slow
@KINDS
def test_so_is_a_tree_of_groups(server: Server, kind: str) -> None:
    with xr.open_datatree(f"{server.url}/d.{kind}", engine="nczarr") as tree:
        assert rounds_of(tree.load) == 1
        xr.testing.assert_identical(tree.to_dataset(), made())


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("target", WRITERS)
def test_writing_a_dataset_reads_it_in_few_rounds(
    server: Server, tmp_path: Path, kind: str, target: str
) -> None:
    path = tmp_path / "copy"
    with opened(server, kind) as ds:
        since = len(server.requests)
        assert rounds_of(lambda: WRITERS[target](ds, path)) <= 3
        # besides the root, which tells of changes
        asked = [one for one in server.requests[since:] if not one.target.endswith("/.zgroup")]
        assert kind == "nc" or len(asked) == COUNT + 2  # each once
        assert not any(isinstance(variable._data, np.ndarray) for variable in ds.variables.values())
    with xr.open_dataset(path, engine="netcdf4" if "netcdf" in target else "nczarr") as ds:
        xr.testing.assert_equal(ds, made())


@needs_new_xarray
def test_what_is_not_cached_is_not_kept_by_writing(server: Server, tmp_path: Path) -> None:
    with opened(server, "nczarr", cache=False)[NAMES[:4]] as ds:
        assert rounds_of(lambda: ds.to_netcdf(tmp_path / "copy.nc", engine="netcdf4")) == 4


def test_nothing_is_read_that_nobody_asked_for(server: Server) -> None:
    with opened(server, "nczarr") as ds:
        since = len(server.requests)
        ds.v0.load()
        assert ds.v1.values[0, 0] == 1
        ds["v2"].compute()
        np.asarray(ds.v3)
        ds[["v4", "v5"]].load()
        assert keys(server, since) == {f"v{i}/0.0" for i in range(6)}


def test_small_variables_of_a_file_come_with_few_requests(server: Server) -> None:
    with opened(server, "nc") as ds:
        since = len(server.requests)
        xr.testing.assert_identical(ds.load(), made())
        assert len(server.requests) - since <= COUNT / 4


def test_how_much_is_read_together_is_bounded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_array, "MOST_BYTES", 9 * NBYTES)
    with opened(server, "nczarr") as ds:
        assert rounds_of(ds[NAMES].load) == COUNT / 10
    monkeypatch.setattr(lazy_array, "MOST_VARIABLES", 7)
    with opened(server, "nczarr") as ds:
        assert rounds_of(ds[NAMES].load) == COUNT / 8
        ds.load()
    xr.testing.assert_identical(ds, made())


def test_values_are_those_of_the_time_of_the_load(server: Server) -> None:
    """Nothing is kept for later: a tree has no version by which what is kept could be checked."""
    ones = np.ones(NBYTES // 8)
    with opened(server, "nczarr") as ds:
        ds[["v1", "v2"]].load()
        server.files["/d.nczarr/v3/0.0"] = ones.tobytes()
        ds.load()
        np.testing.assert_array_equal(ds.v3.values.ravel(), ones)
        xr.testing.assert_identical(ds.drop_vars("v3"), made().drop_vars("v3"))


def test_a_file_that_changes_is_noticed(server: Server) -> None:
    server.etag = '"one"'
    with opened(server, "nc") as ds:
        ds.v0.load()
        server.etag = '"two"'
        with pytest.raises(StoreError, match="changed"):
            ds.load()


def test_one_that_cannot_be_read_fails_alone_and_in_its_turn(server: Server) -> None:
    whole = server.files["/d.nczarr/v3/0.0"]
    with opened(server, "nczarr") as ds:
        server.files["/d.nczarr/v3/0.0"] = whole[:-5]
        since = len(server.requests)
        with pytest.raises(FormatError, match=r"v3/0\.0"):
            ds.load()
        assert len(keys(server, since)) == COUNT + 2
        server.files["/d.nczarr/v3/0.0"] = whole
        since = len(server.requests)
        xr.testing.assert_identical(ds.load(), made())
        assert keys(server, since) == {"v3/0.0"}  # the others had been loaded


@pytest.mark.slow
@KINDS
def test_several_threads_load_one_dataset(server: Server, kind: str) -> None:
    with opened(server, kind) as ds, ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: ds.load(), range(4)):
            xr.testing.assert_identical(found, made())


@pytest.mark.slow
@KINDS
def test_after_pickling_too(server: Server, kind: str) -> None:
    with opened(server, kind) as ds:
        copy = pickle.loads(pickle.dumps(ds))
    assert rounds_of(copy.load) <= 2  # a file is opened again
    xr.testing.assert_identical(copy, made())


@pytest.mark.slow
def test_blocks_of_dask_are_read_by_its_threads(server: Server) -> None:
    with opened(server, "nczarr", chunks={}) as ds:
        since = len(server.requests)
        ds[["v0", "v1"]].load(scheduler="threads")
        assert keys(server, since) == {"v0/0.0", "v1/0.0"}
        xr.testing.assert_identical(ds.compute(scheduler="synchronous"), made())


def test_local_reads_do_not_look_who_asks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(lazy_array, "loads_in_turn")
    for name in ("d.nc", "d.nczarr"):
        with xr.open_dataset(folder / name, engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), made())


def test_over_s3(s3_server: S3Server, folder: Path) -> None:
    options = s3_server.signed()
    target = f"{s3_server.private}/together.nczarr"
    fsspec.filesystem("s3", **options).put(f"{folder}/d.nczarr", target, recursive=True)
    with xr.open_dataset(f"s3://{target}", engine="nczarr", storage_options=options) as ds:
        assert rounds_of(ds.load) == 1
        xr.testing.assert_identical(ds, made())
