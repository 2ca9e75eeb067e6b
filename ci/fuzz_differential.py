#!/usr/bin/env python3
"""Make datasets at random and compare what we read with what their writers read.

    python ci/fuzz_differential.py --cases 20000 --seed 1

Every case is one HDF5 file by h5py (all versions of the format, layouts, filters,
types, resized and deleted objects, user blocks, virtual datasets, a single writer
with readers), netCDF file by netCDF4 (classic and netCDF-4) or Zarr tree by
zarr-python (format 2 and 3). It is opened by path, from an open file or memory, over
HTTP, from a store, with and without dask. Dimensions, attributes, types, encoding
and values are compared with h5py's, ``engine="netcdf4"``'s (as stored and decoded) or
zarr-python's, and random selections with the same of the whole. A case fails if
anything differs, if any error is raised, or if it takes too long. Memory is capped.
A crash or a hang in C code ends the worker process, which is a failure as well, unless
netCDF-C crashed while it read the file alone (it is counted).

``--case N`` repeats one case in this process and shows how its dataset was made;
with ``--keep FOLDER`` the dataset stays there.
"""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import workers  # noqa: E402 - the path comes first

from tests.support.oracles import differential  # noqa: E402

#: Of a case; it may take long where others are at work.
LIMITS = workers.Limits(seconds=120)


def crash_of(trace: str) -> tuple[str, str] | None:
    """Tell a crash within netCDF-C, which reads every file after us, from one of ours."""
    theirs = "xarray/backends/netCDF4_.py" in trace and "/nczarr_" not in trace
    return ("netCDF-C", "crashes") if theirs else None


def show(seed: int, number: int, keep: Path | None) -> None:
    """Repeat one case here, and print how its dataset was made."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        kind, made, _ = differential.make(seed, number, keep)
        print(f"{kind}: {made.path}", *made.steps, sep="\n  ")
    print(differential.run(seed, number))


def main() -> int:
    """Run the command line; 1 if a case failed."""
    parser = workers.command_line(__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="repeat this one, here")
    parser.add_argument("--keep", type=Path, help="folder for the dataset of that case")
    args = parser.parse_args()
    if args.case is not None:
        show(args.seed, args.case, args.keep)
        return 0
    begin = time.monotonic()
    case = functools.partial(differential.run, args.seed)
    numbers = range(args.first, args.first + args.cases)
    summary = workers.run_all(case, numbers, args.jobs, LIMITS, crash_of)
    seconds = time.monotonic() - begin
    failed = len(summary.failed)
    print(f"seed {args.seed}: {args.cases} datasets in {seconds:.0f} s, {failed} with differences")
    for (table, label), count in sorted(summary.counts.items()):
        print(f"  {table:10} {label:40} {count:7}")
    print("  slowest:", ", ".join(f"{s:.2f} s (case {n})" for s, n in summary.slowest))
    print(f"  peak memory of a process: {summary.peak >> 20} MiB")
    for number in sorted(summary.failed):
        print(f"python ci/fuzz_differential.py --seed {args.seed} --case {number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
