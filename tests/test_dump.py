"""The CDL printer against ncdump, on models, and ``nczarr dump`` on datasets."""

from __future__ import annotations

import itertools
import tempfile
import unicodedata
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
    pieces: list[str] = []
    errors = write_cdl(title, root, pieces.append, lambda v, key: np.asarray(data[v.path][key]), **options)
    assert errors == []
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
def groups(draw: st.DrawFn) -> tuple[Group, Data]:
    data: Data = {}
    unwritten = set()

    def fill(group: Group, visible: list[Dimension], depth: int) -> None:
        names = iter(draw(st.lists(NAMES, min_size=9, max_size=9, unique_by=str.lower)))
        group.attributes = draw(attributes())
        for name in itertools.islice(names, draw(st.integers(0, 3))):
            # a name that is used above, too
            if visible and draw(st.booleans()):
                name = draw(st.sampled_from(visible)).name
                if name in group.dimensions:
                    continue
            size = draw(st.integers(1, 4) | st.integers(10, 40))
            group.dimensions[name] = Dimension(name, size, draw(st.booleans()), group.path)
        visible = visible + [*group.dimensions.values()]
        for name in itertools.islice(names, draw(st.integers(0, 3))):
            if name in group.dimensions:
                continue
            nc_type = draw(st.sampled_from([*NC_DTYPES]))
            dims = tuple(draw(st.lists(st.sampled_from(visible), max_size=3))) if visible else ()
            attrs = draw(attributes(2))
            if draw(st.integers(0, 2)) == 0 and nc_type != "string":
                one = draw(elements(nc_type))
                value = one.decode("latin-1") if nc_type == "char" else np.array([one], NC_DTYPES[nc_type])
                if nc_type != "char" or one < b"\x80":
                    attrs = {"_FillValue": Attribute("_FillValue", nc_type, value)} | attrs
            variable = Variable(name, group.path, dims, nc_type, NC_DTYPES[nc_type], attrs)
            group.variables[name] = variable
            some = draw(st.lists(elements(nc_type), min_size=1, max_size=20))
            shape = variable.shape
            size = int(np.prod(shape))
            values = np.empty(size, variable.dtype)
            values[:] = [*itertools.islice(itertools.cycle(some), size)]
            by_name = {dim.name: dim for dim in visible}
            if any(by_name[dim.name] != dim for dim in dims):
                # netCDF4-python takes the wrong dimension here and cannot write data
                fill = attrs.get("_FillValue")
                values[:] = NC_DEFAULT_FILL[nc_type] if fill is None else fill.value[0]
                unwritten.add(variable.path)
            data[variable.path] = values.reshape(shape)
        if depth < 3:
            for name in itertools.islice(names, draw(st.integers(0, 2))):
                if name in group.dimensions:
                    continue
                group.groups[name] = Group(join(group.path, name))
                fill(group.groups[name], visible, depth + 1)

    root = Group()
    fill(root, [], 0)
    used = {
        dim.path
        for group in root.walk()
        for variable in group.variables.values()
        for dim in variable.dimensions
        if variable.path not in unwritten
    }
    for group in root.walk():
        for name, dim in group.dimensions.items():
            if dim.unlimited and dim.path not in used:
                group.dimensions[name] = Dimension(name, 0, True, group.path)
    return root, data


@settings(max_examples=300, deadline=None)
@given(groups())
def test_any_model_is_printed_as_ncdump_prints_it(model: tuple[Group, Data]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert_as_ncdump(*model, Path(directory))
