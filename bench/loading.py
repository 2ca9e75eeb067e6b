"""`Dataset.load` of 500 small variables over HTTP, 20 ms away: of two trees and of a file.

xarray loads variables one after the other. A turn is one plain `ds.load()` of a dataset that has
just been opened, which is not timed: opening has a section of its own. A variable is 64 x 64
float32, shuffled zlib, one chunk: 6 MB in all. The trees are NCZarr with and without .zmetadata,
the file is netCDF-4.

The limit is a bare client of aiohttp, which is told what to ask for and throws away what it gets:
the objects of the tree with as many connections as ours has (`RemoteStore.concurrency`), or the
file in parts of 1 MiB, all at once. So it has the latency and the bandwidth of the network, and the
time that client and server take for so many requests. It begins without connections; ours has those
that opening needed. With .zmetadata ours asks for each .zarray, to find out whether it is stale: a
program more is the bare client with these requests. With ``consolidated=True`` it does not ask, as
engine zarr never does.

Peers: engine zarr as users get it, the same on obstore with `PEERS_IN_FLIGHT` requests at a time,
and that with `load_async`, xarray's own way to overlap (it needs a coroutine). Without .zmetadata
it needs a listing, and HTTP has none: it is asked nevertheless. Of the file: engine h5netcdf on
fsspec, with the blocks of 4 MiB that xarray chooses, of which opening has read some.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import xarray as xr
import zarr
from data import codecs, field
from harness import LIMIT, OURS, Goal, Options, Prepared, Row, Work, measure
from latency import PEERS_IN_FLIGHT, Server
from remote_limits import NETWORKS

from nczarr_fsspec.keystore import RemoteStore
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray import to_nczarr

NETWORK = NETWORKS["20 ms"]
VARIABLES, SIDE = 500, 64
PART = 1 << 20
TREE, WITH_METADATA, FILE = "tree", "consolidated", "m.nc"
#: The limit if it asks for each .zarray, too, as ours does.
ALONE = "nczarr's requests alone"
#: what is loaded, and ``consolidated=`` of ours
ROWS: dict[str, tuple[str, bool | None]] = {
    "load 500 variables, HTTP 20 ms": (TREE, None),
    "load 500 variables, HTTP 20 ms, consolidated": (WITH_METADATA, None),
    "load 500 variables, HTTP 20 ms, consolidated=True": (WITH_METADATA, True),
    "load 500 variables, HTTP 20 ms, one netCDF-4 file": (FILE, None),
}

Load = Callable[[xr.Dataset], Any]


def run(options: Options) -> dict[str, Row]:
    wanted = {row: target for row, target in ROWS.items() if options.wants(row)}
    # filesystems of fsspec that are forgotten leave their sessions open, which aiohttp tells of
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        write(Path(name), max(2, round(VARIABLES * options.scale)))
        server.control("set", **NETWORK.settings())
        return {
            row: measure(work(row, Path(name) / target, server, trusted), options.repeat)
            for row, (target, trusted) in wanted.items()
        }


def work(row: str, target: Path, server: Server, trusted: bool | None) -> Work:
    url = server.url(target.name)
    asked = parts(target) if target.name == FILE else objects(target)
    nbytes = sum(size for _, size in asked)
    requests = [(f"{url}{path}", size) for path, size in asked]
    programs: dict[str, Callable[[], Any] | float] = {OURS: loading(lambda: ours(url, trusted))}
    if target.name == FILE:
        programs["h5netcdf"] = loading(lambda: xr.open_dataset(url, engine="h5netcdf", cache=False))
    else:
        consolidated = target.name == WITH_METADATA
        programs |= {
            "zarr": loading(lambda: by_fsspec(url, consolidated)),
            "zarr, obstore": loading(lambda: by_obstore(url, consolidated)),
            "zarr, load_async": loading(lambda: by_obstore(url, consolidated), load_async),
        }
        if consolidated and not trusted:
            checks = [(f"{url}{path}", size) for path, size in objects(target, ".zarray")]
            programs[ALONE] = lambda: asyncio.run(bare([*requests, *checks]))
    programs[LIMIT] = lambda: asyncio.run(bare(requests))
    return Work(row, programs, (Goal(LIMIT, 1 / 1.5),), nbytes / 1e6, right=same)


def loading(opened: Callable[[], xr.Dataset], load: Load = xr.Dataset.load) -> Prepared:
    return Prepared(opened, load)


def load_async(ds: xr.Dataset) -> Any:
    with zarr.config.set({"async.concurrency": PEERS_IN_FLIGHT}):
        return asyncio.run(ds.load_async())


def ours(url: str, consolidated: bool | None) -> xr.Dataset:
    memory.clear()  # of what was learned of a file: connections are kept, as peers keep theirs
    target = f"{url}#mode=bytes" if url.endswith(FILE) else url
    return xr.open_dataset(target, engine="nczarr", consolidated=consolidated)


def by_fsspec(url: str, consolidated: bool) -> xr.Dataset:
    options: Any = {"consolidated": consolidated, "storage_options": {"skip_instance_cache": True}}
    return xr.open_dataset(url, engine="zarr", **options)


def by_obstore(url: str, consolidated: bool) -> xr.Dataset:
    from obstore.store import HTTPStore

    client: Any = {"allow_http": True, "pool_max_idle_per_host": str(PEERS_IN_FLIGHT)}
    store: Any = HTTPStore.from_url(url, client_options=client)
    with zarr.config.set({"async.concurrency": PEERS_IN_FLIGHT}):
        found = zarr.storage.ObjectStore(store, read_only=True)
        return xr.open_dataset(found, engine="zarr", consolidated=consolidated)


def same(found: Any, expected: xr.Dataset) -> bool:
    return found is None or expected.equals(found)


async def bare(requests: list[tuple[str, int]]) -> None:
    """Ask for all, and check no more than how many bytes came."""
    connector = aiohttp.TCPConnector(limit=RemoteStore.concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def get(place: str, size: int) -> None:
            url, _, part = place.partition(" ")
            headers = {"Range": f"bytes={part}"} if part else {}
            async with session.get(url, headers=headers) as answer:
                if len(await answer.read()) != size:
                    raise OSError(f"{url}: {answer.status}")

        await asyncio.gather(*(get(*request) for request in requests))


def objects(tree: Path, name: str = "[!.]*") -> list[tuple[str, int]]:
    """The chunks of a tree, or its objects of a name, and their sizes."""
    files = [file for file in tree.rglob(name) if file.is_file()]
    return [(f"/{file.relative_to(tree)}", file.stat().st_size) for file in files]


def parts(file: Path) -> list[tuple[str, int]]:
    size = file.stat().st_size
    stops = [min(size, start + PART) for start in range(0, size, PART)]
    return [(f" {i * PART}-{stop - 1}", stop - i * PART) for i, stop in enumerate(stops)]


def write(folder: Path, count: int) -> None:
    values = field((count, SIDE, SIDE))
    attrs = {"units": "K", "long_name": "a field"}
    ds = xr.Dataset({f"v{n:03}": (("y", "x"), one, attrs) for n, one in enumerate(values)})
    codec = codecs()["shuffled zlib"]
    chunked = {"chunksizes": (SIDE, SIDE), "_FillValue": None, **codec.netcdf}
    encoding = dict.fromkeys(ds, chunked)
    for name in (TREE, WITH_METADATA):
        to_nczarr(ds, folder / name, encoding=encoding, consolidated=name == WITH_METADATA)
    ds.to_netcdf(folder / FILE, engine="netcdf4", encoding=encoding)
