"""The model as documents: our reader, netCDF-C 4.10.1 and 4.9.0, and zarr-python get it back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import example, given, settings

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.cli.dump import write_cdl
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.nczarr.emit import consolidate, documents
from nczarr_xarray.formats.nczarr.jsontext import dumps
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.spellings import COMPAT, Profile, release
from nczarr_xarray.formats.nczarr.values import number
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    ChunkedArray,
    Dimension,
    Group,
    Variable,
)
from tests.support.builders.trees import write_tree
from tests.support.corpora.emit_models import (
    NCZARR,
    PROFILES,
    WRITER,
    bits,
    differences,
    models,
    pure_model,
    rewritable,
)
from tests.support.corpora.samples import vector
from tests.support.examples import examples
from tests.support.oracles.nc_adapter import ncdump
from tests.support.oracles.netcdf_c import netcdf_model


def write(target: Path, objects: Mapping[str, bytes]) -> str:
    """Put objects into a directory; returns its URL without a mode."""
    return f"file://{write_tree(target, objects)}"


# -- round trips ---------------------------------------------------------------------


@pytest.mark.parametrize("profile", NCZARR, ids=lambda p: p.generation)
@given(data=st.data())
def test_our_reader_gets_the_model_back(profile: Profile, data: st.DataObject) -> None:
    root = data.draw(models(profile))
    assert problems(root, profile) == []
    opened = open_hierarchy(documents(root, profile, WRITER))
    assert opened.hierarchy.generation == profile.generation
    assert opened.hierarchy.problems == ()
    assert opened.hierarchy.writer == WRITER
    assert list(differences(root, opened.hierarchy.root)) == []


@given(root=models(PROFILES["v2"]))
def test_pure_zarr_keeps_values(root: Group) -> None:
    assert problems(root, PROFILES["v2"]) == []
    opened = open_hierarchy(documents(root, PROFILES["v2"], WRITER))
    assert opened.hierarchy.generation == "v2"
    assert opened.hierarchy.problems == ()
    for group in root.walk():
        back = opened.hierarchy.root.find(group.path)
        assert back is not None
        assert_same_values(group.attributes, back.attributes)
        assert sorted(group.variables) == sorted(back.variables)
        for name, variable in group.variables.items():
            other = back.variables[name]
            if "_FillValue" not in variable.attributes:  # for which the fill value stands
                other.attributes.pop("_FillValue", None)
            assert_same_values(variable.attributes, other.attributes)
            ours: Any = variable.array
            theirs: Any = other.array
            assert [d.name for d in other.dimensions] == [d.name for d in variable.dimensions]
            assert bits(ours.fill) == bits(theirs.fill)
            assert replace(ours, fill=0) == replace(theirs, fill=0)


def assert_same_values(ours: Mapping[str, Attribute], back: Mapping[str, Attribute]) -> None:
    assert list(ours) == list(back)
    for name, attribute in ours.items():
        value = back[name].value
        if isinstance(attribute.value, np.ndarray):
            assert isinstance(value, np.ndarray)
            if value.size and attribute.value.dtype.kind in "iu" and value.dtype.kind == "f":
                assert 2**63 - 1 in attribute.value  # without a type, netCDF-C takes it for more
                continue
            assert bits(value.astype(attribute.value.dtype)) == bits(attribute.value)
        elif isinstance(value, np.ndarray):  # texts that all stand for numbers, as in fill values
            assert {"NaN", "Infinity", "-Infinity"}.issuperset(attribute.value)
        elif isinstance(attribute.value, str) or len(attribute.value) > 1:
            assert value == attribute.value
        elif attribute.value:  # [] says nothing of a type
            assert value == attribute.value[0]


@settings(max_examples=examples(40))
@given(root=models(PROFILES["G2A"]))
def test_netcdf_c_4_10_reads_it(root: Group) -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = write(Path(directory) / "x", documents(root, PROFILES["G2A"], WRITER))
        back = netcdf_model(f"{url}#mode=nczarr,file")
    assert list(differences(root, back, netcdf_c=True)) == []


@settings(max_examples=examples(25))
@given(root=models(PROFILES["G2U"]))
def test_ncdump_4_9_0_reads_it(root: Group) -> None:
    pieces: list[str] = []
    assert write_cdl("model", root, pieces.append) == []
    with tempfile.TemporaryDirectory() as directory:
        url = write(Path(directory) / "model", documents(root, PROFILES["G2U"], WRITER))
        theirs = ncdump("-h", f"{url}#mode=nczarr,file")
    assert "".join(pieces).split("\n") == theirs.split("\n")


@pytest.mark.parametrize("name", rewritable())
def test_what_netcdf_c_wrote_is_written_again(name: str) -> None:
    original = open_hierarchy(vector(name)).hierarchy
    for profile in NCZARR:
        if problems(original.root, profile):
            # what 4.9.0 wrote of this one lacks objects
            assert profile != PROFILES["G2A"] or name == "quantize-nczarr+file-4.9.0"
            continue
        back = open_hierarchy(documents(original.root, profile, WRITER)).hierarchy
        assert back.problems == ()
        # shuffle gets its true element size
        for group in original.root.walk():
            for variable in group.variables.values():
                array: Any = variable.array
                size = array.dtype.itemsize
                size = 8 if array.dtype.kind == "S" and size > 1 else size
                codecs = tuple(
                    {**c, "elementsize": size} if c["id"] == "shuffle" else c for c in array.codecs
                )
                variable.array = replace(array, codecs=codecs)
        assert list(differences(original.root, back.root)) == []


# -- pure Zarr -----------------------------------------------------------------------


def test_zarr_python_reads_pure_zarr(tmp_path: Path) -> None:
    root = pure_model()
    assert problems(root, PROFILES["v2"]) == []
    objects = documents(root, PROFILES["v2"], WRITER)
    write(tmp_path, objects | {".zmetadata": consolidate(objects)})
    for consolidated in (False, True):
        group: Any = zarr.open_group(tmp_path, mode="r", use_consolidated=consolidated)
        for name, variable in root.variables.items():
            array: Any = variable.array
            assert group[name].shape == array.shape
            want = np.full(array.shape, array.fill, array.dtype)
            got = np.asarray(group[name][...])
            if array.dtype.kind == "O":
                assert got.tolist() == want.tolist()
            else:
                assert got.astype(array.dtype).tobytes() == want.tobytes()
        assert np.isnan(float(group["g"].attrs["specials"][0]))
        assert group["g"].attrs["specials"][1] == 0.1
    with xr.open_dataset(tmp_path, engine="zarr", decode_cf=False) as dataset:
        assert dataset["scalar"].shape == ()
        assert dataset["scalar"].attrs["units"] == "2020"
        assert dataset["v_i4"].dims == ("x",)
    theirs = open_hierarchy(dict(objects)).hierarchy.root
    for name, variable in root.variables.items():
        assert theirs.variables[name].error is None
        ours, back = variable.array, theirs.variables[name].array
        assert isinstance(ours, ChunkedArray)
        assert isinstance(back, ChunkedArray)
        ours, back = replace(ours, codecs=()), replace(back, codecs=())
        if ours.dtype.kind == "O":
            assert back.fill == ours.fill
        else:
            assert bits(np.array(back.fill, ours.dtype)) == bits(np.array(ours.fill, ours.dtype))
        assert replace(back, fill=0) == replace(ours, fill=0)


@pytest.mark.parametrize("profile", NCZARR, ids=lambda p: p.generation)
def test_zarr_python_reads_numbers_of_nczarr(profile: Profile, tmp_path: Path) -> None:
    x = Dimension("x", 3)
    root = Group(dimensions={"x": x})
    codecs = () if profile.generation == "G2U" else ({"id": "shuffle"}, {"id": "zlib", "level": 1})
    for nc_type, dtype in NC_DTYPES.items():
        if dtype.kind in "iuf":
            array = ChunkedArray(nc_type, (3,), (2,), dtype, dtype.type(3), codecs)
            root.variables[nc_type] = Variable(nc_type, "/", (x,), nc_type, dtype, {}, array)
    write(tmp_path, documents(root, profile, WRITER))
    with xr.open_dataset(tmp_path, engine="zarr", decode_cf=False, consolidated=False) as dataset:
        assert set(dataset.variables) == set(root.variables)
        for name, variable in root.variables.items():
            assert dataset[name].dims == ("x",)
            assert dataset[name].dtype == variable.dtype
            assert dataset[name].values.tolist() == [3, 3, 3]


def test_netcdf_c_reads_pure_zarr(tmp_path: Path) -> None:
    x = Dimension("x", 3)
    root = Group(dimensions={"x": x}, attributes={"t": Attribute("t", "char", "1.5")})
    for dtype in [d for d in NC_DTYPES.values() if d.kind in "iuf"]:
        array = ChunkedArray(dtype.name, (3,), (2,), dtype, dtype.type(3))
        root.variables[array.path] = Variable(array.path, "/", (x,), "x", dtype, {}, array)
    url = write(tmp_path / "x", documents(root, PROFILES["v2"], WRITER))
    back = netcdf_model(f"{url}#mode=zarr,file")
    assert back.attributes["t"].value == "1.5"
    for name, variable in root.variables.items():
        theirs = back.variables[name]
        assert [d.name for d in theirs.dimensions] == ["x"]
        ours: Any = variable.array
        assert replace(theirs.array, fill=0) == replace(ours, fill=0)  # type: ignore[type-var]
        assert bits(theirs.array.fill) == bits(ours.fill)  # type: ignore[union-attr]


# -- details -------------------------------------------------------------------------


@given(st.floats(width=32), st.floats())
@example(7.038530691851209e-26, 5e-324)  # the shortest text of this float is nearer to another
def test_floats_come_back_to_the_bit(single: float, double: float) -> None:
    for value in (np.float32(single), np.float64(double)):
        text = dumps(number(value)).strip('"')
        assert np.isnan(value) or bits(type(value)(float(text))) == bits(value)
        assert not np.isfinite(value) or json.loads(text) == float(text)
        assert not text.lstrip("-").isdecimal()  # a reader without types takes it for a float


def test_order_of_writing() -> None:
    root, child = Group(), Group("/g")
    root.groups["g"] = child
    child.groups["h"] = Group("/g/h")
    array = ChunkedArray("g/v", (), (), np.dtype("i4"))
    child.variables["v"] = Variable("v", "/g", (), "int", array.dtype, {}, array)
    last = {"G2A": ".zattrs", "G2L": ".zgroup", "G2U": ".zgroup", "v2": ".zgroup"}
    for name, profile in PROFILES.items():
        found = documents(root, profile, WRITER)
        keys = list(found)
        assert set(keys[:2]) == {"g/v/.zarray", "g/v/.zattrs"}
        assert [key.rpartition("/")[0] for key in keys[2:]] == ["g/h", "g/h", "g", "g", "", ""]
        assert keys[-1] == last[name]
        superblocks = [key for key, data in found.items() if b"superblock" in data.lower()]
        assert superblocks == ([] if name == "v2" else [last[name]])


def test_contradicting_short_names_are_left_out() -> None:
    outer, inner = Dimension("x", 3), Dimension("x", 5, group="/g")
    root, child = Group(dimensions={"x": outer}), Group("/g", {"x": inner})
    root.groups["g"] = child
    for name, dims in {"a": (inner,), "b": (outer,), "c": (outer, inner), "d": ()}.items():
        shape = tuple(dim.size for dim in dims)
        array = ChunkedArray(f"g/{name}", shape, shape, np.dtype("i4"))
        child.variables[name] = Variable(name, "/g", dims, "int", array.dtype, {}, array)
    found = documents(root, PROFILES["G2A"], WRITER)
    assert b'"_ARRAY_DIMENSIONS": ["x"]' in found["g/a/.zattrs"]
    assert b"_ARRAY_DIMENSIONS" not in found["g/b/.zattrs"] + found["g/c/.zattrs"]
    assert b'"_ARRAY_DIMENSIONS": ["_scalar_"]' in found["g/d/.zattrs"]
    assert list(differences(root, open_hierarchy(found).hierarchy.root)) == []
    assert [line[:4] for line in problems(root, PROFILES["v2"])] == ["/g/b", "/g/c"]
    noxarray = documents(root, Profile("G2A", array_dimensions=False), WRITER)
    assert not any(b"_ARRAY_DIMENSIONS" in data for data in noxarray.values())


def test_consolidated_metadata() -> None:
    root = pure_model()
    found = documents(root, PROFILES["v2"], WRITER)
    metadata = json.loads(consolidate(found))
    assert metadata["zarr_consolidated_format"] == 1
    assert metadata["metadata"] == {key: json.loads(data) for key, data in found.items()}
    opened = open_hierarchy(found | {".zmetadata": consolidate(found)}, consolidated=True)
    assert opened.hierarchy.consolidated
    with pytest.raises(FormatError, match=r"^a/.zgroup: is not valid JSON"):
        consolidate({"a/.zgroup": b"{"})


def test_consolidated_metadata_have_the_names_that_netcdf_c_escaped() -> None:
    """netCDF-C 4.8 writes ``\\'`` for a double quote, and text with an apostrophe as it is."""
    found = {
        ".zgroup": rb'{"zarr_format": 2, "_NCZARR_SUPERBLOCK": {"version": "2.0.0"}, '
        rb'"_NCZARR_GROUP": {"dims": {"x\'": 2}, "vars": ["v\'"], "groups": []}}',
        'v"/.zarray': rb'{"zarr_format": 2, "shape": [2], "dtype": "<i4", "chunks": [2], '
        rb'"fill_value": 0, "order": "C", "compressor": null, "filters": null, '
        rb'"_NCZARR_ARRAY": {"dimrefs": ["/x\'"], "storage": "chunked"}}',
        'v"/.zattrs': rb'{"note": "it\'s", "_NCZARR_ATTR": {"types": {"note": "<U1"}}}',
    }
    both = found | {".zmetadata": consolidate(found)}
    opened = open_hierarchy(both, consolidated=True)
    assert opened.hierarchy.consolidated
    assert list(differences(open_hierarchy(found).hierarchy.root, opened.hierarchy.root)) == []
    (variable,) = opened.hierarchy.root.all_variables()
    assert variable.error is None
    assert [dim.name for dim in variable.dimensions] == ['x"']


# -- problems ------------------------------------------------------------------------


def one_variable(nc_type: str | None = "int", **changes: Any) -> Group:
    x = Dimension("x", 4)
    dtype = NC_DTYPES[nc_type] if nc_type else np.dtype("?")
    array = replace(ChunkedArray("v", (4,), (4,), dtype), **changes)
    dims = (x,) if array.shape else ()
    variable = Variable("v", "/", dims, nc_type, dtype, {}, array)
    return Group(dimensions={"x": x}, variables={"v": variable})


def with_attribute(name: str, nc_type: str, value: Any) -> Group:
    return Group(attributes={name: Attribute(name, nc_type, value)})


def with_dimension(name: str, size: int = 3, unlimited: bool = False) -> Group:
    return Group(dimensions={name: Dimension(name, size, unlimited)})


ZLIB = {"id": "zlib", "level": 1}
SZIP = {"id": "szip", "mask": 32, "pixels-per-block": 8}
BAD: list[tuple[str, Group, str]] = [
    # (generations that cannot hold it, model, what is said)
    ("G2A G2L G2U", with_dimension(" x"), "/: dimension ' x': ' x' is not a name that netCDF"),
    ("G2A G2L G2U", with_dimension("x "), "not a name"),
    ("G2A G2L G2U", with_dimension("a/b"), "not a name"),
    ("G2A G2L G2U", with_dimension("-x"), "not a name"),
    ("G2A G2L G2U", with_dimension("a\tb"), "not a name"),
    ("G2A G2L G2U", with_dimension("x" * 256), "more than 255 bytes"),
    ("G2A G2L G2U", with_dimension("e\u0301"), "normal form C"),
    ("G2L G2U", with_dimension("x", 0), "length 0"),
    ("G2L G2U", with_dimension("x", 3, unlimited=True), "unlimited"),
    ("G2A G2L G2U", with_attribute("CLASS", "int", np.array([1], "i4")), "reserved"),
    ("G2A G2L G2U v2", with_attribute("_nczarr_attr", "char", "x"), "reserved"),
    ("G2A G2L G2U v2", with_attribute("_ARRAY_DIMENSIONS", "char", "x"), "reserved"),
    ("G2A G2L G2U v2", with_attribute("a", "enum", "x"), "not a type"),
    ("G2A G2L G2U v2", with_attribute("a", "int", np.array([1.5])), "1-D array of float64"),
    ("G2A G2L G2U", with_attribute("a", "char", "x\0y"), "/: attribute 'a': holds a NUL"),
    ("G2A G2L G2U", with_attribute("a", "string", ("x", "\x01")), "control characters"),
    ("G2U", with_attribute("a", "string", ("x",)), "no strings"),
    ("G2A G2L G2U v2", with_attribute("a", "char", "\udce4"), "not UTF-8"),
    ("G2A G2L G2U", one_variable(None), "/v: NCZarr has no type for bool"),
    ("G2A G2L G2U", one_variable("int", dtype=np.dtype("f8")), "not the type int"),
    ("G2L G2U", one_variable("int", dtype=np.dtype(">i4")), "byte order"),
    ("G2U", one_variable("string", dtype=np.dtype("S8")), "no strings"),
    ("G2A G2L G2U v2", one_variable("string"), "object"),
    ("G2U", one_variable(shape=(), chunk_shape=()), "scalars"),
    ("G2A G2L G2U v2", one_variable(chunk_shape=(0,)), "do not fit"),
    ("G2L G2U", one_variable(chunk_shape=(5,)), "longer than the shape"),
    ("G2A G2L G2U v2", one_variable(shape=(5,)), "dimensions of lengths (4,)"),
    ("G2A G2L G2U v2", one_variable("byte", fill=300), "fill value 300 cannot be stored"),
    ("G2A G2L G2U", one_variable("char", fill=b"\xe4"), "fill value"),
    ("G2A G2L G2U", one_variable("char", fill=b"\x01"), "fill value: holds control"),
    ("G2U", one_variable(codecs=(ZLIB,)), "no compression"),
    ("G2A G2L G2U", one_variable(codecs=({"id": "lz4"},)), "codec 'lz4': netCDF-C does not"),
    ("G2A G2L G2U", one_variable(codecs=({"id": "zlib", "level": -1},)), "'level'"),
    ("G2A G2L G2U", one_variable(codecs=({"id": "zstd"},)), "'level'"),
    ("G2A G2L G2U", one_variable(codecs=(SZIP,)), "block"),
    ("G2A G2L G2U", one_variable(codecs=({"id": "shuffle", "elementsize": 2},)), "by 4 bytes"),
    (
        "G2A G2L G2U",
        one_variable(shape=(), chunk_shape=(), codecs=({"id": "blosc"},)),
        "on scalars",
    ),
]


@pytest.mark.parametrize(("generations", "root", "text"), BAD)
def test_problems_are_told(generations: str, root: Group, text: str) -> None:
    for name, profile in PROFILES.items():
        lines = problems(root, profile)
        assert bool(lines) == (name in generations.split()), (name, lines)
        if name == generations.split(maxsplit=1)[0]:
            assert any(text in line for line in lines), lines
        assert all("\n" not in line and line.startswith("/") for line in lines)


@pytest.mark.parametrize(
    ("name", "generations"),
    [("..", "G2A G2L G2U v2"), (".zattrs", "G2A G2L G2U v2"), ("a\\b", "v2"), ("a\x7f", "G2A")],
)
def test_names_in_keys(name: str, generations: str) -> None:
    root = one_variable()
    root.variables = {name: replace(root.variables["v"], name=name)}
    root.groups = {name: Group(f"/{name}")}
    for generation in generations.split():
        lines = problems(root, PROFILES[generation])
        assert f"/: a variable and a group are both called {name!r}" in lines
        assert sum("name" in line for line in lines) == 2, lines


def test_dimensions_from_elsewhere() -> None:
    for declared, group in (("/g", "/h"), ("/nowhere", "/"), ("/g", "/")):
        root = one_variable()
        dim = Dimension("x", 4, group=declared)
        root.groups = {"g": Group("/g"), "h": Group("/h")}
        root.groups["g"].dimensions = {"x": Dimension("x", 4, group="/g")}
        variable = replace(root.variables.pop("v"), group=group, dimensions=(dim,))
        holder = root if group == "/" else root.groups["h"]
        holder.variables["v"] = variable
        (line,) = problems(root, PROFILES["G2A"])
        assert "declared in none of the groups" in line
        assert problems(root, PROFILES["v2"]) == []


def test_order_f_and_unreadable_variables() -> None:
    root = one_variable()
    x = root.dimensions["x"]
    array: Any = root.variables["v"].array
    array = replace(array, shape=(4, 4), chunk_shape=(2, 2), order="F")
    root.variables["v"] = replace(root.variables["v"], dimensions=(x, x), array=array)
    assert "transposed" in problems(root, PROFILES["G2A"])[0]
    assert problems(root, PROFILES["v2"]) == []
    root.variables["v"].error = FormatError("v/.zarray", "is bad")
    assert problems(root, PROFILES["v2"]) == ["/v: cannot be read: is bad"]


def test_release_of_a_writer() -> None:
    assert release("version=2,netcdf=4.9.2,nczarr=2.0.0") == (4, 9, 2)
    assert release(f"version=2,netcdf=4.9.{'2' * 5000}") == (4, 9, 222222222)
    assert release(f"version=2,netcdf={'4' * 5000}.9.2,nczarr=2.0.0") is None


def test_releases_have_generations() -> None:
    assert COMPAT == {"4.9.3": "G2A", "4.9.2": "G2L", "4.8.1": "G2U"}
    assert all(PROFILES[generation].spelling for generation in COMPAT.values())
