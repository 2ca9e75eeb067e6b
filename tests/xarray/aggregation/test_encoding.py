"""What users see of the storage of an aggregation: that of its fragments."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import aggregate, to_cfa, to_nczarr

LENGTHS = (4, 4, 2)


def files(folder: Path, **encoding: Any) -> list[Path]:
    """Write files that are well compressed, with four, four and two times."""
    found, time = [], 0
    for number, length in enumerate(LENGTHS):
        values = np.arange(length * 3000).reshape(length, 3000) // 100 + time
        data = {"v": (("time", "x"), values.astype("f4"))}
        found.append(folder / f"{number}.nc")
        own = xr.Dataset(data, {"time": np.arange(time, time + length)})
        own.to_netcdf(found[-1], encoding={"v": encoding}, engine="netcdf4")
        time += length
    return found


def filters(path: Path) -> tuple[Any, ...]:
    with h5py.File(path) as file:
        variable = file["v"]
        return variable.chunks, variable.compression, variable.compression_opts, variable.shuffle


@pytest.fixture
def master(tmp_path: Path) -> Path:
    storage = {"zlib": True, "complevel": 5, "shuffle": True, "chunksizes": (2, 1000)}
    aggregate(files(tmp_path, **storage), tmp_path / "m.nca")
    return tmp_path / "m.nca"


def test_what_is_written_again_is_stored_as_the_fragments_are(tmp_path: Path, master: Path) -> None:
    with xr.open_dataset(master, engine="nczarr") as found:
        wanted = ((2, 1000), "gzip", 5, True)
        for engine in ("netcdf4", "h5netcdf"):
            found.to_netcdf(tmp_path / f"{engine}.nc", engine=engine)
            assert filters(tmp_path / f"{engine}.nc") == wanted
        to_nczarr(found, tmp_path / "n.nczarr")
        document = json.loads((tmp_path / "n.nczarr" / "v" / ".zarray").read_text())
        assert document["compressor"] == {"id": "zlib", "level": 5}
        assert document["chunks"] == [2, 1000]
        to_cfa(found, tmp_path / "again.nca", subarray_shape={"time": 5})
        assert filters(tmp_path / "again" / "again.v.0.0.nc") == wanted
        size = sum(path.stat().st_size for path in tmp_path.glob("[0-9].nc"))
        assert (tmp_path / "netcdf4.nc").stat().st_size < size


@pytest.mark.parametrize("kind", ["netCDF3", "NCZarr"])
def test_fragments_of_other_kinds(tmp_path: Path, kind: Any) -> None:
    data = xr.Dataset({"v": (("t", "x"), np.zeros((4, 30)))})
    encoding = {"v": {"zlib": True, "chunksizes": (1, 10)}} if kind == "NCZarr" else None
    to_cfa(
        data,
        tmp_path / "m.nca",
        fragment_format=kind,
        subarray_shape={"t": 2},
        encoding=encoding,
    )
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        shown = found["v"].encoding
        assert (shown["zlib"], shown.get("chunksizes")) == (
            (True, (1, 10)) if kind == "NCZarr" else (False, None)
        )
        found.to_netcdf(tmp_path / "again.nc")
    with h5py.File(tmp_path / "again.nc") as file:
        assert file["v"].chunks == ((1, 10) if kind == "NCZarr" else None)


def test_a_classic_master_of_netcdf4_files(tmp_path: Path) -> None:
    storage = {"zlib": True, "complevel": 5, "chunksizes": (2, 1000)}
    own = files(tmp_path, **storage)
    aggregate(own, tmp_path / "m.nca", cfa_version="0.4", format="CFA3")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        shown = found["v"].encoding
        assert (shown["zlib"], shown["chunksizes"]) == (True, (2, 1000))
        assert shown["preferred_chunks"] == {"time": 4, "x": 3000}


def test_fragments_that_are_not_there(tmp_path: Path, master: Path) -> None:
    (tmp_path / "0.nc").unlink()
    with xr.open_dataset(master, engine="nczarr") as found:
        assert not found["v"].encoding["zlib"]
        assert found["v"][4:6, 0].values.tolist() == [4, 34]


@pytest.mark.parametrize(
    ("chunks", "expected", "warned"),
    [
        ({}, (10,), False),  # small fragments are read together
        ({"time": 4}, (4, 4, 2), False),
        ({"time": 8}, (8, 2), False),
        ({"time": (4, 6)}, (4, 6), False),
        ({"time": -1}, (10,), False),
        ({"time": 3}, (3, 3, 3, 1), True),
        ({"time": 6}, (6, 4), True),
    ],
)
def test_chunks_that_end_at_borders_separate_no_stored_ones(
    master: Path, chunks: Any, expected: tuple[int, ...], warned: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with xr.open_dataset(master, engine="nczarr", chunks=chunks) as found:
            assert found["v"].chunksizes["time"] == expected
    assert any("separate the stored chunks" in str(one.message) for one in caught) is warned


def test_preferred_chunks_are_copied_and_pickled(master: Path) -> None:
    with xr.open_dataset(master, engine="nczarr") as found:
        own = found["v"].encoding["preferred_chunks"]
        assert own == {"time": 4, "x": 3000}
        for other in (copy.copy(own), copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
            assert other == own
            assert other.get("time", 99) == 10
            assert other.get("time") == 4
