"""Chunks that netCDF-C has stored longer than they should be: their beginning is read."""

from __future__ import annotations

import contextlib
import re
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError, NCZarrWarning, to_nczarr
from nczarr_xarray.tools.validate import validate
from tests.support.builders.copying import copy
from tests.support.builders.longer import chunking_ints, write
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

ZLIB: dict[str, Any] = {"compression": "zlib", "complevel": 1}
SAYS = "v: chunks have .* bytes, of which the first .* nc_def_var_chunking_ints"


def values(shape: Sequence[int], dtype: str) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 120, shape).astype(dtype)


def stored(path: Path) -> set[int]:
    return {one.stat().st_size for one in (path / "v").iterdir() if one.name[0] != "."}


def theirs(url: str) -> np.ndarray:
    with netCDF4.Dataset(url) as dataset:
        dataset.set_auto_maskandscale(False)
        return np.asarray(dataset["v"][:])


CASES: dict[str, Any] = {
    "plain": ((6, 10), (3, 4), "i4", {}),
    "edges": ((7, 10), (3, 4), "f8", {}),
    "big-endian": ((6, 10), (3, 4), ">f4", {"endian": "big"}),
    "bytes": ((6, 10), (3, 4), "i1", ZLIB),
    "deflated": ((6, 10), (3, 4), "i4", {**ZLIB, "shuffle": False}),
    "shuffled": ((6, 10), (3, 4), "f8", ZLIB),
    "checksum": ((6, 10), (3, 4), "f4", {**ZLIB, "fletcher32": True}),
    "zstd": ((6, 10), (3, 4), "f8", {"compression": "zstd"}),
    "characters": ((6, 10), (3, 4), "S1", {}),
    "grows": ((5, 6, 10), (1, 3, 4), "i2", {"grows": True}),
    "series": ((12,), (5,), "f8", {"grows": True}),
    "one chunk": ((30,), (40,), "f8", {"grows": True}),
    "large": ((600, 700), (300, 350), "f4", {}),
    "large and shuffled": ((600, 700), (300, 350), "f4", ZLIB),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", ["local", "remote"])
def test_values(tmp_path: Path, case: str, place: str) -> None:
    shape, chunks, dtype, options = CASES[case]
    data = values(shape, dtype)
    url = write(tmp_path / "x", data, chunks, **options)
    np.testing.assert_array_equal(theirs(url), data)
    if not options:
        assert stored(tmp_path / "x") == {data.nbytes}
    with contextlib.ExitStack() as stack:
        target = url
        if place == "remote":
            files = {f"/x/{key}": one for key, one in read_tree(tmp_path / "x").items()}
            target = f"{stack.enter_context(Server(files)).url}/x#mode=nczarr"
        raw: dict[str, Any] = {"decode_cf": False, "engine": "nczarr"}
        for key in (..., 0, -1, slice(1, None, 3), [0, -1]):
            # (part of a chunk without codecs may be all that is read: then nothing is noticed)
            with (
                xr.open_dataset(target, **raw) as ds,
                warnings.catch_warnings(record=True) as found,
            ):
                warnings.simplefilter("always")
                np.testing.assert_array_equal(ds["v"][key], data[key])
            assert found or (key is not ... and case == "large")
            assert all(re.match(SAYS, str(one.message)) for one in found)
        points = {"d0": xr.DataArray([1, 0, -1], dims="p")}
        with xr.open_dataset(target, **raw) as ds, pytest.warns(NCZarrWarning, match=SAYS):
            np.testing.assert_array_equal(ds["v"].chunk({"d0": -(-shape[0] // 2)}), data)
        with xr.open_dataset(target, **raw) as ds, warnings.catch_warnings():
            warnings.simplefilter("ignore", NCZarrWarning)
            np.testing.assert_array_equal(ds["v"].isel(points), data[[1, 0, -1]])


def test_the_warning_comes_once(tmp_path: Path) -> None:
    url = write(tmp_path / "x", values((6, 10), "i4"), (3, 4), **ZLIB)
    with xr.open_dataset(url, engine="nczarr") as ds:
        with pytest.warns(NCZarrWarning, match=SAYS):
            ds["v"][0].load()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ds["v"][-1].load()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["y", "y.zip", "y.nc", "y#mode=zarr"])
@pytest.mark.filterwarnings("ignore::nczarr_xarray.NCZarrWarning")
def test_copies_are_without_the_rest(tmp_path: Path, case: str, target: str) -> None:
    shape, chunks, dtype, options = CASES[case]
    data = values(shape, dtype)
    url = write(tmp_path / "x", data, chunks, **options)
    place = f"file://{tmp_path}/{target}" if "#" in target else str(tmp_path / target)
    copy(url, place, "--verify")
    with xr.open_dataset(place, engine="nczarr", decode_cf=False) as ds:
        np.testing.assert_array_equal(ds["v"], data)
    if target == "y" or "#" in target:
        if not options:
            assert stored(tmp_path / "y") == {int(np.prod(chunks)) * data.itemsize}
        if case not in ("checksum", "zstd", "characters"):
            found = xr.open_zarr(tmp_path / "y", consolidated=False, decode_cf=False)
            np.testing.assert_array_equal(found["v"], data)


def test_validate_names_the_cause(tmp_path: Path) -> None:
    url = write(tmp_path / "x", values((6, 10), "i4"), (3, 4), **ZLIB)
    with pytest.warns(NCZarrWarning, match=SAYS):
        (found,) = (f for f in validate(url, data=True) if f.severity in ("error", "warning"))
    assert (found.code, found.path) == ("chunk-longer", "v")
    assert "nc_def_var_chunking_ints" in found.text
    right = f"file://{tmp_path}/y#mode=nczarr,file"
    copy(url, right)
    assert [f for f in validate(right, data=True) if f.severity in ("error", "warning")] == []


def test_new_values(tmp_path: Path) -> None:
    """Writing into some chunks makes these right, and keeps what is beside."""
    data = values((6, 10), "i4")
    url = write(tmp_path / "x", data, (3, 4), **ZLIB)
    part = xr.Dataset({"v": (("d0", "d1"), np.full((2, 2), 7, "i4"))})
    with pytest.warns(NCZarrWarning, match=SAYS):
        to_nczarr(part, url, region={"d0": slice(2, 4), "d1": slice(3, 5)})
    data[2:4, 3:5] = 7
    np.testing.assert_array_equal(theirs(url), data)
    with xr.open_dataset(url, engine="nczarr") as ds, pytest.warns(NCZarrWarning, match=SAYS):
        np.testing.assert_array_equal(ds["v"], data)


@pytest.mark.parametrize("size", [4, 47, 49, 96, 236, 241, 244, 480])
@pytest.mark.parametrize("compressed", [True, False])
def test_other_lengths_are_errors(tmp_path: Path, size: int, compressed: bool) -> None:
    options = ZLIB if compressed else {}
    url = write(tmp_path / "x", values((6, 10), "i4"), (3, 4), **options)
    chunk = bytes(size)
    (tmp_path / "x" / "v" / "0.0").write_bytes(zlib.compress(chunk) if compressed else chunk)
    with (
        xr.open_dataset(url, engine="nczarr", decode_cf=False) as ds,
        pytest.raises(FormatError, match=r"v/0\.0"),
    ):
        ds["v"][:2, :2].load()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "chunks", "grows"),
    [
        ((2, 3, 5, 1_000_001), (1, 1, 5, 7), False),
        ((2, 3, 1500, 1501), (1, 1, 100, 100), True),
    ],
)
def test_more_than_the_default_chunk(
    tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], grows: bool
) -> None:
    """Of a large variable the chunks are as long as those that netCDF-C chooses by itself."""
    url = f"file://{tmp_path}/x#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as dataset:
        for axis, length in enumerate(shape):
            dataset.createDimension(f"d{axis}", None if grows and not axis else length)
        names = [f"d{axis}" for axis in range(len(shape))]
        variable = dataset.createVariable("v", "f8", names)
        chunking_ints(variable, chunks)
        variable[(slice(0, 1),) * len(shape)] = 5.5
    with xr.open_dataset(url, engine="nczarr") as ds, pytest.warns(NCZarrWarning, match=SAYS):
        first = ds["v"][tuple(map(slice, chunks))].load()
    assert first[(0,) * len(shape)] == 5.5
