"""Encoding: both vocabularies, what data came with, and what cannot be stored.

Errors are found before the first byte: every test of one asserts that nothing is at the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import BZ2, Blosc, Delta, FixedScaleOffset, Shuffle, Zlib, Zstd
from xarray.conventions import CF_RELATED_DATA
from zarr.codecs import BloscCodec, GzipCodec

from nczarr_fsspec.errors import LossWarning
from nczarr_xarray import ExportError, FormatError, to_nczarr
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.form.storage import RELATIONS, valid_keys
from nczarr_xarray.model import ChunkedArray
from tests.support.builders.ncwriter import ramp
from tests.support.marks import needs_new_xarray
from tests.support.oracles.netcdf_c import netcdf_model
from tests.support.oracles.written import opened


def cube(kind: str = "f4") -> xr.Dataset:
    return xr.Dataset({"v": (("x", "y"), ramp((40, 64), kind))})


def array(path: Path, name: str = "v") -> ChunkedArray:
    """How a variable is stored."""
    with open_hierarchy(str(path)) as opened:
        found = opened.hierarchy.root.variables[name].array
        assert isinstance(found, ChunkedArray)
        return found


def stored(tmp_path: Path, dataset: xr.Dataset, **encoding: Any) -> ChunkedArray:
    to_nczarr(dataset, tmp_path / "x", encoding={"v": encoding} if encoding else None)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), dataset)
    return array(tmp_path / "x")


def refused(tmp_path: Path, dataset: Any, target: str = "x", **options: Any) -> str:
    """The message of an export that must fail, and leave nothing."""
    with pytest.raises(ExportError) as error:
        to_nczarr(dataset, f"file://{tmp_path}/{target}", **options)
    assert list(tmp_path.iterdir()) == []
    return str(error.value)


# -- the two vocabularies ------------------------------------------------------------------

SHUFFLE = {"id": "shuffle", "elementsize": 4}
ZLIB_2 = {"id": "zlib", "level": 2}
CODECS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"zlib": True}, [SHUFFLE, {"id": "zlib", "level": 4}]),
    ({"zlib": True, "complevel": 9}, [SHUFFLE, {"id": "zlib", "level": 9}]),
    ({"zlib": True, "shuffle": False}, [{"id": "zlib", "level": 4}]),
    ({"compression": "zlib"}, [SHUFFLE, {"id": "zlib", "level": 4}]),
    ({"compression": "gzip", "complevel": 0}, []),  # as in netCDF4-python
    ({"bzip2": True, "complevel": 0}, []),
    ({"zstd": True, "complevel": 0, "fletcher32": True}, [{"id": "fletcher32"}]),
    ({"zstd": True, "complevel": 22}, [SHUFFLE, {"id": "zstd", "level": 22}]),
    ({"bzip2": True, "complevel": 1}, [SHUFFLE, {"id": "bz2", "level": 1}]),
    ({"compression": "bzip2", "shuffle": False}, [{"id": "bz2", "level": 4}]),
    ({"fletcher32": True}, [{"id": "fletcher32"}]),
    ({"shuffle": True}, [SHUFFLE]),
    ({"zlib": False, "complevel": 5}, []),
    ({"szip": True}, [{"id": "szip", "mask": 32, "pixels-per-block": 8}]),
    (
        {"compression": "szip", "szip_coding": "ec", "szip_pixels_per_block": 16},
        [{"id": "szip", "mask": 4, "pixels-per-block": 16}],
    ),
    (
        {"compression": "blosc_zstd", "complevel": 3, "blosc_shuffle": 2},
        [{"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0}],
    ),
    ({"compressor": None}, []),
    ({"compressor": Zlib(2)}, [{"id": "zlib", "level": 2}]),
    ({"compressor": {"id": "zlib", "level": 2}}, [{"id": "zlib", "level": 2}]),
    ({"compressor": Zstd(5)}, [{"id": "zstd", "level": 5}]),
    ({"compressors": [BZ2(3)]}, [{"id": "bz2", "level": 3}]),
    ({"filters": [Shuffle(4)], "compressor": Zlib(1)}, [SHUFFLE, {"id": "zlib", "level": 1}]),
    (
        {"compressor": Blosc("lz4", 5, Blosc.SHUFFLE)},
        [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}],
    ),
]


@pytest.mark.parametrize(("encoding", "codecs"), CODECS, ids=lambda value: str(value)[:40])
def test_codecs(tmp_path: Path, encoding: dict[str, Any], codecs: list[dict[str, Any]]) -> None:
    assert [dict(c) for c in stored(tmp_path, cube(), **encoding).codecs] == codecs


@pytest.mark.parametrize(
    ("encoding", "chunks"),
    [
        ({"chunksizes": (7, 5)}, (7, 5)),
        ({"chunks": (7, 5)}, (7, 5)),
        ({"chunks": 8}, (8, 8)),
        ({"chunks": (-1, 5)}, (40, 5)),
        ({"chunks": (100, 64)}, (100, 64)),
        ({"contiguous": True}, (40, 64)),
        ({}, (40, 64)),
    ],
)
def test_chunks(tmp_path: Path, encoding: dict[str, Any], chunks: tuple[int, ...]) -> None:
    assert stored(tmp_path, cube(), **encoding).chunk_shape == chunks


@pytest.mark.parametrize(("endian", "order"), [("big", ">"), ("little", "="), ("native", "=")])
def test_endian(tmp_path: Path, endian: str, order: str) -> None:
    assert stored(tmp_path, cube(), endian=endian).dtype.byteorder == order


@pytest.mark.parametrize("fill", [-9, [-9], np.array([-9], "i2")])
def test_packing_and_fill(tmp_path: Path, fill: Any) -> None:
    dataset = xr.Dataset({"v": ("x", [1.5, np.nan, 3.0])})
    encoding = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": fill}
    found = stored(tmp_path, dataset, **encoding)
    assert (found.dtype, found.fill) == (np.dtype("i2"), -9)
    with netCDF4.Dataset(f"file://{tmp_path}/x#mode=nczarr,file") as back:
        back["v"].set_auto_maskandscale(False)
        assert back["v"][:].tolist() == [1, -9, 4]
        assert back["v"]._FillValue.dtype == np.int16


def test_every_key_is_taken(tmp_path: Path) -> None:
    """No key that the error for unknown ones names is refused itself."""
    values: dict[str, Any] = {
        "dtype": "f4",
        "units": "m",
        "scale_factor": 0.5,
        "add_offset": 1.0,
        "endian": "little",
        "chunks": (4, 4),
        "chunksizes": (4, 4),
        "complevel": 3,
        "_FillValue": None,
    }
    for key in sorted(valid_keys()):
        encoding = {"v": {key: values.get(key)}}
        to_nczarr(cube(), tmp_path / "x", mode="w", encoding=encoding)


@given(key=st.text(max_size=12).filter(lambda key: key not in valid_keys()))
def test_unknown_keys(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    information = ("source", "original_shape", "unlimited_dims", "shards", "serializer")
    if key in (*information, "object_codec"):
        return  # of no use, but xarray's own
    folder = tmp_path_factory.mktemp("x")
    message = refused(folder, cube(), encoding={"v": {key: 1}})
    assert "/v: unexpected encoding parameters" in message
    assert all(valid in message for valid in ("chunksizes", "compressor", "zlib", "quantize_mode"))


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"complevel": 10, "zlib": True}, "complevel 10 is not between 0 and 9"),
    ({"compression": "rar"}, "rar"),
    ({"chunks": (1, 2, 3)}, "dimensions"),
    ({"chunks": (1, -5)}, "not positive"),
    ({"chunks": "all"}, "not integers"),
    ({"endian": "middle"}, "middle"),
    ({"szip": True, "szip_pixels_per_block": 7}, "even"),
    ({"compressor": Delta("f4")}, "delta"),
    ({"compressor": 5}, "no codec"),
    ({"filters": [{"nothing": 1}]}, "no codec"),
    ({"shards": (40, 64)}, "Zarr 3"),
    ({"significant_digits": 99, "dtype": "f8"}, "BitGroom of float64 takes 1 to 15"),
    ({"significant_digits": 7}, "BitGroom of float32 takes 1 to 6"),
    ({"significant_digits": 3, "quantize_mode": "Magic"}, "Magic"),
    ({"dtype": "nonsense"}, "nonsense"),
    ({"dtype": "c16"}, "complex"),
    ({"dtype": "f2"}, "float16"),
]


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize(("encoding", "reason"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_impossible_encoding(tmp_path: Path, encoding: dict[str, Any], reason: str) -> None:
    message = refused(tmp_path, cube(), encoding={"v": encoding})
    assert "/v: " in message
    assert reason in message


def test_everything_wrong_is_listed_at_once(tmp_path: Path) -> None:
    dataset = cube().assign(
        a=("z", np.array([1j])),
        b=("z", np.array([{}], object)),
        c=("z", ["text"]),
        d=("z", [1.0]),
    )
    dataset["d"].attrs = {"nested": {1j}, "flag": 1j, "ok": 1}
    dataset.attrs["none"] = object()
    message = refused(
        tmp_path,
        dataset,
        encoding={"v": {"foo": 1}, "c": {"_nczarr_maxstrlen": 2}, "missing": {}},
        unlimited_dims=["nowhere"],
    )
    wanted = ["/a: ", "/b: ", "/c: ", "/d: attribute 'nested'", "'flag'", "'none'", "/v: ", "foo"]
    for what in (*wanted, "'missing'", "'nowhere'"):
        assert what in message, what
    assert "'ok'" not in message


def test_groups_that_a_tree_does_not_have(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/a": cube()})
    message = refused(tmp_path, tree, encoding={"/b": {"v": {"zlib": True}}})
    assert "unexpected encoding group '/b': the tree has ['/', '/a']" in message
    message = refused(tmp_path, tree, unlimited_dims={"/b": ["x"]})
    assert "unexpected unlimited_dims group '/b': the tree has ['/', '/a']" in message
    to_nczarr(
        tree, tmp_path / "x", encoding={"/a": {"v": {"zlib": True}}}, unlimited_dims={"a": "x"}
    )
    model = netcdf_model(f"file://{tmp_path}/x#mode=nczarr,file")
    assert model.groups["a"].dimensions["x"].unlimited


# -- what the data came with ---------------------------------------------------------------


@pytest.fixture(params=["netcdf4", "nczarr", "zarr"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Opens a dataset of chunks of 10 x 16, compressed, by one engine."""
    path = str(tmp_path_factory.mktemp("source") / "x")
    dataset = cube()
    if request.param == "netcdf4":
        encoding: Any = {"zlib": True, "shuffle": True, "complevel": 7, "chunksizes": (10, 16)}
        dataset.to_netcdf(path, engine="netcdf4", encoding={"v": encoding})
    elif request.param == "nczarr":
        encoding = {"zlib": True, "shuffle": True, "complevel": 7, "chunksizes": (10, 16)}
        to_nczarr(dataset, path, encoding={"v": encoding})
    else:
        encoding = {"compressors": Zlib(7), "filters": [Shuffle(4)], "chunks": (10, 16)}
        dataset.to_zarr(path, zarr_format=2, encoding={"v": encoding}, consolidated=True)
    return lambda **options: xr.open_dataset(path, engine=request.param, **options)


def test_inherited_layout(source: Any, tmp_path: Path) -> None:
    with source() as dataset:
        to_nczarr(dataset, tmp_path / "x")
    found = array(tmp_path / "x")
    assert found.chunk_shape == (10, 16)
    assert [dict(c) for c in found.codecs] == [SHUFFLE, {"id": "zlib", "level": 7}]


@pytest.mark.parametrize("part", [slice(0, 4), slice(3, 40), slice(0, 0)])
@pytest.mark.parametrize("chunks", [None, {}])
def test_part_of_inherited_layout(source: Any, tmp_path: Path, part: slice, chunks: Any) -> None:
    """Chunks that are longer than what is left are not taken over; dask's blocks are aligned."""
    with source(chunks=chunks) as dataset:
        dataset = dataset.isel(x=part)
        to_nczarr(dataset, tmp_path / "x", align_chunks=True)
        found = array(tmp_path / "x")
        assert all(c <= max(n, 1) for c, n in zip(found.chunk_shape, found.shape, strict=True))
        with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
            xr.testing.assert_identical(back.load(), dataset.load())


def test_inherited_chunks_that_old_releases_refuse(tmp_path: Path) -> None:
    to_nczarr(cube(), tmp_path / "x", encoding={"v": {"chunks": (100, 100)}})
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as dataset:
        to_nczarr(dataset, tmp_path / "y", compat="4.9.2")
    assert array(tmp_path / "y").chunk_shape == (40, 64)


def test_inherited_layout_of_another_shape(source: Any, tmp_path: Path) -> None:
    with source() as dataset:
        flat = xr.Dataset({"v": ("z", dataset["v"].values.ravel())})
        flat["v"].encoding = dict(dataset["v"].encoding)
        to_nczarr(flat, tmp_path / "x")
    assert array(tmp_path / "x").shape == (40 * 64,)


def test_explicit_encoding_replaces_all_of_the_inherited(source: Any, tmp_path: Path) -> None:
    with source() as dataset:
        to_nczarr(dataset, tmp_path / "x", encoding={"v": {"chunksizes": (5, 5)}})
    assert (array(tmp_path / "x").chunk_shape, array(tmp_path / "x").codecs) == ((5, 5), ())


@pytest.mark.parametrize("names", ["a", None])
def test_explicit_encoding_keeps_the_names_of_coordinates(tmp_path: Path, names: Any) -> None:
    dataset = xr.Dataset({"v": ("x", [1, 2])}, {"a": ("x", [1, 2]), "b": ("x", [1, 2])})
    dataset["v"].encoding["coordinates"] = names
    encoding: Any = {"v": {"zlib": True}}
    to_nczarr(dataset, tmp_path / "x", encoding=encoding)
    dataset.to_netcdf(tmp_path / "x.nc", engine="netcdf4", encoding=encoding)
    with (
        xr.open_dataset(tmp_path / "x", engine="nczarr", decode_cf=False) as back,
        xr.open_dataset(tmp_path / "x.nc", engine="netcdf4", decode_cf=False) as expected,
    ):
        assert back.attrs == expected.attrs
        assert back["v"].attrs == expected["v"].attrs


def test_relations_are_those_of_xarray() -> None:
    assert {"coordinates", *CF_RELATED_DATA} == RELATIONS


@pytest.mark.parametrize("asked", [{"zlib": True}, {"grid_mapping": None}, {"grid_mapping": "b"}])
def test_explicit_encoding_keeps_what_variables_belong_to(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    names = {"grid_mapping": "crs", "cell_measures": "area: cell", "bounds": "box"}
    dataset = xr.Dataset(
        {"v": ("x", [1.0, 2.0])},
        {"cell": ("x", [1.0, 1.0]), "box": (("x", "nv"), np.zeros((2, 2))), "crs": 0, "b": 1},
    )
    dataset["v"].encoding = dict(names)
    to_nczarr(dataset, tmp_path / "x", encoding={"v": asked})
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_coords=False) as back:
        found = {key: back["v"].attrs.get(key) for key in names}
    assert found == {**names, **{key: asked[key] for key in asked if key in names}}
    to_nczarr(dataset, tmp_path / "y", encoding={"v": dataset["v"].encoding})
    dataset["v"].attrs["cell_measures"] = "area: other"
    to_nczarr(dataset, tmp_path / "z", encoding={"v": asked})
    with xr.open_dataset(tmp_path / "z", engine="nczarr", decode_coords=False) as back:
        assert back["v"].attrs["cell_measures"] == "area: other"


def test_inherited_units_of_another_kind(tmp_path: Path) -> None:
    """Differences of times may have kept the units of the times."""
    dataset = xr.Dataset({"v": ("x", np.array([1, 2], "m8[D]").astype("m8[ns]"))})
    encoding = {"units": "days since 2000-01-01", "dtype": np.dtype("i4")}
    with pytest.raises(ExportError, match="'days since 2000-01-01s'"):
        to_nczarr(dataset, tmp_path / "x", encoding={"v": encoding})
    dataset["v"].encoding = encoding
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_timedelta=True) as back:
        xr.testing.assert_equal(back, dataset)


def test_the_dataset_keeps_its_encoding(tmp_path: Path) -> None:
    dataset = cube()
    dataset["v"].encoding = {"dtype": np.dtype("f8"), "zlib": True}
    to_nczarr(dataset, tmp_path / "x", encoding={"v": {"dtype": "f4"}})
    assert dataset["v"].encoding == {"dtype": np.dtype("f8"), "zlib": True}


UNSIGNED = {"dtype": "i1", "_Unsigned": "true", "_FillValue": np.int8(-1)}
WIDE = {"_Unsigned": "true", "_FillValue": 2**16 - 1}
OFF = [-138, -5]
INHERITED: list[tuple[Any, dict[str, Any], str, Any]] = [
    # what contradicts itself, or is no type of netCDF
    ([1, 2], {"dtype": "i2", "_FillValue": -1, "missing_value": -9}, "i2", [1, 2]),
    ([1, 2], {"dtype": "i2", "_FillValue": -1, "missing_value": "x"}, "i2", [1, 2]),
    ([0.5, 2], {"dtype": "nothing such"}, "f8", [0.5, 2]),
    ([0.5, 2], {"dtype": "c8"}, "f8", [0.5, 2]),
    # numbers that are not as they were when they were packed
    ([0.5, 1e6], {"dtype": "i1", "scale_factor": 0.5, "_FillValue": -1}, "f8", [0.5, 1e6]),
    ([0.5, 2], {"dtype": "i1", "scale_factor": 0.5, "_FillValue": -1}, "i1", [1, 4]),
    ([1, 300], {"dtype": "i1", "_FillValue": -1}, "i8", [1, 300]),
    ([1, 5], {"dtype": "i1", "_FillValue": -1}, "i1", [1, 5]),
    # numbers at the very end of a type
    ([1.0, 2.0**63], {"dtype": "i8", "_FillValue": -5}, "f8", [1, 2.0**63]),
    ([1.0, -(2.0**63)], {"dtype": "i8", "_FillValue": -5}, "i8", [1, -(2**63)]),
    ([1.0, 2.0**64], {"dtype": "u8", "_FillValue": 5}, "f8", [1, 2.0**64]),
    (np.array([1, 2**63], "u8"), {"dtype": "i8"}, "u8", [1, 2**63]),
    ([1.0, 127.5], {"dtype": "i1", "scale_factor": 1.0, "_FillValue": -1}, "f8", [1, 127.5]),
    ([1, np.nan], {"dtype": "i2"}, "f8", [1, np.nan]),
    ([np.nan, np.nan], {"dtype": "i2", "_FillValue": -1}, "i2", [-1, -1]),
    # a packed fill value is a number like others among those that are not packed
    (
        [0.0, 1e6],
        {"dtype": "i2", "scale_factor": 0.1, "add_offset": 5, "_FillValue": 0},
        "f8",
        [0.0, 1e6],
    ),
    ([-1, 1e6], {"dtype": "i2", "scale_factor": 0.1, "missing_value": -1}, "f8", [-1, 1e6]),
    # floats that do not fit would be infinite, and only those that are may be
    ([0.5, 1e300], {"dtype": "f4"}, "f8", [0.5, 1e300]),
    ([-np.inf, 1.0, np.nan], {"dtype": "f4"}, "f4", [-np.inf, 1, np.nan]),
    ([np.inf, -1e300], {"dtype": "f4", "_FillValue": 9.0}, "f8", [np.inf, -1e300]),
    ([0.5, 1e37], {"dtype": "f4", "scale_factor": 0.001}, "f8", [0.5, 1e37]),
    ([1.0, 200], UNSIGNED, "i1", [1, -56]),
    ([1.0, 300], UNSIGNED, "f8", [1, 300]),
    ([-5.0, 2], UNSIGNED, "f8", [-5, 2]),
    ([1.0, 200], {"dtype": "u1", "_Unsigned": "false", "_FillValue": 100}, "f8", [1, 200]),
    # of these xarray itself would not write _Unsigned
    (np.array([1, 254], "u1"), {"dtype": "i1", "_Unsigned": "true"}, "i1", [1, -2]),
    (np.array([1, 2**64 - 2], "u8"), {"dtype": "i8", "_Unsigned": "true"}, "i8", [1, -2]),
    (np.array([1, -2], "i2"), {"dtype": "u2", "_Unsigned": "false"}, "u2", [1, 65534]),
    ([1.0, 254], {"dtype": "i1", "_Unsigned": "true"}, "i1", [1, -2]),
    ([0.5, 127], {"dtype": "i1", "_Unsigned": "true", "scale_factor": 0.5}, "i1", [1, -2]),
    ([1.0, 300], {"dtype": "i1", "_Unsigned": "true"}, "f8", [1, 300]),
    # a fill value as it is read lets xarray calculate in the type of the data
    (np.array([7, 254], "u1"), WIDE | {"dtype": "i2"}, "i2", [7, 254]),
    (
        np.array([7, 4e9], "f4"),
        WIDE | {"dtype": "i4", "_FillValue": 2**32 - 1},
        "i4",
        [7, 4_000_000_000 - 2**32],
    ),
    # it means nothing for floats, and rounded them
    ([1.5, -3.25], {"dtype": "f4", "_Unsigned": "true", "_FillValue": 9.0}, "f4", [1.5, -3.25]),
    ([1.5, -3.25], {"_Unsigned": "false", "missing_value": 9.0}, "f8", [1.5, -3.25]),
    # integers that would wrap around in their own type
    (np.array([-128, 5], "i1"), {"dtype": "i2", "add_offset": 10, "_FillValue": -999}, "i2", OFF),
    (np.array([3, 5], "u1"), {"add_offset": 10, "missing_value": 99}, "f8", [-7, -5]),
    (np.array([3, 5], "u1"), {"dtype": "i2", "scale_factor": 0.5, "_FillValue": 0}, "i2", [6, 10]),
    (
        np.array([1000], "f2"),
        {"dtype": "f8", "scale_factor": 2**-7, "_FillValue": 0},
        "f8",
        [128e3],
    ),
    ([-(2**63), 5], {"dtype": "i2", "_FillValue": -1}, "i8", [-(2**63), 5]),
    # of a constant field, packed by its range
    ([2.5, 2.5], {"dtype": "i2", "scale_factor": 0.0, "add_offset": 2.5}, "f8", [2.5, 2.5]),
    ([2.5, 2.5], {"scale_factor": 0.0, "add_offset": 2.5, "_FillValue": -1}, "f8", [2.5, 2.5]),
    ([2.5, 2.5], {"dtype": "i2", "scale_factor": np.inf, "_FillValue": -1}, "f8", [2.5, 2.5]),
    ([2.5, 2.5], {"dtype": "f4", "add_offset": np.nan}, "f8", [2.5, 2.5]),
]


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize(("values", "encoding", "dtype", "expected"), INHERITED)
def test_inherited_encoding_changes_no_number(
    tmp_path: Path, values: Any, encoding: dict[str, Any], dtype: str, expected: Any
) -> None:
    dataset = xr.Dataset({"v": ("x", np.array(values))})
    dataset["v"].encoding = encoding
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_cf=False) as back:
        assert back["v"].dtype == dtype
        np.testing.assert_array_equal(back["v"].values, expected)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"].values, values)


@pytest.mark.parametrize("target", ["x.nczarr", "x.zarr#mode=zarr", "x.nca"])
@pytest.mark.parametrize("chunks", [None, {}])
def test_integers_of_the_other_sign_without_a_fill_value(
    tmp_path: Path, target: str, chunks: Any
) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", None)
        variable = file.createVariable("v", "i1", ("x",))
        variable._Unsigned = "true"
        variable[:] = np.array([1, 254, 5], "u1")
    with xr.open_dataset(tmp_path / "x.nc", engine="netcdf4", chunks=chunks) as dataset:
        assert dataset["v"].values.tolist() == [1, 254, 5]
        url = f"file://{tmp_path}/{target}"
        if target.endswith(".nca"):
            dataset.nczarr.to_cfa(url)
        else:
            to_nczarr(dataset, url)
            to_nczarr(dataset, url, append_dim="x")
    times = 1 if target.endswith(".nca") else 2
    with xr.open_dataset(url, engine="nczarr") as back:
        assert back["v"].values.tolist() == [1, 254, 5] * times
        assert back["v"].encoding["dtype"] == "i1"


@pytest.mark.filterwarnings("ignore:saving variable:xarray.SerializationWarning")
@pytest.mark.parametrize(
    ("values", "encoding", "reason"),
    [
        ([0.5, 1e6], {"dtype": "i1", "scale_factor": 0.5, "_FillValue": -1}, "the value 1000000.0"),
        ([1, np.nan], {"dtype": "i2", "scale_factor": 2}, "missing values, and has no _Fill"),
        ([1.0, 300], UNSIGNED, "the value 300.0, which uint8 cannot hold"),
        ([1, 2.0**63], {"dtype": "i8", "_FillValue": -5}, "the value 9.2.*int64 cannot hold"),
        ([1, 2.0**64], {"dtype": "i8", "_FillValue": -5}, r"1\.8446744073709552e\+19, which int64"),
        ([np.inf, 1e300], {"dtype": "f4"}, "the value 1e.300, which float32 cannot hold"),
    ],
)
def test_numbers_of_dask_that_inherited_encoding_would_change(
    tmp_path: Path, values: Any, encoding: dict[str, Any], reason: str
) -> None:
    dataset = xr.Dataset({"v": ("x", np.array(values))}).chunk(x=1)
    dataset["v"].encoding = encoding
    with pytest.raises(FormatError, match=f"{reason}.*its encoding came with the data"):
        to_nczarr(dataset, tmp_path / "x")


@pytest.mark.filterwarnings("ignore:saving variable:xarray.SerializationWarning")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("values", "encoding", "reason"),
    [
        ([0.5, 1e6], {"dtype": "i1", "scale_factor": 0.5, "_FillValue": -1}, "the value 1000000.0"),
        ([1, 1000], {"dtype": "i1"}, "the value 1000, which int8 cannot hold"),
        ([-1.0, 2], {"dtype": "u1"}, "the value -1.0, which uint8 cannot hold"),
        ([1, np.nan], {"dtype": "i2"}, "missing values, and has no _FillValue"),
        ([0.5, 1e300], {"dtype": "f4"}, "the value 1e.300, which float32 cannot hold"),
        ([1 + 0j, 1j], {"dtype": "f8"}, "complex numbers, which float64 cannot hold"),
        ([1 + 0j, 1j], {"add_offset": 0.5}, "complex numbers, which float64 cannot hold"),
        ([0, 1, 2], {"dtype": "bool"}, "the value 2, which bool cannot hold"),
        ([0.0, np.nan], {"dtype": "bool"}, "the value nan, which bool cannot hold"),
        (
            np.array(["2000-01-01"], "M8[ns]"),
            {"dtype": "i4", "units": "milliseconds since 1970-01-01"},
            "the value 946684800000, which int32 cannot hold",
        ),
        (
            np.array(["2000-01-01", "NaT"], "M8[ns]"),
            {"dtype": "i4", "units": "days since 1970-01-01"},
            "missing times, and has no _FillValue",
        ),
        (
            np.array(["2000-01-01", "NaT"], "M8[ns]"),
            {"dtype": "u8", "units": "days since 1970-01-01", "_FillValue": np.uint64(2**64 - 2)},
            "missing times, and its _FillValue is larger than int64 can hold",
        ),
    ],
)
def test_numbers_that_the_encoding_asked_for_cannot_hold(
    tmp_path: Path, values: Any, encoding: dict[str, Any], reason: str, lazy: bool
) -> None:
    """`to_netcdf` stores other numbers in their place."""
    dataset = xr.Dataset({"v": ("x", np.array(values))})
    if lazy:
        dataset = dataset.chunk(x=1)
    with pytest.raises((ExportError, FormatError), match=f"/v: holds {reason}") as caught:
        to_nczarr(dataset, tmp_path / "x", encoding={"v": encoding})
    assert "came with the data" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("encoding", [{"dtype": np.dtype("f8")}, {"scale_factor": 2.0}])
@pytest.mark.filterwarnings("ignore:Casting complex values")  # of the block that has none
def test_complex_numbers_lose_nothing(tmp_path: Path, encoding: dict[str, Any], lazy: bool) -> None:
    """An encoding of real numbers came with the values of before."""
    dataset = xr.Dataset({"v": ("x", np.array([1, 1j]), {}, encoding)})
    if lazy:
        dataset = dataset.chunk(x=1)
    with pytest.raises((ExportError, FormatError), match=r"/v: .* complex"):
        to_nczarr(dataset, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "bool"])
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_numbers_that_another_type_holds(tmp_path: Path, lazy: bool, dtype: str) -> None:
    values = np.array([0, 1], "c16" if dtype == "f8" else "i8")
    dataset = xr.Dataset({"v": ("x", values)})
    if lazy:
        dataset = dataset.chunk(x=1)
    to_nczarr(dataset, tmp_path / "x", encoding={"v": {"dtype": dtype}})
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].dtype == dtype
        np.testing.assert_array_equal(back["v"].values, values.real)


@pytest.mark.parametrize("lazy", [False, True])
def test_numbers_that_unsigned_has_read_as_they_were(tmp_path: Path, lazy: bool) -> None:
    """They wrap around, and the attribute undoes that."""
    values = np.array([1, 254], "u1")
    dataset = xr.Dataset({"v": ("x", values, {"_Unsigned": "true"})})
    if lazy:
        dataset = dataset.chunk(x=1)
    to_nczarr(dataset, tmp_path / "x", encoding={"v": {"dtype": "i1"}})
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"].values, values)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["i8", "f8"])
@pytest.mark.parametrize("units", ["nanoseconds", "microseconds", "milliseconds"])
@pytest.mark.parametrize("kind", ["m", "M"])
def test_units_that_are_finer_than_the_resolution_of_the_times(
    tmp_path: Path, kind: str, units: str, dtype: str, lazy: bool
) -> None:
    """xarray divides such times by zero: `to_netcdf` stores NaT, or infinity."""
    values = np.array([86400, 2, "NaT"], f"{kind}8[s]")
    dataset = xr.Dataset({"v": ("x", values)})
    if lazy:
        dataset = dataset.chunk(x=3)
    units += " since 1970-01-01" if kind == "M" else ""
    to_nczarr(dataset, tmp_path / "x", encoding={"v": {"units": units, "dtype": dtype}})
    to_nczarr(dataset, tmp_path / "x", append_dim="x", align_chunks=True)
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_timedelta=True) as back:
        np.testing.assert_array_equal(back["v"].values, np.concatenate((values, values)))
        assert back["v"].encoding["units"] == units


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ["m", "M"])
def test_times_that_finer_units_cannot_hold(tmp_path: Path, kind: str, lazy: bool) -> None:
    """numpy before 2.5 wraps them around."""
    dataset = xr.Dataset({"v": ("x", np.array([2, 10**11], f"{kind}8[s]"))})
    if lazy:
        dataset = dataset.chunk(x=1)
    units = "nanoseconds since 1970-01-01" if kind == "M" else "nanoseconds"
    encoding = {"v": {"units": units, "dtype": "i8"}}
    with pytest.raises((ExportError, OverflowError)):
        to_nczarr(dataset, tmp_path / "x", encoding=encoding)
    assert list(tmp_path.iterdir()) == []


DAY = np.timedelta64(1, "D")
NEW_YEAR = np.datetime64("2000-01-01", "s")
DAYS = {"units": "days since 1999-01-01", "calendar": "standard"}
TIMES: list[tuple[Any, dict[str, Any], str, str]] = [
    ([NEW_YEAR, np.datetime64("NaT", "s")], {"dtype": "i4", **DAYS}, "i8", "missing times"),
    ([NEW_YEAR, NEW_YEAR + 40000 * DAY], {"dtype": "i2", **DAYS}, "i8", "the value 40365"),
    ([NEW_YEAR, NEW_YEAR - 400 * DAY], {"dtype": "u4", **DAYS}, "i8", "the value -35"),
    ([40000 * DAY, DAY], {"dtype": "i2", "units": "days"}, "i8", "the value 40000"),
    ([cftime.DatetimeNoLeap(2120, 1, 1)], {"dtype": "i2", **DAYS}, "i8", "the value 441"),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("values", "encoding", "dtype", "reason"), TIMES)
def test_inherited_encoding_changes_no_time(
    tmp_path: Path, values: Any, encoding: dict[str, Any], dtype: str, reason: str, lazy: bool
) -> None:
    dataset = xr.Dataset({"v": ("x", np.array(values))})
    if dataset["v"].dtype == object:
        encoding = {**encoding, "calendar": "noleap"}
    dataset["v"].encoding = encoding
    if lazy:
        with pytest.raises(
            (ExportError, FormatError), match=f"/v: holds {reason}.*its encoding came with"
        ):
            to_nczarr(dataset.chunk(x=1), tmp_path / "x")
        return
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_cf=False) as back:
        assert back["v"].dtype == dtype
        assert back["v"].attrs["units"].startswith(encoding["units"])
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_timedelta=True) as back:
        np.testing.assert_array_equal(back["v"].values, np.array(values))


@pytest.mark.parametrize("mark", ["_FillValue", "missing_value"])
def test_times_that_fit_keep_their_inherited_encoding(tmp_path: Path, mark: str) -> None:
    times = np.array([NEW_YEAR, np.datetime64("NaT", "s")])
    dataset = xr.Dataset({"v": ("x", times), "none": ("y", times[:0]), "one": times[0]})
    for name in dataset:
        dataset[name].encoding = {"dtype": np.dtype("i2"), mark: np.int16(-1), **DAYS}
    for part in (dataset, dataset.chunk()):
        to_nczarr(part, tmp_path / "x", mode="w")
        with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_cf=False) as back:
            assert {back[name].dtype for name in dataset} == {np.dtype("i2")}
            assert back["one"].item() == 365
            assert back["v"].attrs[mark].dtype == "i2"
            assert back["v"].values.tolist() == [365, -1]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    "encoding",
    [
        {"dtype": "i8", "_FillValue": -(2**63) + 2},
        {"dtype": "u8", "_FillValue": 2**64 - 2, "scale_factor": 0.5, "add_offset": 1.0},
        {"dtype": "i8", "missing_value": np.int64(-(2**63) + 2)},
    ],
)
def test_fill_values_that_floats_cannot_hold(
    tmp_path: Path, encoding: dict[str, Any], explicit: bool, lazy: bool
) -> None:
    """The first ones are netCDF's own of these types."""
    dataset = xr.Dataset({"v": ("x", [7.0, np.nan])})
    dataset = dataset.chunk(x=1) if lazy else dataset
    if explicit:
        to_nczarr(dataset, tmp_path / "x", encoding={"v": encoding})
    else:
        dataset["v"].encoding = encoding
        to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_cf=False) as back:
        number, fill = back["v"].to_numpy().tolist()
    assert fill == encoding.get("_FillValue", encoding.get("missing_value"))
    assert number == (7 - encoding.get("add_offset", 0)) / encoding.get("scale_factor", 1)
    assert dataset["v"].isnull().to_numpy().tolist() == [False, True]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("inherited", [False, True])
def test_a_fill_value_longer_than_all_texts(tmp_path: Path, inherited: bool, lazy: bool) -> None:
    dataset = xr.Dataset({"v": ("x", np.array(["a", "b"], object))})
    encoding = {"v": {"_FillValue": "none"}}
    if inherited:
        dataset["v"].encoding, encoding = encoding["v"], {}
    to_nczarr(dataset.chunk(x=1) if lazy else dataset, tmp_path / "x", encoding=encoding)
    with xr.open_dataset(tmp_path / "x", engine="nczarr", mask_and_scale=False) as back:
        assert back["v"].values.tolist() == ["a", "b"]
        assert back["v"].attrs["_FillValue"] == "none"


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([b"ab", b""], {"_FillValue": b"NA"}),
        ([b"ab", b""], {"_FillValue": "NA", "dtype": "S1"}),
        (np.array([b"ab", np.nan], object), {"_FillValue": b"NA", "dtype": "S2"}),
    ],
)
def test_an_inherited_fill_value_of_several_bytes(
    tmp_path: Path, values: Any, encoding: Any
) -> None:
    """Zarr 2 has them, for bytes that become characters here."""
    dataset = xr.Dataset({"v": ("x", values)})
    dataset["v"].encoding = encoding
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].values.tolist() == [b"ab", b""]
        assert "_FillValue" not in back["v"].encoding


def test_the_fill_value_is_the_first_attribute(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": ("x", [1.0], {"units": "K", "a": "b"})})
    to_nczarr(dataset, tmp_path / "x")
    dataset.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    with (
        xr.open_dataset(tmp_path / "x", engine="nczarr", decode_cf=False) as back,
        xr.open_dataset(tmp_path / "x.nc", engine="netcdf4", decode_cf=False) as expected,
    ):
        assert list(back["v"].attrs) == list(expected["v"].attrs) == ["_FillValue", "units", "a"]


@pytest.mark.parametrize(
    ("encoding", "codecs"),
    [
        ({"zlib": True, "complevel": -1}, [SHUFFLE, {"id": "zlib", "level": 4}]),
        ({"compression": "gzip", "compression_opts": 7}, [SHUFFLE, {"id": "zlib", "level": 7}]),
        ({"filters": [FixedScaleOffset(0, 10, "f4", "i2")], "compressor": Zlib(2)}, [ZLIB_2]),
        ({"filters": [Delta("i4")], "compressor": Zlib(2)}, [ZLIB_2]),
        (
            {"compressors": (BloscCodec(cname="lz4", clevel=3, shuffle="bitshuffle", typesize=4),)},
            [{"id": "blosc", "cname": "lz4", "clevel": 3, "shuffle": 2, "blocksize": 0}],
        ),
        ({"compressors": (GzipCodec(level=2),)}, [{"id": "gzip", "level": 2}]),
        ({"compressors": (object(),)}, []),
    ],
)
def test_inherited_codecs(
    tmp_path: Path, encoding: dict[str, Any], codecs: list[dict[str, Any]]
) -> None:
    """Those of Zarr 3 become those of Zarr 2; those that may change values are left out."""
    dataset = cube()
    dataset["v"].encoding = encoding
    to_nczarr(dataset, f"file://{tmp_path}/x#mode=zarr")
    assert [dict(c) for c in array(tmp_path / "x").codecs] == codecs
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), dataset)


# -- empty chunks --------------------------------------------------------------------------


@pytest.mark.parametrize(("wish", "count"), [(None, 1), (False, 1), (True, 4)])
@pytest.mark.parametrize("lazy", [False, True])
def test_write_empty_chunks(tmp_path: Path, wish: bool | None, count: int, lazy: bool) -> None:
    dataset = xr.Dataset({"v": ("x", np.array([1.0, *[np.nan] * 7]))})
    dataset = dataset.chunk(x=2) if lazy else dataset
    encoding = {"v": {"chunks": (2,)}}
    to_nczarr(dataset, tmp_path / "x", encoding=encoding, write_empty_chunks=wish)
    names = [p.name for p in (tmp_path / "x" / "v").iterdir() if not p.name.startswith(".")]
    assert len(names) == count
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), dataset.load())


# -- text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("compat", ["4.9.3", "4.9.2"])
def test_length_of_text_comes_from_the_data(tmp_path: Path, compat: str, lazy: bool) -> None:
    texts = np.array(["a", "é" * 5, "", "four"], object)
    dataset = xr.Dataset({"v": ("x", texts)})
    to_nczarr(dataset.chunk(x=2) if lazy else dataset, tmp_path / "x", compat=compat)
    assert array(tmp_path / "x").dtype == "S10"
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].values.tolist() == texts.tolist()


@pytest.mark.parametrize("missing", [[], [None, np.nan]])
def test_a_length_of_texts_says_that_these_are_texts(tmp_path: Path, missing: list[Any]) -> None:
    """xarray makes numbers of objects that are all missing, or none at all."""
    dataset = xr.Dataset({"v": ("x", np.array(missing, object))})
    encoding = {"v": {"_nczarr_maxstrlen": 8}}
    to_nczarr(dataset, tmp_path / "x", encoding=encoding, unlimited_dims=["x"])
    to_nczarr(xr.Dataset({"v": ("x", ["abc", "é"])}), tmp_path / "x", append_dim="x")
    assert opened(tmp_path / "x")["v"].values.tolist() == ["" for _ in missing] + ["abc", "é"]


@pytest.mark.parametrize("target", ["x", "x#mode=zarr"])
@pytest.mark.parametrize("how", ["attribute", "encoding"])
def test_maxstrlen(tmp_path: Path, how: str, target: str) -> None:
    dataset = xr.Dataset({"v": ("x", ["abc", "de"])})
    options: dict[str, Any] = {"encoding": {"v": {"_nczarr_maxstrlen": 2}}}
    if how == "attribute":
        dataset["v"].attrs["_nczarr_maxstrlen"] = np.int32(2)
        options = {}
    assert "3 bytes" in refused(tmp_path, dataset, target, **options)
    dataset["v"].attrs.pop("_nczarr_maxstrlen", None)
    to_nczarr(dataset, tmp_path / "y", encoding={"v": {"_nczarr_maxstrlen": 20}})
    assert array(tmp_path / "y").dtype == "S20"


@pytest.mark.parametrize(("kind", "longer"), [("U2", "longer text"), ("S2", b"longer text")])
@pytest.mark.parametrize("lazy", [False, True])
def test_inherited_length_cuts_nothing_off(
    tmp_path: Path, kind: str, longer: Any, lazy: bool
) -> None:
    """xarray would cut text to the dtype in the encoding."""
    dataset = xr.Dataset({"v": ("x", np.array([longer, longer[:1]]))})
    dataset["v"].encoding["dtype"] = np.dtype(kind)
    to_nczarr(dataset.chunk(x=1) if lazy else dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].values.tolist() == [longer, longer[:1]]


@pytest.mark.parametrize("dtype", [str, "U2", np.dtype("U2")], ids=str)
@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_bytes_become_text_if_they_are_asked_to(
    tmp_path: Path, dtype: Any, inherited: bool, lazy: bool
) -> None:
    dataset = xr.Dataset({"v": ("x", np.array(["ab", "é€"]).astype(object))})
    texts = dataset["v"].to_numpy().tolist()
    dataset["v"] = ("x", np.array([text.encode() for text in texts]))
    dataset["c"] = ("y", np.array([b"a", b"b"]))
    dataset = dataset.chunk(x=1, y=2) if lazy else dataset
    encoding: dict[str, Any] = {"v": {"dtype": dtype}, "c": {"dtype": dtype}}
    if inherited:
        for name in ("v", "c"):
            dataset[name].encoding = encoding.pop(name)
    to_nczarr(dataset, tmp_path / "x", encoding=encoding)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].values.tolist() == texts
        assert back["c"].values.tolist() == ["a", "b"]


@pytest.mark.parametrize("dtype", [str, "S1"])
@pytest.mark.parametrize("values", [[], [None, np.nan]])
def test_text_of_which_nothing_is_there(tmp_path: Path, dtype: Any, values: list[Any]) -> None:
    """xarray makes numbers of it, to which no text could be appended."""
    dataset = xr.Dataset({"v": ("x", np.array(values, object))})
    to_nczarr(dataset, tmp_path / "x", encoding={"v": {"dtype": dtype, "char_dim_name": "n"}})
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].dtype.kind in "UO"
        assert back["v"].values.tolist() == [""] * len(values)


def test_append_cuts_nothing_off(tmp_path: Path) -> None:
    to_nczarr(xr.Dataset({"v": ("x", ["ab", "cd"])}), tmp_path / "x", unlimited_dims=["x"])
    with pytest.raises(ExportError, match="5 bytes"):
        to_nczarr(xr.Dataset({"v": ("x", ["longe"])}), tmp_path / "x", append_dim="x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].values.tolist() == ["ab", "cd"]


def test_append_with_encoding_is_refused(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": ("x", [1, 2])})
    to_nczarr(dataset, tmp_path / "x")
    with pytest.raises(ExportError, match="encoding"):
        to_nczarr(dataset, tmp_path / "x", append_dim="x", encoding={"v": {"zlib": True}})


@pytest.mark.parametrize("target", ["x", "x#mode=zarr"])
def test_text_of_one_byte_stays_text(tmp_path: Path, target: str) -> None:
    """In pure Zarr one byte is a character, and characters are joined to texts."""
    dataset = xr.Dataset({"v": (("x", "y"), np.array([["1", "a"], ["2", "b"]], object))})
    to_nczarr(dataset, f"file://{tmp_path}/{target}")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), dataset)


# -- unusual values ------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "bool": [True, False, True],
    "datetime": np.array(["2000-01-01", "NaT", "2001-01-01T00:00:01"], "M8[ns]"),
    "timedelta": np.array([1, 2, 3600 * 10**9], "m8[ns]"),
    "floats as objects": np.array([1.5, np.nan, 2.5], object),
    "bytes": np.array([b"ab", b"", b"abc"]),
    "nothing": np.zeros(0, "f4"),
    "no text": np.array([], dtype=object),
    "extremes": np.array([np.iinfo("i8").min, 0, np.iinfo("i8").max]),
    "unsigned": np.array([0, 2**64 - 1], "u8"),
    "float32": np.array([np.inf, -0.0, 1e-45], "f4"),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_unusual_values(tmp_path: Path, name: str, lazy: bool) -> None:
    dataset = xr.Dataset({"v": ("x", VALUES[name])})
    to_nczarr(dataset.chunk(x=2) if lazy else dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr", decode_timedelta=True) as back:
        if name == "floats as objects":
            dataset["v"] = dataset["v"].astype("f8")
        xr.testing.assert_equal(back.load(), dataset)


def test_what_is_missing_in_text_is_empty(tmp_path: Path) -> None:
    for chunks in (None, 1):
        dataset = xr.Dataset({"v": ("x", np.array(["a", None, np.nan, "b"], object))})
        dataset = dataset.chunk(x=chunks) if chunks else dataset
        to_nczarr(dataset, tmp_path / "x", mode="w")
        with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
            assert back["v"].values.tolist() == ["a", "", "", "b"]


def test_a_single_text_of_dask_that_is_missing(tmp_path: Path) -> None:
    """dask makes the object of an array without dimensions, which is no array."""
    texts = xr.Dataset({"v": ("x", np.array([np.nan, "b"], object))}).chunk(x=2)
    to_nczarr(texts.isel(x=0), tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].item() == ""


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("values", "encoding", "wanted"),
    [
        ([None, b"ab", b"c"], {}, [b"", b"ab", b"c"]),
        ([None, b"ab", b"c"], {"_FillValue": b"x"}, [None, b"ab", b"c"]),
        ([None, b"ab", b"c"], {"dtype": str}, ["", "ab", "c"]),
        ([None, True, False], {}, [None, 1, 0]),
        ([3, None, 2], {}, [3, None, 2]),
    ],
)
def test_objects_that_are_no_text(
    tmp_path: Path, values: list[Any], encoding: dict[str, Any], wanted: list[Any], lazy: bool
) -> None:
    """As where `where` and `shift` leave gaps in bytes, and in what is true or false."""
    dataset = xr.Dataset({"v": ("x", np.array(values, object))})
    dataset = dataset.chunk(x=1) if lazy else dataset
    to_nczarr(dataset, tmp_path / "x", encoding={"v": encoding})
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back["v"].variable, xr.Variable("x", np.array(wanted, object)))


@pytest.mark.parametrize("lazy", [False, True])
def test_bytes_that_are_objects_are_appended(tmp_path: Path, lazy: bool) -> None:
    new = xr.Dataset({"v": ("x", np.array([b"abc", None], object))})
    to_nczarr(xr.Dataset({"v": ("x", [b"ab", b"def"])}), tmp_path / "x", unlimited_dims="x")
    to_nczarr(new.chunk(x=1) if lazy else new, tmp_path / "x", append_dim="x", safe_chunks=False)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].values.tolist() == [b"ab", b"def", b"abc", b""]


@pytest.mark.parametrize("lazy", [False, True])
def test_integers_that_some_files_lack(tmp_path: Path, lazy: bool) -> None:
    """They are floats then, and their encoding has no `_FillValue` for those that are missing."""
    to_nczarr(xr.Dataset({"v": ("x", [1, 2]), "w": ("x", [1, 2])}), tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr", chunks={} if lazy else None) as first:
        both = xr.concat([first, first.drop_vars("v")], "x", data_vars="all")
        assert both["v"].encoding["dtype"] == "i8"
        to_nczarr(both, tmp_path / "both", align_chunks=True)
    with xr.open_dataset(tmp_path / "both", engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"], [1, 2, np.nan, np.nan])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("values", [["a", 3], ["a", {}], [[1], [2, 3]]])
def test_objects_of_no_type(tmp_path: Path, values: list[Any], lazy: bool) -> None:
    objects = np.empty(2, object)
    objects[:] = values
    dataset = xr.Dataset({"v": ("x", objects)})
    assert "/v: " in refused(tmp_path, dataset.chunk(x=1) if lazy else dataset)


@pytest.mark.parametrize(
    "value", [object(), {"a": 1j}, 1j, [[1, 1j]], np.datetime64("2000-01-01"), b"\xff", "a\0b"]
)
def test_impossible_attributes(tmp_path: Path, value: Any) -> None:
    dataset = cube()
    dataset["v"].attrs["some"] = value
    dataset.attrs["other"] = value
    message = refused(tmp_path, dataset)
    assert "/v: attribute 'some'" in message
    assert "/: attribute 'other'" in message


@pytest.mark.parametrize(
    ("value", "netcdf"),
    [
        (None, "null"),
        ({}, "{}"),
        ({"crs": [{"id": 3035}]}, '{"crs": [{"id": 3035}]}'),
        (True, 1),
        (np.True_, 1),
        ([[1, 2]], "[[1,2]]"),
        (["a", 1], '["a",1]'),
        ([True, False], [1, 0]),
        (2**70, float(2**70)),
    ],
    ids=repr,
)
def test_json_attributes(tmp_path: Path, value: Any, netcdf: Any) -> None:
    """NCZarr keeps the JSON, of which netCDF-C reads text or numbers; Zarr has it again."""
    dataset = cube().assign_attrs(other=value)
    dataset["v"].attrs["some"] = value
    with pytest.warns(LossWarning, match="JSON that netCDF lacks .* /v:some"):
        to_nczarr(dataset, tmp_path / "x")
    with netCDF4.Dataset(f"file://{tmp_path}/x#mode=nczarr,file") as nc:
        for found in (nc.other, nc["v"].some):
            assert found == netcdf if isinstance(netcdf, str) else np.array_equal(found, netcdf)
    assert main(["copy", str(tmp_path / "x"), str(tmp_path / "y.zarr"), "--format", "Zarr3"]) == 0
    to_nczarr(dataset, f"file://{tmp_path}/z.zarr#mode=zarr,file")
    wanted = float(value) if type(value) is int else value
    for name, held in (("y.zarr", wanted), ("z.zarr", value)):
        with xr.open_dataset(tmp_path / name, engine="zarr", consolidated=False) as back:
            assert json.dumps(back.attrs["other"]) == json.dumps(held, default=bool)
            assert json.dumps(back["v"].attrs["some"]) == json.dumps(held, default=bool)
        with xr.open_dataset(tmp_path / name, engine="nczarr") as back:
            assert back.attrs["other"] == held
            assert back["v"].attrs["some"] == held


@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, np.arange(50_000), np.linspace(0, 1, 20_000), ["é" * 100] * 1000, "", 2**62],
    ids=["text", "integers", "floats", "texts", "empty", "number"],
)
def test_huge_attributes(tmp_path: Path, value: Any) -> None:
    to_nczarr(xr.Dataset(attrs={"some": value}), tmp_path / "x")
    with netCDF4.Dataset(f"file://{tmp_path}/x#mode=nczarr,file") as back:
        found = back.getncattr("some")
        assert np.array_equal(found, value or "\0" if isinstance(value, str) else value)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as ours:
        assert np.array_equal(ours.attrs["some"], value)


# -- unlimited dimensions ------------------------------------------------------------------


@pytest.mark.parametrize("target", ["x", "x#mode=zarr,file"])
def test_a_fill_value_that_is_no_text(tmp_path: Path, target: str) -> None:
    dataset = xr.Dataset({"c": ("x", np.array([b"a", b"\xff"], "S1"))})
    message = refused(tmp_path, dataset, target, encoding={"c": {"_FillValue": b"\xff"}})
    assert "/c: attribute '_FillValue': holds bytes that are not UTF-8" in message


def test_unlimited_dimensions(tmp_path: Path) -> None:
    dataset = cube()
    dataset.encoding["unlimited_dims"] = {"x", "gone"}
    for number, (given_, wanted) in enumerate([(None, "x"), (["y"], "y"), ("y", "y"), ([], "")]):
        to_nczarr(dataset, tmp_path / str(number), unlimited_dims=given_)
        model = netcdf_model(f"file://{tmp_path}/{number}#mode=nczarr,file")
        assert "".join(d.name for d in model.dimensions.values() if d.unlimited) == wanted


@pytest.mark.parametrize("compat", ["4.9.2", "4.8.1"])
def test_unlimited_dimensions_of_old_releases(tmp_path: Path, compat: str) -> None:
    """Asked for they are refused; those that the data came with become fixed."""
    dataset = cube()
    assert "4.9.3" in refused(tmp_path, dataset, compat=compat, unlimited_dims=["x"])
    dataset.encoding["unlimited_dims"] = {"x"}
    to_nczarr(dataset, tmp_path / "x", compat=compat)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert not back.encoding.get("unlimited_dims")
        xr.testing.assert_identical(back.load(), dataset)


@pytest.mark.parametrize(
    ("compat", "dataset", "reason"),
    [
        ("4.8.1", xr.Dataset({"v": 1}), "scalar"),
        ("4.8.1", xr.Dataset({"v": ("x", ["a"])}), "string"),
        ("4.8.1", xr.Dataset(attrs={"v": ["a", "b"]}), "string"),
        ("4.8.1", xr.Dataset({"v": ("x", np.zeros(0))}), "length 0"),
        ("4.9.2", xr.Dataset({"v": ("x", np.zeros(0))}), "length 0"),
        ("4.9.1", xr.Dataset(), "4.9.1"),
    ],
)
def test_what_old_releases_lack(
    tmp_path: Path, compat: str, dataset: xr.Dataset, reason: str
) -> None:
    assert reason in refused(tmp_path, dataset, compat=compat)


def test_compression_for_release_4_8_1(tmp_path: Path) -> None:
    dataset = cube()
    message = refused(tmp_path, dataset, compat="4.8.1", encoding={"v": {"zlib": True}})
    assert "no compression" in message
    dataset["v"].encoding["zlib"] = True
    to_nczarr(dataset, tmp_path / "x", compat="4.8.1")
    assert array(tmp_path / "x").codecs == ()


@pytest.mark.parametrize("scale", [2, np.int8(2)])
@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("inherited", [True, False])
def test_an_integer_scale_keeps_fractions(
    tmp_path: Path, scale: Any, chunks: int | None, inherited: bool
) -> None:
    """xarray casts dask's values to its type, and all values when it reads them."""
    dataset = xr.Dataset({"v": ("x", [25.5, 300.25, -0.75])})
    if chunks:
        dataset = dataset.chunk(x=chunks)
    if inherited:
        dataset["v"].encoding = {"scale_factor": scale}
    encoding = None if inherited else {"v": {"scale_factor": scale}}
    to_nczarr(dataset, tmp_path / "x", encoding=encoding)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), dataset.compute())


@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("key", ["_FillValue", "missing_value"])
@pytest.mark.parametrize("values", [["ab", "c"], [b"a", b"c"], [1, 2], [1.5, np.nan]])
def test_an_inherited_fill_value_of_other_data(
    tmp_path: Path, key: str, values: Any, chunks: int | None
) -> None:
    """As if numbers had become their names, or the other way round."""
    dataset = xr.Dataset({"v": ("x", np.array(values))})
    if chunks:
        dataset = dataset.chunk(x=chunks)
    numbers = isinstance(values[0], (int, float))
    dataset["v"].encoding = {key: "none" if numbers else np.int16(-32768)}
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), dataset.compute())


@needs_new_xarray
def test_an_inherited_fill_value_of_numpy_strings(tmp_path: Path) -> None:
    text = np.array(["none", np.nan, "é"], np.dtypes.StringDType(na_object=np.nan))
    dataset = xr.Dataset({"v": ("x", text)})
    dataset["v"].encoding["_FillValue"] = "none"
    to_nczarr(dataset, tmp_path / "x")
    with opened(tmp_path / "x") as back:
        assert back["v"].isnull().values.tolist() == [True, True, False]
    raw = opened(tmp_path / "x", mask_and_scale=False)
    assert raw["v"].values.tolist() == ["none", "none", "é"]
    assert raw["v"].attrs == {"_FillValue": "none"}


@pytest.mark.parametrize("inherited", [False, True])
def test_dates_of_other_calendars_that_a_type_without_units_cannot_hold(
    tmp_path: Path, inherited: bool
) -> None:
    dates = [cftime.DatetimeNoLeap(1102, 7, 20), cftime.DatetimeNoLeap(1900, 7, 20, 1)]
    dataset = xr.Dataset({"v": ("x", dates)})
    if not inherited:
        with pytest.raises(ExportError, match="holds the value 6990481, which int16 cannot hold"):
            to_nczarr(dataset, tmp_path / "x", encoding={"v": {"dtype": "i2"}})
        return
    dataset["v"].encoding = {"dtype": "i2"}
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["v"].values.tolist() == dates


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("wrong", [{"scale_factor": 0.0}, {"add_offset": np.inf}])
def test_a_scale_with_which_no_number_can_be_stored(
    tmp_path: Path, wrong: dict[str, float], lazy: bool
) -> None:
    dataset = xr.Dataset({"v": ("x", [2.5, 1.5])})
    dataset = dataset.chunk(x=1) if lazy else dataset
    with pytest.raises(ExportError, match="'v': no number can be stored with scale_factor"):
        to_nczarr(dataset, tmp_path / "x", encoding={"v": wrong})


# -- what came with the data, and new values -----------------------------------------------


@pytest.fixture
def whole_numbers(tmp_path: Path) -> Path:
    """A file whose integers, masked or scaled ones too, have a coordinate of integers."""
    masked = {"dtype": "i2", "_FillValue": -9}
    dataset = xr.Dataset(
        {
            "plain": ("x", np.array([1, 2, 3, 4], "i2")),
            "masked": ("x", [1.0, 2, np.nan, 4], {}, masked),
            "scaled": ("x", [0.1, 0.2, 0.3, 0.4], {}, {**masked, "scale_factor": 0.1}),
        },
        {"x": [0, 1, 2, 3]},
    )
    dataset.to_netcdf(tmp_path / "whole.nc")
    return tmp_path / "whole.nc"


HALVES: dict[str, Callable[[xr.Dataset], xr.Dataset]] = {
    "merge": lambda ds: xr.merge(
        [ds, xr.Dataset({"q": ("x", [1.0, 2.0])}, {"x": [0.5, 1.5]})], join="outer"
    ),
    "reindex": lambda ds: ds.reindex(x=[0, 0.5, 1]),
    "align": lambda ds: xr.align(ds, xr.Dataset(coords={"x": [0.5]}), join="outer")[0],
    "concat": lambda ds: xr.concat([ds, ds.assign_coords(x=ds.x + 0.5)], "x", coords="minimal"),
    "coarsen": lambda ds: ds.coarsen(x=2).mean(),
    "copy": lambda ds: ds.copy(data={str(n): ds[n].values + 0.25 for n in ds}),
}


@pytest.mark.parametrize("change", HALVES)
def test_inherited_integers_cut_off_no_fraction(
    tmp_path: Path, whole_numbers: Path, change: str
) -> None:
    with xr.open_dataset(whole_numbers, engine="nczarr") as source:
        changed = HALVES[change](source.load())
    to_nczarr(changed, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), changed)
    changed.drop_vars("x").nczarr.to_cfa(tmp_path / "x.nca", subarray_shape={"x": 2})
    with xr.open_dataset(tmp_path / "x.nca", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), changed.drop_vars("x"))


def test_integers_that_are_as_they_were_stay_packed(tmp_path: Path, whole_numbers: Path) -> None:
    with xr.open_dataset(whole_numbers, engine="nczarr") as source:
        to_nczarr(source.isel(x=[2, 0, 1]).load(), tmp_path / "x")
    assert [array(tmp_path / "x", n).dtype for n in ("plain", "masked", "scaled", "x")] == [
        "<i2", "<i2", "<i2", "<i8",
    ]  # fmt: skip


def test_fractions_of_dask_in_inherited_integers(tmp_path: Path, whole_numbers: Path) -> None:
    with xr.open_dataset(whole_numbers, engine="nczarr", chunks={"x": 2}) as source:
        halves = source.coarsen(x=2).mean()
        with pytest.raises(FormatError, match=r"/masked: holds the value 1.5.*encoding=.*drop_enc"):
            to_nczarr(halves, tmp_path / "x")
        to_nczarr(halves.drop_encoding(), tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), halves.compute())


def test_a_mark_that_no_element_can_have_is_not_inherited(tmp_path: Path) -> None:
    """As NCO leaves it; cast to the type, it would be 0."""
    dataset = xr.Dataset(
        {"u1": ("x", np.array([0, 1], "u1")), "f4": ("x", np.array([1, np.inf], "f4"))}
    )
    dataset["u1"].encoding = {"dtype": "u1", "_FillValue": 1e20}
    dataset["f4"].encoding = {"dtype": "f4", "missing_value": 1e300}
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back, dataset)


def test_marks_that_say_nothing_are_not_added(tmp_path: Path) -> None:
    """xarray's writers add NaN, which CF forbids for coordinates and bounds."""
    dataset = xr.Dataset(
        {"v": ("x", [1.0, 2.0]), "x_bnds": (("x", "n"), [[0.0, 1], [1, 2]])},
        {"x": ("x", [0.5, 1.5], {"bounds": "x_bnds"}), "gaps": ("x", [1.0, np.nan])},
    )
    to_nczarr(dataset, tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        marked = {name for name, v in back.variables.items() if "_FillValue" in v.encoding}
        assert marked == {"v", "gaps"}
        del back["v"].encoding["_FillValue"]  # as if it was read without one
        to_nczarr(back, tmp_path / "y")
    with netCDF4.Dataset(f"file://{tmp_path}/y#mode=nczarr,file") as file:
        assert {n for n, v in file.variables.items() if "_FillValue" in v.ncattrs()} == {"gaps"}


@pytest.mark.parametrize("lazy", [False, True])
def test_large_integers_are_not_rounded_on_their_way_to_others(tmp_path: Path, lazy: bool) -> None:
    numbers = np.array([2**60 + 1, 5], "u8")
    dataset = xr.Dataset({"v": ("x", numbers)})
    encoding = {"v": {"dtype": "i8", "_FillValue": -1}}
    to_nczarr(dataset.chunk() if lazy else dataset, tmp_path / "x", encoding=encoding)
    with netCDF4.Dataset(f"file://{tmp_path}/x#mode=nczarr,file") as file:
        assert file["v"][:].tolist() == numbers.tolist()


def test_inherited_floats_that_round_integers_are_left_out(tmp_path: Path) -> None:
    numbers = np.array([2**53 + 1, 5])
    dataset = xr.Dataset({"v": ("x", numbers), "few": ("x", numbers % 2**20)})
    for variable in dataset.variables.values():
        variable.encoding = {"dtype": "f8"}
    to_nczarr(dataset, tmp_path / "x")
    with netCDF4.Dataset(f"file://{tmp_path}/x#mode=nczarr,file") as file:
        assert file["v"][:].tolist() == numbers.tolist()
        assert file["few"].dtype == "f8"  # which holds them all
    with pytest.raises(FormatError, match="9007199254740993, which float64 cannot hold"):
        to_nczarr(dataset.chunk(), tmp_path / "y")


def test_whole_floats_become_integers_without_a_warning(tmp_path: Path) -> None:
    """xarray warns of values that may be missing, and the tests make errors of warnings."""
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0])})
    assert stored(tmp_path, dataset, dtype="i2", _FillValue=None).dtype == "i2"


@pytest.mark.parametrize(
    ("encoding", "values"),
    [
        ({"dtype": "i4", "scale_factor": 0.5, "_FillValue": np.int32(0)}, [0.0, 1.5]),
        ({"_FillValue": -999.0}, [-999.0, 1.0]),
        ({"missing_value": -999.0}, [-999.0, np.nan]),
        ({"_FillValue": np.int16(7)}, np.array([7, 8], "i2")),
    ],
)
def test_numbers_that_become_missing_are_announced(
    tmp_path: Path, encoding: dict[str, Any], values: Any
) -> None:
    """As of ``fillna``, where the number is the _FillValue that the data came with."""
    ds = xr.Dataset({"v": ("x", np.array(values))})
    ds["v"].encoding = encoding
    for write in (ds.nczarr.to_nczarr, ds.nczarr.to_cfa):
        with pytest.warns(LossWarning, match="read as missing.*/v") as told:
            write(tmp_path / write.__name__)
        assert len(told) == 1
    with pytest.warns(LossWarning, match="read as missing.*/v"):
        ds.drop_encoding().nczarr.to_nczarr(tmp_path / "to_nczarr", append_dim="x")
    to_nczarr(ds, tmp_path / "asked", encoding={"v": encoding})  # nothing is said of what is asked
    marked = opened(tmp_path / "asked").load()
    marked["v"].encoding = encoding
    to_nczarr(marked, tmp_path / "missing")  # these are missing already


def test_times_are_not_rounded_by_a_type_that_they_came_with(tmp_path: Path) -> None:
    """An hour since 1850 has a minute and a half between two numbers of float32."""
    stored = {"units": "hours since 1850-01-01", "dtype": "f4"}
    coarse = xr.Dataset({"v": ("x", np.array(["1999-05-05", "NaT"], "M8[ns]"))})
    fine = xr.Dataset({"v": ("x", np.array(["1999-05-05T07:39", "NaT"], "M8[ns]"))})
    for ds in (coarse, fine):
        ds["v"].encoding = stored
    to_nczarr(coarse, tmp_path / "coarse", unlimited_dims=["x"])
    kept = opened(tmp_path / "coarse")
    assert kept["v"].encoding["dtype"] == "f4"
    assert kept.equals(coarse)
    with pytest.warns(UserWarning, match="floating point"):  # by xarray, of the units
        to_nczarr(fine, tmp_path / "fine")
    assert opened(tmp_path / "fine").equals(fine)
    with pytest.raises(FormatError, match="float32 would round"):
        to_nczarr(fine.chunk(), tmp_path / "lazy")
    with pytest.raises(ExportError, match="float32 would round"):
        to_nczarr(fine.drop_encoding(), tmp_path / "coarse", append_dim="x")
    to_nczarr(coarse.drop_encoding(), tmp_path / "coarse", append_dim="x")
