"""Two states of the project on the same work, in turn: ``python bench/paired.py CHECKOUT``.

CHECKOUT is a folder with another state (``git worktree add --detach FOLDER REVISION``). Each round
runs our own programs of the chosen sections, first of one state and then of the other, and the
other way round in the next, each in a process of its own with its own ``bench`` folder. The table
has the medians of all turns, and how many times as long the other state takes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
SECTIONS = ("read", "opening", "small", "objects", "parallel")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python bench/paired.py")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--section", nargs="+", default=SECTIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="turns in a round")
    parser.add_argument("--scale", type=float, default=0.2)
    parser.add_argument("--alone", metavar="SECTION", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        return alone(given.alone, given)
    print(f"| work | {given.checkout.name} | here | {given.checkout.name} / here |")
    print("|---|---|---|---|")
    for section in given.section:
        times: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        for turn in range(given.rounds):
            for which in (turn % 2, 1 - turn % 2):
                found = elsewhere((given.checkout.resolve(), HERE)[which], section, given)
                for name, seconds in found.items():
                    times[which].setdefault(name, []).extend(seconds)
        for name in times[1]:
            if name in times[0]:
                old, new = (statistics.median(t[name]) * 1e3 for t in times)
                print(f"| {name} | {old:.1f} ms | {new:.1f} ms | {old / new:.2f} |", flush=True)
    return 0


def elsewhere(checkout: Path, section: str, given: Any) -> dict[str, list[float]]:
    """Run a section of a checkout in a process of its own, as if that were installed."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder, "nczarr_xarray-0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nczarr-xarray\nVersion: 0\n")
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        path = os.pathsep.join(map(str, (folder, checkout, checkout / "bench")))
        command = [sys.executable, __file__, str(checkout), "--alone", section]
        command += ["--repeat", str(given.repeat), "--scale", str(given.scale)]
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def alone(section: str, given: Any) -> int:
    """Print the seconds of our own programs of a section, as JSON."""
    harness = importlib.import_module("harness")
    measure = harness.measure

    def ours(work: Any, repeat: int) -> Any:
        names = [name for name in work.programs if name.startswith(harness.OURS)]
        programs = {name: work.programs[name] for name in names}
        return measure(harness.Work(work.name, programs, prepare=work.prepare), repeat)

    harness.measure = ours
    warnings.simplefilter("ignore")
    rows = importlib.import_module(section).run(harness.Options(given.repeat, given.scale))
    times = {
        f"{name}{program.removeprefix(harness.OURS)}": seconds
        for name, row in rows.items()
        for program, seconds in row.times.items()
    }
    print(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
