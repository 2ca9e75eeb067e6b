"""``nczarr info``: what it says of datasets of every kind, and how it lays it out."""

from __future__ import annotations

import json
import re
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec import DirectoryStore, ZipStore
from nczarr_fsspec.errors import FormatError
from nczarr_xarray import open_hierarchy, to_nczarr
from nczarr_xarray.cli.info import (
    Style,
    chunk_count,
    codec_text,
    describe,
    nbytes,
    store_kind,
)
from nczarr_xarray.cli.main import main
from nczarr_xarray.formats.registry import GENERATIONS
from nczarr_xarray.model import (
    Attribute,
    ChunkedArray,
    Dimension,
    Group,
    Hierarchy,
    Variable,
)
from tests.support.corpora.samples import DATA as VECTORS

WIDE = Style(width=1000)


def unpack(case: str, directory: Path) -> Path:
    with zipfile.ZipFile(VECTORS / f"{case}.zip") as archive:
        archive.extractall(directory / "x.file")
    return directory / "x.file"


def described(root: Group, style: Style = WIDE, **facts: Any) -> list[str]:
    return list(
        describe(
            Hierarchy(root, "v2", consolidated=False, **facts), "x.zarr", "directory tree", style
        )
    )


def variable(name: str = "v", *sizes: int, chunks: tuple[int, ...] = (), **more: Any) -> Variable:
    dims = tuple(Dimension(axis, size) for axis, size in zip("abcd", sizes, strict=False))
    array = ChunkedArray(name, sizes, chunks or sizes, np.dtype("i2"), **more)
    return Variable(name, "/", dims, "short", np.dtype("i2"), array=array)


def test_whole_description(tmp_path: Path) -> None:
    path = unpack("dims-nczarr+file-4.10.1", tmp_path)
    with open_hierarchy(path) as opened:
        lines = describe(opened.hierarchy, "x.file", store_kind(opened.store), WIDE)
        assert "\n".join(lines) + "\n" == textwrap.dedent("""\
            x.file

              format    NCZarr, generation G2A (netCDF-C 4.9.3 and later)
              writer    netCDF-C 4.10.1
              store     directory tree
              metadata  not consolidated
              contents  4 groups, 6 dimensions, 9 variables
              data      240 B uncompressed, in up to 19 chunks

            /
              dimensions  x 3, unused 7, time 5 (unlimited), time_empty 0 (unlimited)

              variable   type     shape                size   chunks       codecs
              x          double   x 3                  24 B   1 of 3
              t          double   time 5               40 B   2 of 4
              tx         int      time 5 × x 3         60 B   5 of 1 × 3
              t_short    int      time 5               20 B   3 of 2
              never      int      time_empty 0 × x 3    0 B   0 of 1 × 3

            /g1
              dimensions  x 5, y 2

              variable   type     shape                size   chunks       codecs
              shadow     int      x 5                  20 B   1 of 5
              mixed      short    x 3 × y 2            12 B   1 of 3 × 2

            /g1/sub

              variable   type     shape                size   chunks       codecs
              deep       int      y 2 × x 3            24 B   1 of 2 × 3
              tsub       float    time 5 × y 2         40 B   5 of 1 × 2

            /emptygrp
            """)


@pytest.mark.parametrize(
    ("case", "mode", "generation", "writer"),
    [
        ("dims-nczarr+file-4.8.0", "nczarr", "G1", "netCDF-C 4.8.0"),
        ("dims-nczarr+file-4.8.1", "nczarr", "G2U", "netCDF-C 4.8.1"),
        ("names-nczarr+file-4.9.0", "nczarr", "G2U", "netCDF-C 4.9.0"),
        ("dims-nczarr+file-4.9.2", "nczarr", "G2L", "netCDF-C 4.9.2"),
        ("names-nczarr+file-4.9.3", "nczarr", "G2A", "netCDF-C 4.9.3"),
        ("dims-zarr+file-4.9.0", "zarr", "v2", "netCDF-C 4.9.0"),
        ("dims-nczarr+consolidated+file-4.10.1", "nczarr,consolidated", "G2A", "netCDF-C 4.10.1"),
    ],
)
def test_format_and_writer(
    case: str,
    mode: str,
    generation: str,
    writer: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["info", f"file://{unpack(case, tmp_path)}#mode={mode},file"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  format    {GENERATIONS[generation]}" in lines
    assert f"  writer    {writer}" in lines
    how = "consolidated in .zmetadata" if "consolidated" in mode else "not consolidated"
    assert f"  metadata  {how}" in lines


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ("version=2,nczarr_xarray=0.1.0,nczarr=2.0.0", "nczarr_xarray 0.1.0"),
        ("version=2,h5netcdf=1.6.4,hdf5=1.14.6,h5py=3.14.0", "h5netcdf 1.6.4"),
        ("made by hand", "made by hand"),
    ],
)
def test_writers_other_than_netcdf(stated: str, shown: str) -> None:
    hierarchy = Hierarchy(Group(), "G2A", writer=stated)
    assert f"  writer    {shown}" in describe(hierarchy, "x", "directory tree", WIDE)


def test_zarr_v3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")  # else a terminal decides what stands on one line
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=3)
    group.attrs["title"] = "Three"
    group.create_array("v", shape=(10, 6), chunks=(5, 3), dtype="f8", dimension_names=["y", "x"])
    flag = group.create_array("flag", shape=(10,), dtype="bool", dimension_names=["y"])
    flag[...] = True
    assert main(["info", str(tmp_path / "x.zarr")]) == 0
    out = capsys.readouterr().out
    assert "  title     Three\n  format    Zarr, version 3\n  writer    not recorded\n" in out
    assert "  dimensions  y 10, x 6\n" in out
    (row,) = [line for line in out.splitlines() if line.startswith("  v  ")]
    assert re.split(" {3,}", row)[1:] == [
        "double", "y 10 × x 6", "480 B", "4 of 5 × 3",
        "bytes(little), zstd(level=0, checksum=False)",
    ]  # fmt: skip
    assert "|b1 (Zarr)" in out


def test_narrow_terminal_has_chunks_below() -> None:
    root = Group()
    codecs = ({"id": "shuffle", "elementsize": 0}, {"id": "zlib", "level": 5})
    root.variables = {
        "long_name": variable("long_name", 1000, 200, chunks=(10, 200), codecs=codecs),
        "one": variable("one", 3),
        "many": variable("many", 30, chunks=(3,)),
    }
    wide, narrow = described(root), described(root, Style(width=60))
    assert wide[-4:] == [
        "  variable    type    shape               size   chunks            codecs",
        "  long_name   short   a 1,000 × b 200   400 kB   100 of 10 × 200   shuffle, zlib(5)",
        "  one         short   a 3                  6 B   1 of 3",
        "  many        short   a 30                60 B   10 of 3",
    ]
    assert narrow[-6:] == [
        "  variable    type    shape               size",
        "  long_name   short   a 1,000 × b 200   400 kB",
        "      chunks 100 of 10 × 200, codecs shuffle, zlib(5)",
        "  one         short   a 3                  6 B",
        "  many        short   a 30                60 B",
        "      chunks 10 of 3",
    ]


def test_long_lists_are_wrapped() -> None:
    root = Group(dimensions={f"d{i}": Dimension(f"d{i}", i) for i in range(30)})
    lines = described(root, Style(width=60))
    assert max(map(len, lines)) <= 60
    start = lines.index("/") + 1
    assert lines[start].startswith("  dimensions  d0 0, d1 1, ")
    assert re.match(r" {14}d\d+ \d", lines[start + 1])


def test_bad_variable_and_problems_are_shown() -> None:
    bad = variable("bad", 3)
    bad.error = FormatError("bad/.zarray", "is \x1b[31mred")
    bad.array = None
    root = Group(variables={"bad": bad, "good": variable("good", 3)})
    problem = FormatError("g/.zattrs", "is not JSON")
    lines = described(root, problems=(problem,))
    assert "  problem: g/.zattrs: is not JSON" in lines
    at = lines.index("  bad                a 3")
    assert lines[at + 1] == r"      cannot be read: bad/.zarray: is \x1b[31mred"
    assert lines[at + 2].startswith("  good")


def test_bad_variable_makes_the_exit_status_1(tmp_path: Path) -> None:
    path = unpack("dims-nczarr+file-4.10.1", tmp_path)
    assert main(["info", str(path)]) == 0
    (path / "tx" / ".zarray").write_text("{}")
    assert main(["info", str(path)]) == 1


def test_colours_do_not_change_the_text() -> None:
    bad = variable("bad", 3)
    bad.error = FormatError("bad/.zarray", "is odd")
    root = Group(dimensions={"x": Dimension("x", 1)}, variables={"bad": bad})
    coloured = "\n".join(described(root, Style(width=1000, colour=True)))
    for code in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m"):
        assert code in coloured
        coloured = coloured.replace(code, "")
    assert coloured.split("\n") == described(root)


def test_wide_characters_are_aligned() -> None:
    root = Group(variables={"世界": variable("世界", 3), "e\u0301": variable("e\u0301", 3)})
    lines = described(root)[-3:]
    assert lines == [
        "  variable   type    shape   size   chunks   codecs",
        "  世界       short   a 3      6 B   1 of 3",
        "  e\u0301          short   a 3      6 B   1 of 3",
    ]


def test_what_is_not_known_is_not_invented() -> None:
    text = variable("text", 4, chunks=(3,))
    text.array = ChunkedArray("text", (4,), (3,), np.dtype(object))
    root = Group(variables={"text": text, "n": variable("n", 4)})
    lines = described(root)
    assert "  data      more than 8 B uncompressed, in up to 3 chunks" in lines
    assert any(line.startswith("  text") and "?" in line for line in lines)


def test_sizes_are_exact_for_enormous_shapes() -> None:
    huge = variable("huge", 2**62, 2**62, chunks=(1000, 3))
    assert nbytes(huge) == 2**125
    assert chunk_count(huge) == -(-(2**62) // 1000) * -(-(2**62) // 3)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"id": "shuffle", "elementsize": 4}, "shuffle"),
        ({"id": "zlib", "level": 5}, "zlib(5)"),
        ({"id": "szip", "mask": 32, "pixels-per-block": 8}, "szip(mask=32, pixels-per-block=8)"),
        ({"name": "bytes", "configuration": {"endian": "little"}}, "bytes(little)"),
        ({"name": "sharding_indexed", "configuration": {"codecs": [{}]}}, "sharding_indexed"),
        ({"id": "a\x1b[1m"}, r"a\x1b[1m"),
    ],
)
def test_codec_text(config: dict[str, Any], text: str) -> None:
    assert codec_text(config) == text


def test_big_endian_is_mentioned() -> None:
    big = variable("big", 3)
    big.array = ChunkedArray("big", (3,), (3,), np.dtype(">i2"))
    assert any("short big-endian" in line for line in described(Group(variables={"big": big})))


def test_long_title_is_wrapped_and_harmless() -> None:
    title = Attribute("title", "char", "two\nlines " + "word " * 30)
    lines = described(Group(attributes={"title": title}), Style(width=50))
    assert lines[2].startswith("  title     two lines word")
    assert lines[3].startswith("            word")
    title = Attribute("title", "string", ("two", "strings"))
    assert described(Group(attributes={"title": title}))[2] == "  title     two strings"


def test_store_kinds(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    assert store_kind(DirectoryStore(tmp_path)) == "directory tree"
    assert store_kind(ZipStore(tmp_path / "x.zip")) == "zip archive"


def test_the_store_of_a_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = xr.Dataset({"v": ("x", np.arange(4.0))}).chunk(x=2)
    to_nczarr(template, tmp_path / "x.nczarr", compute=False)
    main(["info", str(tmp_path / "x.nczarr")])
    assert "  store     directory tree\n" in capsys.readouterr().out


def test_fragments_of_one_value_and_of_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with netCDF4.Dataset(tmp_path / "m.nca", "w") as file:
        file.Conventions = "CF-1.13"
        for name, length in {"t": 4, "one": 1, "two": 2}.items():
            file.createDimension(name, length)
        file.createVariable("sizes", "i4", ("one", "two"))[:] = [[2, 2]]
        file.createVariable("numbers", "f4", ("two",))[:] = np.ma.masked_equal([5, 0], 0)
        file.createVariable("places", str, ("two",))[:] = np.array(["", ""], object)
        file.createVariable("names", str, ())[...] = "v"
        terms = {
            "valued": "map: sizes unique_values: numbers",
            "lacking": "map: sizes uris: places identifiers: names",
        }
        for name, said in terms.items():
            made = file.createVariable(name, "f4", ())
            made.setncatts({"aggregated_dimensions": "t", "aggregated_data": said})
    main(["info", str(tmp_path / "m.nca")])
    said = capsys.readouterr().out
    assert "2 fragments, 1 missing, each of one value" in said
    assert "2 fragments, 2 missing\n" in said
    main(["info", str(tmp_path / "m.nca"), "--fragments"])
    said = capsys.readouterr().out
    assert "(0)  [0:2]  5.0" in said
    assert "(1)  [2:4]  missing" in said


# -- JSON ------------------------------------------------------------------------------------------


def test_json_is_what_netcdf4_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.title = "é"
        file.limits = np.array([np.nan, -np.inf, 1.5])
        file.createDimension("t", None)
        group = file.createGroup("g")
        group.createDimension("x", 6)
        v = group.createVariable("v", "i2", ("t", "x"), zlib=True, complevel=3, chunksizes=(2, 3))
        v.scale_factor = np.float32(0.5)
        v.flags = np.array([1, 2], "i1")
        v[:] = np.zeros((4, 6))
        file.createVariable("s", str, ("t",))
        file.createVariable("plain", "f8", ())
    assert main(["info", "--json", str(tmp_path / "x.nc")]) == 0
    said = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    root, inner = said["groups"]["/"], said["groups"]["/g"]
    assert (said["store"], said["problems"]) == ("one file", [])
    assert root["attributes"]["limits"] == {"type": "double", "value": ["NaN", "-Infinity", 1.5]}
    with netCDF4.Dataset(tmp_path / "x.nc") as file:
        assert root["attributes"]["title"]["value"] == file.title
        for shown, of_file in ((root, file), (inner, file["g"])):
            assert shown["dimensions"] == {
                name: {"length": len(one), "unlimited": one.isunlimited()}
                for name, one in of_file.dimensions.items()
            }
            assert shown["variables"].keys() == of_file.variables.keys()
            for name, one in of_file.variables.items():
                variable = shown["variables"][name]
                assert tuple(variable["shape"]) == one.shape
                assert [path.rpartition("/")[2] for path in variable["dimensions"]] == [
                    *one.dimensions
                ]
                chunks = one.chunking()
                assert variable["chunks"] == (None if chunks == "contiguous" else chunks)
                assert variable["attributes"].keys() == set(one.ncattrs())
                for attribute in one.ncattrs():
                    value = np.asarray(one.getncattr(attribute)).tolist()
                    assert variable["attributes"][attribute]["value"] == value
        v = inner["variables"]["v"]
        assert (v["type"], v["dtype"], v["dimensions"]) == ("short", "<i2", ["/t", "/g/x"])
        assert [codec["id"] for codec in v["codecs"]] == ["shuffle", "zlib"]
        assert v["codecs"][1]["level"] == file["g/v"].filters()["complevel"]


def test_json_is_what_zarr_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = zarr.create_array(
        tmp_path / "z" / "v", shape=(4, 6), chunks=(2, 3), dtype="f4", zarr_format=2
    )
    zarr.open_group(tmp_path / "z", mode="a", zarr_format=2)
    array.attrs["units"] = "K"
    assert main(["info", "--json", str(tmp_path / "z")]) == 0
    said = json.loads(capsys.readouterr().out)["groups"]["/"]["variables"]["v"]
    stored = json.loads((tmp_path / "z/v/.zarray").read_text())
    assert (said["dtype"], said["chunks"]) == (stored["dtype"], stored["chunks"])
    assert said["codecs"] == [*(stored["filters"] or []), stored["compressor"]]
    assert said["attributes"]["units"]["value"] == "K"


def test_json_of_what_cannot_be_read_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to_nczarr(xr.Dataset({"v": ("x", np.arange(3)), "w": ("x", np.arange(3))}), tmp_path / "x")
    path = tmp_path / "x" / "v" / ".zarray"
    path.write_text(path.read_text().replace('"<i8"', '"<q8"'))
    assert main(["info", "--json", str(tmp_path / "x")]) == 1
    variables = json.loads(capsys.readouterr().out)["groups"]["/"]["variables"]
    assert "v" in variables["v"]["error"]
    assert variables["w"]["error"] is None


def test_json_of_an_aggregation_has_no_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to_nczarr(xr.Dataset({"v": ("x", np.arange(9.0))}), tmp_path / "x")
    assert main(["copy", str(tmp_path / "x"), str(tmp_path / "x.nca")]) == 0
    assert main(["info", "--json", str(tmp_path / "x.nca")]) == 0
    said = json.loads(capsys.readouterr().out)["groups"]["/"]["variables"]["v"]
    assert (said["shape"], said["chunks"], said["codecs"]) == ([9], None, [])


@pytest.mark.parametrize("option", ["--check", "--fragments"])
def test_json_has_no_fragments(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", "--json", option, str(tmp_path)]) == 2
    assert "--json: has no fragments: nczarr validate --json" in capsys.readouterr().err
