#!/usr/bin/env python3
"""Compare doctor's verdict of CMIP7 with that of check_cmip7_packing, for files of many layouts.

    pip install cmip7_repack    into an environment of its own
    python ci/cmip7.py PATH/check_cmip7_packing

It prints the table in docs/doctor.md, and returns 1 if the verdicts differ where the table does not
say so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import nczarr_xarray

STEPS, HEIGHT, WIDTH = 256, 64, 256
#: Steps of the data whose chunk has 4 MiB.
FULL = (4 << 20) // (4 * HEIGHT * WIDTH)

#: Where that program has another verdict. It looks at the chunks of the data only if the bounds of
#: time, or time where there are none, have chunks; and then it fails where the data have none.
KNOWN = {
    "data contiguous",
    "time contiguous, small chunks",
    "bounds contiguous, small chunks",
    "no time, small chunks",
}

#: Chunk lengths along time, None for contiguous: of ``time``, its bounds and the data. A variable
#: that is not named does not exist. ``ahead``: whether there is room for metadata before the data;
#: if not, the index of a variable lies behind the data of those that are named before.
FILES: dict[str, dict[str, Any]] = {
    "all contiguous": {"time": None, "bnds": None, "v": None},
    "chunks of 4 MiB": {"time": STEPS, "bnds": STEPS, "v": FULL},
    "chunks of 4 MiB less a step": {"time": STEPS, "bnds": STEPS, "v": FULL - 1},
    "chunks of 4 MiB less two steps": {"time": STEPS, "bnds": STEPS, "v": FULL - 2},
    "data in one chunk": {"time": STEPS, "bnds": STEPS, "v": STEPS},
    "data contiguous": {"time": STEPS, "bnds": STEPS, "v": None},
    "time in two chunks": {"time": STEPS // 2, "bnds": STEPS, "v": FULL},
    "bounds in two chunks": {"time": STEPS, "bnds": STEPS // 2, "v": FULL},
    "no bounds": {"time": STEPS, "v": FULL},
    "no bounds, small chunks": {"time": STEPS, "v": 1},
    "no data variable": {"time": STEPS, "bnds": STEPS},
    "index among the data": {"v": FULL, "time": STEPS, "bnds": STEPS, "ahead": False},
    "index among the data, small chunks": {"time": STEPS, "v": 1, "ahead": False},
    "time contiguous, small chunks": {"time": None, "v": 1},
    "bounds contiguous, small chunks": {"time": STEPS, "bnds": None, "v": 1},
    "no time, small chunks": {"v": 1},
}


def write(path: Path, *, ahead: bool = True, **lengths: int | None) -> None:
    """Write a file of netCDF-4 with variables whose chunks have these lengths along time."""
    shapes = {"time": (STEPS,), "bnds": (STEPS, 2), "v": (STEPS, HEIGHT, WIDTH)}
    with h5py.File(path, "w", meta_block_size=1 << 20 if ahead else 2048) as file:
        file.attrs["_NCProperties"] = "version=2,netcdf=4.9.3,hdf5=1.14.3"
        file.attrs["variable_id"] = "v"
        for name, length in lengths.items():
            shape = shapes[name]
            chunks = None if length is None else (length, *shape[1:])
            file.create_dataset(name, data=np.zeros(shape, "f4"), chunks=chunks)
        if "bnds" in lengths:
            file["time"].attrs["bounds"] = "bnds"


def verdicts(path: Path, program: str) -> tuple[str, str]:
    """Return the verdicts on a file: ours, and that of the program."""
    found = nczarr_xarray.doctor(path).cmip7
    assert found is not None
    done = subprocess.run([program, str(path)], check=False, capture_output=True, text=True)
    said = done.stdout.partition(":")[0]  # nothing if it ends with a traceback
    return "FAIL" if found else "PASS", said or f"exit status {done.returncode}"


def main() -> int:
    """Print the table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("program", help="path of check_cmip7_packing")
    program = parser.parse_args().program
    differ = set()
    print("| file | `nczarr doctor` | `check_cmip7_packing` |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, layout in FILES.items():
            path = Path(folder, "x.nc")
            write(path, **layout)
            here, there = verdicts(path, program)
            print(f"| {name} | {here} | {there} |")
            if here != there:
                differ.add(name)
    return differ != KNOWN


if __name__ == "__main__":
    sys.exit(main())
