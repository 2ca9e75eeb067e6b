"""Packages besides this one: those that a protocol needs, and those that add something."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import TypeVar

from nczarr_fsspec.errors import NCZarrWarning

T = TypeVar("T")

_S3 = "'nczarr-xarray[s3]'"
_REMOTE = "'nczarr-xarray[remote]'"
#: For all other protocols, fsspec itself names the package; of SFTP and HDFS, not how to get it.
_INSTALL = {
    **dict.fromkeys(("http", "https"), _REMOTE),
    **dict.fromkeys(("s3", "s3a", "gs3"), _S3),
    **dict.fromkeys(("gs", "gcs"), "'nczarr-xarray[gcs]'"),
    **dict.fromkeys(("abfs", "abfss", "az"), "'nczarr-xarray[azure]'"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hdfs": "pyarrow",
}


def missing_package(protocol: str | None, error: ImportError, shown: str = "") -> ImportError:
    """Turn fsspec's error about a missing package into one that says what to install.

    Parameters
    ----------
    protocol
        The one whose package is missing: the innermost of a chain.
    shown
        Names the target.
    """
    reason = f"{shown}: {error}" if shown else str(error)
    install = _INSTALL.get(protocol or "")
    if install is not None and "pip install" not in reason:
        reason = f"{reason}: pip install {install}"
    return ImportError(reason)


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
