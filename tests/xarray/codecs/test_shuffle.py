"""Unshuffling, by blosc and by numpy, against the definition and HDF5's neighbour numcodecs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import nczarr_xarray
from nczarr_xarray.codecs import decompress, shuffle
from nczarr_xarray.codecs.shuffle import unshuffle, unshuffle_into


def shuffled(plain: bytes, size: int) -> bytes:
    """The first bytes of all elements, their second ones, ...; then what is left over."""
    whole = len(plain) // size * size
    return b"".join(plain[at:whole:size] for at in range(size)) + plain[whole:]


@pytest.fixture(params=["libblosc2", "numcodecs", "numpy"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "libblosc2":
        if decompress.library() is None:
            pytest.skip("blosc2 is not installed: pip install 'nczarr-xarray[fast]'")
    elif request.param == "numcodecs":
        monkeypatch.setattr(shuffle, "library", lambda: None)
    way = None if request.param == "numpy" else shuffle.blosc_unshuffler.__wrapped__()
    if way is None and request.param == "numcodecs":
        pytest.skip("blosc has code for unshuffling on x86-64 only")
    monkeypatch.setattr(shuffle, "blosc_unshuffler", lambda: way)


@given(
    size=st.one_of(st.integers(1, 17), st.integers(18, 300)),
    count=st.integers(0, 400),
    rest=st.integers(0, 16),
    chunks=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_any_size(size: int, count: int, rest: int, chunks: int, seed: int) -> None:
    length = size * count + rest % size
    plain = np.random.default_rng(seed).integers(0, 256, chunks * length, dtype=np.uint8).tobytes()
    parts = [plain[at * length : (at + 1) * length] for at in range(chunks)]
    found = unshuffle([shuffled(part, size) for part in parts], size)
    assert found.tobytes() == plain


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c16"])
def test_what_numcodecs_shuffled(dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(3, 100_001)).astype(dtype)
    codec = numcodecs.Shuffle(values.itemsize)
    for kind in (bytes, bytearray, np.array):
        chunks = [kind(codec.encode(row)) for row in values]
        assert np.array_equal(unshuffle(chunks, values.itemsize).view(dtype), values.ravel())
    plain = np.empty(values.nbytes, np.uint8)
    unshuffle_into([codec.encode(row) for row in values], values.itemsize, plain)
    assert np.array_equal(plain.view(dtype), values.ravel())


@pytest.mark.parametrize("tile", [1, 7, 64, 1000])
@pytest.mark.parametrize(("size", "count", "rest"), [(4, 1000, 3), (3, 700, 0), (8, 16, 5)])
def test_any_tile(
    monkeypatch: pytest.MonkeyPatch, tile: int, size: int, count: int, rest: int
) -> None:
    monkeypatch.setattr(shuffle, "TILE", tile)
    for chunks in (1, 3):
        length = size * count + rest
        plain = np.random.default_rng(0).integers(0, 256, chunks * length, np.uint8).tobytes()
        parts = [shuffled(plain[at : at + length], size) for at in range(0, len(plain), length)]
        assert unshuffle(parts, size).tobytes() == plain


def test_a_chunk_that_is_longer_than_a_library_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "MOST", 4000)
    monkeypatch.setattr(shuffle, "TILE", 1000)
    plain = np.random.default_rng(0).bytes(4002)
    assert unshuffle([shuffled(plain, 4)], 4).tobytes() == plain


def test_chunks_of_unequal_lengths_are_an_error() -> None:
    """Nothing behind the shorter one is read."""
    parts = [shuffled(bytes(range(n)), 4) for n in (80, 40)]
    with pytest.raises(ValueError, match="differ in length"):
        unshuffle_into(parts, 4, np.empty(160, np.uint8))


def test_after_a_filter_that_returns_elements(tmp_path: Path) -> None:
    """FixedScaleOffset gives float32: a length in elements is not one in bytes."""
    values = np.arange(120, dtype="f4").reshape(10, 12)
    scaled = numcodecs.FixedScaleOffset(0, 1, "<f4", "<f4")
    filters = [numcodecs.AsType("<i4", "<f4"), numcodecs.Shuffle(4), scaled]
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    array = group.create_array("v", shape=(10, 12), chunks=(4, 6), dtype="f4", filters=filters)
    array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    array[...] = values
    with xr.open_dataset(tmp_path / "a.zarr", engine="nczarr") as ds:
        assert np.array_equal(ds.v.values, array[...])


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
def test_strings_of_one_byte_are_shuffled_by_pointers(tmp_path: Path, mode: str) -> None:
    """netCDF-C does so, and states 0 bytes; characters it does not shuffle."""
    texts = list("abcdefghijklmnop")
    url = f"file://{tmp_path}/a#mode={mode},file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("x", 16)
        how: dict[str, Any] = {"zlib": True, "shuffle": True, "chunksizes": (16,)}
        text = file.createVariable("t", str, ("x",), **how)
        text.setncattr("_nczarr_maxstrlen", np.int32(1))
        text[:] = np.array(texts, object)
        letters = file.createVariable("c", "S1", ("x",), **how)
        letters[:] = np.array(texts, "S1")
    with xr.open_dataset(url, engine="nczarr") as ds:
        assert ds["t"].values.tolist() == texts
        assert ds["c"].values.astype(str).tolist() == texts
        ds.nczarr.to_nczarr(tmp_path / "b")
    nczarr_xarray.copy(url, tmp_path / "c", format="NCZarr")
    nczarr_xarray.upgrade(url)
    for back in ("a", "b", "c"):
        with xr.open_dataset(f"file://{tmp_path}/{back}#mode=nczarr,file", engine="netcdf4") as ds:
            assert ds["t"].values.tolist() == texts, back


def test_netcdf_c_reads_short_texts_that_are_shuffled(tmp_path: Path) -> None:
    texts = np.array(list("abcdefghijklmnop"), object)
    encoding = {"t": {"zlib": True, "chunksizes": (16,)}}
    nczarr_xarray.to_nczarr(xr.Dataset({"t": ("x", texts)}), tmp_path / "a", encoding=encoding)
    with xr.open_dataset(f"file://{tmp_path}/a#mode=nczarr,file", engine="netcdf4") as ds:
        assert ds["t"].values.tolist() == texts.tolist()
