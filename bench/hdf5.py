"""Local netCDF-4 files: opening a dataset and reading a selection, against other readers of HDF5.

Every file has the same float32 field, about 64 MB at scale 1, and another chunk size or codec. A
program opens the file in each turn. The limit of reading everything is what libdeflate alone takes
for all chunks, in a process for each processor, of bytes that are in memory: without finding and
reading chunks, unshuffling them and putting them together. `bench/read.py` has other limits.

Each program has a process of its own for each work, and a copy of the file, as a user's program
has. In one process, libraries change what memory costs the others, and so does reading everything
what memory costs later works; and of one file libhdf5, which knows that it is open already (hidefix
leaves files open), gives netCDF-C the chunks that were decoded before.

Peers: hidefix (Rust), netCDF-C and h5netcdf, all as engines of xarray. hidefix 0.12 has no strides.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import deflate
import h5py
import netCDF4
import numpy as np
from data import field as field_of
from harness import LIMIT, OURS, Goal, Options, Row, Timed, Work, measure
from hdf5_readers import Apart, works

from nczarr_xarray.chunks.threads import processors

ENGINES = {OURS: "nczarr", "hidefix": "hidefix", "netcdf4": "netcdf4", "h5netcdf": "h5netcdf"}
#: Chunks from which on ours is to lead by more: below, the time is that of Python's.
LARGE = 100_000


@dataclass(frozen=True)
class Kind:
    """One file: its chunks (None is contiguous), and how they are compressed."""

    name: str
    chunks: tuple[int, int, int] | None
    options: dict[str, Any] = field(default_factory=dict)
    every: bool = True  # work, or reading everything and a box only

    @property
    def goals(self) -> tuple[Goal, ...]:
        large = self.chunks is None or 4 * int(np.prod(self.chunks)) >= LARGE
        peers = (("hidefix", 1.2), ("netcdf4", 1.5)) if large else (("hidefix", 1), ("netcdf4", 1))
        return tuple(Goal(name, at_least) for name, at_least in peers)


ZLIB: dict[str, Any] = {"compression": "zlib", "complevel": 4}
SHUFFLED = ZLIB | {"shuffle": True}
KINDS = (
    Kind("16 kB", (1, 64, 64), SHUFFLED),
    Kind("100 kB", (4, 80, 80), SHUFFLED),
    Kind("1 MB", (4, 256, 256), SHUFFLED),
    Kind("4 MB", (20, 200, 256), SHUFFLED),
    Kind("contiguous", None),
    Kind("100 kB, no shuffle", (4, 80, 80), ZLIB | {"shuffle": False}, every=False),
    Kind("100 kB, fletcher32", (4, 80, 80), SHUFFLED | {"fletcher32": True}, every=False),
    Kind("100 kB, zstd", (4, 80, 80), {"compression": "zstd", "shuffle": True}, every=False),
)


def run(options: Options) -> dict[str, Row]:
    rows = {}
    shape = (max(20, round(100 * options.scale)), 400, 400)
    values = field_of(shape)
    for kind in KINDS:
        wanted = [
            name
            for name in works(shape)
            if options.wants(f"{name}, {kind.name}")
            and (kind.every or name in ("everything", "a box"))
        ]
        if wanted:
            with tempfile.TemporaryDirectory() as folder:
                rows.update(rows_of(kind, wanted, values, Path(folder), options.repeat))
    return rows


def rows_of(
    kind: Kind, wanted: list[str], values: np.ndarray, folder: Path, repeat: int
) -> dict[str, Row]:
    """Measure the works on one file."""
    paths = {program: folder / f"{program}.nc" for program in ENGINES}
    write(paths[OURS], kind, values)
    for path in paths.values():
        if path != paths[OURS]:
            shutil.copyfile(paths[OURS], path)
    plainly = kind.options.get("compression") == "zlib" and "fletcher32" not in kind.options
    rows = {}
    for name in wanted:
        title = f"{name}, {kind.name}"
        with ExitStack() as stack:
            programs: dict[str, Any] = {
                program: Timed(partial(stack.enter_context(Apart(path, engine)).read, name))
                for (program, engine), path in zip(ENGINES.items(), paths.values(), strict=True)
                if (name, program) != ("every 7th", "hidefix")
            }
            if name == "everything" and plainly:
                programs[LIMIT] = inflating(paths[OURS])
            rows[title] = measure(Work(title, programs, kind.goals, right=right), repeat)
    return rows


def right(found: Any, expected: Any) -> bool:
    """Tell whether a program has read the values, by their digests; the limit has none."""
    return found is None or found == expected


def inflating(path: Path) -> Callable[[], None]:
    """Return what has all chunks of a file inflated, by processes that wait for that."""
    with h5py.File(path) as file:
        chunks, nbytes = file["v"].id, int(np.prod(file["v"].chunks)) * 4
        stored = [chunks.read_direct_chunk(found.chunk_offset)[1] for found in infos(chunks)]
    context = multiprocessing.get_context("fork")
    several = processors()
    lines = []
    for number in range(several):
        here, there = context.Pipe()
        arguments = (there, stored[number::several], nbytes)
        context.Process(target=inflate, args=arguments, daemon=True).start()
        lines.append(here)

    def inflate_all() -> None:
        for line in lines:
            line.send(None)
        for line in lines:
            line.recv()

    return inflate_all


def infos(chunks: Any) -> list[Any]:
    return [chunks.get_chunk_info(number) for number in range(chunks.get_num_chunks())]


def inflate(line: Any, stored: list[bytes], nbytes: int) -> None:
    """Inflate chunks whenever the other end says so."""
    with suppress(EOFError):
        while True:
            line.recv()
            for chunk in stored:
                deflate.zlib_decompress(chunk, nbytes)
            line.send(None)


def write(path: Path, kind: Kind, values: np.ndarray) -> None:
    with netCDF4.Dataset(path, "w") as ds:
        for name, length in zip("tyx", values.shape, strict=True):
            ds.createDimension(name, length)
        chunks = kind.chunks and tuple(map(min, kind.chunks, values.shape))
        ds.createVariable("v", "f4", tuple("tyx"), chunksizes=chunks, **kind.options)[:] = values
