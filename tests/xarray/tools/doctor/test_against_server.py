"""What doctor predicts is what reads from a range server take, within a quarter.

The requests are those that were really sent, to ``tests/support/rangeserver.py``. What they take
is told by sending them again over a simulated network, in virtual time: so the answer does not
depend on what else the machine does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.ranges.memory import memory
from nczarr_fsspec.transport import route
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.tools.doctor.contents import FileContent, TreeContent
from nczarr_xarray.tools.doctor.network import Network
from nczarr_xarray.tools.doctor.patterns import selections
from nczarr_xarray.tools.doctor.simulated import SimulatedTransport
from nczarr_xarray.tools.survey import survey
from nczarr_xarray.tools.trace.replay import send
from nczarr_xarray.tools.trace.trace import Trace
from tests.support.marks import slow_cases_but
from tests.support.realservers import RangeServer, range_server
from tests.xarray.tools.doctor.test_prediction import FILES, SHAPE

LATENCY, RATE = 0.05, 20e6
#: A part of an answer to a request for several ranges has so many bytes besides its own.
HEADER = 160
PATTERNS = selections(SHAPE)
#: Of the tree there is an object for each chunk: everything takes too long to be tried.
CASES = [(name, pattern) for name in FILES for pattern in PATTERNS]
CASES += [("tree.nczarr", pattern) for pattern in ("map", "series", "box")]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RangeServer]:
    with range_server(folder) as server:
        yield server


def again(traces: tuple[Trace, ...], opened: Opened) -> list[float]:
    """Send what was recorded over a simulated network; return the seconds of each trace."""
    store = opened.store
    content = (
        FileContent(store)
        if isinstance(store, DataFile)
        else TreeContent(opened.keys, survey(opened).facts, {})
    )
    transport = SimulatedTransport(content, Network(LATENCY, RATE))
    taken = []
    for trace in traces:
        begun = transport.loop.now
        paths = [one.url.partition(".nczarr/")[2] for one in trace.records]
        transport.loop.run_until_complete(send(transport, trace.records, paths))
        taken.append(transport.loop.now - begun)
    transport.close()
    return taken


@pytest.mark.parametrize(("name", "pattern"), slow_cases_but(CASES, "large.nc"))
def test_a_read_takes_what_was_predicted(
    folder: Path,
    server: RangeServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    pattern: str,
) -> None:
    # how fast this machine sends bytes to itself decides nothing
    monkeypatch.setattr(route, "_TELLING", sys.maxsize)
    url = f"{server.url}/{name}"
    server.set()
    report = nczarr_xarray.doctor(url, latency=LATENCY, bandwidth=RATE)
    predicted = report.predictions[0].costs[pattern]
    assert predicted is not None
    memory.clear()
    server.set(latency_ms=LATENCY * 1000)
    with nczarr_xarray.trace() as opening:
        ds = xr.open_dataset(url, engine="nczarr")
    with ds, nczarr_xarray.trace() as read:
        ds.variables["v"][PATTERNS[pattern]].load()
    assert opening.summary.requests == report.opening.requests
    found = read.summary
    parts = sum(len(record.extents or ()) for record in read.records)
    assert found.requests == pytest.approx(predicted.requests, rel=0.25)
    assert found.nbytes == pytest.approx(predicted.nbytes, rel=0.25, abs=HEADER * parts)
    assert found.rounds == predicted.rounds
    with nczarr_xarray.open_hierarchy(folder / name) as local:
        took = again((opening, read), local)
    assert took == pytest.approx([report.opening.seconds, predicted.seconds], rel=0.25)
