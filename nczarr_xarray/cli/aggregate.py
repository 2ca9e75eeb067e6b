"""``nczarr aggregate``: many files as one dataset, without their data."""

from __future__ import annotations

import argparse

from nczarr_fsspec.errors import UsageError
from nczarr_xarray.cli.arguments import add_option, add_progress, shows_progress
from nczarr_xarray.cli.main import NewParser, Parser, in_terms_of_options
from nczarr_xarray.formats.cfa.dialect import VERSIONS


def add_aggregate(new: NewParser) -> None:
    """Make the parser of ``nczarr aggregate``."""
    parser = new(
        examples=[
            "nczarr aggregate tas_19*.nc -o tas.nca",
            "nczarr aggregate 's3://bucket/tas/**/*.nc' -o s3://bucket/tas.nca",
            "nczarr aggregate tas_2003.nc -o tas.nca --append",
        ],
        description="Write a master that holds the coordinates of all files, and says which of "
        "them has which part of the data. Only metadata and coordinates are read; the order of "
        "the files follows from the coordinates.",
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a path or URL of a dataset, a folder, a pattern in quotes, a text that lists these "
        "(.txt), or a catalogue of THREDDS (catalog.xml)",
    )
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        metavar="MASTER",
        required=True,
        help="a path or URL: of a netCDF file, a tree (.zarr, .nczarr, #mode=nczarr), or "
        "kerchunk references (.json, .parq)",
    )
    if_there = parser.add_mutually_exclusive_group()
    if_there.add_argument(
        "--append", action="store_true", help="add the files to what MASTER has already"
    )
    if_there.add_argument("--overwrite", action="store_true", help="replace MASTER")
    parser.repeated(
        "--dim",
        "NAME",
        "a dimension along which the files follow each other, if its coordinate does not "
        "tell that; it may be a new one",
    )
    parser.repeated("--var", "NAME", "a variable that is wanted; else all are")
    parser.add_argument(
        "--cfa-version",
        choices=VERSIONS,
        help="the version of the CFA conventions, 1.13 being that of CF-1.13 (default: 1.13, with "
        "--append that of MASTER)",
    )
    add_file_format(parser)
    parser.add_argument(
        "--relative",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="state addresses of files below the folder of MASTER relative to it (default: on, "
        "but off for --cfa-version 0.4, whose readers do not expect that)",
    )
    parser.flag("--no-gaps", "refuse files that do not follow each other without a gap")
    parser.add_argument(
        "--overlap",
        choices=("first", "last"),
        default="error",
        help="what counts where files have the same coordinates: the file that begins first, or "
        "last (default: they are refused; only --cfa-version 0.4 can say it)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="NUMBER",
        help="by how much coordinates may differ that are to be the same",
    )
    parser.add_argument(
        "--rename",
        action="append",
        metavar="OLD=NEW",
        help="call a variable or a dimension otherwise than the files do (may be repeated)",
    )
    parser.flag("--fill-missing", "take variables that a file lacks for missing data there")
    parser.flag("--skip-unreadable", "leave out files that are no datasets")
    add_progress(parser)
    add_option(parser, "-s", "file_options", "storage option of the files")
    add_option(parser, "-S", "master_options", "storage option of MASTER")
    parser.set_defaults(run=run)


def add_file_format(parser: Parser) -> None:
    """Add ``--format``, of the file that a master is."""
    parser.add_argument(
        "--format",
        choices=("CFA3", "CFA4"),
        help="CFA4: a netCDF-4 file (default); CFA3: a classic file, for --cfa-version 0.4",
    )


def run(args: argparse.Namespace) -> int:
    """Aggregate; return 0 (errors are raised)."""
    from nczarr_xarray.aggregation.api import aggregate

    if len(args.output) > 1:
        reason = "is given twice; storage options are -s of the files, -S of MASTER"
        raise UsageError("-o/--output", reason)
    with in_terms_of_options():
        aggregate(
            args.files,
            args.output[0],
            args.dim,
            args.append,
            args.file_options or None,
            shows_progress(args),
            args.cfa_version,
            format=args.format,
            variables=args.var,
            gaps="raise" if args.no_gaps else "allow",
            overlap=args.overlap,
            tolerance=args.tolerance,
            missing="fill" if args.fill_missing else "error",
            rename=dict(_pair(text) for text in args.rename or ()),
            skip_unreadable=args.skip_unreadable,
            overwrite=args.overwrite,
            relative=args.relative,
            output_options=args.master_options or None,
        )
    return 0


def _pair(text: str) -> tuple[str, str]:
    old, equal, new = text.partition("=")
    if not (old and equal and new):
        raise UsageError("--rename", f"is OLD=NEW, not {text!r}")
    return old, new
