"""Profiles: the generation that is written, and its spelling of NCZarr's keys.

The reading half tries every spelling (`nczarr_xarray.formats.nczarr.spellings`);
here each generation has the one that its netCDF-C releases write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: A generation of NCZarr that can be written, or pure Zarr 2.
Generation = Literal["G2A", "G2L", "G2U", "v2"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The format in which a dataset is written.

    Parameters
    ----------
    generation
        ``"G2A"`` for netCDF-C 4.9.3 and later, ``"G2L"`` for 4.9.1 and 4.9.2,
        ``"G2U"`` for 4.8.1 and 4.9.0, ``"v2"`` for pure Zarr 2.
    array_dimensions
        Whether ``_ARRAY_DIMENSIONS`` are written (``mode=noxarray`` turns them off).
    portable
        Whether pure Zarr has only what every reader of Zarr 2 supports.
    virtual
        Whether pure Zarr is for zarr-python and for readers of kerchunk's references only.
    """

    generation: Generation
    array_dimensions: bool = True
    portable: bool = False
    virtual: bool = False

    @property
    def spelling(self) -> Spelling | None:
        """The names of NCZarr's keys; None for pure Zarr."""
        return SPELLINGS.get(self.generation)

    @property
    def keeps_json(self) -> bool:
        """Whether attributes may be any JSON: netCDF-C before 4.9.3 does not read all of it."""
        return self.generation in ("G2A", "v2")

    @property
    def bare_nan(self) -> bool:
        """Whether NaN and infinities are bare words, which JSON does not have, not quoted ones.

        4.9.0 crashes with a quoted one in an array (observed), and wrote bare ones. So does
        kerchunk, whose readers take them for numbers, and quoted ones for text.
        """
        return self.generation == "G2U" or self.virtual


@dataclass(frozen=True, slots=True)
class Spelling:
    """The places where one generation keeps its metadata, and their names.

    Parameters
    ----------
    superblock, group, array, attributes
        The keys of the four structures. That of the attributes is in ``.zattrs``.
    group_file, array_file
        The objects that the first two and the third are in.
    dimensions, arrays, references
        Member names inside of the group and array structures.
    char
        dtype of char, of variables and in the map of attribute types.
    """

    superblock: str
    group: str
    array: str
    attributes: str
    group_file: str
    array_file: str
    dimensions: str
    arrays: str
    references: str
    char: str


#: Pure Zarr 2; Zarr 3 states attributes likewise.
PURE = Profile("v2")
#: Pure Zarr 2 as views and references have it.
VIRTUAL = Profile("v2", virtual=True)

_LOWER = ("_nczarr_superblock", "_nczarr_group", "_nczarr_array", "_nczarr_attr")
_UPPER = ("_NCZARR_SUPERBLOCK", "_NCZARR_GROUP", "_NCZARR_ARRAY", "_NCZARR_ATTR")

SPELLINGS: dict[str, Spelling] = {
    "G2A": Spelling(
        *_LOWER, ".zattrs", ".zattrs", "dimensions", "arrays", "dimension_references", ">S1"
    ),
    "G2L": Spelling(*_LOWER, ".zgroup", ".zarray", "dims", "vars", "dimrefs", ">S1"),
    "G2U": Spelling(*_UPPER, ".zgroup", ".zarray", "dims", "vars", "dimrefs", "<U1"),
}

#: The generation that a release of netCDF-C, as users name it, can read.
COMPAT: dict[str, Generation] = {"4.9.3": "G2A", "4.9.2": "G2L", "4.8.1": "G2U"}
