"""Fixtures and settings for all tests."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, settings

from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.export.write_task import WriteTask
from tests.support.builders.remotefiles import files_root, files_server  # noqa: F401
from tests.support.oracles.strictjson import check_pure
from tests.support.servers.s3server import s3_server  # noqa: F401

#: Fixtures that start SeaweedFS or nginx.
SERVERS = {"s3_server", "nginx", "real"}
#: Cases of one function, of those that differ in parameters, which the quick set has.
CASES = 4

pytest.register_assert_rewrite("tests.support.oracles.ncpair")
# how long an example takes depends on what else the machine does
settings.register_profile("any machine", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=12)
settings.register_profile(
    "mutants",  # mutmut runs a test several times in one process
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.differing_executors],
)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def believed() -> Iterator[None]:
    """Ask for no array again, but in tests that say so: on a busy machine a second is not much."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 86400)
        yield


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are tried again at once."""
    monkeypatch.setattr("nczarr_fsspec.transport.policy.FIRST_WAIT", 0.0)


@pytest.fixture
def no_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without settings of AWS, S3netCDF4 and fsspec, rc files or a metadata service."""
    for name in os.environ:
        if name.startswith(("AWS_", "NCRCENV_", "S3_NC")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(fsspec.config, "conf", {})
    monkeypatch.setattr("nczarr_fsspec.transport.options.fsspec_config", fsspec.config.conf)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks each call decoded."""
    counts: list[int] = []
    decode = Decoder.decode

    def counted(self: Decoder, data: Any, name: Any) -> Any:
        counts.append(len(data))
        return decode(self, data, name)

    monkeypatch.setattr(Decoder, "decode", counted)
    return counts


def pytest_configure(config: pytest.Config) -> None:
    # h5py (szip) says so if netCDF4, which brings an HDF5 of its own, was imported before
    config.addinivalue_line("filterwarnings", "ignore:h5py is running against HDF5:UserWarning")
    # xarray's marks, on the tests that tests/xarray/backend/test_xarray_suite.py takes from it
    for mark in ("flaky", "network", "skip_if_param", "skip_with_dask_array"):
        config.addinivalue_line("markers", f"{mark}: see xarray's own tests")
    config.addinivalue_line("markers", "gpu: of zarr.testing, whose older releases do not say so")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark the tests whose fixtures start a server that is a program of its own.

    With the profile "quick", of the cases of one function some stand for all.
    """
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.servers)
    yield
    if config.getoption("--hypothesis-profile") == "quick":
        chosen, left_out = sampled(items)
        items[:] = chosen
        config.hook.pytest_deselected(items=left_out)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out xarray's own tests where none would run: only to import them takes seconds."""
    quick = "not slow" in config.getoption("markexpr")
    return True if quick and "xarray_suite" in collection_path.name else None


def sampled(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return some cases of each function, from the first to the last, and all others."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen: set[pytest.Item] = set()
    for found in cases.values():
        step = max(1, (len(found) - 1) / (CASES - 1))
        chosen.update(found[round(number * step)] for number in range(min(CASES, len(found))))
    # in their order, by which pytest makes fixtures once that several share
    return [i for i in items if i in chosen], [i for i in items if i not in chosen]


def pytest_collection_finish() -> None:
    """Have garbage be looked for only among what tests make: the rest stays until the end."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Write what was covered: xdist kills a worker that needs more than ten seconds to end."""
    if (coverage := sys.modules.get("coverage")) and (measured := coverage.Coverage.current()):
        measured.save()


@pytest.fixture(autouse=True)
def empty_memory() -> None:
    """Let no test find what another has put into ``memory://``, of which a process has one."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True, scope="session")
def strict_json() -> Iterator[None]:
    """Whatever the tests export as pure Zarr, any parser of JSON reads."""
    finish = WriteTask.finish

    @functools.wraps(finish)  # tasks are pickled with it by its name
    def checked(self: WriteTask, *arguments: Any) -> None:
        check_pure(self.documents)
        finish(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteTask, "finish", checked)
        yield
