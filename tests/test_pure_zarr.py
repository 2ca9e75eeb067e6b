"""Zarr v2 as zarr-python and xarray write it, against ``engine="zarr"``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

DTYPES = [
    "|b1", "|i1", "|u1", "<i2", ">i4", "<u8", "<f2", "<f4", ">f8", "<c8", "<c16",
    "<M8[ns]", "<M8[s]", "<m8[ms]", "<U4", "|S4", "|S1",
]  # fmt: skip


def sample(dtype: str, shape: tuple[int, ...] = (5, 7)) -> np.ndarray[Any, Any]:
    numbers = np.arange(np.prod(shape)).reshape(shape) % 100
    return (numbers % 2).astype(dtype) if dtype == "|b1" else numbers.astype(dtype)


def write(path: Path, data: np.ndarray[Any, Any], **options: Any) -> Path:
    """One array named v with dimensions, by zarr-python."""
    group = zarr.open_group(path, mode="w", zarr_format=2)
    options.setdefault("chunks", (2, 3)[: data.ndim])
    array = group.create_array("v", shape=data.shape, dtype=data.dtype, **options)
    array[...] = data
    array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"][: data.ndim]
    return path


def both(path: Path, **options: Any) -> tuple[xr.Dataset, xr.Dataset]:
    ours = xr.open_dataset(path, engine="nczarr", **options).load()
    theirs = xr.open_dataset(path, engine="zarr", consolidated=False, **options).load()
    return ours, theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_dtype(tmp_path: Path, dtype: str, order: Any) -> None:
    data = sample(dtype)
    path = write(tmp_path / "x.zarr", data, order=order)
    ds = xr.open_dataset(path, engine="nczarr", decode_cf=False)
    assert np.array_equal(ds.v.values, data)
    assert ds.v.dtype == data.dtype.newbyteorder("=")


CODECS: list[dict[str, Any]] = [
    {"compressors": None},
    *({"compressors": numcodecs.Blosc(name, 5, shuffle)} for name in ("lz4", "zstd", "blosclz", "zlib", "lz4hc") for shuffle in (0, 1, 2)),
    {"compressors": numcodecs.Zlib(3)},
    {"compressors": numcodecs.GZip(3)},
    {"compressors": numcodecs.BZ2(3)},
    {"compressors": numcodecs.LZMA()},
    {"compressors": numcodecs.Zstd(3)},
    {"compressors": numcodecs.Zstd(-5)},
    {"compressors": numcodecs.LZ4()},
    {"compressors": numcodecs.Zlib(1), "filters": [numcodecs.Shuffle(4)]},
    {"compressors": numcodecs.Zlib(1), "filters": [numcodecs.Shuffle(2)]},
    {"compressors": numcodecs.Zstd(1), "filters": [numcodecs.Delta("<i4")]},
    {"compressors": None, "filters": [numcodecs.CRC32()]},
    {"compressors": None, "filters": [numcodecs.Adler32()]},
    {"compressors": None, "filters": [numcodecs.Fletcher32()]},
    {"compressors": numcodecs.Zlib(1), "filters": [numcodecs.Delta("<i4"), numcodecs.Shuffle(4)]},
    {"compressors": numcodecs.Zlib(1), "filters": [numcodecs.FixedScaleOffset(0, 1, "<i4", "<i2")]},
    {"compressors": numcodecs.Zlib(1), "filters": [numcodecs.AsType("<i2", "<i4")]},
]  # fmt: skip


@pytest.mark.parametrize("codecs", CODECS, ids=repr)
def test_every_codec(tmp_path: Path, codecs: dict[str, Any]) -> None:
    data = sample("<i4", (50, 70))
    path = write(tmp_path / "x.zarr", data, chunks=(20, 30), **codecs)
    assert np.array_equal(xr.open_dataset(path, engine="nczarr").v.values, data)


def test_packed_bits(tmp_path: Path) -> None:
    data = sample("|b1")
    path = write(tmp_path / "x.zarr", data, filters=[numcodecs.PackBits()], compressors=None)
    assert np.array_equal(xr.open_dataset(path, engine="nczarr").v.values, data)


def test_separator_and_missing_chunks(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    array = group.create_array(
        "v", shape=(6, 6), chunks=(2, 3), dtype="i4", fill_value=7,
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )  # fmt: skip
    array[2:4, :3] = 1
    ds = xr.open_dataset(path, engine="nczarr", mask_and_scale=False)
    assert (path / "v" / "1" / "0").exists()
    assert np.array_equal(ds.v.values, array[...])
    assert ds.v.dims == ("_Anonymous_Dim_6", "_Anonymous_Dim_6")


def test_anonymous_dimensions_by_release(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", sample("<i4"))
    (path / "v" / ".zattrs").unlink()
    assert xr.open_dataset(path, engine="nczarr").v.dims == ("_Anonymous_Dim_5", "_Anonymous_Dim_7")
    old = xr.open_dataset(path, engine="nczarr", anonymous_dimension_prefix="_zdim_")
    assert old.v.dims == ("_zdim_5", "_zdim_7")


@pytest.mark.parametrize("fill", [0, -2147483647])
def test_a_default_fill_value_is_no_mask(tmp_path: Path, fill: int) -> None:
    path = write(tmp_path / "x.zarr", sample("<i4"), fill_value=fill)
    assert xr.open_dataset(path, engine="nczarr").v.dtype == np.int32
    masked = xr.open_dataset(path, engine="nczarr", use_zarr_fill_value_as_mask=True)
    assert masked.v.dtype == np.float64


def test_another_fill_value_is_a_mask(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", sample("<i4"), fill_value=-1)
    ours, theirs = both(path)
    xr.testing.assert_identical(ours, theirs)
    assert ours.v.encoding["_FillValue"] == -1
    assert xr.open_dataset(path, engine="nczarr", use_zarr_fill_value_as_mask=False).v.dtype == np.int32


def dataset() -> xr.Dataset:
    time = np.array(["2000-01-01", "2000-01-02", "NaT"], dtype="M8[ns]")
    ds = xr.Dataset(
        {
            "temperature": (("time", "x"), np.array([[1.5, np.nan]] * 3, "f4"), {"units": "K"}),
            "packed": (("time", "x"), np.array([[1.5, np.nan]] * 3)),
            "count": ("x", np.array([1, 2], "i2")),
            "flag": ("x", np.array([True, False])),
            "name": ("x", np.array(["a", "ßé"])),
            "text": ("x", np.array(["a", "longer"], dtype=object)),
            "raw": ("x", np.array([b"ab", b"c"])),
            "scalar": ((), 3.25),
            "when": ("time", time),
            "empty": (("none",), np.zeros(0)),
            "step": ("x", np.array([1, 2], "m8[s]").astype("m8[ns]")),
        },
        coords={"time": np.arange(3), "x": [10, 20], "label": ("x", ["p", "q"])},
        attrs={"title": "t", "number": 3, "real": 2.5, "list": [1, 2], "names": ["a", "b"]},
    )
    ds["packed"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    ds["count"].encoding = {"_FillValue": 99}
    return ds


@pytest.mark.parametrize("consolidated", [True, False])
def test_xarray_round_trip(tmp_path: Path, consolidated: bool) -> None:
    path = tmp_path / "x.zarr"
    dataset().to_zarr(path, zarr_format=2, consolidated=consolidated)
    ours, theirs = both(path)
    for ds in (ours, theirs):
        # JSON has no integer or float types; netCDF-C's rule makes int32 and float64 of them
        ds.attrs["number"] = int(ds.attrs["number"])
        ds.attrs["list"] = [int(v) for v in ds.attrs["list"]]
    xr.testing.assert_identical(ours, theirs)
    for name in ours.variables:
        if theirs[name].dtype.kind not in "TO":  # text of any length: what netCDF4 returns
            assert ours[name].dtype == theirs[name].dtype, name
    assert ours.attrs["names"] == ["a", "b"]


def test_groups(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/": dataset(), "/a": dataset()[["count"]], "/a/b": xr.Dataset()})
    tree.to_zarr(tmp_path / "x.zarr", zarr_format=2, consolidated=False)
    ours = xr.open_groups(tmp_path / "x.zarr", engine="nczarr")
    assert list(ours) == ["/", "/a", "/a/b"]
    xr.testing.assert_equal(ours["/a"].load(), dataset()[["count"]].drop_vars("x"))


def test_structured_type(tmp_path: Path) -> None:
    data = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i4"), ("b", "<f8")])
    path = tmp_path / "x.zarr"
    (path / "v").mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "v" / ".zarray").write_text(
        '{"zarr_format": 2, "shape": [2], "chunks": [2], "fill_value": null, "order": "C",'
        ' "dtype": [["a", "<i4"], ["b", "<f8"]], "compressor": null, "filters": null}'
    )
    (path / "v" / "0").write_bytes(data.tobytes())
    assert np.array_equal(xr.open_dataset(path, engine="nczarr").v.values, data)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_was_read_can_be_written_by_xarray(tmp_path: Path, zarr_format: Any) -> None:
    netCDF4 = pytest.importorskip("netCDF4")
    url = f"file://{tmp_path}/x.file#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as nc:
        nc.createDimension("t", None)
        nc.createDimension("x", 6)
        nc.createVariable("v", "f4", ("t", "x"), zlib=True, fletcher32=True)[:] = np.ones((3, 6))
        nc.createVariable("big", "i4", ("x",), endian="big")[:] = np.arange(6)
        nc.createVariable("z", "f8", ("x",), compression="zstd")[:] = np.arange(6)
        nc.createVariable("s", str, ("x",))[:] = np.array(list("abcdef"), object)
        nc.createVariable("c", "S1", ("x",))[:] = np.array(list("abcdef"), "S1")
    with xr.open_dataset(url, engine="nczarr") as ds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr's opinion of text in v3
            ds.to_zarr(tmp_path / "copy.zarr", zarr_format=zarr_format)
        ds.to_netcdf(tmp_path / "copy.nc", engine="netcdf4")
        again = xr.open_dataset(tmp_path / "copy.zarr", engine="nczarr").load()
        xr.testing.assert_equal(again, ds)
        xr.testing.assert_identical(xr.open_dataset(tmp_path / "copy.nc").load(), ds.load())
        assert xr.open_dataset(tmp_path / "copy.nc").encoding["unlimited_dims"] == {"t"}
