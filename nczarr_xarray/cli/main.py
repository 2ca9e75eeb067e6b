"""``nczarr``: parse the command line, run a command, turn errors into one line each."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray import __version__
from nczarr_xarray.cli import copy, demo, dump, info, refs
from nczarr_xarray.cli.text import report


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; parsed arguments hold the command as ``run``."""
    parser = argparse.ArgumentParser(
        prog="nczarr",
        description="Look at NCZarr and Zarr datasets, wherever they are, and copy them.",
    )
    parser.add_argument("--version", action="version", version=f"nczarr {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (info, dump, copy, refs, demo):
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Without the program's name; None for those of the process.

    Returns
    -------
    int
        The exit status: 0 if all went well, 1 if something could not be read.
        Wrong arguments end the process with status 2, as argparse does.
    """
    args = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # CDL is UTF-8, and bytes that are not go out as they came in
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (NCZarrError, ImportError) as error:  # an optional package may be missing
        report(error)
        return 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except KeyboardInterrupt:
        return 128 + 2
    return status
