"""Formats of other packages, found by their entry points: docs/extending.md has one whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import FormatError
from nczarr_xarray import validate
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"
#: Formats besides the one of the page: of trees, around others, and none.
OTHERS = '''
from dataclasses import replace

from nczarr_xarray.formats.rounds import ReadRound
from nczarr_xarray.formats.registry import read_hierarchy
from nczarr_xarray.model import Attribute, ChunkedArray


class Titled:
    """Trees with a title: attributes of the root from an object of its own."""

    name = "titled"
    marks = ("title.txt",)

    def sniff(self, start, names):
        return "title.txt" in names

    async def read(self, source, options):
        answer = await ReadRound(("title.txt",))
        hierarchy = await read_hierarchy(source, options, after=self)
        title = Attribute("title", "char", answer.objects[0].decode())
        hierarchy.root.attributes["title"] = title
        return hierarchy


class Wrapped:
    """Whatever another format reads of a classic file, with a new name for its variable."""

    name = "wrapped"
    marks = ()

    def sniff(self, start, names):
        return start.startswith(b"CDF")

    async def read(self, source, options):
        hierarchy = await read_hierarchy(source, options, after=self)
        v = hierarchy.root.variables.pop("v")
        hierarchy.root.variables["wrapped"] = replace(v, name="wrapped")
        return hierarchy


class Catalog:
    """Trees without any document of Zarr."""

    name = "catalog"
    marks = ("catalog.txt",)

    def sniff(self, start, names):
        return "catalog.txt" in names

    async def read(self, source, options):
        (count,) = map(int, (await ReadRound(("catalog.txt",))).objects[0].split())
        x, dtype = Dimension("x", count), np.dtype("<f8")
        array = ChunkedArray("data/v", (count,), (2,), dtype, separator="/")
        variable = Variable("v", "/", (x,), "double", dtype, array=array)
        return Hierarchy(Group(dimensions={"x": x}, variables={"v": variable}), "catalog")


TITLED, WRAPPED, CATALOG = Titled(), Wrapped(), Catalog()
'''
ENTRY_POINTS = """[nczarr_xarray.formats]
toy = toyformat:TOY
titled = toyformat:TITLED
wrapped = toyformat:WRAPPED
catalog = toyformat:CATALOG
broken = toyformat:nothing
halfway = toyformat:struct
"""
#: Opens targets in a new process, and says what it found.
OPEN = """
import json, sys, warnings
import xarray as xr
import nczarr_xarray
early = [name for name in sys.modules if name == "toyformat"]
found = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for target in sys.argv[1:]:
        try:
            with xr.open_dataset(target, engine="nczarr") as ds:
                values = {name: ds[name].values.tolist() for name in ds.variables}
                part = ds[list(ds.data_vars)[0]][1:3].values.tolist()
                found[target] = values | {"attrs": dict(ds.attrs), "part": part}
        except nczarr_xarray.NCZarrError as error:
            found[target] = {"error": str(error)}
print(json.dumps([found, early, [str(warning.message) for warning in caught]]))
"""
VALUES = np.arange(5) / 2
NAMES = ["x.toy", "x.nc", "x.h5", "x.nczarr", "titled.nczarr", "catalog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed package, and data of its formats."""
    folder = tmp_path_factory.mktemp("toy")
    info = folder / "toyformat-1.dist-info"
    info.mkdir()
    page = re.search(r"```python\n(import struct.*?)```", PAGE.read_text(), re.DOTALL)
    assert page is not None
    (folder / "toyformat.py").write_text(page[1] + OTHERS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toyformat\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "x.toy").write_bytes(b"TOY1" + struct.pack("<I5d", 5, *VALUES))
    (folder / "cut.toy").write_bytes(b"TOY1\x05")
    data = xr.Dataset({"v": ("x", VALUES)})
    data.to_netcdf(folder / "x.nc", format="NETCDF3_CLASSIC")
    data.to_netcdf(folder / "x.h5", engine="h5netcdf")
    data.nczarr.to_nczarr(folder / "x.nczarr")
    data.nczarr.to_nczarr(folder / "titled.nczarr")
    (folder / "titled.nczarr" / "title.txt").write_text("of the tree")
    (folder / "catalog" / "data" / "v").mkdir(parents=True)
    (folder / "catalog" / "catalog.txt").write_text("5")
    for at in range(3):
        chunk = np.resize(VALUES[2 * at : 2 * at + 2], 2)
        (folder / "catalog" / "data" / "v" / str(at)).write_bytes(chunk.tobytes())
    return folder


class Found(NamedTuple):
    """What a new process found at each target, and what it did besides."""

    datasets: dict[str, dict[str, Any]]
    early: list[str]
    warnings: list[str]


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    with Server(read_tree(folder, "/")) as server:
        places = [
            place
            for name in [*NAMES, "cut.toy"]
            for place in (str(folder / name), f"{server.url}/{name}")
        ]
        done = subprocess.run(
            [sys.executable, "-c", OPEN, *places],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    datasets, early, warnings = json.loads(done.stdout)
    named = {
        ("http " if "://" in at else "path ") + at.rpartition("/")[2]: one
        for at, one in datasets.items()
    }
    return Found(named, early, warnings)


@pytest.mark.parametrize("way", ["path", "http"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_formats_from_outside(found: Found, way: str, name: str) -> None:
    variable = "wrapped" if name == "x.nc" else "v"
    attrs = {"title": "of the tree"} if name == "titled.nczarr" else {}
    values = VALUES.tolist()
    expected = {variable: values, "attrs": attrs, "part": values[1:3]}
    assert found.datasets[f"{way} {name}"] == expected


@pytest.mark.parametrize("way", ["path", "http"])
def test_a_damaged_one(found: Found, way: str) -> None:
    error = found.datasets[f"{way} cut.toy"]["error"]
    assert "cut.toy: the file has 5 bytes; its metadata refer to 4 to 8" in error


def test_they_are_imported_when_a_dataset_is_opened(found: Found) -> None:
    assert found.early == []


def test_those_that_cannot_be_used_are_left_out(found: Found) -> None:
    broken, halfway = (text for text in found.warnings if text.startswith("format "))
    assert "'broken' of 'toyformat:nothing' cannot be loaded" in broken
    assert halfway == "format 'halfway' of 'toyformat:struct' is no `Format`"


def test_their_objects_are_not_foreign(folder: Path) -> None:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "nczarr_xarray", "validate", "--json"]
    done = subprocess.run(
        [*command, str(folder / "titled.nczarr")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "foreign" not in {one["code"] for one in json.loads(done.stdout)}
    assert "foreign" in {one.code for one in validate(folder / "titled.nczarr")}


#: Whatever would write into a tree, or shows its objects as Zarr's.
REFUSED = """
import sys, xarray as xr, nczarr_xarray as nx
from nczarr_xarray.cli.main import main
ds = xr.Dataset({"v": ("x", [9.0] * 5)})
titled = nx.open_hierarchy("titled.nczarr").hierarchy.root.attributes["title"].value
for mode in ("w-", "w", "a", "r+"):
    calls = [lambda: nx.to_nczarr(ds, "catalog", mode=mode)]
    if mode == "w":
        calls += [lambda: nx.to_nczarr(ds, "catalog.zip", mode=mode)]
        calls += [lambda: nx.to_nczarr(ds, "catalog", append_dim="x")]
        calls += [lambda: nx.upgrade("catalog"), lambda: nx.open_store("catalog")]
        calls += [lambda: nx.references("catalog")]
    for call in calls:
        try:
            call()
        except nx.FormatError as error:
            assert "is of the format 'catalog', not of Zarr" in str(error), error
        else:
            raise AssertionError(mode)
found = [(one.severity, one.code) for one in nx.validate("catalog", data=True)]
assert found == [("note", "not-listed")], found
nx.to_nczarr(ds, "titled.nczarr", mode="w")  # whose objects are Zarr's
assert nx.open_hierarchy("titled.nczarr").hierarchy.root.attributes["title"].value == titled
for format in ("NCZarr", "Zarr2", "Zarr3", "NETCDF4"):
    assert main(["copy", "catalog", f"copy.{format}", "--format", format, "--verify"]) == 0
"""


@pytest.mark.slow
def test_trees_of_other_formats_are_only_read(folder: Path, tmp_path: Path) -> None:
    """A tree with other documents would be read as before, whatever was written into it."""
    for name in ("catalog", "titled.nczarr"):
        shutil.copytree(folder / name, tmp_path / name)
    with zipfile.ZipFile(tmp_path / "catalog.zip", "w") as archive:
        for file in (folder / "catalog").rglob("*"):
            archive.write(file, file.relative_to(folder))
    before = read_tree(tmp_path / "catalog", "/")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert read_tree(tmp_path / "catalog", "/") == before


def test_without_the_package(folder: Path) -> None:
    with pytest.raises(FormatError, match=r"x\.toy"):
        xr.open_dataset(folder / "x.toy", engine="nczarr")
