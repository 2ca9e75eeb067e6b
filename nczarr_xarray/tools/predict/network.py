"""The way to a server: how long rounds of requests take on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from numbers import Real
from typing import NamedTuple, TypeAlias

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.transport.policy import most_connections

#: What a part of an answer has besides its bytes, if there are several.
_PART_HEADER = 150


class Request(NamedTuple):
    """One request.

    Attributes
    ----------
    nbytes
        That come.
    parts
        Extents that it names.
    """

    nbytes: int
    parts: int = 1


#: Requests that need not wait for each other.
Round: TypeAlias = Sequence[Request]


@dataclass(frozen=True, slots=True)
class Network:
    """The way to a server.

    The first byte of an answer comes `latency` after its request, and later by `connecting` if a
    connection has to be opened; a connection carries one answer at a time.

    Parameters
    ----------
    latency
        Seconds from a request to the first byte of its answer.
    bandwidth
        Bytes per second of all connections together.
    per_connection
        Bytes per second of one of them at most.
    to_connect
        Seconds that a new connection takes; None for one latency, as TCP does.

    Raises
    ------
    UsageError
        If there can be no such network.
    """

    latency: float = 0.05
    bandwidth: float = 125e6
    per_connection: float = 50e6
    to_connect: float | None = None

    def __post_init__(self) -> None:
        for name, least, unit in (
            ("latency", 0, "seconds from 0 on"),
            ("bandwidth", 1, "bytes per second from 1 on"),
            ("per_connection", 1, "bytes per second from 1 on"),
        ):
            value = getattr(self, name)
            if not (isinstance(value, Real) and least <= float(value) < math.inf):
                raise UsageError(name, f"{value!r} is no number of {unit}")

    @property
    def connecting(self) -> float:
        """Seconds that a new connection takes."""
        return self.latency if self.to_connect is None else self.to_connect

    @property
    def rate(self) -> float:
        """Bytes per second of one connection that has all of the line."""
        return min(self.per_connection, self.bandwidth)

    def seconds(self, requests: Round, connections: int) -> float:
        """Return how long one round takes: as long as what takes longest of three.

        These are all bytes over the line, the longest request, and requests that wait for a
        connection, one after the other.

        Parameters
        ----------
        connections
            That are open already.
        """
        sizes = [one.nbytes + _PART_HEADER * one.parts * (one.parts > 1) for one in requests]
        total, used = sum(sizes), min(len(sizes), most_connections())
        opening = self.connecting if used > connections else 0.0
        first = 0.0 if connections else opening
        turns = -(-len(sizes) // used)
        return max(
            first + self.latency + total / self.bandwidth,
            opening + self.latency + max(sizes) / self.rate,
            opening + turns * (self.latency + total / len(sizes) / self.rate),
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a read takes.

    Parameters
    ----------
    rounds
        Requests, or groups of them, that have to wait for each other.
    requests
        All of them.
    nbytes
        That come.
    seconds
        Until the last byte has come, and is decoded as far as `decoding` says.
    decoding
        Seconds that the processors of this machine take to decode what came.
    """

    rounds: int
    requests: int
    nbytes: int
    seconds: float
    decoding: float = 0.0

    @classmethod
    def of(cls, rounds: Iterable[Round], network: Network, before: Iterable[Round] = ()) -> Cost:
        """Return the cost of rounds, after those `before`, which have opened connections."""
        connections = max((min(len(one), most_connections()) for one in before), default=0)
        count = requests = nbytes = 0
        seconds = 0.0
        for one in filter(None, rounds):
            seconds += network.seconds(one, connections)
            connections = max(connections, min(len(one), most_connections()))
            count, requests = count + 1, requests + len(one)
            nbytes += sum(request.nbytes for request in one)
        return cls(count, requests, nbytes, seconds)

    def decoded(self, decoding: float, begun: float) -> Cost:
        """Return the cost with the time of decoding, which begins with the first bytes."""
        return replace(self, decoding=decoding, seconds=max(self.seconds, begun + decoding))


def together(reads: Sequence[Sequence[Round]], most: int) -> list[Round]:
    """Return the rounds of reads that do not wait for each other, so many of them at a time."""
    rounds: list[Round] = []
    for at in range(0, len(reads), most):
        each = zip_longest(*reads[at : at + most], fillvalue=())
        rounds += ([request for one in own for request in one] for own in each)
    return rounds
