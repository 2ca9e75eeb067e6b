"""``nczarr trace``: record the requests of a program."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys
import traceback
from collections.abc import Sequence

from nczarr_fsspec.errors import UsageError
from nczarr_xarray.cli.arguments import need_folder, refuse_itself, write_report
from nczarr_xarray.cli.main import NewParser

_PYTHON = re.compile(r"(.*[\\/])?python[\d.]*(\.exe)?")
_NCZARR = re.compile(r"(.*[\\/])?nczarr(\.exe)?")
_FORMS = ("html", "json")


def add_trace(new: NewParser) -> None:
    """Make the parser of ``nczarr trace``."""
    parser = new(
        examples=[
            "nczarr trace --html trace.html -- nczarr info https://data.example/run.nc",
            "nczarr trace --json trace.json -- python analysis.py",
        ],
        usage="nczarr trace [--html FILE] [--json FILE] -- COMMAND ...",
        description="Run a command, nczarr ... or python ..., record its requests to remote "
        "files, and say on standard error what they took and what they could have taken. Secrets "
        "are masked.",
    )
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="what to run, behind --")
    for form in _FORMS:
        parser.add_argument(f"--{form}", metavar="FILE", help=f"write the trace as {form.upper()}")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Record; return what the command returned."""
    from nczarr_xarray.tools.trace import trace

    for path in filter(None, (getattr(args, form) for form in _FORMS)):
        for word in args.words:
            refuse_itself(path, word)
        need_folder(path)
    if not args.words:
        raise UsageError("trace", "needs a command: nczarr trace -- nczarr info URL")
    with trace() as recorded:
        status = run_python(args.words)
    print(recorded, file=sys.stderr)
    for form in _FORMS:
        if (path := getattr(args, form)) is not None:
            write_report(path, getattr(recorded, form)())
    return status


def run_python(words: Sequence[str]) -> int:
    """Run a Python program in this process as its command line says; return its exit status."""
    program, *arguments = words
    if _NCZARR.fullmatch(program):
        arguments = ["-m", "nczarr_xarray", *arguments]
    elif not _PYTHON.fullmatch(program):
        raise UsageError(program, "only nczarr ... and python ... can be traced")
    elif not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c")):
        raise UsageError(program, "give a script, -m and a module, or -c and code")
    elif arguments[0] in ("-m", "-c") and len(arguments) == 1:
        raise UsageError(arguments[0], "is followed by a module or code")
    saved = sys.argv, sys.path[:]
    try:
        _execute(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # what takes too long is what is to be traced
        return 128 + 2
    except Exception:  # noqa: BLE001 - a program that fails says so as Python does, and is traced
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = saved
    return 0


def _execute(arguments: Sequence[str]) -> None:
    first, *rest = arguments
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - asked for
    elif first == "-m":
        sys.argv = rest[:]
        sys.path.insert(0, "")
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, os.path.dirname(first))
        runpy.run_path(first, run_name="__main__")
