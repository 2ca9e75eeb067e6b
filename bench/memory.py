"""Peak memory of reading a whole variable, each program in a process of its own.

A process reads a small array of the same kind first: what a program imports, its threads and its
pools are not part of the question. Then the kernel's high-water mark of resident memory is set back
(``/proc/self/clear_refs``), the array is read, and what is reported is the new mark less what was
resident before: the result, and all that was needed beside it at one time. It includes the pages of
a file that is mapped. Linux only.

The goal is ``1.15 x result + in flight``. In flight are the chunks that a read has taken up and not
yet placed, each as stored and as decoded: in a local tree or file a batch for each thread, that is
`BATCH_BYTES` or one larger chunk; of a tree over a network `RemoteStore.concurrency` chunks, if
they are not more than `RemoteStore.in_flight_bytes` (nczarr_fsspec/keystore.py); of a file over a
network what its reader may hold, `HELD_BYTES`. Over the network it is ours alone that is measured,
with 5 ms to an answer, so that many are in flight.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import xarray as xr
import zarr
from data import DTYPE, Array
from harness import OURS, Options, heading, insert, machine
from latency import Server
from programs import programs

from nczarr_fsspec.keystore import RemoteStore
from nczarr_fsspec.ranges.reader import HELD_BYTES
from nczarr_xarray.chunks.threads import BATCH_BYTES, processors

T = TypeVar("T")
Program: TypeAlias = Callable[[], Any]

LATENCY = 5  # ms
MEBI = 1 << 20
SHARE = 1.15
ALLOCATOR = 4 * MEBI
"""What the allocator's arenas and the stacks of threads may add to any result."""


@dataclass(frozen=True, slots=True)
class Peak:
    """One program: bytes beyond what was there before the read, of each turn, or its error."""

    peaks: tuple[int, ...]
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.peaks)


@dataclass(frozen=True, slots=True)
class Read:
    """One row: the bytes of its result, those in flight, and what each program needs."""

    result: int
    in_flight: int
    peaks: dict[str, Peak]

    @property
    def bound(self) -> float:
        return SHARE * self.result + self.in_flight + ALLOCATOR

    def missed(self) -> bool:
        ours = self.peaks[OURS]
        return bool(ours.error) or ours.median > self.bound


def resident(what: str = "VmRSS") -> int:
    """Bytes of memory of this process: now (VmRSS), or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024


def growth(work: Callable[[], T]) -> tuple[T, int]:
    """What `work` returns, and the bytes that it needed at most, its result with them."""
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS
    before = resident()
    result = work()
    return result, resident("VmHWM") - before


def apart(work: Callable[[], T]) -> T:
    """`work` in a new process; it must be picklable, and so must what it returns."""
    # not forked: a child of a large process would be as large
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


@dataclass(frozen=True, slots=True)
class Case:
    """An array, as what it is stored, and by what means it is read if not from the disk."""

    array: Array
    stored: str = "v.zarr"  # or v.zip, v.nc
    over: str = ""  # HTTP, S3

    @property
    def result(self) -> int:
        return prod(self.array.shape) * DTYPE.itemsize

    @property
    def in_flight(self) -> int:
        chunk = min(prod(self.array.chunks) * DTYPE.itemsize, self.result)
        if self.over and self.stored == "v.nc":
            return HELD_BYTES
        if self.over:
            return 2 * min(RemoteStore.in_flight_bytes, RemoteStore.concurrency * chunk)
        if self.array.contiguous:
            return 0  # bytes are read to where they belong
        return 2 * processors() * max(BATCH_BYTES, chunk)

    def programs(self, folder: Path, server: Server) -> dict[str, Program]:
        """What reads the array, which is written first."""
        folder.mkdir()
        stored = self.array.write(folder)
        if not self.over and self.stored == "v.zarr":
            return programs(stored, ((slice(None),) * len(self.array.shape),))
        zarr.consolidate_metadata(stored.tree, zarr_format=2)  # nothing can be listed
        if self.stored == "v.zip":
            zipped(stored.tree, folder / "v.zip")
        url = server.url(f"{folder.name}/{self.stored}")
        if self.over == "S3":  # of the same server: the folder is a bucket
            return {OURS: partial(by_url, f"{url}#mode=bytes,s3", anon=True)}
        return {OURS: partial(by_url, url if self.over else str(folder / self.stored))}


def cases(scale: float) -> dict[str, Case]:
    side, steps = max(4, round(100 * scale**0.5)) * 64, max(4, round(200 * scale))
    small, big = Array((side, side), (64, 64)), Array((steps, 512, 1024), (1, 512, 1024))
    contiguous = Array((side, side), (side, side), "none")
    return {
        "small chunks, shuffled zlib": Case(small),
        "big chunks, shuffled zlib": Case(big),
        "contiguous": Case(contiguous),
        "small chunks of a zip": Case(small, "v.zip"),
        "big chunks of a zip": Case(big, "v.zip"),
        "small chunks, HTTP": Case(small, over="HTTP"),
        "big chunks, HTTP": Case(big, over="HTTP"),
        "big chunks of a zip, HTTP": Case(big, "v.zip", "HTTP"),
        "small chunks of a file, HTTP": Case(small, "v.nc", "HTTP"),
        "big chunks of a file, HTTP": Case(big, "v.nc", "HTTP"),
        "contiguous in a file, HTTP": Case(contiguous, "v.nc", "HTTP"),
        "big chunks of a file, S3": Case(big, "v.nc", "S3"),
    }


def run(options: Options) -> dict[str, Read]:
    reads: dict[str, Read] = {}
    for name, case in cases(options.scale).items():
        if sys.platform != "linux" or not options.wants(name):
            continue
        shape = case.array.shape
        first = replace(case, array=replace(case.array, shape=(*case.array.chunks[:-2], 64, 64)))
        first = replace(first, array=replace(first.array, chunks=first.array.shape))
        with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
            server.control("set", latency_ms=LATENCY)
            warm = first.programs(Path(folder) / "first", server)
            found = case.programs(Path(folder) / "whole", server)
            peaks = {p: measured(warm[p], found[p], options.repeat) for p in found}
        reads[name] = Read(case.result, case.in_flight, peaks)
        shown = (f"{p} {peak.error or f'{peak.median / 1e6:.0f} MB'}" for p, peak in peaks.items())
        print(f"{name} {shape}: {', '.join(shown)}", file=sys.stderr, flush=True)
    return reads


def measured(warm: Program, program: Program, repeat: int) -> Peak:
    try:
        return Peak(tuple(apart(partial(peak, warm, program)) for _ in range(min(repeat, 3))))
    except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
        return Peak((), f"{type(error).__name__}: {error}"[:200])


def peak(warm: Program, program: Program) -> int:
    warnings.simplefilter("ignore")
    warm()
    return growth(program)[1]


def by_url(url: str, **storage_options: Any) -> Any:
    with xr.open_dataset(
        url, engine="nczarr", cache=False, mask_and_scale=False, storage_options=storage_options
    ) as ds:
        return ds["v"].values


def zipped(tree: Path, target: Path) -> None:
    """Make an archive of a tree as netCDF-C and zarr-python do: nothing is compressed again."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(path for path in tree.rglob("*") if path.is_file()):
            archive.write(file, file.relative_to(tree))


def table(reads: dict[str, Read]) -> str:
    """How many times as large as the result the peak is."""
    names = list(dict.fromkeys(name for read in reads.values() for name in read.peaks))
    lines = [f"| read | result | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for name, read in reads.items():
        cells = [name, f"{read.result / 1e6:.0f} MB"]
        for program in names:
            peak = read.peaks.get(program)
            if peak is None or peak.error:
                cells.append("fails" if peak else "–")
            else:
                cells.append(f"{peak.median / read.result:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def save(reads: dict[str, Read], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, and the table on the page on speed."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "command": command, "scale": options.scale}
    results = {
        name: {**asdict(read), "bound": read.bound, "missed": read.missed()}
        for name, read in reads.items()
    }
    (folder / "memory.json").write_text(json.dumps({**found, "bytes": results}, indent=1) + "\n")
    insert(folder, "memory", f"{heading('memory', found)}\n\n{table(reads)}")
