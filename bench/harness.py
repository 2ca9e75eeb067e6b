"""What all benchmarks share: work done in turns, the machine, tables, bars, and pages about it.

A section is a module with ``run(options) -> dict[str, Row]``; `bench/__main__.py` runs it, writes
``docs/bench/<section>.json`` and ``.png``, and puts the tables between
``<!-- bench <section> begin -->`` and ``<!-- bench <section> end -->`` on the page of docs that has
these marks.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

OURS, LIMIT = "nczarr", "limit"
#: Seconds from which on one turn of a program is enough: others are measured in the meantime.
LONG = 20.0
#: More rows than these are shown as a grid.
MANY = 25
PACKAGES = (
    "nczarr-xarray",
    "xarray",
    "zarr",
    "zarrs",
    "zarrista",
    "tensorstore",
    "xbatcher",
    "obstore",
    "numcodecs",
    "netCDF4",
    "hidefix",
    "deflate",
    "blosc2",
    "numpy",
    "dask",
    "fsspec",
    "s3fs",
)
COLOURS = {
    OURS: "#1b7837",
    "nczarr, file": "#5aae61",
    LIMIT: "#cccccc",
    "zarr": "#fdae61",
    "zarr, 128": "#fee08b",
    "zarr, obstore": "#c51b7d",
    "zarr, fused": "#f46d43",
    "zarr, zarrs": "#d73027",
    "netcdf4": "#a6bddb",
    "zarrista": "#762a83",
    "tensorstore": "#3690c0",
    "hidefix": "#8c510a",
}


@dataclass(frozen=True)
class Options:
    """What the command line says: how often, how much, which rows."""

    repeat: int = 5
    scale: float = 1.0
    only: str = ""

    def wants(self, name: str) -> bool:
        return self.only in name


@dataclass(frozen=True)
class Goal:
    """``at_least`` is how many times as long as ours a program takes."""

    program: str  # its name, or "best peer"
    at_least: float

    def __str__(self) -> str:
        return f"{self.program} ≥ {self.at_least:.3g}"


class Prepared:
    """A program that has something of its own to prepare before each turn, which is not timed."""

    def __init__(self, prepare: Callable[[], Any], run: Callable[[Any], Any]) -> None:
        self._prepare, self._run = prepare, run

    def prepare(self) -> None:
        self._prepared = self._prepare()

    def __call__(self) -> Any:
        return self._run(self._prepared)


class Timed:
    """A program that takes its time itself, in another process, say."""

    def __init__(self, run: Callable[[], tuple[float, Any]]) -> None:
        self.run = run


def timed(program: Callable[[], Any] | Timed) -> tuple[float, Any]:
    """Return the seconds that a program takes, and its result."""
    if isinstance(program, Timed):
        return program.run()
    start = time.perf_counter()
    result = program()
    return time.perf_counter() - start, result


@dataclass(frozen=True)
class Work:
    """One row: work that several programs do in turn.

    Attributes
    ----------
    programs
        What does it, by name; returns the result. `OURS` is ours, `LIMIT` what nobody can beat
        (a number: its seconds, if it is computed and not run).
    prepare
        Called before each turn, not timed.
    right
        Whether a result, the first, is what it should be, the second (ours).
    """

    name: str
    programs: dict[str, Callable[[], Any] | Timed | float]
    goals: tuple[Goal, ...] = ()
    megabytes: float = 0.0
    prepare: Callable[[], Any] = lambda: None
    right: Callable[[Any, Any], bool] = lambda found, expected: bool(
        np.array_equal(found, expected)
    )


@dataclass
class Row:
    """What was measured: seconds of each program in the order of the turns."""

    times: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    megabytes: float = 0.0

    def median(self, program: str) -> float:
        return statistics.median(self.times[program])

    def peers(self) -> dict[str, float]:
        others = (name for name in self.times if name != LIMIT and not name.startswith(OURS))
        return {name: self.median(name) for name in others}

    def best_peer(self) -> str | None:
        peers = self.peers()
        return min(peers, key=peers.__getitem__) if peers else None

    def ratio(self, program: str) -> float | None:
        """How many times as long as ours `program` takes; below 1 it is faster."""
        name = self.best_peer() if program == "best peer" else program
        if name not in self.times or OURS not in self.times:
            return None
        return self.median(name) / self.median(OURS)

    def missed(self) -> list[str]:
        """The goals that do not hold."""
        found = [(goal, self.ratio(goal.program)) for goal in self.goals]
        return [str(goal) for goal, ratio in found if ratio is not None and ratio < goal.at_least]


def measure(work: Work, repeat: int) -> Row:
    """Have every program do the work in turn, A B C A B C ..., after one turn that is checked.

    The turn that is checked counts for a program that takes `LONG` in it, and is its only one.
    """
    row = Row(goals=work.goals, megabytes=work.megabytes)
    running: dict[str, Callable[[], Any] | Timed] = {}
    expected: Any = None
    for name, program in work.programs.items():
        if isinstance(program, (int, float)):
            row.times[name] = [program]
            continue
        try:
            prepare(work, program)
            taken, result = timed(program)
        except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
            # (more lines may tell where a peer was built)
            first = str(error).partition("\n")[0]
            row.errors[name] = f"{type(error).__name__}: {first}"[:200]
            continue
        if name == OURS:
            expected = result
        elif expected is not None and not work.right(result, expected):
            row.errors[name] = "wrong values"
            continue
        if taken >= LONG and name != OURS:
            row.times[name] = [taken]
            continue
        running[name] = program
        row.times[name] = []
    expected = result = None
    for _ in range(repeat):
        for name, program in running.items():
            prepare(work, program)
            row.times[name].append(timed(program)[0])
    print(f"{work.name}: {shown(row)}", file=sys.stderr, flush=True)
    return row


def prepare(work: Work, program: Callable[[], Any] | Timed) -> None:
    work.prepare()
    if isinstance(program, Prepared):
        program.prepare()


def shown(row: Row) -> str:
    found = [f"{name} {seconds(row.median(name))}" for name in row.times]
    return ", ".join(found + [f"{name} {error}" for name, error in row.errors.items()])


def seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def machine() -> dict[str, Any]:
    """What ran: the processor, the cores that it may use, and the versions of all programs."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        cpu = next((x.split(":")[1].strip() for x in lines if "model name" in x), cpu)
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    affinity = hasattr(os, "sched_getaffinity")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if affinity else os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": versions,
    }


def table(rows: dict[str, Row]) -> str:
    """Ours, the limit, the best peer and engine zarr; a grid if there are many rows."""
    if len(rows) > MANY:
        return _grid(rows)
    head = ["work", OURS, LIMIT, "best peer", "its time / ours", "engine zarr / ours"]
    body = []
    for name, row in rows.items():
        if OURS not in row.times:
            body.append([name, row.errors[OURS], *["–"] * 4])
            continue
        best = row.best_peer()
        cells = [name, seconds(row.median(OURS))]
        cells.append(seconds(row.median(LIMIT)) if LIMIT in row.times else "–")
        cells.append(f"{best}: {seconds(row.median(best))}" if best else "–")
        body.append([*cells, _ratio(row.ratio("best peer")), _ratio(row.ratio("zarr"))])
    said = [any(cells[i] != "–" for cells in body) for i in range(len(head))]
    return _lines(list(compress(cells, said)) for cells in (head, *body))


def _grid(rows: dict[str, Row]) -> str:
    """Return rows ``WORK, KIND`` as a line for each work, a column for each kind."""
    pairs = {tuple(name.split(", ", 1)): row for name, row in rows.items()}
    kinds = list(dict.fromkeys(kind for _, kind in pairs))
    body = [["work", *kinds]]
    for work in dict.fromkeys(work for work, _ in pairs):
        found = [pairs.get((work, kind)) for kind in kinds]
        cells = ["–" if row is None or OURS not in row.times else _cell(row) for row in found]
        body.append([work, *cells])
    return _lines(body)


def _cell(row: Row) -> str:
    return f"{seconds(row.median(OURS))} ({_ratio(row.ratio('best peer'))})"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _lines(body: Iterable[list[str]]) -> str:
    """Return a table, the head of which comes first."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in body)
    return "\n".join([first, "|" + "---|" * (first.count(" | ") + 1), *others])


def bars(rows: dict[str, Row], path: Path) -> None:
    """Median seconds as bars, least to most as whiskers, on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for row in rows.values() for name in row.times))
    height = 0.8 / len(names)
    figure, axes = plt.subplots(
        figsize=(9, max(2.5, 0.16 * len(names) * len(rows) + 1)), layout="constrained"
    )
    for offset, name in enumerate(names):
        found = [(i, row) for i, row in enumerate(rows.values()) if name in row.times]
        places = [i + height * (offset - (len(names) - 1) / 2) for i, _ in found]
        medians = [row.median(name) for _, row in found]
        below = [row.median(name) - min(row.times[name]) for _, row in found]
        above = [max(row.times[name]) - row.median(name) for _, row in found]
        axes.barh(
            places,
            medians,
            0.9 * height,
            xerr=[below, above],
            error_kw={"elinewidth": 0.6, "ecolor": "#555555"},
            color=COLOURS.get(name, "#888888"),
            label=name,
        )
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("seconds (median, least and most; logarithmic)")
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def document(rows: dict[str, Row], options: Options, command: str) -> dict[str, Any]:
    """What ``docs/bench/<section>.json`` holds."""
    return {
        "machine": machine(),
        "command": command,
        "repeat": options.repeat,
        "scale": options.scale,
        "results": {
            name: {"seconds": row.times, "errors": row.errors, "missed": row.missed()}
            for name, row in rows.items()
        },
    }


def heading(section: str, found: dict[str, Any]) -> str:
    """One line above a table: the command, the machine, and where all numbers and versions are."""
    where = found["machine"]
    return (
        f"`{found['command']}`, {where['cores']} × {where['cpu']}, Python {where['python']}; "
        f"[numbers]({section}.json)."
    )


def insert(folder: Path, section: str, text: str) -> None:
    """Put `text` between the marks of a section, on the page beside `folder` that has them.

    Parameters
    ----------
    folder
        Of pictures and numbers, which `text` names without it.
    """
    begin, end = (f"<!-- bench {section} {mark} -->" for mark in ("begin", "end"))
    pages = [page for page in folder.parent.rglob("*.md") if begin in page.read_text()]
    if not pages:
        print(f"no page beside {folder} has the mark {begin}", file=sys.stderr)
    for page in pages:
        here = os.path.relpath(folder, page.parent)
        shown = re.sub(r"(?<=\]\()(?=[\w-]+\.(?:json|png|svg)\))", f"{here}/", text)
        before, _, rest = page.read_text().partition(begin)
        page.write_text(f"{before}{begin}\n\n{shown}\n\n{end}{rest.partition(end)[2]}")


def save(section: str, rows: dict[str, Row], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, the picture, and the tables on the page of the section."""
    folder.mkdir(parents=True, exist_ok=True)
    found = document(rows, options, command)
    (folder / f"{section}.json").write_text(json.dumps(found, indent=1) + "\n")
    bars(rows, folder / f"{section}.png")
    text = f"{heading(section, found)}\n\n{table(rows)}\n\n![The same as bars]({section}.png)"
    insert(folder, section, text)
