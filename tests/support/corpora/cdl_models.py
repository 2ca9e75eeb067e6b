"""Models of datasets, and data for them, that the tests of ``nczarr dump`` print."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np

from nczarr_xarray.cli.dump import write_cdl
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    NC_DTYPES,
    Attribute,
    Dimension,
    Group,
    Variable,
    join,
)
from tests.support.oracles.nc_adapter import ncdump, write_netcdf

Data = dict[str, np.ndarray[Any, Any]]


class Reads:
    """Reads blocks of a model's data; remembers the shape of each."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, variable: Variable, key: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        if variable.path in self.data:
            block = np.asarray(self.data[variable.path][key])
        else:
            fill = variable.attributes.get("_FillValue")
            value = NC_DEFAULT_FILL[str(variable.nc_type)] if fill is None else fill.value[0]
            block = np.full(variable.shape, value, variable.dtype)[key]
        self.shapes.append(block.shape)
        return block


def printed(root: Group, data: Data, **options: Any) -> str:
    """The CDL of a model; variables without data have their fill value."""
    pieces: list[str] = []
    assert write_cdl("model", root, pieces.append, Reads(data), **options) == []
    return "".join(pieces)


def assert_as_ncdump(root: Group, data: Data, directory: Path) -> None:
    path = directory / "model.nc"
    write_netcdf(path, root, data)
    # as lists of lines, for a failure that can be read
    assert printed(root, data).split("\n") == ncdump(str(path)).split("\n")


FIRST = "abcXYZ019_ü→"
NAMES = st.builds(
    lambda first, rest: unicodedata.normalize("NFC", (first + rest).rstrip()),
    st.sampled_from(FIRST),
    st.text(st.sampled_from(FIRST + "-+.@% !#\"'\\[]{}()&;:,$*<>=?^`|~"), max_size=10),
)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
BYTES = st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


def elements(nc_type: str) -> st.SearchStrategy[Any]:
    dtype = NC_DTYPES[nc_type]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        small = st.integers(-20, 300).map(lambda i: min(max(i, info.min), info.max))
        return small | st.integers(int(info.min), int(info.max))
    if dtype.kind == "f":
        short = st.integers(-10000, 10000).map(lambda i: i / 8)
        return short | st.floats(width=32 if dtype.itemsize == 4 else 64)
    if nc_type == "char":
        common = st.sampled_from([b"a", b" ", b"\0", b"\n", b'"'])
        return common | st.binary(min_size=1, max_size=1)
    return TEXT | st.sampled_from(["", "_", "x" * 90])


@st.composite
def attributes(draw: st.DrawFn, count: int) -> dict[str, Attribute]:
    found = {}
    for name in draw(st.lists(NAMES, max_size=count, unique=True)):
        nc_type = draw(st.sampled_from([*NC_DTYPES]))
        value: Any
        if nc_type == "char":
            value = draw(BYTES)
        elif nc_type == "string":
            value = tuple(draw(st.lists(TEXT, max_size=3)))
        else:
            value = np.array(draw(st.lists(elements(nc_type), max_size=4)), NC_DTYPES[nc_type])
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
    group = Group(path, attributes=draw(attributes(3)))
    names = draw(st.lists(NAMES, max_size=8, unique_by=str.lower))
    for name in names[:3]:
        if len(above) > 0 and draw(st.booleans()):
            name = draw(st.sampled_from(above)).name  # hides one of a group above
        size = draw(st.integers(1, 4) | st.integers(10, 40))
        group.dimensions[name] = Dimension(name, size, draw(st.booleans()), path)
    visible = [*above, *group.dimensions.values()]
    for name in names[3:6]:
        if name not in group.dimensions:
            group.variables[name] = draw(variables(name, path, visible))
    for name in names[6:]:
        if name not in group.dimensions:
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
        data[variable.path].flat[:] = some
    return root, data


def model_of(
    nc_type: str, values: Any, fill: Any = None, unlimited: str = "", **text: str
) -> tuple[Group, Data]:
    """One variable ``v(a, b, ...)`` with char attributes; `unlimited` names dimensions."""
    array = np.array(values, NC_DTYPES[nc_type])
    dims = {
        name: Dimension(name, size, name in unlimited)
        for name, size in zip("abcdef", array.shape, strict=False)
    }
    found = {name: Attribute(name, "char", value) for name, value in text.items()}
    if fill is not None:
        value = fill if nc_type == "char" else (fill,) if nc_type == "string" else None
        value = np.array([fill], array.dtype) if value is None else value
        found["_FillValue"] = Attribute("_FillValue", nc_type, value)
    variable = Variable("v", "/", tuple(dims.values()), nc_type, array.dtype, found)
    return Group(dimensions=dims, variables={"v": variable}), {"/v": array}


def hidden_dimensions() -> Group:
    """``/``, ``/1 g`` and ``/1 g/h`` declare ``x``, ``/1 g/i/2`` and ``/1 g`` declare ``1``."""
    root, g = Group(), Group("/1 g")
    h, i = Group("/1 g/h"), Group("/1 g/i")
    two = Group("/1 g/i/2")
    root.groups = {"1 g": g}
    g.groups = {"h": h, "i": i}
    i.groups = {"2": two}
    for size, (group, name) in enumerate(
        [(root, "x"), (g, "x"), (h, "x"), (g, "1"), (two, "1")], start=3
    ):
        group.dimensions[name] = Dimension(name, size, group=group.path)
    for group in (h, i, two):
        for owner in (root, g, h, two):
            if not group.path.startswith(owner.path):
                continue
            for dim in owner.dimensions.values():
                name = f"v{len(group.variables)}"
                group.variables[name] = Variable(
                    name, group.path, (dim, g.dimensions["x"]), "int", np.dtype("i4")
                )
    return root


def lively_model() -> tuple[Group, Data]:
    """What NCZarr can hold, in two groups."""
    x, t = Dimension("x", 3), Dimension("t", 4, unlimited=True)
    c = Dimension("c", 5, group="/g 1")
    root = Group(dimensions={"x": x, "t": t, "un used": Dimension("un used", 7)})
    child = root.groups["g 1"] = Group("/g 1", dimensions={"c": c})
    data: Data = {}
    rng = np.random.default_rng(0)
    for nc_type, dtype in NC_DTYPES.items():
        shape = (4, 3)
        variable = Variable(f"v_{nc_type}", "/", (t, x), nc_type, dtype)
        if dtype.kind == "f":
            values = (rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9, shape)).astype(dtype)
            values.flat[:4] = [np.nan, np.inf, -np.inf, -0.0]
        elif dtype.kind in "iu":
            values = rng.integers(0, 100, shape).astype(dtype)
            values.flat[:2] = [np.iinfo(dtype).min, np.iinfo(dtype).max]
        elif nc_type == "char":
            values = np.frombuffer('aü\n\0"\\bc\0\0 '.encode(), "S1").reshape(shape)
        else:
            words = ["ü", "two\nlines", 'a "quote"', "x" * 80]
            values = np.array([words[i % 4] for i in range(12)], object).reshape(shape)
        root.variables[variable.name] = variable
        data[variable.path] = values
        if dtype.kind in "iuf":
            some = np.array([0, 1, 100], dtype)
            attribute = Attribute(f"a {nc_type}", nc_type, some)
            variable.attributes[attribute.name] = child.attributes[attribute.name] = attribute
    root.attributes["title"] = Attribute("title", "char", 'ü "x"\n\ttab\\')
    root.attributes["words"] = Attribute("words", "string", ("a", "", "ü\n"))
    fill = Attribute("_FillValue", "int", np.array([7], "i4"))
    child.variables["filled"] = Variable(
        "filled", "/g 1", (x, c), "int", np.dtype("i4"), {"_FillValue": fill}
    )
    data["/g 1/filled"] = np.arange(15, dtype="i4").reshape(3, 5)
    child.variables["scalar"] = Variable("scalar", "/g 1", (), "double", np.dtype("f8"))
    data["/g 1/scalar"] = np.array(0.1)
    child.variables["unwritten"] = Variable("unwritten", "/g 1", (c, x), "int", np.dtype("i4"))
    return root, data
