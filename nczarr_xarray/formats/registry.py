"""What a format is, what may be asked of one, and the table of them: a row for each.

A new format is a row here, or an entry point of another package that names an object which has
what `Format` describes. `docs/extending.md` shows one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from nczarr_fsspec.errors import FormatError, URLError
from nczarr_fsspec.keystore import KeyStore, RemoteStore
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes
from nczarr_xarray.formats.rounds import ReadRound, collection_paused, read_some
from nczarr_xarray.model import Hierarchy
from nczarr_xarray.plugins import added

if TYPE_CHECKING:
    from nczarr_fsspec.address_policy import AddressPolicy, Allow
    from nczarr_xarray.formats.alike import MetadataPattern


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How to open a dataset.

    Parameters
    ----------
    group, tree, storage_options, consolidated, index_cache
        See `nczarr_xarray.open_hierarchy`.
    use_zarr_fill_value_as_mask
        See `nczarr_xarray.backend.entrypoint.NCZarrBackendEntrypoint`.
    anonymous_dimension_prefix
        See `nczarr_xarray.formats.nczarr.build.Naming`.
    replace
        See `nczarr_fsspec.address_policy.AddressPolicy.of`.
    allow
        See `nczarr_fsspec.address_policy.AddressPolicy.of`.
    depth
        How many aggregations the dataset is in.
    only
        The only variable of the group that is wanted, of which the names and the further
        length of dimensions do not matter. A format may return more.
    dropped
        Names of variables that are not wanted in any group, but read all the same: others may be
        understood by them.

    Raises
    ------
    URLError
        If the value of an option makes no sense.
    """

    group: str | None = None
    tree: bool = True
    storage_options: Mapping[str, Any] | None = None
    consolidated: bool | None = None
    use_zarr_fill_value_as_mask: bool | None = None
    anonymous_dimension_prefix: str = "_Anonymous_Dim_"
    index_cache: str | os.PathLike[str] | None = None
    replace: Mapping[str, str] | None = None
    allow: Allow = None
    depth: int = 0
    only: str | None = None
    dropped: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not (self.group is None or isinstance(self.group, str)):
            raise URLError("group", f"must be a string or None, not {self.group!r}")
        given = self.storage_options
        if not (given is None or isinstance(given, Mapping)):  # not shown, as it may be a secret
            raise URLError("storage_options", f"must be a dict, not {type(given).__name__}")
        for option in ("use_zarr_fill_value_as_mask", "consolidated"):
            value = getattr(self, option)
            if not (value is None or isinstance(value, (bool, np.bool_))):
                raise URLError(option, f"must be True, False or None, not {value!r:.80}")
        prefix = self.anonymous_dimension_prefix
        if not isinstance(prefix, str):
            raise URLError("anonymous_dimension_prefix", f"must be a string, not {prefix!r}")
        folder = self.index_cache
        if not (folder is None or isinstance(folder, (str, os.PathLike))):
            raise URLError("index_cache", f"must be the path of a folder, not {folder!r}")

    @property
    def path(self) -> str:
        """The group wanted, without outer slashes; ``""`` for the root."""
        return (self.group or "").strip("/")

    @property
    def folder(self) -> Path | None:
        """The folder of `index_cache`."""
        return None if self.index_cache is None else Path(self.index_cache).expanduser()

    def policy(self, target: object, opened: object = None) -> AddressPolicy:
        """Return which of the addresses in a dataset may be opened, and what they mean.

        Parameters
        ----------
        target
            What the caller opens.
        opened
            The store or the file of it.
        """
        from nczarr_fsspec.address_policy import AddressPolicy  # most datasets have none
        from nczarr_fsspec.keystore import OnLoop

        source = getattr(opened, "source", opened)
        return AddressPolicy.of(
            target,
            replace=self.replace,
            allow=self.allow,
            storage_options=self.storage_options,
            led=source.led if isinstance(source, OnLoop) else "",
        )


#: What opens all of a dataset that needs no options.
EVERYTHING = OpenOptions()


# -- options -----------------------------------------------------------------------------------


#: How many bytes at the start of a file formats are told by.
SNIFFED = 512


@dataclass(slots=True)
class Source:
    """What a format gets to recognise and read a dataset.

    Attributes
    ----------
    url
        How messages name it.
    data
        The bytes of a file, or the objects of a tree: for libraries that read by themselves.
    mode
        The mode words of the target's fragment.
    """

    url: str
    data: ByteSource | KeyStore
    mode: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """Bytes of a file."""
        assert isinstance(self.data, ByteSource)
        return self.data.size

    @property
    def store(self) -> KeyStore:
        """The objects of a tree."""
        assert isinstance(self.data, KeyStore)
        return self.data

    @property
    def remote(self) -> bool:
        """Whether waiting for an object of a tree is dear."""
        return isinstance(self.data, RemoteStore)


@runtime_checkable
class Format(Protocol):
    """Recognizes the datasets of one format, and reads their metadata into the model.

    Attributes
    ----------
    name
        For messages.
    marks
        Objects at the root of a tree, of which datasets of this format have one or more; empty
        if they are single files.
    """

    name: str
    marks: Collection[str]

    def sniff(self, start: bytes, names: Collection[str]) -> bool:
        """Tell a dataset by the first `SNIFFED` bytes of a file, or by what there is of `marks`."""

    async def read(self, source: Source, options: OpenOptions) -> Hierarchy:
        """Read the metadata of what `options` ask for, without any I/O.

        The coroutine awaits bytes of a file (`nczarr_xarray.formats.rounds`) or objects of a tree
        (`nczarr_xarray.formats.rounds.ReadRound`). It may await `read_hierarchy` with itself as
        `after`, and change what the formats behind it read. Raises `NCZarrError`.
        """


@runtime_checkable
class PatternFormat(Format, Protocol):
    """A format of single files that says which bytes it read, so that files can be alike."""

    async def read_pattern(self, source: Source, options: OpenOptions) -> MetadataPattern | None:
        """Do as `read` does, and return with the metadata the bytes that they were read from.

        Returns
        -------
        None if the metadata depend on other bytes, too, or were not read without errors.
        """


# -- generations ---------------------------------------------------------------------------------
# What the formats and generations of datasets are called.


#: The words for each `nczarr_xarray.model.Hierarchy.generation`, with the releases of netCDF-C
#: that write it.
GENERATIONS = {
    "G1": "NCZarr, generation G1 (netCDF-C 4.8.0)",
    "G2U": "NCZarr, generation G2U (netCDF-C 4.8.1 and 4.9.0)",
    "G2L": "NCZarr, generation G2L (netCDF-C 4.9.1 and 4.9.2)",
    "G2A": "NCZarr, generation G2A (netCDF-C 4.9.3 and later)",
    "v2": "Zarr, version 2 (no NCZarr metadata)",
    "v3": "Zarr, version 3",
    "hdf5": "HDF5, as netCDF-4",
    "CDF-1": "netCDF classic (CDF-1)",
    "CDF-2": "netCDF 64-bit offset (CDF-2)",
    "CDF-5": "netCDF 64-bit data (CDF-5)",
}
#: The generations of NCZarr; all of Zarr 2; all of Zarr.
NCZARR = ("G1", "G2U", "G2L", "G2A")
ZARR2 = (*NCZARR, "v2")
ZARR = (*ZARR2, "v3")


def check_is_zarr(hierarchy: Hierarchy, url: str) -> None:
    """Raise `FormatError` if a tree is of another package's format, and its objects not Zarr's."""
    if hierarchy.generation not in ZARR:
        reason = f"is of the format {hierarchy.generation!r}, not of Zarr: write elsewhere, or use "
        raise FormatError(url, f"{reason}a copy made by nczarr copy")


def describes_array(key: str, document: bytes) -> bool:
    """Tell whether an object is the metadata of an array; of Zarr 3, a damaged one is not."""
    name = key.rpartition("/")[2]
    if name != "zarr.json":
        return name == ".zarray"
    try:
        return bool(json.loads(document)["node_type"] == "array")
    except (ValueError, LookupError, TypeError):
        return False


# -- rows ----------------------------------------------------------------------------------------
# The formats that this package reads itself; each is imported when a dataset of it is opened.


class Classic:
    """Classic netCDF: CDF-1, CDF-2 and CDF-5."""

    name = "classic"
    marks: Collection[str] = ()

    def sniff(self, start: bytes, names: Collection[str]) -> bool:
        return start.startswith(b"CDF")

    async def read(self, source: Source, options: OpenOptions) -> Hierarchy:
        from nczarr_xarray.formats.classic import read_hierarchy

        return await read_hierarchy(source.url, source.size, options.path)

    async def read_pattern(self, source: Source, options: OpenOptions) -> MetadataPattern | None:
        from nczarr_xarray.formats.alike import read_classic_pattern

        return await read_classic_pattern(source.url, source.size, options.path)


class HDF5:
    """HDF5, netCDF-4 among it."""

    name = "hdf5"
    marks: Collection[str] = ()

    def sniff(self, start: bytes, names: Collection[str]) -> bool:
        return True  # anything may stand before the superblock

    async def read(self, source: Source, options: OpenOptions) -> Hierarchy:
        from nczarr_xarray.formats.hdf5.netcdf import read_hierarchy

        extent, head, data = None, b"", source.data
        if isinstance(data, LocalBytes):
            extent, head = partial(_extent_of, data), data.head
        path, tree, only = options.path, options.tree, options.only
        return await read_hierarchy(source.url, source.size, path, tree, extent, only, head=head)

    async def read_pattern(self, source: Source, options: OpenOptions) -> MetadataPattern | None:
        from nczarr_xarray.formats.alike import read_hdf5_pattern

        path, tree, only = options.path, options.tree, options.only
        return await read_hdf5_pattern(source.url, source.size, path, only, tree=tree)


def _extent_of(source: LocalBytes, path: str) -> tuple[int, ...]:
    """Return the shape of a virtual dataset, of which few files have one."""
    from nczarr_xarray.formats.hdf5.through_h5py import extent_of

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

            return read_hierarchy(source.store, naming, asked)
        with collection_paused():
            mask = options.use_zarr_fill_value_as_mask
            hierarchy = build(nodes, naming, pure=pure, fill_is_mask=mask)
        if nodes.consolidated is None:
            return hierarchy
        unchecked = consolidated is None and not nodes.complete
        return replace(hierarchy, documents=nodes.consolidated.documents, unchecked=unchecked)


#: In the order in which they are tried; the last one of each kind takes what is left.
FORMATS: tuple[Format, ...] = (Classic(), HDF5(), Zarr())


# -- table ---------------------------------------------------------------------------------------


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


async def read_pattern(source: Source, options: OpenOptions) -> MetadataPattern | None:
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
