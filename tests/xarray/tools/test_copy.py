from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.errors import DatasetExistsError, LossWarning, UsageError

TARGETS = {"c.nczarr": "nczarr", "c.nc": "netcdf4", "c.nca": "nczarr", "c.zarr#mode=zarr": "zarr"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    data = xr.Dataset(
        {"t": (("time", "x"), np.arange(12, dtype="f4").reshape(4, 3)), "other": ("x", [1, 2, 3])},
        {"time": np.arange(4)},
    )
    data.to_netcdf(tmp_path / "s.nc", unlimited_dims=["time"])
    return tmp_path / "s.nc"


@pytest.mark.parametrize("target", TARGETS)
def test_a_part_is_copied_and_compared(source: Path, tmp_path: Path, target: str) -> None:
    path = f"file://{tmp_path}/{target}" if "#" in target else str(tmp_path / target)
    comparison = nczarr_xarray.copy(
        source, path, variables=["t"], slices={"time": slice(1, 3)}, verify=True
    )
    assert comparison is not None
    assert comparison.equal
    engine: Any = TARGETS[target]
    options: Any = {"consolidated": False} if engine == "zarr" else {}
    opened = str(tmp_path / target.partition("#")[0])
    with xr.open_dataset(opened, engine=engine, **options) as copy:
        assert copy.t.values.tolist() == [[3, 4, 5], [6, 7, 8]]
        assert "other" not in copy


def test_layout(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "c.nczarr"
    found = nczarr_xarray.copy(
        source, target, chunks={"time": 2}, compress="zstd:3", quantize={"t": ("BitRound", 8)}
    )
    assert found is None
    with xr.open_dataset(target, engine="nczarr") as copy:
        assert copy.t.encoding["chunksizes"] == (2, 3)
        assert copy.t.encoding["zstd"] is True
        assert copy.t.attrs["_QuantizeBitRoundNumberOfSignificantBits"] == 8


def test_the_plan_is_told(source: Path, tmp_path: Path) -> None:
    told: list[str] = []
    nczarr_xarray.copy(source, tmp_path / "c.nczarr", memory="1GB", tell=told.append)
    assert told


def test_what_was_announced_is_no_difference(tmp_path: Path) -> None:
    source = xr.Dataset({"v": ("x", [1, 2])}, attrs={"a": {"b": 1}})
    source.to_zarr(tmp_path / "s.zarr", zarr_format=2, consolidated=False)
    with pytest.warns(LossWarning):
        found = nczarr_xarray.copy(tmp_path / "s.zarr", tmp_path / "c.nc", verify=True)
    assert found is not None
    assert found.equal


def test_what_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "c.nczarr"
    nczarr_xarray.copy(source, target)
    with pytest.raises(DatasetExistsError):
        nczarr_xarray.copy(source, target)
    nczarr_xarray.copy(source, target, overwrite=True)
    with pytest.raises(UsageError, match="not for netCDF-4"):
        nczarr_xarray.copy(source, tmp_path / "c.nc", resume=True)
    with pytest.raises(UsageError, match="is none of"):
        nczarr_xarray.copy(source, tmp_path / "d.nczarr", compress="rar")
    with pytest.raises(TypeError, match="nonsense"):
        nczarr_xarray.copy(source, tmp_path / "d.nczarr", nonsense=1)
