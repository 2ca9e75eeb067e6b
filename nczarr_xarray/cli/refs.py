"""``nczarr refs``: references to the chunks of a file, for kerchunk's readers."""

from __future__ import annotations

import argparse
import json
import sys

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.places.url import is_url, redact
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_arguments, refuse_itself, write_report
from nczarr_xarray.cli.text import report


def add_parser(new: NewParser) -> None:
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the references; return 1 if a variable is missing in them."""
    from nczarr_xarray.views.references import find_references

    if args.file is not None and is_url(args.file):
        raise UsageError(redact(args.file), "is a URL: write a local file, and copy it there")
    name = "" if args.file is None else args.file.lower()
    if name.endswith(".icechunk"):
        reason = "is a repository of Icechunk by its name, which `nczarr aggregate -o` writes"
        raise UsageError(args.file, reason)
    if args.file is not None:
        refuse_itself(args.file, args.target)
    found = find_references(args.target, args.options or None)
    text = json.dumps(found.references, separators=(",", ":"))
    if args.file is None:
        sys.stdout.write(text + "\n")
    elif name.endswith((".parq", ".parquet")):
        # only they need these
        from nczarr_xarray.aggregation.write_references import write_parquet
        from nczarr_xarray.export.cfa.master_place import MasterPlace

        place = MasterPlace.find(args.file, None)
        write_parquet(place, found.references["refs"], replaces=True)
    else:
        write_report(args.file, text)
    for problem in found.problems:
        report(problem)
    return 1 if found.problems else 0
