#!/usr/bin/env python3
"""Damage good datasets at random and hold the reader to what it promises.

    python ci/fuzz.py --cases 20000 --seed 1

Every case is one dataset with one to three changes, opened and read whole, every
fourth through an event loop; every tenth is opened with xarray, too. A case fails
if anything but an `NCZarrError` is raised, if data have another shape than the
dimensions say, if a variable that was not touched reads differently, if a key
outside the dataset is asked for, or if it takes too long. Memory is capped. A
crash or a hang in C code ends the worker process, which is a failure as well.

``--case N`` repeats one case in this process and shows the damage.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import workers  # noqa: E402 - the path comes first

from nczarr_xarray import NCZarrError  # noqa: E402
from tests.support.corpora import samples  # noqa: E402
from tests.support.faults import (  # noqa: E402
    damage,
    promises,
)

#: xarray is the slower part by far.
EVERY = 10
NAMES = sorted(samples.DATASETS)


@functools.cache
def good(name: str) -> tuple[samples.Objects, Any]:
    """Return a dataset before any damage, and what it holds."""
    objects = samples.DATASETS[name]()
    return objects, promises.read_all(objects)


def damaged(seed: int, number: int) -> tuple[str, samples.Objects, set[str]]:
    """Return the damaged dataset of one case."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
    name = rng.choice(NAMES)
    return name, *damage.mutate(good(name)[0], rng)


def run(seed: int, number: int) -> workers.Labels:
    """Run one case; what it counts as."""
    name, objects, touched = damaged(seed, number)
    found = promises.read_all(objects, remote=number % 4 == 3)
    if number % EVERY == 0:
        promises.open_with_xarray(objects, chunks=None if number % (2 * EVERY) else {})
    if isinstance(found, NCZarrError):
        return [("outcome", "refused")]
    promises.check_untouched(good(name)[1], found, touched)
    bad = sum(isinstance(value, NCZarrError) for value in found.values())
    return [("outcome", "some variables refused" if bad else "read")]


def show(seed: int, number: int) -> None:
    """Repeat one case here, and print what was done to which dataset."""
    name, objects, touched = damaged(seed, number)
    print(f"{name}:")
    before = good(name)[0]
    for key in sorted(touched):
        print(f"  {key!r}: {str(before.get(key))[:2000]}\n    -> {str(objects.get(key))[:2000]}")
    print(run(seed, number))


def main() -> int:
    """Run the command line; 1 if a case failed."""
    parser = workers.command_line(__doc__)
    parser.add_argument("--case", type=int, help="repeat this one, here")
    args = parser.parse_args()
    if args.case is not None:
        show(args.seed, args.case)
        return 0
    begin = time.monotonic()
    case = functools.partial(run, args.seed)
    summary = workers.run_all(case, range(args.cases), args.jobs)
    seconds, failed = time.monotonic() - begin, len(summary.failed)
    print(f"seed {args.seed}: {args.cases} damaged datasets in {seconds:.0f} s, {failed} failed")
    for (_, outcome), count in summary.counts.most_common():
        print(f"  {count:7} {outcome}")
    print(f"  peak memory of a process: {summary.peak >> 20} MiB")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
