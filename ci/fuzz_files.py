#!/usr/bin/env python3
"""Damage classic and HDF5 files at random and hold the reader to what it promises.

    python ci/fuzz_files.py --cases 20000 --seed 1

Every case is one small file of the test corpora, cut off or with one to three
changes, mostly in its metadata; it is opened and all variables are read, every
fourth through an event loop; every tenth is opened with xarray, too. Every third
HDF5 case takes wrong checksums for right, or damage would not get far in the
newer structures. A case fails if anything but an `NCZarrError` is raised, if data
have another shape than the dimensions say, if a file without its end shows other
values than before, if changed data of one variable show in another, if bytes
outside the file are asked for, or if it takes too long. Memory is capped. A crash
or a hang in C code ends the worker process, which is a failure as well.

``--case N`` repeats one case in this process and shows the damage.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import workers  # noqa: E402 - the path comes first

from nczarr_xarray import NCZarrError  # noqa: E402
from nczarr_xarray.formats.hdf5 import checksum  # noqa: E402
from tests import filedamage  # noqa: E402

#: xarray is the slower part by far.
EVERY = 10


def damaged(directory: str, seed: int, number: int) -> tuple[Path, filedamage.Damage]:
    """Name and bytes of the damaged file of one case."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
    path = rng.choice(filedamage.corpus(directory))
    return path, filedamage.mutate(filedamage.good(path)[0], rng)


def run(directory: str, seed: int, number: int) -> str:
    """Run one case; how it ended."""
    warnings.simplefilter("ignore")
    path, damage = damaged(directory, seed, number)
    _, before, extents = filedamage.good(path)
    family = "classic" if path.name.startswith("cdf") else "HDF5"
    with credulous() if number % 3 == 2 else contextlib.nullcontext():
        found = filedamage.read_all(damage.data, remote=number % 4 == 3)
        if number % EVERY == 0:
            filedamage.open_with_xarray(damage.data)
    filedamage.check(before, found, damage, extents)
    if isinstance(found, NCZarrError):
        return f"{family}: refused"
    bad = sum(
        isinstance(value, NCZarrError) and not isinstance(before.get(path), NCZarrError)
        for path, value in found.items()
    )
    return f"{family}: " + ("some variables refused" if bad else "read")


@contextlib.contextmanager
def credulous() -> Iterator[None]:
    """Take any checksum of HDF5's metadata for right."""
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("nczarr_xarray.formats.hdf5.")
        and getattr(module, "verify", None) is checksum.verify
    ]
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "verify"))
        yield


def show(directory: str, seed: int, number: int) -> None:
    """Repeat one case here, and print what was done to which file."""
    path, damage = damaged(directory, seed, number)
    print(f"{path.name}:", *damage.steps, sep="\n  ")
    print(run(directory, seed, number))


def main() -> int:
    """Run the command line; 1 if a case failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--case", type=int, help="repeat this one, here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        filedamage.write_corpus(Path(directory))
        if args.case is not None:
            show(directory, args.seed, args.case)
            return 0
        begin = time.monotonic()
        case = functools.partial(run, directory, args.seed)
        outcomes, peak = workers.run_all(case, args.cases, args.jobs)
        seconds = time.monotonic() - begin
    print(f"seed {args.seed}: {outcomes.total()} damaged files in {seconds:.0f} s")
    for outcome, count in sorted(outcomes.items()):
        print(f"  {count:7} {outcome}")
    print(f"  peak memory of a process {peak / 1024:.0f} MiB")
    return outcomes["FAILED"] > 0


if __name__ == "__main__":
    sys.exit(main())
