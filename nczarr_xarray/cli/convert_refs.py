"""``nczarr convert-refs``: an aggregation in another spelling: versions of CFA, references."""

from __future__ import annotations

import argparse

from nczarr_xarray.cli.aggregate import add_file_format
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_addresses, add_option, opening
from nczarr_xarray.cli.text import in_terms_of_options
from nczarr_xarray.formats.cfa.versions import VERSIONS


def add_parser(new: NewParser) -> None:
    """Make the parser of ``nczarr convert-refs``."""
    parser = new(
        examples=[
            "nczarr convert-refs old.nca new.nca --cfa-version 1.13",
            "nczarr convert-refs old.nca new.json",
        ],
        description="Write the table of fragments of a master in another version of the CFA "
        "conventions, or as kerchunk references (.json, .parq); or write kerchunk "
        "references as a master. No data are read but coordinates.",
    )
    parser.add_argument("source", metavar="MASTER", help="a path or URL, also of references")
    parser.add_argument("target", metavar="OUTPUT", help="a path or URL")
    parser.add_argument("--overwrite", action="store_true", help="replace OUTPUT")
    parser.add_argument(
        "--cfa-version", choices=VERSIONS, help="the version that is written (default: 1.13)"
    )
    add_file_format(parser)
    add_addresses(parser)
    add_option(parser, "-o", "source_options", "storage option of MASTER")
    add_option(parser, "-O", "target_options", "storage option of OUTPUT")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert; return 0 (errors are raised)."""
    from nczarr_xarray.aggregation.api import convert_references

    with in_terms_of_options():
        convert_references(
            args.source,
            args.target,
            cfa_version=args.cfa_version,
            format=args.format,
            overwrite=args.overwrite,
            output_options=args.target_options or None,
            **opening(args, args.source_options),
        )
    return 0
