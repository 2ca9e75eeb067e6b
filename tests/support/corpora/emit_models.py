"""Models that a release of netCDF-C can hold, and what differs between two models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np

from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    ChunkedArray,
    Dimension,
    Group,
    Variable,
    join,
)
from tests.support.corpora.cdl_models import NAMES
from tests.support.corpora.samples import DATA

PROFILES = {name: Profile(name) for name in ("G2A", "G2L", "G2U", "v2")}

#: Text that netCDF-C itself would store without quotes, and other trouble.
JSON_LIKE = ["2020", "true", "-1.5", "[1,2]", '{"a":1}', "null", "NaN", '"quoted"', "[", "{a}", ""]
JSON_LIKE += ["a\nb\tc\r\b\f", "back\\slash \\n", "it's", " ", "\u2028\x7f\x85", "é世🌡", "/"]
CONTROL = "".join(map(chr, range(32)))
TEXT = st.sampled_from(JSON_LIKE) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=CONTROL), max_size=8
)
CODECS: list[tuple[dict[str, Any], ...]] = [
    (),
    ({"id": "zlib", "level": 5},),
    ({"id": "fletcher32"},),
    ({"id": "bz2", "level": 1}, {"id": "zstd", "level": 3}),
    ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},),
]


def elements(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    if dtype.kind == "f":
        special = st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 7.038530691851209e-26, 1e22])
        # a NaN is stored as such, not with its bits
        return special | st.floats(width=32 if dtype.itemsize == 4 else 64).filter(
            lambda x: not np.isnan(x)
        )
    limits = np.iinfo(dtype)
    return st.integers(int(limits.min), int(limits.max))


def numeric_types(profile: Profile) -> list[str]:
    return [name for name, dtype in NC_DTYPES.items() if dtype.kind in "iuf"]


@st.composite
def attributes(draw: st.DrawFn, profile: Profile) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    types = ["char", *numeric_types(profile), *(["string"] if profile != PROFILES["G2U"] else [])]
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        nc_type = draw(st.sampled_from(types))
        value: Any
        if nc_type == "char":
            value = draw(TEXT)
        elif nc_type == "string":
            value = tuple(draw(st.lists(TEXT, max_size=3)))
        else:
            dtype = NC_DTYPES[nc_type]
            value = np.array(draw(st.lists(elements(dtype), max_size=3)), dtype)
        found[name] = Attribute(name, nc_type, value)
    return found


@st.composite
def variables(draw: st.DrawFn, profile: Profile, path: str, visible: list[Dimension]) -> Variable:
    group, _, name = path.rpartition("/")
    text = ["char", *(["string"] if profile != PROFILES["G2U"] else [])]
    nc_type = draw(st.sampled_from(text + numeric_types(profile)))
    fewest = 1 if profile == PROFILES["G2U"] else 0
    fewest = fewest if visible else 0
    dims = tuple(draw(st.lists(st.sampled_from(visible), min_size=fewest, max_size=3)))
    dtype, fill = np.dtype("S1"), draw(st.sampled_from([None, b"", b"z", b'"', b"1"]))
    if nc_type == "string":
        dtype, fill = np.dtype("S9"), draw(st.sampled_from([None, b"", b"2020", "é".encode()]))
    elif nc_type != "char":
        order: Any = draw(st.sampled_from("<>")) if profile.generation in ("G2A", "v2") else "<"
        dtype = NC_DTYPES[nc_type].newbyteorder(order)
        value = draw(elements(dtype) | st.none())
        fill = None if value is None else np.array([value], dtype)[0]
    shape = tuple(dim.size for dim in dims)
    array = ChunkedArray(
        path=path.lstrip("/"),
        shape=shape,
        chunk_shape=tuple(draw(st.integers(1, max(n, 1))) for n in shape),
        dtype=dtype,
        fill=fill,
        codecs=() if profile == PROFILES["G2U"] or not dims else draw(st.sampled_from(CODECS)),
        separator=draw(st.sampled_from("./")),
    )
    value_dtype = np.dtype(object) if nc_type == "string" else dtype
    found = draw(attributes(profile))
    return Variable(name, group or "/", dims, nc_type, value_dtype, found, array)


@st.composite
def models(
    draw: st.DrawFn, profile: Profile, path: str = "/", above: tuple[Dimension, ...] = ()
) -> Group:
    """What `profile` can hold. Names of dimensions are their own in each group of pure Zarr."""
    group = Group(path, attributes=draw(attributes(profile)))
    usable = NAMES.filter(lambda name: profile != PROFILES["v2"] or "\\" not in name)
    names = draw(st.lists(usable, max_size=7, unique=True))
    for name in names[:2]:
        if len(above) > 0 and draw(st.booleans()):
            name = draw(st.sampled_from(above)).name  # hides one of a group above
        unlimited = profile == PROFILES["G2A"] and draw(st.booleans())
        size = draw(st.integers(0 if unlimited else 1, 4))
        group.dimensions[name] = Dimension(name, size, unlimited, path)
    visible = [*group.dimensions.values()]
    if profile != PROFILES["v2"]:
        visible += above
    for name in names[2:5]:
        group.variables[name] = draw(variables(profile, join(path, name), visible))
    if profile == PROFILES["G2U"]:  # no scalars
        group.variables = {n: v for n, v in group.variables.items() if v.dimensions}
    for name in names[5:]:
        group.groups[name] = draw(models(profile, join(path, name), tuple(visible)))
    return group


def pure_model() -> Group:
    """Types that Zarr 2 has and netCDF has not, beside those it has."""
    x = Dimension("x", 3)
    root = Group(dimensions={"x": x})
    fills = {
        "?": True,
        "<f2": np.float16(0.1),
        "<c16": complex(1.5, -np.inf),
        "<M8[ns]": np.datetime64("NaT", "ns"),
        "<U4": "né",
        "|S4": b"2020",
        "|S1": b"z",
        "|V3": b"abc",
        ">i4": -5,
        "<f4": np.float32(0.1),
        "<f8": np.nan,
        "<u8": 2**64 - 1,
        "|O": "text",
    }
    for kind, fill in fills.items():
        dtype = np.dtype(kind)
        codecs: tuple[dict[str, Any], ...] = ({"id": "vlen-utf8"},) if kind == "|O" else ()
        if dtype.itemsize > 1 and dtype.kind in "iuf":
            codecs = ({"id": "shuffle"}, {"id": "zlib", "level": 1})
        name = f"v_{dtype.kind}{dtype.itemsize}"
        array = ChunkedArray(name, (3,), (2,), dtype, fill, codecs)
        root.variables[name] = Variable(name, "/", (x,), None, dtype, {}, array)
    array = ChunkedArray("scalar", (), (), np.dtype("<i4"), 7)
    units = {"units": Attribute("units", "char", "2020")}
    root.variables["scalar"] = Variable("scalar", "/", (), "int", array.dtype, units, array)
    child = root.groups["g"] = Group("/g")
    child.attributes["specials"] = Attribute("specials", "double", np.array([np.nan, 0.1]))
    return root


# -- comparing -----------------------------------------------------------------------


def bits(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes(value)  # not numpy's kind of bytes
    return value.tobytes() if isinstance(value, (np.ndarray, np.generic)) else value


def differences(ours: Group, back: Group, *, netcdf_c: bool = False) -> Iterator[str]:
    """Lines for all that is not the same, down to order and bits."""
    for name in ("dimensions", "variables", "groups"):
        one, other = list(getattr(ours, name)), list(getattr(back, name))
        if one != other:
            yield f"{ours.path} {name}: {one} / {other}"
    if ours.dimensions != back.dimensions:
        yield f"{ours.path}: {ours.dimensions} / {back.dimensions}"
    yield from attribute_differences(ours.path, ours.attributes, back.attributes, netcdf_c)
    for name, variable in ours.variables.items():
        yield from variable_differences(variable, back.variables[name], netcdf_c)
    for name, group in ours.groups.items():
        yield from differences(group, back.groups[name], netcdf_c=netcdf_c)


def attribute_differences(
    where: str, ours: Mapping[str, Attribute], back: Mapping[str, Attribute], netcdf_c: bool
) -> Iterator[str]:
    if list(ours) != list(back):
        yield f"{where} attributes: {list(ours)} / {list(back)}"
        return
    for one, other in zip(ours.values(), back.values(), strict=True):
        # netCDF-C makes one NUL of empty text
        value = "\0" if netcdf_c and isinstance(one.value, str) and not one.value else one.value
        if one.type != other.type or bits(value) != bits(other.value):
            yield f"{where}@{one.name}: {one} / {other}"


def variable_differences(ours: Variable, back: Variable, netcdf_c: bool) -> Iterator[str]:
    where = ours.path
    for name in ("error", "nc_type", "dimensions", "dtype"):
        if getattr(ours, name) != getattr(back, name):
            yield f"{where} {name}: {getattr(ours, name)} / {getattr(back, name)}"
    yield from attribute_differences(where, ours.attributes, back.attributes, netcdf_c)
    one: Any = ours.array
    other: Any = back.array
    if other is None:
        return
    if bits(one.fill) != bits(other.fill):
        yield f"{where} fill: {one.fill!r} / {other.fill!r}"
    one, other = replace(one, fill=0), replace(other, fill=0)
    if netcdf_c:
        one = replace(one, codecs=(), separator=".")
    if one != other:
        yield f"{where}: {one} / {other}"


WRITER = "version=2,nczarr_xarray=0.1.0,nczarr=2.0.0"


NCZARR = [profile for name, profile in PROFILES.items() if name != "v2"]


def rewritable() -> list[str]:
    names = (path.name.partition(".zip")[0].partition(".dataset")[0] for path in DATA.glob("*.zip"))
    return sorted(name for name in names if "-nczarr" in name and "emptychar" not in name)
