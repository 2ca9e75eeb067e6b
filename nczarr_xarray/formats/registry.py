"""The table of formats: a row for each, other packages' among them.

A new format is a row of `nczarr_xarray.formats.builtin`, or an entry point of another package that
names an object which has what `Format` describes. `docs/extending.md` shows one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_xarray.formats.builtin import FORMATS
from nczarr_xarray.formats.format import SNIFFED, Format, PatternFormat, Source
from nczarr_xarray.formats.objects import ReadRound
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.formats.rounds import read_some
from nczarr_xarray.model import Hierarchy
from nczarr_xarray.plugins import added

if TYPE_CHECKING:
    from nczarr_xarray.formats.alike import HierarchyPattern

#: Entry points of this group are rows (`Format`).
GROUP = "nczarr_xarray.formats"


@cache
def formats() -> tuple[Format, ...]:
    """Find all formats, in the order in which they are tried: those of other packages first."""
    # the protocol is a type as others are, which mypy does not see
    return (*added(GROUP, Format), *FORMATS)  # type: ignore[type-abstract]


async def read_hierarchy(
    source: Source, options: OpenOptions, after: Format | None = None
) -> Hierarchy:
    """Read the metadata of a dataset, of whatever format it is.

    Parameters
    ----------
    after
        Try the formats behind this one only.

    Raises
    ------
    NCZarrError
        If the dataset is of no known format, or its metadata cannot be read.
    """
    rows = formats()
    if after is not None:
        rows = rows[rows.index(after) + 1 :]
    if isinstance(source.data, ByteSource):
        return await (await _of_file(source, rows)).read(source, options)
    *others, last = (row for row in rows if row.marks)
    if others:  # the last one asks for its objects together with what it needs besides
        marks = tuple(dict.fromkeys(mark for row in others for mark in row.marks))
        answer = await ReadRound(marks)
        found = zip(marks, answer.objects, strict=True)
        names = frozenset(mark for mark, data in found if isinstance(data, bytes))
        for row in others:
            if names.intersection(row.marks) and row.sniff(b"", names):
                return await row.read(source, options)
    return await last.read(source, options)


async def read_pattern(source: Source, options: OpenOptions) -> HierarchyPattern | None:
    """Read the metadata of a file, and the bytes that they were read from.

    Returns
    -------
    None if files of its format are never alike, or this one is like no other.

    Raises
    ------
    FormatError
        If the file is of no known format.
    """
    row = await _of_file(source, formats())
    return await row.read_pattern(source, options) if isinstance(row, PatternFormat) else None


async def _of_file(source: Source, rows: Sequence[Format]) -> Format:
    """Return the format of a file."""
    start = bytes(await read_some(0, SNIFFED, least=0))
    for row in rows:
        if not row.marks and row.sniff(start, ()):
            return row
    raise FormatError(source.url, f"is of no known format; its first bytes are {start[:8]!r}")
