"""The CDL printer against ncdump, on models, and ``nczarr dump`` on datasets."""

from __future__ import annotations

import itertools
import tempfile
import unicodedata
from dataclasses import replace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from nczarr_xarray.cli.cdl import dataset_name, write_cdl
from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES, Attribute, Dimension, Group, Variable, join
from tests.nc_adapter import ncdump, write_netcdf

Data = dict[str, np.ndarray[Any, Any]]


def printed(root: Group, data: Data, title: str, **options: Any) -> str:
    """The CDL of a model; variables without data have their fill value."""

    def read(variable: Variable, key: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        if variable.path in data:
            return np.asarray(data[variable.path][key])
        fill = variable.attributes.get("_FillValue")
        value = NC_DEFAULT_FILL[str(variable.nc_type)] if fill is None else fill.value[0]
        return np.full(variable.shape, value, variable.dtype)[key]

    pieces: list[str] = []
    assert write_cdl(title, root, pieces.append, read, **options) == []
    return "".join(pieces)


def assert_as_ncdump(root: Group, data: Data, directory: Path) -> None:
    path = directory / "model.nc"
    write_netcdf(path, root, data)
    assert printed(root, data, "model").split("\n") == ncdump(str(path)).split("\n")


NAMES = st.text(
    st.sampled_from("abcXYZ019_-+.@% ü→#!\"'\\[]{}()&;:,$*<>=?^`|~"), min_size=1, max_size=12
).map(lambda text: unicodedata.normalize("NFC", "v" + text.rstrip() if text[0] not in "abcüXYZ019_→" else text.rstrip()))

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
CHARS = st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
INTEGERS = ["byte", "ubyte", "short", "ushort", "int", "uint", "int64", "uint64"]


def elements(nc_type: str) -> st.SearchStrategy[Any]:
    dtype = NC_DTYPES[nc_type]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = st.integers(-20, 300).map(lambda i: min(max(i, info.min), info.max))
        return near | st.integers(int(info.min), int(info.max))
    if dtype.kind == "f":
        nice = st.integers(-10000, 10000).map(lambda i: i / 8)
        return nice | st.floats(width=dtype.itemsize * 8)
    if nc_type == "char":
        return st.sampled_from([b"a", b"b", b" ", b"\0", b"\n", b'"']) | st.binary(
            min_size=1, max_size=1
        )
    return TEXT | st.sampled_from(["", "_", "x" * 90])


@st.composite
def attributes(draw: st.DrawFn, count: int = 3) -> dict[str, Attribute]:
    found = {}
    for name in draw(st.lists(NAMES, max_size=count, unique=True)):
        nc_type = draw(st.sampled_from([*NC_DTYPES]))
        if nc_type == "char":
            value = draw(CHARS)
        elif nc_type == "string":
            value = tuple(draw(st.lists(TEXT, max_size=3)))
        else:
            values = draw(st.lists(elements(nc_type), max_size=4))
            value = np.array(values, NC_DTYPES[nc_type])
        found[name] = Attribute(name, nc_type, value)
    return found


@st.composite
def variables(draw: st.DrawFn, name: str, group: str, visible: list[Dimension]) -> Variable:
    nc_type = draw(st.sampled_from([*NC_DTYPES]))
    dims = tuple(draw(st.lists(st.sampled_from(visible), max_size=3))) if visible else ()
    found = draw(attributes(2))
    if draw(st.integers(0, 2)) == 0 and nc_type != "string":
        fill = draw(elements(nc_type))
        value = "f" if nc_type == "char" else np.array([fill], NC_DTYPES[nc_type])
        found = {"_FillValue": Attribute("_FillValue", nc_type, value)} | found
    return Variable(name, group, dims, nc_type, NC_DTYPES[nc_type], found)


@st.composite
def trees(draw: st.DrawFn, path: str = "/", above: tuple[Dimension, ...] = ()) -> Group:
    group = Group(path, attributes=draw(attributes()))
    names = draw(st.lists(NAMES, max_size=8, unique_by=str.lower))
    for name in names[:3]:
        if above and draw(st.booleans()):
            name = draw(st.sampled_from(above)).name  # hides one of a group above
        size = draw(st.integers(1, 4) | st.integers(10, 40))
        group.dimensions[name] = Dimension(name, size, draw(st.booleans()), path)
    visible = [*above, *group.dimensions.values()]
    for name in set(names[3:6]) - {*group.dimensions}:
        group.variables[name] = draw(variables(name, path, visible))
    for name in set(names[6:]) - {*group.dimensions}:
        group.groups[name] = draw(trees(join(path, name), tuple(visible)))
    return group


def is_hidden(dim: Dimension, variable: Variable, root: Group) -> bool:
    """Whether `variable` sees another dimension by the name of `dim`."""
    path = variable.group
    while path != dim.group:
        group = root.find(path)
        if group is not None and dim.name in group.dimensions:
            return True
        path = path.rpartition("/")[0] or "/"
    return False


@st.composite
def models(draw: st.DrawFn) -> tuple[Group, Data]:
    """A tree of groups and data for it.

    netCDF4-python cannot write data along a dimension that another one hides,
    and an unlimited dimension is as long as the data along it.
    """
    root = draw(trees())
    every = [variable for group in root.walk() for variable in group.variables.values()]
    written = [v for v in every if not any(is_hidden(dim, v, root) for dim in v.dimensions)]
    sized = {dim.path for variable in written for dim in variable.dimensions}

    def actual(dim: Dimension) -> Dimension:
        return replace(dim, size=0) if dim.unlimited and dim.path not in sized else dim

    for group in root.walk():
        group.dimensions = {name: actual(dim) for name, dim in group.dimensions.items()}
    for variable in every:
        variable.dimensions = tuple(map(actual, variable.dimensions))
    data = {}
    for variable in written:
        some = draw(st.lists(elements(str(variable.nc_type)), min_size=1, max_size=20))
        data[variable.path] = np.empty(variable.shape, variable.dtype)
        data[variable.path].flat = some
    return root, data


@settings(max_examples=300, deadline=None)
@given(models())
def test_any_model_is_printed_as_ncdump_prints_it(model: tuple[Group, Data]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert_as_ncdump(*model, Path(directory))
