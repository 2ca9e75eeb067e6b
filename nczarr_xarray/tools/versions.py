"""The versions of everything that reading and writing depends on."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TextIO

_DISTRIBUTION = "nczarr-xarray"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def show_versions(file: TextIO | None = None) -> None:
    """Print the versions of Python, of the system, and of the packages that this one can use.

    Parameters
    ----------
    file
        The file to print to; by default standard output.
    """
    for name, found in versions().items():
        print(f"{name}: {found}", file=file or sys.stdout)


def versions() -> dict[str, str]:
    """Return the versions by name; ``"-"`` for a package that is not installed."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    needed = (_NAME.match(line) for line in requires(_DISTRIBUTION) or ())
    names = sorted({match[0] for match in needed if match})
    return found | {name: _version(name) for name in [_DISTRIBUTION, *names]}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"
