"""What a format is, and what it gets of a dataset."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import KeyStore, RemoteStore
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import Hierarchy

if TYPE_CHECKING:
    from nczarr_xarray.formats.alike import MetadataPattern


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
