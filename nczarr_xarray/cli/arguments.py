"""Common arguments of the commands that open a dataset."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.places.names import LocalFile
from nczarr_fsspec.text import printable
from nczarr_xarray.cli.main import Parser
from nczarr_xarray.import_hooks import preload

if TYPE_CHECKING:
    from nczarr_xarray.dataset.dataset import Opened

#: Python's spelling of what JSON has, too: a text, as which "False" would pass, is true
_CONSTANTS = {"True": True, "False": False, "None": None}


def refuse_itself(output: str | os.PathLike[str], target: str) -> None:
    """Raise `UsageError` if a report would replace the dataset that it is about."""
    written, read = LocalFile.of(os.fspath(output)), LocalFile.of(target)
    if written is not None and read is not None and written.is_same(read):
        raise UsageError(os.fspath(output), "is the dataset itself: choose another name")


def need_folder(output: str | os.PathLike[str]) -> None:
    """Raise `UsageError`, before the work is done, if a report has no folder to be written to."""
    if not os.path.isdir(os.path.dirname(output) or "."):
        raise UsageError(os.fspath(output), "cannot be written: there is no such folder")


def write_report(path: str | os.PathLike[str], text: str) -> None:
    """Write a file; its old content stays until the new one is complete.

    Raises
    ------
    OSError
        With the name of the file.
    """
    from pathlib import Path

    from nczarr_fsspec.changes.leftovers import remove_leftovers, replacing

    data = text.encode(errors="backslashreplace")  # names need not be UTF-8
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a device, or a pipe
            Path(path).write_bytes(data)
        else:
            real = os.path.realpath(path)
            remove_leftovers(real)
            with replacing(real) as new:
                Path(new).write_bytes(data)
    except OSError as error:
        error.filename = path
        raise


class ByName(argparse.Action):
    """Collects values by name, of which each may be given once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add the pairs that the argument's `type` has returned."""
        found = {**(getattr(namespace, self.dest) or {})}
        for name, value in values:
            if name in found:
                raise argparse.ArgumentError(self, f"{name} is given twice")
            found[name] = value
        setattr(namespace, self.dest, found)


def add_arguments(parser: Parser) -> None:
    """Add the target and ``-o`` to a command."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="a path or URL, e.g. x.zarr, file:///data/x.zip#mode=nczarr,zip or s3://bucket/x",
    )
    add_option(parser, "-o", "options", "storage option of the URL's filesystem")
    add_addresses(parser)


def add_addresses(parser: Parser) -> None:
    """Add what concerns the addresses of an aggregation: ``--allow`` and ``--replace``."""
    parser.repeated(
        "--allow",
        "PREFIX",
        "what the addresses of an aggregation may begin with, besides its own place; * for "
        "everything",
        default=[],
    )
    parser.add_argument(
        "--replace",
        action=ByName,
        default={},
        type=_move,
        metavar="OLD=NEW",
        help="where fragments of an aggregation are that have moved (may be repeated)",
    )


def add_progress(parser: Parser) -> None:
    """Add ``--progress`` and ``--quiet``; `shows_progress` and `succeed` tell what they mean."""
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show a progress bar (default: on a terminal)",
    )
    parser.flag("--quiet", "show no progress bar, and do not tell what was done")


def shows_progress(args: argparse.Namespace) -> bool:
    """Tell whether a progress bar is shown."""
    shown = sys.stderr.isatty() if args.progress is None else bool(args.progress)
    return shown and not args.quiet


def succeed(args: argparse.Namespace, done: str) -> None:
    """Say on a terminal, or with ``--progress``, what was done."""
    watched = sys.stderr is not None and (sys.stderr.isatty() or args.progress)
    if watched and not args.quiet:
        print(printable(done), file=sys.stderr)


def add_option(parser: Parser, flag: str, dest: str, what: str) -> None:
    """Add an argument that collects storage options."""
    parser.add_argument(
        flag,
        dest=dest,
        action=ByName,
        default={},
        type=_option,
        metavar="KEY=VALUE",
        help=f"{what}; the value is JSON or plain text, e.g. {flag} anon=true (may be repeated)",
    )


def _option(text: str) -> list[tuple[str, Any]]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        # the text itself is not shown: it may be a secret
        raise argparse.ArgumentTypeError("an option is written KEY=VALUE")
    try:
        return [(key, _CONSTANTS[value] if value in _CONSTANTS else json.loads(value))]
    except ValueError:
        return [(key, value)]


def _move(text: str) -> list[tuple[str, str]]:
    old, equals, new = text.partition("=")
    if not (old and equals):
        raise argparse.ArgumentTypeError("a move is written OLD=NEW")
    return [(old, new)]


def open_named(
    args: argparse.Namespace, target: str, options: dict[str, Any], **more: Any
) -> Opened:
    """Open a dataset that the arguments name, with its storage options, and `more` of others.

    Raises
    ------
    NCZarrError
        If it cannot be opened.
    """
    preload(target)
    from nczarr_xarray.dataset.open import open_hierarchy

    return open_hierarchy(target, **opening(args, options), **more)


def opening(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for opening a dataset: storage options, and what `add_addresses` adds."""
    return {
        "storage_options": options or None,
        "allow": args.allow or None,
        "replace": args.replace or None,
    }
