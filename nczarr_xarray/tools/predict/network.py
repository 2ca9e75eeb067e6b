"""The way to a server: how long rounds of requests take on it, and how to measure it."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from numbers import Real
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import StoreError, URLError, UsageError
from nczarr_fsspec.keystore import OnLoop
from nczarr_fsspec.ranges.source import RemoteBytes
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_fsspec.transport.policy import most_connections
from nczarr_fsspec.transport.recording import Record, recorded
from nczarr_fsspec.transport.request import Extent
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.tools.survey import Survey, keys_of, sizes_of
from nczarr_xarray.tools.trace.summary import TELLING, latency, speed

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


# -- measuring -----------------------------------------------------------------------------------

#: Requests for one byte each, one after another.
_SHORT = 5
#: Bytes of requests that follow, one after another, until one takes so many seconds.
_SIZES, _LONG = (1 << 18, 1 << 20, 1 << 22), 0.5
#: Requests that are sent together at last.
_TOGETHER = 8
#: Of a file, at which they begin.
_PLACES = 16

#: Asks for so many bytes, or fewer if there are not more, at the place of a number.
Ask: TypeAlias = Callable[[int, int], Coroutine[Any, Any, object]]


def measure_network(opened: Opened, survey: Survey) -> Network:
    """Find out latency and bandwidth of the network between here and a dataset.

    About 40 MB at most are read; over a slow network much less.

    Raises
    ------
    URLError
        If the dataset is not behind a network, or its server does not answer such requests.
    StoreError
        If a request fails.
    """
    store = opened.store
    if isinstance(store, DataFile) and isinstance(store.source, RemoteBytes):
        return network_by(store.source, _in_file(store.source))
    if isinstance(store, FsspecStore):
        return network_by(store, _in_tree(store, survey))
    reason = "is not read over a network that can be measured; state latency and bandwidth"
    raise URLError(store.url, reason)


def network_by(there: OnLoop, ask: Ask) -> Network:
    """Find out latency and bandwidth by requests; errors as of `measure_network`.

    Parameters
    ----------
    there
        What runs them.
    """
    _sent(there, [ask(n, 1) for n in range(_TOGETHER)])  # which opens connections
    short = [record for n in range(_SHORT) for record in _sent(there, [ask(n, 1)])]
    alone: list[Record] = []
    for nbytes in _SIZES:
        alone += _sent(there, [ask(len(alone), nbytes)])
        if alone[-1].end - alone[-1].asked > _LONG:
            break
    many = _sent(there, [ask(len(alone) + n, nbytes) for n in range(_TOGETHER)])
    network = Network(latency=median(latency([record]) for record in short))
    single = [_bandwidth([record]) for record in alone]
    told = [one for one in single if one is not None]
    if told:
        network = replace(network, per_connection=max(told))
    told += filter(None, [_bandwidth(many)])
    if not told:
        return network
    # answers to single requests may be too short to tell what one connection carries
    fastest = max(told)
    return replace(network, bandwidth=fastest, per_connection=min(network.per_connection, fastest))


def _bandwidth(records: Sequence[Record]) -> float | None:
    """Return bytes per second of bodies; None if they are too short to tell."""
    if sum(record.nbytes for record in records) < TELLING:
        return None
    return speed([record.tries[-1] for record in records])


def _sent(there: OnLoop, requests: Sequence[Coroutine[Any, Any, object]]) -> list[Record]:
    """Send requests together, and return their records; `URLError` if there are none."""
    records: list[Record] = []

    async def together() -> None:
        await gather_or_cancel(*requests)

    with recorded(records.append):
        there.run(together())
    if not records:
        reason = "was sent as a whole, not by ranges: give latency and bandwidth"
        raise URLError(there.url, reason)
    return records


def _in_file(source: RemoteBytes) -> Ask:
    """Ask for bytes at places all over a file."""

    def ask(number: int, nbytes: int) -> Coroutine[Any, Any, object]:
        start = max(0, source.size - nbytes) * (number % _PLACES) // _PLACES
        return source.fetch([Extent(start, min(start + nbytes, source.size))])

    return ask


def _in_tree(store: FsspecStore, survey: Survey) -> Ask:
    """Ask for the first bytes of chunks of the largest variable."""
    keys = [] if survey.largest is None else keys_of(survey.largest)
    there = [key for key, size in sizes_of(store, keys).items() if size]
    if not there:
        raise StoreError(store.url, "has no chunks to measure by; state latency and bandwidth")

    def ask(number: int, nbytes: int) -> Coroutine[Any, Any, object]:
        return store.get(there[number % len(there)], slice(0, nbytes))

    return ask
