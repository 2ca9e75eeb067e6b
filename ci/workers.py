"""Many cases in a pool of processes with limits; one that crashes or hangs is one that failed."""

from __future__ import annotations

import collections
import faulthandler
import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait

#: Address space of a worker, and time of a case before it is a hang.
MEMORY = 2 << 30
SECONDS = 10


class HangError(BaseException):
    """A case takes too long; no `except Exception` may catch it."""


def work(run: Callable[[int], str], numbers: range, pipe: Connection) -> None:
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
            outcome, text = run(number), ""
        except BaseException as error:  # noqa: BLE001 - these are what we look for
            outcome = "FAILED"
            text = "".join(traceback.format_exception(error, limit=-8))[-4000:]
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        pipe.send((number, outcome, text))
    pipe.send((None, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, ""))


def run_all(
    run: Callable[[int], str], cases: int, jobs: int
) -> tuple[collections.Counter[str], int]:
    """Run cases in `jobs` processes, a new one for each that dies.

    Parameters
    ----------
    run
        Runs the case of a number and says how it ended; anything it raises is a
        failure. It is pickled.
    cases, jobs
        Numbers of cases and of processes.

    Returns
    -------
    outcomes
        How many cases ended how; failures, which are printed, as ``"FAILED"``.
    peak
        Memory of the largest process, in KiB.
    """
    outcomes: collections.Counter[str] = collections.Counter()
    peak = 0
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[range, int]] = {}
    processes = []

    def start(numbers: range) -> None:
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=work, args=(run, numbers, theirs), daemon=True))
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
                    print(f"case {number}:\n{text}", flush=True)
    for process in processes:
        process.join()
    return outcomes, peak
