"""``nczarr copy`` to netCDF files: classic ones, and files elsewhere than on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.local import LocalFileSystem

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export import netcdf_file
from nczarr_xarray.export.form.classic import size_problems
from nczarr_xarray.model import Dimension, Variable
from nczarr_xarray.tools.compare import compare
from tests.support.builders.copying import copy, failed
from tests.support.builders.ncwriter import WRITERS, ramp
from tests.support.faults.disks import tiny_disk
from tests.support.marks import slow_cases_but
from tests.support.oracles.nc_adapter import find_ncdump, ncdump, run_ncgen
from tests.support.servers.s3server import S3Server

#: What classic netCDF holds as it is.
PLAIN = ("float-specials", "char", "repeated-dimensions")
#: What CDF-5 holds besides.
MORE = ("all-types", "packed", "times", "missing-chunks")
KINDS = {
    "NETCDF3_CLASSIC": "nc3",
    "NETCDF3_64BIT_OFFSET": "nc6",
    "NETCDF3_64BIT_DATA": "cdf5",
}


def needs_nccopy() -> None:
    path, reason = find_ncdump()
    if path is None or shutil.which("nccopy") is None:
        pytest.skip(f"there is no nccopy: {reason}")


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """NCZarr with two variables along an unlimited dimension, and one along none."""
    dataset = xr.Dataset(
        {
            "v": (("time", "x"), ramp((50, 6), "f4")),
            "w": (("time",), ramp((50,), "i2")),
            "x": ("x", np.arange(6.0)),
        },
        attrs={"title": "series"},
    )
    encoding = {"v": {"chunksizes": (10, 6), "zlib": True}}
    to_nczarr(dataset, tmp_path / "series", encoding=encoding, unlimited_dims=["time"])
    return tmp_path / "series"


# -- classic -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "word"),
    slow_cases_but(
        [
            *((name, word) for name in PLAIN for word in KINDS),
            *((name, "NETCDF3_64BIT_DATA") for name in MORE),
        ],
        "packed",
        "float-specials",
    ),
)
def test_as_nccopy_writes_it(tmp_path: Path, name: str, word: str) -> None:
    needs_nccopy()
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as dataset:
        WRITERS[name](dataset)
    theirs = tmp_path / "theirs.nc"
    subprocess.run(["nccopy", "-k", KINDS[word], tmp_path / "x.nc", theirs], check=True)
    copy(tmp_path / "x.nc", tmp_path / "ours.nc", "--format", word, "--verify")
    with netCDF4.Dataset(tmp_path / "ours.nc") as ours:
        assert ours.data_model == word
    if word != "NETCDF3_64BIT_DATA":  # which the ncdump of Debian 12 does not know
        texts = [ncdump("-n", "x", str(tmp_path / one)) for one in ("ours.nc", "theirs.nc")]
        assert texts[0] == texts[1]
    raw: dict[str, Any] = {"decode_cf": False, "engine": "netcdf4"}
    if name != "repeated-dimensions":  # which xarray warns of
        with (
            xr.open_dataset(tmp_path / "ours.nc", **raw) as one,
            xr.open_dataset(theirs, **raw) as other,
        ):
            xr.testing.assert_identical(one.load(), other.load())


@pytest.mark.parametrize("word", KINDS)
def test_records(series: Path, tmp_path: Path, word: str) -> None:
    copy(series, tmp_path / "y.nc", "--format", word, "--verify")
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        assert file.data_model == word
        assert file.dimensions["time"].isunlimited()
        np.testing.assert_array_equal(file["v"][:], ramp((50, 6), "f4"))
        np.testing.assert_array_equal(file["w"][:], ramp((50,), "i2"))


def test_types_that_classic_netcdf_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.count = np.uint16(65535)
        file.createDimension("x", 4)
        for name in ("u1", "u2", "u4", "i8", "u8"):
            file.createVariable(name, name, ("x",))[:] = [0, 1, 2, 250]
        file.createVariable("some", "i8", ("x",))[:2] = [7, 8]  # the rest was never written
        wide = file.createVariable("filled", "i8", ("x",), fill_value=2**62)
        wide[:] = np.ma.masked_equal([1, 2, 3, 2**62], 2**62)
        texts = file.createVariable("texts", str, ("x",))
        texts[:] = np.array(["a", "bcd", "", "é"], object)
        enum = file.createEnumType("u1", "state", {"off": 0, "on": 1})
        file.createVariable("e", enum, ("x",))[:] = [0, 1, 1, 0]
    copy(tmp_path / "x.nc", tmp_path / "y.nc", "--format", "NETCDF3_CLASSIC", status=1)
    said = capsys.readouterr().err
    assert "/some: -9223372036854775806, netCDF's default fill value, becomes -2147483647" in said
    for words in ("others that can hold them: /u1, /u2", "strings become char", "flag_values"):
        assert words in said
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        assert file.count == 65535
        types = {name: variable.dtype.str[1:] for name, variable in file.variables.items()}
        assert {types[name] for name in ("u2", "u4", "i8", "u8", "some", "filled")} == {"i4"}
        assert types["u1"] == types["e"] == "i2"
        for name in ("u1", "u2", "u4", "i8", "u8"):
            assert file[name][:].tolist() == [0, 1, 2, 250]
        assert file["some"][:].tolist() == [7, 8, None, None]
        assert file["filled"][:].tolist() == [1, 2, 3, None]
        assert file["e"].flag_meanings == "off on"
    with xr.open_dataset(tmp_path / "y.nc", engine="netcdf4") as back:
        assert back["texts"].dims == ("x",)
        assert back["texts"].values.tolist() == ["a", "bcd", "", "é"]
    copy(tmp_path / "x.nc", tmp_path / "z.nc", "--format", "NETCDF3_64BIT_DATA")
    with netCDF4.Dataset(tmp_path / "z.nc") as file:
        assert file["u8"].dtype == np.uint64
        assert file["filled"][:].tolist() == [1, 2, 3, None]


@pytest.mark.parametrize("word", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA"])
def test_what_classic_netcdf_lacks_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """A value is no other one for its type, but one that was written wrong is."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("i8", "i8", ("x",))[:] = [1, 2]
        file.createVariable("texts", str, ("x",))[:] = np.array(["a", "é"], object)
        enum = file.createEnumType("u1", "state", {"off": 0, "on": 1})
        file.createVariable("e", enum, ("x",))[:] = [0, 1]
    options = "--format", word, "--verify", "--overwrite"
    copy(tmp_path / "x.nc", tmp_path / "y.nc", *options)
    assert capsys.readouterr().out == ""
    put = netcdf_file.put

    def wrong(made: Any, variable: Any, values: np.ndarray, part: Any) -> None:
        put(made, variable, values[::-1], part)

    monkeypatch.setattr("nczarr_xarray.export.copy.netcdf.put", wrong)
    copy(tmp_path / "x.nc", tmp_path / "y.nc", *options, status=1)
    said = capsys.readouterr().out
    assert all(f"variable /{name}: " in said for name in ("i8", "texts", "e"))


@pytest.mark.parametrize("name", ["y.nca", "y.nczarr"])
def test_enums_in_an_aggregation_are_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """They become integers with flags, as is told; so is an enum that is lost."""
    for number, unused in enumerate((False, True)):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("x", 2)
            enum = file.createEnumType("u1", "state", {"off": 0, "on": 1})
            file.createVariable("e", enum, ("x",))[:] = [0, 1]
            if unused:
                file.createEnumType("u1", "other", {"no": 0})
    options = "--format", "CFA", "--verify", "--overwrite"
    copy(tmp_path / "0.nc", tmp_path / name, *options)
    assert capsys.readouterr().out == ""
    copy(tmp_path / "1.nc", tmp_path / name, *options, status=1)
    said = capsys.readouterr()
    assert "enums that no variable uses are left out: /other" in said.err
    assert said.out == ""


@pytest.mark.parametrize("kind", ["NETCDF4", "NCZarr", "Zarr2", "Zarr3"])
@pytest.mark.parametrize("group", [None, "sub"])
def test_enums_without_names_are_those_of_the_engine(
    tmp_path: Path, kind: str, group: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every bool of h5py is one; netCDF-C gives them names."""
    source, target = tmp_path / "x.h5", tmp_path / ("x.nc" if kind == "NETCDF4" else "x")
    named = {"on": 1, "off": 4}
    with h5py.File(source, "w") as file:
        file["mask"] = np.array([True, False, True])
        file["sub/mask"] = np.array([False, True, True])
        file.create_dataset("sub/state", data=[1, 4, 1], dtype=h5py.enum_dtype(named, "i2"))
    copy(source, target, "--format", kind, "--verify")
    for path in (source, target):
        with (
            xr.open_dataset(path, engine="nczarr", group=group) as ours,
            xr.open_dataset(source, engine="netcdf4", group=group) as theirs,
        ):
            for name, variable in theirs.items():
                assert ours[name].values.tolist() == variable.values.tolist()
                told = variable.encoding["dtype"].metadata
                assert ours[name].encoding["dtype"].metadata == told, name
    assert compare(source, target).equal
    capsys.readouterr()
    first, second = (dumped(capsys, path) for path in (source, target))
    assert first == second
    assert "_AnonymousEnum1 mask(" in first


def dumped(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    """What ``nczarr dump`` prints of a dataset, without its name."""
    assert main(["dump", str(path)]) == 0
    return capsys.readouterr().out.partition("\n")[2]


def test_texts_in_classic_netcdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their dimension has the name that xarray gives it, unless another one has it."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        file.createDimension("string3", 5)
        file.createVariable("other", "i2", ("string3",))[:] = range(5)
        texts = file.createVariable("texts", str, ("x",), fill_value="-")
        texts[:] = np.array(["a", "bcd"], object)
    copy(tmp_path / "x.nc", tmp_path / "y.nc", "--format", "NETCDF3_CLASSIC", status=1)
    assert "left out: fill values of strings" in capsys.readouterr().err
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        assert file["texts"].dimensions == ("x", "string3_")
        assert file["texts"][:].tolist() == ["a", "bcd"]
        assert file["other"].dimensions == ("string3",)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("y.nc", ()),
        ("y.nc", ("--format", "NETCDF3_CLASSIC")),
        ("y", ()),
        ("y", ("--format", "Zarr3")),
    ],
)
def test_a_variable_that_cannot_be_read(
    target: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to_nczarr(xr.Dataset({"v": ("x", [1, 2]), "w": ("y", [3])}), tmp_path / "x")
    document = tmp_path / "x/w/.zarray"
    document.write_text(document.read_text().replace('"order": "C"', '"order": "A"'))
    message = failed(capsys, tmp_path / "x", tmp_path / target, *options)
    assert "w/.zarray" in message
    assert 'order is "A", neither C nor F' in message
    with xr.open_dataset(tmp_path / target, engine="nczarr") as back:
        assert list(back) == ["v"]
        np.testing.assert_array_equal(back["v"], [1, 2])


def test_texts_that_end_with_nul(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """netCDF-C's library for Python leaves the NULs out; a fill value is filled up with them."""
    to_nczarr(xr.Dataset({"v": ("x", [1, 2], {"said": "abc"})}), tmp_path / "x")
    document = tmp_path / "x/v/.zattrs"
    document.write_text(document.read_text().replace('"abc"', '"abc\\u0000"'))
    copy(tmp_path / "x", tmp_path / "y.nc")
    assert "/v:said" in capsys.readouterr().err
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        assert file["v"].said == "abc"


def test_what_classic_netcdf_cannot_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything is said at once, before anything is written; values are found while writing."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.setncattr_string("texts", ["a", "b"])
        for name in ("s", "t"):
            file.createDimension(name, None)
        file.createVariable("v", "f4", ("s", "t"))[:] = np.zeros((2, 3))
        file.createGroup("g")
    message = failed(
        capsys, tmp_path / "x.nc", tmp_path / "y.nc", "--format", "NETCDF3_CLASSIC", "--overwrite"
    )
    for words in ("'texts' is a list of texts", "/g: classic netCDF has no groups", "--fixed"):
        assert words in message
    with netCDF4.Dataset(tmp_path / "wide.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("wide", "i8", ("x",))[:] = [1, 2**40]
    wide = (tmp_path / "wide.nc", tmp_path / "y.nc", "--format", "NETCDF3_CLASSIC")
    assert f"/wide: holds the value {2**40}" in failed(capsys, *wide)
    assert sorted(os.listdir(tmp_path)) == ["wide.nc", "x.nc"]
    copy(wide[0], wide[1], "--format", "NETCDF3_64BIT_DATA", "--verify")


def test_value_that_would_become_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fill value that 32 bits lack becomes another one, which must not be a value."""
    least = -(2**31) + 1
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 3)
        wide = file.createVariable("wide", "i8", ("x",), fill_value=-(2**62))
        wide.set_auto_mask(False)
        wide[:] = [-(2**62), least, 1]
    classic = (tmp_path / "x.nc", tmp_path / "y.nc", "--format", "NETCDF3_CLASSIC")
    assert f"/wide: holds the value {least}, which stands for missing data" in failed(
        capsys, *classic
    )
    assert os.listdir(tmp_path) == ["x.nc"]
    with netCDF4.Dataset(tmp_path / "x.nc", "a") as file:
        file["wide"][1] = 2
    copy(*classic, "--verify")
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        np.testing.assert_array_equal(file["wide"][:].filled(0), [0, 2, 1])


@pytest.mark.parametrize(
    ("lengths", "fixed", "offset"),
    [
        ({"a": 1 << 29, "b": 10}, True, False),  # of which the last begins behind 2 GiB
        ({"a": 1 << 28, "b": 1 << 30}, False, False),  # the last may be of any size
        ({"a": 1 << 30, "b": 10}, True, True),
    ],
)
def test_too_large_for_a_format(
    tmp_path: Path, lengths: dict[str, int], fixed: bool, offset: bool
) -> None:
    """It is said, not tried: netCDF-C corrupts memory where it finds out."""
    dimensions = {name: Dimension(name, length) for name, length in lengths.items()}
    variables = [
        Variable(name, "/", (dimension,), "float", np.dtype("f4"))
        for name, dimension in dimensions.items()
    ]
    assert bool([*size_problems(variables, "NETCDF3_CLASSIC")]) is fixed
    assert bool([*size_problems(variables, "NETCDF3_64BIT_OFFSET")]) is offset
    assert [*size_problems(variables, "NETCDF3_64BIT_DATA")] == []


def test_what_is_too_large_is_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 1 << 30)
        for name in "ab":
            file.createVariable(name, "f4", ("x",), chunksizes=(1 << 20,), zlib=True)
    message = failed(capsys, tmp_path / "x.nc", tmp_path / "y.nc", "--format", "NETCDF3_CLASSIC")
    assert "NETCDF3_64BIT_DATA and NETCDF4 have no such limit" in message
    assert os.listdir(tmp_path) == ["x.nc"]


# -- attributes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["y.nc", "y.nca"])
def test_only_variables_are_filled_by_fill_values(tmp_path: Path, name: str) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("v", "i4", ("x",), fill_value=7)[:] = [1, 2]
        file.setncatts({"_FillValue": 5.5, "title": "t"})
    copy(tmp_path / "x.nc", tmp_path / name, "--verify")
    with netCDF4.Dataset(tmp_path / name) as file:
        assert file.getncattr("_FillValue") == 5.5
        assert file["v"].getncattr("_FillValue") == 7


@pytest.mark.parametrize("variable", [False, True])
def test_names_that_netcdf4_reserves(
    tmp_path: Path, variable: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("x", 2)
        made = file.createVariable("v", "i4", ("x",))
        made[:] = [1, 2]
        (made if variable else file).setncattr("_nczarr_attr", "text")
    message = failed(capsys, tmp_path / "x.nc", tmp_path / "y.nc")
    assert message.count("\n") == 1
    assert f"{'/v' if variable else '/'}: netCDF does not take an attribute" in message
    assert "'_nczarr_attr'" in message
    assert os.listdir(tmp_path) == ["x.nc"]
    classic = ("--format", "NETCDF3_CLASSIC")
    copy(tmp_path / "x.nc", tmp_path / "z.nc", *classic, "--verify")


# -- elsewhere ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--format", "NETCDF3_64BIT_OFFSET"), ()])
def test_to_memory(series: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    url = f"memory://netcdf{tmp_path}/y.nc"
    copy(series, url, *options, "--verify")
    with open_hierarchy(url) as opened, open_hierarchy(str(series)) as source:
        one = opened.hierarchy.root.variables["v"]
        other = source.hierarchy.root.variables["v"]
        np.testing.assert_array_equal(opened.read(one), source.read(other))


@pytest.mark.parametrize("target", ["y", "y.zip", "y.nc", "y.nca", "z#mode=zarr"])
def test_what_replaces_is_an_option(
    series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    url = f"file://{tmp_path}/{target}" if "#" in target else tmp_path / target
    copy(series, url)
    said = failed(capsys, series, url)
    assert said.endswith("; --overwrite replaces it\n")


def test_nothing_is_replaced_unasked(
    series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"memory://there{tmp_path}/y.nc"
    copy(series, url)
    fs = fsspec.filesystem("memory")
    before = fs.cat_file(f"/there{tmp_path}/y.nc")
    assert "--overwrite" in failed(capsys, series, url)
    (series / "v/3.0").write_bytes(b"damage")
    rechunked = "--chunks", "time=5"  # moved as they are, chunks are not decoded
    assert "v/3.0" in failed(capsys, series, url, "--overwrite", *rechunked)
    assert fs.cat_file(f"/there{tmp_path}/y.nc") == before


def test_what_comes_meanwhile_is_not_replaced(
    series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Somebody else writes the same file while this one is being made."""
    path = f"/meanwhile{tmp_path}/y.nc"
    fs = fsspec.filesystem("memory")
    upload = FsspecWriter.upload

    import nczarr_xarray.export.copy.netcdf as module

    fill = module.fill_file

    def late(*arguments: Any) -> None:
        fill(*arguments)
        fs.pipe_file(path, b"theirs")

    monkeypatch.setattr(module, "fill_file", late)
    assert "--overwrite" in failed(capsys, series, f"memory:/{path}")
    assert fs.cat_file(path) == b"theirs"
    assert upload is FsspecWriter.upload


def test_what_to_install(
    series: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("h5py", "netCDF4"):
        monkeypatch.setitem(sys.modules, name, None)
        said = failed(capsys, series, tmp_path / "y.nc")
        assert f"needs {name}: pip install 'nczarr-xarray[netcdf4]'" in said
    assert os.listdir(tmp_path) == ["series"]


def test_no_fill_value(tmp_path: Path) -> None:
    """Where netCDF-C has no fill value, 255 is a value; with the default one it is missing."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 3)
        for name, fill in (("all", False), ("default", None), ("chunked", False)):
            chunks = {"chunksizes": (2,)} if name == "chunked" else {}
            variable = file.createVariable(name, "u1", ("x",), fill_value=fill, **chunks)
            variable.set_auto_mask(False)
            variable[:] = [0, 255, 7]
    copy(tmp_path / "x.nc", tmp_path / "y.nc")
    for name in ("x.nc", "y.nc"):
        with netCDF4.Dataset(tmp_path / name) as file:
            missing = {n: bool(np.ma.getmaskarray(v[:])[1]) for n, v in file.variables.items()}
        assert missing == {"all": False, "default": True, "chunked": False}, name


def test_to_s3(series: Path, tmp_path: Path, s3_server: S3Server) -> None:
    """NetCDF-4, classic and a master of an aggregation, read again from there."""
    signed = s3_server.signed()
    options = [f"-O{name}={value}" for name, value in signed.items()]
    base = f"s3://{s3_server.private}/copy-netcdf-{os.getpid()}"
    copy(series, f"{base}/y.nc", *options, "--verify")
    copy(series, f"{base}/c.nc", *options, "--format", "NETCDF3_CLASSIC", "--verify")
    copy(series, f"{base}/m.nca", *options, "--max-object-size", "500B")
    fs = fsspec.filesystem("s3", **signed)
    for name, format_ in (("y.nc", "NETCDF4"), ("c.nc", "NETCDF3_CLASSIC")):
        fs.get_file(f"{base}/{name}", str(tmp_path / name))
        with netCDF4.Dataset(tmp_path / name) as file:
            assert file.data_model == format_
            np.testing.assert_array_equal(file["v"][:], ramp((50, 6), "f4"))
    with xr.open_dataset(f"{base}/m.nca", engine="nczarr", storage_options=signed) as back:
        np.testing.assert_array_equal(back["v"].values, ramp((50, 6), "f4"))


class _Drive(LocalFileSystem):
    """A filesystem of files on another machine: what is written there is there, part by part."""

    protocol = "drive"
    cachable = False
    stops = False

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        data = Path(lpath).read_bytes()
        Path(rpath).write_bytes(data[: len(data) // 2])
        if self.stops:
            raise OSError("the connection broke")
        Path(rpath).write_bytes(data)


def test_files_appear_as_a_whole_where_they_are_written_in_parts(tmp_path: Path) -> None:
    fs = _Drive()
    store = FsspecWriter(fs, str(tmp_path))
    (tmp_path / "local").write_bytes(b"12345678")
    _Drive.stops = True
    with pytest.raises(OSError, match="the connection broke"):
        store.upload("x.nc", str(tmp_path / "local"))
    assert os.listdir(tmp_path) == ["local"]
    _Drive.stops = False
    store.upload("x.nc", str(tmp_path / "local"))
    assert (tmp_path / "x.nc").read_bytes() == b"12345678"
    assert sorted(os.listdir(tmp_path)) == ["local", "x.nc"]


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
@pytest.mark.parametrize("conventions", [None, "CF-1.8", "CF-1.8 ACDD-1.3"])
def test_an_aggregation_is_verified(tmp_path: Path, version: str, conventions: str | None) -> None:
    """A master has conventions of its own, which are not those of its data."""
    source, target = tmp_path / "a.nc", tmp_path / "m.nca"
    attrs = {"title": "t"} if conventions is None else {"Conventions": conventions}
    ds = xr.Dataset({"v": (("t", "x"), np.arange(60.0).reshape(6, 10))}, attrs=attrs)
    ds.to_netcdf(source, engine="netcdf4")
    options = ("--cfa-version", version, "--max-object-size", "100B", "--verify")
    copy(source, target, *options)
    found = compare(str(source), str(target))
    assert not found.differences


@pytest.mark.parametrize(
    ("folder", "reason"), [("none", "No such file or directory"), ("file", "Not a directory")]
)
def test_the_error_of_a_folder_that_is_none_says_so(
    series: Path, tmp_path: Path, folder: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """netCDF4 says that it is not permitted."""
    (tmp_path / "file").touch()
    target = tmp_path / folder / "y.nc"
    assert failed(capsys, series, target) == f"nczarr: {target}: cannot be written: {reason}\n"


@pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF3_CLASSIC"])
@pytest.mark.parametrize("free", [0, 16, 64])
def test_the_error_of_a_full_disk_says_so(
    series: Path, tmp_path: Path, kind: str, free: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """netCDF-C speaks of permissions, or of HDF."""
    source = tmp_path / "large"
    noise = np.random.default_rng(0).integers(0, 2**31, (100, 1000), dtype="i4")
    to_nczarr(xr.Dataset({"v": (("y", "x"), noise)}), source)
    with tiny_disk(tmp_path / "disk", "size=512k") as disk:
        target = disk / "y.nc"
        copy(series, target, "--format", kind)
        before = target.read_bytes()
        with (disk / "rest").open("wb") as rest:
            room = os.statvfs(disk)
            rest.write(bytes(room.f_bavail * room.f_frsize - free * 1024))
        said = failed(capsys, source, target, "--format", kind, "--overwrite")
        assert said == f"nczarr: {target}: cannot be written: No space left on device\n"
        assert target.read_bytes() == before
        assert {path.name for path in disk.iterdir()} == {"y.nc", "rest"}


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "x.nc"
    path.write_bytes(b"another's")
    with pytest.raises(StoreError, match=r"x\.nc: cannot be written: "):
        netcdf_file.new_file(str(path), "NETCDF4", str(path)).__enter__()
    assert path.read_bytes() == b"another's"
    assert os.listdir(tmp_path) == ["x.nc"]


#: Variables of dimensions that nearer ones hide: longer, shorter and unlimited ones.
HIDDEN = """netcdf model {
dimensions:
\tx = 2 ;
\tt = UNLIMITED ; // (3 currently)
\tfar = 4 ;

group: g {
  dimensions:
  \tx = 3 ;
  \tt = 2 ;
  variables:
  \tint a(/x) ;
  \tint b(x) ;
  \tint c(/t, x) ;
  \tint d(/t, t) ;
  \tstring s(/x, x) ;
  data:

   a = 1, 2 ;

   b = 1, 2, 3 ;

   c =
  1, 2, 3,
  4, 5, 6,
  7, 8, 9 ;

   d =
  1, 2,
  3, 4,
  5, 6 ;

   s =
  "a", "b", "c",
  "d", "e", "f" ;

  group: h {
    dimensions:
    \tfar = UNLIMITED ; // (2 currently)
    variables:
    \tint a(x) ;
    \tint e(/far) ;
    \tint q(/far, far) ;
    data:

     a = 5, 6, 7 ;

     e = 1, 2, 3, 4 ;

     q =
  {1, 2},
  {3, 4},
  {5, 6},
  {7, 8} ;
    } // group h
  } // group g
}
"""


def test_dimensions_that_nearer_ones_hide(tmp_path: Path) -> None:
    assert run_ncgen(HIDDEN, f"{tmp_path}/model.nc")
    (tmp_path / "back").mkdir()
    copy(tmp_path / "model.nc", tmp_path / "there.nczarr", "--verify")
    copy(tmp_path / "there.nczarr", tmp_path / "back" / "model.nc", "--verify")
    expected = ncdump(f"{tmp_path}/model.nc")
    assert ncdump(f"{tmp_path}/back/model.nc").split("\n") == expected.split("\n")


@pytest.mark.parametrize("options", [(), ("--memory", "1GB")], ids=["", "limited"])
def test_a_variable_that_has_the_name_of_another_dimension(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """NetCDF-C gives it another name in HDF5, and forgets that when it opens it anew."""
    expected = {"a": [9, 9, 9], "x": [1, 2, 3], "y": [[4, 5, 6], [7, 8, 9]]}
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        for name, size in {"x": 3, "y": 3, "z": 3, "t": 2}.items():
            file.createDimension(name, size)
        for name, dims in {"a": ("x",), "x": ("z",), "y": ("t", "y")}.items():
            chunks = [len(file.dimensions[dim]) for dim in dims]
            file.createVariable(name, "f4", dims, chunksizes=chunks)[:] = expected[name]
    copy(tmp_path / "x.nc", tmp_path / "y.nc", *options)
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        assert {name: v[:].tolist() for name, v in file.variables.items()} == expected


@pytest.mark.parametrize("name", ["'age'", "#refs#", "a "])
@pytest.mark.parametrize("kind", ["group", "variable", "attribute"])
def test_a_name_that_netcdf_does_not_allow_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    """Netcdf-C would say "Name contains illegal characters", and not which name."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.arange(3)
        if kind == "group":
            file.create_group(name)["w"] = np.arange(2)
        elif kind == "variable":
            file[name] = np.arange(2)
        else:
            file["v"].attrs[name] = 1
    message = failed(capsys, tmp_path / "a.h5", tmp_path / "b.nc")
    assert f"the name {name!r} is not one that netCDF allows" in message
    assert not (tmp_path / "b.nc").exists()


@pytest.mark.parametrize("word", ["NETCDF4", "NETCDF3_64BIT_DATA"])
def test_unlimited_dimension_of_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    """In netCDF it would have the length 0, which nobody announced."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.arange(3)
        file.create_dataset("table", (5,), [("a", "i4"), ("b", "f4")], maxshape=(None,))
    arguments = (tmp_path / "a.h5", tmp_path / "b.nc", "--format", word, "--verify")
    message = failed(capsys, *arguments)
    assert "left out: unlimited dimensions of no variable" in message
    assert "different" not in message
    with netCDF4.Dataset(tmp_path / "b.nc") as file:
        assert [len(dimension) for dimension in file.dimensions.values()] == [3]
        assert file["v"][:].tolist() == [0, 1, 2]
