"""What the tables say together: how many rows of each page we lead, and every row that we do not.

It reads the numbers of all sections, ``docs/bench/<section>.json``, whenever they were measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import LIMIT, OURS, insert
from remote_report import INFORMATION

#: Sections, with their pages and what these are about.
PAGES = {
    "read": ("#local-chunks", "local chunks"),
    "hdf5": ("#local-netcdf-4-files", "local netCDF-4 files"),
    "small": ("#small-files", "small files"),
    "boxes": ("#many-boxes", "many boxes"),
    "samples": ("#samples-for-training", "samples for training"),
    "cold": ("#starting", "starting"),
    "scripts": ("#scripts-for-netcdf4-python", "netCDF4 scripts"),
    "remote": ("network.md#files", "netCDF files over 50 ms"),
    "objects": ("network.md#chunks", "chunks over a network"),
    "opening": ("network.md#opening", "opening 500 variables"),
    "loading": ("network.md#many-small-variables", "500 variables over a network"),
    "aggregations": ("network.md#aggregations", "aggregations"),
    "export": ("writing.md", "writing"),
    "rechunk": ("writing.md#copies-in-bounded-memory", "copies in bounded memory"),
    "parallel": ("writing.md#processors", "dask"),
}
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
    """

    work: str
    peer: str | None
    times: float


def measured(section: str, found: dict[str, Any]) -> Iterator[Measured]:
    """Yield the rows of a section that had been measured."""
    for work, row in (found["50 ms"]["rows"] if section == "remote" else found["results"]).items():
        every = {name: taken for name, taken in taken_by(section, row) if name not in _NO_PEERS}
        ours = every[OURS]
        peers = {name: taken for name, taken in every.items() if not name.startswith(OURS)}
        best = min(peers, key=peers.__getitem__, default=None)
        times = peers[best] / ours if best else 0.0
        yield Measured(work, best, times)


def taken_by(section: str, row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the programs of a row that did the work, with the seconds that their table has."""
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
        middle = min if section == "cold" else statistics.median
        for name, times in row["seconds"].items():
            yield name, middle(times)


def summary(folder: Path) -> tuple[str, str]:
    """Return a table of the sections, and one of the rows in which a peer is faster."""
    sections = ["| what | as fast as the best, or faster | its time / ours |", "|---|---|---|"]
    behind = ["| what | work | best peer | its time / ours |", "|---|---|---|---|"]
    for section, (page, about) in PAGES.items():
        numbers = folder / f"{section}.json"
        if not numbers.exists():  # a folder for some sections only
            continue
        rows = [row for row in measured(section, json.loads(numbers.read_text())) if row.peer]
        times = [row.times for row in rows]
        ahead = sum(one >= EVEN for one in times)
        shown = (_short(one) for one in (statistics.median(times), min(times), max(times)))
        spread = "{} ({}–{})".format(*shown)
        sections.append(f"| [{about}]({page}) | {ahead} of {len(rows)} | {spread} |")
        behind += [
            f"| {about} | {row.work} | {row.peer} | {row.times:.2f} |"
            for row in rows
            if row.times < EVEN
        ]
    return "\n".join(sections), "\n".join(behind)


def _short(times: float) -> str:
    return f"{round(times)}" if times >= 100 else f"{times:.2g}"


def save(folder: Path) -> None:
    """Write both tables on the page that begins the pages on speed."""
    for section, text in zip(("summary", "behind"), summary(folder), strict=True):
        insert(folder, section, text)
