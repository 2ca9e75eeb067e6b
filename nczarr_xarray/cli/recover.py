"""``nczarr recover``: remove what a writer left whose end this machine cannot know."""

from __future__ import annotations

import argparse
import os

from nczarr_fsspec.places.url import redact
from nczarr_xarray.cli.commands import NewParser
from nczarr_xarray.cli.target import add_option


def add_parser(new: NewParser) -> None:
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Recover the dataset; return 0, or 1 if a path of this machine names nothing."""
    from nczarr_xarray.export.recovery import recover

    if recover(args.target, args.options or None):
        print("what writers had left is removed")
        return 0
    is_path = "://" not in args.target and "#" not in args.target
    gone = is_path and not os.path.exists(os.path.expanduser(args.target))
    also = ", and there is no dataset" if gone else ""
    print(f"no writer has left anything at {redact(args.target)}{also}")
    return 1 if gone else 0
