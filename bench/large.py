"""What large datasets take: seconds, and the memory of each process, measured and then scaled.

- *Sparse*: 200 GB of float32 in 200,000 chunks of 1 MB, of which one in a hundred is stored.
- *Groups*: 10,000 variables in 1,000 groups, as netCDF-C writes them to a tree and to a file.
- *Fragments*: 100,000 netCDF-4 files of one step each, as one aggregation.
- *Workers*: four processes of dask.distributed, with one thread each, read from and export to an
  S3 server (SeaweedFS), which runs on the same machine and takes its share of it.

Each job runs in a process of its own, and once: what is asked for is what grows and how, not the
last tenth. Memory is the kernel's high-water mark beyond what was there before (bench/memory.py);
with workers, the mark of the largest one. docs/scale.md says what follows for larger ones.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aggregations
import numpy as np
import xarray as xr
from harness import Options, heading, insert, machine, seconds
from memory import apart, growth, resident
from scaling import write_variables

import nczarr_xarray
from nczarr_xarray.cli.demo import DATASET

SPARSE = (51_200, 1000, 1000)
CHUNK = (1, 500, 500)
STORED = 100  # one chunk in so many
GROUPS, OF = 1000, 10
FRAGMENTS = 100_000
WORKERS = 4
EXPORTED = (256, 1024)  # MB


@dataclass(frozen=True, slots=True)
class Job:
    """One line: what was done, in how many pieces, what it took."""

    what: str
    count: int
    unit: str
    seconds: float
    memory: int


def run(options: Options) -> list[Job]:
    found: list[Job] = []
    for section in (sparse, groups, fragments, workers):
        if not options.wants(section.__name__):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for job in section(Path(folder), options.scale):
                found.append(job)
                told = f"{job.what}: {seconds(job.seconds)}, {job.memory / 1e6:.0f} MB"
                print(told, file=sys.stderr, flush=True)
    return found


def timed(work: Callable[[], Any]) -> tuple[float, int]:
    """Seconds, and bytes of memory beyond those that were in use before."""
    warnings.simplefilter("ignore")
    with xr.open_dataset(DATASET, engine="nczarr", chunks={}) as ds:  # imports
        ds.load()
    begun = time.perf_counter()
    _, used = growth(work)
    return time.perf_counter() - begun, used


def job(what: str, count: int, unit: str, work: Callable[[], Any]) -> Job:
    return Job(what, count, unit, *apart(partial(timed, work)))


def sparse(folder: Path, scale: float) -> Iterator[Job]:
    """Read a large array of which little is stored."""
    steps = max(256, int(SPARSE[0] * scale))
    shape, path = (steps, *SPARSE[1:]), folder / "sparse"
    array = path / "v"
    array.mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    stored = {"zarr_format": 2, "shape": shape, "chunks": CHUNK, "dtype": "<f4", "order": "C"}
    stored |= {"compressor": None, "filters": None, "fill_value": 0.0}
    (array / ".zarray").write_text(json.dumps(stored))
    (array / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["time", "y", "x"]}')
    chunk = np.ones(CHUNK, "<f4").tobytes()
    grid = tuple(-(-n // c) for n, c in zip(shape, CHUNK, strict=True))
    for number in range(0, int(np.prod(grid)), STORED):
        place = np.unravel_index(number, grid)
        (array / ".".join(map(str, place))).write_bytes(chunk)
    many, size = int(np.prod(grid)), f"{np.prod(shape) * 4e-9:.0f} GB, 1 % stored"
    yield job(f"{size}: open, one element", 1, "chunk", partial(element, path))
    yield job(f"{size}: a series of all steps", steps, "chunk", partial(series, path))
    yield job(f"{size}: mean, dask", many, "chunk", partial(mean, path, many))


def element(path: Path) -> None:
    with xr.open_dataset(path, engine="nczarr") as ds:
        assert ds.v[-1, -1, -1].item() in (0, 1)


def series(path: Path) -> None:
    with xr.open_dataset(path, engine="nczarr") as ds:
        assert ds.v[:, 0, 0].sum().item() == -(-ds.sizes["time"] * 4 // STORED)


def mean(path: Path, many: int) -> None:
    chunks = {"time": 16}
    with xr.open_dataset(path, engine="nczarr", chunks=chunks, mask_and_scale=False) as ds:
        share = ds.v.mean(dtype="f8").compute(scheduler="threads").item()
        assert np.isclose(share, -(-many // STORED) / many)


def groups(folder: Path, scale: float) -> Iterator[Job]:
    """Open many groups."""
    count = max(10, int(GROUPS * scale)) * OF
    for form, url in (("tree", f"file://{folder}/g#mode=nczarr,file"), ("file", f"{folder}/g.nc")):
        write_variables(url, count, OF)
        path = folder / ("g" if form == "tree" else "g.nc")
        what = f"{count // OF:,} groups of {OF} variables, {form}: open all"
        yield job(what, count, "variable", partial(open_all, path, count // OF))


def open_all(path: Path, count: int) -> None:
    found = xr.open_groups(path, engine="nczarr")
    assert len(found) == count + 1


def fragments(folder: Path, scale: float) -> Iterator[Job]:
    """Make an aggregation of many files, and read it."""
    count, some = max(100, int(FRAGMENTS * scale)), 1000
    aggregations.write(folder, count, (16, 16))
    master = folder / "m.nca"
    what, unit = f"{count:,} fragments", "fragment"
    yield job(f"{what}: aggregate", count, unit, partial(aggregated, folder, count, master))
    yield job(f"{what}: open, one step", 1, unit, partial(steps, master, count // 2, 1))
    yield job(f"{what}: {some:,} steps", some, unit, partial(steps, master, 0, some))
    yield job(f"{what}: all", count, unit, partial(steps, master, 0, count))


def aggregated(folder: Path, count: int, master: Path) -> None:
    nczarr_xarray.aggregate([str(folder / f"{n}.nc") for n in range(count)], master)


def steps(master: Path, first: int, count: int) -> None:
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as ds:
        part = ds.isel(time=slice(first, first + count)).load()
        assert part.time[0] == first
        assert abs(part.tas.mean() - 280) < 1


def workers(folder: Path, scale: float) -> Iterator[Job]:
    """Export to S3 and read from there with a cluster; the memory is that of its largest worker."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.servers.s3server import seaweed_s3

    with seaweed_s3(folder) as server:
        for megabytes in EXPORTED:
            shape = (max(8, int(megabytes * scale)), 500, 500)
            url = f"s3://{server.public}/v{megabytes}.nczarr"
            work = partial(clustered, url, server.signed(), shape)
            both = dict(zip(("export to S3", "mean from S3"), apart(work), strict=True))
            for name, (took, peak) in both.items():
                what = f"{WORKERS} workers, {np.prod(shape) * 4e-6:.0f} MB: {name}"
                yield Job(what, shape[0], "chunk", took, peak)


def clustered(url: str, options: dict[str, str], shape: tuple[int, ...]) -> list[tuple[float, int]]:
    """Seconds, and bytes that the largest worker had beyond those of its start, of two jobs."""
    from dask.distributed import Client, LocalCluster

    warnings.simplefilter("ignore")
    found = []
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for work in (partial(export, shape=shape), read_mean):
            client.run(begin)
            before = client.run(resident)
            begun = time.perf_counter()
            work(url, options)
            took = time.perf_counter() - begun
            peaks = client.run(resident, "VmHWM")
            found.append((took, max(peaks[name] - before[name] for name in peaks)))
    return found


def begin() -> None:
    with xr.open_dataset(DATASET, engine="nczarr") as ds:  # imports
        ds.load()
    Path("/proc/self/clear_refs").write_text("5")


def export(url: str, options: dict[str, str], shape: tuple[int, ...]) -> None:
    import dask.array as da

    values = da.random.default_rng(0).integers(0, 1000, shape, chunks=(8, *shape[1:]))
    ds = xr.Dataset({"v": (("time", "y", "x"), values.astype("f4"))})
    encoding = {"v": {"chunksizes": (1, *shape[1:]), "zlib": True, "complevel": 1, "shuffle": True}}
    ds.nczarr.to_nczarr(url, encoding=encoding, storage_options=options)


def read_mean(url: str, options: dict[str, str]) -> None:
    chunks = {"time": 8}
    with xr.open_dataset(url, engine="nczarr", chunks=chunks, storage_options=options) as ds:
        assert abs(ds.v.mean(dtype="f8").compute() - 499.5) < 1


def table(found: list[Job]) -> str:
    """All jobs, with what one piece of each took."""
    lines = ["| work | seconds | a piece | memory |", "|---|---|---|---|"]
    for one in found:
        each = f"{seconds(one.seconds / one.count)} a {one.unit}" if one.count > 1 else "–"
        cells = [one.what, seconds(one.seconds), each, f"{one.memory / 1e6:.0f} MB"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def save(found: list[Job], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, and the table on the page on scale."""
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": machine(), "command": command, "scale": options.scale}
    results = [asdict(each) for each in found]
    (folder / "large.json").write_text(json.dumps({**document, "results": results}, indent=1))
    insert(folder, "large", f"{heading('large', document)}\n\n{table(found)}")
