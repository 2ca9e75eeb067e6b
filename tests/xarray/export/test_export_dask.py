"""Exports of dask's arrays: by every scheduler, to every kind of target, at once and later."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr
from fsspec.callbacks import Callback
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import (
    ConflictError,
    ExportError,
    FormatError,
    IncompleteExportError,
    NCZarrWarning,
    StoreError,
)
from nczarr_xarray import register, to_nczarr
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.export.chunk_writer import Gate
from nczarr_xarray.export.progress import Progress
from tests.support.builders.trees import read_tree
from tests.support.examples import examples
from tests.support.marks import slow_but
from tests.support.oracles.written import by_netcdf, opened
from tests.support.servers.clusters import two_processes
from tests.support.servers.s3server import S3Server

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

#: What distributed says of itself when a machine is slow, or has been used with another fork.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*unmanaged memory.*"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A cluster of two processes with two threads each."""
    with two_processes(threads=2) as client:
        yield client


@pytest.fixture(params=slow_but(["synchronous", "threads", "processes", "distributed"], "threads"))
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every scheduler, in use."""
    name: str = request.param
    if name != "distributed":
        with dask.config.set(scheduler=name, num_workers=2):
            yield name
        return
    with request.getfixturevalue("client").as_current():
        yield name


Target = tuple[Any, dict[str, Any]]


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """What is written to, and its storage options."""
    kind: str = request.param
    if not kind.startswith("s3"):
        names = {"tree": "d", "zip": "d.zip", "zarr": "d#mode=zarr"}
        return f"file://{tmp_path}/{names[kind]}", {}
    server: S3Server = request.getfixturevalue("s3_server")
    key = f"{tmp_path.name}/d{'.zip' if 'zip' in kind else ''}"
    options = {"key": server.access_key, "secret": server.secret_key}
    fragment = ",zip" if "zip" in kind else ""
    return server.url(key, fragment, server.private), {"storage_options": options}


#: dask starts a process anew for every call, which takes seconds
everywhere = pytest.mark.parametrize(
    ("scheduler", "target"),
    [
        ("synchronous", "tree"),
        *(("threads", kind) for kind in ("tree", "zip", "zarr")),
        pytest.param("threads", "s3", marks=pytest.mark.servers),
        pytest.param("threads", "s3 zip", marks=pytest.mark.servers),
        pytest.param("processes", "tree", marks=pytest.mark.slow),
        ("distributed", "tree"),
        pytest.param("distributed", "zip", marks=pytest.mark.slow),
        pytest.param("distributed", "s3", marks=pytest.mark.servers),
        pytest.param("distributed", "s3 zip", marks=pytest.mark.servers),
    ],
    indirect=True,
)


def incomplete(url: Any, **options: Any) -> None:
    """Check that readers are told that data are still to come."""
    with (
        pytest.warns(NCZarrWarning, match="incomplete export"),
        pytest.raises(IncompleteExportError),
    ):
        opened(url, **options)


def log(path: str, text: str) -> None:
    """Add a line to a file, from any process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def computed(block: np.ndarray[Any, Any], path: str, block_id: tuple[int, ...] = ()) -> Any:
    log(path, str(block_id))
    return block


def source(path: Path, chunks: tuple[int, int] = (4, 3)) -> Any:
    """A dask array that notes in a file which of its blocks are computed."""
    values = da.from_array(np.arange(1.0, 71.0).reshape(10, 7), chunks=chunks)
    return values.map_blocks(computed, str(path), dtype="f8", meta=np.empty((0, 0)))


def dataset(path: Path) -> xr.Dataset:
    """Two variables that are computed from one, and one in memory."""
    both = source(path)
    return xr.Dataset(
        {
            "one": (("y", "x"), both + 1),
            "two": (("y", "x"), both * 2),
            "three": ("x", np.arange(7)),
        },
        {"x": np.arange(7) * 10},
    )


def expected() -> xr.Dataset:
    values = np.arange(1.0, 71.0).reshape(10, 7)
    return xr.Dataset(
        {
            "one": (("y", "x"), values + 1),
            "two": (("y", "x"), values * 2),
            "three": ("x", np.arange(7)),
        },
        {"x": np.arange(7) * 10},
    )


# -- at once -------------------------------------------------------------------------


@everywhere
def test_every_target(scheduler: str, target: Target, tmp_path: Path) -> None:
    url, options = target
    counts = tmp_path / "counts"
    to_nczarr(dataset(counts), url, encoding={"one": {"zlib": True}}, **options)
    xr.testing.assert_identical(opened(url, **options), expected())
    lines = counts.read_text().split("\n")[:-1]
    assert len(lines) == len(set(lines)) == 9, "each block is computed once, for both variables"


@pytest.mark.parametrize("name", ["synchronous", "threads"])
def test_a_mapping(name: str, tmp_path: Path) -> None:
    objects: dict[str, bytes] = {}
    with dask.config.set(scheduler=name):
        to_nczarr(dataset(tmp_path / "counts"), objects)
    xr.testing.assert_identical(opened_mapping(objects), expected())


def opened_mapping(objects: dict[str, bytes]) -> xr.Dataset:
    with xr.open_dataset(objects, engine="nczarr") as found:  # type: ignore[arg-type]
        return found.load()


def test_a_mapping_is_in_one_process(client: Any, tmp_path: Path) -> None:
    objects: dict[str, bytes] = {}
    with client.as_current(), pytest.raises(StoreError, match="do not write to the same place"):
        to_nczarr(dataset(tmp_path / "counts"), objects)
    assert objects == {}
    later = to_nczarr(dataset(tmp_path / "counts"), objects, compute=False)
    with client.as_current():
        dask.compute(later)
    with (
        pytest.warns(NCZarrWarning, match="incomplete export"),
        pytest.raises(IncompleteExportError),
    ):
        opened_mapping(objects)


def test_changes(scheduler: str, tmp_path: Path) -> None:
    path, counts = tmp_path / "d", tmp_path / "counts"
    to_nczarr(expected(), path, encoding={"one": {"chunks": (4, 3)}, "two": {"chunks": (5, 7)}})
    more = dataset(counts)[["one"]].rename(one="more")
    to_nczarr(more, path, mode="a")
    rows = {"y": slice(4, 8)}
    to_nczarr((dataset(counts)[["one"]] * -1).isel(rows).drop_vars("x"), path, region=rows)
    new = dataset(counts).drop_vars(["x", "three"]).chunk({"y": 5, "x": 7})
    to_nczarr(
        new.assign(more=new["one"] * 3).chunk({"y": 2, "x": 3}),
        path,
        append_dim="y",
        align_chunks=True,
    )
    values = expected()
    values = values.assign(more=values["one"].copy())
    values["one"][4:8] *= -1
    grown = expected().assign(more=expected()["one"] * 3)[["one", "two", "more"]].drop_vars("x")
    both = xr.concat([values[["one", "two", "more"]].drop_vars("x"), grown], "y")
    found = opened(path)
    for name in both:
        np.testing.assert_array_equal(found[name], both[name])


# -- blocks and chunks ---------------------------------------------------------------


def rows(chunks: tuple[int, ...]) -> xr.Dataset:
    size = sum(chunks)
    return xr.Dataset({"v": ("x", da.from_array(np.arange(1, size + 1), chunks=(chunks,)))})


def test_blocks_that_share_chunks(tmp_path: Path) -> None:
    path = tmp_path / "d"
    encoding = {"v": {"chunks": (4,)}}
    with pytest.raises(ExportError, match="blocks 0 and 1 along 'x' meet at 3, inside a chunk"):
        to_nczarr(rows((3, 3, 3)), path, encoding=encoding)
    assert list(tmp_path.iterdir()) == []
    to_nczarr(rows((3, 3, 3)), path, encoding=encoding, align_chunks=True)
    with pytest.raises(ExportError, match="meet at 11, inside a chunk"):
        to_nczarr(rows((2, 2)), path, append_dim="x")
    with pytest.raises(ExportError, match="meet at 6, inside a chunk"):
        to_nczarr(rows((3, 3)), path, region={"x": slice(3, 9)})
    np.testing.assert_array_equal(opened(path).v, np.arange(1, 10))
    for number, other in enumerate([{}, {"v": {"zlib": True, "contiguous": False}}]):
        to_nczarr(rows((3, 4, 3)), tmp_path / f"e{number}", encoding=other)
        found = opened(tmp_path / f"e{number}").v
        assert found.encoding["preferred_chunks"] == {"x": 4}
        np.testing.assert_array_equal(found, np.arange(1, 11))


@pytest.mark.parametrize("change", ["new", "region", "append"])
def test_threads_may_share_chunks(change: str, tmp_path: Path) -> None:
    path, size = tmp_path / "d", 40
    encoding = {"v": {"chunks": (16,), "zlib": True}}
    blocks = rows((1,) * size)
    with dask.config.set(scheduler="threads", num_workers=4):
        if change == "new":
            to_nczarr(blocks, path, encoding=encoding, safe_chunks=False)
        else:
            to_nczarr(rows((5,)).compute(), path, encoding=encoding)
            to_nczarr(blocks, path, append_dim="x", safe_chunks=False)
        if change == "region":
            part = {"x": slice(3, 43)}
            to_nczarr(-blocks, path, region=part, safe_chunks=False)
    values = np.arange(1, size + 1)
    if change != "new":
        values = np.concatenate([np.arange(1, 6), values])
    if change == "region":
        values[3:43] = -np.arange(1, size + 1)
    np.testing.assert_array_equal(by_netcdf(path, "v"), values)


@pytest.mark.parametrize("where", slow_but(["processes", "distributed"], "distributed"))
def test_processes_may_not(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(rows((5,)).compute(), path, encoding={"v": {"chunks": (4,)}})
    before = read_tree(path)
    using: AbstractContextManager[Any]
    if where == "distributed":
        using = request.getfixturevalue("client").as_current()
    else:
        using = dask.config.set(scheduler="processes")
    with using, pytest.raises(StoreError, match="only one process can write; use align_chunks"):
        to_nczarr(rows((1,) * 6), path, append_dim="x", safe_chunks=False)
    assert read_tree(path) == before


def test_threads_of_a_cluster_in_this_process_may(tmp_path: Path) -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=4, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster),
    ):
        encoding = {"v": {"chunks": (16,), "zlib": True}}
        to_nczarr(rows((1,) * 40), tmp_path / "d", encoding=encoding, safe_chunks=False)
    np.testing.assert_array_equal(opened(tmp_path / "d").v, np.arange(1, 41))


@settings(max_examples=examples(30))
@given(
    blocks=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    chunk=st.integers(1, 7),
    there=st.integers(0, 9),
    safe=st.booleans(),
)
def test_any_blocks(blocks: list[int], chunk: int, there: int, safe: bool) -> None:
    objects: dict[str, bytes] = {}
    first = xr.Dataset({"v": ("x", np.arange(-there, 0))})
    to_nczarr(first, objects, encoding={"v": {"chunks": (chunk,)}})
    new = rows(tuple(blocks))
    with dask.config.set(scheduler="threads", num_workers=2):
        to_nczarr(new, objects, append_dim="x", align_chunks=safe, safe_chunks=False)
    values = np.concatenate([np.arange(-there, 0), np.arange(1, sum(blocks) + 1)])
    np.testing.assert_array_equal(opened_mapping(objects).v, values)


# -- later ---------------------------------------------------------------------------


@everywhere
def test_later(scheduler: str, target: Target, tmp_path: Path) -> None:
    url, options = target
    counts = tmp_path / "counts"
    later = to_nczarr(dataset(counts), url, compute=False, **options)
    assert not counts.exists()
    if ".zip" in url:  # an archive is written in one piece
        with pytest.raises(StoreError):
            opened(url, **options)
    else:
        with pytest.warns(NCZarrWarning, match="incomplete export"):
            found = xr.open_dataset(url, engine="nczarr", backend_kwargs=options)
        np.testing.assert_array_equal(found["three"], np.arange(7))
        found.close()
        incomplete(url, **options)
    dask.compute(later)
    xr.testing.assert_identical(opened(url, **options), expected())
    assert len(counts.read_text().split("\n")[:-1]) == 9


@pytest.mark.parametrize("change", ["a", "append", "region", "w"])
def test_nothing_changes_before_it_is_computed(change: str, tmp_path: Path) -> None:
    path, counts = tmp_path / "d", tmp_path / "counts"
    to_nczarr(expected(), path, encoding={"one": {"chunks": (4, 3)}, "two": {"chunks": (4, 3)}})
    new = dataset(counts)
    options: dict[str, Any] = {"mode": change}
    if change == "append":
        new = new[["one", "two"]].drop_vars("x")
        options = {"append_dim": "y", "align_chunks": True}
    if change == "region":
        new = -new[["one"]].drop_vars("x")
        options = {"region": {"y": slice(0, 10)}}
    if change == "w":
        new = -new
    later = to_nczarr(new, path, compute=False, **options)
    if change != "w":
        assert not counts.exists()
        xr.testing.assert_identical(opened(path), expected())
    later.compute(scheduler="threads")
    found = opened(path)
    wanted = {
        "a": expected()["one"].values,
        "append": np.concatenate([expected()["one"]] * 2),
        "region": -expected()["one"].values,
        "w": -expected()["one"].values,
    }[change]
    np.testing.assert_array_equal(found["one"], wanted)


def test_nothing_is_left_to_compute_of_arrays_without_elements(tmp_path: Path) -> None:
    """They have no chunks: the template is a complete dataset."""
    empty = xr.Dataset({"v": (("t", "x"), np.zeros((0, 3))), "x": [1, 2, 3]}).chunk()
    later = to_nczarr(empty, tmp_path / "d", compute=False)
    xr.testing.assert_identical(opened(tmp_path / "d"), empty.compute())
    dask.compute(later)
    xr.testing.assert_identical(opened(tmp_path / "d"), empty.compute())


def test_an_error_later(tmp_path: Path) -> None:
    later = to_nczarr(failing(tmp_path / "log"), tmp_path / "d", compute=False)
    with pytest.raises(ZeroDivisionError, match="block 2"):
        later.compute(scheduler="threads")
    incomplete(tmp_path / "d")


# -- template first, then regions ----------------------------------------------------


def write_rows(path: str, number: int, options: dict[str, Any]) -> int:
    """What one of many processes does: 4 rows, computed here."""
    rows = slice(4 * number, min(4 * number + 4, 10))
    new = expected()[["one", "two"]].drop_vars("x").isel(y=rows)
    to_nczarr(new, path, region={"y": rows}, **options)
    return number


def write_rows_with_dask(path: str, number: int) -> int:
    """The same with dask's blocks: tasks that start tasks."""
    rows = slice(4 * number, min(4 * number + 4, 10))
    new = expected()[["one", "two"]].drop_vars("x").isel(y=rows).chunk({"x": 3})
    to_nczarr(new, path, region={"y": rows})
    return number


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["tree", "zarr", pytest.param("s3", marks=pytest.mark.servers)], indirect=True
)
def test_regions_from_many_processes(target: Target, tmp_path: Path) -> None:
    url, options = target
    to_nczarr(dataset(tmp_path / "counts"), url, compute=False, **options)
    incomplete(url, **options)
    write_rows(url, 2, options)
    incomplete(url, **options)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(write_rows, [(url, number, options) for number in (0, 1)])
    xr.testing.assert_identical(opened(url, **options), expected())
    assert not (tmp_path / "counts").exists()


@pytest.mark.parametrize("what", [write_rows_with_dask, None])
@pytest.mark.slow
def test_regions_from_a_cluster(
    client: Any, what: Callable[..., int] | None, tmp_path: Path
) -> None:
    path = str(tmp_path / "d")
    to_nczarr(dataset(tmp_path / "counts"), path, compute=False)
    if what is None:
        futures = client.map(write_rows, [path] * 3, range(3), [{}] * 3, pure=False)
    else:
        futures = client.map(what, [path] * 3, range(3), pure=False)
    assert client.gather(futures) == [0, 1, 2]
    xr.testing.assert_identical(opened(path), expected())


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
@pytest.mark.parametrize(
    ("dtype", "fill"), [("f8", None), ("f8", 1.0), ("i8", None), ("i8", 1), ("i4", -9)]
)
@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_regions_of_a_template_with_times(
    calendar: str, dtype: str, fill: float | None, mode: str, tmp_path: Path
) -> None:
    """Bounds that are not written yet are no times, and xarray decodes them nevertheless."""
    time = xr.date_range("2000-01-01", periods=4, freq="MS", calendar=calendar, use_cftime=True)
    bounds = (("time", "bnds"), np.stack([time, time], 1))
    whole = xr.Dataset({"bounds": bounds, "v": ("time", np.arange(4.0))}, {"time": time})
    times = {"dtype": dtype, "units": "days since 1850-01-01", "calendar": calendar}
    encoding = {"time": times, "bounds": {**times, "_FillValue": fill}}
    url = f"file://{tmp_path}/d#mode={mode},file"
    to_nczarr(whole.chunk(time=1), url, compute=False, encoding=encoding)
    for step in (1, 0, 3, 2):
        to_nczarr(whole.isel(time=[step]), url, region="auto")
    coder = xr.coders.CFDatetimeCoder(use_cftime=True)
    with xr.open_dataset(url, engine="nczarr", decode_times=coder) as found:
        xr.testing.assert_equal(found.load(), whole)
        given = found["bounds"].encoding
        assert given["units"] == times["units"]
        assert given["dtype"] == dtype
        assert given.get("_FillValue") == fill


def test_regions_of_a_template_are_whole_chunks(tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(dataset(tmp_path / "counts"), path, compute=False)
    new = expected()[["one"]].drop_vars("x")
    for part in (slice(0, 3), slice(2, 4), slice(4, 9)):
        with pytest.raises(ExportError, match="not complete yet: write whole chunks"):
            to_nczarr(new.isel(y=part), path, region={"y": part})
    with pytest.raises(ExportError, match="not complete yet; nothing is appended"):
        to_nczarr(expected()[["one", "two"]].drop_vars("x"), path, append_dim="y")


@pytest.mark.parametrize("target", ["tree", "zarr"], indirect=True)
def test_a_region_of_a_template_is_written_again_while_the_last_one_comes(target: Target) -> None:
    """Readers of the complete dataset must not see the half that was written again."""
    url = target[0]
    to_nczarr(xr.Dataset({"v": ("x", da.zeros(6, chunks=2))}), url, compute=False)
    old = xr.Dataset({"v": ("x", np.full(4, 1.0))})
    to_nczarr(old, url, region={"x": slice(0, 4)})

    done: list[int] = []

    def fails(block: np.ndarray[Any, Any]) -> Any:
        done.append(len(block))
        if len(done) == 2:
            to_nczarr(old.isel(x=slice(0, 2)), url, region={"x": slice(4, 6)})
            raise RuntimeError("of the user")
        return block + 1

    again = old.copy(
        data={"v": old.chunk(x=2)["v"].data.map_blocks(fails, dtype="f8", meta=np.empty(0))}
    )
    with dask.config.set(scheduler="synchronous"), pytest.raises(RuntimeError, match="of the user"):
        to_nczarr(again, url, region={"x": slice(0, 4)})
    np.testing.assert_array_equal(opened(url)["v"], np.ones(6))


def test_regions_that_overlap(tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(expected(), path, encoding={"one": {"chunks": (4, 7)}})
    new = expected()[["one"]].drop_vars("x")
    later = to_nczarr(
        -new.isel(y=slice(0, 5)).chunk(), path, region={"y": slice(0, 5)}, compute=False
    )
    with pytest.raises(ConflictError, match="at work on the same chunks"):
        to_nczarr(new.isel(y=slice(6, 8)), path, region={"y": slice(6, 8)})
    to_nczarr(-new.isel(y=slice(8, 10)), path, region={"y": slice(8, 10)})
    later.compute(scheduler="synchronous")
    values = expected()["one"].values
    np.testing.assert_array_equal(
        opened(path)["one"], np.concatenate([-values[:5], values[5:8], -values[8:]])
    )


# -- when something fails ------------------------------------------------------------


def fail_in_one(block: np.ndarray[Any, Any], path: str, block_info: Any = None) -> Any:
    """The third block waits for the others to begin and fails; those go on after that."""
    number = block_info[0]["chunk-location"][0]
    log(path, str(number))
    if number == 2:
        raise ZeroDivisionError("block 2")
    return block


def failing(path: Path, blocks: int = 6) -> xr.Dataset:
    values = da.ones((blocks * 10,), chunks=10).map_blocks(
        fail_in_one, str(path), dtype="f8", meta=np.empty(0)
    )
    return xr.Dataset({"v": ("x", values)})


@everywhere
def test_an_error_in_a_block(scheduler: str, target: Target, tmp_path: Path) -> None:
    url, options = target
    folder = tmp_path / "log"
    folder.mkdir()
    with pytest.raises(ZeroDivisionError, match="block 2"):
        to_nczarr(failing(folder / "new"), url, **options)
    with pytest.raises(StoreError):
        opened(url, **options)
    assert [p for p in tmp_path.iterdir() if p != folder] == []
    to_nczarr(expected(), url, **options)
    for mode in ("w", "a"):
        with pytest.raises(ZeroDivisionError, match="block 2"):
            to_nczarr(failing(folder / "change").rename(x="z"), url, mode, **options)
        xr.testing.assert_identical(opened(url, **options), expected())
    left = [p for p in tmp_path.rglob("*") if "nczarr_export" in str(p) or "partial" in p.name]
    assert left == []


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "w"},
        {"mode": "w", "encoding": {"v": {"chunks": (2,)}}, "safe_chunks": False},
        {"append_dim": "x", "align_chunks": True},
    ],
)
def test_blocks_of_unknown_length(options: Any, tmp_path: Path) -> None:
    to_nczarr(xr.Dataset({"v": ("x", np.arange(3))}), tmp_path / "d")
    values = da.arange(10, chunks=4)
    ds = xr.Dataset({"v": xr.Variable("x", values[values > 3])})
    with pytest.raises(ExportError, match=r"v has blocks whose lengths .*compute_chunk_sizes"):
        to_nczarr(ds, tmp_path / "d", **options)
    assert opened(str(tmp_path / "d"))["v"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("to_netcdf", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_blocks_of_another_shape_than_dask_was_told(
    length: int, to_netcdf: bool, tmp_path: Path
) -> None:
    register()
    values = da.zeros(6, chunks=2).map_blocks(lambda _: np.ones(length), dtype="f8")
    ds = xr.Dataset({"v": ("x", values)})
    write: Any = partial(ds.to_netcdf, engine="nczarr")
    if not to_netcdf:
        encoding = {"v": {"chunks": (6,)}}
        write = partial(to_nczarr, ds, encoding=encoding, safe_chunks=False)
    told = rf"/v: .* shape \({length},\), which was to have \(2,\)"
    with pytest.raises(FormatError, match=told):
        write(tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("to_netcdf", [False, True])
@pytest.mark.parametrize(
    ("told", "computed"),
    [("i4", 0.5), ("u1", np.int64(300)), ("i8", np.uint64(2**63)), ("i2", np.nan)],
)
def test_blocks_of_another_dtype_than_dask_was_told(
    told: str, computed: Any, to_netcdf: bool, tmp_path: Path
) -> None:
    register()
    values = da.zeros(4, chunks=2).map_blocks(lambda _: np.array([1, computed]), dtype=told)
    ds = xr.Dataset({"v": ("x", values)})
    write = partial(ds.to_netcdf, engine="nczarr") if to_netcdf else partial(to_nczarr, ds)
    with pytest.raises(FormatError, match="/v: holds "):
        write(tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("to_netcdf", [False, True])
@pytest.mark.parametrize(("told", "computed"), [("f8", 1j), ("i8", "2020-01-01"), ("f4", "1")])
def test_blocks_of_another_kind_than_dask_was_told(
    told: str, computed: Any, to_netcdf: bool, tmp_path: Path
) -> None:
    """numpy casts them to numbers, without a unit or an imaginary part."""
    register()
    block = np.array([computed, computed], "M8[s]" if told == "i8" else None)
    ds = xr.Dataset({"v": ("x", da.zeros(4, chunks=2).map_blocks(lambda _: block, dtype=told))})
    write = partial(ds.to_netcdf, engine="nczarr") if to_netcdf else partial(to_nczarr, ds)
    with pytest.raises(
        FormatError, match=f"/v: .* of type {block.dtype}.* stored as".replace("[", r"\[")
    ):
        write(tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("kind", ["m", "M"])
def test_times_of_a_coarser_resolution_than_dask_was_told(kind: str, tmp_path: Path) -> None:
    """xarray divides them by zero: `to_netcdf` stores NaT. pandas 3 makes such of many times."""
    block = np.array([2, "NaT"], f"{kind}8[s]")
    values = da.zeros(4, chunks=2).map_blocks(lambda _: block, dtype=f"{kind}8[ns]")
    ds = xr.Dataset({"v": ("x", values)})
    to_nczarr(ds, tmp_path / "d")
    to_nczarr(ds, tmp_path / "d", append_dim="x")
    with xr.open_dataset(tmp_path / "d", engine="nczarr", decode_timedelta=True) as back:
        np.testing.assert_array_equal(back["v"].values, np.tile(block, 4))


HOURS = np.array(["2000-01-01T00", "2000-01-01T05"], "M8[ns]")


@pytest.mark.filterwarnings("ignore:Times can't be serialized")
@pytest.mark.filterwarnings("ignore:Timedeltas can't be serialized")
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("values", "encoding", "reason"),
    [
        (HOURS, {"units": "days since 2000-01-01", "dtype": "i4"}, "faithfully"),
        (HOURS, {"units": "days since 2000-01-01", "dtype": "i8"}, "faithfully"),
        (HOURS - HOURS[0], {"units": "days", "dtype": "i8"}, "faithfully"),
        (np.array(["9999-01-01", "2000-01-01"], "M8[s]"),
         {"units": "nanoseconds since 2000-01-01", "dtype": "i8"}, "(out of the range|Overflow)"),
        (np.array(["a", 1], object), {}, "holds 1: convert it with astype"),
    ],
)  # fmt: skip
def test_blocks_that_their_encoding_cannot_hold(
    values: Any, encoding: dict[str, Any], reason: str, later: bool, tmp_path: Path
) -> None:
    ds = xr.Dataset({"good": ("x", da.zeros(2)), "v": ("x", da.from_array(values, chunks=1))})
    ds["v"].encoding = encoding
    with pytest.raises(ExportError, match=rf"\bv: .*{reason}"):
        dask.compute(to_nczarr(ds, tmp_path / "d", compute=not later))


@pytest.mark.parametrize("later", [False, True])
def test_dates_that_their_encoding_cannot_hold(later: bool, tmp_path: Path) -> None:
    dates = xr.date_range("2000-01-01", periods=2, freq="5h", calendar="noleap", use_cftime=True)
    ds = xr.Dataset({"v": ("x", da.from_array(dates.values, chunks=1))})
    encoding: Any = {"v": {"units": "days since 2000-01-01", "dtype": "i8"}}
    with pytest.raises(ExportError, match=r"\bv: .*faithfully"):
        dask.compute(to_nczarr(ds, tmp_path / "d", encoding=encoding, compute=not later))
    ds["v"].encoding = encoding["v"]  # inherited, it is left out
    to_nczarr(ds, tmp_path / "e")
    with xr.open_dataset(tmp_path / "e", engine="nczarr") as back:
        assert back["v"].values.tolist() == dates.values.tolist()


class Strange(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that numpy makes none of, as those of sparse and cupy are."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.ndim, self.dtype = shape, len(shape), np.dtype("f8")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("use todense")

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        return NotImplemented

    def __array_function__(self, *_: Any) -> Any:
        return NotImplemented

    def __getitem__(self, key: Any) -> Any:
        return Strange(
            tuple(len(range(*k.indices(n))) for k, n in zip(key, self.shape, strict=True))
        )


@pytest.mark.parametrize("options", [{"mode": "w"}, {"append_dim": "x"}, {"mode": "r+"}])
@pytest.mark.parametrize("lazy", [False, True])
def test_arrays_that_are_none_of_numpy(options: dict[str, Any], lazy: bool, tmp_path: Path) -> None:
    to_nczarr(xr.Dataset({"v": ("x", np.arange(3.0))}), tmp_path / "d")
    data = Strange((3,))
    values = da.from_array(np.zeros(3)).map_blocks(lambda _: data, meta=data) if lazy else data
    with pytest.raises(ExportError, match=r"v is of type tests\.Strange, .*as_numpy"):
        to_nczarr(xr.Dataset({"v": ("x", values)}), tmp_path / "d", **options)
    assert opened(str(tmp_path / "d"))["v"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("to_netcdf", [False, True])
def test_a_block_that_is_being_written_when_another_fails(
    error: type[BaseException], to_netcdf: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, given_up = threading.Event(), threading.Event()
    encode, shut = Encoder.encode, Gate.shut

    def encode_until_given_up(self: Encoder, values: Any) -> Any:
        begun.set()
        assert given_up.wait(60)
        return encode(self, values)

    def give_up(self: Gate) -> None:
        given_up.set()
        shut(self)

    def fail_in_second(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0]:
            begun.wait()
            raise error("now")
        return block

    monkeypatch.setattr(Encoder, "encode", encode_until_given_up)
    monkeypatch.setattr(Gate, "shut", give_up)
    register()
    values = da.ones((20,), chunks=10).map_blocks(fail_in_second, dtype="f8", meta=np.empty(0))
    new = xr.Dataset({"v": ("x", values)})
    export: Any = partial(new.to_netcdf, engine="nczarr") if to_netcdf else new.nczarr.to_nczarr
    with dask.config.set(scheduler="threads", num_workers=2), pytest.raises(error, match="now"):
        export(tmp_path / "d")
    assert begun.is_set()
    assert list(tmp_path.iterdir()) == []


# -- progress ------------------------------------------------------------------------


class Counted(Progress):
    """A progress bar that is remembered."""

    all: ClassVar[list[Counted]] = []

    def __init__(self, label: str, *, shown: bool, callback: Callback | None) -> None:
        self.stream = io.StringIO()
        with redirect_stderr(self.stream):
            super().__init__(label, shown=shown, callback=callback)
        self.all.append(self)


def test_progress(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nczarr_xarray.export.api.Progress", Counted)
    Counted.all.clear()
    to_nczarr(dataset(tmp_path / "counts"), tmp_path / "d", progress=True)
    (bar,) = Counted.all
    written = opened(tmp_path / "d")
    assert bar.total == bar.done
    # (of a block, its share of the bytes is counted)
    assert 0 <= sum(v.nbytes for v in written.variables.values()) - bar.done < 20
    text = bar.stream.getvalue()
    assert text.endswith("\n")
    assert "100%" in text
    assert "B/s]" in text


def test_callbacks_of_fsspec(scheduler: str, tmp_path: Path) -> None:
    callback = Callback()
    to_nczarr(dataset(tmp_path / "counts"), tmp_path / "d", callback=callback)
    nbytes = sum(v.nbytes for v in opened(tmp_path / "d").variables.values())
    assert callback.size == callback.value
    assert 0 <= nbytes - callback.value < 20  # as of the bar


@pytest.mark.parametrize("progress", [None, False])
def test_no_progress(
    progress: bool | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with dask.config.set(scheduler="threads"):
        to_nczarr(dataset(tmp_path / "counts"), tmp_path / "d", progress=progress)
    assert capfd.readouterr() == ("", "")


def test_schedulers_that_know_no_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nczarr_xarray.export.api.Progress", Counted)
    Counted.all.clear()

    def plain(graph: Any, keys: Any, **_: Any) -> Any:
        active = dask.callbacks.Callback.active
        monkeypatch.setattr(dask.callbacks.Callback, "active", set())
        try:
            return dask.get(graph, keys)
        finally:
            monkeypatch.setattr(dask.callbacks.Callback, "active", active)

    with dask.config.set(scheduler=plain):
        to_nczarr(dataset(tmp_path / "counts"), tmp_path / "d")
    assert Counted.all[0].done == Counted.all[0].total > 0


# -- to_netcdf -----------------------------------------------------------------------


def test_to_netcdf(scheduler: str, tmp_path: Path) -> None:
    register()
    path = tmp_path / "d"
    dataset(tmp_path / "counts").to_netcdf(path, engine="nczarr")  # type: ignore[call-overload]
    xr.testing.assert_identical(opened(path), expected())


def test_to_netcdf_later(tmp_path: Path) -> None:
    register()
    path = tmp_path / "d"
    later = dataset(tmp_path / "counts").to_netcdf(path, engine="nczarr", compute=False)  # type: ignore[call-overload]
    later.compute(scheduler="threads")
    xr.testing.assert_identical(opened(path), expected())


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("url", ["d", "memory://computed-twice/d"])
def test_to_netcdf_later_twice(
    url: str, pickled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written since stays."""
    register()
    monkeypatch.chdir(tmp_path)
    old = xr.Dataset({"v": ("x", np.arange(4.0))})
    later = old.chunk(x=2).to_netcdf(url, engine="nczarr", compute=False)  # type: ignore[call-overload]
    sent = pickle.dumps(later)
    later.compute(scheduler="threads")
    if pickled:
        del later
        gc.collect()
        later = pickle.loads(sent)
    to_nczarr(-old, url, "r+")
    with pytest.raises(StoreError, match=r"is complete already|it has ended|is over already"):
        later.compute(scheduler="threads")
    assert opened(url).equals(-old)
    to_nczarr(old, url, "w")
    assert [entry.name for entry in tmp_path.iterdir()] == (["d"] if url == "d" else [])


def test_to_netcdf_while_an_error_is_handled(tmp_path: Path) -> None:
    """Another error that the caller is handling does not keep the dataset from being written."""
    register()
    whole = dataset(tmp_path / "counts")
    try:
        int("something else")
    except ValueError:
        whole.to_netcdf(tmp_path / "a", engine="nczarr")  # type: ignore[call-overload]
        later = whole.to_netcdf(tmp_path / "b", engine="nczarr", compute=False)  # type: ignore[call-overload]
        with pytest.raises(ExportError):
            whole.assign(z=1j).to_netcdf(tmp_path / "c", engine="nczarr")  # type: ignore[call-overload]
    try:
        int("something else")
    except ValueError:
        later.compute(scheduler="sync")
    for name in "ab":
        xr.testing.assert_identical(opened(tmp_path / name), expected())
    assert not (tmp_path / "c").exists()


def test_a_delayed_to_netcdf_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody will compute it: what has begun is removed."""

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no graph")

    register()
    whole = dataset(tmp_path / "counts")
    monkeypatch.setattr("xarray.backends.common.ArrayWriter.sync", fails)
    with pytest.raises(RuntimeError, match="no graph"):
        whole.to_netcdf(tmp_path / "a", engine="nczarr", compute=False)  # type: ignore[call-overload]
    gc.collect()
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name != "counts"]


def test_save_mfdataset_of_which_one_is_refused(tmp_path: Path) -> None:
    register()
    whole = dataset(tmp_path / "counts")
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(ExportError, match="complex128"):
        xr.save_mfdataset([whole, xr.Dataset({"z": ("x", [1j])})], paths, engine="nczarr")
    gc.collect()
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name != "counts"]
    xr.save_mfdataset([whole, whole], paths, engine="nczarr")
    for path in paths:
        xr.testing.assert_identical(opened(path), expected())


@pytest.mark.parametrize("compute", [True, False])
def test_save_mfdataset(compute: bool, tmp_path: Path) -> None:
    register()
    whole = dataset(tmp_path / "counts")
    parts = [whole.isel(y=slice(0, 4)), whole.isel(y=slice(4, 10))]
    paths = [tmp_path / "a", tmp_path / "b"]
    later = xr.save_mfdataset(parts, paths, engine="nczarr", compute=compute)
    if later is not None:
        later.compute(scheduler="threads")
    for path, part in zip(paths, (slice(0, 4), slice(4, 10)), strict=True):
        xr.testing.assert_identical(opened(path), expected().isel(y=part))
