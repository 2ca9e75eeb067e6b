"""``nczarr upgrade``: the metadata of a dataset for another release of netCDF-C, in place."""

from __future__ import annotations

import argparse

from nczarr_fsspec.text import printable
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_option
from nczarr_xarray.formats.nczarr.profiles import COMPAT


def add_parser(new: NewParser) -> None:
    """Make the parser of ``nczarr upgrade``."""
    parser = new(
        examples=[
            "nczarr upgrade run.nczarr",
            "nczarr upgrade run.nczarr --compat 4.9.2 --dry-run",
        ],
        description="Write the metadata of NCZarr or pure Zarr 2 anew, in place and in one step, "
        "so that a release of netCDF-C can read the dataset. Chunks stay as they are.",
    )
    parser.add_argument("target", metavar="TARGET", help="a path or URL that can be written")
    parser.add_argument(
        "--compat",
        default="4.9.3",
        choices=tuple(COMPAT),
        help="the netCDF-C release that must be able to read it (default: %(default)s)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would change, and change nothing"
    )
    add_option(parser, "-o", "options", "storage option of the URL's filesystem")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Change the metadata, or print the difference; return 0 (errors are raised)."""
    from nczarr_xarray.tools.upgrade import upgrade

    done = upgrade(args.target, args.compat, args.options or None, dry_run=args.dry_run)
    if not done.is_needed:
        print(f"its metadata are those for netCDF-C {args.compat} already")
    elif args.dry_run:
        for line in done.difference().splitlines():
            print(printable(line))
    else:
        print(f"{len(done.after)} documents written, {len(done.removed)} removed")
    return 0
