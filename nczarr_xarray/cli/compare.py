"""``nczarr compare``: what differs between two datasets."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.text import printable
from nczarr_xarray.cli.arguments import add_addresses, add_option, open_named
from nczarr_xarray.cli.dump import select
from nczarr_xarray.cli.main import NewParser, report

if TYPE_CHECKING:
    from nczarr_xarray.tools.compare import Comparison


def add_compare(new: NewParser) -> None:
    """Make the parser of ``nczarr compare``."""
    parser = new(
        examples=[
            "nczarr compare run.nc s3://bucket/run.nczarr --var tas --sample 20",
        ],
        description="Compare structure, attributes with their types, and values to the last bit. "
        "Formats, chunks, codecs, byte order and the order of variables are no differences. The "
        "exit status is 0 if the datasets are equal, 1 if they differ, 2 if that is not known.",
    )
    parser.add_argument("a", metavar="A", help="a path or URL")
    parser.add_argument("b", metavar="B", help="a path or URL")
    parser.repeated("--var", "NAME", "compare this variable of A, and its attributes, only")
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="compare N blocks of each variable, always the same ones, instead of all",
    )
    parser.add_argument(
        "--tolerance",
        default="0",
        metavar="T",
        help="how much numbers may differ: 0.01, or 1%% of their magnitude (default: not at all)",
    )
    parser.flag("--encoding", "compare chunks, codecs and byte order as well")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument("--quiet", action="store_true", help="print nothing: the exit status tells")
    add_addresses(parser)
    add_option(parser, "-o", "options_a", "storage option of A")
    add_option(parser, "-O", "options_b", "storage option of B")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; return 0 if all is equal, 1 if not, 2 if that could not be found out."""
    try:
        comparison = _compared(args)
    except (NCZarrError, ImportError) as error:
        report(error, debug=args.debug)
        return 2
    if not args.quiet:
        show(comparison, as_json=args.json)
    return comparison.status


def show(comparison: Comparison, *, as_json: bool = False) -> None:
    """Print a report."""
    if as_json:
        print(json.dumps(comparison.as_json(), indent=1))
    else:
        for line in comparison.lines():
            print(printable(line))


def _compared(args: argparse.Namespace) -> Comparison:
    from nczarr_xarray.tools.compare import compare

    with open_named(args, args.a, args.options_a) as a:
        chosen: dict[str, Any] = {"sample": args.sample}
        if args.var is not None:
            chosen["variables"] = select(a.hierarchy.root, args.var)
        with open_named(args, args.b, args.options_b) as b:
            return compare(a, b, tolerance=args.tolerance, encoding=args.encoding, **chosen)
