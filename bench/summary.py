"""What the tables say together: how many rows of each page we lead, and every row that we do not.

It reads the numbers of all sections, ``docs/bench/<section>.json``, whenever they were measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import LIMIT, OURS, Goal, insert
from remote_report import INFORMATION

#: Sections, with their pages and what these are about.
PAGES = {
    "read": ("#local-chunks", "local chunks"),
    "hdf5": ("#local-netcdf-4-files", "local netCDF-4 files"),
    "small": ("#small-files", "small local files"),
    "cold": ("#starting", "a new process"),
    "scripts": ("#scripts-for-netcdf4-python", "scripts for netCDF4-python"),
    "remote": ("network.md#files", "netCDF files over 50 ms"),
    "objects": ("network.md#chunks", "chunks over a network"),
    "opening": ("network.md#opening", "opening 500 variables"),
    "loading": ("network.md#many-small-variables", "500 variables over a network"),
    "aggregations": ("network.md#aggregations", "aggregations"),
    "export": ("writing.md", "writing"),
    "rechunk": ("writing.md#copies-in-bounded-memory", "copies in bounded memory"),
    "parallel": ("writing.md#processors", "dask"),
}
#: Goals of sections that are scripts, for rows that begin so.
GOALS = {"remote": ("", Goal("async-hdf5", 5)), "export": ("small chunks", Goal("best peer", 1.5))}
#: Rows that are no programs: what a process takes in any case, and what the file system does.
_NO_PEERS = frozenset({LIMIT, "base", "the files alone"})
#: As good as a peer: by less, two turns of one program differ.
EVEN = 0.98


class Measured(NamedTuple):
    """A row of a table.

    Attributes
    ----------
    peer
        The name of the fastest peer; None if none did the work.
    times
        How many times as long as ours that takes.
    missed
        Goals that do not hold.
    """

    work: str
    peer: str | None
    times: float
    missed: str


def measured(section: str, found: dict[str, Any]) -> Iterator[Measured]:
    """Yield the rows of a section that had been measured."""
    for work, row in (found["50 ms"]["rows"] if section == "remote" else found["results"]).items():
        every = {name: taken for name, taken in taken_by(section, row) if name not in _NO_PEERS}
        ours = every[OURS]
        peers = {name: taken for name, taken in every.items() if not name.startswith(OURS)}
        best = min(peers, key=peers.__getitem__, default=None)
        times = peers[best] / ours if best else 0.0
        missed = ["its goal"] if row.get("missed") is True else row.get("missed") or []
        begin, goal = GOALS.get(section, ("", None))
        if goal is not None and work.startswith(begin):
            taken = peers.get(best if goal.program == "best peer" else goal.program)
            missed = [str(goal)] if taken is not None and taken < goal.at_least * ours else []
        yield Measured(work, best, times, ", ".join(missed))


def taken_by(section: str, row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the programs of a row that did the work, with the median of their seconds."""
    if section == "remote":
        for name, one in row["readers"].items():
            if not one["error"] and INFORMATION not in name:
                yield name, one["seconds"]
    elif section == "rechunk":
        for name, turns in row["programs"].items():
            if not turns["error"]:
                yield name, statistics.median(turns["seconds"])
    elif section == "export":
        for name, one in row.items():
            yield name, statistics.median(one["times"])
    else:
        for name, times in row["seconds"].items():
            yield name, statistics.median(times)


def summary(folder: Path) -> dict[str, str]:
    """Return tables of the sections, of the rows behind a peer, and of goals that are missed."""
    pages = ["| what | rows with a peer | as fast as the best, or faster | its time / ours |"]
    pages += ["|---|---|---|---|"]
    behind = ["| what | work | best peer | its time / ours |", "|---|---|---|---|"]
    goals: dict[tuple[str, str], list[str]] = {}
    for section, (page, about) in PAGES.items():
        numbers = folder / f"{section}.json"
        if not numbers.exists():  # a folder for some sections only
            continue
        rows = list(measured(section, json.loads(numbers.read_text())))
        compared = [row.times for row in rows if row.peer]
        ahead = sum(times >= EVEN for times in compared)
        some = statistics.median(compared), min(compared), max(compared)
        shown = (f"{round(times)}" if times >= 100 else f"{times:.2g}" for times in some)
        spread = "{} ({}–{})".format(*shown)
        pages.append(f"| [{about}]({page}) | {len(compared)} | {ahead} | {spread} |")
        for row in rows:
            if row.peer and row.times < EVEN:
                cells = [f"[{about}]({page})", row.work, row.peer, f"{row.times:.2f}"]
                behind.append(f"| {' | '.join(cells)} |")
            if row.missed:
                goals.setdefault((about, row.missed), []).append(row.work)
    missed = ["| what | goal | missed by |", "|---|---|---|"]
    missed += [f"| {what} | {goal} | {'; '.join(works)} |" for (what, goal), works in goals.items()]
    tables = {"summary": pages, "behind": behind, "goals": missed}
    return {section: "\n".join(lines) for section, lines in tables.items()}


def save(folder: Path) -> None:
    """Write the tables on the page that begins the pages on speed."""
    for section, text in summary(folder).items():
        insert(folder, section, text)
