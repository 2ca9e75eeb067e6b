"""``nczarr doctor``: why reading a dataset is slow, and what would make it faster."""

from __future__ import annotations

import argparse
import json
import re

from nczarr_fsspec.text import parse_size, printable
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_arguments, opening, refuse_itself, write_report

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


def add_parser(new: NewParser) -> None:
    """Make the parser of ``nczarr doctor``."""
    parser = new(
        examples=[
            "nczarr doctor run.nc",
            "nczarr doctor --measure --html report.html https://data.example/run.nc",
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
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure what of latency and bandwidth is not given, by reading some MB of TARGET",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; return 1 if it has errors."""
    from nczarr_xarray.tools.doctor.api import doctor

    if args.html:
        refuse_itself(args.html, args.target)
    report = doctor(
        args.target,
        variable=args.var,
        latency=args.latency,
        bandwidth=args.bandwidth,
        measure=args.measure,
        **opening(args, args.options),
    )
    if args.html:
        write_report(args.html, report.as_html())
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
