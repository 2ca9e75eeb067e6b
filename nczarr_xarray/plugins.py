"""Rows that other packages add to our tables."""

from __future__ import annotations

import os
import sys
import warnings
from importlib.machinery import PathFinder
from typing import TypeVar

from nczarr_fsspec.errors import NCZarrWarning

T = TypeVar("T")
#: How the names of folders end that describe installed packages.
_METADATA = (".dist-info", "egg-info")


def added(group: str, kind: type[T]) -> tuple[T, ...]:
    """Find the rows that other packages add to a table, by the entry points of a group.

    Parameters
    ----------
    kind
        What each row has to be an instance of.

    Warns
    -----
    NCZarrWarning
        For each row that cannot be used: one package must not keep others from working.
    """
    if not _may_be(group):
        return ()
    from importlib.metadata import entry_points

    what = group.rpartition(".")[2].removesuffix("s")
    rows: list[T] = []
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            row = entry.load()
        except Exception as error:  # noqa: BLE001 - another package's
            problem = f"cannot be loaded ({error})"
        else:
            if isinstance(row, kind):
                rows.append(row)
                continue
            problem = f"is no `{kind.__name__}`"
        warnings.warn(
            f"{what} {entry.name!r} of {entry.value!r} {problem}", NCZarrWarning, stacklevel=2
        )
    return tuple(rows)


def _may_be(group: str) -> bool:
    """Tell whether an installed package may have entry points of a group.

    To import `importlib.metadata` takes longer than to open a file, and few have any.
    """
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if "importlib.metadata" in sys.modules or finders != [PathFinder]:
        return True
    for folder in sys.path:
        try:
            names = [name for name in os.listdir(folder or ".") if name.lower().endswith(_METADATA)]
        except FileNotFoundError:
            continue
        except OSError:  # a zip file, say
            return True
        for name in names:
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if group.encode() in file.read():
                        return True
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                return True
    return False
