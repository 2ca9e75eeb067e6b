"""The network that doctor measures is the one that there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.errors import URLError
from nczarr_fsspec.transport import recording
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.formats.registry import EVERYTHING
from nczarr_xarray.tools.predict.network import Network, measure_network
from nczarr_xarray.tools.survey import survey
from tests.support.marks import slow_but
from tests.support.servers.realservers import RangeServer, range_server
from tests.support.servers.virtualtransport import VirtualFile, VirtualTransport

MOST = 40_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    values = np.random.default_rng(0).integers(0, 1 << 30, (24, 64, 512))
    ds = xr.Dataset({"v": (("t", "y", "x"), values.astype("i4"))})
    ds.to_netcdf(folder / "x.nc", engine="netcdf4", encoding={"v": {"chunksizes": (1, 64, 512)}})
    ds.nczarr.to_nczarr(folder / "x.nczarr", encoding={"v": {"chunks": (1, 64, 512)}})
    return folder


NETWORKS = (
    Network(0.05, 125e6),
    Network(0.2, 1e6, 1e6),
    Network(0.01, 40e6, 10e6, to_connect=0.3),
    Network(0.003, 1e9, 1e9),
)


@pytest.mark.parametrize("network", slow_but(NETWORKS, NETWORKS[0]))
@pytest.mark.parametrize("size", [3 << 20, 1 << 30])
def test_of_a_network_that_is_known(
    folder: Path, network: Network, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = VirtualTransport(network, (folder / "x.nc").read_bytes(), size)
    file = DataFile(VirtualFile(transport))
    opened = Opened(file, file.hierarchy(EVERYTHING))
    monkeypatch.setattr(recording, "now", transport.loop.time)
    before = transport.nbytes
    found = measure_network(opened, survey(opened))
    assert transport.nbytes - before <= MOST
    transport.loop.close()
    assert found.latency == pytest.approx(network.latency)
    assert found.per_connection == pytest.approx(min(network.per_connection, network.bandwidth))
    fastest = min(network.bandwidth, 8 * network.per_connection)
    assert found.bandwidth == pytest.approx(fastest, rel=0.01)


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with range_server(folder) as server:
        yield server


@pytest.mark.parametrize("name", slow_but(["x.nc", "x.nczarr"], "x.nc"))
def test_of_a_server(name: str, server: RangeServer) -> None:
    url = f"{server.url}/{name}"
    named = nczarr_xarray.doctor(url, latency=0.1, bandwidth=1e6)
    server.set(latency_ms=30)
    found = nczarr_xarray.doctor(url, measure=True)
    counted = server.control("stats")
    # the server waits so long, whatever else the machine does
    assert found.network.latency >= 0.03
    assert counted["bytes"] <= MOST
    assert found.network.bandwidth >= found.network.per_connection > 0
    assert found.findings == named.findings
    again = nczarr_xarray.doctor(url, measure=True, bandwidth=1e6)
    assert again.network.bandwidth == 1e6


def test_on_the_command_line(
    folder: Path, server: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.set(latency_ms=30)
    assert main(["doctor", f"{server.url}/x.nc", "--measure", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"]["latency"] >= 0.03
    assert main(["doctor", f"{folder}/x.nc", "--measure"]) == 1
    assert "not read over a network" in capsys.readouterr().err


def test_of_what_is_not_behind_a_network(folder: Path) -> None:
    with pytest.raises(URLError, match="state latency and bandwidth"):
        nczarr_xarray.doctor(folder / "x.nczarr", measure=True)


@pytest.mark.slow
def test_of_a_server_that_knows_no_ranges(server: RangeServer) -> None:
    server.set(norange=1)
    with pytest.raises(URLError, match="was sent as a whole"):
        nczarr_xarray.doctor(f"{server.url}/x.nc", measure=True)


@pytest.mark.slow
def test_of_chunks_that_are_too_small(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", np.arange(40))})
    ds.nczarr.to_nczarr(tmp_path / "x.nczarr", encoding={"v": {"chunks": (10,)}})
    with range_server(tmp_path) as server:
        server.set(latency_ms=30)
        found = nczarr_xarray.doctor(f"{server.url}/x.nczarr", measure=True).network
    assert found == Network(latency=found.latency)
