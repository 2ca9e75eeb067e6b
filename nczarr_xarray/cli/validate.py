"""``nczarr validate``: whether a dataset is sound, and what to do if not."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.text import printable
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_arguments, opening
from nczarr_xarray.cli.text import report


def add_parser(new: NewParser) -> None:
    """Make the parser of ``nczarr validate``."""
    parser = new(
        examples=[
            "nczarr validate run.nczarr --data",
            "nczarr validate run.nczarr --fix",
        ],
        description="Check whether a dataset is sound. The exit status is 0 if it is, 1 if there "
        "are findings (other than notes), 2 if it cannot be looked at.",
    )
    add_arguments(parser)
    parser.add_argument("--data", action="store_true", help="decode all chunks, too")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="put right what is safe: consolidated metadata that are stale, what dead writers left",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are others than notes, 2 if there is trouble."""
    from nczarr_xarray.tools.validate import fixable, repair, validate

    how = opening(args, args.options)
    try:
        findings = validate(args.target, data=args.data, **how)
        wrong = [finding for finding in findings if fixable(finding)]
        if args.fix and wrong:
            repair(args.target, wrong, how["storage_options"])
            findings = validate(args.target, data=args.data, **how)
            for finding in wrong if not args.json else ():
                if finding not in findings:
                    print(printable(f"fixed    {finding.code}  {finding.path}: {finding.text}"))
    except (NCZarrError, ImportError) as error:
        report(error, debug=args.debug)
        return 2
    unsound = sum(finding.is_fault for finding in findings)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            for line in finding.lines():
                print(printable(line))
        print(f"not sound: errors and warnings: {unsound}" if unsound else "sound")
    return int(unsound > 0)
