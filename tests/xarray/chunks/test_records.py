"""Variables that take turns in the records of a classic file: one read for all, never stale."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.local_files import read_at
from nczarr_fsspec.ranges import local
from nczarr_xarray.chunks import cache

VARIABLES, RECORDS = 40, 500


def write(path: Path, first: int = 0) -> Path:
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("record", None)
        file.createDimension("letter", 5)
        for number in range(VARIABLES):
            name, type_ = f"v{number}", ("i4", "f8", "i2", "S1")[number % 4]
            dimensions = ("record", "letter")[: 1 + number % 2]
            shape = (RECORDS, 5)[: 1 + number % 2]
            values = first + number + np.arange(np.prod(shape)).reshape(shape) % 90
            file.createVariable(name, type_, dimensions)[:] = (
                (values % 90 + 33).astype("u1").view("S1") if type_ == "S1" else values
            )
    return path


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []

    def counted(number: int, start: int, stop: int) -> bytes:
        sizes.append(stop - start)
        return read_at(number, start, stop)

    monkeypatch.setattr(local, "read_at", counted)
    return sizes


def test_records_are_read_once_for_all_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.nc")
    with xr.open_dataset(path, engine="netcdf4") as dataset:
        expected = dataset.load()
    sizes = count_reads(monkeypatch)
    with xr.open_dataset(path, engine="nczarr") as dataset:
        assert expected.identical(dataset.load())
    assert sum(sizes) < 2 * path.stat().st_size


def test_threads_remember_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc")
    found: list[xr.Dataset] = []
    cache.last_stretch = None
    with xr.open_dataset(path, engine="nczarr") as dataset:
        thread = threading.Thread(target=lambda: found.append(dataset.load()))
        thread.start()
        thread.join()
    with xr.open_dataset(path, engine="netcdf4") as dataset:
        assert dataset.load().identical(found[0])
    assert cache.last_stretch is None


def test_a_file_that_changes_between_two_variables_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc")
    with xr.open_dataset(path, engine="nczarr") as dataset:
        assert dataset["v0"].values[0] == 0
        size = path.stat().st_size
        with path.open("r+b") as file:  # in place, as netCDF-C does
            file.seek(-8, os.SEEK_END)
            file.write(b"\xff" * 8)
        os.utime(path, ns=(1, 1))
        assert path.stat().st_size == size
        with pytest.raises(StoreError, match="has changed since it was opened"):
            dataset["v4"].load()


def test_another_file_of_the_same_name_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc")
    with xr.open_dataset(path, engine="nczarr") as dataset:
        assert dataset["v0"].values[0] == 0
    write(path, first=7)
    with xr.open_dataset(path, engine="nczarr") as dataset:
        assert dataset["v0"].values[0] == 7


def test_what_is_remembered_goes_with_the_dataset(tmp_path: Path) -> None:
    dataset = xr.open_dataset(write(tmp_path / "a.nc"), engine="nczarr")
    dataset["v0"].load()
    assert cache.last_stretch is not None
    dataset.close()
    del dataset
    gc.collect()
    assert cache.last_stretch is None
