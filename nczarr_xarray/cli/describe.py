"""The text of ``nczarr info``, made from metadata alone."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nczarr_xarray.cli.cdl_values import zarr_type
from nczarr_xarray.cli.text import printable
from nczarr_xarray.model import Attribute, CodecConfig, Dimension, Group, Hierarchy, Variable

#: What each `Hierarchy.generation` is, with the releases of netCDF-C that write it.
GENERATIONS = {
    "G1": "NCZarr, generation G1 (netCDF-C 4.8.0)",
    "G2U": "NCZarr, generation G2U (netCDF-C 4.8.1 and 4.9.0)",
    "G2L": "NCZarr, generation G2L (netCDF-C 4.9.1 and 4.9.2)",
    "G2A": "NCZarr, generation G2A (netCDF-C 4.9.3 and later)",
    "v2": "Zarr, version 2 (no NCZarr metadata)",
    "v3": "Zarr, version 3",
}

#: Attributes of the root that say what the dataset is about.
_ABOUT = ("title", "Conventions")

_LABELS = ("variable", "type", "shape", "size", "chunks", "codecs")


@dataclass(frozen=True, slots=True)
class Style:
    """How to lay out text.

    Parameters
    ----------
    width
        Columns of the terminal. A table that is wider has chunks and codecs on
        second lines.
    colour
        Whether the terminal understands colours.
    """

    width: int = 100
    colour: bool = False

    def strong(self, text: str) -> str:
        """As headings."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def faint(self, text: str) -> str:
        """As labels."""
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text

    def alarm(self, text: str) -> str:
        """As what is wrong."""
        return f"\x1b[31m{text}\x1b[0m" if self.colour else text


def describe(hierarchy: Hierarchy, url: str, store: str, style: Style) -> Iterator[str]:
    """Describe a dataset, line by line.

    Parameters
    ----------
    url, store
        Where the dataset is, and in what kind of store.
    """
    groups = list(hierarchy.root.walk())
    yield style.strong(printable(url))
    yield ""
    facts = _facts(hierarchy, store, groups)
    for label, fact in facts.items():
        yield from _labelled(label, fact, max(map(len, facts)), style)
    for problem in hierarchy.problems:
        yield from _wrapped(f"problem: {problem}", "  ", "    ", style, style.alarm)
    rows = [_cells(variable) for group in groups for variable in group.variables.values()]
    widths = [max(map(columns, column)) for column in zip(_LABELS, *rows, strict=True)]
    for group in groups:
        yield ""
        yield style.strong(printable(group.path))
        if group.dimensions:
            dims = ", ".join(map(_dimension, group.dimensions.values()))
            yield from _labelled("dimensions", dims, len("dimensions"), style)
        if group.variables:
            yield ""
            yield from _table(group.variables.values(), widths, style)


def _facts(hierarchy: Hierarchy, store: str, groups: Sequence[Group]) -> dict[str, str]:
    facts = {
        name.lower(): attribute.value
        for name in _ABOUT
        if (attribute := hierarchy.root.attributes.get(name)) is not None
        and isinstance(attribute.value, str)
    }
    facts["format"] = GENERATIONS.get(hierarchy.generation, hierarchy.generation)
    facts["writer"] = _writer(hierarchy.writer)
    facts["store"] = store
    facts["metadata"] = (
        "consolidated (.zmetadata)"
        if hierarchy.consolidated
        else "one object or more per group and variable"
    )
    variables = [variable for group in groups for variable in group.variables.values()]
    dimensions = sum(len(group.dimensions) for group in groups)
    facts["contents"] = (
        f"{_count(len(groups), 'group')}, {_count(dimensions, 'dimension')}, "
        f"{_count(len(variables), 'variable')}"
    )
    sizes = [_nbytes(variable) for variable in variables]
    known = sum(size for size in sizes if size is not None)
    chunks = sum(map(_chunk_count, variables))
    facts["data"] = (
        f"{'at least ' if None in sizes else ''}{_size(known)} uncompressed, "
        f"{_count(chunks, 'chunk')} if all are stored"
    )
    return facts


def _writer(properties: str | None) -> str:
    """The library of ``version=2,netcdf=4.10.1,nczarr=2.0.0``."""
    if properties is None:
        return "not recorded"
    release = re.search(r"netcdf=([^,]+)", properties)
    return f"netCDF-C {release[1]}" if release else properties


def _dimension(dim: Dimension) -> str:
    return f"{dim.name} {dim.size:,}{' (unlimited)' if dim.unlimited else ''}"


def _cells(variable: Variable) -> tuple[str, ...]:
    """One row of the table: as `_LABELS`, the last two empty if nothing is known of them."""
    if variable.error is not None:
        return (printable(variable.name), "", "", "", "", "")
    shape = " × ".join(f"{printable(dim.name)} {dim.size:,}" for dim in variable.dimensions)
    size = _nbytes(variable)
    chunks = codecs = ""
    if variable.array is not None:
        lengths = " × ".join(f"{length:,}" for length in variable.array.chunk_shape)
        chunks = f"{_chunk_count(variable):,}" + (f" of {lengths}" if lengths else "")
        codecs = ", ".join(map(codec, getattr(variable.array, "codecs", ())))
    return (
        printable(variable.name),
        _type(variable),
        shape or "scalar",
        "?" if size is None else _size(size),
        chunks,
        codecs,
    )


def _table(
    variables: Iterable[Variable], widths: Sequence[int], style: Style
) -> Iterator[str]:
    wide = 2 + sum(widths) + 3 * (len(widths) - 1) <= style.width
    split = len(widths) if wide else 4
    yield style.faint(_row(_LABELS, widths, split))
