"""The reads of `virtualnet` of the tests in virtual time, against the limit of the network.

Run from the root of the repository: ``python -m bench.planner``. The limit is
``(1 + trips) * latency + bytes / line``; the last column of each half is the
processor time in milliseconds, which the virtual clock does not count.
"""

from __future__ import annotations

import time

from nczarr_fsspec.ranges.source import HEAD_BYTES, Limits
from tests.support.servers.virtualnet import VirtualBytes, cases, perform, run


def bench(latency: float = 0.05, rate: float = 50e6, line: float = 125e6) -> None:
    print(f"latency {latency * 1e3:.0f} ms, {rate / 1e6:.0f} MB/s, {line / 1e6:.0f} MB/s in all")
    print(f"{'':40}{'limit':>7}  ", *(f"{name:^29}" for name in ("100 ranges", "one range")))
    for name, (size, rounds, data) in cases().items():
        wanted = sum(stop - start for read_round in rounds for start, stop in read_round)
        if data is not None:
            wanted += int((data[1] - data[0]).sum())
        trips = 1 + len(rounds) + (data is not None)
        limit = (1 + trips) * latency + (wanted + HEAD_BYTES) / line
        row = f"{name:40}{limit:6.3f} s"
        for ranges in (100, 1):
            source = VirtualBytes(size, Limits(64, ranges, latency, rate), line=line)
            before = time.process_time()
            _, seconds = run(perform(source, rounds, data))
            busy = time.process_time() - before
            row += f"  {seconds:6.3f} {seconds / limit:5.2f}x {len(source.requests):4d} req"
            row += f" {source.moved / 1e6:6.1f} MB {busy * 1e3:4.0f} ms"
        print(row)


if __name__ == "__main__":
    for milliseconds in (50, 20, 100, 0):
        bench(milliseconds / 1e3)
    bench(0.05, 1e6, 4e6)
    bench(0.02, 50e6, 1e9)
