"""``nczarr copy``: every direction, its options, bounded memory, errors."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.copy.request import KINDS
from nczarr_xarray.export.options import CopyOptions
from nczarr_xarray.model import Group
from tests.support.builders.copying import copy, failed
from tests.support.builders.ncwriter import FEW, WRITERS, ramp
from tests.support.builders.slabs import sizes_read
from tests.support.builders.trees import read_tree
from tests.support.corpora.emit_models import differences
from tests.support.faults.disks import tiny_disk
from tests.support.marks import slow_but
from tests.support.oracles.netcdf_c import netcdf_model

#: Writers of netCDF-C whose content pure Zarr can hold as well.
PURE = ("all-types", "attributes", "compression", "chunk-shapes", "dimensions", "packed", "times")


@pytest.fixture
def cube(tmp_path: Path) -> Path:
    """NCZarr with a variable of 10 x 8 chunks, and some more."""
    dataset = xr.Dataset(
        {"v": (("time", "x"), ramp((100, 64), "f4")), "scalar": np.int16(3)},
        coords={"x": np.arange(64.0)},
        attrs={"title": "cube", "short": np.int16(5)},
    )
    encoding = {"v": {"chunksizes": (10, 8), "zlib": True, "complevel": 2, "_FillValue": None}}
    path = tmp_path / "cube"
    to_nczarr(dataset, path, encoding=encoding, unlimited_dims=["time"])
    return path


# -- directions --------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow_but(WRITERS, *FEW))
def test_nczarr_to_nczarr_is_exact(tmp_path: Path, name: str) -> None:
    """What netCDF-C wrote is copied to the last bit of everything."""
    theirs = f"file://{tmp_path}/theirs#mode=nczarr,file"
    with netCDF4.Dataset(theirs, "w") as dataset:
        WRITERS[name](dataset)
    copy(theirs, tmp_path / "ours.zip")
    copy(tmp_path / "ours.zip", tmp_path / "ours")
    with open_hierarchy(theirs) as one, open_hierarchy(str(tmp_path / "ours")) as other:
        root, back = one.hierarchy.root, other.hierarchy.root
        say_sizes(root)
        assert list(differences(root, back)) == []
        for group in root.walk():
            for variable in group.variables.values():
                again = back.find(group.path)
                assert again is not None
                np.testing.assert_array_equal(
                    other.read(again.variables[variable.name]), one.read(variable)
                )


def say_sizes(root: Group) -> None:
    """Give shuffle its size of elements, which netCDF-C leaves out and we do not."""
    for group in root.walk():
        for variable in group.variables.values():
            array: Any = variable.array
            codecs = tuple(
                {**config, "elementsize": array.dtype.itemsize}
                if config["id"] == "shuffle"
                else config
                for config in array.codecs
            )
            variable.array = replace(array, codecs=codecs)


@pytest.mark.parametrize("compat", slow_but(["4.9.3", "4.9.2"], "4.9.3"))
@pytest.mark.parametrize("name", PURE)
def test_through_pure_zarr_and_netcdf(tmp_path: Path, name: str, compat: str) -> None:
    """Values survive every form, whatever their types become."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as dataset:
        WRITERS[name](dataset)
    pure = f"file://{tmp_path}/pure#mode=zarr"
    copy(tmp_path / "x.nc", pure)
    if compat == "4.9.3":
        copy(pure, tmp_path / "y", "--compat", compat)
    else:
        fixed = xr.open_dataset(tmp_path / "pure", engine="nczarr", decode_cf=False)
        with fixed:
            old = not any(0 in v.shape for v in fixed.variables.values())
        if not old:
            return  # that release has no dimensions of length 0
        copy(pure, tmp_path / "y", "--compat", compat)
    copy(tmp_path / "y", tmp_path / "z.nc")
    raw: dict[str, Any] = {"decode_cf": False}
    with (
        xr.open_dataset(tmp_path / "z.nc", engine="netcdf4", **raw) as ours,
        xr.open_dataset(tmp_path / "x.nc", engine="netcdf4", **raw) as theirs,
    ):
        xr.testing.assert_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore")  # what zarr-python thinks of text in Zarr 3
def test_zarr_3_to_nczarr(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": (("t", "x"), ramp((4, 6), "i4")), "s": ("x", list("abcdef"))})
    dataset.to_zarr(tmp_path / "x.zarr", zarr_format=3, consolidated=False)
    copy(tmp_path / "x.zarr", tmp_path / "y")
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), dataset)


def test_classic_file(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": (("time", "x"), ramp((3, 6), "f8"))}, attrs={"n": np.int32(1)})
    dataset.to_netcdf(
        tmp_path / "x.nc", format="NETCDF3_CLASSIC", engine="netcdf4", unlimited_dims=["time"]
    )
    copy(tmp_path / "x.nc", tmp_path / "y")
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), dataset)
        assert back.encoding["unlimited_dims"] == {"time"}


def test_variables_of_one_name_in_two_groups(tmp_path: Path) -> None:
    """xarray gives dask one name for both when it opens all groups at once."""
    tree = xr.DataTree.from_dict(
        {"/a": xr.Dataset({"v": ("x", [1, 2])}), "/b": xr.Dataset({"v": ("x", [3, 4])})}
    )
    tree.to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    copy(tmp_path / "x.nc", tmp_path / "y")
    with xr.open_datatree(tmp_path / "y", engine="nczarr") as back:
        xr.testing.assert_identical(back.load(), tree)


# -- options -----------------------------------------------------------------------------


def test_chunks_and_compression(cube: Path, tmp_path: Path) -> None:
    copy(cube, tmp_path / "y", "--chunks", "time=25", "--compress", "zstd:7")
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as back:
        encoding = back["v"].encoding
        assert encoding["chunksizes"] == (25, 64)
        assert (encoding["zstd"], encoding["complevel"], encoding["shuffle"]) == (True, 7, True)
        with xr.open_dataset(cube, engine="nczarr") as original:
            xr.testing.assert_identical(back.load(), original.load())
    model = netcdf_model(f"file://{tmp_path}/y#mode=nczarr,file")
    assert model.dimensions["time"].unlimited


@pytest.mark.parametrize("target", ["y.nczarr", "y.nc"])
def test_empty_dimensions_cannot_be_fixed(tmp_path: Path, target: str) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("time", None)
        file.createVariable("v", "f4", ("time",))
    copy(tmp_path / "x.nc", tmp_path / target, "--fixed", "--verify")


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("y#mode=nczarr,file", ("--compat", "4.8.1", "--compress", "none")),
        ("y#mode=nczarr,file", ("--compat", "4.9.2")),
        ("y#mode=nczarr,file", ()),
        ("y#mode=zarr", ()),
        ("y.nc", ()),
    ],
)
@pytest.mark.parametrize("kind", ["NCZarr", "HDF5"])
def test_unlimited_dimensions_become_fixed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    target: str,
    options: tuple[str, ...],
) -> None:
    data = xr.Dataset({"v": (("time", "x"), ramp((5, 6), "f4"))})
    tree = xr.DataTree.from_dict({"/": data, "/g/h": data.rename(time="more", v="w")})
    if kind == "NCZarr":
        source = tmp_path / "x"
        to_nczarr(tree, source, unlimited_dims={"/": ["time"], "/g/h": ["more"]})
    else:
        source = tmp_path / "x.nc"
        with netCDF4.Dataset(source, "w") as file:
            file.createDimension("x", 6)
            for path, name, time in (("/", "v", "time"), ("/g/h", "w", "more")):
                group = file.createGroup(path) if path != "/" else file
                group.createDimension(time, None)
                group.createVariable(name, "f4", (time, "x"))[:] = data.v.values
    place = f"file://{tmp_path}/{target}" if "#" in target else tmp_path / target
    if "--compat" in options:
        assert "--fixed" in failed(capsys, source, place, *options)
    copy(source, place, "--fixed", *options)
    with open_hierarchy(str(tmp_path / target.partition("#")[0])) as back:
        groups = list(back.hierarchy.root.walk())
        assert [g.path for g in groups] == ["/", "/g", "/g/h"]
        assert not any(d.unlimited for g in groups for d in g.dimensions.values())
        for group, name in (("/", "v"), ("/g/h", "w")):
            found = back.hierarchy.root.find(group)
            assert found is not None
            np.testing.assert_array_equal(back.read(found.variables[name]), data.v.values)


@pytest.mark.parametrize("target", ["y", "y.nc", "y.nca", "y#mode=zarr"])
@pytest.mark.parametrize("size", [4, 7, 36, 131, -1])
def test_a_truncated_classic_file_is_left_to_no_other_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int, target: str
) -> None:
    """netCDF-C takes 36 bytes of a header for a dataset without anything."""
    whole = tmp_path / "x.nc"
    data = xr.Dataset({"v": (("time", "x"), ramp((3, 6), "f8"))}, attrs={"n": np.int32(1)})
    data.to_netcdf(whole, format="NETCDF3_CLASSIC", engine="scipy")
    place = f"file://{tmp_path}/{target}"
    copy(whole, place)
    before = read_tree(tmp_path / "y") if (tmp_path / "y").is_dir() else {}
    (tmp_path / "cut.nc").write_bytes(whole.read_bytes()[:size])
    assert "cut.nc" in failed(capsys, tmp_path / "cut.nc", place, "--overwrite")
    assert before == (read_tree(tmp_path / "y") if before else {})
    with xr.open_dataset(tmp_path / target.partition("#")[0], engine="nczarr") as kept:
        np.testing.assert_array_equal(kept["v"], data["v"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<!DOCTYPE html><html>Log in</html>", "web page does: the server may want a login\n"),
        (b"no netCDF", "engine=...).nczarr.to_nczarr(TARGET) copies it\n"),
        (b"GRIB\0", "engine='cfgrib' reads it\n"),
    ],
)
def test_what_this_package_does_not_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    (tmp_path / "x.nc").write_bytes(content)
    for more in ([], ["--verify"], ["--memory", "1GB"]):
        message = failed(capsys, tmp_path / "x.nc", tmp_path / "y", *more)
        assert "x.nc: is neither a classic netCDF file nor HDF5" in message
        assert message.endswith(says)
        assert os.listdir(tmp_path) == ["x.nc"]


def test_an_option_that_is_wrong(
    cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(cube, tmp_path / "x.nc")
    message = failed(capsys, tmp_path / "x.nc", tmp_path / "y", "-o", "max_metdata=5")
    assert "leave out max_metdata" in message
    assert not (tmp_path / "y").exists()


def test_each_option_is_of_some_kind() -> None:
    assert {name for kind in KINDS for name in kind.options} == {
        field.name for field in fields(CopyOptions)
    }
    assert CopyOptions().given == frozenset()
    assert CopyOptions(compress=(), memory=0).given == {"compress", "memory"}


def test_no_compression(cube: Path, tmp_path: Path) -> None:
    copy(cube, tmp_path / "y", "--compress", "none")
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as back:
        assert back["v"].encoding["compressor"] is None
        assert not back["v"].encoding["zlib"]


def test_chunks_and_compression_of_netcdf(cube: Path, tmp_path: Path) -> None:
    copy(cube, tmp_path / "x.nc")
    copy(tmp_path / "x.nc", tmp_path / "y", "--chunks", "time=20,x=16", "--compress", "bzip2:1")
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as back:
        assert back["v"].encoding["chunksizes"] == (20, 16)
        assert back["v"].encoding["bzip2"]
        with xr.open_dataset(cube, engine="nczarr") as original:
            xr.testing.assert_identical(back.load(), original.load())


@pytest.mark.parametrize("target", ["y", "y.zip", "y.nc"])
def test_overwrite(
    cube: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    to_nczarr(xr.Dataset({"w": 1}), other)
    copy(other, tmp_path / target)
    assert "--overwrite" in failed(capsys, cube, tmp_path / target)
    copy(cube, tmp_path / target, "--overwrite")
    engine = "netcdf4" if target.endswith(".nc") else "nczarr"
    with xr.open_dataset(tmp_path / target, engine=engine) as back:
        assert {*back.variables} == {"v", "scalar", "x"}
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("cube", "other", target)] == []


def test_consolidated(cube: Path, tmp_path: Path) -> None:
    copy(cube, tmp_path / "without")
    copy(cube, tmp_path / "with", "--consolidated")
    copy(cube, f"file://{tmp_path}/word#mode=nczarr,consolidated")
    there = [(tmp_path / name / ".zmetadata").exists() for name in ("without", "with", "word")]
    assert there == [False, True, True]
    with xr.open_dataset(tmp_path / "with", engine="nczarr", consolidated=True) as back:
        assert back.attrs["short"] == 5


@pytest.mark.parametrize("target", ["y", "y.nc"])
def test_success_is_told_to_who_looks(
    cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    copy(cube, tmp_path / target, "--verify", "--progress")
    result = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"equal: \d+ variables, [\d.]+ k?B, [\d.]+ s", result)
    for option in ([], ["--no-progress"], ["--progress", "--quiet"]):
        copy(cube, tmp_path / target, "--verify", "--overwrite", *option)
        assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("target", ["y", "y.nc"])
@pytest.mark.parametrize(("option", "shown"), [("--progress", True), ("--no-progress", False)])
def test_progress(
    cube: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    target: str,
    option: str,
    shown: bool,
) -> None:
    copy(cube, tmp_path / target, option)
    written = capsys.readouterr()
    assert ("100%" in written.err) is shown
    assert ("B/s]" in written.err) is shown
    assert written.out == ""


def test_no_progress_where_nobody_looks(
    cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(cube, tmp_path / "y")
    assert capsys.readouterr() == ("", "")


# -- memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["y", "y.zip", "y.nc"])
@pytest.mark.parametrize("slab", [1 << 10, 1 << 12, 1 << 14])
def test_no_more_is_read_at_a_time_than_a_slab(
    cube: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slab: int, target: str
) -> None:
    sizes = sizes_read(monkeypatch, slab)
    # (what is compressed in another way is not moved as it is stored)
    copy(cube, tmp_path / target, "--compress", "zlib:5")
    scalar = 2 if target.endswith(".nc") else 0
    assert sum(sizes) == 100 * 64 * 4 + 64 * 8 + scalar
    assert max(sizes) <= slab
    engine = "netcdf4" if target.endswith(".nc") else "nczarr"
    with (
        xr.open_dataset(tmp_path / target, engine=engine) as back,
        xr.open_dataset(cube, engine="nczarr") as original,
    ):
        xr.testing.assert_identical(back.load(), original.load())


# -- errors ------------------------------------------------------------------------------


def test_no_such_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing" in failed(capsys, tmp_path / "missing", tmp_path / "y")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_nobody_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.bin").write_bytes(b"no dataset at all")
    message = failed(capsys, tmp_path / "x.bin", tmp_path / "y")
    assert "x.bin" in message
    assert os.listdir(tmp_path) == ["x.bin"]


def test_everything_that_cannot_be_stored_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = xr.Dataset({"s": ("x", ["text"]), "v": ("x", [1])}, attrs={"list": ["a", "b"]})
    to_nczarr(dataset, tmp_path / "x", unlimited_dims=["x"])
    message = failed(capsys, tmp_path / "x", tmp_path / "y", "--compat", "4.8.1")
    for what in ("/s", "list", "unlimited"):
        assert what in message
    assert not (tmp_path / "y").exists()


def test_damaged_source_leaves_nothing(
    cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cube / "v" / "3.3").write_bytes(b"damage")
    for target in ("y", "y.zip", "y.nc"):
        assert "v/3.3" in failed(capsys, cube, tmp_path / target, "--compress", "none")
    assert os.listdir(tmp_path) == ["cube"]


def test_options_that_netcdf_does_not_have(
    cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failed(capsys, cube, tmp_path / "y.nc", "--consolidated", "--overwrite", status=2)
    assert "--consolidated: not for netCDF-4, but for Zarr 3, Zarr 2, NCZarr" in message


@pytest.mark.parametrize(
    "option",
    [("--chunks", "x"), ("--chunks", "x=0"), ("--compress", "rar"), ("--compress", "zlib:99")],
)
def test_options_that_mean_nothing(cube: Path, tmp_path: Path, option: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["copy", str(cube), str(tmp_path / "y"), *option])
    assert error.value.code == 2


@pytest.mark.parametrize("name", ["copy", "copy.zip"])
def test_a_disk_for_reading_only(
    cube: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names what was asked for, not where it is made first."""
    with tiny_disk(tmp_path / "disk", "size=1M,ro") as disk:
        said = failed(capsys, cube, disk / name)
    assert f"nczarr: {disk / name}: cannot be written: nothing can be made beside it" in said
    assert "Read-only file system" in said


# -- what cannot be read of a source -----------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """NCZarr with a group whose metadata are damaged, so that it is left out."""
    below = xr.Dataset({"w": ("y", np.arange(4))})
    path = tmp_path / "damaged"
    to_nczarr(
        xr.DataTree.from_dict({"/": xr.Dataset({"v": ("x", np.arange(3))}), "/g": below}), path
    )
    (path / "g" / ".zattrs").write_text("{bad")
    return path


@pytest.mark.parametrize("name", ["y", "y.zip", "y.nc", "y.nca", "y.zarr#mode=zarr"])
def test_a_copy_says_what_is_left_out_of_its_source(
    tmp_path: Path, damaged: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"file://{tmp_path}/{name}"
    assert "left out, as it cannot be read: g/.zattrs: " in failed(capsys, damaged, target)
    with open_hierarchy(target) as opened:
        assert [*opened.hierarchy.root.variables] == ["v"]


def test_what_is_left_out_of_a_source_is_not_compared(
    tmp_path: Path, damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(damaged), str(damaged)]) == 2
    assert "not compared: g/.zattrs: " in capsys.readouterr().out


def test_only_what_is_left_out_of_the_copied_variables_counts(
    tmp_path: Path, damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy("--var", "v", "--verify", damaged, tmp_path / "y")
    assert main(["compare", "--var", "v", str(damaged), str(damaged)]) == 0
    assert capsys.readouterr().err == ""


def test_a_lack_by_which_nothing_is_left_out_is_no_loss(
    tmp_path: Path, cube: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"file://{cube}#mode=nczarr,consolidated"
    with open_hierarchy(source) as opened:
        assert "has no .zmetadata" in str(opened.hierarchy.problems)
    copy("--verify", source, tmp_path / "y")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("form", ["NCZarr", "Zarr2", "Zarr3"])
def test_sequences_are_named(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        sequence = file.createVLType("i4", "sequence")
        file.createVariable("v", sequence, ("x",))[0] = np.array([1, 2], "i4")
    message = failed(capsys, tmp_path / "x.nc", tmp_path / "y", "--format", form)
    kind = "NCZarr" if form == "NCZarr" else "Zarr"
    assert f"/v: {kind} has no type for sequences of int32: convert it\n" in message
    assert os.listdir(tmp_path) == ["x.nc"]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("{0}/cube", "{0}/cube/sub"),
        ("{0}/cube", "{0}/cube/v"),
        ("{0}/cube/", "file://{0}/other/../cube/sub#mode=zarr"),
        ("{0}/link", "{0}/cube/sub.nc"),
        ("{0}/cube.zip", "{0}/cube.zip/sub"),
        ("memory://cube", "memory:///cube/sub#mode=nczarr"),
        ("s3://bucket/cube#mode=nczarr,s3", "s3://bucket/cube/sub"),
        ("simplecache::https://h/bucket/cube#mode=s3", "https://h/bucket/cube/a/b#mode=zarr,s3"),
    ],
)
def test_no_copy_into_its_own_source(
    source: str, target: str, cube: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(cube)
    before = read_tree(cube)
    one, other = source.format(tmp_path), target.format(tmp_path)
    for options in ((), ("--overwrite",), ("--format", "Zarr3")):
        message = failed(capsys, one, other, *options, status=2)
        assert message == f"nczarr: {other}: is within {one}: choose a place outside of it\n"
    assert read_tree(cube) == before


def test_a_copy_beside_its_source_or_in_its_place(cube: Path, tmp_path: Path) -> None:
    copy(cube, tmp_path / "cube2")
    copy(cube, f"{cube}/", "--overwrite")
    copy(tmp_path / "cube2", cube, "--overwrite", "--verify")


@pytest.mark.parametrize("target", ["y", "y.nc", "y#mode=zarr", "y#mode=zarr3"])
def test_one_unreadable_variable_stops_no_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["sound"] = np.arange(3.0)
        file["packed"] = np.arange(3, dtype="i2")
        file["packed"].attrs["scale_factor"] = np.longdouble(0.5)
        file["null"] = h5py.Empty("f4")
        file["far"] = h5py.ExternalLink("other.h5", "/x")
    place = f"file://{tmp_path}/{target}" if "#" in target else str(tmp_path / target)
    more = ["--format", "Zarr3"] if "zarr3" in target else []
    place = place.removesuffix("3")
    message = failed(capsys, tmp_path / "x.h5", place, *more)
    for name in ("packed", "null", "far"):
        assert f"/{name}: " in message
    engine = "h5netcdf" if target == "y.nc" else "zarr"
    options: dict[str, Any] = {} if engine == "h5netcdf" else {"consolidated": False}
    with xr.open_dataset(tmp_path / target.partition("#")[0], engine=engine, **options) as back:
        assert list(back) == ["sound"]
        np.testing.assert_array_equal(back["sound"], np.arange(3.0))
    # what is named is not left out
    asked = failed(capsys, tmp_path / "x.h5", place, *more, "--var", "packed", "--overwrite")
    assert "packed: cannot be decoded" in asked or "/packed: cannot be read" in asked


#: Types by the names of variables, with the formats that lack them.
TYPES_OF_HDF5: dict[str, tuple[Any, set[str]]] = {
    "pair": (np.zeros(2, [("a", "i4"), ("b", "f8")]), {"NCZarr", "NETCDF4", "CFA", "Zarr3"}),
    "opaque": (np.zeros(2, "V5"), {"NCZarr", "NETCDF4", "CFA", "Zarr3"}),
    "half": (np.ones(2, "f2"), {"NCZarr", "NETCDF4", "CFA"}),
    "sequences": (None, {"NCZarr", "NETCDF4", "CFA", "Zarr3", "Zarr2"}),
}
TYPES_OF_ZARR: dict[str, tuple[Any, set[str]]] = {
    "half": (np.ones(2, "f2"), {"NCZarr", "NETCDF4", "CFA"}),
    "cplx": (np.ones(2, "c8"), {"NCZarr", "NETCDF4", "CFA"}),
    "when": (np.zeros(2, "M8[s]"), {"NCZarr", "NETCDF4", "CFA", "Zarr3"}),
    "fixed": (np.array(["ab", "c"]), set()),
}


@pytest.mark.parametrize("word", ["NCZarr", "NETCDF4", "CFA", "Zarr2", "Zarr3"])
@pytest.mark.parametrize("kind", ["HDF5", "Zarr"])
def test_a_variable_of_a_type_that_the_target_lacks_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, word: str
) -> None:
    types = TYPES_OF_HDF5 if kind == "HDF5" else TYPES_OF_ZARR
    source, target = tmp_path / "x", tmp_path / "y"
    if kind == "HDF5":
        with h5py.File(source, "w") as file:
            file["sound"] = np.arange(2.0)
            for name, (data, _) in types.items():
                if data is None:
                    file.create_dataset(name, (2,), h5py.vlen_dtype("i4"))[:] = [[1], [2, 3]]
                else:
                    file[name] = data
    else:
        group = zarr.create_group(source, zarr_format=2)
        for name, data in (("sound", np.arange(2.0)), *((n, d) for n, (d, _) in types.items())):
            group.create_array(name, data=data).attrs["_ARRAY_DIMENSIONS"] = ["n"]
    lost = {name for name, (_, lacking) in types.items() if word in lacking}
    if lost:
        message = failed(capsys, source, target, "--format", word, "--verify")
        for name in types:
            assert (f": /{name}\n" in f"{message}\n") == (name in lost)
    else:
        copy(source, target, "--format", word, "--verify")
    if word == "NETCDF4":
        with netCDF4.Dataset(target) as back:
            names, sound = set(back.variables), back["sound"][:]
    elif word == "CFA":
        with xr.open_dataset(target, engine="nczarr") as dataset:
            names, sound = set(dataset.variables), dataset["sound"].values
    else:
        tree = zarr.open_group(target, mode="r")
        names, sound = set(tree.array_keys()), np.asarray(tree["sound"])
        for name in names - {"sound"}:
            data = types[name][0]  # texts are stored in UTF-8
            np.testing.assert_array_equal(np.asarray(tree[name]).astype(data.dtype), data)
    assert names == {"sound", *types} - lost
    np.testing.assert_array_equal(sound, [0, 1])
    # what is named is not left out, nor all that there is
    if lost:
        name = min(lost)
        for options in (["--var", name], ["--var", "sound", "--var", name]):
            asked = failed(capsys, source, tmp_path / "z", "--format", word, *options)
            assert f"/{name}: " in asked
            assert not (tmp_path / "z").exists()


@pytest.mark.parametrize("word", ["NCZarr", "NETCDF4"])
def test_a_copy_of_which_nothing_would_be_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["half"] = np.ones(2, "f2")
    assert "/half: " in failed(capsys, tmp_path / "x.h5", tmp_path / "y", "--format", word)
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("word", ["NCZarr", "NETCDF4", "NETCDF3_CLASSIC", "CFA"])
@pytest.mark.parametrize("fill", [None, False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_bools_of_zarr_are_stored_as_xarray_stores_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: Any, fill: bool | None, word: str
) -> None:
    group = zarr.create_group(tmp_path / "x", zarr_format=version)
    more: dict[str, Any] = {"dimension_names": ["n"]} if version == 3 else {}
    flags = group.create_array("flags", shape=(7,), chunks=(3,), dtype="?", fill_value=fill, **more)
    flags.attrs["long_name"] = "flags"
    if version == 2:
        flags.attrs["_ARRAY_DIMENSIONS"] = ["n"]
    flags[:5] = [True, False, False, True, False]  # one chunk is not there
    target = tmp_path / "y"
    if version == 2 and fill is not None:  # which masks for readers of Zarr 2
        message = failed(capsys, tmp_path / "x", target, "--format", word, "--verify")
        assert "the mask of bools" in message
    else:
        copy(tmp_path / "x", target, "--format", word, "--verify")
    if word != "CFA":
        place = f"file://{target}#mode=nczarr,file" if word == "NCZarr" else str(target)
        with netCDF4.Dataset(place) as back:
            assert back["flags"].dtype == np.int8
            assert back["flags"].ncattrs() == ["long_name", "dtype"]
            assert np.ma.getmaskarray(back["flags"][:]).sum() == 0
            np.testing.assert_array_equal(back["flags"][:], flags[:])
        with xr.open_dataset(place, engine="netcdf4") as dataset:
            assert dataset["flags"].dtype == bool
            np.testing.assert_array_equal(dataset["flags"], flags[:])
    engines: dict[Any, dict[str, Any]] = {"nczarr": {}}
    if word == "NCZarr":
        engines["zarr"] = {"consolidated": False}
    for engine, options in engines.items():
        with xr.open_dataset(target, engine=engine, **options) as dataset:
            assert dataset["flags"].dtype == bool
            np.testing.assert_array_equal(dataset["flags"], flags[:])


@pytest.mark.parametrize("word", ["NCZarr", "NETCDF4", "NETCDF3_CLASSIC", "CFA", "Zarr2", "Zarr3"])
@pytest.mark.parametrize("kind", ["HDF5", "Zarr"])
def test_names_become_those_of_normal_form_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, word: str
) -> None:
    decomposed, composed = "e\N{COMBINING ACUTE ACCENT}", "\N{LATIN SMALL LETTER E WITH ACUTE}"
    trees = word in ("NCZarr", "NETCDF4")
    source, target = tmp_path / "x", tmp_path / "y"
    root: Any = (
        h5py.File(source, "w") if kind == "HDF5" else zarr.create_group(source, zarr_format=2)
    )
    for group in (root, root.create_group(f"g{decomposed}")) if trees else (root,):
        dims = {decomposed: [f"d{decomposed}"], f"d{decomposed}": [f"d{decomposed}"]}
        for name, where in dims.items():
            data = np.arange(3.0)
            if kind == "HDF5":
                made = group.create_dataset(name, data=data)
            else:
                made = group.create_array(name, data=data)
                made.attrs["_ARRAY_DIMENSIONS"] = where
            made.attrs[f"a{decomposed}"] = 1
            made.attrs["ancillary"] = decomposed  # a text stays
        group[decomposed].attrs["coordinates"] = f"d{decomposed}"
        if kind == "HDF5":
            group[f"d{decomposed}"].make_scale()
            group[decomposed].dims[0].attach_scale(group[f"d{decomposed}"])
    if kind == "HDF5":
        root.close()
    if word in ("Zarr2", "Zarr3"):
        copy(source, target, "--format", word, "--verify")
        assert set(zarr.open_group(target, mode="r").array_keys()) == {decomposed, f"d{decomposed}"}
        return
    message = failed(capsys, source, target, "--format", word, "--verify")
    assert "normal form C" in message
    assert f"/{decomposed}" in message
    for path in ("/", f"/g{composed}") if trees else ("/",):
        with xr.open_dataset(target, engine="nczarr", group=path) as dataset:
            assert list(dataset.variables) in (
                [composed, f"d{composed}"],
                [f"d{composed}", composed],
            )
            assert dataset[composed].dims == (f"d{composed}",)
            assert dataset[composed].attrs[f"a{composed}"] == 1
            assert dataset[composed].attrs["ancillary"] == decomposed
            np.testing.assert_array_equal(dataset[composed], np.arange(3.0))
    if word != "CFA":
        place = f"file://{target}#mode=nczarr,file" if word == "NCZarr" else str(target)
        with netCDF4.Dataset(place) as back:
            assert back[composed].dimensions == (f"d{composed}",)
            assert back[composed].coordinates == f"d{composed}"
            np.testing.assert_array_equal(back[composed][:], np.arange(3.0))


@pytest.mark.parametrize("word", ["NCZarr", "NETCDF4", "CFA"])
def test_two_names_that_become_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    group = zarr.create_group(tmp_path / "x", zarr_format=2)
    for name in ("e\N{COMBINING ACUTE ACCENT}", "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        group.create_array(name, data=np.arange(3.0)).attrs["_ARRAY_DIMENSIONS"] = ["n"]
    message = failed(capsys, tmp_path / "x", tmp_path / "y", "--format", word)
    assert "two names become" in message
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("word", ["NCZarr", "NETCDF4", "CFA", "Zarr3"])
def test_dimensions_and_enums_of_other_branches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        one, two, three = (file.create_group(name) for name in ("one", "two", "three"))
        one["x"] = np.arange(3.0)
        one["x"].make_scale()
        one["near"] = np.arange(3.0)
        for group, name in ((file, "top"), (two, "far"), (two, "also"), (three, "x")):
            group[name] = np.arange(3.0) + len(name)
        for variable in (one["near"], file["top"], two["far"], two["also"], three["x"]):
            variable.dims[0].attach_scale(one["x"])
        two["kinds"] = h5py.enum_dtype({"A": 0, "B": 1}, "i1")
        if word != "CFA":
            for group in (one, three):  # one is before the group of the type, one behind it
                made = group.create_dataset("kind", (2,), two["kinds"])
                made[:] = [1, 0]
    target = tmp_path / "y"
    if word == "Zarr3":  # which has names of dimensions only
        copy(tmp_path / "x.h5", target, "--format", word, "--verify")
        far = json.loads((target / "two" / "far" / "zarr.json").read_text())
        assert far["dimension_names"] == ["x"]
        return
    message = failed(capsys, tmp_path / "x.h5", target, "--format", word, "--verify")
    assert "dimensions of other groups become others of the same length" in message
    if word == "CFA":
        with xr.open_dataset(target, engine="nczarr") as dataset:
            assert dataset["top"].dims == ("x",)
            np.testing.assert_array_equal(dataset["top"], np.arange(3.0) + 3)
        return
    place = f"file://{target}#mode=nczarr,file" if word == "NCZarr" else str(target)
    with netCDF4.Dataset(place) as back:
        for path, name in (("top", "x"), ("two/far", "x"), ("two/also", "x"), ("three/x", "x_")):
            length = len(path.rpartition("/")[2])
            assert back[path].dimensions == (name,)
            assert back[path].get_dims()[0].group().path == back[path].group().path
            np.testing.assert_array_equal(back[path][:], np.arange(3.0) + length)
        assert back["one/near"].get_dims()[0].group().path == "/one"
        for path in ("one/kind", "three/kind"):
            np.testing.assert_array_equal(back[path][:], [1, 0])
            if word == "NETCDF4":
                assert back[path].datatype.enum_dict == {"A": 0, "B": 1}


@pytest.mark.parametrize("word", ["NCZarr", "NETCDF4", "NETCDF3_CLASSIC", "CFA", "Zarr2", "Zarr3"])
def test_the_dimension_of_a_scale_without_extent_keeps_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["time"] = h5py.Empty("f4")
        file["time"].make_scale("time")
        for name, length in {"v": 3, "w": 3, "z": 4}.items():
            file[name] = np.arange(float(length))
            file[name].dims[0].attach_scale(file["time"])
    message = failed(capsys, tmp_path / "x.h5", tmp_path / "y", "--format", word, "--verify")
    assert "/time: " in message
    options: dict[str, Any] = {"engine": "nczarr"}
    if word in ("NETCDF4", "NETCDF3_CLASSIC"):
        options = {"engine": "netcdf4"}
    elif word != "CFA":
        options = {"engine": "zarr", "consolidated": False}
    with xr.open_dataset(tmp_path / "y", **options) as dataset:
        assert dataset["v"].dims == dataset["w"].dims == ("time",)
        assert dataset["z"].dims != ("time",)  # it has another length
        for name in ("v", "w", "z"):
            np.testing.assert_array_equal(dataset[name], np.arange(dataset[name].size))
        assert dataset["z"].size == 4
