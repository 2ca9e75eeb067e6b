"""Pure Zarr as we write it: what every reader of Zarr 2 and of JSON makes of it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Literal

import fsspec
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nczarr_xarray import ExportError, LossWarning, open_store, to_nczarr
from nczarr_xarray.cli.main import main
from tests.support.examples import examples
from tests.support.oracles.strictjson import strict

NAN, INF = np.nan, np.inf
ATTRIBUTES: dict[str, Any] = {
    "nan": NAN,
    "minus": -INF,
    "nans": np.array([NAN, NAN]),
    "mixed": np.array([1.5, NAN, INF]),
    "first": np.array([INF, 2.0]),
    "single": np.float32(NAN),
    "text": "NaN",
    "texts": ["NaN", "or not"],
    "largest": np.array([-1, 2**63 - 1]),
    "limits": np.array([-(2**63), 2**63 - 1]),
    "alone": np.int64(2**63 - 1),
    "unsigned": np.array([0, 2**64 - 1], "u8"),
    'quote " and \\': "control \x01 and \n",
}


def dataset() -> xr.Dataset:
    ds = xr.Dataset(
        {
            "v": (("t", "x"), np.array([[1.0, NAN, INF], [-INF, 0.0, 5.0]]), dict(ATTRIBUTES)),
            "f": ("x", np.array([1, NAN, 3], "f4"), {"missing_value": np.float32(NAN)}),
            "n": ("x", [1, 2, 3]),
            "s": ("x", ["a", "é", ""]),
        },
        coords={"t": [NAN, 1.0]},
        attrs=dict(ATTRIBUTES),
    )
    ds["v"].encoding["_FillValue"] = INF
    return ds


def same(found: Any, wanted: Any) -> bool:
    """Whether values are equal, their numbers being of any type."""
    if isinstance(wanted, (str, list)):
        return bool(found == wanted)
    return not isinstance(found, str) and np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*JSON has no such numbers", "ignore:.*read as missing")
@pytest.mark.parametrize("how", ["export", "consolidated", "copy", "append", "group"])
def test_everything_is_strict_json_and_comes_back(tmp_path: Path, how: str) -> None:
    ds, target = dataset(), f"file://{tmp_path}/x#mode=zarr"
    if how == "copy":
        ds.attrs.pop('quote " and \\'), ds["v"].attrs.pop('quote " and \\')
        to_nczarr(ds, tmp_path / "y")
        assert main(["copy", str(tmp_path / "y"), target, "--consolidated"]) == 1
    elif how == "append":
        to_nczarr(ds.isel(t=slice(1)), target, consolidated=True)
        to_nczarr(ds.isel(t=slice(1, 2)).drop_vars(["f", "n", "s"]), target, append_dim="t")
    elif how == "group":
        to_nczarr(xr.Dataset(), target, consolidated=True)
        to_nczarr(ds, target, "a", group="g")
    else:
        to_nczarr(ds, target, consolidated=how == "consolidated")
    documents = [p for p in (tmp_path / "x").rglob(".z*") if p.is_file()]
    assert len(documents) > 6
    for path in documents:
        strict(path.read_bytes())
    group = "g" if how == "group" else None
    with xr.open_dataset(tmp_path / "x", engine="nczarr", group=group) as back:
        for name, value in ds.attrs.items():
            assert same(back.attrs[name], value), name
            assert same(back["v"].attrs[name], value), name
        assert back["v"].encoding["_FillValue"] == INF
        assert np.isnan(back["f"].encoding["missing_value"])
        expected = ds.assign(v=ds.v.where(ds.v != INF)).drop_vars("s")
        xr.testing.assert_equal(back.load().drop_vars("s"), expected)
    theirs: Any = zarr.open_group(tmp_path / "x", mode="r", path=group or "", zarr_format=2)
    assert theirs["v"].attrs["nan"] == ["NaN"]
    assert np.isnan(theirs["f"].fill_value)
    stored = ds.v.fillna(INF).values
    np.testing.assert_array_equal(theirs["v"][:], stored)


@pytest.mark.parametrize("length", [2, 3, 8, 9])
@pytest.mark.parametrize("how", ["asked for", "inherited", "copied", "copied and compressed"])
def test_compressed_text_is_text_for_other_readers(tmp_path: Path, how: str, length: int) -> None:
    texts = np.array([letter * length for letter in "abcdefg"])
    ds = xr.Dataset({"s": ("x", texts)})
    target = f"file://{tmp_path}/z#mode=zarr,file"
    encoding = {"s": {"zlib": True, "chunks": (3,)}}
    if how == "inherited":
        ds["s"].encoding, encoding = {**encoding["s"], "shuffle": True}, {}
    if how.startswith("copied"):
        to_nczarr(ds, tmp_path / "first", encoding=encoding)
        compress = ["--compress", "zlib"] if how.endswith("compressed") else []
        assert main(["copy", str(tmp_path / "first"), target, *compress]) == 0
    else:
        to_nczarr(ds, target, encoding=encoding)
    stored: Any = zarr.open_group(tmp_path / "z", mode="r")["s"]
    np.testing.assert_array_equal(stored[:].astype(str), texts)
    assert stored.compressors
    with netCDF4.Dataset(target) as file:
        np.testing.assert_array_equal(file["s"][:], texts)


def test_shuffled_text_that_other_readers_could_not_undo_is_refused(tmp_path: Path) -> None:
    ds = xr.Dataset({"s": ("x", ["abc", "def", "g"])})
    encoding = {"s": {"zlib": True, "shuffle": True}}
    target = f"file://{tmp_path}/z#mode=zarr,file"
    with pytest.raises(ExportError, match="readers of Zarr cannot undo it: 9 bytes"):
        to_nczarr(ds, target, encoding=encoding)


def test_netcdf_c_reads_numbers_that_are_not_finite(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", [1.0, NAN])}, attrs={"mixed": [1.5, NAN]})
    with pytest.warns(LossWarning, match="JSON has no such numbers: /:mixed"):
        to_nczarr(ds, f"file://{tmp_path}/x#mode=zarr")
    with netCDF4.Dataset(f"file://{tmp_path}/x#mode=zarr,file") as file:
        assert np.isnan(file["v"].getncattr("_FillValue"))
        np.testing.assert_array_equal(file.getncattr("mixed"), [1.5, NAN])


@settings(max_examples=examples(60))
@given(arrays.arrays(st.sampled_from(["f8", "f4", "i8", "u8", "i4", "u1"]), st.integers(1, 4)))
def test_any_numbers_come_back(values: np.ndarray[Any, Any]) -> None:
    objects: Any = {}
    to_nczarr(xr.Dataset(attrs={"a": values}), objects, mode="w")  # (a mapping is NCZarr)
    with xr.open_dataset(objects, engine="nczarr") as back:
        np.testing.assert_array_equal(back.attrs["a"], values if len(values) > 1 else values[0])


@pytest.mark.parametrize("version", [2, 3])
def test_floats_are_the_doubles_that_they_are(tmp_path: Path, version: Literal[2, 3]) -> None:
    """Readers of JSON have no other type: a packed value would be unpacked to another one."""
    tenth = np.float32(0.1)
    packed = xr.Variable("x", np.array([7], "i2"), {"scale_factor": tenth, "both": [tenth, tenth]})
    to_nczarr(xr.Dataset({"v": packed}, attrs={"a": tenth}), tmp_path / "x", mode="w")
    target = str(tmp_path / "y")
    pure = [target, "--format", "zarr3"] if version == 3 else [f"file://{target}#mode=zarr"]
    assert main(["copy", str(tmp_path / "x"), *pure]) == 0
    group = zarr.open_group(target, mode="r", zarr_format=version)
    assert group.attrs["a"] == float(tenth) != 0.1
    assert group["v"].attrs["scale_factor"] == float(tenth)
    with xr.open_dataset(target, engine="zarr", mask_and_scale=False, consolidated=False) as found:
        np.testing.assert_array_equal(found["v"].attrs["both"], [float(tenth)] * 2)


def test_references_are_strict_json_but_for_attributes(tmp_path: Path) -> None:
    """In attributes kerchunk's readers take bare words for numbers, and quoted ones for text."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        file.setncatts({"nan": NAN, "mixed": [1.0, -INF]})
        file.createVariable("v", "f4", ("x",), fill_value=NAN)[:] = [1, 2]
    assert main(["refs", str(tmp_path / "x.nc"), str(tmp_path / "refs.json")]) == 0
    refs = strict((tmp_path / "refs.json").read_bytes())["refs"]
    strict(refs["v/.zarray"])
    attributes = json.loads(refs[".zattrs"])
    assert np.isnan(attributes["nan"])
    assert attributes["mixed"] == [1.0, -INF]
    view: Any = zarr.open_group(open_store(str(tmp_path / "x.nc")), mode="r")
    assert np.isnan(view["v"].fill_value)


# -- what readers of Zarr want ------------------------------------------------------------------

GRID = xr.Dataset(
    {"v": (("t", "x"), np.arange(12.0).reshape(3, 4))}, coords={"t": [1, 2, 3]}, attrs={"a": 1}
)


def opened_zip(path: Path) -> Any:
    return zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@pytest.mark.parametrize("how", ["export", "copy", "portable", "replaced", "upload"])
def test_zarr_python_opens_a_zip_of_pure_zarr(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.zip"
    target = f"file://{path}#mode=zarr"
    if how == "copy":
        to_nczarr(GRID, tmp_path / "y")
        assert main(["copy", str(tmp_path / "y"), target]) == 0
    elif how == "portable":
        to_nczarr(GRID, path, portable=True)
    elif how == "upload":
        to_nczarr(GRID, "memory://pure/x.zip#mode=zarr")
        path.write_bytes(fsspec.filesystem("memory").cat_file("/pure/x.zip"))
    else:
        to_nczarr(GRID, target if how == "export" else path)
        assert (".zgroup" in names(path)) is (how == "export")
        to_nczarr(GRID, target, mode="w")
    group = opened_zip(path)
    np.testing.assert_array_equal(group["v"][:], GRID.v.values)
    with xr.open_dataset(path, engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), GRID)
    # what is changed stays where it is, however it is named then
    to_nczarr(GRID.assign_coords(t=[4, 5, 6]), path, append_dim="t")
    to_nczarr(GRID[["v"]].rename(v="w", x="z").drop_vars("t"), path, "a", group="g")
    assert opened_zip(path)["v"].shape == (6, 4)
    assert opened_zip(path)["g/w"].shape == (3, 4)


def test_a_zip_of_nczarr_stays_in_its_directory(tmp_path: Path) -> None:
    to_nczarr(GRID, tmp_path / "x.zip", unlimited_dims=["t"])
    to_nczarr(GRID.assign_coords(t=[4, 5, 6]), tmp_path / "x.zip", append_dim="t")
    assert names(tmp_path / "x.zip")[0] == "x/"
    assert xr.open_dataset(tmp_path / "x.zip", engine="nczarr").sizes == {"t": 6, "x": 4}


@pytest.mark.parametrize("how", ["export", "copy", "dask"])
def test_no_chunk_is_longer_than_its_variable(tmp_path: Path, how: str) -> None:
    target = f"file://{tmp_path}/x#mode=zarr"
    if how == "copy":
        to_nczarr(GRID, tmp_path / "y", unlimited_dims=["t"])
        assert main(["copy", str(tmp_path / "y"), target]) == 0
    else:
        ds = GRID.chunk(t=1) if how == "dask" else GRID
        ds["v"].encoding = {"chunksizes": (512, 4), "original_shape": (3, 4)}
        to_nczarr(ds, target, unlimited_dims=["t"])
    group = zarr.open_group(tmp_path / "x", mode="r")
    for _, array in group.arrays():
        assert all(c <= n for c, n in zip(array.chunks, array.shape, strict=True))
    asked = {"v": {"chunks": (5, 5)}}  # what is asked for is done
    to_nczarr(GRID, target, mode="w", encoding=asked)
    assert zarr.open_array(tmp_path / "x", path="v", mode="r").chunks == (5, 5)


@pytest.mark.parametrize(
    ("encoding", "compressor"),
    [
        ({}, None),
        ({"zlib": True, "complevel": 2}, {"id": "zlib", "level": 2}),
        ({"zlib": True, "complevel": 2, "shuffle": True}, {"id": "zlib", "level": 2}),
        ({"compressor": {"id": "gzip", "level": 3}}, {"id": "zlib", "level": 3}),
        ({"zstd": True}, None),
        ({"filters": [{"id": "delta", "dtype": "<f8"}]}, None),
        (
            {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}},
            {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        ),
    ],
)
def test_portable_is_what_every_reader_has(
    tmp_path: Path, encoding: dict[str, Any], compressor: dict[str, Any] | None
) -> None:
    ds = GRID.copy()
    ds["v"].encoding = encoding
    to_nczarr(ds, tmp_path / "x", portable=True)
    zarray = json.loads((tmp_path / "x" / "v" / ".zarray").read_bytes())
    assert (zarray["filters"], zarray["compressor"]) == (None, compressor)
    assert not any(b"_nczarr" in p.read_bytes() for p in (tmp_path / "x").rglob(".z*"))
    np.testing.assert_array_equal(
        zarr.open_array(tmp_path / "x", path="v", mode="r")[:], GRID.v.values
    )


def test_portable_refuses_what_is_asked_for_beyond_it(tmp_path: Path) -> None:
    for encoding in ({"zstd": True}, {"zlib": True, "shuffle": True}, {"fletcher32": True}):
        with pytest.raises(ExportError, match=r"/v: .*every reader of Zarr 2"):
            to_nczarr(GRID, tmp_path / "x", portable=True, encoding={"v": encoding})
    with pytest.raises(ExportError, match="mode=zarr"):
        to_nczarr(GRID, f"file://{tmp_path}/x#mode=nczarr", portable=True)
    assert not (tmp_path / "x").exists()
    to_nczarr(GRID, tmp_path / "x", portable=True, encoding={"v": {"zlib": True}})
    to_nczarr(GRID[["v"]].rename(v="w"), tmp_path / "x", mode="a", portable=True)
    to_nczarr(GRID, tmp_path / "y")
    with pytest.raises(ExportError, match="leave it out"):
        to_nczarr(GRID[["v"]].rename(v="w"), tmp_path / "y", mode="a", portable=True)


def test_portable_is_for_targets_without_a_fragment(tmp_path: Path) -> None:
    objects: Any = {}
    to_nczarr(GRID, objects, portable=True)
    assert not any(b"_nczarr" in data for data in objects.values())
    with xr.open_dataset(objects, engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), GRID)


@pytest.mark.parametrize("compress", [(), ("--compress", "zlib:3")])
@pytest.mark.parametrize("kind", ["x.nc", "x.nczarr", "x.zarr"])
def test_portable_copies(tmp_path: Path, kind: str, compress: tuple[str, ...]) -> None:
    source = tmp_path / kind
    encoding: Any = {"v": {"zlib": True, "shuffle": True, "complevel": 3}}
    if kind == "x.nc":
        GRID.to_netcdf(source, engine="netcdf4", encoding=encoding)
    elif kind == "x.zarr":
        encoding = {"v": {"compressors": numcodecs.GZip(3), "filters": [numcodecs.Delta("<f8")]}}
        GRID.to_zarr(source, zarr_format=2, encoding=encoding, consolidated=False)
    else:
        to_nczarr(GRID, source, encoding=encoding)
    assert main(["copy", str(source), str(tmp_path / "y"), "--portable", *compress]) == 0
    zarray = json.loads((tmp_path / "y" / "v" / ".zarray").read_bytes())
    assert (zarray["filters"], zarray["compressor"]) == (None, {"id": "zlib", "level": 3})
    assert b"_nczarr" not in (tmp_path / "y" / ".zattrs").read_bytes()
    np.testing.assert_array_equal(
        zarr.open_array(tmp_path / "y", path="v", mode="r")[:], GRID.v.values
    )


def test_what_is_not_portable_is_no_option(tmp_path: Path, capsys: Any) -> None:
    to_nczarr(GRID, tmp_path / "x")
    for target, *more in (("y", "--compress", "zstd"), ("y.nc",)):
        assert main(["copy", str(tmp_path / "x"), str(tmp_path / target), "--portable", *more]) != 0
        assert "--portable" in capsys.readouterr().err


@pytest.mark.parametrize("fill", [b"-", b"\0"])
def test_characters_that_are_missing(tmp_path: Path, fill: bytes) -> None:
    """What is compared with bytes is bytes."""
    ds = xr.Dataset({"c": ("x", np.array([b"a", fill], "S1"))})
    to_nczarr(ds, f"file://{tmp_path}/x#mode=zarr,file", encoding={"c": {"_FillValue": fill}})
    for engine in ("nczarr", "zarr"):
        with xr.open_dataset(tmp_path / "x", engine=engine, consolidated=False) as back:
            assert back["c"].isnull().to_numpy().tolist() == [False, True]
            assert back["c"].encoding["_FillValue"].rstrip(b"\0") == fill.rstrip(b"\0")
            to_nczarr(back, tmp_path / "y", mode="w")
        with xr.open_dataset(tmp_path / "y", engine="nczarr", decode_cf=False) as again:
            assert again["c"].attrs["_FillValue"] == fill
            assert again["c"].to_numpy().ravel().tolist() == [b"a", fill.rstrip(b"\0")]
    to_nczarr(ds, tmp_path / "x", append_dim="x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["c"].isnull().to_numpy().tolist() == [False, True] * 2
