"""``nczarr info``: what a dataset is, by its metadata, on one screen or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.text import counted, format_size, printable
from nczarr_xarray.cli.arguments import add_arguments, open_named
from nczarr_xarray.cli.cdl import zarr_type
from nczarr_xarray.cli.main import NewParser
from nczarr_xarray.dataset.dataset import attribute_value, shown_name
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

if TYPE_CHECKING:
    from nczarr_xarray.dataset.dataset import Opened
    from nczarr_xarray.dataset.file import DataFile
    from nczarr_xarray.model import Attribute

#: The words for a kind of store, by the name of its class.
_STORES = {
    "DirectoryStore": "directory tree",
    "ZipStore": "zip archive",
    "RemoteZipStore": "zip archive, read by byte ranges",
    "FsspecStore": "objects",
    "MappingStore": "objects",
    "DataFile": "one file",
    "LocalReferences": "kerchunk references",
    "RemoteReferences": "kerchunk references",
}


def add_info(new: NewParser) -> None:
    """Make the parser of ``nczarr info``."""
    parser = new(
        examples=[
            "nczarr info run.nc",
            "nczarr info s3://bucket/run.nczarr -o anon=true",
            "nczarr info run.nca --fragments",
            "nczarr info run.nca --check",
            "nczarr info run.nc --json",
        ],
        description="Say what a dataset is: its format and who wrote it, its groups, dimensions "
        "and variables with their chunks, codecs and sizes. No data are read.",
    )
    add_arguments(parser)
    parser.flag("--fragments", "list all fragments of an aggregation")
    parser.flag("--check", "open all fragments of an aggregation, and say which cannot be read")
    parser.flag("--json", "print it as JSON, with all attributes and codecs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the description; return 1 if a variable, or a fragment, cannot be read."""
    if args.json and (args.check or args.fragments):
        raise UsageError("--json", "has no fragments: nczarr validate --json checks them")
    with open_named(args, args.target, args.options) as opened:
        hierarchy = opened.hierarchy
        # one line per variable for a file or a pipe
        style = Style(shutil.get_terminal_size((1000, 24)).columns, colour=_coloured())
        if args.json:
            print(json.dumps(document(opened), indent=1, default=str))
        else:
            kind, fragments = store_kind(opened.store), args.fragments
            for line in describe(hierarchy, opened.store.url, kind, style, fragments=fragments):
                print(line)
        faults = _print_faults(hierarchy, style) if args.check else 0
    return int(faults > 0 or any(v.error for v in hierarchy.root.all_variables()))


def _print_faults(hierarchy: Hierarchy, style: Style) -> int:
    """Print the fragments that cannot be read, and how many can; return how many cannot."""
    from nczarr_xarray.formats.cfa.dialect import aggregated
    from nczarr_xarray.tools.checks.objects import fragment_faults

    faults = 0
    for finding in fragment_faults(hierarchy):
        faults += 1
        for line in finding.lines():
            print(style.alarm(printable(line)))
    tables = (array.fragments.addresses.tolist() for _, array in aggregated(hierarchy))
    there = sum(address is not None for table in tables for address in table)
    print(f"{there - faults} of {counted(there, 'fragment')} can be read")
    return faults


def document(opened: Opened) -> dict[str, Any]:
    """Return what ``--json`` prints of an open dataset; groups go by their paths."""
    hierarchy = opened.hierarchy
    return {
        "url": opened.store.url,
        "format": hierarchy.generation,
        "writer": hierarchy.writer,
        "store": store_kind(opened.store),
        "problems": list(map(str, hierarchy.problems)),
        "groups": {shown_name(group.path): _group(group) for group in hierarchy.root.walk()},
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "dimensions": {
            shown_name(one.name): {"length": one.size, "unlimited": one.unlimited}
            for one in group.dimensions.values()
        },
        "attributes": _attributes(group.attributes),
        "variables": {shown_name(one.name): _variable(one) for one in group.variables.values()},
    }


def _variable(variable: Variable) -> dict[str, Any]:
    array = variable.array
    whole = array is None or not array.is_chunked
    return {
        "type": variable.nc_type,
        "dtype": (variable.dtype if array is None else array.dtype).str,
        "dimensions": [shown_name(dimension.path) for dimension in variable.dimensions],
        "shape": list(variable.shape),
        "chunks": None if array is None or whole else list(array.chunk_shape),
        "codecs": [] if array is None else [dict(config) for config in array.codecs],
        "attributes": _attributes(variable.attributes),
        "error": None if variable.error is None else str(variable.error),
    }


def _attributes(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    return {
        shown_name(one.name): {"type": one.type, "value": _plain(attribute_value(one))}
        for one in attributes.values()
    }


def _plain(value: Any) -> Any:
    """Return a value of an attribute as JSON has it; NaN and infinities are text, as in Zarr."""
    if hasattr(value, "tolist"):  # numpy's
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _coloured() -> bool:
    """Tell whether standard output shows colours and ``NO_COLOR`` is not set (no-color.org)."""
    dumb = os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not dumb and not os.environ.get("NO_COLOR")


def store_kind(store: KeyStore | DataFile) -> str:
    """Return the kind of a store in words: ``"objects over https"``."""
    name = type(store).__name__
    if name not in _STORES:  # that of a template, or with a change that is not carried out yet
        from nczarr_fsspec.changes.journal import base_of

        name = type(base_of(store)).__name__ if isinstance(store, KeyStore) else name
    kind = _STORES.get(name, name)
    protocol, separator, _ = store.url.partition("://")
    return f"{kind} over {protocol}" if separator and protocol != "file" else kind


# -- text ------------------------------------------------------------------------------------------


def summary(array: FragmentArray) -> str:
    """Return how many fragments an aggregation has, and where they are."""
    fragments = array.fragments
    there = [number for number in range(fragments.count) if fragments.addresses[number] is not None]
    missing = fragments.count - len(there)
    grid = " × ".join(map(str, fragments.grid))
    text = f"{fragments.count:,} fragments" + (f" ({grid})" if len(fragments.grid) > 1 else "")
    if missing:
        text += f", {missing:,} missing"
    if fragments.values is not None:
        return f"{text}, each of one value"
    names = dict.fromkeys(fragments.addresses[n] or "this file" for n in there[:1] + there[-1:])
    return f"{text}: {' … '.join(map(printable, names))}" if names else text


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
