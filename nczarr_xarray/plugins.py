"""Rows that other packages add to our tables."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import TypeVar

from nczarr_fsspec.errors import NCZarrWarning

T = TypeVar("T")


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
