"""Blocks that lie in one chunk, or in plain elements, are read without a plan, as with one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_xarray.chunks.plan import plan_outer
from nczarr_xarray.dataset import variable
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.dataset.variable import VariableReader

SHAPE, CHUNKS = (40, 9, 11), (4, 5, 11)
VALUES = np.random.default_rng(0).integers(-99, 99, SHAPE).astype("f4")
KINDS: dict[str, dict[str, Any]] = {
    "deflated": {"zlib": True, "chunksizes": CHUNKS},
    "not shuffled": {"zlib": True, "shuffle": False, "chunksizes": CHUNKS},
    "plain": {"chunksizes": CHUNKS},
    "plain and large": {"chunksizes": (40, 9, 11)},
    "big-endian": {"chunksizes": CHUNKS, "datatype": ">f4", "endian": "big"},
    "contiguous": {"contiguous": True},
    "contiguous, big-endian": {"contiguous": True, "datatype": ">f4", "endian": "big"},
    "classic": {},
    "classic records": {},
    "zarr": {"zlib": True, "chunksizes": CHUNKS},
    "plain zarr": {"chunksizes": CHUNKS},
}


def written(folder: Path, kind: str) -> str:
    path, mode = str(folder / "x.nc"), "NETCDF4"
    if "zarr" in kind:
        path = f"file://{folder / 'x'}#mode=nczarr,file"
    elif "classic" in kind:
        mode = "NETCDF3_64BIT_OFFSET"
    grows = "records" in kind
    with netCDF4.Dataset(path, "w", format=mode) as nc:
        for name, size in zip("tyx", SHAPE, strict=True):
            nc.createDimension(name, None if grows and name == "t" else size)
        nc.createVariable("other", "i2", ("t",))[:] = np.arange(SHAPE[0])
        options = {"datatype": "f4", **KINDS[kind]}
        nc.createVariable("v", dimensions=tuple("tyx"), **options)[:] = VALUES
    return path.partition("#")[0]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with open_hierarchy(written(tmp_path, request.param)) as found:
        yield found


def reader_of(opened: Opened) -> VariableReader:
    return opened.reader(opened.hierarchy.root.variables["v"])


def keys() -> list[Any]:
    rng = np.random.default_rng(1)
    found: list[Any] = [(i,) for i in range(SHAPE[0])]
    for _ in range(150):
        key: list[Any] = []
        for size in SHAPE:
            low = int(rng.integers(size))
            length = int(rng.integers(1, size - low + 1))
            key.append(low if rng.integers(2) else slice(low, low + length))
        found.append(tuple(key))
    found += [(slice(8, 12), slice(0, 5)), (slice(-3, None),), (slice(5, 5),), (slice(0, 9, 2),)]
    return [(*key, *[slice(None)] * (3 - len(key))) for key in found]


def test_values(opened: Opened) -> None:
    reader = reader_of(opened)
    for key in keys():
        found = reader.read(key)
        np.testing.assert_array_equal(found, VALUES[key], err_msg=str(key))
        assert (found.dtype, found.shape) == (np.dtype("f4"), VALUES[key].shape)
        assert found.flags.writeable
        assert found.flags.c_contiguous


def test_without_a_plan(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that lie in one chunk each, but none that lies in two."""
    chunked = getattr(opened.hierarchy.root.variables["v"].array, "chunk_shape", SHAPE) == CHUNKS
    reader, plans, plan = reader_of(opened), [], plan_outer

    def counted(*given: Any) -> Any:
        plans.append(given)
        return plan(*given)

    monkeypatch.setattr(variable, "plan_outer", counted)
    for i in range(SHAPE[0]):
        reader.read((i, slice(0, 5), slice(None)))
    assert not plans
    reader.read((0, slice(None), slice(None)))
    assert bool(plans) == chunked


def test_what_is_not_there_is_refused(opened: Opened) -> None:
    with pytest.raises(IndexError):
        reader_of(opened).read((SHAPE[0], 0, 0))


def test_damage_of_a_chunk_that_is_not_wanted_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunks that come next are located with the one that is wanted."""
    with open_hierarchy(written(tmp_path, "deflated")) as opened:
        array = opened.hierarchy.root.variables["v"].array
        assert array is not None
        locate: Callable[..., Any] = type(array).locate

        async def damaged(self: Any, ids: np.ndarray) -> Any:
            if 7 in ids:
                raise FormatError("v", "damaged")
            return await locate(self, ids)

        monkeypatch.setattr(type(array), "locate", damaged)
        reader = reader_of(opened)
        for i in (0, 1, 2, 3, 4, 5, 6, 8, 9):  # chunk 7 is at (12, 5)
            low = i // 2 * 4
            key = (slice(low, low + 4), slice(5 * (i % 2), 9 if i % 2 else 5), slice(None))
            np.testing.assert_array_equal(reader.read(key), VALUES[key])
        with pytest.raises(FormatError, match="damaged"):
            reader.read((12, 5, 0))


@pytest.mark.parametrize("kind", ["deflated", "plain", "contiguous", "classic"])
def test_a_file_that_changes_in_a_loop_is_noticed(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    with open_hierarchy(path) as opened:
        reader = reader_of(opened)
        reader.read((0, 0, slice(None)))
        reader.read((4, 0, slice(None)))
        with open(path, "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(b"\0")
        with pytest.raises(StoreError, match="changed"):
            reader.read((8, 0, slice(None)))
