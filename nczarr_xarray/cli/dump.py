"""``nczarr dump``: a dataset as CDL, the text that ``ncdump`` prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_arguments, open_named
from nczarr_xarray.cli.text import report

if TYPE_CHECKING:
    from nczarr_xarray.model import Group


def add_parser(new: NewParser) -> None:
    """Make the parser of ``nczarr dump``."""
    parser = new(
        examples=[
            "nczarr dump -h run.nczarr",
            "nczarr dump -v tas,/g1/pr run.nc",
        ],
        add_help=False,  # -h is the header, as in ncdump
        description="Print a dataset as CDL, the text that ncdump prints of a netCDF-4 file.",
    )
    parser.add_argument("--help", action="help", help="show this help and exit")
    parser.add_argument("-h", dest="header", action="store_true", help="the header, no data")
    parser.add_argument(
        "-v",
        dest="variables",
        metavar="NAME,...",
        help="data of these variables only: a name in any group, or with the end of a path "
        "(g1/v) or a whole one (/g1/v) in front",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the dataset; return 1 if something of it could not be read."""
    from nczarr_xarray.cli.cdl import dataset_name, write_cdl

    # as ncdump, which takes no fill value of pure Zarr for an attribute
    how = {"use_zarr_fill_value_as_mask": False}
    with open_named(args, args.target, args.options, **how) as opened:
        root = opened.hierarchy.root
        selected = None if args.variables is None else select(root, args.variables.split(","))
        read = None if args.header else replace(opened, exact=True).read
        for problem in opened.hierarchy.problems:
            report(problem)
        errors = write_cdl(dataset_name(args.target), root, sys.stdout.write, read, selected)
        sys.stdout.flush()
    for error in errors:
        report(error)
    return 1 if errors else 0


def select(root: Group, names: Sequence[str]) -> frozenset[str]:
    """Return the paths of the variables that `names` mean.

    A name that starts with ``/`` is one path; any other matches the end of
    every path.

    Raises
    ------
    UsageError
        If a name means no variable.
    """
    paths = [variable.path for variable in root.all_variables()]
    selected: set[str] = set()
    for name in names:
        if name.startswith("/"):
            found = {name} & set(paths)
        else:
            found = {path for path in paths if path.endswith(f"/{name}")}
        if not found:
            hint = did_you_mean(name, (path.lstrip("/") for path in paths))
            raise UsageError(name or "-v", f"No such variable{hint}")
        selected |= found
    return frozenset(selected)
