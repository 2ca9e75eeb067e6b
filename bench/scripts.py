"""Scripts for netCDF4-python, which run on our interface with another import.

Here the peer is netCDF4-python with the same script. Over HTTP it reads files by their ranges, as
netCDF-C does for ``#mode=bytes``. What is written is a folder of NCZarr by ours and a netCDF-4 file
by netCDF4-python, with the same chunks and codecs; the limit of that is the same number of files,
of as many bytes, written by Python alone: a folder has a file for each chunk, and how long the file
system takes for them is nobody's merit. Over HTTP nothing is written, as netCDF4-python cannot.

A new process imports the interface and opens a small file; what is compared is the time from its
start to its end, of which Python and numpy take the largest part (the limit).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
from harness import LIMIT, OURS, Goal, Options, Prepared, Row, Timed, Work, measure
from latency import NETWORK, Server, least

import nczarr_xarray.netcdf4 as nczarr

STEPS, ROWS, FILES, WRITTEN = 10_000, 2_000, 1_000, 10_000
SHAPE = (25, 100)  # of a step: 10 kB, ten of which are a chunk of 100 kB
MAP = (128, 128)  # 64 kB
#: Over HTTP with 50 ms each step of the loop takes as long: fewer show the same.
FAR_STEPS, FAR_FILES = 1_000, 10
LIBRARIES: dict[str, Any] = {OURS: nczarr, "netcdf4": netCDF4}
HERE, FAR = (Goal("netcdf4", 1),), (Goal("netcdf4", 10),)


def run(options: Options) -> dict[str, Row]:
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        folder = Path(name)
        works = [*loops(folder, options.scale), *files(folder, options.scale)]
        works += [*writing(folder, options.scale), *starting(folder)]
        wanted = [work for work in works if options.wants(work.name)]
        found = {work.name: measure(work, options.repeat) for work in wanted}
        server.control("set", **NETWORK.settings())
        far = [work for work in over_http(folder, server) if options.wants(work.name)]
        return found | {work.name: measure(work, min(2, options.repeat)) for work in far}


def unlike(*_: Any) -> bool:
    """Of what returns nothing."""
    return True


def work(name: str, program: Callable[[Any], Any], goals: tuple[Goal, ...] = HERE) -> Work:
    """A script that both run, given the module."""
    programs: dict[str, Any] = {name: partial(program, one) for name, one in LIBRARIES.items()}
    return Work(name, programs, goals)


# -- reading ---------------------------------------------------------------------------------------


def values(steps: int, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.random.default_rng(0).integers(0, 1000, (steps, *shape))
    return numbers.astype("f4") / 8


def loops(folder: Path, scale: float) -> list[Work]:
    """``v[i]`` for every i, and all of it."""
    steps = max(10, int(STEPS * scale))
    works = []
    for kind, stored in {
        "ten in a deflated chunk": {"zlib": True, "complevel": 1},
        "ten in a plain chunk": {},
        "classic": None,
    }.items():
        path = folder / f"{kind}.nc"
        make(path, steps, stored)
        works.append(work(f"v[i] {steps:,} times, {kind}", partial(loop, path, steps)))
    path = folder / "ten in a deflated chunk.nc"
    return [*works, work(f"v[:] of {steps / 100:.0f} MB, deflated", partial(everything, path))]


def make(path: Path, steps: int, stored: dict[str, Any] | None) -> None:
    kind = "NETCDF4" if stored is not None else "NETCDF3_64BIT_OFFSET"
    options = {} if stored is None else {"chunksizes": (10, *SHAPE), **stored}
    with netCDF4.Dataset(path, "w", format=kind) as nc:
        for name, size in zip("tyx", (None, *SHAPE), strict=True):
            nc.createDimension(name, size)
        nc.createVariable("v", "f4", tuple("tyx"), **options)[:] = values(steps, SHAPE)


def loop(path: Any, steps: int, library: Any) -> float:
    total = 0.0
    with library.Dataset(path) as nc:
        variable = nc["v"]
        for i in range(steps):
            total += float(variable[i][0, 0])
    return total


def everything(path: Any, library: Any) -> Any:
    with library.Dataset(path) as nc:
        return nc["v"][:]


def files(folder: Path, scale: float) -> list[Work]:
    """Files of some kB, opened, read in part, and closed."""
    paths = [folder / f"small{number}.nc" for number in range(max(2, int(FILES * scale)))]
    for number, path in enumerate(paths):
        small(path, number)
    return [work(f"{len(paths):,} small files", partial(first_values, paths))]


def small(path: Path, number: int) -> None:
    sizes = {"time": None, "lat": 18, "lon": 36}
    with netCDF4.Dataset(path, "w") as nc:
        nc.Conventions, nc.history = "CF-1.8", f"made as number {number:05}"
        for name, size in sizes.items():
            nc.createDimension(name, size)
            variable = nc.createVariable(name, "f8", (name,))
            variable.units = "days since 2000-01-01" if name == "time" else "degrees"
            variable[:] = np.arange(size or 4) + (number if name == "time" else 0)
        for name in ("tas", "pr"):
            variable = nc.createVariable(name, "f4", tuple(sizes), zlib=True)
            variable.units, variable.long_name = "K", name
            variable[:] = np.random.default_rng(number).integers(0, 99, (4, 18, 36))


def first_values(paths: list[Any], library: Any) -> float:
    total = 0.0
    for path in paths:
        with library.Dataset(path) as nc:
            total += float(nc["tas"][:].sum())
    return total


def over_http(folder: Path, server: Server) -> list[Work]:
    """The same of files on a server."""
    path, count = folder / "far.nc", FAR_FILES
    make(path, 2 * FAR_STEPS, {"zlib": True, "complevel": 1})
    paths = [folder / f"far{number}.nc" for number in range(count)]
    for number, one in enumerate(paths):
        small(one, number)
    far, urls = address(server, path), [address(server, one) for one in paths]
    works = [
        work(f"v[i] {FAR_STEPS:,} times over 50 ms", partial(loop, far, FAR_STEPS), FAR),
        work(f"v[:] of {FAR_STEPS / 50:.0f} MB over 50 ms", partial(everything, far), FAR),
        work(f"{count} small files over 50 ms", partial(first_values, urls), FAR),
    ]
    works[1].programs[LIMIT] = least([1, 1], path.stat().st_size)
    return works


def address(server: Server, path: Path) -> str:
    return server.url(path.name) + "#mode=bytes"


# -- writing ---------------------------------------------------------------------------------------


def writing(folder: Path, scale: float) -> list[Work]:
    """Steps of 64 kB, ten at a time, along a dimension that grows."""
    steps = max(10, int(WRITTEN * scale)) // 10 * 10
    ten = values(10, MAP)
    works: list[Work] = []
    for length in (1, 10):
        for words in ({}, {"zlib": True, "complevel": 1}):
            chunks, number = (length, *MAP), len(works)
            files = partial(plain_files, folder / f"{number}", steps // length, ten[:length])
            programs: dict[str, Any] = {
                name: Prepared(
                    partial(cleared, folder / f"{number}"),
                    partial(written, LIBRARIES[name], steps, ten, {"chunksizes": chunks, **words}),
                )
                for name in LIBRARIES
            }
            if not words:
                programs[LIMIT] = Prepared(partial(cleared, folder / f"{number}"), files)
            kind = "deflated" if words else "plain"
            name = f"write {steps:,} steps of 64 kB, {length} in a {kind} chunk"
            works.append(Work(name, programs, HERE, right=unlike))
    return works


def cleared(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def written(
    library: Any, steps: int, ten: np.ndarray, stored: dict[str, Any], folder: Path
) -> None:
    with library.Dataset(folder / ("v.nczarr" if library is nczarr else "v.nc"), "w") as nc:
        for name, size in zip("tyx", (None, *MAP), strict=True):
            nc.createDimension(name, size)
        variable = nc.createVariable("v", "f4", tuple("tyx"), **stored)
        for step in range(0, steps, 10):
            variable[step : step + 10] = ten


def plain_files(place: Path, count: int, data: np.ndarray, _: Path) -> None:
    content = data.tobytes()
    for number in range(count):
        (place / f"{number}.0.0").write_bytes(content)


# -- starting --------------------------------------------------------------------------------------


def starting(folder: Path) -> list[Work]:
    path = folder / "start.nc"
    small(path, 0)
    programs: dict[str, Any] = {
        name: Timed(partial(started, f"import {module} as n; n.Dataset({str(path)!r})"))
        for name, module in {OURS: "nczarr_xarray.netcdf4", "netcdf4": "netCDF4"}.items()
    }
    programs[LIMIT] = Timed(partial(started, "import numpy.ma"))
    goals = (Goal("netcdf4", 1),)
    return [Work("import, and open a file", programs, goals, right=unlike)]


def started(code: str) -> tuple[float, None]:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begin, None
