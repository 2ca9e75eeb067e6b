"""``nczarr refs``, ``nczarr convert-refs``: references to chunks, as other programs read them."""

from __future__ import annotations

import argparse
import json
import sys

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.places.url import is_url, redact
from nczarr_xarray.cli.aggregate import add_file_format
from nczarr_xarray.cli.arguments import (
    add_addresses,
    add_arguments,
    add_option,
    opening,
    refuse_itself,
    write_report,
)
from nczarr_xarray.cli.main import NewParser, in_terms_of_options, report
from nczarr_xarray.formats.cfa.dialect import VERSIONS


def add_refs(new: NewParser) -> None:
    """Make the parser of ``nczarr refs``."""
    parser = new(
        examples=[
            "nczarr refs run.nc run.json",
            "nczarr refs s3://bucket/run.nc run.parq -o anon=true",
        ],
        description="Write references to the chunks of a classic or HDF5 file as JSON, by which "
        "kerchunk, fsspec and their users read it as Zarr; or, if FILE ends in .parq or .parquet, "
        "as a folder of Parquet.",
    )
    add_arguments(parser)
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="a local file to write; else standard output"
    )
    parser.set_defaults(run=run_refs)


def run_refs(args: argparse.Namespace) -> int:
    """Write the references; return 1 if a variable is missing in them."""
    from nczarr_xarray.views.references import find_references

    if args.file is not None and is_url(args.file):
        raise UsageError(redact(args.file), "is a URL: write a local file, and copy it there")
    name = "" if args.file is None else args.file.lower()
    if name.endswith(".icechunk"):
        reason = "is named as a repository of Icechunk: VirtualiZarr writes it, with NCZarrParser"
        raise UsageError(args.file, reason)
    if args.file is not None:
        refuse_itself(args.file, args.target)
    found = find_references(args.target, args.options or None)
    text = json.dumps(found.references, separators=(",", ":"))
    if args.file is None:
        sys.stdout.write(text + "\n")
    elif name.endswith((".parq", ".parquet")):
        # only they need these
        from nczarr_xarray.aggregation.kerchunk import write_parquet
        from nczarr_xarray.export.cfa.master import MasterPlace

        place = MasterPlace.find(args.file, None)
        write_parquet(place, found.references["refs"], {}, replaces=True)
    else:
        write_report(args.file, text)
    for problem in found.problems:
        report(problem)
    return 1 if found.problems else 0


def add_convert_refs(new: NewParser) -> None:
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
    parser.flag("--overwrite", "replace OUTPUT")
    parser.add_argument(
        "--cfa-version", choices=VERSIONS, help="the version that is written (default: 1.13)"
    )
    add_file_format(parser)
    add_addresses(parser)
    add_option(parser, "-o", "source_options", "storage option of MASTER")
    add_option(parser, "-O", "target_options", "storage option of OUTPUT")
    parser.set_defaults(run=run_convert_refs)


def run_convert_refs(args: argparse.Namespace) -> int:
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
