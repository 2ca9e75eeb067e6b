"""What doctor predicts is what the engine does: the same requests and bytes, and the seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.http import HTTPFileSystem

from nczarr_fsspec import FsspecStore
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import HEAD_BYTES
from nczarr_fsspec.transport.http import HTTPTransport
from nczarr_xarray import open_hierarchy
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.registry import EVERYTHING
from nczarr_xarray.tools.predict import cost_of, selections
from nczarr_xarray.tools.predict.counting import Counted, CountedFile, CountedTree
from nczarr_xarray.tools.predict.network import Cost, Network
from nczarr_xarray.tools.survey import survey
from tests.support.builders.trees import read_tree
from tests.support.servers.virtualhttp import Make, Reply, Session, serving
from tests.support.servers.virtualnet import Loop

#: of float32, 2.3 MB: one request, where a connection is not known to be slow
SHAPE = (108, 60, 90)
LATENCY, RATE = 0.04, 2e6
#: as `tests.support.servers.virtualhttp` has it: connections cost nothing and share nothing
NETWORK = Network(LATENCY, 1e15, RATE, to_connect=0)
COORDINATES = ("time", "lat", "lon")
PATTERNS = selections(SHAPE)

FILES: dict[str, dict[str, Any]] = {
    "small.nc": {"chunksizes": (2, 10, 15), "zlib": True},
    "steps.nc": {"chunksizes": (1, 60, 90), "zlib": True, "shuffle": False},
    "large.nc": {"chunksizes": (54, 60, 90)},
    "plain.nc": {"contiguous": True},
    "classic.nc": {},
}


def write(path: Path, **options: Any) -> Path:
    classic = path.name == "classic.nc"
    unlimited = classic or not options.get("contiguous")
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET" if classic else "NETCDF4") as ds:
        for name, length in zip(COORDINATES, SHAPE, strict=True):
            ds.createDimension(name, None if unlimited and name == "time" else length)
            ds.createVariable(name, "f8", (name,))[:] = np.arange(length)
        data = np.random.default_rng(0).integers(0, 1000, SHAPE).astype("f4")
        ds.createVariable("v", "f4", COORDINATES, **options)[:] = data
    return path


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class CountingServer:
    """A server that counts what it sends."""

    def __init__(self, make: Make) -> None:
        self.make = make
        self.requests = self.nbytes = 0

    def __call__(self, path: str, asked: str) -> Reply:
        self.requests += 1
        reply = self.make(path, asked)
        self.nbytes += int(reply.headers.get("Content-Length", 0))
        return reply


def filesystem(server: CountingServer) -> HTTPFileSystem:
    async def get_client(**_: Any) -> Session:
        return Session(server)

    return HTTPFileSystem(get_client=get_client, skip_instance_cache=True)


def spent(
    server: CountingServer, loop: Loop, before: tuple[int, int, float]
) -> tuple[int, int, float]:
    return server.requests - before[0], server.nbytes - before[1], loop.now - before[2]


async def read_file(
    server: CountingServer, loop: Loop, pattern: str
) -> tuple[tuple[int, int, float], tuple[int, int, float]]:
    """Open a file and read of it, all by the engine's own coroutines; return what each took."""
    transport = HTTPTransport(filesystem(server))
    transport.ranges = 1  # of the server in virtual time
    source = RemoteFileBytes(transport, "http://host/x", "http://host/x", 0)
    await source.begin(None)
    file = DataFile(source)
    hierarchy = await file.hierarchy_remote(EVERYTHING)
    variables = hierarchy.root.variables
    await asyncio.gather(*(VariableReader(file, variables[n]).read_remote() for n in COORDINATES))
    opening = spent(server, loop, (0, 0, 0.0))
    before = server.requests, server.nbytes, loop.now
    await VariableReader(file, variables["v"]).read_remote(PATTERNS[pattern])
    transport.shared.fs._session = None
    return opening, spent(server, loop, before)


def costs_of(counted: Counted, pattern: str, network: Network) -> tuple[Cost, Cost]:
    """What opening takes, and a read after it."""
    counted.fetch_coordinates()
    before = counted.rounds.copy()
    rounds = counted.rounds_of("/v", PATTERNS[pattern])
    return Cost.of(before, network), Cost.of(rounds, network, before)


def agree(predicted: Cost, found: tuple[int, int, float]) -> None:
    assert (predicted.requests, predicted.nbytes) == found[:2]
    assert predicted.seconds == pytest.approx(found[2], rel=0.02)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", FILES)
def test_of_a_file(folder: Path, loop: Loop, name: str, pattern: str) -> None:
    path = folder / name
    server = CountingServer(serving({"/x": path.read_bytes()}, LATENCY, RATE))
    opening, selection = loop.run_until_complete(read_file(server, loop, pattern))
    with open_hierarchy(path) as opened:
        counted = CountedFile(opened.file, NETWORK, ranges=1)
        found = costs_of(counted, pattern, NETWORK)
    for predicted, real in zip(found, (opening, selection), strict=True):
        agree(predicted, real)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_of_a_tree(folder: Path, loop: Loop, pattern: str) -> None:
    root = folder / "tree.nczarr"
    server = CountingServer(serving(read_tree(root, "/x/"), LATENCY, RATE))
    with open_hierarchy(root) as opened:
        array = opened.hierarchy.root.variables["v"]

        async def read() -> tuple[int, int, float]:
            store = FsspecStore(filesystem(server), "http://host/x")
            await VariableReader(store, array).read_remote(PATTERNS[pattern])
            store.transport.shared.fs._session = None
            return spent(server, loop, (0, 0, 0.0))

        found = loop.run_until_complete(read())
        counted = CountedTree(opened.keys, survey(opened).facts)
        opening, cost = costs_of(counted, pattern, NETWORK)
        assert opening.rounds <= 4
        agree(cost, found)
        assert cost.rounds == 1


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", FILES)
def test_rounds(folder: Path, name: str, pattern: str) -> None:
    """They are the longest chain of requests that have to wait for each other."""
    with open_hierarchy(folder / name) as opened:
        network = Network(1, 1e15, 1e15, to_connect=0)
        for cost in costs_of(CountedFile(opened.file, network), pattern, network):
            assert cost.rounds == round(cost.seconds)


@pytest.mark.parametrize("name", ["steps.nc", "plain.nc", "small.nc", "tree.nczarr"])
@pytest.mark.parametrize("chunks", [(9, 30, 45), (1, 60, 90), (4, 20, 30)])
def test_of_other_chunks(folder: Path, tmp_path: Path, name: str, chunks: tuple[int, ...]) -> None:
    """It is what a copy takes that was written with these chunks."""
    network = Network(0.05, 20e6)
    path = tmp_path / "other"
    with xr.open_dataset(folder / name, engine="nczarr") as ds:
        encoding = {key: ds["v"].encoding.get(key) for key in ("zlib", "shuffle", "complevel")}
        ds.nczarr.to_nczarr(path, encoding={"v": {"chunksizes": chunks, **encoding}})
    with open_hierarchy(folder / name) as opened, open_hierarchy(path) as other:
        found, real = survey(opened), survey(other)
        facts, real_facts = found.of("/v"), real.of("/v")
        assert facts is not None
        assert real_facts is not None
        for key in PATTERNS.values():
            predicted = cost_of(opened, found, facts, network, key, chunks)
            truth = cost_of(other, real, real_facts, network, key, None)
            assert predicted is not None
            assert truth is not None
            assert (predicted.rounds, predicted.requests) == (truth.rounds, truth.requests)
            # what small chunks compress to tells that of large ones only about
            assert predicted.nbytes == pytest.approx(truth.nbytes, rel=0.25, abs=HEAD_BYTES)
            assert predicted.seconds == pytest.approx(truth.seconds, rel=0.25)
