"""``load`` reads many selections together: values as alone, each chunk once."""

from __future__ import annotations

import asyncio
import multiprocessing
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask.bag
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nczarr_xarray
from nczarr_xarray import FormatError, StoreError, URLError, iterate, load, load_async
from nczarr_xarray.backend.compat import in_memory as loaded
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

LENGTHS, CHUNKS = {"t": 12, "y": 30, "x": 25}, (5, 8, 7)
#: of the variables: how they are stored in netCDF-4
STORED: dict[str, dict[str, Any]] = {
    "shuffled": {"zlib": True, "shuffle": True, "chunksizes": CHUNKS},
    "deflated": {"zlib": True, "shuffle": False, "chunksizes": CHUNKS},
    "checked": {"fletcher32": True, "chunksizes": CHUNKS},
    "plain": {"chunksizes": CHUNKS},
    "contiguous": {"contiguous": True},
    "packed": {
        "zlib": True,
        "chunksizes": CHUNKS,
        "dtype": "i2",
        "scale_factor": 0.5,
        "_FillValue": -1,
    },
}
SELECTIONS: list[dict[str, Any]] = [
    {"t": slice(2, 7), "y": slice(4, 20), "x": slice(3, 9)},
    {"t": 3, "y": slice(None, None, -3)},
    {"t": [5, 2, 2, 9], "x": [24, 0, 7]},
    {"y": xr.DataArray([1, 29, 8], dims="p"), "x": xr.DataArray([1, 24, 8], dims="p")},
    {"t": slice(2, 7), "y": slice(4, 20), "x": slice(3, 9)},
    {"t": -1, "y": -1, "x": -1},
    {"x": slice(5, 5)},
    {},
]
KINDS = ["d.nc", "d.nczarr", "d.nca", "d3.zarr"]


def made() -> xr.Dataset:
    shape = tuple(LENGTHS.values())
    values = np.random.default_rng(0).integers(0, 999, shape).astype("f4")
    ds = xr.Dataset({name: (tuple(LENGTHS), values + n) for n, name in enumerate(STORED)})
    ds["name"] = "y", np.array([f"name {n}" for n in range(30)], object)
    ds["lat"] = ("y", "x"), np.round(np.random.default_rng(1).random(shape[1:]), 3)
    return ds.assign_coords(t=np.arange(12) * 2, far=("y", np.arange(30.0))).set_coords("lat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loading")
    made().to_netcdf(folder / "d.nc", engine="netcdf4", encoding=STORED)
    encoding = {name: {**one} for name, one in STORED.items()}
    made().nczarr.to_nczarr(folder / "d.nczarr", encoding=encoding)
    grids = {name: {"chunks": CHUNKS} for name in STORED}
    with warnings.catch_warnings():  # not in the specification of Zarr 3
        warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
        made().to_zarr(folder / "d3.zarr", zarr_format=3, consolidated=True, encoding=grids)
    for start in (0, 5, 7):
        part = made().isel(t=slice(start, {0: 5, 5: 7, 7: 12}[start]))
        part.to_netcdf(folder / f"from{start}.nc", encoding={"t": {"dtype": "f8"}})
    nczarr_xarray.aggregate(sorted(folder.glob("from*.nc")), folder / "d.nca")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(read_tree(folder, "/")) as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, folder: Path) -> str:
    return str(folder / request.param)


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return f"{server.url}/{request.param}"


def opened(target: str, **options: Any) -> xr.Dataset:
    return xr.open_dataset(target, engine="nczarr", **options)


def in_memory(*objects: Any) -> bool:
    return all(map(loaded, (one.variable for one in objects)))


def check(target: str) -> None:
    ds, known = opened(target), made()
    lazy = [
        ds[name].isel(one) for name in known.data_vars for one in SELECTIONS if fits(ds, name, one)
    ]
    wanted = [known[n].isel(one) for n in known.data_vars for one in SELECTIONS if fits(ds, n, one)]
    found = load(*lazy)
    assert all(one is given for one, given in zip(found, lazy, strict=True))
    assert in_memory(*lazy)
    for one, other in zip(found, wanted, strict=True):
        xr.testing.assert_equal(one, other)
        assert one.dtype == other.dtype or one.name in {"packed", "name"}


def fits(ds: xr.Dataset, name: Any, selection: dict[str, Any]) -> bool:
    return set(selection) <= set(ds[name].dims)


def test_values(target: str) -> None:
    check(target)


def test_values_that_are_remote(url: str) -> None:
    check(url)


def test_datasets_trees_and_variables(target: str) -> None:
    ds, known = opened(target), made()
    tree = xr.DataTree.from_dict({"/a": opened(target), "/b": opened(target).isel(t=3)})
    part, variable = ds.isel(y=slice(3, 9)), opened(target).variables["shuffled"]
    load(part, tree, variable)
    assert in_memory(*(part[name] for name in part.variables))
    assert in_memory(*(tree["b"][name] for name in map(str, tree["b"].variables)))
    xr.testing.assert_equal(part, known.isel(y=slice(3, 9)))
    xr.testing.assert_equal(tree["a"].to_dataset(), known)
    xr.testing.assert_equal(tree["b"].to_dataset(), known.isel(t=3))
    assert (variable.values == known["shuffled"].values).all()
    with pytest.raises(TypeError, match=r"list is no DataArray.*: load\(\*objects\)"):
        load([ds])


def test_what_is_not_ours(target: str) -> None:
    ds = opened(target, chunks={})
    other = xr.open_dataset(target, engine="netcdf4") if target.endswith(".nc") else made()
    with other:
        objects = ds["shuffled"].isel(t=3), other["shuffled"].isel(t=3), ds["packed"] * 2
        load(*objects)
    assert in_memory(*objects)
    assert (objects[0].values == objects[1].values).all()
    assert (objects[2].values == made()["packed"].values * 2).all()


@pytest.mark.parametrize(("name", "key"), [("d.nczarr", "{}.{}.{}"), ("d3.zarr", "c/{}/{}/{}")])
def test_each_chunk_is_fetched_once(server: Server, name: str, key: str) -> None:
    ds = opened(f"{server.url}/{name}")
    objects = [ds["shuffled"].isel(t=slice(n, n + 6), y=slice(n, n + 20)) for n in range(6)]
    before = len(server.requests)
    load(*objects)
    asked = Counter(one.path for one in server.requests[before:])
    boxes = [(range(n // 5, (n + 5) // 5 + 1), range(n // 8, (n + 19) // 8 + 1)) for n in range(6)]
    chunks = {key.format(t, y, x) for ts, ys in boxes for t in ts for y in ys for x in range(4)}
    assert {f"/{name}/shuffled/{chunk}" for chunk in chunks} < set(asked)
    assert set(asked.values()) == {1}


def test_all_are_one_round(url: str) -> None:
    ds = opened(url)
    with nczarr_xarray.trace() as trace:
        load(
            *(
                ds[name].isel(t=slice(0, 3), x=n)
                for name in ("shuffled", "packed")
                for n in range(9)
            )
        )
    if url.endswith(".nca"):  # of one fragment, which is opened for each variable
        assert trace.summary.requests <= 8
    elif url.endswith("d3.zarr"):  # threads of their own begin the selections
        assert trace.summary.requests <= 2 * 8 + 2  # chunks, and whether their arrays are there
    else:
        assert trace.summary.rounds <= 2  # the index of chunks of a file, and these


def test_fragments_are_read_once(tmp_path: Path) -> None:
    """However many selections want something of them."""
    values = np.random.default_rng(2).random((6, 200, 300))
    for n in range(6):
        ds = xr.Dataset({"v": (("t", "y", "x"), values[n : n + 1])}, {"t": [n]})
        encoding = {"v": {"zlib": True, "chunksizes": (1, 50, 50)}}
        ds.to_netcdf(tmp_path / f"{n}.nc", engine="netcdf4", encoding=encoding)
    nczarr_xarray.aggregate(sorted(tmp_path.glob("*.nc")), tmp_path / "d.nca")
    with Server(read_tree(tmp_path, "/")) as server:
        boxes = [
            {"t": slice(n % 5, n % 5 + 2), "y": slice(n, n + 64), "x": slice(2 * n, 2 * n + 64)}
            for n in range(64)
        ]
        ds = opened(f"{server.url}/d.nca")
        with nczarr_xarray.trace() as trace:
            found = load(*(ds["v"].isel(box) for box in boxes))
        sent = Counter[str]()
        for request in server.requests:
            sent[request.path] += request.sent
    for box, one in zip(boxes, found, strict=True):
        assert (one.values == values[box["t"], box["y"], box["x"]]).all()
    # beginnings and ends of files, and the chunks of each together
    assert trace.summary.requests <= 8 * 6
    for n in range(6):  # the server answers a request of several ranges with the whole file
        assert sent[f"/{n}.nc"] <= 2 * (tmp_path / f"{n}.nc").stat().st_size


def test_what_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    objects = {**read_tree(folder / "d.nczarr", "")}
    key = next(key for key in objects if key.strip("/") == "shuffled/1.1.1")
    for name, content in objects.items():
        path = tmp_path / "x.nczarr" / name.strip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"damaged" if name == key else content)
    ds = opened(str(tmp_path / "x.nczarr"))
    sound, damaged = ds["deflated"].isel(t=6), ds["shuffled"].isel(t=6)
    with pytest.raises(FormatError, match=r"shuffled/1\.1\.1"):
        load(sound, damaged, ds["shuffled"].isel(t=7))
    assert not in_memory(damaged)
    load(sound)
    assert (sound.values == made()["deflated"].isel(t=6).values).all()


def test_a_dataset_that_has_gone(folder: Path) -> None:
    with Server(read_tree(folder, "/")) as server:
        ds = opened(f"{server.url}/d.nczarr")
        server.files.clear()
        objects = [ds["shuffled"].isel(t=n) for n in range(3)]
        with pytest.raises(StoreError, match=r"d\.nczarr"):
            load(*objects)
        assert not in_memory(*objects)


def test_too_much(target: str) -> None:
    ds = opened(target)
    with pytest.raises(URLError, match="iterate"):
        load(ds["shuffled"].drop_vars(["lat", "far"]), max_bytes=30 * 25 * 12 * 4 - 1)
    assert not in_memory(ds["shuffled"])
    load(ds["shuffled"].drop_vars(["lat", "far"]), max_bytes=30 * 25 * 12 * 4)


def test_one_after_the_other(target: str) -> None:
    ds = opened(target)
    given = [ds["shuffled"].isel(t=n) for n in range(12)]
    size = sum(given[0].coords[name].nbytes for name in ("lat", "far")) + given[0].nbytes
    found = []
    for number, one in enumerate(iterate(given, max_bytes=3 * size)):
        assert in_memory(one)
        assert not in_memory(given[number])
        found.append(one)
    xr.testing.assert_equal(xr.concat(found, "t"), made()["shuffled"])


def test_asynchronously(url: str) -> None:
    ds = opened(url)

    async def both() -> Any:
        return await asyncio.gather(
            load_async(ds["shuffled"].isel(t=2), ds["packed"].isel(t=2)), load_async(ds["plain"])
        )

    (one, other), (third,) = asyncio.run(both())
    assert in_memory(one, other, third)
    xr.testing.assert_equal(third, made()["plain"])


def total(target: str) -> float:
    ds = opened(target)
    return float(sum(one.sum() for one in load(ds["shuffled"][:4], ds["packed"][2:5])))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_workers(url: str, method: str) -> None:
    """As torch's DataLoader has them: the first dataset is opened before a fork."""
    known = total(url)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert [*pool.map(total, [url] * 4)] == [known] * 4


def test_in_tasks_of_dask(target: str) -> None:
    known = total(target)
    tasks = dask.bag.from_sequence([target] * 8, npartitions=8).map(total)
    assert tasks.compute(scheduler="threads") == [known] * 8


# -- boxes that index arrays select ----------------------------------------------------------------


@st.composite
def boxes(draw: st.DrawFn) -> dict[str, xr.DataArray]:
    """Return index arrays of boxes: a dimension numbers these, each other one is of one array."""
    numbers = draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    found = {}
    for name, length in LENGTHS.items():
        size = draw(st.integers(1, length))
        start = xr.DataArray(random.integers(0, length - size + 1, numbers), dims="n")
        along = xr.DataArray(np.arange(size), dims=f"in_{name}")
        how = draw(st.sampled_from(["box", "box", "box", "points", "slice", "list"]))
        if how == "box":
            found[name] = (start + along).transpose(*draw(st.permutations(["n", f"in_{name}"])))
        elif how == "points":
            found[name] = start
        elif how == "list":
            found[name] = xr.DataArray(random.integers(0, length, size), dims=f"in_{name}")
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=boxes(), name=st.sampled_from([*STORED]))
def test_boxes(target: str, key: dict[str, xr.DataArray], name: str) -> None:
    found, known = opened(target)[name].isel(key), made()[name].isel(key)
    xr.testing.assert_equal(found, known)


def test_boxes_that_are_remote(url: str) -> None:
    starts = xr.DataArray([0, 3, 6], dims="n")
    key = {name: starts + xr.DataArray(np.arange(6), dims=f"in_{name}") for name in LENGTHS}
    for name in STORED:
        xr.testing.assert_equal(opened(url)[name].isel(key), made()[name].isel(key))


def test_chunks_of_boxes_are_fetched_once(server: Server) -> None:
    starts = xr.DataArray([0, 1, 2, 3], dims="n")
    key = {name: starts + xr.DataArray(np.arange(9), dims=f"in_{name}") for name in LENGTHS}
    ds = opened(f"{server.url}/d.nczarr")
    before = len(server.requests)
    ds["shuffled"].isel(key).load()
    assert {*Counter(one.path for one in server.requests[before:]).values()} == {1}
