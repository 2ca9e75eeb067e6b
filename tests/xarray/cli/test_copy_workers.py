"""``nczarr copy --workers`` and ``--scheduler``: processes of dask.distributed do the work."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import StoreError
from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export import contents, parallel, steps
from nczarr_xarray.export.copy.zarr2 import plan_copy
from nczarr_xarray.export.parallel import run_part
from nczarr_xarray.export.steps import Step
from nczarr_xarray.export.write_task import documents_of_arrays, put_all
from tests.support.builders.copying import copy, failed
from tests.support.builders.ncwriter import ramp
from tests.support.servers.clusters import two_processes
from tests.support.servers.ports import free_port
from tests.support.servers.s3server import S3Server

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

#: What distributed says of itself when a machine is slow, or has been used with another fork.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*unmanaged memory.*"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
    # SeaweedFS lists directories that are empty
    pytest.mark.filterwarnings("ignore:Object at .nczarr_export"),
]


@pytest.fixture
def dataset() -> xr.Dataset:
    return xr.Dataset(
        {
            "v": (("time", "x"), ramp((100, 64), "f4")),
            "names": ("x", [f"name {i}" for i in range(64)]),
            "scalar": np.int16(3),
        },
        coords={"x": np.arange(64.0)},
    )


@pytest.fixture
def cube(tmp_path: Path, dataset: xr.Dataset) -> Path:
    """NCZarr with a variable of 10 x 8 chunks of shuffled zlib, and some more."""
    encoding = {"v": {"chunksizes": (10, 8), "zlib": True}}
    to_nczarr(dataset, tmp_path / "cube", encoding=encoding, unlimited_dims=["time"])
    return tmp_path / "cube"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The scheduler of a cluster of two processes."""
    with two_processes() as client:
        yield client.cluster.scheduler_address


# -- without a cluster -------------------------------------------------------------------


def test_what_is_sent_can_be_pickled(cube: Path, tmp_path: Path) -> None:
    """Chunks that are moved, and parts that are written anew, do the same in another process."""
    with open_hierarchy(str(cube)) as opened:
        task = plan_copy(opened, str(tmp_path / "y"))
        with task.or_nothing():
            put_all(task.change.staged, documents_of_arrays(task.documents))
            steps = task.steps()
            assert {type(step).__name__ for step in steps} == {"MoveStep", "PartsStep"}
            for step in pickle.loads(pickle.dumps(steps)):
                assert step.can_be_sent
                assert sum(step.run(part, lambda _: None) for part in range(step.parts)) > 0
            task.finish()
    with (
        xr.open_dataset(tmp_path / "y", engine="nczarr") as ours,
        xr.open_dataset(cube, engine="nczarr") as theirs,
    ):
        xr.testing.assert_identical(ours.load(), theirs.load())


class _Broken:
    """A future of a task whose worker died."""

    def result(self) -> int:
        raise distributed.scheduler.KilledWorker("task", None, 3, "there")


def test_errors_of_the_cluster_name_the_variable(cube: Path, tmp_path: Path) -> None:
    with open_hierarchy(str(cube)) as opened:
        task = plan_copy(opened, str(tmp_path / "y"))
        step = next(s for s in task.steps() if s.item.variable.name == "v")
        task.change.abort()
        with pytest.raises(StoreError, match=r"^/v, part 1 of \d+: cannot be copied by a worker"):
            parallel.result_of(_Broken(), step, 0)


def test_no_scheduler(
    cube: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel, "PATIENCE", 0.1)
    with socket.socket() as taken:  # nobody listens there, and nobody can begin to
        taken.bind(("127.0.0.1", free_port()))
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        message = failed(capsys, cube, tmp_path / "y", "--scheduler", url)
    assert f"{url}: no scheduler of dask.distributed answers there" in message
    assert os.listdir(tmp_path) == ["cube"]


def test_arguments(cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = failed(capsys, cube, tmp_path / "y.nc", "--workers", 2, status=2)
    assert "--workers: not for netCDF-4, but for" in message
    asked = (cube, tmp_path / "y", "--workers", 2)
    assert "--resume: is for one process" in failed(capsys, *asked, "--resume", status=2)
    few = failed(capsys, *asked, "--memory", "700MB", status=2)
    assert "--memory: 3 processes take 768 MB without any data" in few
    elsewhere = (cube, tmp_path / "y", "--scheduler", "tcp://host:1", "--memory", "1GB")
    assert "--memory: is for processes of this machine" in failed(capsys, *elsewhere, status=2)
    with pytest.raises(SystemExit):
        main(["copy", str(cube), str(tmp_path / "y"), "--workers", "0"])
    assert os.listdir(tmp_path) == ["cube"]


# -- with one ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("moved", ()),
        ("rechunked", ("--chunks", "time=100")),
        ("sliced", ("--slice", "time=5:50", "--quantize", "v=3")),
        ("zarr3", ("--format", "Zarr3", "--shards", "time=40")),
        ("y.zip", ("--compress", "zstd")),
        ("two passes", ("--chunks", "time=100,x=1", "--var", "v")),
    ],
)
@pytest.mark.parametrize("kind", ["NCZarr", "HDF5"])
def test_kinds(
    cube: Path,
    dataset: xr.Dataset,
    tmp_path: Path,
    address: str,
    kind: str,
    target: str,
    options: tuple[str, ...],
) -> None:
    source = cube
    if kind == "HDF5":
        source = tmp_path / "x.nc"
        dataset.to_netcdf(source, engine="netcdf4", unlimited_dims=["time"])
    asked = [str(source), str(tmp_path / target), *options, "--scheduler", address, "--verify"]
    assert main(["copy", *asked]) == 0


@pytest.mark.slow
def test_an_aggregation(cube: Path, dataset: xr.Dataset, tmp_path: Path, address: str) -> None:
    asked = [str(cube), str(tmp_path / "m.nca"), "--max-object-size", "5kB"]
    assert main(["copy", *asked, "--scheduler", address]) == 0
    assert len(os.listdir(tmp_path / "m")) > 4
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"].values, dataset["v"].values)


@pytest.mark.slow
def test_a_chunk_that_cannot_be_read(
    cube: Path, tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (cube / "v" / "3.3").write_bytes(b"damage")
    asked = (cube, tmp_path / "y", "--compress", "none", "--scheduler", address)
    assert "v/3.3" in failed(capsys, *asked)
    assert os.listdir(tmp_path) == ["cube"]


@pytest.mark.slow
def test_workers_that_write_elsewhere(
    cube: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory of another process."""
    message = failed(capsys, cube, "memory://of-others/y", "--scheduler", address)
    assert "dask's workers do not write to the same place" in message


def _deadly(deaths: Path, times: int, step: Step, part: int) -> int:
    """Kill this process, as often as `times` says, in place of some part of the work."""
    for number in range(times if part else 0):
        with suppress(FileExistsError):
            (deaths / str(number)).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return run_part(step, part)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [[], ["--chunks", "time=5"]], ids=["moved", "parts"])
def test_a_worker_is_killed(
    cube: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: list[str]
) -> None:
    """Another process does its work, also where it had what says how to do it."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    monkeypatch.setattr(parallel, "run_part", partial(_deadly, deaths, 1))
    monkeypatch.setattr(steps, "WINDOW", 4)
    monkeypatch.setattr(contents, "SLAB_BYTES", 4096)
    with two_processes() as client:
        copy(cube, tmp_path / "y", *chunks, "--scheduler", client.cluster.scheduler_address)
    assert [path.name for path in deaths.iterdir()] == ["0"]
    assert main(["compare", str(cube), str(tmp_path / "y")]) == 0


@pytest.mark.slow
def test_a_worker_that_starts_late_is_waited_for(
    cube: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, a worker that died may need longer to start than dask waits for it."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    monkeypatch.setattr(parallel, "run_part", partial(_deadly, deaths, 2))
    monkeypatch.setattr(steps, "WINDOW", 4)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "0 s"}):  # all start too late
        copy(cube, tmp_path / "y", "--workers", 2)
    assert sorted(path.name for path in deaths.iterdir()) == ["0", "1"]
    assert main(["compare", str(cube), str(tmp_path / "y")]) == 0


@pytest.mark.slow
def test_every_worker_is_killed(
    cube: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    monkeypatch.setattr(parallel, "run_part", partial(_deadly, deaths, 1000))
    monkeypatch.setattr(steps, "WINDOW", 4)
    once = dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with once, two_processes() as client:
        address = client.cluster.scheduler_address
        message = failed(capsys, cube, tmp_path / "y", "--scheduler", address)
    assert re.search(r"/\w+, part \d+ of \d+: cannot be copied by a worker: .*died", message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cube", "deaths"]


@pytest.mark.slow
def test_two_passes(
    cube: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first is that of one worker, before the other one."""
    monkeypatch.setattr(steps, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(steps, "COPIES", 0)
    asked = ["--chunks", "time=100,x=1", "--memory", "4kB", "--workers", "2", "--verify"]
    assert main(["copy", str(cube), str(tmp_path / "y"), *asked, "--var", "v"]) == 0
    assert "v: 25.6 kB, two passes" in capsys.readouterr().out
    plain = tmp_path / "plain"
    assert main(["copy", str(cube), str(plain), "--chunks", "time=100,x=1", "--var", "v"]) == 0
    assert sorted(os.listdir(tmp_path / "y")) == sorted(os.listdir(plain))


#: Copies with two processes, of which each says so when it has begun, and does not end.
_ENDLESS = """
import os, signal, sys, threading
from nczarr_xarray.cli.main import main
from nczarr_xarray.export import parallel

def wait(step, part):
    os.write(1, b"begun\\n")  # in one piece: two tasks do so at the same time
    threading.Event().wait()

if __name__ == "__main__":
    # what a shell starts in the background, as CI may be, and its children ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parallel.run_part = wait
    sys.exit(main(["copy", *sys.argv[1:], "--workers", "2"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no process groups as of a terminal")
def test_ctrl_c(cube: Path, tmp_path: Path) -> None:
    """A terminal sends the signal to all processes, those of the cluster too."""
    script, folder = tmp_path / "endless.py", tmp_path / "out"
    script.write_text(_ENDLESS)
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, script, cube, folder / "y"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=180) == 128 + signal.SIGINT
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [*folder.iterdir()] == []


def _endless() -> None:
    distributed.Event("begun").set()
    distributed.Event("end").wait()


@pytest.mark.slow
def test_a_task_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not waited for without a limit."""
    monkeypatch.setattr(parallel, "PATIENCE", 0.1)
    with two_processes() as client:
        begun, end = (distributed.Event(name, client=client) for name in ("begun", "end"))
        future = client.submit(_endless, pure=False)
        assert begun.wait(60)
        parallel.forget(client, [future])
        end.set()
    assert "have not ended within 0.1 s" in caplog.text


@pytest.mark.slow
def test_processes_of_this_machine(cube: Path, tmp_path: Path) -> None:
    assert main(["copy", str(cube), str(tmp_path / "y"), "--workers", "2", "--verify"]) == 0


def test_programs_of_dask_and_s3(cube: Path, tmp_path: Path, s3_server: S3Server) -> None:
    """A scheduler and workers that were started by their own commands."""
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    programs = [
        ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        *[["worker", url, "--nthreads", "1", "--no-dashboard", "--no-nanny"]] * 2,
    ]
    signed = s3_server.signed()
    options = [f"-O{name}={value}" for name, value in signed.items()]
    target = f"s3://{s3_server.private}/{tmp_path.name}"
    with ExitStack() as stack:
        for program in programs:
            stack.callback(_end, subprocess.Popen([sys.executable, "-m", "dask", *program]))
        with distributed.Client(url, timeout=120, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=120)
        asked: list[Any] = [str(cube), target, *options, "--scheduler", url]
        assert main(["copy", *asked, "--chunks", "time=25"]) == 0
    with (
        xr.open_dataset(target, engine="nczarr", storage_options=signed) as ours,
        xr.open_dataset(cube, engine="nczarr") as theirs,
    ):
        xr.testing.assert_equal(ours.load(), theirs.load())


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)
