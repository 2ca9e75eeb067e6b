"""What doctor predicts is what reads from a range server take, within a quarter.

The requests are those that were really sent, to ``tests/support/servers/rangeserver.py``. What they
take is told by sending them again over a simulated network, in virtual time: so the answer does not
depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import xarray as xr
from zarr import config

import nczarr_xarray
from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.transport import request as _request
from nczarr_fsspec.transport.policy import most_connections
from nczarr_fsspec.transport.recording import Record
from nczarr_xarray.tools.predict import selections
from nczarr_xarray.tools.predict.network import Network
from nczarr_xarray.tools.trace.summary import rounds
from tests.support.builders.traces import send
from tests.support.marks import slow_cases_but
from tests.support.servers.realservers import RangeServer, range_server
from tests.support.servers.virtualtransport import VirtualTransport
from tests.xarray.tools.doctor.test_prediction import FILES, SHAPE

LATENCY, RATE = 0.05, 20e6
#: A part of an answer to a request for several ranges has so many bytes besides its own.
HEADER = 160
PATTERNS = selections(SHAPE)
#: Of the tree there is an object for each chunk: everything takes too long to be tried.
CASES = [(name, pattern) for name in FILES for pattern in PATTERNS]
CASES += [("tree.nczarr", pattern) for pattern in ("map", "series", "box")]
AGGREGATIONS = "all.nc", "all.nczarr", "all.json", "all.parq", "of_nczarr.nc", "of_zarr.nc"
OTHERS = dict.fromkeys(AGGREGATIONS, "aggregations")
OTHERS |= {"plain3.zarr": "zarr3", "shards.zarr": "zarr3"}
CASES += [(name, pattern) for name in OTHERS for pattern in PATTERNS]
#: Datasets whose objects do not wait for each other: fragments and shards.
APART = ("all.nc", "all.nczarr", "of_nczarr.nc", "of_zarr.nc", "shards.zarr")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RangeServer]:
    with range_server(folder) as server:
        yield server


def again(traces: Iterable[Iterable[Sequence[Record]]]) -> list[float]:
    """Send what was recorded over a simulated network; return the seconds of each trace.

    Parameters
    ----------
    traces
        Of each, groups of records that do not wait for those of another.
    """
    transport = VirtualTransport(Network(LATENCY, RATE))
    gate = asyncio.Semaphore(most_connections())

    async def answer(record: Record) -> None:
        async with gate:
            await transport.carry(record.nbytes)

    taken = []
    for groups in traces:
        begun = transport.loop.now
        transport.loop.run_until_complete(gather_or_cancel(*(send(answer, one) for one in groups)))
        taken.append(transport.loop.now - begun)
    transport.loop.close()
    return taken


def _object(url: str) -> str:
    """Return the fragment that a request is for, if it is a tree; else what it names."""
    found = re.match(r".*/parts[.]\w+/[^/]+", url)
    return url if found is None else found[0]


@pytest.mark.parametrize(("name", "pattern"), slow_cases_but(CASES, "large.nc"))
def test_a_read_takes_what_was_predicted(
    folder: Path,
    server: RangeServer,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    name: str,
    pattern: str,
) -> None:
    if name in OTHERS:
        request.getfixturevalue(OTHERS[name])
    # how fast this machine sends bytes to itself decides nothing
    monkeypatch.setattr(_request, "TELLING", sys.maxsize)
    url = f"{server.url}/{name}"
    server.set()
    moved = {f"{folder}/parts": f"{server.url}/parts"}  # where references are not relative
    report = nczarr_xarray.doctor(url, latency=LATENCY, bandwidth=RATE, replace=moved)
    predicted = report.predictions[0].costs[pattern]
    assert predicted is not None
    memory.clear()
    # who waits for whom is told by times: with zarr-python a pause of this machine, as long as an
    # answer takes, would look like a wait
    server.set(latency_ms=LATENCY * 1000 * (5 if name == "plain3.zarr" else 1))
    with nczarr_xarray.trace() as opening:
        ds = xr.open_dataset(url, engine="nczarr", replace=moved)
    with ds, nczarr_xarray.trace() as read:
        ds.variables["v"][PATTERNS[pattern]].load()
    assert opening.summary.requests == report.opening.requests
    found = read.summary
    parts = sum(len(record.extents or ()) for record in read.records)
    assert found.requests == pytest.approx(predicted.requests, rel=0.25)
    assert found.nbytes == pytest.approx(predicted.nbytes, rel=0.25, abs=HEADER * parts)
    by_file: dict[str, list[Record]] = {}
    for record in read.records:
        by_file.setdefault(_object(record.url) if name in APART else "", []).append(record)
    depth = max(max(rounds(records)) for records in by_file.values())
    if name == "plain3.zarr":  # zarr-python sends so many at a time; who ends first, time tells
        assert depth >= predicted.rounds == -(-found.requests // config.get("async.concurrency"))
    else:
        assert depth == predicted.rounds
    took = again(([opening.records], by_file.values()))
    assert took == pytest.approx([report.opening.seconds, predicted.seconds], rel=0.25)
