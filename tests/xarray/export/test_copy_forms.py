"""Copies between forms that differ in codecs, text and JSON: nothing refused, nothing changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from tests.support.builders.trees import write_tree
from tests.support.marks import each_once, needs_new_xarray
from tests.support.oracles.strictjson import strict


def copied(source: object, target: str, *options: str, status: int = 0) -> None:
    assert main(["copy", str(source), target, *options]) == status


# -- codecs of the source ------------------------------------------------------------------------

#: No codec makes these smaller.
NOISE = np.random.default_rng(11).integers(0, 256, (64, 32), dtype="u1")
CODECS: dict[str, dict[str, Any]] = {
    "szip": {"compression": "szip", "compression_opts": ("nn", 8)},
    "szip-shuffle": {"compression": "szip", "shuffle": True, "fletcher32": True},
    "gzip": {"compression": "gzip", "shuffle": True},
    "lzf": {"compression": "lzf"},
    "zarr-gzip": {"compressors": numcodecs.GZip(3)},
    "zarr-lz4": {"compressors": numcodecs.LZ4()},
    "zarr-zlib": {"compressors": numcodecs.Zlib(-1)},
    "zarr-zstd": {"compressors": numcodecs.Zstd(-3)},
    "zarr-bz2": {"compressors": numcodecs.BZ2(1)},
    "zarr-blosc": {"compressors": numcodecs.Blosc("lz4", 5, 0)},
    "zarr-auto": {"compressors": numcodecs.Blosc("zstd", 3, -1)},
    "zarr-crc32": {"compressors": None, "filters": [numcodecs.CRC32()]},
    "zarr-delta": {"compressors": numcodecs.LZMA(), "filters": [numcodecs.Delta("u1")]},
}
TARGETS = {
    "nczarr": "file://{}/y#mode=nczarr,file",
    "old": "file://{}/y#mode=nczarr,file",
    "pure": "file://{}/y#mode=zarr",
    "portable": "file://{}/y#mode=zarr",
    "netcdf": "{}/y.nc",
}
OPTIONS = {"old": ("--compat", "4.9.2"), "portable": ("--portable",)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "codec",
    [
        '{"id": "zlib", "level": Infinity}',
        '{"id": "zlib", "level": "high"}',
        '{"id": "zlib", "level": 50}',
        '{"id": "zstd", "level": 99999999999999999999}',
        '{"id": "bz2", "level": []}',
    ],
)
def test_a_level_that_cannot_be_is_none_of_a_copy(tmp_path: Path, codec: str, target: str) -> None:
    """Reading takes no level, so that the source is whole."""
    values = xr.Dataset({"v": ("x", np.arange(100))})
    made = numcodecs.get_codec({"id": json.loads(codec)["id"]})
    values.to_zarr(
        tmp_path / "x.zarr",
        zarr_format=2,
        consolidated=False,
        encoding={"v": {"compressors": made}},
    )
    document = json.loads((tmp_path / "x.zarr/v/.zarray").read_text())
    document["compressor"] = "here"
    stated = json.dumps(document).replace('"here"', codec)
    (tmp_path / "x.zarr/v/.zarray").write_text(stated)
    written = TARGETS[target].format(tmp_path)
    copied(tmp_path / "x.zarr", written, *OPTIONS.get(target, ()), "--verify")
    with xr.open_dataset(written, engine="nczarr") as ds:
        xr.testing.assert_equal(ds.load(), values)


@pytest.mark.parametrize("target", ["nczarr", "pure", "netcdf"])
@pytest.mark.parametrize("stated", ["Infinity", '"x"', "50"])
def test_a_filter_that_cannot_be_undone_is_an_error_of_ours(
    tmp_path: Path, stated: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    xr.Dataset({"v": ("x", np.arange(9))}).to_zarr(
        tmp_path / "x.zarr", zarr_format=2, consolidated=False
    )
    document = json.loads((tmp_path / "x.zarr/v/.zarray").read_text())
    document["filters"] = [{"id": "delta", "dtype": "here"}, {"id": "szip", "mask": "here"}]
    (tmp_path / "x.zarr/v/.zarray").write_text(json.dumps(document).replace('"here"', stated))
    assert main(["copy", str(tmp_path / "x.zarr"), TARGETS[target].format(tmp_path)]) == 1
    assert "nczarr: v/.zarray: codec" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "target"), each_once(list(CODECS), list(TARGETS)))
def test_no_codec_of_the_source_stops_a_copy(tmp_path: Path, kind: str, target: str) -> None:
    if kind.startswith("zarr"):
        source = tmp_path / "x.zarr"
        encoding = {"v": {"chunks": (16, 32), **CODECS[kind]}}
        ds = xr.Dataset({"v": (("x", "y"), NOISE)})
        ds.to_zarr(source, zarr_format=2, consolidated=False, encoding=encoding)
    else:
        source = tmp_path / "x.h5"
        with h5py.File(source, "w") as file:
            file.create_dataset("v", data=NOISE, chunks=(16, 32), **CODECS[kind])
    url = TARGETS[target].format(tmp_path)
    copied(source, url, *OPTIONS.get(target, ()))
    with xr.open_dataset(url, engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"], NOISE)
        assert back["v"].encoding["chunksizes"] == (16, 32)


@pytest.mark.parametrize("options", [["--slice", "x=8:"], ["--slice", "x=8:", "--fixed"]])
def test_codecs_are_not_taken_to_suit_other_values(tmp_path: Path, options: list[str]) -> None:
    """In the source, each chunk is half noise, which szip makes no smaller by itself."""
    values = np.concatenate([NOISE[:8] * 0, NOISE[:16], NOISE[:8] * 0])
    encoding = {"v": {"chunks": (16, 32), "szip": True}}
    to_nczarr(xr.Dataset({"v": (("x", "y"), values)}), tmp_path / "x", encoding=encoding)
    copied(tmp_path / "x", str(tmp_path / "same"))
    copied(tmp_path / "x", str(tmp_path / "part"), *options)
    for name, codec, stored in (("same", "szip", values), ("part", "zlib", values[8:])):
        with xr.open_dataset(tmp_path / name, engine="nczarr") as back:
            np.testing.assert_array_equal(back["v"], stored)
            assert back["v"].encoding["chunksizes"] == (16, 32)
        # (with an older xarray, the encoding has no compressor)
        assert (
            json.loads((tmp_path / name / "v" / ".zarray").read_text())["compressor"]["id"] == codec
        )


@pytest.mark.parametrize("asked", [pytest.param(False, marks=needs_new_xarray), True])
@pytest.mark.parametrize(
    ("compressor", "stored"),
    [
        (numcodecs.GZip(3), "gzip"),
        (numcodecs.Blosc("zstd", 3, 0), "blosc"),
        (numcodecs.LZ4(), "lz4"),
    ],
)
def test_compressors_behind_a_shuffle(
    tmp_path: Path, compressor: Any, stored: str, asked: bool
) -> None:
    """netCDF has a word for the one and none for the other."""
    encoding = {"v": {"filters": [numcodecs.Shuffle(8)], "compressors": compressor}}
    ds = xr.Dataset({"v": (("x", "y"), np.arange(1200.0).reshape(40, 30))})
    ds.to_zarr(tmp_path / "x.zarr", zarr_format=2, consolidated=False, encoding=encoding)
    with xr.open_dataset(tmp_path / "x.zarr", engine="nczarr") as source:
        mine = {"v": {"shuffle": True, "compressor": compressor}} if asked else None
        to_nczarr(source, f"file://{tmp_path}/y#mode=zarr", encoding=mine)
    document = json.loads((tmp_path / "y" / "v" / ".zarray").read_text())
    found = [*(document["filters"] or []), document["compressor"]]
    assert [codec["id"] for codec in found] == ["shuffle", stored]
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"], ds["v"])


@pytest.mark.parametrize("target", TARGETS)
def test_settings_of_blosc_that_are_left_out(tmp_path: Path, target: str) -> None:
    """As numcodecs reads them: it shuffles."""
    source = xr.Dataset({"v": (("x", "y"), NOISE)})
    to_nczarr(source, tmp_path / "x", encoding={"v": {"compressor": {"id": "blosc"}}})
    copied(tmp_path / "x", TARGETS[target].format(tmp_path), *OPTIONS.get(target, ()))
    with xr.open_dataset(TARGETS[target].format(tmp_path), engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"], NOISE)


# -- text ----------------------------------------------------------------------------------------

TEXTS = xr.Dataset(
    {
        "text": ("x", np.array(["é", "abc", ""], object)),
        "chars": ("x", np.array([b"ab", b"c", b""])),
        "one": ((), "héllo"),
        "count": ("x", [1, 2, 3]),
    }
)


def check_texts(ds: xr.Dataset) -> None:
    assert ds["text"].values.tolist() == ["é", "abc", ""]
    assert ds["chars"].values.tolist() == [b"ab", b"c", b""]
    assert ds["one"].item() == "héllo"
    assert ds["count"].dtype == "i8"  # no fill that nobody set


def written(folder: Path, kind: str) -> Path:
    path = folder / "x.nc"
    if kind == "netcdf":
        TEXTS.to_netcdf(path, engine="netcdf4")
    elif kind in ("zarr2", "zarr3"):
        TEXTS.to_zarr(path, zarr_format=int(kind[-1]), consolidated=False)
    else:
        to_nczarr(TEXTS, f"file://{path}#mode={kind}")
    return path


@pytest.mark.filterwarnings("ignore:.*Zarr V3:")
@pytest.mark.filterwarnings("ignore:.*Zarr format 3:")
@pytest.mark.parametrize("options", [(), ("--portable",)])
@pytest.mark.parametrize("kind", ["netcdf", "nczarr", "zarr", "zarr2", "zarr3"])
def test_text_stays_text_in_pure_zarr(tmp_path: Path, kind: str, options: tuple[str, ...]) -> None:
    copied(written(tmp_path, kind), f"file://{tmp_path}/y#mode=zarr", *options)
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as ours:
        check_texts(ours)
    with xr.open_dataset(tmp_path / "y", engine="zarr", consolidated=False) as theirs:
        check_texts(theirs)


@pytest.mark.parametrize("target", ["file://{}/y#mode=nczarr,file", "{}/y.nc"])
def test_text_of_pure_zarr_is_text_of_netcdf(tmp_path: Path, target: str) -> None:
    url = target.format(tmp_path)
    copied(written(tmp_path, "zarr"), url)
    for engine in ("nczarr", "netcdf4"):
        with xr.open_dataset(url, engine=engine) as back:
            check_texts(back)
    with xr.open_dataset(url, engine="netcdf4", decode_cf=False) as raw:
        assert not any("_Encoding" in v.attrs for v in raw.variables.values())


@pytest.mark.parametrize("encoding", [None, "utf-8"])
@pytest.mark.filterwarnings("ignore:.*Zarr 3:")
@pytest.mark.parametrize("target", ["{}/y.nczarr", "file://{}/y#mode=zarr", "zarr3"])
def test_fill_value_of_characters_means_the_same(
    target: str, encoding: str | None, tmp_path: Path
) -> None:
    """xarray does not take a joined text for missing, if its characters have an encoding."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 3)
        file.createDimension("letters", 1)
        text = file.createVariable("text", "S1", ("x", "letters"), fill_value=b" ")
        text.set_auto_chartostring(False)
        if encoding:
            text.setncattr("_Encoding", encoding)
        text[:, 0] = np.array([b"a", b" ", b"c"])
    with xr.open_dataset(tmp_path / "x.nc", engine="netcdf4") as truth:
        expected = truth.load()
    if target == "zarr3":
        url = str(tmp_path / "y.zarr")
        copied(tmp_path / "x.nc", url, "--format", "Zarr3", status=1)  # a mark of char is left out
        expected = expected.fillna({"text": b" "}).astype("S1") if encoding is None else expected
    else:
        url = target.format(tmp_path)
        copied(tmp_path / "x.nc", url)
    with xr.open_dataset(url, engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), expected)


@pytest.mark.parametrize("target", sorted({*TARGETS.values()}))
@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification:")
def test_fill_value_longer_than_all_text(target: str, tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 3)
        text = file.createVariable("text", str, ("x",), fill_value="mïssing")
        text[:2] = np.array(["a", "b"], object)
    url = target.format(tmp_path)
    copied(tmp_path / "x.nc", url, "--verify")
    with xr.open_dataset(url, engine="nczarr", mask_and_scale=False) as back:
        assert back["text"].values.tolist() == ["a", "b", "mïssing"]


@pytest.mark.parametrize("target", sorted({*TARGETS.values()}))
@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification:")
def test_encoded_characters_of_pure_zarr_stay_characters(tmp_path: Path, target: str) -> None:
    text = xr.Dataset({"text": ("x", np.array(["é", "abc", ""], object))})
    text["text"].encoding = {"dtype": "S1", "char_dim_name": "letters"}
    to_nczarr(text, f"file://{tmp_path}/x.nc#mode=zarr")
    url = target.format(tmp_path)
    copied(tmp_path / "x.nc", url, "--verify")
    with xr.open_dataset(url, engine="nczarr") as back:
        assert back["text"].values.tolist() == ["é", "abc", ""]


@pytest.mark.parametrize("size", ["8", "1MB"])
def test_text_of_pure_zarr_is_text_of_an_aggregation(tmp_path: Path, size: str) -> None:
    text = TEXTS.assign_coords(x=["é", "b", ""])
    to_nczarr(text, f"file://{tmp_path}/x.nc#mode=zarr")
    copied(tmp_path / "x.nc", f"{tmp_path}/y.nca", "--max-object-size", size)
    with xr.open_dataset(tmp_path / "y.nca", engine="nczarr") as back:
        check_texts(back)
        assert back["x"].values.tolist() == ["é", "b", ""]


@pytest.mark.filterwarnings("ignore:.*strings become char")
def test_characters_of_classic_netcdf_are_as_many_as_the_bytes_of_pure_zarr(tmp_path: Path) -> None:
    text = xr.Dataset({"text": ("x", np.array(["é", "abc", ""], object))})
    to_nczarr(text, f"file://{tmp_path}/x.nc#mode=zarr")
    copied(tmp_path / "x.nc", f"{tmp_path}/y.nc", "--format", "NETCDF3_CLASSIC")
    with xr.open_dataset(tmp_path / "y.nc", engine="netcdf4", concat_characters=False) as back:
        assert back["text"].shape == (3, 3)


# -- foreign JSON --------------------------------------------------------------------------------

NEW = xr.Dataset({"v": ("t", [3.0, 4.0])})
CHANGES: dict[str, tuple[xr.Dataset, dict[str, Any], list[float]]] = {
    "append": (NEW, {"append_dim": "t"}, [1, 2, 3, 4]),
    "r+": (NEW, {"mode": "r+"}, [3, 4]),
    "region": (NEW, {"region": {"t": slice(0, 2)}}, [3, 4]),
    "new variable": (NEW.rename(v="w"), {"mode": "a"}, [1, 2]),
    "new attribute": (NEW.rename(v="w").assign_attrs(k=1), {"mode": "a"}, [1, 2]),
}


def foreign(folder: Path) -> dict[str, bytes]:
    """Documents of pure Zarr as older writers left them."""
    zarray = (
        '{"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<f8", "fill_value": NaN, '
        '"order": "C", "compressor": null, "filters": null}'
    )
    documents = {
        ".zgroup": '{"zarr_format": 2}',
        ".zattrs": '{"top": Infinity, "list": [1.0, NaN, -Infinity], "deep": {"er": NaN}}',
        "v/.zarray": zarray,
        "v/.zattrs": '{"_ARRAY_DIMENSIONS": ["t"], "_FillValue": NaN, "valid_max": Infinity}',
    }
    members = ", ".join(f'"{key}": {text}' for key, text in documents.items())
    documents[".zmetadata"] = f'{{"metadata": {{{members}}}, "zarr_consolidated_format": 1}}'
    write_tree(folder, {key: text.encode() for key, text in documents.items()})
    (folder / "v/0").write_bytes(np.array([1.0, 2.0]).tobytes())
    return {key: text.encode() for key, text in documents.items()}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_rewritten_is_strict_json(tmp_path: Path, what: str) -> None:
    before = foreign(tmp_path / "x")
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as ds:
        attributes = dict(ds.attrs), dict(ds["v"].attrs)
    new, options, values = CHANGES[what]
    to_nczarr(new, tmp_path / "x", **options)
    for path in (tmp_path / "x").rglob(".z*"):
        data = path.read_bytes()
        if before.get(path.relative_to(tmp_path / "x").as_posix()) != data:
            strict(data)
    strict((tmp_path / "x/.zmetadata").read_bytes())
    for consolidated in ("", ",consolidated"):
        url = f"file://{tmp_path}/x#mode=zarr{consolidated}"
        with xr.open_dataset(url, engine="nczarr") as back:
            assert back["v"].values.tolist() == values
            assert np.isnan(back["v"].encoding["_FillValue"])
            assert back.attrs["top"] == attributes[0]["top"] == np.inf
            np.testing.assert_array_equal(back.attrs["list"], attributes[0]["list"])
            assert back.attrs["deep"] == {"er": "NaN"}
            assert back["v"].attrs == attributes[1] == {"valid_max": np.inf}


# -- compounds -----------------------------------------------------------------------------------


def test_padding_of_compounds_is_not_stored(tmp_path: Path) -> None:
    """Zarr would take it for fields without names, which no reader opens."""
    inner = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    data = np.zeros(10, np.dtype([("x", "u1"), ("y", ">i8"), ("z", inner, (2,))], align=True))
    data["y"], data["z"]["b"][:, 1] = np.arange(10), 5
    options: dict[str, Any] = {"chunks": (4,), "compression": "gzip", "shuffle": True}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("v", data=data, **options)
        file.create_dataset("flat", data=data["z"][:, 0])
        file.create_dataset("filled", (10,), data.dtype, fillvalue=data[3], **options)
    target = TARGETS["pure"].format(tmp_path)
    copied(tmp_path / "x.h5", target, "--verify")
    assert zarr.open_array(tmp_path / "y" / "flat", mode="r").dtype.names == ("a", "b")
    with xr.open_dataset(target, engine="nczarr") as back:
        assert back["v"].dtype.itemsize == 1 + 8 + 2 * 9
        np.testing.assert_array_equal(back["filled"].values["y"], [3] * 10)


# -- packed numbers whose fill value Zarr 2 states in .zarray alone ------------------------------


@pytest.mark.parametrize(
    ("target", "engine", "options"),
    [
        ("y.nc", "netcdf4", ()),
        ("y.nc", "netcdf4", ("--memory", "1GB")),
        ("y.nc", "netcdf4", ("--format", "NETCDF3_64BIT_OFFSET")),
        ("y", "nczarr", ("--format", "NCZarr")),
        ("y", "zarr", ("--format", "Zarr2")),
        ("y", "zarr", ("--format", "Zarr3")),
        ("y.nca", "nczarr", ()),
        ("", "zarr", ()),
    ],
)
def test_what_is_missing_stays_missing(
    tmp_path: Path, target: str, engine: str, options: tuple[str, ...]
) -> None:
    """In copies, and where there is no target, after an upgrade in place."""
    packing = {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -32768}
    values = xr.Dataset({"v": ("x", [1.5, np.nan, 3.0])})
    values.to_zarr(tmp_path / "x.zarr", zarr_format=2, encoding={"v": packing}, consolidated=False)
    if target:
        copied(tmp_path / "x.zarr", str(tmp_path / target), *options, "--verify")
    else:
        assert main(["upgrade", str(tmp_path / "x.zarr")]) == 0
    more = {"consolidated": False} if engine == "zarr" else {}
    with xr.open_dataset(tmp_path / (target or "x.zarr"), engine=engine, **more) as ds:  # type: ignore[arg-type]
        np.testing.assert_allclose(ds["v"], values["v"])


# -- aggregations --------------------------------------------------------------------------------


def test_an_aggregation_has_what_is_stored(tmp_path: Path) -> None:
    """Characters stay characters, packed numbers packed, byte order and fill values as they are."""
    rng = np.random.default_rng(5)
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as nc:
        nc.Conventions = "CF-1.13"
        nc.createDimension("t", None)
        nc.createDimension("x", 30)
        nc.createVariable("t", "f8", ("t",))[:] = np.arange(16)
        storage: dict[str, Any] = {"chunksizes": (4, 30), "zlib": True, "complevel": 3}
        v = nc.createVariable("v", ">f4", ("t", "x"), endian="big", fill_value=-1, **storage)
        v[:] = rng.normal(size=(16, 30))
        v.setncatts({"scale_factor": 0.5, "missing_value": np.float32(-9)})
        nc.createVariable("c", "S1", ("t", "x"))[:] = rng.choice([b"a", b"", b"c"], (16, 30))
        nc.createVariable("b", "i1", ("t", "x")).setncattr("dtype", "bool")
        nc["b"][:] = rng.integers(0, 2, (16, 30))
        nc.createVariable("s", str, ("t",))[:] = np.array(["é" * i for i in range(16)], object)
    target = str(tmp_path / "y.nca")
    copied(tmp_path / "x.nc", target, "--max-object-size", "200B", "--verify")
    fragments = sorted((tmp_path / "y").glob("y.v.*"))
    assert len(fragments) > 4
    with netCDF4.Dataset(fragments[0]) as nc:
        assert nc["v"].endian() == "big"
        assert nc["v"].filters()["complevel"] == 3
