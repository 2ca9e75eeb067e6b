"""Measure the network between here and a dataset, by some requests for bytes of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, TypeAlias

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.keystore import OnLoop
from nczarr_fsspec.ranges.source import RemoteBytes
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_fsspec.transport.recording import Record, recorded
from nczarr_fsspec.transport.request import Extent
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.tools.doctor.network import Network
from nczarr_xarray.tools.survey import Survey, keys_of, sizes_of
from nczarr_xarray.tools.trace.analysis import TELLING, latency, speed

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
