"""Random contents and random selections: what netCDF-C writes twice is the same in xarray."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from tests.support.examples import examples
from tests.support.ncpair import assert_same, write_pair
from tests.support.ncwriter import JSON_LIKE, NUMERIC, ramp
from tests.support.selections import indexers

slow = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# -- contents ----------------------------------------------------------------------


@dataclass
class Var:
    """A variable to be written: arguments of createVariable, how much of it, attributes."""

    kind: str
    dims: tuple[str, ...]
    options: dict[str, Any]
    written: float
    attributes: dict[str, Any]


@dataclass
class Content:
    """A group to be written. Called with an open dataset or group, it writes."""

    dims: dict[str, int | None]
    variables: dict[str, Var]
    attributes: dict[str, Any]
    groups: dict[str, Content] = field(default_factory=dict)

    def __call__(self, target: netCDF4.Dataset) -> None:
        for name, size in self.dims.items():
            target.createDimension(name, size)
        write_attributes(target, self.attributes)
        for name, var in self.variables.items():
            created = target.createVariable(
                name, str if var.kind == "str" else var.kind, var.dims, **var.options
            )
            created.set_auto_maskandscale(False)
            created.set_auto_chartostring(False)
            write_attributes(created, var.attributes)
            sizes = tuple(size or 3 for size in created.shape)
            first = int(sizes[0] * var.written) if sizes else 1
            if first:
                region = (slice(0, first), *(slice(0, size) for size in sizes[1:]))
                created[region if sizes else ...] = values((first, *sizes[1:])[: len(sizes)], var)
        for name, group in self.groups.items():
            group(target.createGroup(name))


def values(shape: tuple[int, ...], var: Var) -> Any:
    numbers = ramp(shape, "i4")
    if var.kind == "S1":
        return np.array([chr(97 + n % 26).encode() for n in numbers.flat], "S1").reshape(shape)
    if var.kind == "str":
        texts = np.empty(shape, dtype=object)
        texts.flat[:] = ["é" * (n % 5) + str(n) for n in numbers.flat]
        return texts if shape else texts[()]
    return numbers.astype(var.kind)


def write_attributes(target: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if isinstance(value, list):
            target.setncattr_string(name, value)
        else:
            target.setncattr(name, value)


names = st.from_regex(r"[a-zA-Zéα_][a-zA-Z0-9é温 ._@+-]{0,6}[a-z0-9]", fullmatch=True).filter(
    lambda name: not name.lower().startswith(("_nc", "_array", "_fill"))
)
#: Text that netCDF-C does not take for JSON, and therefore stores as it is. Of what it does
#: take for JSON it keeps the value, not the spelling: only spellings that survive are here.
texts = st.sampled_from(sorted(JSON_LIKE.values())) | st.text(
    st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t"), max_size=20
).map(lambda text: f"text {text}.")


def numeric_attributes(kind: str) -> st.SearchStrategy[Any]:
    if kind[0] == "f":
        elements: Any = st.floats(width=32 if kind == "f4" else 64, allow_subnormal=False)
    else:
        limits = np.iinfo(kind)
        elements = st.integers(int(limits.min), int(limits.max))
    return st.lists(elements, min_size=1, max_size=4).map(lambda v: np.array(v, kind))


attribute_values = st.one_of(
    texts,
    st.lists(texts | st.just(""), min_size=2, max_size=3),
    *(numeric_attributes(kind) for kind in NUMERIC),
)
attributes = st.dictionaries(names, attribute_values, max_size=3)

FILTERS: list[dict[str, Any]] = [
    {},
    {"compression": "zlib"},
    {"compression": "zlib", "shuffle": False, "complevel": 1},
    {"compression": "zlib", "fletcher32": True},
    {"compression": "zstd"},
    {"compression": "bzip2"},
    {"fletcher32": True},
]


@st.composite
def variables(draw: st.DrawFn, dims: dict[str, int | None]) -> Var:
    chosen = draw(st.lists(st.sampled_from(sorted(dims)), max_size=3, unique=True)) if dims else []
    kind = draw(st.sampled_from([*NUMERIC, "S1", "str"]))
    options: dict[str, Any] = {}
    # netCDF-C reads rubbish past the written part of netCDF-4 variables with two record dimensions
    records = sum(dims[name] is None for name in chosen)
    written = draw(st.sampled_from([0.0, 0.5, 1.0])) if records < 2 else 1.0
    if chosen and (records or draw(st.booleans())):  # default chunks of records differ
        lengths = [draw(st.integers(1, dims[name] or 4)) for name in chosen]
        options["chunksizes"] = tuple(lengths)
        if kind not in ("str", "S1"):
            options |= draw(st.sampled_from(FILTERS))
    if kind in NUMERIC and draw(st.booleans()):
        options["fill_value"] = draw(st.sampled_from([0, 1, 100]))
    if kind in NUMERIC[2:] and not records and draw(st.booleans()):
        kind = f">{kind}"
        options["endian"] = "big"
        written = 1.0  # netCDF-C pads big-endian chunks with fill values in the wrong byte order
    return Var(kind, tuple(chosen), options, written, draw(attributes))


@st.composite
def contents(draw: st.DrawFn, above: dict[str, int | None] | None = None) -> Content:
    sizes = st.integers(1, 6) | st.none()
    own = draw(st.dictionaries(names, sizes, min_size=0 if above else 1, max_size=3))
    visible = (above or {}) | own
    members = draw(st.dictionaries(names, variables(visible), max_size=3))
    # what has the name of a dimension is its coordinate; no floats, whose fill values are cut
    members = {
        n: v
        for n, v in members.items()
        if n not in visible or (v.dims == (n,) and "f" not in v.kind)
    }
    groups = {} if above else draw(st.dictionaries(names, contents(visible), max_size=2))
    groups = {n: g for n, g in groups.items() if n not in members and n not in own}  # HDF5 rule
    return Content(own, members, draw(attributes), groups)


@slow
@given(contents(), st.booleans())
def test_any_content_is_the_same(content: Content, decode: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair = write_pair(Path(folder), content)
        ours = xr.open_groups(pair.nczarr, engine="nczarr", decode_cf=decode)
        theirs = xr.open_groups(pair.nc, engine="netcdf4", decode_cf=decode)
        assert list(ours) == list(theirs)
        for path, dataset in theirs.items():
            with ours[path], dataset:
                assert_same(ours[path], dataset)


# -- selections --------------------------------------------------------------------

SIZES = {"x": 11, "y": 7, "z": 4}
#: Selections that are combined before anything is read; xarray of 2025 combines some wrongly.
COMBINED = 2 if Version(xr.__version__) >= Version("2026.9") else 1


def selectable(d: netCDF4.Dataset) -> None:
    for name, size in SIZES.items():
        d.createDimension(name, None if name == "x" else size)
    cube = np.arange(11 * 7 * 4).reshape(11, 7, 4)
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("plain", "i2", {}),
        ("packed", "f8", {"compression": "zlib"}),
        ("big", ">i4", {"endian": "big", "compression": "zlib"}),
        ("whole", "u1", {"chunksizes": (11, 7, 4)}),
        ("single", "i8", {"chunksizes": (1, 1, 1)}),
    ]
    for name, kind, options in cases:
        options = {"chunksizes": (4, 3, 3)} | options
        v = d.createVariable(name, kind, ("x", "y", "z"), **options)
        v[:] = cube % 250
    v = d.createVariable("holes", "f4", ("z", "x"), chunksizes=(3, 4), fill_value=-1)
    v[:3, :4] = 1
    v[:3, 8:] = 2
    v = d.createVariable("text", str, ("y", "x"), chunksizes=(3, 4))
    v[:] = np.array([f"é{n}" for n in range(77)], object).reshape(7, 11)
    v = d.createVariable("letters", "S1", ("x", "y"), chunksizes=(4, 3))
    v[:] = np.array([chr(97 + n % 26).encode() for n in range(77)]).reshape(11, 7)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[xr.Dataset, xr.Dataset]:
    """One dataset lazily and loaded."""
    pair = write_pair(tmp_path_factory.mktemp("select"), selectable)
    lazy, theirs = pair.datasets(cache=False)
    assert_same(lazy, theirs)
    with theirs:
        return lazy, theirs.load()


@settings(parent=slow, max_examples=examples(300))
@given(st.randoms(use_true_random=False))
def test_any_selection_equals_the_loaded(
    opened: tuple[xr.Dataset, xr.Dataset], choose: random.Random
) -> None:
    lazy, loaded = opened[0].copy(), opened[1]  # a copy: loading changes variables in place
    for prefix in "pq"[: choose.randint(1, COMBINED)]:
        sizes = {str(name): size for name, size in loaded.sizes.items()}
        chosen = indexers(choose, sizes, prefix)
        lazy, loaded = lazy.isel(chosen), loaded.isel(chosen)
    xr.testing.assert_identical(lazy.load(), loaded)
    for name, variable in loaded.variables.items():
        assert lazy[name].dtype == variable.dtype


def test_selections_are_lazy(opened: tuple[xr.Dataset, xr.Dataset]) -> None:
    lazy, _ = opened
    selected = lazy.isel(x=slice(2, 8), y=[1, 3]).isel(z=xr.DataArray([0, 1], dims="p"))
    assert not any(variable._in_memory for variable in selected.variables.values())
