"""The table of commands. The module of a command is imported when the command is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

#: Makes the parser of one command; takes ``examples``, and what `argparse.ArgumentParser` takes.
NewParser: TypeAlias = Callable[..., argparse.ArgumentParser]

#: What each command does, in one line. The module of a command has its name, and ``add_parser``.
COMMANDS = {
    "info": "say what a dataset is: format, dimensions, variables, chunks, codecs, sizes",
    "dump": "print a dataset as CDL, as ncdump does",
    "copy": "write a dataset in another form: NCZarr, Zarr 2 or 3, netCDF, an aggregation",
    "compare": "say what differs between two datasets, in whatever formats they are",
    "doctor": "say what is slow about the layout of a dataset, and predict what reads take",
    "aggregate": "make one dataset of many files: a master that says which file has what",
    "refs": "write kerchunk references to the chunks of a classic or HDF5 file",
    "convert-refs": "write an aggregation in another version of CFA, from or as kerchunk "
    "references",
    "validate": "check a dataset: metadata, chunks, leftovers of writers, foreign objects",
    "trace": "record the requests of a command or script, to see why it is slow",
    "recover": "remove what a writer left that died on another machine",
    "upgrade": "write the metadata of a dataset anew, for another release of netCDF-C",
    "demo": "open a small climate dataset, compute a mean, export it, draw two pictures",
}


class _Formatter(argparse.HelpFormatter):
    """Leaves the lines of examples as they are, and fills all other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def add_commands(parser: argparse.ArgumentParser, command: str | None) -> None:
    """Add all commands to a parser; only `command` gets its arguments, and is imported."""
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def new(*, examples: Sequence[str], **options: Any) -> argparse.ArgumentParser:
        epilog = "\n  ".join(("examples:", *examples))
        options |= {"help": COMMANDS[str(command)], "epilog": epilog}
        made = subparsers.add_parser(str(command), formatter_class=_Formatter, **options)
        made.add_argument(
            "--debug", action="store_true", help="print the Python traceback of an error, too"
        )
        return made

    for name, what in COMMANDS.items():
        if name == command:
            import_module(f"nczarr_xarray.cli.{name.replace('-', '_')}").add_parser(new)
        else:
            subparsers.add_parser(name, help=what)
