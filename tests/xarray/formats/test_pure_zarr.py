"""Zarr v2 as zarr-python and xarray write it, against ``engine="zarr"``.

Where we differ on purpose there is a test that says so: a fill value that nobody chose masks
nothing, text comes back as netCDF4-python returns it, numbers have the machine's byte order,
and attributes have netCDF's types.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_xarray import FormatError, NCZarrWarning
from tests.support.marks import each_once, slow_but

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

Array = np.ndarray[Any, Any]

# -- arrays as zarr-python writes them ---------------------------------------------

NUMBERS = "|i1 |u1 <i2 >i2 <u2 >u2 <i4 >i4 <u4 <i8 >i8 <u8 <f2 >f2 <f4 >f4 <f8 >f8 <c8 >c8 <c16"
TIMES = "<M8[ns] >M8[s] <M8[D] <m8[ms] <m8[ns]"
DTYPES = ["|b1", *NUMBERS.split(), *TIMES.split(), "<U4", ">U4", "|S4", "|S1", "|V4"]
SHAPES = {
    "plane": ((5, 7), (2, 3)),
    "scalar": ((), ()),
    "empty": ((0, 3), (1, 3)),
    "one": ((3,), (9,)),
}


def sample(dtype: str, shape: tuple[int, ...] = (5, 7)) -> Array:
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 100
    if dtype == "|b1":
        return numbers % 2 == 1
    return numbers.astype("<i4").view("V4") if dtype == "|V4" else numbers.astype(dtype)


def write(path: Path, data: Array, **options: Any) -> Path:
    """One array named v with dimensions, by zarr-python."""
    group = zarr.open_group(path, mode="w", zarr_format=2)
    options = {"chunks": (2, 3)[: data.ndim] or "auto", "fill_value": None} | options
    array = group.create_array("v", shape=data.shape, dtype=data.dtype, **options)
    array[...] = data
    array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"][: data.ndim]
    return path


def both(path: Path, **options: Any) -> tuple[xr.Dataset, xr.Dataset]:
    ours = xr.open_dataset(path, engine="nczarr", **options).load()
    theirs = xr.open_dataset(path, engine="zarr", consolidated=False, **options).load()
    return ours, theirs


def assert_like_zarr(path: Path, **options: Any) -> xr.Dataset:
    ours, theirs = both(path, **options)
    xr.testing.assert_identical(ours, theirs)
    for name, variable in theirs.variables.items():
        if variable.dtype.kind not in "USO":  # engine="zarr" counts bytes of text differently
            assert ours[name].dtype == variable.dtype.newbyteorder("="), name
        mask = "_FillValue"
        assert (mask in ours[name].encoding) == (mask in variable.encoding), name
    return ours


@pytest.mark.parametrize("order", slow_but(["C", "F"], "C"))
@pytest.mark.parametrize("shape", slow_but(SHAPES, "plane"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path: Path, dtype: str, shape: str, order: Any) -> None:
    sizes, chunks = SHAPES[shape]
    data = sample(dtype, sizes)
    path = write(tmp_path / "x.zarr", data, order=order, chunks=chunks or "auto")
    assert_like_zarr(path)
    ds = assert_like_zarr(path, decode_cf=False)  # (decoding joins characters)
    assert np.array_equal(ds.v.values, data)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "|V4"])
def test_every_fill_value(tmp_path: Path, dtype: str) -> None:
    fill = {"U": "q", "S": b"q"}.get(np.dtype(dtype).kind, 1)
    path = write(tmp_path / "x.zarr", sample(dtype), fill_value=fill)
    (path / "v" / "1.1").unlink()
    assert_like_zarr(path)
    assert_like_zarr(path, decode_cf=False)


COMPRESSORS = [
    None,
    *(
        numcodecs.Blosc(name, 5, shuffle)
        for name in ("lz4", "zstd", "blosclz", "zlib", "lz4hc")
        for shuffle in (-1, 0, 1, 2)
    ),
    numcodecs.Zlib(3),
    numcodecs.GZip(3),
    numcodecs.BZ2(3),
    numcodecs.LZMA(),
    numcodecs.LZMA(format=3, filters=[{"id": 3, "dist": 4}, {"id": 33, "preset": 1}]),
    numcodecs.Zstd(3),
    numcodecs.Zstd(-5),
    numcodecs.Zstd(3, checksum=True),
    numcodecs.LZ4(),
]


@pytest.mark.parametrize(("dtype", "compressor"), each_once(["<i4", ">f8"], COMPRESSORS), ids=repr)
def test_every_compressor(tmp_path: Path, dtype: str, compressor: Any) -> None:
    data = sample(dtype, (50, 70))
    path = write(tmp_path / "x.zarr", data, chunks=(20, 30), compressors=compressor)
    assert np.array_equal(assert_like_zarr(path).v.values, data)


FILTERS: list[tuple[str, list[Any]]] = [
    ("<i4", [numcodecs.Shuffle(4)]),
    ("<i4", [numcodecs.Shuffle(2)]),
    ("<i4", [numcodecs.Delta("<i4")]),
    ("<i4", [numcodecs.Delta("<i4", "<i2")]),
    ("<i4", [numcodecs.Delta("<i4"), numcodecs.Shuffle(4)]),
    ("<i4", [numcodecs.AsType("<i2", "<i4")]),
    ("<f8", [numcodecs.FixedScaleOffset(10, 2, "<f8", "<i2")]),
    ("<f4", [numcodecs.Quantize(3, "<f4")]),
    ("<f4", [numcodecs.BitRound(10)]),
    ("|b1", [numcodecs.PackBits()]),
    ("<i4", [numcodecs.Fletcher32()]),
    ("<i4", [numcodecs.CRC32()]),
    ("<i4", [numcodecs.CRC32(location="end")]),
    ("<i4", [numcodecs.Adler32()]),
    ("<i4", [numcodecs.JenkinsLookup3()]),
    ("<i4", [numcodecs.Base64()]),
]


@pytest.mark.parametrize(
    ("case", "compressor"),
    each_once(FILTERS, [None, numcodecs.Zlib(1), numcodecs.Blosc()]),
    ids=repr,
)
def test_every_filter(tmp_path: Path, case: tuple[str, list[Any]], compressor: Any) -> None:
    dtype, filters = case
    path = write(tmp_path / "x.zarr", sample(dtype), filters=filters, compressors=compressor)
    assert_like_zarr(path)
    assert_like_zarr(path, decode_cf=False)


@pytest.mark.parametrize("dtype", ["<i4", "<U4"])
def test_separator_and_missing_chunks(tmp_path: Path, dtype: str) -> None:
    encoding = {"name": "v2", "separator": "/"}
    path = write(tmp_path / "x.zarr", sample(dtype), chunk_key_encoding=encoding)
    (path / "v" / "1" / "0").unlink()
    assert_like_zarr(path, decode_cf=False)


# -- objects: text and bytes of any length -------------------------------------------


def write_objects(path: Path, data: Array, codec: Any, compressor: Any = None) -> Path:
    chunk = codec.encode(data)
    metadata = {
        "zarr_format": 2,
        "shape": data.shape,
        "chunks": data.shape,
        "dtype": "|O",
        "fill_value": None,
        "order": "C",
        "compressor": compressor and compressor.get_config(),
        "filters": [codec.get_config()],
    }
    (path / "v").mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "v" / ".zarray").write_text(json.dumps(metadata))
    (path / "v" / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["x"]}')
    (path / "v" / "0").write_bytes(compressor.encode(chunk) if compressor else bytes(chunk))
    return path


WORDS = ["a", "longer", "ß", ""]


@pytest.mark.parametrize("compressor", [None, numcodecs.Zlib(1), numcodecs.Blosc()], ids=repr)
@pytest.mark.parametrize(
    "codec",
    [
        numcodecs.VLenUTF8(),
        numcodecs.JSON(),
        numcodecs.MsgPack(),
        numcodecs.Categorize(WORDS, "|O", "u1"),
    ],
    ids=lambda codec: codec.codec_id,
)
def test_objects_of_text(tmp_path: Path, codec: Any, compressor: Any) -> None:
    data = np.array(WORDS, object)
    ds = xr.open_dataset(
        write_objects(tmp_path / "x.zarr", data, codec, compressor), engine="nczarr"
    )
    assert ds.v.values.tolist() == WORDS
    assert ds.v.dtype == np.dtype("<U6")


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
@pytest.mark.parametrize("padding", [0, None, "", np.nan, "pad"], ids=repr)
@pytest.mark.parametrize("codec", [numcodecs.JSON(), numcodecs.MsgPack(), numcodecs.VLenUTF8()])
def test_objects_in_chunks_at_the_edge(
    tmp_path: Path, codec: Any, padding: Any, shape: tuple[int, ...]
) -> None:
    """zarr-python 2 completes them with the fill value, 0 if it was told none; version 3 cuts."""
    data = np.array([f"w{i}" for i in range(np.prod(shape))], object).reshape(shape)
    chunks = (2,) * len(shape)
    path = write_objects(tmp_path / "x.zarr", data, codec)
    metadata = json.loads((path / "v" / ".zarray").read_text())
    fill = None if isinstance(padding, float) else padding
    metadata |= {"shape": list(shape), "chunks": list(chunks), "fill_value": fill}
    (path / "v" / ".zarray").write_text(json.dumps(metadata))
    names = ["y", "x"][: len(shape)]
    (path / "v" / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": names}))
    for old in (path / "v").glob("[0-9]*"):
        old.unlink()
    if codec.codec_id == "vlen-utf8" and not isinstance(padding, str):  # it has text only
        padding = ""
    for index in np.ndindex(*(-(-n // 2) for n in shape)):
        part = data[tuple(slice(2 * i, 2 * i + 2) for i in index)]
        chunk = np.full(chunks, padding, object)
        chunk[tuple(map(slice, part.shape))] = part
        (path / "v" / ".".join(map(str, index))).write_bytes(bytes(codec.encode(chunk)))
    ds = xr.open_dataset(path, engine="nczarr", use_zarr_fill_value_as_mask=False)
    assert ds.v.values.tolist() == data.tolist()
    assert ds.v[..., 4:].values.tolist() == data[..., 4:].tolist()


def test_objects_of_bytes(tmp_path: Path) -> None:
    data = np.array([b"a", b"longer", b"\xff", b""], object)
    path = write_objects(tmp_path / "x.zarr", data, numcodecs.VLenBytes(), numcodecs.Zlib(1))
    assert xr.open_dataset(path, engine="nczarr").v.values.tolist() == data.tolist()


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        (numcodecs.Pickle(), "could run code"),
        (numcodecs.VLenArray("<i4"), "neither text nor bytes"),
        (numcodecs.JSON(), "neither text nor bytes"),
    ],
    ids=repr,
)
def test_other_objects_are_refused(tmp_path: Path, codec: Any, reason: str) -> None:
    data = np.empty(2, object)
    data[:] = (
        [np.arange(2, dtype="<i4")] * 2 if codec.codec_id == "vlen-array" else [{"a": 1}, None]
    )
    path = write_objects(tmp_path / "x.zarr", data, codec)
    with pytest.warns(NCZarrWarning, match=reason):
        ds = xr.open_dataset(path, engine="nczarr")
    with pytest.raises(FormatError, match=reason):
        ds.v.load()


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


# -- dimensions ------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["_Anonymous_Dim_", "_zdim_", ".zdim_", ".zdim"])
def test_anonymous_dimensions(tmp_path: Path, prefix: str) -> None:
    path = write(tmp_path / "x.zarr", sample("<i4"))
    (path / "v" / ".zattrs").unlink()
    options: dict[str, Any] = {"anonymous_dimension_prefix": prefix}
    if prefix == "_Anonymous_Dim_":
        options = {}
    ds = xr.open_dataset(path, engine="nczarr", **options)
    assert ds.v.dims == (f"{prefix}5", f"{prefix}7")
    assert np.array_equal(ds.v.values, sample("<i4"))


def test_anonymous_dimensions_of_one_length_are_one(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", sample("<i4", (6, 6)))
    (path / "v" / ".zattrs").unlink()
    ds = xr.open_dataset(path, engine="nczarr")
    assert ds.v.dims == ("_Anonymous_Dim_6", "_Anonymous_Dim_6")
    assert ds.sizes == {"_Anonymous_Dim_6": 6}


# -- fill values -----------------------------------------------------------------------


@pytest.mark.parametrize("fill", [0, -2147483647])
def test_a_default_fill_value_is_no_mask(tmp_path: Path, fill: int) -> None:
    """Here we differ from ``engine="zarr"``, which makes floats of such integers."""
    path = write(tmp_path / "x.zarr", sample("<i4"), fill_value=fill)
    assert xr.open_dataset(path, engine="nczarr").v.dtype == np.int32
    assert xr.open_dataset(path, engine="zarr", consolidated=False).v.dtype == np.float64
    masked = xr.open_dataset(path, engine="nczarr", use_zarr_fill_value_as_mask=True)
    xr.testing.assert_identical(masked.load(), both(path)[1])


def test_netcdf_default_fill_value_of_packed_integers_is_a_mask(tmp_path: Path) -> None:
    """Packed data have gaps, and netCDF's default is a common choice for them."""
    ds = xr.Dataset({"v": ("x", [1.5, np.nan, 2.5])})
    ds.v.encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -32767}
    ds.to_zarr(tmp_path / "x.zarr", zarr_format=2)
    xr.testing.assert_identical(assert_like_zarr(tmp_path / "x.zarr"), ds)


def test_netcdf_default_fill_value_of_floats_is_a_mask(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", [1.5, np.nan, 2.5])})
    ds.v.encoding = {"_FillValue": 9.969209968386869e36}
    ds.to_zarr(tmp_path / "x.zarr", zarr_format=2)
    xr.testing.assert_identical(assert_like_zarr(tmp_path / "x.zarr"), ds)


def test_another_fill_value_is_a_mask(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", sample("<i4"), fill_value=-1)
    ours = assert_like_zarr(path)
    assert ours.v.encoding["_FillValue"] == -1
    plain = xr.open_dataset(path, engine="nczarr", use_zarr_fill_value_as_mask=False)
    assert plain.v.dtype == np.int32


@pytest.mark.parametrize("dtype", TIMES.split())
@pytest.mark.parametrize("fill", [None, "NaT"])
def test_times_that_are_not_stored_are_missing(tmp_path: Path, dtype: str, fill: Any) -> None:
    path = tmp_path / "x.zarr"
    stated = None if fill is None else np.array(fill, dtype)[()]
    write(path, sample(dtype), fill_value=stated)
    (path / "v" / "1.1").unlink()
    ours, theirs = both(path)
    assert np.isnat(ours.v.values).sum() == 6
    np.testing.assert_array_equal(ours.v.values, theirs.v.values)
    assert "_FillValue" not in ours.v.attrs


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", TIMES.split())
def test_times_are_written_as_they_were_read(tmp_path: Path, dtype: str, zarr_format: int) -> None:
    write(tmp_path / "x.zarr", sample(dtype), fill_value=np.array("NaT", dtype)[()])
    ds = xr.open_dataset(tmp_path / "x.zarr", engine="nczarr", use_zarr_fill_value_as_mask=False)
    ds.to_zarr(tmp_path / "y.zarr", zarr_format=zarr_format, consolidated=False)
    ds.to_netcdf(tmp_path / "y.nc")
    ds.nczarr.to_nczarr(tmp_path / "y.nczarr")
    timedeltas = ds.v.dtype.kind == "m"
    for engine, name in ("zarr", "y.zarr"), ("netcdf4", "y.nc"), ("nczarr", "y.nczarr"):
        options: dict[str, Any] = {"consolidated": False} if engine == "zarr" else {}
        with xr.open_dataset(
            tmp_path / name, engine=engine, decode_timedelta=timedeltas, **options
        ) as copy:
            np.testing.assert_array_equal(copy.v.values, ds.v.values)


# -- datasets as xarray writes them ------------------------------------------------------


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
            "complex": ("x", np.array([1 + 2j, 3])),
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
    # JSON has no integer types: netCDF-C's rule makes int32 of them
    assert ours.attrs["number"].dtype == ours.attrs["list"].dtype == np.int32
    for ds in (ours, theirs):
        ds.attrs["list"] = [int(number) for number in ds.attrs["list"]]
    xr.testing.assert_identical(ours, theirs)
    xr.testing.assert_identical(ours, dataset())
    for name in ours.variables:
        if theirs[name].dtype.kind not in "TO":  # text of any length: what netCDF4 returns
            assert ours[name].dtype == theirs[name].dtype, name
        assert ours[name].encoding.get("_FillValue") == pytest.approx(
            theirs[name].encoding.get("_FillValue"), nan_ok=True
        )
    assert ours.attrs["names"] == ["a", "b"]
    assert ours.text.dtype == np.dtype("<U6")


def test_groups(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/": dataset(), "/a": dataset()[["count"]], "/a/b": xr.Dataset()})
    tree.to_zarr(tmp_path / "x.zarr", zarr_format=2, consolidated=False)
    ours = xr.open_groups(tmp_path / "x.zarr", engine="nczarr")
    theirs = xr.open_groups(tmp_path / "x.zarr", engine="zarr", consolidated=False)
    assert list(ours) == list(theirs)
    for path in ("/a", "/a/b"):
        xr.testing.assert_identical(
            ours[path].load().drop_attrs(), theirs[path].load().drop_attrs()
        )
    with xr.open_datatree(tmp_path / "x.zarr", engine="nczarr") as opened:
        xr.testing.assert_equal(opened.load(), tree)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"filters": [numcodecs.Delta("<i4")], "compressors": numcodecs.Zlib(1)},
        {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.Zlib(1)},
        {"compressors": numcodecs.LZ4()},
        {"order": "F"},
    ],
    ids=repr,
)
def test_what_was_read_can_be_written_by_xarray(
    tmp_path: Path, options: dict[str, Any], zarr_format: Any
) -> None:
    path = write(tmp_path / "x.zarr", sample("<i4"), **options)
    with xr.open_dataset(path, engine="nczarr") as ds:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ds.to_zarr(tmp_path / "copy.zarr", zarr_format=zarr_format, consolidated=False)
        ds.to_netcdf(tmp_path / "copy.nc", engine="netcdf4")
        again = xr.open_dataset(tmp_path / "copy.zarr", engine="nczarr").load()
        xr.testing.assert_identical(again, ds.load())
        xr.testing.assert_identical(xr.load_dataset(tmp_path / "copy.nc"), ds)


@pytest.mark.parametrize("fill", [b"", b"a"])
def test_text_leaves_by_xarrays_writers(tmp_path: Path, fill: bytes) -> None:
    """Its encoding has no dtype of bytes, by which xarray would write ASCII only."""
    texts = ["a", "éé", "ccc"]
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    array = group.create_array("t", shape=(3,), chunks=(3,), dtype="S6", fill_value=fill)
    array[:] = np.array([text.encode() for text in texts])
    array.attrs.update({"_ARRAY_DIMENSIONS": ["x"], "_Encoding": "utf-8"})
    targets: dict[str, dict[str, Any]] = {
        "y.nc": {"engine": "netcdf4"},
        "y.h5": {"engine": "h5netcdf"},
        "y2.zarr": {"engine": "zarr", "consolidated": False},
        "y3.zarr": {"engine": "zarr", "consolidated": False},
        "y.nczarr": {"engine": "nczarr"},
    }
    with xr.open_dataset(tmp_path / "x.zarr", engine="nczarr") as ds:
        assert ds["t"].values.tolist() == texts  # as engine "zarr" has it: no text is bytes
        ds.to_netcdf(tmp_path / "y.nc", engine="netcdf4")
        ds.to_netcdf(tmp_path / "y.h5", engine="h5netcdf")
        for zarr_format in (2, 3):
            ds.to_zarr(
                tmp_path / f"y{zarr_format}.zarr", zarr_format=zarr_format, consolidated=False
            )
        ds.nczarr.to_nczarr(tmp_path / "y.nczarr")
    for name, how in targets.items():
        with xr.open_dataset(tmp_path / name, **how) as back:
            assert back["t"].values.tolist() == texts, name
