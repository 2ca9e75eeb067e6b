"""``nczarr info``: what a dataset is, on one screen or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.text import printable
from nczarr_xarray.cli.main import NewParser
from nczarr_xarray.cli.target import add_arguments, open_named

if TYPE_CHECKING:
    from nczarr_fsspec.keystore import KeyStore
    from nczarr_xarray.cli.describe import Style
    from nczarr_xarray.dataset.dataset import Opened
    from nczarr_xarray.dataset.file import DataFile
    from nczarr_xarray.model import Attribute, Group, Hierarchy, Variable

#: The words for a kind of store, by the name of its class.
_STORES = {
    "DirectoryStore": "directory tree",
    "ZipStore": "zip archive",
    "RemoteZipStore": "zip archive, read by byte ranges",
    "FsspecStore": "objects",
    "SyncFsspecStore": "objects",
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
            "nczarr info run.nca --check",
            "nczarr info run.nc --json",
        ],
        description="Say what a dataset is: its format and who wrote it, its groups, dimensions "
        "and variables with their chunks, codecs and sizes. No data are read.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--fragments", action="store_true", help="list all fragments of an aggregation"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="open all fragments of an aggregation, and say which ones cannot be read",
    )
    parser.add_argument(
        "--json", action="store_true", help="print it as JSON, with all attributes and codecs"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the description; return 1 if a variable, or a fragment, cannot be read."""
    from nczarr_xarray.cli.describe import Style, describe

    if args.json and (args.check or args.fragments):
        reason = "has no fragments: nczarr validate --json checks them"
        raise UsageError("--json", reason)
    with open_named(args, args.target, args.options) as opened:
        style = Style(
            # one line per variable for a file or a pipe
            width=shutil.get_terminal_size((1000, 24)).columns,
            colour=_coloured(),
        )
        hierarchy = opened.hierarchy
        if args.json:
            print(json.dumps(document(opened), indent=1, default=str))
        else:
            place, kind = opened.store.url, store_kind(opened.store)
            for line in describe(hierarchy, place, kind, style, fragments=args.fragments):
                print(line)
        found = _print_faults(hierarchy, style) if args.check else 0
    return int(any(v.error for v in hierarchy.root.all_variables()) or found > 0)


def document(opened: Opened) -> dict[str, Any]:
    """Return what ``--json`` prints of an open dataset; groups go by their paths."""
    from nczarr_xarray.dataset.dataset import shown_name

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
    from nczarr_xarray.dataset.dataset import shown_name

    return {
        "dimensions": {
            shown_name(one.name): {"length": one.size, "unlimited": one.unlimited}
            for one in group.dimensions.values()
        },
        "attributes": _attributes(group.attributes),
        "variables": {shown_name(one.name): _variable(one) for one in group.variables.values()},
    }


def _variable(variable: Variable) -> dict[str, Any]:
    from nczarr_xarray.dataset.dataset import shown_name

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
    from nczarr_xarray.dataset.dataset import attribute_value, shown_name

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


def _print_faults(hierarchy: Hierarchy, style: Style) -> int:
    """Print the fragments that cannot be read; return how many."""
    from nczarr_xarray.tools.checks.objects import fragment_faults

    count = 0
    for finding in fragment_faults(hierarchy):
        count += 1
        for line in finding.lines():
            print(style.alarm(printable(line)))
    return count


def _coloured() -> bool:
    """Tell whether standard output shows colours and ``NO_COLOR`` is not set (no-color.org)."""
    dumb = os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not dumb and not os.environ.get("NO_COLOR")


def store_kind(store: KeyStore | DataFile) -> str:
    """Return the kind of a store in words: ``"objects over https"``."""
    name = type(store).__name__
    if name not in _STORES:  # that of a template, or with a change that is not carried out yet
        from nczarr_fsspec.changes.journal import base_of
        from nczarr_fsspec.keystore import KeyStore

        name = type(base_of(store)).__name__ if isinstance(store, KeyStore) else name
    kind = _STORES.get(name, name)
    protocol, separator, _ = store.url.partition("://")
    return f"{kind} over {protocol}" if separator and protocol != "file" else kind
