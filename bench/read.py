"""Reading local data: opening a dataset and reading a selection of one variable.

Every row has an array of float32 as a Zarr tree and as a netCDF-4 file, at scale 1 160 to 770 MB of
numbers, and a selection; `programs` says what reads it and with which settings, `limits` what the
limit is. That of the contiguous array is one ``preadv`` for each large page, by all processors.
"""

from __future__ import annotations

import itertools
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from data import Array
from harness import LIMIT, OURS, Goal, Options, Row, Work, measure
from limits import limit
from programs import Key, programs

ALL = slice(None)


@dataclass(frozen=True)
class Case:
    """One row; `keys` are read one after the other from one open dataset; none: everything."""

    name: str
    array: Array
    goals: tuple[Goal, ...] = ()
    keys: tuple[Key, ...] = ()


def cases(scale: float) -> list[Case]:
    """Those of one array follow each other: it is written once, and deleted before the next."""
    side = max(2, round(100 * scale**0.5)) * 64
    steps = max(10, round(200 * scale))
    small, big = ((side, side), (64, 64)), ((steps, 512, 1024), (1, 512, 1024))
    one, many = Array(*small), Array(*big)
    series = Array((max(10, round(365 * scale)), 512, 1024), big[1])
    maps = Array((max(10, round(100 * scale)), 640, 640), (1, 64, 64))
    tens = Array((max(20, round(100 * scale) // 10 * 10), 512, 512), (10, 256, 256))
    generator = np.random.default_rng(1)
    points = tuple(generator.integers(0, side, 1000) for _ in range(2))
    some = generator.choice((side // 64) ** 2, min(1000, (side // 64) ** 2), replace=False)
    crowd = tuple(
        np.repeat(corner * 64, 10) + generator.integers(0, 64, 10 * len(some))
        for corner in np.divmod(some, side // 64)
    )
    lists = tuple(generator.choice(side, 100, replace=False).tolist() for _ in range(2))
    cube, patch = (64, max(128, round(1024 * scale)), 1024), (4, 64, 64)
    starts = generator.integers(0, np.subtract(cube, patch), (256, 3))
    boxes = tuple(tuple(map(slice, at, at + patch)) for at in starts)
    few = tuple(generator.choice(length, 10, replace=False).tolist() for length in big[0])
    sparse, whole = Array(*small, every=100), Array(big[0], big[0], "none")
    best, twice = (Goal("best peer", 1),), (Goal("best peer", 2),)
    return [
        Case("small chunks, shuffled zlib", one, (*twice, Goal("zarr", 6))),
        Case("every 7th of small chunks", one, twice, ((slice(None, None, 7),) * 2,)),
        Case("one row of small chunks", one, (), ((100, ALL),)),
        Case("1,000 points, small chunks", one, (), (points,)),
        Case("10,000 points in 1,000 small chunks", one, (Goal(LIMIT, 1 / 1.2),), (crowd,)),
        Case("100 x 100 elements by lists, small chunks", one, (), (lists,)),
        Case("one element", one, (), ((17, 33),)),
        Case("small chunks, 1 in 100 stored", sparse),
        Case("one row of small chunks, 1 in 100 stored", sparse, (), ((100, ALL),)),
        Case("one step of small chunks", maps, twice, ((min(17, maps.shape[0] - 1), ALL, ALL),)),
        Case("small chunks, zlib", Array(*small, "zlib")),
        Case("big chunks, shuffled zlib", many, (Goal("best peer", 1.8), Goal(LIMIT, 0.8))),
        Case("point series, big chunks", series, twice, ((ALL, 100, 200),)),
        Case(
            "step after step, 10 in a chunk",
            tens,
            (),
            tuple((t, ALL, ALL) for t in range(tens.shape[0])),
        ),
        Case("contiguous", whole, (Goal(LIMIT, 0.8),)),
        Case("one element, contiguous", whole, (), ((min(17, steps - 1), 33, 44),)),
        Case("10 x 10 x 10 elements by lists, contiguous", whole, (), (few,)),
        Case("256 boxes, zstd", Array(cube, patch, "zstd"), (Goal(f"{OURS}, loop", 2.5),), boxes),
        Case("256 boxes, zlib", Array(cube, patch, "zlib"), (Goal(f"{OURS}, loop", 2.5),), boxes),
        Case("small chunks, uncompressed", Array(*small, "none")),
        Case("big chunks, uncompressed", Array(*big, "none")),
        Case("small chunks, zstd", Array(*small, "zstd"), best),
        Case("big chunks, zstd", Array(*big, "zstd"), best),
        Case("small chunks, blosc lz4", Array(*small, "blosc lz4"), best),
        Case("big chunks, blosc lz4", Array(*big, "blosc lz4"), best),
    ]


def run(options: Options) -> dict[str, Row]:
    rows = {}
    wanted = [case for case in cases(options.scale) if options.wants(case.name)]
    for array, group in itertools.groupby(wanted, key=lambda case: case.array):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarrs says that it hands over what it cannot do
            stored = array.write(Path(folder))
            for case in group:
                keys = case.keys or ((ALL,) * len(array.shape),)
                found = programs(stored, keys)
                least = limit(stored, keys)
                megabytes = sum(part.nbytes for part in least()) / 1e6
                work = Work(case.name, found | {LIMIT: least}, case.goals, megabytes)
                rows[case.name] = measure(work, options.repeat)
    return rows
