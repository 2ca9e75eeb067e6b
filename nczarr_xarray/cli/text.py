"""Text for terminals, and the messages of the command line on stderr."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nczarr_fsspec.errors import DatasetExistsError, ExportError, NCZarrWarning
from nczarr_fsspec.text import printable

#: Words for arguments in messages of functions, and what the command line has instead.
_OPTIONS = (
    (", mode='a' adds.*", ""),
    ("mode='w'|overwrite=True", "--overwrite"),
    ("append=True", "--append"),
    ("leave out append", "leave out --append"),
    ("leave out cfa_version, format", "leave out --cfa-version, --format"),
    ("gaps='allow' takes them", "without --no-gaps they are taken"),
    (r"\bdim='?([^ ,';]+)'?", r"--dim \1"),
    ("format='CFA4'", "--format CFA4"),
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
        raise ExportError(error.object, _with_options(reason), problems) from error
    except DatasetExistsError as error:
        raise DatasetExistsError(error.object, _with_options(error.reason)) from error


def _with_options(reason: str) -> str:
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
