"""Many cases in a pool of processes with limits; one that crashes or hangs is one that failed."""

from __future__ import annotations

import argparse
import collections
import faulthandler
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

#: How many of the most expensive cases to remember.
_MOST = 5

#: What a case counts as, in several tables: ``("outcome", "refused"), ("kind", "bit")``.
Labels = list[tuple[str, str]]


class HangError(BaseException):
    """A case takes too long; no `except Exception` may catch it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a case may use.

    Attributes
    ----------
    memory
        Bytes of memory that a worker may write to; what is only set aside does not count.
    seconds
        Time of a case before it is a hang.
    """

    memory: int = 2 << 30
    seconds: int = 10


#: Of small cases.
LIMITS = Limits()


@dataclass(slots=True)
class Summary:
    """How all cases ended.

    Attributes
    ----------
    counts
        How many cases have a label.
    failed
        Numbers of the cases that failed, which are printed when they do.
    slowest
        Seconds (of the processor) and number of the slowest cases.
    greediest
        Bytes by which a case raised its process' peak memory, and its number.
    peak
        Bytes of the largest process.
    """

    counts: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    failed: list[int] = field(default_factory=list)
    slowest: list[tuple[float, int]] = field(default_factory=list)
    greediest: list[tuple[int, int]] = field(default_factory=list)
    peak: int = 0

    def add(self, number: int, labels: Labels, seconds: float, before: int, after: int) -> None:
        self.counts.update(labels)
        self.slowest = sorted([*self.slowest, (seconds, number)], reverse=True)[:_MOST]
        self.greediest = sorted([*self.greediest, (after - before, number)], reverse=True)[:_MOST]
        self.peak = max(self.peak, after)

    def fail(self, number: int, text: str) -> None:
        self.failed.append(number)
        print(f"case {number}:\n{text}", flush=True)


def command_line(description: str | None, cases: int = 20_000) -> argparse.ArgumentParser:
    """Return the options that all have: how many cases, from which seed, in how many processes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser


def work(
    run: Callable[[int], Labels], numbers: range, pipe: Connection, log: str, limits: Limits
) -> None:
    """Run cases in a process of their own; the pipe gets how each ended, `log` how the last."""
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    descriptor = os.open(log, os.O_WRONLY)
    os.dup2(descriptor, 2)  # where C libraries complain, too
    faulthandler.enable(descriptor)

    def hang(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, hang)
    for number in numbers:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        pipe.send((number, None, "", 0.0, 0, 0))
        before, began = _peak(), time.process_time()
        signal.alarm(limits.seconds)
        faulthandler.dump_traceback_later(2 * limits.seconds, exit=True, file=descriptor)
        labels: Labels = []
        text = ""
        try:
            labels = run(number)
        except BaseException as error:  # noqa: BLE001 - these are what we look for
            text = "".join(traceback.format_exception(error, limit=-8))[-4000:]
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        pipe.send((number, labels, text, time.process_time() - began, before, _peak()))
    pipe.send((None, None, "", 0.0, 0, 0))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_all(
    run: Callable[[int], Labels],
    numbers: range,
    jobs: int,
    limits: Limits = LIMITS,
    crash_of: Callable[[str], tuple[str, str] | None] | None = None,
) -> Summary:
    """Run cases in `jobs` processes, a new one for each that dies.

    Parameters
    ----------
    run
        Runs the case of a number and says what it counts as; anything it raises is a
        failure. It is pickled.
    numbers, jobs
        Numbers of the cases, and of processes.
    limits
        What each case may use.
    crash_of
        Takes the trace of a process that crashed, and says what the case counts as if the
        crash is another program's; None if it is a failure.
    """
    summary = Summary()
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[range, int, Path]] = {}
    processes: dict[Connection, SpawnProcess] = {}

    with tempfile.TemporaryDirectory() as directory:

        def start(numbers: range) -> None:
            ours, theirs = context.Pipe(duplex=False)
            log = Path(directory, f"{len(processes)}.log")
            log.touch()
            process = context.Process(
                target=work, args=(run, numbers, theirs, os.fspath(log), limits), daemon=True
            )
            process.start()
            theirs.close()
            processes[ours] = process
            running[ours] = (numbers, numbers.start, log)

        for job in range(jobs):
            start(numbers[job::jobs])
        while running:
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                mine, at, log = running[pipe]
                try:
                    number, labels, text, *used = pipe.recv()
                except EOFError:
                    processes[pipe].join()
                    code = processes[pipe].exitcode
                    trace = log.read_text()
                    if crash_of is not None and (whose := crash_of(trace)):
                        summary.counts[whose] += 1
                    else:
                        summary.fail(at, f"the process ended ({code})\n{trace[-4000:]}")
                    del running[pipe]
                    start(range(at + mine.step, mine.stop, mine.step))
                    continue
                if number is None:
                    del running[pipe]
                elif labels is None:
                    running[pipe] = (mine, number, log)
                else:
                    summary.add(number, labels, *used)
                    if text:
                        summary.fail(number, text)
        for process in processes.values():
            process.join()
    return summary
