"""Blocks that a worker writes after their export was given up, into what came there since."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import StoreError
from nczarr_xarray import to_cfa, to_nczarr
from nczarr_xarray.export import write_task
from nczarr_xarray.export.cfa import task as cfa_task
from nczarr_xarray.export.chunk_writer import Gated


def dataset(value: int) -> xr.Dataset:
    return xr.Dataset({"v": ("x", np.full(4, value, "i4"))}).chunk(x=2)


def fails(block: np.ndarray) -> np.ndarray:
    raise RuntimeError("of the user")


def late_writer(module: Any, monkeypatch: pytest.MonkeyPatch, export: Any, target: Any) -> Any:
    """Give up an export; return a writer of it, as another process has it."""
    sent: list[bytes] = []
    real = module.write_blocks

    def noted(path: str, data: Any, writer: Gated, **options: Any) -> Any:
        sent.append(pickle.dumps(writer))
        return real(path, data, writer, **options)

    given = dataset(1)
    given["v"] = given["v"].copy(data=given["v"].data.map_blocks(fails, dtype="i4"))
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_blocks", noted)
        with pytest.raises(RuntimeError, match="of the user"):
            export(given, target)
    writer = pickle.loads(sent[0])
    monkeypatch.setattr(writer, "home", 0)
    return writer


def test_into_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "memory://late/d"
    writer = late_writer(write_task, monkeypatch, to_nczarr, target)
    for mode in ("w-", "w"):
        to_nczarr(dataset(2), target, mode)
        with pytest.raises(StoreError, match="this export still lasts"):
            writer.write(np.full(2, 1, "i4"), (0,))
        with xr.open_dataset(target, engine="nczarr") as found:
            np.testing.assert_array_equal(found["v"], [2, 2, 2, 2])


def test_into_an_aggregation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(given: xr.Dataset, target: Path) -> None:
        to_cfa(given, target, subarray_shape={"x": 2})

    target = tmp_path / "m.nca"
    writer = late_writer(cfa_task, monkeypatch, export, target)
    export(dataset(2), target)
    with pytest.raises(StoreError, match="this export still lasts"):
        writer.write(np.full(2, 1, "i4"), (0,))
    with xr.open_dataset(target, engine="nczarr") as found:
        np.testing.assert_array_equal(found["v"], [2, 2, 2, 2])
