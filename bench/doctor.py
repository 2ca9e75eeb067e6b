"""Predictions of ``nczarr doctor`` against reads from a range server, in real time.

Run from the root of the repository: ``python -m bench.doctor FOLDER [FILE...]``; the files are
those of ``bench/remote_files.py``. The server, which shares the machine, takes
processor time that a prediction does not count: the slower network is the better test of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray import doctor, open_hierarchy
from nczarr_xarray.tools.predict import selections
from tests.support.servers.realservers import RangeServer, range_server

FILES = ("n4_big.nc", "n4_small.nc", "n4_tiny.nc", "n4_contig.nc", "c2.nc", "h5_fa.h5")
#: Latency in seconds, bytes per second.
NETWORKS = ((0.05, 125e6), (0.1, 10e6))


def measure(url: str, path: str, pattern: str) -> float:
    """Read one pattern of a newly opened dataset; return the seconds of the read."""
    memory.clear()
    with open_hierarchy(url) as opened:
        variables = opened.hierarchy.root.variables
        opened.read_many(
            [(v, None) for n, v in variables.items() if [d.name for d in v.dimensions] == [n]]
        )
        variable = variables[path.strip("/")]
        begun = time.perf_counter()
        opened.read(variable, selections(variable.shape)[pattern])
        return time.perf_counter() - begun


def compare(server: RangeServer, name: str, repeat: int) -> None:
    url = f"{server.url}/{name}#mode=bytes"
    for latency, bandwidth in NETWORKS:
        server.set()
        report = doctor(url, latency=latency, bandwidth=bandwidth)
        server.set(
            latency_ms=latency * 1e3, conn_rtts=1, bw_conn=min(50e6, bandwidth), bw_total=bandwidth
        )
        for pattern, cost in report.predictions[0].costs.items():
            if cost is None:
                continue
            taken = [measure(url, report.variable, pattern) for _ in range(repeat)]
            least = min(taken)
            print(
                f"| {name} | {latency * 1e3:g} ms, {bandwidth / 1e6:g} MB/s | {pattern} "
                f"| {cost.seconds:.3f} | {least:.3f} | {statistics.median(taken):.3f} "
                f"| {cost.seconds / least:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print("| file | network | read | predicted s | least s | median s | predicted / least |")
    print("|---|---|---|---|---|---|---|")
    with range_server(args.folder) as running:
        for file in args.files:
            compare(running, file, args.repeat)
