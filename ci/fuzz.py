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

import argparse
import collections
import faulthandler
import functools
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nczarr_xarray import NCZarrError  # noqa: E402 - the path comes first
from tests.support import damage, promises, samples  # noqa: E402

#: Address space of a worker, and time of a case before it is a hang.
MEMORY = 2 << 30
SECONDS = 10
#: xarray is the slower part by far.
EVERY = 10
NAMES = sorted(samples.DATASETS)


class HangError(BaseException):
    """A case takes too long; no `except Exception` may catch it."""


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


def run(seed: int, number: int) -> str:
    """Run one case; how it ended."""
    name, objects, touched = damaged(seed, number)
    found = promises.read_all(objects, remote=number % 4 == 3)
    if number % EVERY == 0:
        promises.open_with_xarray(objects, chunks=None if number % (2 * EVERY) else {})
    if isinstance(found, NCZarrError):
        return "refused"
    promises.check_untouched(good(name)[1], found, touched)
    bad = sum(isinstance(value, NCZarrError) for value in found.values())
    return "some variables refused" if bad else "read"


def work(seed: int, numbers: range, pipe: Connection) -> None:
    """Run cases in a process of their own; the pipe gets how each ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def hang(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, hang)
    for number in numbers:
        pipe.send((number, None, ""))
        signal.alarm(SECONDS)
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
        try:
            outcome, text = run(seed, number), ""
        except BaseException as error:  # noqa: BLE001 - these are what we look for
            outcome = "FAILED"
            text = "".join(traceback.format_exception(error, limit=-8))[-4000:]
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        pipe.send((number, outcome, text))
    pipe.send((None, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, ""))


def run_all(seed: int, cases: int, jobs: int) -> tuple[collections.Counter[str], int]:
    """Run cases in `jobs` processes, a new one for each that dies; outcomes and peak memory."""
    outcomes: collections.Counter[str] = collections.Counter()
    peak = 0
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[range, int]] = {}
    processes = []

    def start(numbers: range) -> None:
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=work, args=(seed, numbers, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        running[ours] = (numbers, numbers.start)

    for job in range(jobs):
        start(range(job, cases, jobs))
    while running:
        for pipe in wait(list(running)):
            assert isinstance(pipe, Connection)
            numbers, at = running[pipe]
            try:
                number, outcome, text = pipe.recv()
            except EOFError:
                number, outcome, text = at, "FAILED", "the process died\n"
                del running[pipe]
                start(range(at + numbers.step, cases, numbers.step))
            if number is None:
                peak = max(peak, outcome)
                del running[pipe]
            elif outcome is None:
                running[pipe] = (numbers, number)
            else:
                outcomes[outcome] += 1
                if text:
                    print(f"case {number} of seed {seed}:\n{text}", flush=True)
    for process in processes:
        process.join()
    return outcomes, peak


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--case", type=int, help="repeat this one, here")
    args = parser.parse_args()
    if args.case is not None:
        show(args.seed, args.case)
        return 0
    begin = time.monotonic()
    outcomes, peak = run_all(args.seed, args.cases, args.jobs)
    seconds = time.monotonic() - begin
    print(f"seed {args.seed}: {outcomes.total()} damaged datasets in {seconds:.0f} s")
    for outcome, count in outcomes.most_common():
        print(f"  {count:7} {outcome}")
    print(f"  peak memory of a process {peak / 1024:.0f} MiB")
    return outcomes["FAILED"] > 0


if __name__ == "__main__":
    sys.exit(main())
