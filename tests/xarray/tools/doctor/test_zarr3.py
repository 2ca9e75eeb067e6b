"""What doctor says of Zarr 3, whose reads are those of zarr-python."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import nczarr_xarray
from nczarr_xarray.tools import predict

SHAPE = (96, 40, 40)


def write(path: Path, **options: Any) -> Path:
    group = zarr.open_group(path, mode="w")
    array = group.create_array(
        "v", shape=SHAPE, dtype="f4", dimension_names=("time", "y", "x"), **options
    )
    array[:] = np.random.default_rng(0).integers(0, 1000, SHAPE)
    return path


@pytest.mark.parametrize("location", ["start", "end"])
def test_shards(tmp_path: Path, location: Any) -> None:
    """A read of a part takes the index of each shard, and then its chunks."""
    shards: Any = {"shape": (48, 40, 40), "index_location": location}
    path = write(tmp_path / "x.zarr", chunks=(12, 20, 20), shards=shards)
    report = nczarr_xarray.doctor(path, latency=1, bandwidth=1e15)
    texts = {finding.code: finding.text for finding in report.findings}
    assert "has 2 shards of 16 chunks, 307 kB before codecs" in texts["shards"]
    costs = report.predictions[0].costs
    found = {name: (cost.rounds, cost.requests) for name, cost in costs.items() if cost}
    # a map of 4 chunks of one shard; a series of 4 chunks of each; a box of 4 chunks of each:
    # older releases of zarr-python ask for one after another, newer ones for neighbours together
    one_by_one = {"map": (5, 5), "series": (5, 10), "box": (5, 10), "everything": (1, 2)}
    together = {"map": (2, 2), "series": (2, 4), "box": (2, 4), "everything": (1, 2)}
    assert found in (one_by_one, together)
    stored = sum(shard.stat().st_size for shard in path.glob("v/c/*/*/*"))
    everything, series = costs["everything"], costs["series"]
    assert everything is not None
    assert series is not None
    assert everything.nbytes == stored
    if found == one_by_one:
        assert series.nbytes == pytest.approx(stored / 4, rel=0.05)
    else:  # with what lies between them
        assert stored / 4 < series.nbytes < stored


def test_chunks(tmp_path: Path) -> None:
    """zarr-python has ten requests under way at a time, unless it is told otherwise."""
    path = write(tmp_path / "x.zarr", chunks=(4, 40, 40), compressors=None)
    with zarr.config.set({"async.concurrency": 6}):
        report = nczarr_xarray.doctor(path, latency=1, bandwidth=1e15)
    costs = report.predictions[0].costs
    found = {name: (cost.rounds, cost.requests) for name, cost in costs.items() if cost}
    assert found == {"map": (1, 1), "series": (4, 24), "box": (1, 6), "everything": (4, 24)}
    assert [one.layout for one in report.predictions] == ["as it is", "balanced"]
    balanced = report.predictions[1].costs["everything"]
    assert balanced is not None
    assert balanced.nbytes == pytest.approx(np.prod(SHAPE) * 4, rel=0.01)


def test_what_is_too_much_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.zarr", chunks=(4, 40, 40))
    assert "not predicted" not in str(nczarr_xarray.doctor(path))
    monkeypatch.setattr(predict, "MOST_CHUNKS", 10)
    report = nczarr_xarray.doctor(path)
    costs = report.predictions[0].costs
    assert [name for name, cost in costs.items() if cost is None] == ["series", "everything"]
    assert "?: not predicted, for it has too many pieces" in str(report)


def test_a_shard_that_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """zarr-python leaves its other tasks alone, which nobody would end."""
    chunks, shards = (4, 10, 10), (24, 20, 20)
    path = write(tmp_path / "x.zarr", chunks=chunks, shards=shards, compressors=None)
    shard = path / "v/c/2/0/0"
    shard.write_bytes(shard.read_bytes()[:100])
    nczarr_xarray.doctor(path)
    gc.collect()  # which is when asyncio tells of tasks that are left
    assert not caplog.messages
