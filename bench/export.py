"""Writing local data: ``to_nczarr`` against its peers, in one interleaved run.

Usage: ``python bench/export.py [--repeat N] [--scale F] [--output docs/bench]``

Every case is written by every writer in turn, `repeat` times, after one warm-up that is not counted
and whose result is read back. All of them shuffle and compress with zlib at level 4. Min, median
and max are reported, the ratio of medians to the fastest peer, and sizes relative to the chunks of
``to_zarr``, which come from zlib itself. What a writer is to replace is removed, and what the one
before it left in the page cache is on disk, before its time begins. "The files alone" writes those
of ``to_nczarr`` once more, by one thread that does nothing else: many small files may take a disk
longer than all the rest, so ``TMPDIR=/dev/shm`` compares the writers.

Peak memory is that of a process that writes data which dask makes block by block, less what it had
before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import psutil
import xarray as xr
import zarr
from data import field, shuffled_zlib
from harness import heading, insert, machine

from nczarr_xarray import to_nczarr

NETCDF = {"zlib": True, "complevel": 4, "shuffle": True, "_FillValue": None}
BIG = (1, 512, 1024)  # 2 MiB of float32


@dataclass(frozen=True)
class Case:
    """One kind of work: a dataset with one variable, and its chunks."""

    name: str
    values: np.ndarray[Any, Any]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...] | None = None

    def dataset(self) -> xr.Dataset:
        dims = ("t", "y", "x")[-self.values.ndim :]
        ds = xr.Dataset({"v": (dims, self.values)})
        return ds if self.blocks is None else ds.chunk(dict(zip(dims, self.blocks, strict=True)))


def cases(scale: float) -> list[Case]:
    side = max(128, int(6400 * scale) // 64 * 64)
    steps = max(4, int(200 * scale))
    small, big = (side, side), (steps, *BIG[1:])
    lines = (64, side)  # a row of chunks
    return [
        Case("small chunks, all digits", digits(small), (64, 64)),
        Case("small chunks, three decimals", field(small), (64, 64)),
        Case("small chunks, a map a step", digits((side * side >> 12, 64, 64)), (1, 64, 64)),
        Case("small chunks, all digits, dask", digits(small), (64, 64), lines),
        Case("big chunks, all digits", digits(big), BIG),
        Case("big chunks, three decimals", field(big), BIG),
        Case("big chunks, all digits, dask", digits(big), BIG, BIG),
    ]


def digits(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The field of the other benchmark with the digits that it rounds off: output of a model."""
    noise = np.random.default_rng(1).uniform(-5e-4, 5e-4, shape).astype("f4")
    return field(shape) + noise


def ours(ds: xr.Dataset, target: Path, chunks: tuple[int, ...]) -> None:
    to_nczarr(ds, str(target), encoding={"v": {**NETCDF, "chunksizes": chunks}})


def by_zarr(ds: xr.Dataset, target: Path, chunks: tuple[int, ...]) -> None:
    encoding = {"v": {"chunks": chunks, **shuffled_zlib(4)}}
    ds.to_zarr(target, zarr_format=2, encoding=encoding, consolidated=False)


def by_zarrs(ds: xr.Dataset, target: Path, chunks: tuple[int, ...]) -> None:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        by_zarr(ds, target, chunks)


def by_netcdf4(ds: xr.Dataset, target: Path, chunks: tuple[int, ...]) -> None:
    ds.to_netcdf(target, engine="netcdf4", encoding={"v": {**NETCDF, "chunksizes": chunks}})


def by_netcdf_c(ds: xr.Dataset, target: Path, chunks: tuple[int, ...]) -> None:
    """netCDF-C's own NCZarr; ``to_netcdf`` takes no such URL."""
    with netCDF4.Dataset(f"file://{target}#mode=nczarr,file", "w") as root:
        variable = ds["v"].variable
        for name, size in variable.sizes.items():
            root.createDimension(name, size)
        options = {"fill_value": False, "zlib": True, "complevel": 4, "shuffle": True}
        v = root.createVariable("v", "f4", variable.dims, chunksizes=chunks, **options)
        v[...] = variable.values


#: By name: how it writes, and the engine that reads it.
WRITERS: dict[str, tuple[Callable[[xr.Dataset, Path, tuple[int, ...]], None], str]] = {
    "nczarr": (ours, "nczarr"),
    "to_zarr": (by_zarr, "zarr"),
    "to_zarr, zarrs": (by_zarrs, "zarr"),
    "netCDF-4 file": (by_netcdf4, "netcdf4"),
    "netCDF-C, NCZarr": (by_netcdf_c, "nczarr"),
}

FILES = "the files alone"


def is_right(case: Case, target: Path, engine: str) -> bool:
    options = {"consolidated": False} if engine == "zarr" else {}
    with xr.open_dataset(target, engine=engine, cache=False, **options) as ds:
        return bool(np.array_equal(ds["v"].values, case.values))


def size(target: Path) -> int:
    files = target.rglob("*") if target.is_dir() else [target]
    return sum(file.stat().st_size for file in files if file.is_file())


def files_alone(source: Path, target: Path) -> float:
    """Seconds that it takes to write the files of a tree again."""
    files = [f for f in source.rglob("*") if f.is_file()]
    contents = [(target / f.relative_to(source), f.read_bytes()) for f in files]
    start = time.perf_counter()
    for path, content in contents:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return time.perf_counter() - start


def remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    os.sync()


def measure(case: Case, folder: Path, repeat: int) -> dict[str, dict[str, Any]]:
    """Time each writer in turn, A B C A B C ..., after one warm-up that is checked."""
    ds, results = case.dataset(), {}
    targets = {name: folder / f"v{i}.data" for i, name in enumerate(WRITERS)}
    for name, (write, engine) in WRITERS.items():
        result: dict[str, Any] = {"times": []}
        try:
            write(ds, targets[name], case.chunks)
            result["right"] = is_right(case, targets[name], engine)
            result["size"] = size(targets[name])
        except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
            result["error"] = f"{type(error).__name__}: {error}"[:200]
        results[name] = result
    results[FILES] = {"times": []}
    for _ in range(repeat):
        for name, (write, _) in WRITERS.items():
            remove(targets[name])
            if "error" not in results[name]:
                start = time.perf_counter()
                write(ds, targets[name], case.chunks)
                results[name]["times"].append(time.perf_counter() - start)
        remove(folder / FILES)
        results[FILES]["times"].append(files_alone(targets["nczarr"], folder / FILES))
    for target in folder.iterdir():
        remove(target)
    return results


def peak_of_blocks(megabytes: int) -> float:
    """Megabytes that writing so much, made block by block, takes at most in this process."""
    import dask.array as da

    def block(block_info: Any = None) -> np.ndarray[Any, Any]:
        noise = np.random.default_rng(block_info[None]["chunk-location"][0])
        return noise.normal(280, 5, BIG).astype("f4")

    shape = (max(1, megabytes >> 1), *BIG[1:])
    chunks = da.core.normalize_chunks(BIG, shape)
    values = da.map_blocks(block, chunks=chunks, dtype="f4", meta=np.empty((0, 0, 0), "f4"))
    ds = xr.Dataset({"v": (("t", "y", "x"), values)})
    warm = xr.Dataset({"v": (("t", "y", "x"), values[:2])})  # imports, and threads with their heaps
    process, peak, done = psutil.Process(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, process.memory_info().rss)

    with tempfile.TemporaryDirectory() as name:
        ours(warm, Path(name) / "warm", BIG)
        before = process.memory_info().rss
        watcher = threading.Thread(target=watch)
        watcher.start()
        ours(ds, Path(name) / "v", BIG)
        done.set()
        watcher.join()
    return (peak - before) / 1e6


def peaks(scale: float) -> dict[int, float]:
    """Peak memory by size of the dataset, each in a process of its own."""
    found = {}
    for megabytes in (int(step * scale) // 2 * 2 for step in (256, 1024, 2048)):
        command = [sys.executable, __file__, "--blocks", str(megabytes)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        found[megabytes] = float(result.stdout)
    return found


def table(results: dict[str, Any]) -> str:
    peers = list(WRITERS)[1:]
    head = ["work", "nczarr", FILES, *peers, "best peer / ours", "size / zlib's"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, writers in results.items():
        medians = {w: statistics.median(r["times"]) for w, r in writers.items() if r["times"]}
        cells = [f"{medians[name]:.2f} s" for name in ("nczarr", FILES)]
        for writer in peers:
            text = f"{medians[writer]:.2f} s" if writer in medians else "fails"
            wrong = writer in medians and not writers[writer]["right"]
            cells.append(f"{text} (wrong values)" if wrong else text)
        right = [medians[w] for w in peers if w in medians and writers[w]["right"]]
        cells.append(f"{min(right) / medians['nczarr']:.1f}")
        cells.append(f"{writers['nczarr']['size'] / writers['to_zarr']['size']:.3f}")
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def memory_text(peak: dict[int, float]) -> str:
    pairs = ", ".join(f"{megabytes} MiB: {mb:.0f} MB" for megabytes, mb in peak.items())
    return f"Peak memory beyond what was there before, for data that dask makes in blocks: {pairs}."


def plot(results: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(results)
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(names) + 1.2), layout="constrained")
    colours = ("#1b7837", "#fdae61", "#f46d43", "#a6bddb", "#74a9cf")
    for offset, (writer, colour) in enumerate(zip(WRITERS, colours, strict=True)):
        rows = [(i, results[name][writer]["times"]) for i, name in enumerate(names)]
        places = [i + 0.17 * (offset - 2) for i, times in rows if times]
        medians = [statistics.median(times) for _, times in rows if times]
        axes.barh(places, medians, 0.15, color=colour, label=writer)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("seconds (median, logarithmic)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def save(options: argparse.Namespace, results: dict[str, Any], peak: dict[int, float]) -> None:
    """Write the numbers, the picture, and the table on the page on writing."""
    output = options.output
    output.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine(),
        "command": f"python bench --section export --repeat {options.repeat}"
        f" --scale {options.scale}",
        "repeat": options.repeat,
        "scale": options.scale,
        "folder": tempfile.gettempdir(),
        "results": results,
        "peak memory, MB, by size, MiB": peak,
    }
    (output / "export.json").write_text(json.dumps(document, indent=1) + "\n")
    plot(results, output / "export.png")
    text = f"{heading('export', document)}\n\n{table(results)}\n\n{memory_text(peak)}"
    insert(output, "export", f"{text}\n\n![The same numbers as bars](export.png)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the data, 1: 164-420 MB a case"
    )
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--blocks", type=int, help="only the peak memory of writing so many MiB")
    parser.add_argument(
        "--output", type=Path, help="folder for export.json and export.png (docs/bench)"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.blocks:
        print(peak_of_blocks(options.blocks))
        return 0
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for case in cases(options.scale):
            if options.only in case.name:
                results[case.name] = measure(case, Path(name), options.repeat)
                print(case.name, results[case.name], file=sys.stderr)
    print(table(results))
    if options.only:
        return 0
    peak = peaks(options.scale)
    print(memory_text(peak))
    if options.output:
        save(options, results, peak)
    return 0


if __name__ == "__main__":
    sys.exit(main())
