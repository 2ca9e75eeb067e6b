"""Starts, as whole processes: the command line, and a first `open_dataset` in a fresh process.

A turn is a process, from its start to its end, and what counts is the least of the turns: what is
longer was waiting for others. Bytecode is there, as it is after `pip install`. The peers are
`ncdump -h` and engine netcdf4 with the same data (of an NCZarr tree: the netCDF-4 file), and all
must print the same. What a process pays anyway is the base: Python, or xarray, as it opens the same
local file with engine netcdf4; a row of its own says what xarray takes to list its engines. Of
plugins it sees this package only: what others import (kerchunk: zarr, fsspec, numcodecs) would hide
what ours does. HTTP is that of a server on this machine, without latency.

The numbers also have what each process imports, by `python -X importtime`: packages, their modules,
and the least time of each module by itself, which importtime makes longer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
from harness import OURS, Options, Row, Work, document, heading, insert, measure, seconds
from latency import Server

BASE = "base"
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
_XARRAY = """
import sys, importlib.metadata as md, xarray as xr
ours = [e for e in md.entry_points(group="xarray.backends") if e.name == "nczarr"]
xr.backends.plugins.entry_points = lambda group: ours
xr.backends.list_engines()
"""
_OPEN = _XARRAY + "ds = xr.open_dataset(sys.argv[2], engine=sys.argv[1]); print(dict(ds.sizes))"


@dataclass(frozen=True)
class Case:
    """A row: the arguments of Python, a peer's command, and the most that ours may take.

    Attributes
    ----------
    most
        In seconds, of the whole process.
    beyond
        In seconds, beyond the base.
    """

    ours: tuple[str, ...]
    base: tuple[str, ...] = ("-c", "pass")
    peer: tuple[str, tuple[str, ...]] | None = None
    most: float | None = None
    beyond: float | None = None


@dataclass
class Start:
    """What was measured of a case: its times, and its imports by package: modules, seconds."""

    case: Case
    row: Row
    imports: dict[str, tuple[int, float]]

    def least(self, program: str) -> float:
        return min(self.row.times[program])


def run(options: Options) -> dict[str, Start]:
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        found = {}
        for label, case in cases(folder, server).items():
            if options.wants(label):
                row = measure(work(label, case, environment), options.repeat)
                found[label] = Start(case, row, imports(case, environment, options.repeat))
        return found


def cases(folder: Path, server: Server) -> dict[str, Case]:
    write(folder)
    (folder / "open.py").write_text(_OPEN)
    found = {"`nczarr --version`": Case(("-m", "nczarr_xarray", "--version"), most=0.1)}
    for name in ("x.nc", "classic.nc", "tree", "tree.zip"):
        path = str(folder / name)
        dump = ("ncdump", ("ncdump", "-h", path)) if name.endswith(".nc") else None
        for words in (("info",), ("dump", "-h")):
            ours = ("-m", "nczarr_xarray", *words, path)
            found[f"`nczarr {' '.join(words)} {name}`"] = Case(
                ours, peer=dump if words[0] == "dump" else None, most=0.25
            )
    script = str(folder / "open.py")
    base = (script, "netcdf4", str(folder / "x.nc"))
    found["`import xarray`, listing engines"] = Case(("-c", _XARRAY))
    for name in ("x.nc", "classic.nc", "tree", "tree.zip"):
        file = name if name.endswith(".nc") else "x.nc"
        peer = (sys.executable, script, "netcdf4", str(folder / file))
        found[f"open {name}"] = Case(
            (script, "nczarr", str(folder / name)), peer[1:], ("netcdf4", peer)
        )
    for name in ("x.nc", "tree"):
        url = server.url(name)
        found[f"open {name}, HTTP"] = Case((script, "nczarr", url), base, beyond=0.2)
    return found


def work(label: str, case: Case, environment: dict[str, str]) -> Work:
    def process(*command: str) -> Any:
        def turn() -> str:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            return done.stdout

        return turn

    programs = {OURS: process(sys.executable, *case.ours)}
    if case.peer is not None and shutil.which(case.peer[1][0]):
        programs[case.peer[0]] = process(*case.peer[1])
    programs[BASE] = process(sys.executable, *case.base)
    # the base prints nothing
    return Work(label, programs, right=lambda found, expected: found in ("", expected))


def imports(case: Case, environment: dict[str, str], repeat: int) -> dict[str, tuple[int, float]]:
    """Return what a process imports beyond its base: of each package, modules and seconds."""
    anyway = modules(case.base, environment, 1)
    found: dict[str, tuple[int, float]] = {}
    for name, took in modules(case.ours, environment, repeat).items():
        if name not in anyway:
            package = name.partition(".")[0]
            package = "standard library" if package in sys.stdlib_module_names else package
            count, total = found.get(package, (0, 0.0))
            found[package] = (count + 1, total + took)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def modules(command: tuple[str, ...], environment: dict[str, str], repeat: int) -> dict[str, float]:
    """Return the least time of each module that a process imports, in seconds."""
    least: dict[str, float] = {}
    for _ in range(repeat):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        for took, name in _LINE.findall(done.stderr):
            least[name] = min(least.get(name, 1e9), int(took) / 1e6)
    return least


def missed(start: Start) -> bool:
    """Tell whether a start takes longer than it may: at most twice as long as its peer's."""
    case, took = start.case, start.least(OURS)
    late = case.most is not None and took > case.most
    late |= case.beyond is not None and took - start.least(BASE) > case.beyond
    other = None if case.peer is None or case.most is not None else case.peer[0]
    return late or (other in start.row.times and took > 2 * start.least(other))


def table(found: dict[str, Start]) -> str:
    lines = [f"| start | {OURS} | {BASE} | peer | its time / ours |", "|---|---|---|---|---|"]
    for label, start in found.items():
        if OURS not in start.row.times:
            lines.append(f"| {label} | {start.row.errors[OURS]} |{' – |' * 3}")
            continue
        took = start.least(OURS)
        cells = [label, seconds(took), seconds(start.least(BASE)), "–", "–"]
        if start.case.peer is not None and (name := start.case.peer[0]) in start.row.times:
            cells[3:] = f"{name}: {seconds(start.least(name))}", f"{start.least(name) / took:.2f}"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def save(found: dict[str, Start], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, and the tables on the page on speed."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = document({label: start.row for label, start in found.items()}, options, command)
    for label, start in found.items():
        numbers["results"][label]["imports"] = start.imports
        numbers["results"][label]["missed"] = missed(start)
    (folder / "cold.json").write_text(json.dumps(numbers, indent=1) + "\n")
    insert(folder, "cold", f"{heading('cold', numbers)}\n\n{table(found)}")


def write(folder: Path) -> None:
    """Write the same small dataset in each form: a coordinate, and two variables in chunks."""
    forms = {"x.nc": "NETCDF4", "classic.nc": "NETCDF3_64BIT_OFFSET", "tree": None}
    for name, form in forms.items():
        target = str(folder / name) if form else f"file://{folder / name}#mode=nczarr,file"
        options: Any = {"format": form} if form else {}
        with netCDF4.Dataset(target, "w", **options) as nc:
            nc.createDimension("time", 24)
            nc.createDimension("x", 100)
            time = nc.createVariable("time", "f8", ("time",))
            time.units, time[:] = "days since 2000-01-01", np.arange(24)
            for variable in ("t", "u"):
                packed = {} if name == "classic.nc" else {"zlib": True, "chunksizes": (6, 50)}
                v = nc.createVariable(variable, "f4", ("time", "x"), **packed)
                v.units, v[:] = "K", np.arange(2400).reshape(24, 100)
    shutil.make_archive(str(folder / "tree"), "zip", folder / "tree")
