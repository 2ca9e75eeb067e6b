"""256 random boxes of 4 x 64 x 64, as training reads them: of Zarr 3, and over a network.

Each turn opens the dataset. nczarr is `nczarr_xarray.load` of all boxes; nczarr, loop reads one
after the other, nczarr, isel all in one vectorized selection; tensorstore begins all reads before
it waits for one. Over the network the limit is `latency.least` of one round to open and one of the
distinct chunks that the boxes touch, with the bytes that ours received.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from data import Array, field
from harness import LIMIT, OURS, Goal, Options, Row, Work, measure
from latency import NETWORK, Server, least

import nczarr_xarray
from nczarr_fsspec.ranges.index_memory import memory

CHUNK, BOX, COUNT = (4, 64, 64), (4, 64, 64), 256
SHARD = (16, 256, 256)
#: 268 and 34 MB; all boxes together have 17.
HERE, THERE = (64, 1024, 1024), (32, 512, 512)

Boxes = list[tuple[slice, ...]]


def run(options: Options) -> dict[str, Row]:
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        folder = Path(name)
        works = [*here(folder, options)]
        found = {work.name: measure(work, options.repeat) for work in works}
        server.control("set", **NETWORK.settings())
        far = [*over_network(folder, server, options)]
        return found | {work.name: measure(work, min(3, options.repeat)) for work in far}


def boxes_of(shape: tuple[int, ...]) -> Boxes:
    starts = np.random.default_rng(1).integers(0, np.subtract(shape, BOX), (COUNT, len(shape)))
    return [tuple(map(slice, start, start + BOX)) for start in starts]


def touched(boxes: Boxes) -> set[tuple[int, ...]]:
    """The chunks that boxes touch."""
    return {
        position
        for box in boxes
        for position in itertools.product(
            *(range(i.start // n, -(-i.stop // n)) for i, n in zip(box, CHUNK, strict=True))
        )
    }


def opened(target: str) -> xr.DataArray:
    memory.clear()
    return xr.open_dataset(target, engine=OURS, cache=False, mask_and_scale=False)["v"]


def by_load(target: str, boxes: Boxes) -> np.ndarray:
    v = opened(target)
    return np.stack([box.values for box in nczarr_xarray.load(*(v[key] for key in boxes))])


def by_loop(target: str, boxes: Boxes) -> np.ndarray:
    v = opened(target)
    return np.stack([v[key].values for key in boxes])


def by_isel(target: str, boxes: Boxes) -> np.ndarray:
    v = opened(target)
    places = {
        dim: (("box", name), np.add.outer([box[axis].start for box in boxes], np.arange(size)))
        for axis, (dim, name, size) in enumerate(zip(v.dims, "abc", BOX, strict=True))
    }
    return v.isel(places).values


def by_tensorstore(target: str, boxes: Boxes) -> np.ndarray:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{target}/v"}}
    store = tensorstore.open(
        spec, open=True, context=tensorstore.Context({"cache_pool": {"total_bytes_limit": 1 << 28}})
    ).result()
    return np.stack([read.result() for read in [store[key].read() for key in boxes]])


OWN: dict[str, Callable[[str, Boxes], np.ndarray]] = {
    OURS: by_load,
    f"{OURS}, loop": by_loop,
    f"{OURS}, isel": by_isel,
}


def here(folder: Path, options: Options) -> list[Work]:
    from zarr.codecs import GzipCodec, ZstdCodec

    boxes, values, works = boxes_of(HERE), field(HERE), []
    for codec, compressor in {"zstd": ZstdCodec(level=3), "gzip": GzipCodec(level=1)}.items():
        for kind, shards in {"chunks": None, "shards": SHARD}.items():
            name = f"256 boxes of Zarr 3, {codec}, {kind}"
            if not options.wants(name):
                continue
            target = str(folder / f"{codec}-{kind}.zarr")
            stored: dict[str, Any] = {"chunks": CHUNK, "compressors": (compressor,)}
            stored |= {} if shards is None else {"shards": shards}
            dataset = xr.Dataset({"v": (("t", "y", "x"), values)})
            dataset.to_zarr(target, zarr_format=3, encoding={"v": stored}, consolidated=False)
            programs: dict[str, Any] = {
                one: partial(read, target, boxes)
                for one, read in (OWN | {"tensorstore": by_tensorstore}).items()
            }
            goals = (Goal(f"{OURS}, loop", 2.5), Goal("tensorstore", 1 / 1.3))
            works.append(Work(name, programs, goals))
    return works


def over_network(folder: Path, server: Server, options: Options) -> list[Work]:
    boxes, works = boxes_of(THERE), []
    stored = Array(THERE, CHUNK, "zlib").write(folder)
    zarr.consolidate_metadata(str(stored.tree))  # over HTTP nothing is listed
    for kind, path in {"netCDF-4": stored.file, "Zarr 2": stored.tree}.items():
        name = f"256 boxes over 50 ms, {kind}"
        if not options.wants(name):
            continue
        url = server.url(path.name)
        by_load(url, boxes)
        server.control("reset")
        by_load(url, boxes)
        nbytes = server.traffic()["bytes"]
        programs: dict[str, Any] = {
            one: partial(OWN[one], url, boxes) for one in (OURS, f"{OURS}, loop")
        }
        rounds = [1, len(touched(boxes))] if kind == "Zarr 2" else [1, 1]
        programs[LIMIT] = least(rounds, nbytes)
        works.append(Work(name, programs, (Goal(f"{OURS}, loop", 10), Goal(LIMIT, 1 / 1.5))))
    return works
