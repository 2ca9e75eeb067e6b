"""Files by their names below what they have in common, so that they are found in another place."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from nczarr_fsspec.transport.recording import Record


def common_root(records: Sequence[Record]) -> str:
    """Return the longest URL at or below which all files are; that of the file if it is one."""
    common: list[str] = []
    for parts in zip(*(_place(record).split("/") for record in records), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return "/".join(common)


def names(records: Sequence[Record]) -> list[str]:
    """Return the name of each record's file below `common_root`; ``""`` if it is that itself."""
    root = common_root(records)
    found = [_place(record)[len(root) :].lstrip("/") for record in records]
    return [unquote(name) for name in found] if root.startswith("http") else found


def _place(record: Record) -> str:
    """Return a URL without what is masked anyway, the query, and without netCDF's fragment."""
    return record.url.partition("#")[0].partition("?")[0].rstrip("/")
