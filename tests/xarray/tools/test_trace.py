"""Traces of real reads, against a server in this process, and in other processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.errors import StoreError, URLError
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.transport import policy, recording
from nczarr_xarray.cli.demo import DATASET
from nczarr_xarray.tools.trace import Trace
from tests.support.builders.remotefiles import write_file
from tests.support.builders.trees import read_tree
from tests.support.faults.leftovers import end_reads
from tests.support.marks import slow_but
from tests.support.servers.clusters import two_processes
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.clear()
    end_reads()
    monkeypatch.setattr(policy, "FIRST_WAIT", 1e-3)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file and a tree, by path."""
    path = write_file(tmp_path_factory.mktemp("traced") / "h5.nc")
    return {"/h5.nc": path.read_bytes(), **read_tree(DATASET, "/ocean.nczarr/")}


@pytest.fixture
def server(content: dict[str, bytes]) -> Iterator[Server]:
    with Server(content, etag='"1"') as server:
        yield server


def traced(url: str) -> Trace:
    """Open a file, and read a variable of it.

    All of it: reads of metadata take along what is next to them, and more on slow networks.
    """
    with nczarr_xarray.trace() as found, xr.open_dataset(url, engine="nczarr") as ds:
        ds["v1"].load()
    return found


def test_every_request_is_recorded_with_what_it_was_for(server: Server) -> None:
    found = traced(f"{server.url}/h5.nc")
    assert len(found.records) == len(server.requests)
    assert {record.url for record in found.records} == {f"{server.url}/h5.nc"}
    first, last = found.records[0], found.records[-1]
    assert (first.cause, first.extents) == ("", ((0, 65_536),))
    assert last.cause == "/v1"
    # the server knows no requests for several ranges, and what it sends instead is not read
    read = sum(request.sent for request in server.requests if request.status == 206)
    assert sum(record.nbytes for record in found.records) == read == found.summary.nbytes
    statuses = [one.status or 0 for record in found.records for one in record.tries]
    assert sorted(statuses) == sorted(request.status for request in server.requests)
    assert 0 <= first.asked <= found.records[-1].end <= found.seconds


def test_nothing_is_recorded_before_and_after(server: Server) -> None:
    with xr.open_dataset(f"{server.url}/h5.nc", engine="nczarr") as ds:
        with nczarr_xarray.trace() as found:
            pass
        ds["v2"].load()
    assert found.records == []
    assert "0 in 0 read rounds" in str(found)


def test_a_trace_without_requests_has_no_limit() -> None:
    with nczarr_xarray.trace() as t:
        pass
    assert [line.split()[0] for line in str(t).splitlines()] == [
        *("requests", "retries", "bytes", "time", "network")
    ]


def test_a_trace_is_kept_if_what_is_traced_fails(server: Server) -> None:
    with pytest.raises(StoreError), nczarr_xarray.trace() as found:
        xr.open_dataset(f"{server.url}/none.nc#mode=bytes", engine="nczarr")
    assert [one.status for record in found.records for one in record.tries] == [404]
    assert recording.recorders == ()


def test_retries_are_recorded(server: Server) -> None:
    server.unavailable_every = 2
    found = traced(f"{server.url}/h5.nc")
    total = found.summary
    assert total.retries == [request.status for request in server.requests].count(503) > 0
    assert total.requests + total.retries == len(server.requests)
    assert "status 503" in found.html()


def test_requests_of_trees_are_recorded(server: Server) -> None:
    with nczarr_xarray.trace() as found:
        xr.open_dataset(f"{server.url}/ocean.nczarr", engine="nczarr")["sst"][0].load()
    assert len(found.records) == len(server.requests)
    chunks = [record for record in found.records if record.cause == "/sst"]
    assert {record.url.rpartition("/")[2] for record in chunks} == {
        ".zgroup",  # whether the dataset has changed
        *(f"0.{lat}.{lon}" for lat in (0, 1) for lon in (0, 1)),
    }


def test_secrets_are_nowhere_in_a_trace(content: dict[str, bytes]) -> None:
    with Server(content, password="me:hidden", etag='"1"', unavailable_every=3) as server:
        url = server.url.replace("//", "//me:hidden@") + "/h5.nc?sig=hidden&expires=hidden"
        headers = {"X-Api-Token": "hidden"}
        with nczarr_xarray.trace() as found:
            options = {"headers": headers}
            xr.open_dataset(url + "#mode=bytes", engine="nczarr", storage_options=options).load()
    assert found.summary.retries
    for text in (found.html(), found._repr_html_(), found.json(), repr(found), str(found)):
        assert "hidden" not in text


# ---- files


def test_a_trace_is_saved_in_two_forms(server: Server, tmp_path: Path) -> None:
    found = traced(f"{server.url}/h5.nc")
    for name in ("t.HTML", "t.json"):
        found.save(tmp_path / name)
    assert (tmp_path / "t.HTML").read_text() == found.html()
    shown = found._repr_html_()
    assert shown[shown.index("<svg") : shown.index("</svg>")] in found.html()
    assert f"{len(found.records)} in " in shown  # requests, and their rounds
    document = json.loads((tmp_path / "t.json").read_text())
    assert (document["seconds"], len(document["requests"])) == (found.seconds, len(found.records))
    with pytest.raises(URLError, match=r"written as \.html or \.json"):
        found.save(tmp_path / "t.png")


# ---- S3


def test_reads_and_writes_in_s3_are_recorded_without_credentials(s3_server: S3Server) -> None:
    url = s3_server.url("traced.nczarr", bucket=s3_server.private)
    options = s3_server.signed()
    ds = xr.Dataset({"v": ("x", np.arange(10))})
    with nczarr_xarray.trace() as written:
        ds.nczarr.to_nczarr(url, storage_options=options)
    puts = {one.url.partition("traced.nczarr/")[2] for one in written.records if one.kind == "put"}
    assert {"v/0", "v/.zarray"} <= {key.rpartition("traced.nczarr/")[2] for key in puts}
    with nczarr_xarray.trace() as read:
        xr.open_dataset(url, engine="nczarr", storage_options=options).load()
    (chunk,) = (one for one in read.records if one.url.endswith("v/0"))
    assert (chunk.cause, chunk.tries[0].status) == ("/v", 200)
    assert chunk.tries[0].first_byte is not None
    for found in (written, read):
        assert s3_server.secret_key not in found.html()
        assert s3_server.access_key not in found.json()


# ---- other processes

READ = """
import sys
import xarray as xr
print(xr.open_dataset(sys.argv[1], engine="nczarr")["v2"].values.sum())
"""


def test_names_with_any_bytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset(b"v\xb0\n", data=np.arange(50000.0), chunks=(1000,))
    with Server({"/x.h5": (tmp_path / "x.h5").read_bytes()}) as server:
        with nczarr_xarray.trace() as found:
            xr.open_dataset(f"{server.url}/x.h5", engine="nczarr").load()
    for name in ("t.json", "t.html"):
        found.save(tmp_path / name)
    requests = json.loads((tmp_path / "t.json").read_text())["requests"]
    assert "/v\\udcb0\\n" in {one["cause"] for one in requests}


def in_a_fork(url: str) -> None:
    child = os.fork()
    if not child:
        status = 1
        try:
            xr.open_dataset(url, engine="nczarr")["v2"].load()
            status = 0
        except BaseException:  # noqa: BLE001 - which must not get any further here
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def ranges(found: Trace) -> set[str]:
    """The ranges that were asked for, as HTTP has them; a client may ask again by itself."""
    parts = [[f"{a}-{b - 1}" for a, b in one.extents or () if b] for one in found.records]
    return {f"bytes={','.join(part)}" for part in parts}


def in_a_program(url: str) -> None:
    subprocess.run([sys.executable, "-c", READ, url], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("elsewhere", slow_but([in_a_fork, in_a_program], in_a_fork))
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_processes_that_are_started_are_recorded(
    server: Server, elsewhere: Callable[[str], None]
) -> None:
    url = f"{server.url}/h5.nc"
    with nczarr_xarray.trace() as outer:
        with nczarr_xarray.trace() as found:
            elsewhere(url)
        with nczarr_xarray.trace() as nothing:
            pass
    assert ranges(found) == {request.range for request in server.requests}
    assert "/v2" in {record.cause for record in found.records}
    assert 0 <= found.records[0].asked <= found.records[-1].end <= found.seconds
    assert nothing.records == []
    assert [r.extents for r in outer.records] == [r.extents for r in found.records]
    assert recording.recorders == ()
    elsewhere(url)  # nobody records, and nothing is left
    assert not [name for name in os.environ if name.startswith("NCZARR_TRACE")]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "cluster"])
def test_workers_of_dask_are_recorded(server: Server, where: str) -> None:
    with nczarr_xarray.trace() as found:
        ds = xr.open_dataset(f"{server.url}/h5.nc", engine="nczarr", chunks={})
        if where == "processes":
            ds["v2"].compute(scheduler="processes", num_workers=2)
        else:
            with two_processes() as client, client.as_current():
                ds["v2"].compute()
    assert ranges(found) == {request.range for request in server.requests}
    assert "/v2" in {record.cause for record in found.records}


def test_a_record_that_is_not_whole_is_left_out(server: Server) -> None:
    line = '{"url": "http://h/x", "asked": 1'
    with recording.recorded_elsewhere() as elsewhere:
        in_a_fork(f"{server.url}/h5.nc")
        whole = [*elsewhere()]
        (file,) = Path(os.environ["NCZARR_TRACE_FOLDER"]).iterdir()
        with file.open("a") as damaged:
            damaged.write(line)
        assert [*elsewhere()] == whole != []


# ---- a browser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser: apt-get install chromium")
def test_a_browser_shows_the_page_and_refuses_nothing_of_it(server: Server, tmp_path: Path) -> None:
    found = traced(f"{server.url}/h5.nc")
    found.save(tmp_path / "t.html")
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]
    command += [f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr"]
    shown = subprocess.run(
        [*command, f"--screenshot={tmp_path}/t.png", "--dump-dom", f"file://{tmp_path}/t.html"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "CONSOLE" not in shown.stderr  # where it says what the page may not do, or does wrong
    assert shown.stdout.count("<tr") == (tmp_path / "t.html").read_text().count("<tr") > 10
    assert "</svg>" in shown.stdout
