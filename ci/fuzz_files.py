#!/usr/bin/env python3
"""Damage classic and HDF5 files at random and hold the reader to what it promises.

    python ci/fuzz_files.py --cases 20000 --seed 1

Every case is one small file of the test corpora, cut off, spliced or with one to
three changes, mostly in its metadata. It is opened (from memory, from a file
object, from a path, or through an event loop) and all variables are read; every
tenth is opened with xarray, too. Checksums of HDF5's newer structures are made
right again in half of the cases, and not looked at in others, or damage would not
get far. A case fails if anything but an `NCZarrError` is raised, if data have
another shape or type than the metadata say, if a file without its end shows other
values than before, if changed data of one variable show in another, if damage that
a checksum tells shows in values, if bytes outside the file are asked for, or if it
takes too long. Memory is capped. A crash or a hang in C code ends the worker
process, which is a failure as well.

``--case N`` repeats one case in this process and shows the damage.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import workers  # noqa: E402 - the path comes first

from nczarr_xarray import NCZarrError  # noqa: E402
from tests.support.faults import (  # noqa: E402
    filedamage,
    filepromises,
)

#: xarray is the slower part by far.
EVERY = 10
#: Share of the classic files, which are simple.
CLASSIC = 0.25
#: One case of so many that have checksums does without them.
CREDULOUS = 5


def damaged(directory: str, seed: int, number: int) -> tuple[Path, str, filedamage.Damage]:
    """Name of, way to and bytes of the damaged file of one case."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
    families = filepromises.families(directory)
    name = rng.choice(list(families))
    if "cdf" in families and rng.random() < CLASSIC:
        name = "cdf"
    path = rng.choice(families[name])
    donor = rng.choice(families[rng.choice(list(families))]).read_bytes()
    good = filepromises.good(path)
    way = rng.choice(filepromises.WAYS)
    return path, way, filedamage.mutate(good.data, good.anatomy, donor, rng)


def run(directory: str, seed: int, number: int) -> workers.Labels:
    """Run one case; what it counts as."""
    warnings.simplefilter("ignore")
    path, way, damage = damaged(directory, seed, number)
    good = filepromises.good(path)
    format = "classic" if path.name.startswith("cdf") else "HDF5"  # noqa: A001
    scratch = Path(directory, f"{os.getpid()}.damaged")
    seals = damage.repaired or number % CREDULOUS != 0
    with contextlib.nullcontext() if seals else filepromises.verifying(lambda *_: None):
        found = filepromises.read_all(damage.data, way=way, path=scratch)
        if number % EVERY == 0:
            filepromises.open_with_xarray(damage.data, way=way, path=scratch)
    filepromises.check(good, found, damage, seals=seals)
    labels = [("way", way)]
    if isinstance(found, NCZarrError):
        outcome, errors = "file refused", [found]
    else:
        errors = [
            value
            for name, value in found.items()
            if isinstance(value, NCZarrError) and not isinstance(good.values.get(name), NCZarrError)
        ]
        outcome = "variables refused" if errors else "read"
    labels.append(("outcome", f"{format}: {outcome}"))
    labels += [("error", type(error).__name__) for error in errors[:1]]
    labels += [("damage", f"{kind}: {outcome}") for kind in dict.fromkeys(damage.kinds)]
    if format == "HDF5":
        how = "repaired" if damage.repaired else "heeded" if seals else "ignored"
        labels.append(("checksums", f"{how}: {outcome}"))
    return labels


def show(directory: str, seed: int, number: int) -> None:
    """Repeat one case here, and print what was done to which file."""
    path, way, damage = damaged(directory, seed, number)
    print(f"{path.name} by {way}:", *damage.steps, sep="\n  ")
    print(run(directory, seed, number))


def report(summary: workers.Summary) -> None:
    """Print tables."""
    for table in dict.fromkeys(table for table, _ in sorted(summary.counts)):
        rows: dict[str, dict[str, int]] = {}
        for (name, label), count in summary.counts.items():
            if name == table:
                row, _, column = label.partition(": ")
                rows.setdefault(row, {})[column] = count
        columns = sorted({column for row in rows.values() for column in row})
        print(f"  {table:18}", *(f"{column:>18}" for column in columns))
        for row, counts in sorted(rows.items()):
            print(f"    {row:16}", *(f"{counts.get(column, 0):18}" for column in columns))
    print("  slowest:", ", ".join(f"{s:.2f} s (case {n})" for s, n in summary.slowest))
    grown = (f"{size >> 20} MiB (case {n})" for size, n in summary.greediest)
    print("  most memory in one case:", ", ".join(grown))
    print(f"  peak memory of a process: {summary.peak >> 20} MiB")


def main() -> int:
    """Run the command line; 1 if a case failed."""
    parser = workers.command_line(__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--files", default="*", help="pattern of their names (h5_virtual*)")
    parser.add_argument("--case", type=int, help="repeat this one, here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        filepromises.write_corpus(Path(directory), args.files)
        if args.case is not None:
            show(directory, args.seed, args.case)
            return 0
        begin = time.monotonic()
        case = functools.partial(run, directory, args.seed)
        numbers = range(args.first, args.first + args.cases)
        summary = workers.run_all(case, numbers, args.jobs)
        seconds = time.monotonic() - begin
    failed = len(summary.failed)
    print(f"seed {args.seed}: {args.cases} damaged files in {seconds:.0f} s, {failed} failed")
    report(summary)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
