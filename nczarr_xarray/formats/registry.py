"""The table of formats: a row for each, other packages' among them.

A new format is a row of `nczarr_xarray.formats.builtin`, or an entry point of another package that
names an object which has what `Format` describes. `docs/extending.md` shows one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes
from nczarr_xarray.formats.format import SNIFFED, Format, PatternFormat, Source
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.formats.rounds import ReadRound, collection_paused, read_some
from nczarr_xarray.model import Hierarchy
from nczarr_xarray.plugins import added

if TYPE_CHECKING:
    from nczarr_xarray.formats.alike import HierarchyPattern


# -- builtin -------------------------------------------------------------------------------------
# The formats that this package reads itself; each is imported when a dataset of it is opened.


class Classic:
    """Classic netCDF: CDF-1, CDF-2 and CDF-5."""

    name = "classic"
    marks: Collection[str] = ()

    def sniff(self, start: bytes, names: Collection[str]) -> bool:
        return start.startswith(b"CDF")

    async def read(self, source: Source, options: OpenOptions) -> Hierarchy:
        from nczarr_xarray.formats.classic.hierarchy import read_hierarchy

        return await read_hierarchy(source.url, source.size, options.path)

    async def read_pattern(self, source: Source, options: OpenOptions) -> HierarchyPattern | None:
        from nczarr_xarray.formats.classic.alike import read_pattern

        return await read_pattern(source.url, source.size, options.path)


class HDF5:
    """HDF5, netCDF-4 among it."""

    name = "hdf5"
    marks: Collection[str] = ()

    def sniff(self, start: bytes, names: Collection[str]) -> bool:
        return True  # anything may stand before the superblock

    async def read(self, source: Source, options: OpenOptions) -> Hierarchy:
        from nczarr_xarray.formats.hdf5.netcdf import read_hierarchy

        extent = partial(_extent_of, source.data) if isinstance(source.data, LocalBytes) else None
        path, tree, only = options.path, options.tree, options.only
        return await read_hierarchy(source.url, source.size, path, tree, extent, only)

    async def read_pattern(self, source: Source, options: OpenOptions) -> HierarchyPattern | None:
        from nczarr_xarray.formats.hdf5.alike import read_pattern

        path, tree, only = options.path, options.tree, options.only
        return await read_pattern(source.url, source.size, path, only, tree=tree)


def _extent_of(source: LocalBytes, path: str) -> tuple[int, ...]:
    """Return the shape of a virtual dataset, of which few files have one."""
    from nczarr_xarray.formats.hdf5.fallback import extent_of

    return extent_of(source, path)


class Zarr:
    """NCZarr of all generations, Zarr 2 and Zarr 3, which only their documents tell apart."""

    name = "zarr"
    marks: Collection[str] = (".zgroup", ".zattrs", ".nczarr", ".zmetadata", "zarr.json")

    def sniff(self, start: bytes, names: Collection[str]) -> bool:
        return any(name in names for name in self.marks)

    async def read(self, source: Source, options: OpenOptions) -> Hierarchy:
        from nczarr_xarray.formats.nczarr.build import Naming, build
        from nczarr_xarray.formats.nczarr.documents import WalkOptions
        from nczarr_xarray.formats.nczarr.walk import walk

        consolidated = options.consolidated
        required = consolidated is True  # the mode word asks for them, and does without
        if consolidated is None and "consolidated" in source.mode:
            consolidated = True
        pure = "zarr" in source.mode
        asked = WalkOptions(
            options.path, options.tree, pure, consolidated, required, remote=source.remote
        )
        nodes = await walk(asked, source.url)
        naming = Naming(
            options.anonymous_dimension_prefix, "noxarray" not in source.mode, options.dropped
        )
        if nodes.generation == "v3":
            from nczarr_xarray.formats.zarr3.read import read_hierarchy

            return read_hierarchy(
                source.store,
                options.path,
                naming,
                tree=options.tree,
                consolidated=consolidated,
                required=required,
            )
        with collection_paused():
            mask = options.use_zarr_fill_value_as_mask
            hierarchy = build(nodes, naming, pure=pure, fill_is_mask=mask)
        if nodes.consolidated is None:
            return hierarchy
        unchecked = consolidated is None and not nodes.complete
        return replace(hierarchy, documents=nodes.consolidated.documents, unchecked=unchecked)


#: In the order in which they are tried; the last one of each kind takes what is left.
FORMATS: tuple[Format, ...] = (Classic(), HDF5(), Zarr())


# -- registry ------------------------------------------------------------------------------------


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
