"""Every benchmark, with one command: ``python bench --output docs/bench``.

Each section makes its data in a temporary directory, has all programs do the same work in turn, and
compares what they return. ``--output`` writes the numbers and the pictures there, and the tables
into the pages beside it. ``export`` and ``remote`` are scripts with options of their own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import harness
import summary
from harness import Options

#: Rows of the usual kind, which harness.py turns into tables and pictures.
ROWS = (
    *("read", "boxes", "hdf5", "opening", "small", "objects", "loading", "parallel"),
    *("aggregations", "scripts"),
)
#: Modules that have these for themselves.
OWN = (
    "samples",
    "cold",
    "memory",
    "scaling",
    "serial",
    "large",
    "decoding",
    "appends",
    "rechunk",
    "flame",
)
SCRIPTS = ("export", "remote")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python bench", description=__doc__.partition("\n")[0])
    every = (*ROWS, *OWN, *SCRIPTS)
    parser.add_argument("--section", nargs="+", choices=every, default=every)
    parser.add_argument("--repeat", type=int, default=5, help="turns that are counted")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data, 1: 164-420 MB a row")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--output", type=Path, help="where the results go (docs/bench)")
    given = parser.parse_args()
    options = Options(given.repeat, given.scale, given.only)
    warnings.simplefilter("ignore")
    failed = 0
    for section in given.section:
        print(f"\n## {section}\n", flush=True)
        command = f"python bench --section {section} --repeat {given.repeat} --scale {given.scale}"
        if section in SCRIPTS:
            failed += script(section, given)
            continue
        module = importlib.import_module(section)
        found = module.run(options)
        print((harness if section in ROWS else module).table(found), flush=True)
        if given.output and not given.only:
            if section in ROWS:
                harness.save(section, found, options, command, given.output)
            else:
                module.save(found, options, command, given.output)
    if given.output:
        summary.save(given.output)
    return failed


def script(section: str, given: argparse.Namespace) -> int:
    command = [sys.executable, str(Path(__file__).with_name(f"{section}.py"))]
    command += ["--repeat", str(given.repeat), "--only", given.only]
    if section == "export":
        command += ["--scale", str(given.scale)]
    if given.output and not given.only:
        command += ["--output", str(given.output)]
    memory = Path("/dev/shm")  # writers are compared, not disks
    folder = str(memory) if memory.is_dir() and section == "export" else tempfile.gettempdir()
    environment = {**os.environ, "TMPDIR": folder}
    return subprocess.run(command, check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
