"""The locations of metadata in each generation of NCZarr, as tables (``docs/generations.md``).

| generation | netCDF-C     | superblock, group, array, attribute types            |
|------------|--------------|------------------------------------------------------|
| G1         | 4.8.0        | objects of their own beside ``.z*``                  |
| G2U        | 4.8.1, 4.9.0 | upper-case keys inside ``.zgroup``, ``.zarray``      |
| G2L        | 4.9.1, 4.9.2 | lower-case keys in the same places                   |
| G2A        | 4.9.3 ...    | lower-case keys, all in ``.zattrs``                  |

Every look-up tries the places in order, so that files that mix generations (4.9.3
rewrites G2L files half way) are read as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number
from nczarr_xarray.formats.nczarr.zarray import length

#: (file, key inside it); a key of None means the whole document.
Location = tuple[str, str | None]

SUPERBLOCK: dict[str, Location] = {
    "G2A": (".zattrs", "_nczarr_superblock"),
    "G2L": (".zgroup", "_nczarr_superblock"),
    "G2U": (".zgroup", "_NCZARR_SUPERBLOCK"),
    "G1": (".nczarr", None),
}
GROUP: tuple[Location, ...] = (
    (".zattrs", "_nczarr_group"),
    (".zgroup", "_nczarr_group"),
    (".zgroup", "_NCZARR_GROUP"),
    (".nczgroup", None),
)
ARRAY: tuple[Location, ...] = (
    (".zattrs", "_nczarr_array"),
    (".zarray", "_nczarr_array"),
    (".zarray", "_NCZARR_ARRAY"),
    (".nczvar", None),
)
ATTRIBUTES: tuple[Location, ...] = (
    (".zattrs", "_nczarr_attr"),
    (".zattrs", "_NCZARR_ATTR"),
    (".nczattr", None),
)

#: Objects that a group or an array may consist of.
GROUP_FILES = (".zgroup", ".zattrs")
ARRAY_FILES = (".zarray", ".zattrs")
G1_GROUP_FILES = (*GROUP_FILES, ".nczgroup", ".nczattr")
G1_ARRAY_FILES = (*ARRAY_FILES, ".nczvar", ".nczattr")
ROOT_FILES = (*G1_GROUP_FILES, ".nczarr", ".zarray", "zarr.json")

#: Nesting of groups, at most; deeper ones are a loop of links, or hostile.
MAX_DEPTH = 100

#: The documents of one node by file name; absent files have no entry.
Documents = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class GroupLists:
    """The children of a group as NCZarr's group structure lists them.

    Parameters
    ----------
    dimensions
        Name -> (size, unlimited), in order of definition.
    """

    dimensions: dict[str, tuple[int, bool]]
    arrays: tuple[str, ...]
    groups: tuple[str, ...]


def detect(root: Documents) -> str | None:
    """Return the generation of a dataset, by its superblock; None for pure Zarr.

    Raises
    ------
    FormatError
        If a superblock is there but is not an object.
    """
    for generation, (file, key) in SUPERBLOCK.items():
        block = _at(root, file, key)
        if block is not None:
            if not isinstance(block, dict):
                raise FormatError(file, f"the superblock {key} is not a JSON object")
            return generation
    return None


def writer(root: Documents) -> str | None:
    """Return ``_NCProperties`` of a dataset that netCDF-C wrote, as NCZarr or Zarr; else None."""
    properties = _at(root, ".zattrs", "_NCProperties")
    return properties if isinstance(properties, str) and "nczarr=" in properties else None


@lru_cache  # called for every variable
def release(writer: str | None) -> tuple[int, ...] | None:
    """Return netCDF-C's release in ``_NCProperties``: ``(4, 9, 2)``; None if there is none."""
    match = re.search(r"netcdf=(\d{1,9})\.(\d{1,9})\.(\d{1,9})", writer or "")
    return tuple(map(int, match.groups())) if match else None


def group_lists(documents: Documents, path: str) -> GroupLists | None:
    """Return the group structure of the group at `path`; None if it has none.

    Raises
    ------
    FormatError
        If there is one and it is malformed.
    """
    structure, key = _first(documents, GROUP, path)
    if structure is None:
        return None
    if not isinstance(structure, dict):
        raise FormatError(key, "is not a JSON object")
    dimensions = _either(structure, "dimensions", "dims", {})
    if not isinstance(dimensions, dict):
        raise FormatError(key, "'dimensions' is not an object")
    return GroupLists(
        dimensions={name: dimension(name, value, key) for name, value in dimensions.items()},
        arrays=_unique(_names(_either(structure, "arrays", "vars", []), key, "arrays")),
        groups=_unique(_names(structure.get("groups", []), key, "groups")),
    )


def has_group_lists(documents: Documents) -> bool:
    """Tell whether a group has a group structure of NCZarr."""
    return _first(documents, GROUP, "")[0] is not None


def dimension_references(documents: Documents, path: str) -> tuple[str, ...] | None:
    """Return the fully qualified names of the dimensions of the array at `path`.

    None if NCZarr says nothing of it; FormatError if that is malformed. Scalars have none, marked
    as such or not.
    """
    structure, key = _first(documents, ARRAY, path)
    if structure is None:
        return None
    if not isinstance(structure, dict):
        raise FormatError(key, "is not a JSON object")
    references = _either(structure, "dimension_references", "dimrefs", [])
    return _names(references, key, "dimension_references")


def attribute_types(documents: Documents, path: str) -> Mapping[str, JSON]:
    """Return the ``types`` map of a node; empty if it has none (FormatError if malformed)."""
    structure, key = _first(documents, ATTRIBUTES, path)
    types = structure.get("types", {}) if isinstance(structure, dict) else structure
    if types is None:
        return {}
    if not isinstance(types, dict):
        raise FormatError(key, "the attribute types are not a JSON object")
    return types


def _at(documents: Documents, file: str, key: str | None) -> JSON:
    document = documents.get(file)
    if key is None:
        return document
    return document.get(key) if isinstance(document, dict) else None


def _first(documents: Documents, places: tuple[Location, ...], path: str) -> tuple[JSON, str]:
    """Return the first of `places` that is not empty, and its name for errors."""
    for file, key in places:
        found = _at(documents, file, key)
        if found is not None:
            name = f"{path}/{file}" if path else file
            return found, name if key is None else f"{name} {key}"
    return None, ""


def _either(structure: Mapping[str, JSON], name: str, old_name: str, default: JSON) -> JSON:
    return structure.get(name, structure.get(old_name, default))


def _names(values: JSON, key: str, member: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise FormatError(key, f"{member!r} is not an array of names")
    return tuple(str(v) for v in values)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def dimension(name: str, value: JSON, key: str) -> tuple[int, bool]:
    """Return the dimension of ``3`` or ``{"size": 5, "unlimited": 1}``.

    Length 0 means unlimited.
    """
    unlimited: JSON = Number(0)
    if isinstance(value, dict):
        unlimited = value.get("unlimited", unlimited)
        value = value.get("size")
    size = length(value, key, f"dimension {name}")
    return size, unlimited not in (Number(0), False, None) or size == 0


# -- what is written ---------------------------------------------------------------------------


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
