"""``nczarr doctor``, ``validate``, ``recover``, ``upgrade``: find what is wrong, and mend it."""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import asdict

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.text import parse_size, printable
from nczarr_xarray.cli.arguments import add_arguments, add_option, opening
from nczarr_xarray.cli.main import NewParser, report
from nczarr_xarray.formats.nczarr.spellings import COMPAT

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


def add_doctor(new: NewParser) -> None:
    """Make the parser of ``nczarr doctor``."""
    parser = new(
        examples=[
            "nczarr doctor run.nc",
            "nczarr doctor --measure https://data.example/run.nc",
        ],
        description="Examine the layout of a dataset by its metadata, and predict requests, bytes "
        "and seconds of typical reads over a network, for this layout and for others.",
    )
    add_arguments(parser)
    parser.add_argument(
        "--var", metavar="NAME", help="the variable to predict reads of (default: the largest)"
    )
    parser.add_argument(
        "--latency",
        type=_seconds,
        metavar="TIME",
        help="of the network, e.g. 20ms or 0.1s (default: 50ms)",
    )
    parser.add_argument(
        "--bandwidth",
        type=_bytes,
        metavar="SIZE",
        help="of the network, bytes a second, e.g. 10MB (default: 125MB)",
    )
    parser.flag(
        "--measure",
        "measure what of latency and bandwidth is not given, by reading some MB of TARGET",
    )
    parser.flag("--json", "print the report as JSON")
    parser.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    """Print the report; return 1 if it has errors."""
    from nczarr_xarray.tools.doctor import doctor

    report = doctor(
        args.target,
        variable=args.var,
        latency=args.latency,
        bandwidth=args.bandwidth,
        measure=args.measure,
        **opening(args, args.options),
    )
    if args.json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        for line in report.lines():
            print(printable(line))
    return int(any(finding.severity == "error" for finding in report.findings))


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 50ms or 0.05s")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1)


def _bytes(text: str) -> int:
    try:
        return parse_size(text.removesuffix("/s"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_validate(new: NewParser) -> None:
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
    parser.flag("--data", "decode all chunks, too")
    parser.flag(
        "--fix",
        "put right what is safe: consolidated metadata that are stale, what dead writers left",
    )
    parser.flag("--json", "print the findings as JSON")
    parser.set_defaults(run=run_validate)


def run_validate(args: argparse.Namespace) -> int:
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
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for line in findings.lines():
            print(printable(line))
    return int(any(finding.is_fault for finding in findings))


def add_recover(new: NewParser) -> None:
    """Make the parser of ``nczarr recover``."""
    parser = new(
        examples=["nczarr recover run.nczarr"],
        description="Carry out a change that was valid when its writer died, and remove all else "
        "that writers have left: locks, staged objects, incomplete files. This is for writers that "
        "died on another machine, or before a restart of this one; what others left, the next "
        "writer removes, or nczarr validate --fix. No process may write to the dataset meanwhile. "
        "The exit status is 1 if nothing was left, and a path names nothing.",
    )
    parser.add_argument("target", metavar="TARGET", help="a path or URL that can be written")
    add_option(parser, "-o", "options", "storage option of the URL's filesystem")
    parser.set_defaults(run=run_recover)


def run_recover(args: argparse.Namespace) -> int:
    """Recover the dataset; return 0, or 1 if a path of this machine names nothing."""
    from nczarr_xarray.export.api import recover

    if recover(args.target, args.options or None):
        print("what writers had left is removed")
        return 0
    is_path = "://" not in args.target and "#" not in args.target
    gone = is_path and not os.path.exists(os.path.expanduser(args.target))
    also = ", and there is no dataset" if gone else ""
    print(f"no writer has left anything at {redact(args.target)}{also}")
    return 1 if gone else 0


def add_upgrade(new: NewParser) -> None:
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
    parser.flag("--dry-run", "print what would change, and change nothing")
    add_option(parser, "-o", "options", "storage option of the URL's filesystem")
    parser.set_defaults(run=run_upgrade)


def run_upgrade(args: argparse.Namespace) -> int:
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
