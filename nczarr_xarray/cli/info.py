"""``nczarr info``: what a dataset is, on one screen."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

from nczarr_fsspec.text import printable
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_arguments, open_named

if TYPE_CHECKING:
    from nczarr_fsspec.keystore import KeyStore
    from nczarr_xarray.cli.describe import Style
    from nczarr_xarray.dataset.file import DataFile
    from nczarr_xarray.model import Hierarchy

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


def add_parser(new: NewParser) -> None:
    """Make the parser of ``nczarr info``."""
    parser = new(
        examples=[
            "nczarr info run.nc",
            "nczarr info s3://bucket/run.nczarr -o anon=true",
            "nczarr info run.nca --check",
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the description; return 1 if a variable, or a fragment, cannot be read."""
    from nczarr_xarray.cli.describe import Style, describe

    with open_named(args, args.target, args.options) as opened:
        style = Style(
            # one line per variable for a file or a pipe
            width=shutil.get_terminal_size((1000, 24)).columns,
            colour=_coloured(),
        )
        hierarchy = opened.hierarchy
        kind = store_kind(opened.store)
        for line in describe(hierarchy, opened.store.url, kind, style, fragments=args.fragments):
            print(line)
        found = _print_faults(hierarchy, style) if args.check else 0
    return int(any(v.error for v in hierarchy.root.all_variables()) or found > 0)


def _print_faults(hierarchy: Hierarchy, style: Style) -> int:
    """Print the fragments that cannot be read; return how many."""
    from nczarr_xarray.tools.validate.fragments import fragment_faults

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
