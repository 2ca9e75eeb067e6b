"""``nczarr aggregate``: many files as one dataset, without their data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.text import counted
from nczarr_xarray.cli.arguments import add_option, add_progress, shows_progress, succeed
from nczarr_xarray.cli.main import NewParser, Parser, in_terms_of_options, with_options
from nczarr_xarray.formats.cfa.dialect import VERSIONS


def add_aggregate(new: NewParser) -> None:
    """Make the parser of ``nczarr aggregate``."""
    parser = new(
        examples=[
            "nczarr aggregate tas_19*.nc -o tas.nca",
            "nczarr aggregate 's3://bucket/tas/**/*.nc' -o s3://bucket/tas.nca",
            "nczarr aggregate tas_2003.nc -o tas.nca --append",
            r"nczarr aggregate 'runs/*.nc' -o runs.nca --dim 'member=_r(\d+)i1' --dry-run",
            "nczarr aggregate -o tas.nca --refresh",
        ],
        description="Write a master that holds the coordinates of all files, and says which of "
        "them has which part of the data. Only metadata and coordinates are read; the order of "
        "the files follows from the coordinates.",
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
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
    if_there.add_argument(
        "--refresh",
        action="store_true",
        help="write MASTER anew, as of the files now (without FILE: those that it has, and what is "
        "new where they are), but read only those that are new or have changed",
    )
    if_there.add_argument("--overwrite", action="store_true", help="replace MASTER")
    parser.repeated(
        "--dim",
        "NAME[=PATTERN]",
        "a dimension along which the files follow each other, if its coordinate does not "
        "tell that; it may be a new one. PATTERN says the coordinate of a file: what it matches "
        "in its name (a regular expression; %%Y%%m%%d is a date), or @ATTRIBUTE",
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
        default=[],
        help="call a variable or a dimension otherwise than the files do (may be repeated)",
    )
    parser.flag("--fill-missing", "take variables that a file lacks for missing data there")
    parser.flag("--promote-types", "take a type for data that holds those of all files")
    parser.flag("--skip-unreadable", "leave out files that are no datasets")
    parser.flag("--dry-run", "write nothing; print what of the files agrees and what not")
    parser.flag("--json", "with --dry-run: print it as JSON")
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
    """Aggregate; return 1 if files do not fit in a dry run (else errors are raised)."""
    from fsspec.callbacks import Callback

    from nczarr_xarray.aggregation.api import aggregate

    if args.json and not args.dry_run:
        raise UsageError("--json", "is for --dry-run")
    if len(args.output) > 1:
        reason = "is given twice; storage options are -s of the files, -S of MASTER"
        raise UsageError("-o/--output", reason)
    if not args.files and not args.refresh:
        raise UsageError("FILE", "is lacking; only --refresh knows the files")
    read = Callback()
    with in_terms_of_options():
        report = aggregate(
            args.files or None,
            args.output[0],
            _dim(args.dim or ()),
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
            types="promote" if args.promote_types else "error",
            rename=dict(_pair("--rename", "OLD=NEW", text) for text in args.rename),
            skip_unreadable=args.skip_unreadable,
            refresh=args.refresh,
            overwrite=args.overwrite,
            relative=args.relative,
            output_options=args.master_options or None,
            callback=read,
            dry_run=args.dry_run,
        )
    if report is None:
        what = f"{counted(read.value, 'file')} read" if read.value else "nothing new"
        succeed(args, f"{redact(args.output[0])}: {what}")
        return 0
    report.refused = [(target, with_options(reason)) for target, reason in report.refused]
    print(json.dumps(report.as_json(), indent=1) if args.json else "\n".join(report.lines()))
    return int(bool(report.refused))


def _dim(given: Iterable[str]) -> list[str] | dict[str, str]:
    """Return the dimensions, with the patterns if there are some."""
    if not any("=" in text for text in given):
        return [*given]
    return dict(_pair("--dim", "NAME=PATTERN for each", text) for text in given)


def _pair(option: str, form: str, text: str) -> tuple[str, str]:
    first, equal, second = text.partition("=")
    if not (first and equal and second):
        raise UsageError(option, f"is {form}, not {text!r}")
    return first, second
