"""A network for benchmarks, and the least time: the range server of the tests as its own process.

The network is that of bench/remote_limits.py: 50 ms before the first byte of every answer, another
50 ms for the first one of a connection, 50 MB a second on a connection and 125 MB a second in all.
Server and programs share the machine, which costs all of them the same for each request.

The least time is that of a reader which wastes no request and computes nothing:

    T = (1 + R) L + B / BW,    R = sum of ceil(n / c) over the read rounds

A read round is n requests that can be sent at once when the one before it has been answered, c is
how many of them are in flight at a time, and the 1 is the first connection. A server answers as
many as it is asked; c is what ours asks for (`RemoteStore.concurrency`), so that the ratio tells
what is lost besides that choice. A peer that asks for more at a time can therefore be below it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from remote_limits import NETWORKS

from nczarr_fsspec.keystore import RemoteStore

NETWORK = NETWORKS["50 ms"]
PEERS_IN_FLIGHT = 128
"""What zarr-python's guide on performance sets for remote stores; 10 is its default."""


class Server:
    """tests/support/servers/rangeserver.py in a process of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        script = (
            Path(__file__).resolve().parents[1] / "tests" / "support" / "servers" / "rangeserver.py"
        )
        command = [sys.executable, str(script), "--root", str(folder), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()  # it says so when it listens
        self.seen: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def control(self, command: str, **values: float) -> Any:
        url = f"{self.url('_ctl')}/{command}?{urllib.parse.urlencode(values)}"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)

    def traffic(self) -> dict[str, Any]:
        """Of one read: requests, bytes, depth, connections; and whether one was an old one."""
        stats, log = self.control("stats"), self.control("log")
        connections = {request["conn"] for request in log}
        old = bool(connections & self.seen)
        self.seen |= connections
        names = {"requests": "requests", "bytes": "bytes", "depth": "depth", "connections": "conns"}
        return {**{ours: stats[theirs] for ours, theirs in names.items()}, "warm": old, "log": log}


def least(rounds: Iterable[int], nbytes: int) -> float:
    """Seconds that `rounds` of so many requests, and their answers' bytes, take at least."""
    trips = sum(-(-requests // RemoteStore.concurrency) for requests in rounds)
    return (1 + trips) * NETWORK.latency + nbytes / NETWORK.in_all
