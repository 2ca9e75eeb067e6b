"""Rectilinear chunk grids of Zarr 3: chunks of several lengths along a dimension.

zarr-python reads them from 3.2 on, and only if its configuration says so.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.errors import UnsupportedError
from nczarr_xarray import FormatError, NCZarrWarning, validate
from tests.support.builders.copying import copy
from tests.support.builders.trees import read_tree
from tests.support.faults.promises import as_remote

FLAG = "array.rectilinear_chunks"
needs_zarr = pytest.mark.skipif(
    zarr.config.get(FLAG, None) is None, reason="zarr-python has no such grids before 3.2"
)
Store = dict[str, Any]

VALUES = np.arange(120, dtype="<i4").reshape(10, 12)
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
#: Lengths per dimension, as the metadata have them.
GRID = [[[3, 2], 4], [5, 7]]


def text(**members: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "attributes": {}, **members}).encode()


def array(path: str, grid: Any, shape: tuple[int, ...] = (10, 12)) -> Store:
    """The metadata of an array."""
    document = text(
        node_type="array",
        shape=shape,
        data_type="int32",
        chunk_grid={
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": grid},
        },
        chunk_key_encoding={"name": "default", "configuration": {"separator": "/"}},
        fill_value=0,
        codecs=[BYTES],
        dimension_names=["y", "x"][: len(shape)],
    )
    return {f"{path}/zarr.json": document}


def dataset() -> Any:
    """``v`` in a rectilinear grid, and ``w`` in a regular one."""
    store: Store = {"zarr.json": text(node_type="group"), **array("v", GRID)}
    for i, rows in enumerate([slice(0, 3), slice(3, 6), slice(6, 10)]):
        for j, columns in enumerate([slice(0, 5), slice(5, 12)]):
            store[f"v/c/{i}/{j}"] = VALUES[rows, columns].tobytes()
    grid = {"name": "regular", "configuration": {"chunk_shape": [10, 12]}}
    document = json.loads(store["v/zarr.json"]) | {"chunk_grid": grid}
    return {**store, "w/zarr.json": json.dumps(document).encode(), "w/c/0/0": VALUES.tobytes()}


@pytest.fixture
def enabled() -> Iterator[None]:
    with zarr.config.set({FLAG: True}):
        yield


def test_where_zarr_does_not_read_them_the_others_are_read() -> None:
    with pytest.warns(NCZarrWarning, match="'/v' cannot be read .* rectilinear grid"):
        ds = xr.open_dataset(dataset(), engine="nczarr")
    assert np.array_equal(ds.w, VALUES)
    with pytest.raises(UnsupportedError, match=r"v/zarr.json: .* zarr.config.set\({'array.rect"):
        ds.v.load()
    assert "unsupported" in {finding.code for finding in validate(dataset())}


@needs_zarr
def test_a_process_that_does_not_read_them_says_so(enabled: None) -> None:
    pickled = pickle.dumps(xr.open_dataset(dataset(), engine="nczarr"))
    assert np.array_equal(pickle.loads(pickled).v, VALUES)
    with zarr.config.set({FLAG: False}), pytest.raises(UnsupportedError, match="rectilinear grid"):
        pickle.loads(pickled).v.load()


KEYS: list[dict[str, Any]] = [
    {},
    {"y": slice(None, None, -3), "x": [5, 5, 1]},
    {"y": 3, "x": slice(4, 11, 2)},
    {"y": xr.DataArray([0, 9, 3], dims="p"), "x": xr.DataArray([11, 0, 2], dims="p")},
]


def sharded(path: Path) -> Path:
    """The dataset with ``s``, in shards of several lengths, in files."""
    group: Any = zarr.create_group(path)
    options: dict[str, Any] = {"shape": (10, 12), "dtype": "i4", "dimension_names": ["y", "x"]}
    group.create_array("v", chunks=[[3, 3, 4], [5, 7]], **options)[:] = VALUES
    group.create_array("s", chunks=(2, 4), shards=[[4, 6], [4, 8]], **options)[:] = VALUES
    group.create_array("w", chunks=(10, 12), **options)[:] = VALUES
    return path


@needs_zarr
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_equals_engine_zarr(
    tmp_path: Path, enabled: None, key: dict[str, Any], remote: bool
) -> None:
    path = sharded(tmp_path / "x.zarr")
    source: Any = as_remote(read_tree(path)) if remote else path
    ours = xr.open_dataset(source, engine="nczarr")
    theirs = xr.open_dataset(path, engine="zarr", consolidated=False)
    xr.testing.assert_identical(ours.isel(key).load(), theirs.isel(key).load())
    for name in theirs:
        expected = theirs[name].encoding["preferred_chunks"]
        assert ours[name].encoding["preferred_chunks"] == expected
    blocks = xr.open_dataset(source, engine="nczarr", chunks={}).v
    assert blocks.chunks == ((3, 3, 4), (5, 7))
    assert np.array_equal(blocks, VALUES)


@needs_zarr
@pytest.mark.parametrize("chunks", [None, {}])
def test_what_was_read_can_be_written(tmp_path: Path, enabled: None, chunks: Any) -> None:
    """Engine "zarr" refuses to: with regular chunks, the largest."""
    ds = xr.open_dataset(sharded(tmp_path / "x.zarr"), engine="nczarr", chunks=chunks)
    ds.nczarr.to_nczarr(tmp_path / "y")
    ds.to_netcdf(tmp_path / "y.nc", engine="netcdf4")
    for name in ("y", "y.nc"):
        written = xr.open_dataset(tmp_path / name, engine="nczarr")
        xr.testing.assert_equal(written, ds)
    assert xr.open_dataset(tmp_path / "y", engine="nczarr").v.encoding["chunksizes"] == (4, 7)


@needs_zarr
@pytest.mark.parametrize("options", [[], ["--memory", "1GB"]], ids=["", "memory"])
@pytest.mark.parametrize("kind", ["NCZarr", "Zarr3", "NETCDF4"])
def test_copies(tmp_path: Path, enabled: None, kind: str, options: list[str]) -> None:
    path, target = sharded(tmp_path / "x.zarr"), tmp_path / ("y.nc" if kind == "NETCDF4" else "y")
    assert not [finding for finding in validate(path, data=True) if finding.is_fault]
    copy(path, target, "--format", kind, "--verify", *options)
    engine: Any = "netcdf4" if kind == "NETCDF4" else "nczarr"
    with xr.open_dataset(target, engine=engine) as ds:
        assert all(np.array_equal(ds[name], VALUES) for name in "vsw")
        assert ds.v.encoding["chunksizes"] == (4, 7)


@needs_zarr
@pytest.mark.parametrize(
    ("grid", "shape", "reason"),
    [
        ([1], (10**12,), "a rectilinear grid of 1000000000000 chunks"),
        ([[[5, 10**12]]], (10,), "a rectilinear grid of 1000000000000 chunks"),
        ([[[5, 10**12], [5, -(10**12)]]], (10,), "a rectilinear grid of"),
        ([[3, 3]], (10,), "is not understood by zarr-python"),
        ([[3, "a"]], (10,), "is not understood by zarr-python"),
        ([0], (10,), "is not understood by zarr-python"),
        (5, (10,), "is not understood by zarr-python"),
        ([[10], [12], [1]], (10, 12), "is not understood by zarr-python"),
    ],
)
def test_grids_without_sense(enabled: None, grid: Any, shape: tuple[int, ...], reason: str) -> None:
    store: Any = {**dataset(), **array("u", grid, shape)}
    with pytest.warns(NCZarrWarning, match=reason):
        ds = xr.open_dataset(store, engine="nczarr")
    assert np.array_equal(ds.v, VALUES)
    with pytest.raises(FormatError, match=reason):
        ds.u.load()
