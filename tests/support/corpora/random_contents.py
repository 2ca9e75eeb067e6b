"""Random contents of netCDF files, as a strategy of hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import netCDF4
import numpy as np
from hypothesis import strategies as st

from tests.support.builders.ncwriter import JSON_LIKE, NUMERIC, ramp


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
