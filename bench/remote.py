"""Remote files: ``engine="nczarr"`` against every other reader and against the network's limit.

Usage: ``python bench/remote.py [--files DIR] [--network NAME …] [--repeat N] [--only TEXT]
[--peers best|all|none] [--output docs/bench] [--waterfall docs/img]``

The range server of the tests serves the files of bench/remote_files.py with the latency and the
bandwidth of a network. Every read is done by every reader in turn, A B C A B C …, each in a process
of its own that has imported all it needs and read a small file, but holds no connection, no index
and no bytes of a file. A read ends with the values, which are compared with the truth; one that
fails or takes more than 40 s is not repeated. bench/remote_limits.py has the limit.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import remote_files
import remote_readers
import remote_report
from latency import Server
from remote_limits import COMPARED, COMPARED_ELSEWHERE, FEW, NETWORKS, READS, Network, Read

PEER_RUNS = 2
"""Peers take long, and what they do varies less than what separates them."""

SECONDS = 40
"""A reader that takes longer is stopped."""
HERE = Path(__file__).resolve().parent
BEST = {
    "xarray + h5netcdf",
    "fsspec 'all' + h5netcdf",
    "obspec-utils eager + h5netcdf",
    "pyfive, parallel index",
    "VirtualiZarr",
    "VirtualiZarr eager",
    "async-hdf5",
    "h5coro",
    "VirtualiZarr NetCDF3",
    "kerchunk NetCDF3",
}
"""The fastest in some row, with --peers all; netCDF-C is added where it alone reads the file."""


class Worker:
    """A process of bench/remote_readers.py; started again when it had to be stopped."""

    def __init__(self, name: str, server: Server, folder: Path) -> None:
        self.name, self.server, self.folder = name, server, folder
        self.process: subprocess.Popen[str] | None = None
        self.warmed: set[str] = set()
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def read(self, file: str, operation: str) -> dict[str, Any]:
        if self.process is None:
            self._start()
        warm = "warm_classic.nc" if file.startswith("c") else "warm_hdf5.nc"
        if warm not in self.warmed:
            self.warmed.add(warm)
            self._ask(warm, "full")
            if self.process is None:
                self._start()
        return self._ask(file, operation)

    def _start(self) -> None:
        self.warmed.clear()
        script = str(HERE / "remote_readers.py")
        process = self.process = subprocess.Popen(
            [sys.executable, script, self.name, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        answers = self.answers = queue.SimpleQueue()

        def listen() -> None:
            for line in process.stdout or ():
                answers.put(line)
            answers.put("")

        threading.Thread(target=listen, daemon=True).start()

    def _ask(self, file: str, operation: str) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        request = {"url": self.server.url(file), "file": file, "operation": operation}
        self.server.control("reset")
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.answers.get(timeout=SECONDS)
        except (queue.Empty, BrokenPipeError) as error:
            self._stop()
            late = isinstance(error, queue.Empty)
            text = f"stopped after {SECONDS} s" if late else "its process has died"
            return {"seconds": SECONDS, "right": False, "error": text, **self.server.traffic()}
        if not line:
            self._stop()
            line = json.dumps({"seconds": 0, "right": False, "error": "its process has died"})
        answer = json.loads(line)
        if answer.get("error"):
            # what it has begun would be counted as the next reader's
            self._stop()
            time.sleep(1)
        return {**answer, **self.server.traffic()}

    def _stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass(slots=True)
class Result:
    """All runs of one reader in one row."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    def add(self, run: dict[str, Any]) -> None:
        run.pop("log")
        if run.pop("warm"):
            run.setdefault("error", "it kept a connection: this is no cold read")
        if not run.pop("right"):
            run.setdefault("error", "wrong values")
        self.error = run.pop("error", "")
        self.runs.append(run)

    def document(self) -> dict[str, Any]:
        """For the report: the median run, the spread, and every run."""
        times = [run["seconds"] for run in self.runs]
        middle = sorted(self.runs, key=lambda run: run["seconds"])[len(times) // 2]
        return {
            **middle,
            "seconds": statistics.median(times),
            "min": min(times),
            "max": max(times),
            "error": self.error,
            "runs": self.runs,
        }


def readers(read: Read, network: str, peers: str) -> list[str]:
    """Ours and the peers that say they read such a file."""
    compared = COMPARED if network == "50 ms" else COMPARED_ELSEWHERE
    known = remote_readers.CLASSIC if read.file.startswith("c") else remote_readers.HDF5
    if peers == "none" or (peers == "best" and (read.name not in compared or network == "slow")):
        return ["nczarr"]
    if peers == "all":
        return ["nczarr", *known]
    return [
        "nczarr",
        *(n for n in known if n in BEST or (read.file == "c5.nc" and n == "netCDF-C")),
    ]


def measure(
    read: Read, workers: dict[str, Worker], names: list[str], repeat: int
) -> dict[str, Any]:
    """One row: every reader in turn, `repeat` times; peers `PEER_RUNS` times at most."""
    results = {name: Result() for name in names}
    for run in range(repeat):
        for name, result in results.items():
            if not result.error and (name == "nczarr" or run < PEER_RUNS):
                result.add(workers[name].read(read.file, read.operation))
                print(read.name, name, result.runs[-1], result.error, file=sys.stderr)
    return {name: result.document() for name, result in results.items()}


def waterfall(server: Server, workers: dict[str, Worker], path: Path) -> None:
    """Draw the requests of one and the same read, by us and by xarray as it comes."""
    server.control("set", **NETWORKS["50 ms"].settings())
    logs = {}
    for name in ("nczarr", "xarray + h5netcdf"):
        run = workers[name].read("n4_tiny.nc", "point")
        if not run["right"]:
            print(f"no waterfall: {name} {run.get('error')}", file=sys.stderr)
            return
        logs[name] = run["log"]
    remote_report.waterfall(logs, path / "waterfall.png")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=Path, help="made there when missing; a temporary folder")
    parser.add_argument(
        "--network",
        nargs="+",
        choices=[*NETWORKS, "all"],
        default=["50 ms"],
        help="all reads with 50 ms, some of each kind with the others",
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="only reads whose name contains this")
    parser.add_argument("--peers", choices=["best", "all", "none"], default="best")
    parser.add_argument(
        "--output", type=Path, help="folder for remote.json, remote.png (docs/bench)"
    )
    parser.add_argument("--waterfall", type=Path, help="folder for waterfall.png (docs/img)")
    return parser.parse_args()


def main() -> int:
    options = parse()
    chosen = list(NETWORKS) if "all" in options.network else options.network
    run = {
        "machine": remote_report.machine(),
        "command": f"python bench/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
        "repeat": options.repeat,
    }
    document: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = options.files or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        remote_files.make(folder)
        server = stack.enter_context(Server(folder))
        workers = {
            name: stack.enter_context(Worker(name, server, folder))
            for name in remote_readers.READERS
        }
        for name in chosen:
            network: Network = NETWORKS[name]
            server.control("set", **network.settings())
            rows: remote_report.Rows = {}
            document[name] = {**run, "rows": rows}
            for read in READS:
                if options.only in read.name and (read.name in FEW or not network.few):
                    names = readers(read, name, options.peers)
                    results = measure(read, workers, names, options.repeat)
                    rows[read.name] = {"limit": network.limit(read), "readers": results}
            print(f"\n{name}\n\n{remote_report.table(rows)}\n", flush=True)
        if options.waterfall:
            waterfall(server, workers, options.waterfall)
    if options.output:
        remote_report.save(document, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
