"""``--verify`` and ``--digests`` of ``nczarr copy``: the copy is compared, its source described."""

from __future__ import annotations

import argparse

from nczarr_xarray.cli.compare import show
from nczarr_xarray.cli.target import opening
from nczarr_xarray.cli.text import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--verify`` and ``--digests``."""
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read the copy again and compare it with SRC, as nczarr compare does",
    )
    parser.add_argument(
        "--digests",
        metavar="FILE",
        help="write digests of SRC, by which nczarr compare --digests FILE checks any copy later",
    )


def refuse(args: argparse.Namespace) -> None:
    """Raise `UsageError` if a source that only other libraries read is to be compared."""
    if args.verify or args.digests:
        reason = "is not read by this package, as --verify and --digests need"
        raise UsageError(args.source, reason)


def verify(args: argparse.Namespace) -> int:
    """Do what was asked for after copying; return 1 if source and copy differ."""
    if not (args.verify or args.digests):
        return 0
    from nczarr_xarray.dataset.open import open_hierarchy
    from nczarr_xarray.export.copy import with_fixed_dimensions
    from nczarr_xarray.tools.compare import compare, write_digests

    with open_hierarchy(args.source, **opening(args, args.source_options)) as opened:
        source = with_fixed_dimensions(opened) if args.fixed else opened
        if args.digests:
            write_digests(source, args.digests)
        if not args.verify:
            return 0
        with open_hierarchy(args.target, **opening(args, args.target_options)) as target:
            comparison = compare(source, target)
    if not comparison.equal:
        show(comparison)
    return int(not comparison.equal)
