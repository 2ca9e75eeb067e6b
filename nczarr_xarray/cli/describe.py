"""The text of ``nczarr info``, made from metadata alone."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nczarr_fsspec.text import counted, format_size, printable
from nczarr_xarray.cli.cdl_values import zarr_type
from nczarr_xarray.formats.registry import GENERATIONS
from nczarr_xarray.model import (
    CodecConfig,
    Dimension,
    FragmentArray,
    Group,
    Hierarchy,
    Variable,
    grid_of,
)


def summary(array: FragmentArray) -> str:
    """Return how many fragments an aggregation has, and where they are."""
    fragments = array.fragments
    there = np.flatnonzero(fragments.addresses != np.array(None))
    missing = fragments.count - len(there)
    grid = " × ".join(map(str, fragments.grid))
    text = f"{fragments.count:,} fragments" + (f" ({grid})" if len(fragments.grid) > 1 else "")
    if missing:
        text += f", {missing:,} missing"
    if fragments.values is not None:
        return f"{text}, each of one value"
    names = [fragments.addresses[number] or "this file" for number in there[[0, -1][: len(there)]]]
    if not names:
        return text
    return f"{text}: {' … '.join(map(printable, dict.fromkeys(names)))}"


def rows(array: FragmentArray) -> Iterator[str]:
    """Yield a line for each fragment: its place in the grid, its extent, where it is."""
    fragments = array.fragments
    for number in range(fragments.count):
        extent = ", ".join(f"{start}:{stop}" for start, stop in fragments.extent(number))
        places = fragments.places(number)
        where = " or ".join(f"{place.address or 'this file'} {place.name}" for place in places)
        if places and fragments.values is not None:
            where = str(fragments.values[number])
        position = ", ".join(map(str, fragments.position(number)))
        yield f"({position})  [{extent}]  {printable(where) or 'missing'}"


#: Attributes of the root that say what the dataset is about.
_ABOUT = ("title", "Conventions")

#: Columns of the table of variables.
_LABELS = ("variable", "type", "shape", "size", "chunks", "codecs")


@dataclass(frozen=True, slots=True)
class Style:
    """The layout of text.

    Parameters
    ----------
    width
        Columns of the terminal.
    colour
        Whether the terminal understands colours.
    """

    width: int
    colour: bool = False

    def strong(self, text: str) -> str:
        """Return `text` styled as a heading."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def faint(self, text: str) -> str:
        """Return `text` styled as a label."""
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text

    def alarm(self, text: str) -> str:
        """Return `text` styled as a problem."""
        return f"\x1b[31m{text}\x1b[0m" if self.colour else text


def describe(
    hierarchy: Hierarchy, url: str, store: str, style: Style, *, fragments: bool = False
) -> Iterator[str]:
    """Describe a dataset, line by line.

    Parameters
    ----------
    url, store
        The place of the dataset, and its kind of store.
    fragments
        Whether to list all fragments of aggregations.
    """
    groups = list(hierarchy.root.walk())
    variables = list(hierarchy.root.all_variables())
    yield style.strong(printable(url))
    yield ""
    facts = [*_about(hierarchy, store), *_totals(groups, variables)]
    for label, fact in facts:
        yield from _labelled(label, fact, max(len(label) for label, _ in facts), style)
    for problem in hierarchy.problems:
        yield from _indented(printable(f"problem: {problem}"), 2, style.width, style.alarm)
    table = _Table([_cells(variable) for variable in variables], style.width)
    for group in groups:
        yield ""
        yield style.strong(printable(group.path))
        if group.dimensions:
            dims = ", ".join(map(_dimension, group.dimensions.values()))
            yield from _labelled("dimensions", dims, len("dimensions"), style)
        if group.variables:
            yield ""
            yield style.faint(table.line(_LABELS))
        for variable in group.variables.values():
            yield from table.lines(_cells(variable))
            if isinstance(variable.array, FragmentArray):
                yield from _indented(summary(variable.array), 6, style.width, style.faint)
                for row in rows(variable.array) if fragments else ():
                    yield f"        {row}"
            if variable.error is not None:
                reason = printable(f"cannot be read: {variable.error}")
                yield from _indented(reason, 6, style.width, style.alarm)


class _Table:
    """The table of variables, aligned over all groups.

    If it is wider than the terminal, chunks and codecs go below each variable,
    unless there is one chunk and no codec.

    Parameters
    ----------
    rows
        All rows of the table, with cells in the order of `_LABELS`.
    width
        Columns of the terminal.
    """

    def __init__(self, rows: Sequence[Sequence[str]], width: int) -> None:
        self.widths = [max(map(_columns, column)) for column in zip(_LABELS, *rows, strict=True)]
        self.wide = 2 + sum(self.widths) + 3 * (len(_LABELS) - 1) <= width

    def line(self, cells: Sequence[str]) -> str:
        """Return the cells of one row that fit on its first line."""
        padded = []
        for label, cell, width in zip(_LABELS, cells, self.widths, strict=True):
            space = " " * (width - _columns(cell))
            padded.append(space + cell if label == "size" else cell + space)
        return "  " + "   ".join(padded if self.wide else padded[:-2]).rstrip()

    def lines(self, cells: Sequence[str]) -> Iterator[str]:
        """Yield all lines of one row."""
        yield self.line(cells)
        *_, chunks, codecs = cells
        if not self.wide and (codecs or chunks.partition(" ")[0] not in ("", "1")):
            yield f"      chunks {chunks}" + (f", codecs {codecs}" if codecs else "")


def _about(hierarchy: Hierarchy, store: str) -> Iterator[tuple[str, str]]:
    """Yield labels and texts about the dataset as a whole."""
    for name in _ABOUT:
        attribute = hierarchy.root.attributes.get(name)
        if attribute is not None and attribute.type in ("char", "string"):
            text = attribute.value if attribute.type == "char" else " ".join(attribute.value)
            yield name.lower(), printable(" ".join(str(text).split()))
    yield "format", GENERATIONS.get(hierarchy.generation, hierarchy.generation)
    # netCDF's provenance is `version=2,`, the writer, and the libraries that it used
    program = re.match(r"version=\d+,([^=,]+)=([^,]+)", hierarchy.writer or "")
    writer = hierarchy.writer or "not recorded"
    if program:
        writer = f"{'netCDF-C' if program[1] == 'netcdf' else program[1]} {program[2]}"
    yield "writer", printable(writer)
    yield "store", store
    if hierarchy.consolidated is None:
        return
    place = "zarr.json" if hierarchy.generation == "v3" else ".zmetadata"
    yield "metadata", f"consolidated in {place}" if hierarchy.consolidated else "not consolidated"


def _totals(groups: Sequence[Group], variables: Sequence[Variable]) -> Iterator[tuple[str, str]]:
    """Yield labels and texts about sizes and numbers."""
    counts = [
        counted(len(groups), "group"),
        counted(sum(len(group.dimensions) for group in groups), "dimension"),
        counted(len(variables), "variable"),
    ]
    yield "contents", ", ".join(counts)
    sizes = [nbytes(variable) for variable in variables]
    unknown = "more than " if None in sizes else ""
    total = format_size(sum(size or 0 for size in sizes))
    chunks = counted(sum(map(chunk_count, variables)), "chunk")
    yield "data", f"{unknown}{total} uncompressed, in up to {chunks}"


def _cells(variable: Variable) -> tuple[str, ...]:
    """Return one row of the table of variables, its cells in the order of `_LABELS`."""
    shape = " × ".join(f"{printable(dim.name)} {dim.size:,}" for dim in variable.dimensions)
    if variable.error is not None:
        return printable(variable.name), "", shape, "", "", ""
    chunks = codecs = ""
    if isinstance(variable.array, FragmentArray):
        chunks = f"{variable.array.fragments.count:,} fragments"
    elif variable.array is not None:
        lengths = " × ".join(f"{length:,}" for length in variable.array.chunk_shape)
        most = " of" if variable.array.blocks is None else " of up to"
        chunks = f"{chunk_count(variable):,}" + (f"{most} {lengths}" if lengths else "")
        codecs = ", ".join(map(codec_text, variable.array.codecs))
    size = nbytes(variable)
    return (
        printable(variable.name),
        _type(variable),
        shape or "scalar",
        "?" if size is None else format_size(size),
        chunks,
        codecs,
    )


def _type(variable: Variable) -> str:
    if variable.nc_type is None:
        return f"{zarr_type(variable.dtype)} (Zarr)"
    stored = variable.array.dtype if variable.array is not None else variable.dtype
    return variable.nc_type + (" big-endian" if stored.str.startswith(">") else "")


def _dimension(dim: Dimension) -> str:
    # spaces that do not break a line; `_wrapped` turns them into plain ones
    unlimited = "\xa0(unlimited)" if dim.unlimited else ""
    return f"{printable(dim.name)}\xa0{dim.size:,}{unlimited}"


def chunk_count(variable: Variable) -> int:
    """Return the number of chunks in the grid, stored or not."""
    if variable.array is None or isinstance(variable.array, FragmentArray):
        return 0
    if variable.array.blocks is not None:
        return math.prod(map(len, variable.array.blocks))
    return math.prod(grid_of(variable.array.shape, variable.array.chunk_shape))


def nbytes(variable: Variable) -> int | None:
    """Return the size of the uncompressed data in bytes; None if elements have no fixed size."""
    if variable.array is None:
        return 0
    if variable.array.dtype.kind == "O":
        return None
    return math.prod(variable.shape) * variable.array.dtype.itemsize


def codec_text(config: CodecConfig) -> str:
    """Return a short text for a codec, ``zlib(5)``; nested parameters are left out."""
    name = config.get("id") or config.get("name")
    shown = {
        key: value
        for key, value in config.get("configuration", config).items()
        # netCDF-C writes an element size of 0 and means the one of the type
        if key not in ("id", "name", "elementsize") and isinstance(value, (str, int, float))
    }
    if not shown:
        return printable(f"{name}")
    if len(shown) == 1:
        return printable(f"{name}({next(iter(shown.values()))})")
    return printable(f"{name}({', '.join(f'{key}={value}' for key, value in shown.items())})")


def _labelled(label: str, text: str, width: int, style: Style) -> Iterator[str]:
    """Yield a faint label and its text, which may take several lines."""
    first, *rest = _wrapped(text, style.width - width - 4)
    yield f"  {style.faint(label.ljust(width))}  {first}"
    for line in rest:
        yield " " * (width + 4) + line


def _indented(text: str, indent: int, width: int, mark: Callable[[str], str]) -> Iterator[str]:
    for line in _wrapped(text, width - indent):
        yield " " * indent + mark(line)


def _wrapped(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, max(width, 20), break_on_hyphens=False, break_long_words=False)
    return [line.replace("\xa0", " ") for line in lines] or [""]


def _columns(text: str) -> int:
    """Return the number of columns that `text` takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
