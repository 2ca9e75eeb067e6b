"""Samples for the training of models: random patches, read in batches by two workers.

A turn is `SAMPLES` patches of 4 x 64 x 64 float32 in random order, in batches of `BATCH`, from a
cube in chunks of 8 x 128 x 128. Two processes that have the cube open read the batches and send
them here, which is what a ``DataLoader`` of torch with ``num_workers=2, persistent_workers=True``
does; it is not torch's, which few have beside these peers, and sends by pickle. Nothing that a
worker has decoded is kept from one batch to the next, unless a peer does so by itself.

- nczarr: `nczarr_xarray.load` of the patches of a batch; nczarr, loop: one after the other.
- zarr, fused and zarr, zarrs: arrays of zarr-python, without xarray, one patch after the other.
- tensorstore: all reads of a batch are begun before one is waited for.
- zarrista: one patch after the other; it has no zlib of Zarr 2.
- xbatcher: its ``BatchGenerator`` on dask's arrays, the patches of a batch by one ``dask.compute``.

insitubatch is left out: its samples are whole along all dimensions but one.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from data import Array
from harness import OURS, Options, Row, Work, bars, document, heading, insert, measure
from programs import PIPELINES

SAMPLES, BATCH, WORKERS = 1024, 16, 2
PATCH = (4, 64, 64)
#: From one window of xbatcher to the next: they overlap, and lie across chunks.
STEP = (4, 48, 48)
SHAPE, CHUNKS = (64, 784, 784), (8, 128, 128)

#: Returns the patches of a batch; the numbers are those of xbatcher's windows.
Read = Callable[[list[int]], list[np.ndarray]]


def windows() -> tuple[int, ...]:
    """How many there are along each dimension."""
    return tuple((n - p) // s + 1 for n, p, s in zip(SHAPE, PATCH, STEP, strict=True))


def keys(numbers: list[int]) -> list[tuple[slice, ...]]:
    starts = np.transpose(np.unravel_index(numbers, windows())) * STEP
    return [tuple(map(slice, start, np.add(start, PATCH))) for start in starts]


def by_load(tree: str) -> Read:
    from nczarr_xarray import load

    v = xr.open_dataset(tree, engine="nczarr", cache=False, mask_and_scale=False)["v"]
    return lambda numbers: [one.values for one in load(*(v[key] for key in keys(numbers)))]


def by_loop(tree: str) -> Read:
    v = xr.open_dataset(tree, engine="nczarr", cache=False, mask_and_scale=False)["v"]
    return lambda numbers: [v[key].values for key in keys(numbers)]


def by_zarr(pipeline: str, tree: str) -> Read:
    import zarr

    zarr.config.set({"codec_pipeline.path": pipeline})
    v: Any = zarr.open_array(f"{tree}/v", mode="r")
    return lambda numbers: [v[key] for key in keys(numbers)]


def by_tensorstore(tree: str) -> Read:
    import tensorstore

    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tree}/v"}}
    v = tensorstore.open(spec, open=True, read=True).result()
    return lambda numbers: [one.result() for one in [v[key].read() for key in keys(numbers)]]


def by_zarrista(tree: str) -> Read:
    import zarrista
    from zarrista.store import FilesystemStore

    v = zarrista.Array.open(FilesystemStore(tree), path="/v")
    return lambda numbers: [v[key].to_numpy() for key in keys(numbers)]


def by_xbatcher(tree: str) -> Read:
    import dask
    import xbatcher

    ds = xr.open_dataset(tree, engine="zarr", chunks={}, consolidated=False, mask_and_scale=False)
    sizes = dict(zip(ds["v"].dims, PATCH, strict=True))
    overlap = {d: p - s for d, p, s in zip(sizes, PATCH, STEP, strict=True) if p > s}
    windows = xbatcher.BatchGenerator(ds["v"], sizes, overlap, preload_batch=False)
    return lambda numbers: list(dask.compute(*(windows[number].data for number in numbers)))


PROGRAMS: dict[str, Callable[[str], Read]] = {
    OURS: by_load,
    f"{OURS}, loop": by_loop,
    **{name: partial(by_zarr, pipeline) for name, pipeline in PIPELINES.items()},
    "tensorstore": by_tensorstore,
    "zarrista": by_zarrista,
    "xbatcher, dask": by_xbatcher,
}


class Worker:
    """What a worker process has open, or why not."""

    read: Read

    @classmethod
    def open(cls, program: str, tree: str) -> None:
        try:
            cls.read = staticmethod(PROGRAMS[program](tree))
        except Exception as error:  # noqa: BLE001  (a pool would begin such a worker again)
            cls.read = staticmethod(partial(fail, f"{type(error).__name__}: {error}"))

    @classmethod
    def batch(cls, numbers: list[int]) -> np.ndarray:
        return np.stack(cls.read(numbers))


def fail(reason: str, _: list[int]) -> list[np.ndarray]:
    raise RuntimeError(reason)


def epoch(pool: Executor, batches: list[list[int]]) -> np.ndarray:
    return np.concatenate([*pool.map(Worker.batch, batches)])


def run(options: Options) -> dict[str, Row]:
    rows = {}
    count = max(BATCH, round(SAMPLES * options.scale) // BATCH * BATCH)
    chosen = np.random.default_rng(1).permutation(int(np.prod(windows())))[:count]
    batches = chosen.reshape(-1, BATCH).tolist()
    for codec in ("zstd", "zlib"):
        name = f"{count:,} samples, {codec}, {WORKERS} workers"
        if not options.wants(name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            tree = str(Array(SHAPE, CHUNKS, codec).write(Path(folder)).tree)
            context = multiprocessing.get_context("spawn")
            pools = {
                program: ProcessPoolExecutor(WORKERS, context, Worker.open, (program, tree))
                for program in PROGRAMS
            }
            try:
                work = {program: partial(epoch, pool, batches) for program, pool in pools.items()}
                megabytes = count * np.prod(PATCH) * 4 / 1e6
                rows[name] = measure(Work(name, {**work}, (), float(megabytes)), options.repeat)
            finally:
                for pool in pools.values():
                    pool.shutdown(cancel_futures=True)
    return rows


def table(rows: dict[str, Row]) -> str:
    """Samples a second."""
    lines = [f"| samples a second | {' | '.join(PROGRAMS)} |", "|---" * (len(PROGRAMS) + 1) + "|"]
    for name, row in rows.items():
        count = int(name.split()[0].replace(",", ""))
        cells = [f"{count / row.median(p):,.0f}" if p in row.times else "–" for p in PROGRAMS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def save(rows: dict[str, Row], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, the picture, and the table on the page on speed."""
    folder.mkdir(parents=True, exist_ok=True)
    found = document(rows, options, command)
    (folder / "samples.json").write_text(json.dumps(found, indent=1) + "\n")
    bars(rows, folder / "samples.png")
    text = f"{heading('samples', found)}\n\n{table(rows)}\n\n![The same as bars](samples.png)"
    insert(folder, "samples", text)
