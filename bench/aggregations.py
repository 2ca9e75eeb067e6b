"""Aggregations: made of remote files, and read, against what others have for the same.

Remote rows: netCDF-4 files of one step each behind 50 ms (bench/latency.py). The limit of making an
aggregation, and of a slice through fragments whose metadata are not known, is one round of
requests: a first read of `HEAD_BYTES` brings all of such a file. Larger files need another round.
Each turn starts without connections, and without what an earlier one has learned.

Peers: VirtualiZarr with its HDF parser on obstore, one thread for each of `IN_FLIGHT` files, and
`open_mfdataset` with h5netcdf on fsspec, dask's threads, and the options that compare least.
cfapyx and cfdm read the same master as ours; neither makes one of remote files.

Local rows: fragments of 13 kB in one folder. "nczarr, one dataset" is the same data in one NCZarr
tree, in chunks as large as a fragment. A master of 100,000 fragments is on this machine; appending
a file to it is compared with the second that it may take.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr
from harness import LIMIT, OURS, Goal, Options, Prepared, Row, Work, measure
from latency import NETWORK, Server, least

import nczarr_xarray
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.ranges.source import HEAD_BYTES

REMOTE, SLICE, LOCAL, LARGE = 1000, 365, 3000, 100_000
IN_FLIGHT = 128
BLOCKS: dict[str, Any] = {"cache_type": "blockcache", "block_size": 4 << 20}
#: Stands for the time in the file that all others are made of.
MARK = 123456.0
SHAPE = {"remote": (90, 180), "local": (40, 80)}


def run(options: Options) -> dict[str, Row]:
    # filesystems of fsspec that are forgotten leave their sessions open, which aiohttp tells of
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    rows: dict[str, Row] = {}
    for section in (remote, local, large):
        with tempfile.TemporaryDirectory() as name, section(Path(name), options.scale) as works:
            rows |= {w.name: measure(w, options.repeat) for w in works if options.wants(w.name)}
    return rows


@contextlib.contextmanager
def remote(folder: Path, scale: float) -> Iterator[list[Work]]:
    many, few = max(2, int(REMOTE * scale)), max(2, int(SLICE * scale))
    write(folder, many, SHAPE["remote"])
    with Server(folder) as server:
        urls = [server.url(f"{n}.nc") for n in range(many)]
        master = folder / "slice.nca"
        server.control("set", latency_ms=0, conn_rtts=0, bw_conn=0, bw_total=0)
        nczarr_xarray.aggregate(urls[:few], master)
        server.control("set", **NETWORK.settings())
        size = (folder / "0.nc").stat().st_size
        head, point = min(size, HEAD_BYTES), (slice(None), 45, 90)
        rounds = 1 if size <= HEAD_BYTES else 2
        yield [
            Work(
                f"open {many:,} remote files as one",
                {
                    OURS: partial(opened_many, urls),
                    "nczarr, aggregate": partial(aggregated, urls, folder / "new.nca"),
                    "VirtualiZarr": partial(virtualized, urls, folder / "new.json"),
                    "open_mfdataset": partial(opened_together, urls),
                    LIMIT: least([many] * rounds, many * head),
                },
                (Goal(LIMIT, 1 / 2), Goal("best peer", 20)),
                prepare=memory.clear,
            ),
            Work(
                f"a point of {few} remote fragments",
                {
                    OURS: partial(read, master, point, engine="nczarr"),
                    "cfapyx": partial(read, master, point, engine="CFA"),
                    LIMIT: least([few] * rounds, few * size),
                },
                (Goal(LIMIT, 1 / 1.3),),
                prepare=memory.clear,
            ),
        ]


@contextlib.contextmanager
def local(folder: Path, scale: float) -> Iterator[list[Work]]:
    many = max(2, int(LOCAL * scale))
    write(folder, many, SHAPE["local"])
    files = [str(folder / f"{n}.nc") for n in range(many)]
    master, single = folder / "m.nca", folder / "one.zarr"
    # absolute addresses: cfdm looks for others in the working directory
    nczarr_xarray.aggregate(files, master, relative=False)
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as ds:
        encoding = {"tas": {"chunksizes": (1, *SHAPE["local"]), "zlib": True, "shuffle": True}}
        ds.load().nczarr.to_nczarr(single, encoding=encoding)
    megabytes = many * np.prod(SHAPE["local"]) * 4 / 1e6
    yield [
        Work(
            f"open {many:,} local fragments",
            {
                OURS: partial(described, master, engine="nczarr"),
                "cfapyx": partial(described, master, engine="CFA"),
                "cfdm": partial(cfdm_shape, master),
            },
            (Goal("best peer", 3),),
        ),
        Work(
            f"mean of {many:,} local fragments",
            {
                OURS: partial(mean, master, engine="nczarr"),
                "nczarr, one dataset": partial(mean, single, engine="nczarr"),
                "cfapyx": partial(mean, master, engine="CFA", chunks={}),
                "cfdm": partial(cfdm_mean, master),
            },
            (Goal("best peer", 3), Goal("nczarr, one dataset", 0.7)),
            megabytes=float(megabytes),
            right=lambda found, expected: bool(np.isclose(found, expected, rtol=1e-4)),
        ),
        Work(
            f"aggregate {many:,} local files",
            {OURS: partial(aggregated, files, folder / "new.nca")},
        ),
    ]


@contextlib.contextmanager
def large(folder: Path, scale: float) -> Iterator[list[Work]]:
    count = max(2, int(LARGE * scale))
    write(folder, 1, SHAPE["local"])
    master, numbers = large_master(folder, count), itertools.count(count)
    yield [
        Work(
            f"open a master of {count:,} fragments",
            {OURS: partial(described, master, engine="nczarr"), LIMIT: 0.2},
            (Goal(LIMIT, 1),),
        ),
        Work(
            f"append a file to {count:,}",
            {
                OURS: Prepared(
                    lambda: step(folder, next(numbers)),
                    lambda file: nczarr_xarray.aggregate([file], master, append=True),
                ),
                LIMIT: 1.0,
            },
            (Goal(LIMIT, 1),),
        ),
    ]


def large_master(folder: Path, count: int) -> Path:
    """Write a master of CF-1.13 whose fragments are mostly not there."""
    master = folder / "large.nca"
    with netCDF4.Dataset(master, "w") as ds, netCDF4.Dataset(folder / "0.nc") as first:
        ds.Conventions = "CF-1.13"
        ds.createDimension("time", count)
        for name in ("lat", "lon"):
            ds.createDimension(name, len(first.dimensions[name]))
        for name in ("time", "lat", "lon", "tas"):
            variable = ds.createVariable(name, first[name].dtype, () if name == "tas" else (name,))
            variable.setncatts(vars(first[name]))
            if name != "tas":
                variable[:] = np.arange(count) if name == "time" else first[name][:]
        ds["tas"].aggregated_dimensions = "time lat lon"
        ds["tas"].aggregated_data = "map: m uris: u identifiers: i"
        for name, size in {"axes": 3, "most": count, "y": 1, "x": 1}.items():
            ds.createDimension(name, size)
        sizes = np.ma.masked_all((3, count), "i4")
        sizes[0], sizes[1:, 0] = 1, first["tas"].shape[1:]
        ds.createVariable("m", "i4", ("axes", "most"), fill_value=-1)[:] = sizes
        names = np.array([f"{number}.nc" for number in range(count)], object)
        ds.createVariable("u", str, ("time", "y", "x"))[:] = names[:, None, None]
        ds.createVariable("i", str, ())[...] = "tas"
    return master


def opened_many(urls: list[str]) -> np.ndarray:
    with nczarr_xarray.open_many(urls, decode_times=False) as ds:
        return ds.time.values


def aggregated(files: list[str], master: Path) -> np.ndarray:
    nczarr_xarray.aggregate(files, master, overwrite=True)
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as ds:
        assert ds.tas.shape[0] == len(files)
        return ds.time.values


def virtualized(urls: list[str], output: Path) -> np.ndarray:
    """The times of references that VirtualiZarr writes."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser

    root = urls[0].rpartition("/")[0]
    client: Any = {"allow_http": True, "pool_max_idle_per_host": str(IN_FLIGHT)}
    registry = ObjectStoreRegistry({root: HTTPStore.from_url(root, client_options=client)})
    found = open_virtual_mfdataset(
        urls,
        registry=registry,
        parser=HDFParser(),
        parallel=_Pool,
        loadable_variables=["time", "lat", "lon"],
        decode_times=False,
        **LEAST,
    )
    found.vz.to_kerchunk(str(output), format="json")
    return np.asarray(found.time.values)


class _Pool(ThreadPoolExecutor):
    """As many threads as files in flight, however it is made."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(IN_FLIGHT)


#: Options with which xarray compares least.
LEAST: dict[str, Any] = {
    "combine": "nested",
    "concat_dim": "time",
    "data_vars": "minimal",
    "coords": "minimal",
    "compat": "override",
    "join": "override",
    "combine_attrs": "override",
}


def opened_together(urls: list[str]) -> np.ndarray:
    import dask
    import fsspec

    fs = fsspec.filesystem("http", skip_instance_cache=True)
    with dask.config.set(scheduler="threads", num_workers=IN_FLIGHT):
        found = [fs.open(url, **BLOCKS) for url in urls]
        options: dict[str, Any] = {"engine": "h5netcdf", "decode_times": False, "parallel": True}
        with xr.open_mfdataset(found, **options, **LEAST) as ds:
            return ds.time.values


def read(master: Path, key: tuple[Any, ...], **options: Any) -> np.ndarray:
    with xr.open_dataset(master, decode_times=False, **options) as ds:
        return np.asarray(ds.tas[key].values)


def described(master: Path, **options: Any) -> np.ndarray:
    with xr.open_dataset(master, decode_times=False, **options) as ds:
        return np.array(ds.tas.shape)


def mean(master: Path, **options: Any) -> float:
    with xr.open_dataset(master, decode_times=False, **options) as ds:
        return float(ds.tas.mean().values)


def cfdm_shape(master: Path) -> np.ndarray:
    import cfdm

    return np.array(cfdm.read(str(master))[0].shape)


def cfdm_mean(master: Path) -> float:
    import cfdm

    return float(cfdm.read(str(master))[0].array.mean())


def write(folder: Path, count: int, shape: tuple[int, int]) -> None:
    """Write files of one step each, which differ in their time only."""
    base = folder / "base.nc"
    with netCDF4.Dataset(base, "w") as ds:
        sizes = {"time": 1, "lat": shape[0], "lon": shape[1]}
        axes = {"time": [MARK], "lat": np.linspace(-89, 89, shape[0]), "lon": np.arange(shape[1])}
        units = ("days since 1850-01-01", "degrees_north", "degrees_east")
        for (name, size), unit in zip(sizes.items(), units, strict=True):
            ds.createDimension(name, None if name == "time" else size)
            variable = ds.createVariable(name, "f8", (name,))
            variable.units, variable.standard_name = unit, name
        variable = ds.createVariable(
            "tas", "f4", tuple(sizes), zlib=True, shuffle=True, chunksizes=(1, *shape)
        )
        variable.units, variable.long_name = "K", "air temperature"
        for name, values in axes.items():
            ds[name][:] = values
        noise = np.random.default_rng(0).normal(size=(1, *shape))
        variable[:] = np.round(280 + 5 * noise, 1)
    for number in range(count):
        step(folder, number)


def step(folder: Path, number: int) -> Path:
    """Write the file of one step."""
    data, mark = (folder / "base.nc").read_bytes(), np.float64(MARK).tobytes()
    assert data.count(mark) == 1
    file = folder / f"{number}.nc"
    file.write_bytes(data.replace(mark, np.float64(number).tobytes()))
    return file
