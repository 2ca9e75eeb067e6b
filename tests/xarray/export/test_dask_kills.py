"""A process of a dask cluster is killed in the middle of an export."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.support.faults.killing import Target, ours, sample
from tests.support.servers.clusters import two_processes

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.slow,  # processes start, end and start again
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*unmanaged memory.*"),
]
ENCODING = {"a": {"chunks": (2, 5)}}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A cluster of two processes, which are replaced when they die."""
    with two_processes() as client:
        yield client


def _deadly(block: Any, folder: str, times: int, block_info: Any = None) -> Any:
    """A block whose computation kills the process, as often as `times` says."""
    if block_info[None]["chunk-location"] == (3, 0):
        for number in range(times):
            try:
                Path(folder, f"death{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
    return block


def dataset(folder: Path, times: int) -> xr.Dataset:
    """The values of `sample`, in six blocks, the fourth of which is deadly."""
    whole = sample(12, 1)
    folder.mkdir()
    blocks = da.from_array(whole["a"].values, chunks=(2, 5))
    deadly = da.map_blocks(_deadly, blocks, str(folder), times, dtype=blocks.dtype)
    return whole.assign(a=(("t", "x"), deadly, whole["a"].attrs))


@pytest.mark.parametrize(("name", "before"), [("d.zip", False), ("d", True)])
def test_another_process_does_its_work(
    client: Any, name: str, before: bool, tmp_path: Path
) -> None:
    target, expected = Target(str(tmp_path / name)), Target(str(tmp_path / "expected"))
    if before:
        target.write(sample(5), encoding=ENCODING)
    with client.as_current():
        target.write(dataset(tmp_path / "deaths", 1), "w", encoding=ENCODING)
    assert [path.name for path in (tmp_path / "deaths").iterdir()] == ["death0"]
    expected.write(sample(12, 1), encoding=ENCODING)
    assert ours(target) == ours(expected)


def test_the_old_dataset_stays_if_every_process_dies(client: Any, tmp_path: Path) -> None:
    target = Target(str(tmp_path / "d"))
    target.write(sample(5), encoding=ENCODING)
    old = ours(target)
    with client.as_current(), pytest.raises(Exception, match=r"died|KilledWorker|attempted"):
        target.write(dataset(tmp_path / "deaths", 100), "w", encoding=ENCODING)
    assert ours(target) == old
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    target.write(sample(12, 1), "w", encoding=ENCODING)
    with xr.open_dataset(target.url, engine="nczarr") as found:
        np.testing.assert_array_equal(found["a"], sample(12, 1)["a"])
