"""The mean of 10,000 small chunks with dask: in threads, in one thread, and in two processes.

The array is 6400 x 6400 float32 in chunks of 64 x 64, shuffled zlib. dask takes it in blocks of
640 x 640, a hundred chunks each: enough of them for every worker, and large enough that dask's own
cost (some 0.3 ms a task) does not hide the reading. Two rows show what is made of less thought:
``chunks="auto"``, blocks of up to 128 MiB, of which there are hardly more than workers; and
``chunks={}``, a task for each chunk, which measures dask.

Every turn opens the dataset, makes the graph and computes it. Workers have been started, have
imported all and have read with every program before (the turn that is checked). The scheduler is
given with each call, so that nothing is left set for other sections. One turn after the other:
the programs never share the processors.

Peers: zarr keeps the pipeline an array was opened with, also where it is unpickled, so that
`programs.PIPELINES` hold in all workers. netCDF4 must be entered by one thread at a time, and
xarray's lock sees to that; its documented way to be parallel is processes, the last row.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from data import Array, Stored
from harness import OURS, Goal, Options, Row, Work, measure
from programs import PIPELINES

#: As `Work` has them: a limit may be a number.
Program: TypeAlias = Callable[[], Any] | float

WORKERS = 2
BLOCKS = {"y": 640, "x": 640}
ALONE = f"{OURS}, 1 thread"


@dataclass(frozen=True, slots=True)
class Compute:
    """How dask computes: its blocks, its scheduler, and whether all is done on one processor."""

    chunks: Any
    scheduler: Any = "threads"
    pinned: bool = False

    def mean(self, engine: str, target: Path, pipeline: str | None = None) -> Any:
        import dask
        import zarr

        options: dict[str, Any] = {"consolidated": False} if engine == "zarr" else {}
        chosen = zarr.config.set({"codec_pipeline.path": pipeline}) if pipeline else nullcontext()
        options |= {"chunks": self.chunks, "mask_and_scale": False}
        place = one_processor() if self.pinned else nullcontext()
        with chosen, place, xr.open_dataset(target, engine=engine, **options) as ds:
            mean = ds["v"].data.mean(dtype="f8")
            return dask.compute(mean, scheduler=self.scheduler, num_workers=WORKERS)[0]

    def programs(self, stored: Stored) -> dict[str, Program]:
        found: dict[str, Program] = {
            OURS: partial(self.mean, OURS, stored.tree),
            "zarr": partial(self.mean, "zarr", stored.tree),
        }
        for name, pipeline in PIPELINES.items():
            found[name] = partial(self.mean, "zarr", stored.tree, pipeline)
        return {**found, "netcdf4": partial(self.mean, "netcdf4", stored.file)}


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep the calling thread on one processor; ours then uses no other thread."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def run(options: Options) -> dict[str, Row]:
    zarr = (Goal("zarr", 2),)
    blocks = Compute(BLOCKS)
    ways = {
        "dask mean, 2 threads": (blocks, zarr),
        "dask mean, 1 dask thread": (replace(blocks, scheduler="synchronous"), ()),
        "dask mean, 2 threads, chunks='auto'": (replace(blocks, chunks="auto"), ()),
        "dask mean, 2 threads, chunks={}": (replace(blocks, chunks={}), ()),
        "dask mean, 2 processes": (replace(blocks, scheduler="distributed"), zarr),
    }
    alone = "dask mean, ours with 2 threads and with 1"
    ways = {name: way for name, way in ways.items() if options.wants(name)}
    if not ways and not options.wants(alone):
        return {}
    side = max(20, round(100 * options.scale**0.5) // 10 * 10) * 64
    rows = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # blocks that cut chunks of chunks="auto"
        stored = Array((side, side), (64, 64)).write(Path(folder))
        for name, (compute, goals) in ways.items():
            if compute.scheduler == "distributed":
                compute = replace(compute, scheduler=stack.enter_context(processes()))
            rows[name] = mean(name, compute.programs(stored), goals, side, options)
        if options.wants(alone) and hasattr(os, "sched_setaffinity"):
            single = replace(blocks, scheduler="synchronous", pinned=True)
            two = {OURS: blocks, ALONE: single}
            work: dict[str, Program] = {
                name: partial(way.mean, OURS, stored.tree) for name, way in two.items()
            }
            rows[alone] = mean(alone, work, (Goal(ALONE, 1.7),), side, options)
    return rows


def mean(
    name: str,
    programs: dict[str, Program],
    goals: tuple[Goal, ...],
    side: int,
    options: Options,
) -> Row:
    # the order of the sum depends on the blocks, which are the same for all in a row
    work = Work(name, programs, goals, 4e-6 * side * side, right=close)
    return measure(work, options.repeat)


def close(found: Any, expected: Any) -> bool:
    return bool(np.isclose(found, expected, rtol=1e-9))


@contextmanager
def processes() -> Iterator[Any]:
    """A client of as many processes of one thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs="ERROR",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
