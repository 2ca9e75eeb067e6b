"""``nczarr check``: whether files keep the rules of CMIP7, each by itself and together."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.text import counted, printable
from nczarr_xarray.cli.arguments import add_option, add_progress, shows_progress
from nczarr_xarray.cli.main import NewParser, report

if TYPE_CHECKING:
    from nczarr_xarray.tools.checks import Finding


def add_check(new: NewParser) -> None:
    """Make the parser of ``nczarr check``."""
    parser = new(
        examples=[
            "nczarr check tas_*.nc --cmip7",
            "nczarr check tas_*.nc --cmip7 --fix -o tas.nca",
        ],
        description="Check whether each file has the layout that CMIP7 wants, and whether the "
        "files of a dataset agree: attributes, variables, coordinates, and times without gaps and "
        "overlaps. Metadata and coordinates are read. The exit status is 0 if nothing is found, "
        "1 if there are findings, 2 if a file cannot be looked at, or not be repacked.",
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a path or URL, a folder, a pattern in quotes, a text that lists these (.txt)",
    )
    parser.add_argument(
        "--cmip7", action="store_true", required=True, help="by the rules of CMIP7 (none else yet)"
    )
    parser.flag(
        "--fix",
        "repack files of another layout; an old one is replaced when the new one is verified",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="MASTER",
        help="if nothing is found, write an aggregation of the files, as nczarr aggregate does",
    )
    parser.flag("--json", "print the findings as JSON")
    add_progress(parser)
    add_option(parser, "-s", "options", "storage option of the files")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are any, 2 if there is trouble."""
    from nczarr_xarray.aggregation.api import aggregate
    from nczarr_xarray.tools.check import check_cmip7, repack
    from nczarr_xarray.tools.checks.cmip7 import PACKING

    options, shown, trouble = args.options or None, shows_progress(args), False
    try:
        found = check_cmip7(args.files, options, progress=shown)
        wrong = [file for file, own in found.items() if any(one.code == PACKING for one in own)]
        for file in wrong if args.fix else ():
            try:
                repack(file, options)
            except NCZarrError as error:
                report(error, debug=args.debug)
                trouble = True
                continue
            if not args.json:
                print(printable(f"repacked {file}"))
        if args.fix and wrong:
            found = check_cmip7(args.files, options, progress=shown)
        if args.output and not any(found.values()):
            aggregate([*found], args.output, storage_options=options, gaps="raise")
    except (NCZarrError, ImportError) as error:
        report(error, debug=args.debug)
        return 2
    rows = [(file, one) for file, own in found.items() for one in own]
    if args.json:
        print(json.dumps([{"file": file, **asdict(one)} for file, one in rows], indent=1))
    else:
        _print(rows, len(found), args.output)
    return 2 if trouble else int(bool(rows))


def _print(rows: Sequence[tuple[str, Finding]], count: int, output: str | None) -> None:
    last = None
    for file, finding in rows:
        if file != last:
            print(printable(file))
        last = file
        for line in finding.lines():
            print(printable(f"  {line}"))
    if not rows:
        print(f"sound: {counted(count, 'file')}")
        return
    faulty = len({file for file, _ in rows})
    print(f"not sound: {counted(len(rows), 'finding')} in {faulty} of {counted(count, 'file')}")
    if output is not None:
        print(printable(f"{output} is not written"))
