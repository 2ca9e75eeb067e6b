"""NCZarr as no tool of ours writes it, against what netCDF-C reads."""

from __future__ import annotations

import ctypes
import json
import zipfile
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError
from tests.support.builders.zarr2 import ARRAY, GROUP
from tests.support.marks import slow_but
from tests.support.oracles.netcdf_c import call
from tests.support.servers.httpserver import Server


def loaded(target: str | Path, engine: str, **options: Any) -> xr.Dataset:
    with xr.open_dataset(target, engine=engine, **options) as dataset:
        return dataset.load()


def netcdf_c(url: str) -> xr.Dataset:
    """What netCDF-C reads."""
    return loaded(url, "netcdf4")


# -- strings ---------------------------------------------------------------------------


def test_strings_end_at_the_first_nul(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/x#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("x", 3)
        file.createVariable("v", str, ("x",))[:] = np.array(["abc", "déf", "ghi"], object)
        file.createVariable("c", "S1", ("x",))[:] = np.array([b"a", b"\0", b"c"])
    chunk = tmp_path / "x" / "v" / "0"
    content = chunk.read_bytes()
    assert b"abc\0" in content
    chunk.write_bytes(content.replace(b"abc\0", b"a\0c\0").replace(b"ghi\0\0", b"g\0h\0i"))
    theirs, ours = netcdf_c(url), loaded(url, "nczarr")
    assert theirs.v.values.tolist() == ["a", "déf", "g"]
    xr.testing.assert_identical(ours, theirs)


# -- filters ---------------------------------------------------------------------------

FLETCHER32, SHUFFLE, ZLIB, SZIP, BZIP2, ZSTD = 3, 2, 1, 4, 307, 32015
PARAMETERS = {FLETCHER32: (), SHUFFLE: (), ZLIB: (4,), SZIP: (32, 8), BZIP2: (5,), ZSTD: (3,)}
CHAINS = [
    (FLETCHER32, SZIP),
    (SHUFFLE, FLETCHER32, SZIP),
    (SZIP, FLETCHER32),
    (FLETCHER32, ZLIB),
    (FLETCHER32, ZSTD),
    (FLETCHER32, BZIP2),
    (ZLIB, FLETCHER32, ZSTD),
]


@pytest.mark.parametrize("dtype", slow_but(["i4", "u1", "f8", "i2"], "i4"))
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_chains_of_filters(tmp_path: Path, chain: tuple[int, ...], dtype: str) -> None:
    """In the order in which they were asked for."""
    url = f"file://{tmp_path}/x#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("x", 256)
        v = file.createVariable("v", dtype, ("x",), chunksizes=(128,))
        for number in chain:
            values = PARAMETERS[number]
            array = (ctypes.c_uint * len(values))(*values)
            call("nc_def_var_filter", file._grpid, v._varid, number, len(values), array)
        v[:] = np.arange(256) // 5
    assert (tmp_path / "x" / "v" / "1").exists()
    if chain[-2:] == (FLETCHER32, SZIP) and dtype == "f8":
        # szip takes whole elements, and the checksum is half of one. (netCDF-C says "Filter error";
        # once, in a process that had done much else, it did not.)
        with pytest.raises(FormatError, match=r"v/0: .* no multiple of 8"):
            loaded(url, "nczarr")
        return
    ours, theirs = loaded(url, "nczarr"), netcdf_c(url)
    assert theirs.v.values.tolist() == (np.arange(256) // 5).tolist()
    xr.testing.assert_identical(ours, theirs)


# -- zip -------------------------------------------------------------------------------


def tree(name: str, prefix: str = "", *, superblock: str | None = ".zattrs") -> dict[str, bytes]:
    """A dataset with one array, as NCZarr with the superblock in an object, or as pure Zarr."""
    lists = {"dimensions": {"x": 3}, "arrays": [name], "groups": []}
    block = {"_nczarr_superblock": {"version": "2.0.0"}, "_nczarr_group": lists}
    structure = {"_nczarr_array": {"dimension_references": ["/x"]}}
    documents: dict[str, Any] = {
        ".zgroup": GROUP | (block if superblock == ".zgroup" else {}),
        ".zattrs": block if superblock == ".zattrs" else {},
        f"{name}/.zarray": ARRAY,
        f"{name}/.zattrs": structure if superblock else {},
    }
    return {prefix + key: json.dumps(value).encode() for key, value in documents.items()}


TOP, STRAY = tree("top"), {".zgroup": json.dumps(GROUP).encode()}
ZIPS: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "within first": (tree("inner", "d/") | TOP, ["inner"]),
    "within first, older": (tree("inner", "d/", superblock=".zgroup") | TOP, ["inner"]),
    "within, stray object": (tree("inner", "d/") | STRAY, ["inner"]),
    "within, directory first": ({"d/": b""} | STRAY | tree("inner", "d/"), ["inner"]),
    "top first": (TOP | tree("inner", "d/"), ["top"]),
    # as shutil.make_archive orders them: a group or an array of the dataset
    "group first": (tree("inner", "d/", superblock=None) | TOP, ["top"]),
    "array first": ({"top/": b""} | TOP, ["top"]),
    "group of pure Zarr first": (
        tree("inner", "d/", superblock=None) | tree("top", superblock=None),
        ["top"],
    ),
}


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(("entries", "variables"), ZIPS.values(), ids=ZIPS)
def test_what_netcdf_c_takes_for_the_dataset_in_a_zip(
    tmp_path: Path, entries: dict[str, bytes], variables: list[str], remote: bool
) -> None:
    """It takes the first directory; we do if that is a dataset, and no group of one at the top.

    (No build of netCDF-C that is at hand reads zip archives: the rule is what was observed
    with others, in the tests of zip archives that they wrote.)
    """
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        archive.writestr("zz", bytes(200_000))  # so that not all of it is in the tail
    if not remote:
        assert list(loaded(path, "nczarr")) == variables
        return
    with Server({"/x.zip": path.read_bytes()}) as server:
        assert list(loaded(f"{server.url}/x.zip", "nczarr")) == variables


# -- encoding --------------------------------------------------------------------------


def write_samples(target: str) -> None:
    """Fill values and byte orders of every kind."""
    with netCDF4.Dataset(target, "w") as file:
        file.createDimension("x", 3)
        file.createDimension("s", 4)
        for name, fill in (("nul", b"\0"), ("dash", b"-"), ("space", b" "), ("high", b"\xc2")):
            file.createVariable(name, "S1", ("x", "s"), fill_value=fill)[:] = b"a"
        file.createVariable("text", str, ("x",))[:] = np.array(["a", "", "ß"], object)
        for order, sign in (("big", ">"), ("little", "<")):
            for kind in ("i2", "u4", "i8", "f4", "f8"):
                options = {"endian": order, "fill_value": 5}
                v = file.createVariable(f"{order}_{kind}", sign + kind, ("x",), **options)
                v[:] = [1, 5, 3]
        file.createVariable("i1", "i1", ("x",), fill_value=-1)[:] = [1, -1, 3]
        file.createVariable("scalar", "f4", ())[...] = 2


@pytest.mark.parametrize("decode", [True, False])
def test_encoding_is_that_of_the_same_file(tmp_path: Path, decode: bool) -> None:
    url = f"file://{tmp_path}/x#mode=nczarr,file"
    write_samples(url)
    write_samples(str(tmp_path / "x.nc"))
    ours = loaded(url, "nczarr", decode_cf=decode)
    theirs = loaded(tmp_path / "x.nc", "netcdf4", decode_cf=decode)
    xr.testing.assert_identical(ours, theirs)
    for name, variable in theirs.variables.items():
        assert ours[name].dtype == variable.dtype, name
        mine = ours[name].encoding
        assert mine["dtype"] == variable.encoding["dtype"], name
        assert repr(mine.get("_FillValue")) == repr(variable.encoding.get("_FillValue")), name
        assert repr(ours[name].attrs) == repr(variable.attrs), name
        if "preferred_chunks" in mine:  # a tree is always chunked
            assert tuple(mine["preferred_chunks"].values()) == mine["chunksizes"], name
