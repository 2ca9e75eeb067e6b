"""``nczarr``: parse the command line, run a command, turn errors into one line each."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

from nczarr_fsspec.errors import (
    DatasetExistsError,
    ExportError,
    LossWarning,
    NCZarrError,
    NCZarrWarning,
    UsageError,
)
from nczarr_fsspec.text import printable
from nczarr_xarray._version import __version__

#: The module of each command, and what it does, in one line. The module has ``add_<command>``.
COMMANDS = {
    "info": ("info", "say what a dataset is: format, dimensions, variables, chunks, codecs, sizes"),
    "dump": ("dump", "print a dataset as CDL, as ncdump does"),
    "copy": (
        "copy",
        "write a dataset in another form: NCZarr, Zarr, netCDF, an aggregation",
    ),
    "compare": ("compare", "say what differs between two datasets, in whatever formats they are"),
    "doctor": ("upkeep", "say what is slow about a dataset's layout, and predict what reads take"),
    "aggregate": ("aggregate", "make one dataset of many files: a master that says which has what"),
    "refs": ("references", "write kerchunk references to the chunks of a classic or HDF5 file"),
    "convert-refs": (
        "references",
        "write an aggregation in another version of CFA, from or as kerchunk references",
    ),
    "validate": (
        "upkeep",
        "check a dataset: metadata, chunks, what writers left, foreign objects",
    ),
    "check": ("check", "check files of CMIP7: their layout, and whether they make one dataset"),
    "trace": ("trace", "record the requests of a command or script, to see why it is slow"),
    "recover": ("upkeep", "remove what a writer left that died on another machine"),
    "upgrade": ("upkeep", "write the metadata of a dataset anew, for another release of netCDF-C"),
    "demo": ("demo", "show a small dataset, and the requests of a read of a remote file"),
}


class Parser(argparse.ArgumentParser):
    """A parser, also of a command, that says what is wrong on one line, as every message is."""

    #: Of the command line that is parsed: its options are unknown to this parser, not to its own.
    command = ""

    def flag(self, name: str, what: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=what)

    def repeated(self, name: str, metavar: str, what: str, **options: Any) -> None:
        """Add an option that may be given several times."""
        text = f"{what} (may be repeated)"
        self.add_argument(name, action="append", metavar=metavar, help=text, **options)

    def error(self, message: str) -> NoReturn:
        prog = self.prog
        if message.startswith("unrecognized"):  # perhaps a storage option of another command
            from nczarr_fsspec.places.url import redact

            message = re.sub(r"=\S+", "=***", redact(message))
            prog = f"{self.prog} {self.command}"
        elif chosen := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            from nczarr_fsspec.text import did_you_mean

            message += did_you_mean(chosen[1], re.findall(r"[\w.-]+", chosen[2])).rstrip("?")
        self.exit(2, f"nczarr: {message}; see {prog} --help\n")


#: Makes the parser of one command; takes ``examples``, and what `argparse.ArgumentParser` takes.
NewParser: TypeAlias = Callable[..., Parser]


class _Formatter(argparse.HelpFormatter):
    """Leaves the lines of examples as they are, and fills all other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def add_commands(parser: Parser, command: str | None) -> None:
    """Add all commands to a parser; only `command` gets its arguments, and is imported."""
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def new(*, examples: Sequence[str], **options: Any) -> Parser:
        epilog = "\n  ".join(("examples:", *examples))
        options |= {"help": COMMANDS[str(command)][1], "epilog": epilog}
        made = subparsers.add_parser(str(command), formatter_class=_Formatter, **options)
        made.flag("--debug", "print the Python traceback of an error, too")
        return made

    for name, (module, what) in COMMANDS.items():
        if name == command:
            found = import_module(f"nczarr_xarray.cli.{module}")
            getattr(found, f"add_{name.replace('-', '_')}")(new)
        else:
            subparsers.add_parser(name, help=what)


def build_parser(argv: Sequence[str]) -> Parser:
    """Return the parser of a command line; the command to call is in ``run``."""
    parser = Parser(
        prog="nczarr",
        description="Look at NCZarr and Zarr datasets, wherever they are, and copy them.",
    )
    parser.add_argument("--version", action="version", version=f"nczarr {__version__}")
    # no option in front of the command has a value
    command = next((word for word in argv if not word.startswith("-")), None)
    parser.command = command or ""
    add_commands(parser, command)
    return parser


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turn a signal that ends the process into `SystemExit`, so that unfinished work is removed.

    A second signal ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # a signal that is ignored (under nohup) stays ignored
    before = {number: signal.getsignal(number) for number in known}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Without the program's name; None for those of the process.

    Returns
    -------
    int
        The exit status: 0 if all went well, 1 if something could not be read or
        written, 2 if an argument is wrong. If argparse finds that, it
        ends the process with this status.
    """
    _keep_standard_streams()
    args = argparse.Namespace(debug=False)  # until the arguments are parsed
    try:
        with reported_warnings() as warned:
            status = _run(sys.argv[1:] if argv is None else argv, args)
        lost = any(isinstance(warning, LossWarning) for warning in warned)
    except UsageError as error:
        report(error, debug=args.debug)
        return 2
    except BrokenPipeError:  # the reader of a pipe has closed it
        _give_up_output()
        return 128 + 13
    except (NCZarrError, ImportError) as error:  # an optional package may be missing
        report(error, debug=args.debug)
        return 1
    except OSError as error:
        if error.filename is None:  # only writing to standard output has no file name
            error.filename = "standard output"
            _give_up_output()
        report(error, debug=args.debug)
        return 1
    except KeyboardInterrupt:
        return 128 + 2
    return status or int(lost)


def _run(argv: Sequence[str], args: argparse.Namespace) -> int:
    """Parse the arguments into `args` and run the command; flush stdout before returning."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # CDL is UTF-8; bytes that are not UTF-8 are written as they were read
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        build_parser(argv).parse_args(argv, args)
    except SystemExit:  # after --help, too
        sys.stdout.flush()
        raise
    with _ended_in_order():
        status: int = args.run(args)
        sys.stdout.flush()
    return status


def _keep_standard_streams() -> None:
    """Open closed standard streams on the null device, so that no other file takes their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - it stays open
    sys.stderr = sys.stderr or sys.stdout


def _give_up_output() -> None:
    """Discard what is left in the buffer of stdout, so that the exit raises no error."""
    with suppress(OSError):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- messages --------------------------------------------------------------------------------------

#: Words for arguments in messages of functions, and what the command line has instead.
_OPTIONS = (
    (", mode='a' adds.*", ""),
    ("mode='w'|overwrite=True", "--overwrite"),
    ("append=True", "--append"),
    ("leave out append and refresh", "leave out --append and --refresh"),
    ("leave out append", "leave out --append"),
    ("leave out cfa_version, format", "leave out --cfa-version, --format"),
    ("gaps='allow' takes them", "without --no-gaps they are taken"),
    (r"\bdim='?([^ ,';]+)'?", r"--dim \1"),
    ("format='CFA4'", "--format CFA4"),
    ("overlap='first' or 'last'", "--overlap first or last"),
    ("missing='fill'", "--fill-missing"),
    ("types='promote'", "--promote-types"),
    (r"cfa_version='([0-9.]+)'", r"--cfa-version \1"),
)
#: Functions that messages name, and the commands that do the same.
_COMMANDS = (
    ("call nczarr_xarray.recover", "run nczarr recover"),
    ("nczarr_xarray.recover", "nczarr recover"),
)


@contextmanager
def in_terms_of_options() -> Iterator[None]:
    """Let messages about what cannot be written name options of the command line."""
    try:
        yield
    except ExportError as error:
        problems = error.lines[1:]
        reason = error.reason.partition(":\n")[0] if problems else error.reason
        raise ExportError(error.object, with_options(reason), problems) from error
    except DatasetExistsError as error:
        raise DatasetExistsError(error.object, with_options(error.reason)) from error


def with_options(reason: str) -> str:
    """Return a reason that names options of the command line."""
    for pattern, option in _OPTIONS:
        reason = re.sub(pattern, option, reason)
    return reason


def report(error: Exception, *, debug: bool = False) -> None:
    """Write `error` to stderr: one line, and one for each problem of a list.

    Parameters
    ----------
    debug
        Whether to write its traceback before that.
    """
    if debug:
        import traceback

        from nczarr_fsspec.places.url import redact

        # messages of other packages may have URLs with secrets
        _write(tuple(redact("".join(traceback.format_exception(error))).splitlines()))
    if isinstance(error, ExportError):
        lines = error.lines
    elif isinstance(error, OSError) and error.filename is not None:
        lines = (f"{error.filename}: {error.strerror}",)
    else:
        lines = (str(error),)
    for function, command in _COMMANDS:
        lines = tuple(line.replace(function, command) for line in lines)
    _write(lines)


@contextmanager
def reported_warnings() -> Iterator[list[Warning]]:
    """Write each warning to stderr once, as one line, and collect them."""
    found: list[Warning] = []

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        if str(message) not in map(str, found):
            found.append(message if isinstance(message, Warning) else category(message))
            _write((f"warning: {message}",))

    with warnings.catch_warnings():
        warnings.simplefilter("always", NCZarrWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield found


def _write(lines: tuple[str, ...]) -> None:
    first, *more = map(printable, lines)
    with suppress(OSError):  # stderr is closed: there is no way to say so
        print(f"nczarr: {first}", *(f"  {line}" for line in more), sep="\n", file=sys.stderr)
