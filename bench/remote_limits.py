"""What bench/remote.py reads, over which networks, and the least time each read can take.

The limit is that of a reader which knows nothing but the URL and wastes nothing:

    T = (1 + D) L + B / BW

L: latency of a request (a connection costs one more, which is the 1), BW: bytes a second in all.
D: rounds of requests that depend on each other. One speculative GET of 64 KiB has the whole
metadata of a simple file, one round reads the data, and between them lie the levels of the chunk
index that are outside of the first 64 KiB. B: bytes that must move; those that libhdf5 reads when
nothing is cached, each counted once, or the variable (the file, when it is read whole: D = 2, since
the index comes with the parts).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Read:
    """One row of a table: D and B of `operation` on `file`."""

    file: str
    operation: str
    rounds: int
    megabytes: float
    why: str = ""

    @property
    def name(self) -> str:
        return f"{self.file.partition('.')[0]} {self.operation}"


@dataclass(frozen=True, slots=True)
class Network:
    """Latency in s, bytes a second per connection and in all, and what goes wrong."""

    latency: float
    per_connection: float = 50e6
    in_all: float = 125e6
    refused: int = 0
    """Every so many-th request is answered with 503."""
    cut: int = 0
    """Every so many-th body ends half-way."""
    few: bool = True
    """Only the reads of `FEW`."""

    def limit(self, read: Read) -> float:
        """Least time in seconds of a read from a cold handle, on a server without faults."""
        return (1 + read.rounds) * self.latency + read.megabytes * 1e6 / self.in_all

    def settings(self) -> dict[str, float]:
        """As tests/support/servers/rangeserver.py calls them."""
        return {
            "latency_ms": self.latency * 1e3,
            "conn_rtts": 1,
            "bw_conn": self.per_connection,
            "bw_total": self.in_all,
            "e503": self.refused,
            "trunc": self.cut,
        }


NETWORKS = {
    "50 ms": Network(0.05, few=False),
    "0 ms": Network(0),
    "20 ms": Network(0.02),
    "100 ms": Network(0.1),
    "slow": Network(0.1, 2e6, 10e6),
    "lossy": Network(0.05, refused=7, cut=11),
}

READS = (
    Read("n4_tiny.nc", "open", 1, 0.07, "all metadata are in the head"),
    Read("n4_tiny.nc", "step", 4, 0.73, "v1 B-tree, root in the head, two levels below it"),
    Read("n4_tiny.nc", "point", 4, 1.91, "the same"),
    Read("n4_tiny.nc", "full", 2, 103.0, "the file whole"),
    Read("n4_small.nc", "open", 1, 0.07),
    Read("n4_small.nc", "step", 3, 1.32, "v1 B-tree, one level below the root"),
    Read("n4_small.nc", "point", 3, 2.82, "the same"),
    Read("n4_small.nc", "full", 2, 94.6),
    Read("n4_big.nc", "open", 1, 0.07),
    Read("n4_big.nc", "step", 3, 0.15, "v1 B-tree, one level below the root"),
    Read("n4_big.nc", "point", 2, 91.1, "in every chunk: the file whole"),
    Read("n4_big.nc", "full", 2, 91.1),
    Read("n4_contig.nc", "open", 1, 0.07),
    Read("n4_contig.nc", "step", 2, 0.27, "no index"),
    Read("n4_contig.nc", "point", 3, 0.02, "no index; one round to spare, as first measured"),
    Read("n4_contig.nc", "full", 2, 94.6),
    Read("n4_many.nc", "open", 8, 0.59, "links, headers, attribute heaps and their B-trees"),
    Read("h5_fa.h5", "open", 1, 0.07),
    Read("h5_fa.h5", "step", 3, 0.74, "fixed array, whose one block goes beyond the head"),
    Read("h5_fa.h5", "point", 3, 1.64, "the same"),
    Read("h5_fa.h5", "full", 2, 102.5),
    Read("h5_ea.h5", "open", 1, 0.07),
    Read("h5_ea.h5", "step", 3, 0.72, "extensible array: the data block; what leads to it is near"),
    Read("h5_ea.h5", "point", 4, 1.65, "later super blocks are not in the head"),
    Read("h5_ea.h5", "full", 2, 102.5),
    Read("h5_bt2.h5", "open", 1, 0.07),
    Read("h5_bt2.h5", "step", 5, 0.73, "v2 B-tree of three levels, none of them in the head"),
    Read("h5_bt2.h5", "point", 5, 1.74, "the same"),
    Read("h5_bt2.h5", "full", 2, 102.7),
    Read("h5_paged.h5", "open", 2, 0.08, "coordinates are in another page of 4 MiB"),
    Read("h5_paged.h5", "step", 3, 0.74, "that, then the data; the fixed array is in the head"),
    Read("h5_paged.h5", "point", 4, 1.64, "the rest of the fixed array besides"),
    Read("h5_paged.h5", "full", 2, 109.1),
    Read("c2.nc", "open", 2, 0.07, "values of the record coordinate are in the records"),
    Read("c2.nc", "step", 3, 0.27, "the same, then the data"),
    Read("c2.nc", "point", 3, 0.01, "the same"),
    Read("c2.nc", "full", 3, 94.7, "the same; half of the file is another variable"),
    Read("c5.nc", "open", 1, 0.07, "nothing but the header and small variables"),
    Read("c5.nc", "step", 2, 0.27),
    Read("c5.nc", "point", 3, 0.01, "one round to spare, as first measured"),
    Read("c5.nc", "full", 2, 94.7),
)

FEW = frozenset(
    [f"n4_tiny {operation}" for operation in ("open", "step", "point", "full")]
    + ["n4_big step", "n4_contig point", "n4_many open", "h5_fa point", "c2 point", "c2 full"]
    + ["c5 point"]
)
"""Reads that are repeated on every network: one for each way of finding values."""

COMPARED = FEW | {
    *("n4_big full", "h5_fa full", "c2 open", "c5 full"),
}
"""Reads that peers are asked for as well, over 50 ms."""

COMPARED_ELSEWHERE = frozenset({"n4_tiny point", "c2 point"})
"""The same over other networks."""
