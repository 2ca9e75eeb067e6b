"""``nczarr copy --format Zarr3``: read again by this package, zarr-python and xarray."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import fsspec
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from nczarr_fsspec.changes.create import NewObjects
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.chunk_writer import Gate
from nczarr_xarray.export.copy.zarr3 import Zarr3Writer
from tests.support.builders.copying import copy, failed
from tests.support.builders.ncwriter import WRITERS, ramp
from tests.support.marks import slow_but, slow_cases_but
from tests.support.servers.s3server import S3Server

#: What pure Zarr cannot hold of what netCDF-C writes; char with ``_Encoding`` is a string there.
LACKING = ("char", "shadowed-dimensions", "odd-names", "dimensions", "repeated-dimensions")
#: zarr-python warns of each bytes type that it meets; text of netCDF's char is one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
    # SeaweedFS lists directories that are empty
    pytest.mark.filterwarnings("ignore:Object at .nczarr_export"),
]


@pytest.fixture
def cube(tmp_path: Path) -> Path:
    """NCZarr with a variable of 10 x 8 chunks of shuffled zlib, and some more."""
    dataset = xr.Dataset(
        {"v": (("time", "x"), ramp((100, 60), "f4")), "scalar": np.int16(3)},
        coords={"x": np.arange(60.0)},
        attrs={"title": "cube"},
    )
    encoding = {"v": {"chunksizes": (10, 8), "zlib": True, "complevel": 2, "_FillValue": -1.0}}
    path = tmp_path / "cube"
    to_nczarr(dataset, path, encoding=encoding, unlimited_dims=["time"])
    return path


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    "name", slow_but((n for n in WRITERS if n not in LACKING), "attributes", "groups")
)
def test_what_netcdf_c_wrote(tmp_path: Path, name: str) -> None:
    """Values and attributes survive, as compare and xarray's own engine read them."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as dataset:
        WRITERS[name](dataset)
    # JSON has no NaN, and xarray reads no mark of signed numbers in an unsigned type
    told = int(name in ("float-specials", "packed"))
    copy(tmp_path / "x.nc", tmp_path / "y", "--format", "Zarr3", "--verify", status=told)
    raw: dict[str, Any] = {"decode_cf": False}
    with (
        xr.open_dataset(tmp_path / "x.nc", engine="netcdf4", **raw) as theirs,
        xr.open_dataset(tmp_path / "y", engine="zarr", consolidated=False, **raw) as ours,
    ):
        assert {*ours.variables} == {*theirs.variables}
        for path, variable in theirs.variables.items():
            assert ours[path].dims == variable.dims
            np.testing.assert_array_equal(ours[path].values, variable.values)


def test_names_of_dimensions_and_codecs(cube: Path, tmp_path: Path) -> None:
    copy(cube, tmp_path / "y", "--format", "zarr3")
    v = document(tmp_path / "y/v/zarr.json")
    assert v["dimension_names"] == ["time", "x"]
    assert v["chunk_grid"]["configuration"]["chunk_shape"] == [10, 8]
    # Zarr 3 has byte shuffling in blosc only
    blosc = {"typesize": 4, "cname": "zlib", "clevel": 2, "shuffle": "shuffle", "blocksize": 0}
    assert v["codecs"][1:] == [{"name": "blosc", "configuration": blosc}]
    assert document(tmp_path / "y/zarr.json")["attributes"] == {"title": "cube"}
    assert "consolidated_metadata" not in document(tmp_path / "y/zarr.json")


def test_text_fills_and_checksums(tmp_path: Path) -> None:
    """Text of a fixed length is text there; checksums are those that Zarr 3 has."""
    root: Any = zarr.open_group(tmp_path / "x", mode="w", zarr_format=2)
    floats = np.array([0.5, -1.0, 2.5])
    text = np.array([b"ab", b"c", b""], "S2")
    checked = root.create_array(
        "checked", data=floats, filters=[numcodecs.Fletcher32()], compressors=None, fill_value=-1.0
    )
    packed = root.create_array(
        "packed",
        data=np.arange(3, dtype="i4"),
        compressors=numcodecs.Blosc("zstd", 7, numcodecs.Blosc.BITSHUFFLE),
    )
    named = root.create_array("named", data=text, compressors=None)
    for array in (checked, packed, named):
        array.attrs["_ARRAY_DIMENSIONS"] = ["t"]
    copy(tmp_path / "x", tmp_path / "y", "--format", "Zarr3", "--verify")
    assert document(tmp_path / "y/checked/zarr.json")["codecs"][-1]["name"] == "crc32c"
    blosc = document(tmp_path / "y/packed/zarr.json")["codecs"][1]
    assert blosc["configuration"]["shuffle"] == "bitshuffle"
    assert blosc["configuration"]["clevel"] == 7
    assert document(tmp_path / "y/named/zarr.json")["data_type"] == "string"
    with xr.open_dataset(
        tmp_path / "y", engine="zarr", consolidated=False, mask_and_scale=False
    ) as found:
        np.testing.assert_array_equal(found["checked"].values, floats)
        np.testing.assert_array_equal(found["packed"].values, [0, 1, 2])
        np.testing.assert_array_equal(found["named"].values, ["ab", "c", ""])


@pytest.mark.parametrize("kind", ["group", "variable"])
def test_name_that_zarr_3_has_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        above = file.createGroup("g")
        if kind == "group":
            above.createGroup("zarr.json")
        else:
            above.createVariable("zarr.json", "i4")[:] = 1
    assert main(["copy", str(tmp_path / "x.nc"), str(tmp_path / "y"), "--format", "Zarr3"]) == 1
    message = capsys.readouterr().err
    assert "nothing was written:\n  /g/zarr.json: Zarr 3 has its metadata in objects" in message


def test_characters_and_enums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Characters are bytes there, of which Zarr 3 has no type of its own; enums come back."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 3)
        chars = file.createVariable("chars", "S1", ("x",), fill_value=b"-")
        chars[:] = np.array([b"a", b"-", b"c"])
        kind = file.createEnumType("u1", "sky", {"clear": 0, "cloudy": 1})
        file.createVariable("clouds", kind, ("x",), fill_value=False)[:] = [0, 1, 1]
    copy(tmp_path / "x.nc", tmp_path / "y", "--format", "Zarr3", status=1)
    told = capsys.readouterr().err
    assert "char has no type in the specification of Zarr 3" in told
    assert "left out: a _FillValue of char, bool" in told
    found = document(tmp_path / "y/chars/zarr.json")
    assert found["data_type"]["name"] == "null_terminated_bytes"
    assert "_FillValue" not in found["attributes"]
    with xr.open_dataset(tmp_path / "y", engine="zarr", consolidated=False) as back:
        assert back["chars"].values.tolist() == [b"a", b"-", b"c"]
    copy(tmp_path / "y", tmp_path / "back.nc")
    with netCDF4.Dataset(tmp_path / "back.nc") as file:
        assert file["clouds"].datatype.enum_dict == {"clear": 0, "cloudy": 1}
        assert file["clouds"][:].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("asked", "codec"),
    slow_cases_but([("zstd:7", "blosc"), ("none", None), ("zlib:9", "blosc")], "zstd:7"),
)
def test_compression(cube: Path, tmp_path: Path, asked: str, codec: str | None) -> None:
    copy(cube, tmp_path / "y", "--format", "Zarr3", "--compress", asked, "--verify")
    names = [one["name"] for one in document(tmp_path / "y/v/zarr.json")["codecs"]]
    assert names == ["bytes", *([codec] if codec else [])]


@pytest.mark.parametrize(
    ("config", "level", "clevel"),
    [
        ({"id": "zlib", "level": -1}, 4, 4),
        ({"id": "zlib", "level": 0}, 0, 0),
        ({"id": "zstd", "level": -5}, 1, 1),
        ({"id": "zstd", "level": 0}, 0, 3),
    ],
)
@pytest.mark.parametrize("shuffled", [True, False])
def test_levels_that_stand_for_others(
    tmp_path: Path, config: dict[str, Any], level: int, clevel: int, shuffled: bool
) -> None:
    """Of zlib and blosc, 0 is no compression; of zstd it is what zstd takes itself."""
    filters = [{"id": "shuffle", "elementsize": 4}] if shuffled else None
    encoding = {"v": {"compressor": config, "filters": filters}}
    ds = xr.Dataset({"v": ("x", ramp((1000,), "f4"))})
    to_nczarr(ds, f"file://{tmp_path}/x#mode=zarr", encoding=encoding)
    copy(tmp_path / "x", tmp_path / "y", "--format", "zarr3", "--verify")
    configuration = document(tmp_path / "y/v/zarr.json")["codecs"][1]["configuration"]
    assert configuration.get("clevel", configuration.get("level")) == (
        clevel if shuffled else level
    )


def test_compressors_of_the_source_that_are_lacking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy is larger than its source, which is said."""
    ds = xr.Dataset({"v": ("x", ramp((1000,), "f4"))})
    encoding = {"v": {"compressor": {"id": "lzma"}, "filters": None}}
    to_nczarr(ds, f"file://{tmp_path}/x#mode=zarr", encoding=encoding)
    told = "stored without the compressor of the source, which the format of the copy lacks"
    for target, *options in (("y", "--format", "zarr3"), ("y.nc",)):
        assert main(["copy", str(tmp_path / "x"), str(tmp_path / target), *options]) == 0
        assert f"{told}: /v (lzma)" in capsys.readouterr().err
    assert [one["name"] for one in document(tmp_path / "y/v/zarr.json")["codecs"]] == ["bytes"]


@pytest.mark.parametrize("shards", [None, (100,)], ids=["chunks", "shards"])
@pytest.mark.parametrize(
    ("compressor", "zarr2", "netcdf"),
    [
        (ZstdCodec(level=0), {"id": "zstd", "level": 0}, ("zstd", 3)),
        (GzipCodec(level=2), {"id": "zlib", "level": 2}, ("zlib", 2)),
        (
            BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
            {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0},
            ("zlib", 4),
        ),
    ],
    ids=["zstd", "gzip", "blosc"],
)
def test_copies_from_zarr_3_stay_compressed(
    tmp_path: Path,
    shards: tuple[int, ...] | None,
    compressor: Any,
    zarr2: dict[str, Any],
    netcdf: tuple[str, int],
) -> None:
    ds = xr.Dataset({"v": ("x", ramp((100,), "f4"))})
    encoding = {"v": {"chunks": (50,), "shards": shards, "compressors": (compressor,)}}
    ds.to_zarr(tmp_path / "x", zarr_format=3, consolidated=False, encoding=encoding)
    copy(tmp_path / "x", tmp_path / "y", "--verify")
    assert document(tmp_path / "y/v/.zarray")["compressor"] == zarr2
    copy(tmp_path / "x", tmp_path / "z", "--format", "zarr3", "--verify")
    (told,) = document(tmp_path / "z/v/zarr.json")["codecs"][1:]
    stated = compressor.to_dict()
    if told["name"] == "blosc":
        stated["configuration"]["typesize"] = 4
    assert told == stated
    copy(tmp_path / "x", tmp_path / "x.nc", "--verify")
    with netCDF4.Dataset(tmp_path / "x.nc") as file:
        filters = file["v"].filters()
    assert (filters[netcdf[0]], filters["complevel"]) == (True, netcdf[1])


def test_compression_that_zarr_3_lacks(
    cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failed(capsys, cube, tmp_path / "y", "--format", "Zarr3", "--compress", "bz2")
    assert "/v: Zarr 3 does not have codec 'bz2': use zlib, zstd, blosc or none" in message
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("shards", "shape"),
    slow_cases_but(
        [("time=40,x=12", (40, 16)), ("time=20", (20, 64)), ("x=600", (100, 64))], "time=20"
    ),
)
def test_shards(cube: Path, tmp_path: Path, shards: str, shape: tuple[int, int]) -> None:
    """A shard is of whole chunks, and ends where the last chunk does."""
    copy(cube, tmp_path / "y", "--format", "Zarr3", "--shards", shards, "--verify")
    group = zarr.open_group(tmp_path / "y", mode="r", zarr_format=3)
    v = group["v"]
    assert isinstance(v, zarr.Array)
    assert (v.shards, v.chunks) == (shape, (10, 8))
    objects = [name for _, _, names in os.walk(tmp_path / "y/v/c") for name in names]
    assert len(objects) == -(-100 // shape[0]) * -(-60 // shape[1])
    with xr.open_dataset(cube, engine="nczarr") as original:
        np.testing.assert_array_equal(v[...], original["v"].fillna(-1).values)


def test_consolidated(cube: Path, tmp_path: Path) -> None:
    copy(cube, tmp_path / "y", "--format", "Zarr3", "--consolidated")
    with xr.open_dataset(tmp_path / "y", engine="zarr", consolidated=True) as back:
        assert {*back.variables} == {"v", "scalar", "x"}


@pytest.mark.parametrize("target", ["y.zip", "there"])
def test_places(cube: Path, tmp_path: Path, target: str) -> None:
    """An archive, and a directory with NCZarr in it, of which nothing stays."""
    to_nczarr(xr.Dataset({"old": ("x", [1, 2])}), tmp_path / "there")
    copy(cube, tmp_path / target, "--format", "Zarr3", "--overwrite", "--verify")
    store: Any = tmp_path / target
    if target.endswith(".zip"):
        store = zarr.storage.ZipStore(store, mode="r")
    group = zarr.open_group(store, mode="r", zarr_format=3)
    assert {*group.keys()} == {"v", "scalar", "x"}
    assert not (tmp_path / "there/.zgroup").exists() or target != "there"


def test_object_store(cube: Path, tmp_path: Path) -> None:
    """Nothing is left of what kept readers out."""
    root = f"/zarr3{tmp_path}"
    copy(cube, f"memory:/{root}", "--format", "Zarr3", "--verify")
    copy(cube, f"memory:/{root}", "--format", "Zarr3", "--overwrite", "--verify")
    fs = fsspec.filesystem("memory")
    names = {path.removeprefix(f"{root}/") for path in fs.find(root)}
    assert {name for name in names if "/c" not in name} == {
        "zarr.json",
        "v/zarr.json",
        "scalar/zarr.json",
        "x/zarr.json",
    }


def test_s3(cube: Path, s3_server: S3Server) -> None:
    key = f"zarr3-{os.getpid()}"
    signed = s3_server.signed()
    options = [f"{name}={value}" for name, value in signed.items()]
    url = f"s3://{s3_server.private}/{key}"
    copy(cube, url, "--format", "Zarr3", "--shards", "time=50", *(f"-O{one}" for one in options))
    with (
        xr.open_dataset(url, engine="zarr", consolidated=False, storage_options=signed) as ours,
        xr.open_dataset(cube, engine="nczarr") as original,
    ):
        xr.testing.assert_equal(ours.load(), original.load())


def test_what_was_cut_off_is_not_read(
    cube: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store the root comes last, and a mark stays if the writer dies."""
    root = f"memory://cut{tmp_path}"
    put = MappingWriter.put
    count = 0

    def fails(self: MappingWriter, key: str, data: Any) -> None:
        nonlocal count
        count += 1
        if count > 20:
            raise StoreError(key, "cannot be written")
        put(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(MappingWriter, "put", fails)
        patch.setattr(NewObjects, "abort", lambda _: None)  # a dead process cleans nothing up
        assert main(["copy", str(cube), root, "--format", "Zarr3"]) == 1
    with pytest.raises(StoreError, match=r"unfinished|not complete|missing"):
        xr.open_dataset(root, engine="nczarr")
    with pytest.raises(Exception, match="an export is under way"):
        zarr.open_group(root, mode="r")


def test_blocks_are_whole_objects(tmp_path: Path, cube: Path) -> None:
    copy(cube, tmp_path / "y", "--format", "Zarr3")
    data = (tmp_path / "y/v/zarr.json").read_bytes()
    store = FsspecWriter(fsspec.filesystem("memory"), f"/blocks{tmp_path}")
    writer = Zarr3Writer.of_document("v", np.dtype("f4"), data, store)
    with pytest.raises(ValueError, match="whole objects"):
        writer.write(np.zeros((5, 8), "f4"), (0, 0))


# -- the table of kinds ------------------------------------------------------------------


def test_formats_by_name(cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["copy", str(cube), str(tmp_path / "y"), "--format", "Zarr4"])
    message = capsys.readouterr().err
    assert "invalid choice: 'Zarr4' (choose from" in message
    assert "NETCDF4" in message
    assert "did you mean Zarr3" in message
    for name in ("y.grib", "y.tar.gz"):
        message = failed(capsys, cube, tmp_path / name, status=2)
        assert "`nczarr copy` does not write what is named so" in message
    pure = f"file://{tmp_path}/y#mode=zarr"
    assert "mode=nczarr" in failed(capsys, cube, pure, "--format", "NCZarr")
    nczarr = f"file://{tmp_path}/y#mode=nczarr"
    assert "mode=zarr" in failed(capsys, cube, nczarr, "--format", "Zarr2")
    copy(cube, tmp_path / "tree.nc", "--format", "netcdf4", "--fixed")
    copy(cube, tmp_path / "z", "--format", "Zarr2")
    assert "_nczarr_group" not in (tmp_path / "z/.zattrs").read_text()


def test_options_of_other_kinds(
    cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (cube, tmp_path / "y", "--format", "Zarr3", "--compat", "4.9.2")
    assert "--compat: not for Zarr 3, but for NCZarr" in failed(capsys, *asked, status=2)
    asked = (cube, tmp_path / "y", "--format", "Zarr3", "--shards", "tiem=10")
    assert "did you mean time?" in failed(capsys, *asked, status=2)


def test_nothing_is_put_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zarr-python goes on with the other objects of a block, in a tree that was removed."""
    entered, released, real = threading.Event(), threading.Event(), Gate.shut
    inside: list[str] = []

    class Broken(DirectoryWriter):
        def put(self, key: str, data: Any) -> None:
            if key.endswith("c/0"):
                assert entered.wait(60)
                raise StoreError(key, "cannot be written")
            inside.append(key)
            entered.set()
            assert released.wait(60)
            inside.remove(key)

    def shut(self: Gate) -> None:
        released.set()
        real(self)

    monkeypatch.setattr(Gate, "shut", shut)
    chunks = {"name": "regular", "configuration": {"chunk_shape": [1]}}
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int8",
        "chunk_grid": chunks,
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }
    data = json.dumps(document).encode()
    writer = Zarr3Writer.of_document("v", np.dtype("i1"), data, Broken(tmp_path))
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            writer.write(np.ones(4, "i1"))
        assert not inside
    finally:
        released.set()


@pytest.mark.parametrize("form", ["Zarr3", "NETCDF4", "NCZarr"])
def test_a_text_that_should_fill_numbers_is_reported(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = zarr.open_group(tmp_path / "x", mode="w", zarr_format=3)
    made = root.create_array("v", shape=(3,), chunks=(2,), dtype="i4", dimension_names=("x",))
    made[:2] = [1, 2]
    made.attrs["_FillValue"] = "NaN"
    copy(tmp_path / "x", tmp_path / "y", "--format", form, status=1)
    assert "'_FillValue' is not of its type int" in capsys.readouterr().err
    with open_hierarchy(str(tmp_path / "y")) as opened:
        values = opened.read(opened.hierarchy.root.variables["v"])
    np.testing.assert_array_equal(values, [1, 2, 0])


@pytest.mark.parametrize("dtype", ["M8[s]", ">m8[ns]"])
def test_times_that_are_zero_are_written(tmp_path: Path, dtype: str) -> None:
    """Readers of Zarr 2 see NaT where a chunk without a fill value is missing."""
    root = zarr.open_group(tmp_path / "x", mode="w", zarr_format=3)
    zero = np.zeros((), dtype)[()]
    made = root.create_array("v", shape=(6,), chunks=(2,), dtype=dtype, fill_value=zero)
    made[4:] = np.array([1, "NaT"], dtype)
    copy(tmp_path / "x", tmp_path / "y", "--format", "Zarr2")
    copied: Any = zarr.open_group(tmp_path / "y", mode="r")["v"]
    np.testing.assert_array_equal(copied[:], np.array([0, 0, 0, 0, 1, "NaT"], dtype))
