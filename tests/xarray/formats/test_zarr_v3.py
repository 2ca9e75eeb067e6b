"""Zarr v3 as xarray and zarr-python write it, against ``engine="zarr"``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.storage import LocalStore

from nczarr_xarray import DatasetNotFoundError, FormatError, NCZarrWarning, StoreError
from nczarr_xarray.formats.zarr3.array import array_in
from tests.support.builders.trees import read_tree
from tests.support.marks import each_once
from tests.support.servers.httpserver import Server

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def dataset() -> xr.Dataset:
    ds = xr.Dataset(
        {
            "v": (("y", "x"), np.arange(4800.0).reshape(60, 80), {"units": "K"}),
            "packed": (("y",), np.where(np.arange(60) % 7, np.arange(60) / 2, np.nan)),
            "flag": (("y",), np.arange(60) % 2 == 0),
            "name": (("y",), np.array([f"é{i}" for i in range(60)])),
            "scalar": ((), np.float32(2.5)),
            "when": (("y",), np.datetime64("2000-01-01", "ns") + np.arange(60)),
        },
        coords={"x": np.arange(80), "label": ("x", np.arange(80.0))},
        attrs={"title": "t", "names": ["a", "b"]},
    )
    ds["packed"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    return ds


def write(path: Path, **encoding: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's opinion of text and of consolidated metadata
        dataset().to_zarr(path, zarr_format=3, mode="w", encoding={"v": encoding})
    return path


def both(path: Any) -> tuple[xr.Dataset, xr.Dataset]:
    ours = xr.open_dataset(path, engine="nczarr").load()
    return ours, xr.open_dataset(path, engine="zarr").load()


ENCODINGS: list[dict[str, Any]] = [
    {},
    {"chunks": (7, 11)},
    {"chunks": (10, 10), "shards": (30, 40)},
    {"chunks": (10, 10), "shards": (30, 40), "compressors": (GzipCodec(level=1), Crc32cCodec())},
    {"chunks": (20, 80), "compressors": (BloscCodec(cname="lz4", shuffle="bitshuffle"),)},
    {"compressors": (ZstdCodec(level=3),), "filters": (TransposeCodec(order=(1, 0)),)},
    {"compressors": None},
]  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: "-".join(e) or "default")
def test_equals_engine_zarr(tmp_path: Path, encoding: dict[str, Any]) -> None:
    ours, theirs = both(write(tmp_path / "x.zarr", **encoding))
    xr.testing.assert_identical(ours, theirs)
    xr.testing.assert_identical(ours, dataset())
    assert ours.packed.encoding["_FillValue"] == -9


@pytest.mark.parametrize(
    "key",
    [
        {"y": slice(None, None, -3), "x": [5, 5, 1]},
        {"y": 3, "x": slice(10, 60, 7)},
        {"y": xr.DataArray([0, 59, 3], dims="p"), "x": xr.DataArray([79, 0, 2], dims="p")},
        {"y": xr.DataArray([[0, 59], [3, 3]], dims=("p", "q"))},
        {"y": [], "x": 0},
    ],
    ids=repr,
)
def test_selections(tmp_path: Path, key: dict[str, Any]) -> None:
    path = write(tmp_path / "x.zarr", chunks=(10, 10), shards=(30, 40))
    with xr.open_dataset(path, engine="nczarr") as ds:
        xr.testing.assert_identical(ds.v.isel(key).load(), dataset().v.isel(key))


def test_dask_chunks_follow_the_inner_chunks(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", chunks=(10, 10), shards=(30, 40))
    with xr.open_dataset(path, engine="nczarr", chunks={}) as ds:
        assert ds.v.chunks == ((10,) * 6, (10,) * 8)
        assert np.array_equal(ds.v.values, dataset().v.values)


def test_groups(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/": dataset(), "/a/b": xr.Dataset({"w": ("z", [1, 2])})})
    tree.to_zarr(tmp_path / "x.zarr", zarr_format=3)
    groups = xr.open_groups(tmp_path / "x.zarr", engine="nczarr")
    assert list(groups) == ["/", "/a", "/a/b"]
    assert groups["/a/b"].w.values.tolist() == [1, 2]
    with xr.open_dataset(tmp_path / "x.zarr", engine="nczarr", group="a/b") as ds:
        assert ds.w.dims == ("z",)
    with pytest.raises(DatasetNotFoundError, match="no group"):
        xr.open_dataset(tmp_path / "x.zarr", engine="nczarr", group="a/nope")


def test_other_stores(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", chunks=(10, 10), shards=(30, 40))
    files = read_tree(path)
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for key, data in files.items():
            packed.writestr(key, data)
    targets: list[Any] = [archive, files, zarr.storage.LocalStore(path)]
    for target in targets:
        xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr").load(), dataset())
    with Server({f"/x.zarr/{key}": data for key, data in files.items()}) as server:
        # not listable: the consolidated metadata inside zarr.json lead the way
        with xr.open_dataset(f"{server.url}/x.zarr", engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), dataset())
        root = json.loads(files["zarr.json"])
        root.pop("consolidated_metadata", None)
        server.files["/x.zarr/zarr.json"] = json.dumps(root).encode()
        with pytest.raises(StoreError, match="cannot be listed"):
            xr.open_dataset(f"{server.url}/x.zarr", engine="nczarr")


def test_arrays_without_names(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=3)
    group.create_array("v", shape=(3, 4), dtype="i4")[...] = 7
    with xr.open_dataset(tmp_path / "x.zarr", engine="nczarr") as ds:
        assert ds.v.dims == ("_Anonymous_Dim_3", "_Anonymous_Dim_4")
        assert (ds.v.values == 7).all()
        assert ds.v.dtype == np.int32


def test_one_bad_array_does_not_take_the_others_along(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr")
    metadata = json.loads((path / "v" / "zarr.json").read_text())
    metadata["codecs"] = [{"name": "nobody.knows", "configuration": {}}]
    (path / "v" / "zarr.json").write_text(json.dumps(metadata))
    (path / "flag" / "zarr.json").write_text("{")
    with pytest.warns(NCZarrWarning, match="cannot be read") as caught:
        ds = xr.open_dataset(path, engine="nczarr")
    assert {"'/v'", "'/flag'"} <= {str(w.message).split()[1] for w in caught}
    assert ds.scalar.load() == np.float32(2.5)
    with pytest.raises(FormatError, match=r"v/zarr\.json"):
        ds.v.load()


def test_damaged_chunk_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr")
    for chunk in (path / "v" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:10])
    with pytest.raises(FormatError, match=r"^v/c/0/0: the chunk cannot be decoded"):
        xr.open_dataset(path, engine="nczarr").v.load()


def test_points_beside_a_slice(tmp_path: Path) -> None:
    values = np.arange(120.0).reshape(4, 5, 6)
    xr.Dataset({"v": (("z", "y", "x"), values)}).to_zarr(
        tmp_path / "x.zarr",
        zarr_format=3,
        encoding={"v": {"chunks": (2, 2, 3)}},
        consolidated=False,
    )
    ds = xr.open_dataset(tmp_path / "x.zarr", engine="nczarr")
    z, x = xr.DataArray([3, 0, 3], dims="p"), xr.DataArray([5, 1, 5], dims="p")
    found = ds.v.isel(z=z, y=slice(1, 4), x=x)
    xr.testing.assert_equal(
        found.load(), xr.Dataset({"v": ds.v.load()}).v.isel(z=z, y=slice(1, 4), x=x)
    )
    assert (
        found.transpose("p", "y").to_numpy().tolist() == values[[3, 0, 3], 1:4, [5, 1, 5]].tolist()
    )


# -- every type and codec --------------------------------------------------------------

NUMBERS = "|i1 |u1 <i2 >i2 <i4 <u8 <f2 <f4 >f4 <f8 <c8 <c16 <M8[ns] >M8[s] <M8[D] <m8[ms]"
DTYPES = ["|b1", *NUMBERS.split(), "<U4", ">U4", "|S4", "|S1", "|V4"]


def assert_like_zarr(path: Path, **options: Any) -> xr.Dataset:
    ours = xr.open_dataset(path, engine="nczarr", **options).load()
    theirs = xr.open_dataset(path, engine="zarr", consolidated=False, **options)
    # loaded, a scalar of zarr-python has no more bytes than its value
    dtypes = {name: variable.dtype for name, variable in theirs.variables.items()}
    xr.testing.assert_identical(ours, theirs.load())
    for name, dtype in dtypes.items():
        if dtype.kind not in "TO":  # we return text as netCDF4-python does
            assert ours[name].dtype == dtype, name
    return ours


def create(path: Path, data: np.ndarray[Any, Any], **options: Any) -> Any:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    options = {"chunks": (2, 3)[: data.ndim] or "auto", "dtype": data.dtype} | options
    names = ["y", "x"][: data.ndim]
    array = group.create_array("v", shape=data.shape, dimension_names=names, **options)
    array[...] = data
    return array


@pytest.mark.parametrize(("dtype", "shape"), each_once(list(DTYPES), [(5, 7), (), (0, 3)]), ids=str)
def test_every_dtype(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    data = numbers.astype("<i4").view("V4") if dtype == "|V4" else numbers.astype(dtype)
    create(tmp_path / "x.zarr", data)
    if shape == (5, 7):
        (tmp_path / "x.zarr" / "v" / "c" / "1" / "1").unlink()
    assert_like_zarr(tmp_path / "x.zarr")
    assert_like_zarr(tmp_path / "x.zarr", decode_cf=False)


def test_threads_leave_the_filters_of_warnings_as_they_are(tmp_path: Path) -> None:
    """Of char, of which zarr-python warns and we do not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(tmp_path, name="v", shape=(3,), dtype="S1", chunks=(3,))
        metadata = json.loads((tmp_path / "v" / "zarr.json").read_text())
        before, interval = list(warnings.filters), sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as threads:
                store = LocalStore(tmp_path)
                list(threads.map(lambda _: array_in(store, "v", metadata), range(1000)))
        finally:
            sys.setswitchinterval(interval)
        assert list(warnings.filters) == before


def test_text_of_any_length(tmp_path: Path) -> None:
    data = np.array([["a", "", "longer"], ["ß", "温度", "x"]], np.dtypes.StringDType())
    create(tmp_path / "x.zarr", data, dtype=str)
    ds = assert_like_zarr(tmp_path / "x.zarr")
    assert ds.v.values.tolist() == data.tolist()
    assert ds.v.dtype == np.dtype("<U6")


def test_bytes_of_any_length(tmp_path: Path) -> None:
    from zarr.core.dtype import VariableLengthBytes

    data = np.array([b"a", b"longer", b"\xff", b""], object)
    create(tmp_path / "x.zarr", data, dtype=VariableLengthBytes())
    assert assert_like_zarr(tmp_path / "x.zarr").v.values.tolist() == data.tolist()


OPTIONS: dict[str, dict[str, Any]] = {
    "big": {"serializer": BytesCodec(endian="big")},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))]},
    "checked": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "sharded": {"shards": (4, 6)},
    "dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "keys of v2": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "filled": {"fill_value": 9},
}

#: Codecs of numcodecs, by what they are made of in `create_array`.
NUMCODECS: dict[str, tuple[str, dict[str, Any]]] = {
    "Delta": ("filters", {"dtype": "<i4"}),
    "FixedScaleOffset": ("filters", {"offset": 0, "scale": 1, "dtype": "<i4", "astype": "<i2"}),
    "Shuffle": ("compressors", {"elementsize": 4}),
    "Zlib": ("compressors", {"level": 1}),
    "BZ2": ("compressors", {"level": 1}),
    "LZMA": ("compressors", {}),
    "LZ4": ("compressors", {}),
    "CRC32": ("compressors", {}),
}


@pytest.mark.parametrize("name", [*OPTIONS, *NUMCODECS])
def test_every_codec(tmp_path: Path, name: str) -> None:
    options = OPTIONS.get(name)
    if options is None:
        from zarr.codecs import numcodecs

        member, parameters = NUMCODECS[name]
        options = {member: [getattr(numcodecs, name)(**parameters)]}
    array = create(tmp_path / "x.zarr", np.zeros((7, 9), "<i4"), **options)
    array[:3] = np.arange(27).reshape(3, 9)
    assert_like_zarr(tmp_path / "x.zarr", decode_cf=False)


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u1"])
def test_fill_values_in_attributes(tmp_path: Path, dtype: str, decode: bool) -> None:
    """xarray writes them as base64 for floats, and keeps Zarr's ``fill_value`` apart."""
    ds = xr.Dataset({"v": ("x", np.array([1, 2, 3], dtype))})
    ds.v.attrs["_FillValue"] = np.dtype(dtype).type(2)
    ds.to_zarr(tmp_path / "x.zarr", zarr_format=3)
    ours = assert_like_zarr(tmp_path / "x.zarr", decode_cf=decode)
    assert np.isnan(ours.v[1]) if decode else ours.v.attrs["_FillValue"] == 2


@pytest.mark.parametrize("length", [10, 100, 0])
def test_cut_blosc_chunk_is_an_error(tmp_path: Path, length: int) -> None:
    """numcodecs reads on behind the end: values would be what lies in memory there."""
    path = tmp_path / "x.zarr"
    values = np.random.default_rng(0).integers(0, 1 << 60, 100)
    create(path, values, chunks=(50,), compressors=[BloscCodec()])
    chunk = path / "v" / "c" / "1"
    chunk.write_bytes(chunk.read_bytes()[:length])
    ds = xr.open_dataset(path, engine="nczarr")
    np.testing.assert_array_equal(ds.v[:50], values[:50])
    with pytest.raises(FormatError, match=rf"^v/c/1: holds {length} bytes"):
        ds.v.load()


@pytest.mark.parametrize("part", [slice(None), slice(50, 100)], ids=["all", "chunk"])
@pytest.mark.parametrize("cut", [1, 100])
def test_cut_shard_of_blosc_chunks_is_an_error(tmp_path: Path, cut: int, part: slice) -> None:
    path = tmp_path / "x.zarr"
    values = np.random.default_rng(0).integers(0, 1 << 60, 100)
    codecs: list[Any] = [BytesCodec(), BloscCodec()]
    shards = ShardingCodec(chunk_shape=(50,), codecs=codecs, index_location="start")
    create(path, values, chunks=(100,), serializer=shards, compressors=None)
    shard = path / "v" / "c" / "0"
    shard.write_bytes(shard.read_bytes()[:-cut])
    ds = xr.open_dataset(path, engine="nczarr")
    np.testing.assert_array_equal(ds.v[:50], values[:50])
    with pytest.raises(
        FormatError, match=r"^v/c/0 \(chunk \(1,\) of the array\): holds \d+ bytes of a blosc"
    ):
        ds.v[part].load()


def test_blosc_of_numcodecs_in_front_of_other_codecs(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    values = np.arange(100)
    create(path, values, chunks=(50,), compressors=[BloscCodec(), GzipCodec()])
    metadata = json.loads((path / "v" / "zarr.json").read_text())
    _, blosc, _ = metadata["codecs"]
    blosc["name"] = "numcodecs.blosc"
    blosc["configuration"] = {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
    (path / "v" / "zarr.json").write_text(json.dumps(metadata))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = xr.open_dataset(path, engine="nczarr")
        np.testing.assert_array_equal(ds.v, values)


def test_reading_while_python_ends_is_an_error_of_ours(tmp_path: Path) -> None:
    """Threads in which zarr-python decodes end before functions of atexit are called."""
    path = str(tmp_path / "x.zarr")
    transposed = {"v": {"filters": [TransposeCodec(order=(1, 0))]}}  # so that zarr-python reads it
    ds = xr.Dataset({"v": (("x", "y"), np.eye(3))})
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding=transposed)
    code = f"""
import atexit, xarray, nczarr_xarray
ds = xarray.open_dataset({path!r}, engine="nczarr")
def read():
    try:
        ds.v.load()
    except nczarr_xarray.StoreError as error:
        print(error)
atexit.register(read)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "v: cannot be read any more: Python is ending" in done.stdout


@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_after_an_error_nothing_is_left_running(tmp_path: Path, shards: Any) -> None:
    """zarr-python leaves its other tasks alone, which cannot run where a program ends."""
    path = tmp_path / "x.zarr"
    array = zarr.open_group(path, mode="w").create_array(
        "v", shape=(2000, 4), dtype="f4", chunks=(2, 4), shards=shards, dimension_names=("t", "x")
    )
    array[:] = np.random.default_rng(0).random((2000, 4))
    chunk = path / "v" / "c" / "0" / "0"
    chunk.write_bytes(bytes(len(chunk.read_bytes())))

    async def running() -> int:
        for _ in range(100):  # what only has to end does
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    with xr.open_dataset(path, engine="nczarr") as ds:
        before = zarr.core.sync.sync(running())
        with pytest.raises(FormatError):
            ds.v.load()
        assert zarr.core.sync.sync(running()) == before
        np.testing.assert_array_equal(ds.v[1000:], array[1000:])  # the next read is one of its own
