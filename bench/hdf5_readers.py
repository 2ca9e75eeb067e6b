"""The readers of bench/hdf5.py, and the process that one of them has to itself.

Usage, by bench/hdf5.py: ``python bench/hdf5_readers.py FILE ENGINE``. The name of a work on
standard input is answered by a line of JSON on standard output, ``{"seconds": …, "digest": …}`` or
``{"error": …}``. The digest is made after the time was taken.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr

ALL = slice(None)

Key = tuple[Any, ...]


class Apart:
    """A reader in a process of its own, which tells how long each of its reads takes.

    What other libraries do to the memory of a process would count otherwise: netCDF-C opens a file
    in 1.5 ms after another library has freed much, and in 5 ms by itself.
    """

    def __init__(self, path: Path, engine: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(path), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # a process of the limit may have its input open as well
        self._process.communicate()

    def read(self, work: str) -> tuple[float, str]:
        """Do a work; return its seconds, and a digest of the values."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(work, file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"], answer["digest"]


def works(shape: tuple[int, ...]) -> dict[str, Callable[[xr.Dataset], np.ndarray]]:
    """What is read, by name."""
    generator = np.random.default_rng(1)
    points = {
        name: xr.DataArray(generator.integers(0, length, 1000), dims="point")
        for name, length in zip("tyx", shape, strict=True)
    }
    step = shape[0] // 2
    return {
        "open": lambda ds: np.array(ds.v.shape),
        "everything": partial(part, (ALL, ALL, ALL)),
        "a point": partial(part, (ALL, 123, 234)),
        "a step": partial(part, (step, ALL, ALL)),
        "a box": partial(part, (slice(3, 17), slice(100, 180), slice(200, 280))),
        "every 7th": partial(part, (slice(None, None, 7),) * 3),
        "1,000 points": lambda ds: np.asarray(ds.v.isel(points).values),
    }


def part(key: Key, ds: xr.Dataset) -> np.ndarray:
    return np.asarray(ds.v[key].values)


def opened(path: str, engine: str, read: Callable[[xr.Dataset], np.ndarray]) -> np.ndarray:
    with xr.open_dataset(path, engine=engine, cache=False, chunks=None) as ds:
        return read(ds)


def main(path: str, engine: str) -> None:
    found: dict[str, Callable[[xr.Dataset], np.ndarray]] = {}
    for line in sys.stdin:
        try:
            if not found:
                found = works(opened(path, engine, lambda ds: np.array(ds.v.shape)).tolist())
            start = time.perf_counter()
            values = opened(path, engine, found[line.strip()])
            seconds = time.perf_counter() - start
            digest = hashlib.blake2b(np.ascontiguousarray(values)).hexdigest()
            answer: dict[str, Any] = {"seconds": seconds, "digest": digest}
            del values
        except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
            answer = {"error": str(error).partition("\n")[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
