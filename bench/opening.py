"""Opening 500 variables in 20 groups: a local tree, and the same over HTTP.

netCDF-C writes the tree as NCZarr, with and without .zmetadata, and an equivalent netCDF-4 file.
A turn is `xarray.open_groups` of everything and the closing of it; what is compared is every
variable's group, name, dimensions, shape, type and attributes. Over HTTP a turn starts without
connections.

The limit over HTTP is the network's alone (bench/latency.py), without a microsecond for making 500
variables of what has arrived: three rounds of requests without .zmetadata (the root's objects, then
those of its groups, then those of their variables: NCZarr's lists name the children), and one round
with it. So ours shows at most four rounds that depend on each other, with the connection, and two.

Peers: netCDF-C opens no tree over HTTP. Engine zarr needs a listing where there is no .zmetadata,
and HTTP has none: it is asked nevertheless. With .zmetadata it is asked on fsspec as users get it,
with `PEERS_IN_FLIGHT` requests at a time, and on obstore.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr
import zarr
from harness import LIMIT, OURS, Goal, Options, Row, Work, measure
from latency import NETWORK, PEERS_IN_FLIGHT, Server, least

LOCAL = "open 500 variables, local tree"
SINGLE = "open 500 variables, HTTP 50 ms"
CONSOLIDATED = "open 500 variables, HTTP 50 ms, consolidated"
GROUPS, VARIABLES = 20, 25
TREE, WITH_METADATA, FILE = "tree", "consolidated", "m.nc"

Program = Callable[[], Any]


def run(options: Options) -> dict[str, Row]:
    # filesystems of fsspec that are forgotten leave their sessions open, which aiohttp tells of
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        folder = Path(name)
        write(folder)
        server.control("set", **NETWORK.settings())
        works = [local(folder), over_http(folder, server), consolidated(folder, server)]
        wanted = [work for work in works if options.wants(work.name)]
        return {work.name: measure(work, options.repeat) for work in wanted}


def local(folder: Path) -> Work:
    tree, file = str(folder / TREE), str(folder / FILE)
    programs: dict[str, Program | float] = {
        OURS: lambda: opened(tree, engine="nczarr"),
        "zarr": lambda: opened(tree, engine="zarr", consolidated=False),
        "netcdf4": lambda: opened(file, engine="netcdf4"),
    }
    return Work(LOCAL, programs, (Goal("netcdf4", 1 / 1.3), Goal("zarr", 6)), right=same)


def over_http(folder: Path, server: Server) -> Work:
    url, tree = server.url(TREE), folder / TREE
    found = metadata(tree)
    rounds = Counter(len(file.relative_to(tree).parts) for file in found)
    programs: dict[str, Program | float] = {
        OURS: lambda: opened(url, engine="nczarr"),
        **peers(url, consolidated=False),
        LIMIT: least(rounds.values(), sum(file.stat().st_size for file in found)),
    }
    return Work(SINGLE, programs, (Goal(LIMIT, 1 / 1.5),), right=same)


def consolidated(folder: Path, server: Server) -> Work:
    url = server.url(WITH_METADATA)
    programs: dict[str, Program | float] = {
        OURS: lambda: opened(url, engine="nczarr"),
        **peers(url, consolidated=True),
        LIMIT: least([1], (folder / WITH_METADATA / ".zmetadata").stat().st_size),
    }
    return Work(CONSOLIDATED, programs, (Goal(LIMIT, 1 / 1.5),), right=same)


def peers(url: str, **options: Any) -> dict[str, Program]:
    """Engine zarr: documented are `storage_options`, `async.concurrency`, and ObjectStore."""
    new: dict[str, Any] = {"storage_options": {"skip_instance_cache": True}}

    def raised() -> Any:
        with zarr.config.set({"async.concurrency": PEERS_IN_FLIGHT}):
            return opened(url, engine="zarr", **new, **options)

    def obstore() -> Any:
        from obstore.store import HTTPStore

        client: Any = {"allow_http": True, "pool_max_idle_per_host": str(PEERS_IN_FLIGHT)}
        store: Any = HTTPStore.from_url(url, client_options=client)
        with zarr.config.set({"async.concurrency": PEERS_IN_FLIGHT}):
            found = zarr.storage.ObjectStore(store, read_only=True)
            return opened(found, engine="zarr", **options)

    return {
        "zarr": lambda: opened(url, engine="zarr", **new, **options),
        "zarr, 128": raised,
        "zarr, obstore": obstore,
    }


def opened(target: Any, **options: Any) -> dict[str, xr.Dataset]:
    groups: dict[str, xr.Dataset] = {}
    with contextlib.ExitStack() as stack:
        groups.update(xr.open_groups(target, **options))
        for ds in groups.values():
            stack.callback(ds.close)
    return groups


def same(found: dict[str, xr.Dataset], expected: dict[str, xr.Dataset]) -> bool:
    return description(found) == description(expected)


def description(groups: dict[str, xr.Dataset]) -> list[Any]:
    variables = [(g, n, v) for g, ds in groups.items() for n, v in ds.variables.items()]
    return sorted(
        (group.strip("/"), name, v.dims, v.shape, str(v.dtype), sorted(v.attrs.items()))
        for group, name, v in variables
    )


def metadata(tree: Path) -> list[Path]:
    return [file for file in tree.rglob(".z*") if file.is_file()]


def write(folder: Path) -> None:
    trees = {TREE: "nczarr,file", WITH_METADATA: "nczarr,consolidated,file"}
    urls = [f"file://{folder / name}#mode={mode}" for name, mode in trees.items()]
    for target in [*urls, str(folder / FILE)]:
        with netCDF4.Dataset(target, "w") as root:
            for g in range(GROUPS):
                group = root.createGroup(f"g{g:02}")
                group.createDimension("x", 10)
                for v in range(VARIABLES):
                    variable = group.createVariable(f"v{v:02}", "f4", ("x",))
                    variable.units, variable.long_name = "K", f"variable {v}"
                    variable[:] = np.arange(10)
