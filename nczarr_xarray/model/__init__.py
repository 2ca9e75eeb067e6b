"""The netCDF-4 data model that every format is read into.

Nothing here does I/O or knows a file format. A `Group` holds dimensions,
attributes, variables and groups; a `Variable` is a chunk grid with codecs
(`ChunkedArray`) seen through netCDF eyes: named dimensions, a netCDF type and
typed attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.model.arrays import Array as Array
from nczarr_xarray.model.arrays import ChunkedArray as ChunkedArray
from nczarr_xarray.model.arrays import ChunkIndex as ChunkIndex
from nczarr_xarray.model.arrays import ChunkTable as ChunkTable
from nczarr_xarray.model.arrays import CodecConfig as CodecConfig
from nczarr_xarray.model.arrays import Conversion as Conversion
from nczarr_xarray.model.arrays import FileChunks as FileChunks
from nczarr_xarray.model.arrays import FileStrides as FileStrides
from nczarr_xarray.model.arrays import JointSelections as JointSelections
from nczarr_xarray.model.arrays import LibraryArray as LibraryArray
from nczarr_xarray.model.arrays import Selections as Selections
from nczarr_xarray.model.arrays import box_of as box_of
from nczarr_xarray.model.arrays import grid_of as grid_of
from nczarr_xarray.model.arrays import position_of as position_of
from nczarr_xarray.model.fragments import FragmentArray as FragmentArray
from nczarr_xarray.model.fragments import FragmentMapping as FragmentMapping
from nczarr_xarray.model.fragments import FragmentOpener as FragmentOpener
from nczarr_xarray.model.fragments import FragmentPlace as FragmentPlace
from nczarr_xarray.model.fragments import Fragments as Fragments
from nczarr_xarray.model.fragments import Record as Record
from nczarr_xarray.model.fragments import assembled as assembled
from nczarr_xarray.model.fragments import borders as borders
from nczarr_xarray.model.fragments import in_a_row as in_a_row

#: netCDF type name -> numpy type; ``char`` is one byte, ``string`` has no fixed size.
NC_DTYPES: dict[str, np.dtype] = {
    "byte": np.dtype("i1"),
    "ubyte": np.dtype("u1"),
    "short": np.dtype("i2"),
    "ushort": np.dtype("u2"),
    "int": np.dtype("i4"),
    "uint": np.dtype("u4"),
    "int64": np.dtype("i8"),
    "uint64": np.dtype("u8"),
    "float": np.dtype("f4"),
    "double": np.dtype("f8"),
    "char": np.dtype("S1"),
    "string": np.dtype(object),
}

#: netCDF's names of types, by their numbers in files.
NC_NUMBERS = {
    1: "byte", 2: "char", 3: "short", 4: "int", 5: "float", 6: "double",
    7: "ubyte", 8: "ushort", 9: "uint", 10: "int64", 11: "uint64", 12: "string",
}  # fmt: skip

#: netCDF types of numbers, by numpy's code of the type without its byte order (``"i4"``).
NC_TYPES: dict[str, str] = {
    dtype.str[1:]: name for name, dtype in NC_DTYPES.items() if dtype.kind in "iuf"
}


def netcdf_size(dtype: np.dtype, *, text: bool = False) -> int:
    """Return netCDF-C's element size for shuffle: for strings, that of a pointer.

    netCDF-C writes 0, which means "do not shuffle" in numcodecs.

    Parameters
    ----------
    text
        Whether single bytes are strings, not characters.
    """
    return 8 if dtype.kind == "S" and (text or dtype.itemsize > 1) else dtype.itemsize


#: Attributes that netCDF-C hides or computes, in whatever format.
NC_HIDDEN = frozenset(
    {
        *("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "_Netcdf4Coordinates"),
        *("_Netcdf4Dimid", "_nc3_strict", "_Format", "_IsNetcdf4", "_SuperblockVersion", "_Codecs"),
    }
)

#: The fill values of netcdf.h, used by netCDF where the user chose none.
NC_DEFAULT_FILL: dict[str, int | float | str | bytes] = {
    "byte": -127,
    "ubyte": 255,
    "short": -32767,
    "ushort": 65535,
    "int": -2147483647,
    "uint": 4294967295,
    "int64": -9223372036854775806,
    "uint64": 18446744073709551614,
    "float": 9.969209968386869e36,
    "double": 9.969209968386869e36,
    "char": b"\0",
    "string": "",
}


@dataclass(frozen=True, slots=True)
class Dimension:
    """A named length. Its identity is `path`, not `name`: groups may reuse names.

    Parameters
    ----------
    name, size, unlimited
        As in netCDF; `size` is the current length, also of unlimited dimensions.
    group
        Path of the group that declares it (``"/"``, ``"/g1"``).
    """

    name: str
    size: int
    unlimited: bool = False
    group: str = "/"

    @property
    def path(self) -> str:
        """The fully qualified name, ``/g1/x``."""
        return join(self.group, self.name)


@dataclass(frozen=True, slots=True)
class EnumType:
    """Names of integers (netCDF's user-defined enum).

    Parameters
    ----------
    nc_type
        netCDF type name of the integers.
    group
        Path of the group that declares the type.
    """

    name: str
    members: Mapping[str, int]
    nc_type: str
    group: str = "/"


@dataclass(frozen=True, slots=True)
class NamedType:
    """A name of structures or sequences (netCDF's user-defined compound and vlen).

    Parameters
    ----------
    dtype
        Of the values, as of `Variable`.
    group
        Path of the group that declares the type.
    """

    name: str
    dtype: np.dtype
    group: str = "/"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A typed attribute.

    Parameters
    ----------
    type
        netCDF type name (`NC_DTYPES`), or "compound".
    value
        ``str`` for char, a tuple of ``str`` for string, otherwise a 1-D array
        with exactly the dtype of `type` (native byte order), of a compound with a
        structure. Text is that of `text_of`; that of char may hold NULs.
    enum
        What the numbers are called, if they have names.
    json
        The JSON text that documents of Zarr have for it, if netCDF's value does not say all of
        it: an object, null, true, a list of one.
    """

    name: str
    type: str
    value: str | tuple[str, ...] | np.ndarray
    enum: EnumType | None = None
    json: str | None = None


@dataclass(slots=True)
class Variable:
    """A variable: netCDF's view of an `Array`.

    Parameters
    ----------
    nc_type
        netCDF type name, or None for a Zarr type that netCDF does not have
        (bool, float16, complex, datetime64, unicode, ...).
    dtype
        Of the values a reader gets: `NC_DTYPES` with the stored byte order, object
        (of ``str``) for strings, `sequence_of` something for variable-length sequences.
    array
        The data; None if `error` is set and nothing is known of it. Its shape
        may differ from the variable's: what lies beyond the length of a dimension
        is not seen, what a dimension is longer than the array reads as `padding`.
    padding
        See `array`; None if the array has the shape of the variable.
    enum
        What the values are called, if they have names.
    named_type
        What the type is called, of structures and sequences.
    error
        Why the variable cannot be read, if so. Its `dimensions` may then be ().
    """

    name: str
    group: str
    dimensions: tuple[Dimension, ...]
    nc_type: str | None
    dtype: np.dtype
    attributes: dict[str, Attribute] = field(default_factory=dict)
    array: Array | None = None
    error: NCZarrError | None = None
    padding: Any = None
    enum: EnumType | None = None
    named_type: NamedType | None = None

    @property
    def path(self) -> str:
        """Group path and name, ``/g1/v``."""
        return join(self.group, self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Current lengths of the dimensions."""
        return tuple(dim.size for dim in self.dimensions)


@dataclass(slots=True)
class Group:
    """A group with everything it declares itself (nothing inherited)."""

    path: str = "/"
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    types: dict[str, EnumType] = field(default_factory=dict)
    named_types: dict[str, NamedType] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Last segment of the path; ``"/"`` for the root."""
        return self.path.rsplit("/", 1)[-1] or "/"

    def walk(self) -> Iterator[Group]:
        """Yield this group and all below it, parents first."""
        pending = [self]
        while pending:  # not recursive: groups may be nested deeper than Python calls
            group = pending.pop()
            yield group
            pending.extend(reversed(group.groups.values()))

    def all_variables(self) -> Iterator[Variable]:
        """Yield the variables of this group and of all below it, parents first."""
        for group in self.walk():
            yield from group.variables.values()

    def find(self, path: str) -> Group | None:
        """Return the group at an absolute `path`, seen from the root group."""
        group: Group | None = self
        for name in filter(None, path.split("/")):
            if group is None:
                return None
            group = group.groups.get(name)
        return group


class HarmlessError(FormatError):
    """Something odd in a dataset, for which nothing of it is left out."""


class AmbiguousNameError(HarmlessError):
    """One name for several dimensions of a group, which therefore have others here."""


class ChangedError(HarmlessError):
    """Something that a copy has in another form; the reason says in which."""


class UndecodableError(FormatError):
    """What decoding needs cannot be read: the variable can be read as it is stored only."""


#: What the objects of Zarr that hold metadata end in.
_DOCUMENT = re.compile(r"(^|/)(\.z(group|array|attrs)|zarr\.json)$")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One opened dataset.

    Parameters
    ----------
    generation
        ``"G1"``, ``"G2U"``, ``"G2L"``, ``"G2A"`` (NCZarr of netCDF-C 4.8.0,
        4.8.1/4.9.0, 4.9.1/4.9.2, 4.9.3 and later), ``"v2"`` (pure Zarr 2),
        ``"v3"`` (Zarr 3), ``"hdf5"``, a classic format, or what another package calls its own.
    writer
        Text of ``_NCProperties`` if netCDF-C wrote the dataset, else None.
    consolidated
        Whether the metadata came from one object that has all of them; None for one file.
    problems
        What was left out or repaired on the way, for warnings. Variables that
        cannot be read are not here: they have `Variable.error`.
    hidden
        What a file holds that netCDF's interface does not show, which a copy
        therefore lacks.
    documents
        Those of consolidated metadata by key, if a tree was read from them.
    unchecked
        Whether an array's own are to be compared with them when it is read.
    classic_model
        Whether a file of HDF5 says that it holds only what classic files can.
    """

    root: Group
    generation: str
    writer: str | None = None
    consolidated: bool | None = None
    problems: tuple[NCZarrError, ...] = ()
    hidden: tuple[NCZarrError, ...] = ()
    documents: Mapping[str, Any] | None = None
    unchecked: bool = False
    classic_model: bool = False

    def left_out(self, paths: Collection[str] | None = None) -> list[NCZarrError]:
        """Return the problems for which something is left out.

        Parameters
        ----------
        paths
            Of the variables and groups that are of interest; None for everything.
        """
        owners = None if paths is None else {path.strip("/") for path in paths}
        return [
            error
            for error in self.problems
            if not isinstance(error, HarmlessError)
            and (owners is None or _DOCUMENT.sub("", error.object).strip("/") in owners)
        ]


def nearness(group: str, seen_from: str) -> tuple[bool, int]:
    """Return a key that sorts the paths of groups: the nearest one that another group is in first.

    Groups that the other one, at `seen_from`, is not in come last.
    """
    return not is_below(seen_from, group), -len(group.rstrip("/"))


def text_of(data: bytes) -> str:
    """Return text as the model has it, from its bytes; bytes that are not UTF-8 become surrogates.

    So text of any encoding can be copied as it is (`bytes_of`). What goes to users or
    into other formats is made `readable` first.
    """
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Return the bytes that `text_of` made text of."""
    return text.encode("utf-8", "surrogateescape")


def readable(text: str, errors: str = "replace") -> str:
    """Return text of the model as valid Unicode.

    Parameters
    ----------
    errors
        What bytes that are not UTF-8 become: "replace" makes U+FFFD of them, as
        netCDF4-python does, "backslashreplace" keeps names apart that differ in them.
    """
    return text if text.isascii() else bytes_of(text).decode("utf-8", errors)


def mapped(change: Callable[[Any], Any], values: np.ndarray) -> np.ndarray:
    """Return the Python objects that a function makes of each element."""
    objects = np.empty(values.size, object)
    objects[:] = list(map(change, values.ravel().tolist()))
    return objects.reshape(values.shape)


def sequence_of(element: np.dtype) -> np.dtype:
    """Return the dtype of values that are 1-D arrays of `element`, each of a length of its own."""
    return np.dtype(object, metadata={"element_type": element})


def element_of(dtype: np.dtype) -> np.dtype | None:
    """Return the dtype of the elements of sequences; None if it is not `sequence_of` anything."""
    metadata: Mapping[str, Any] = dtype.metadata or {}
    return metadata.get("element_type")


def described(dtype: np.dtype) -> str:
    """Return a dtype of values in few words, for messages."""
    element = element_of(dtype)
    if element is not None:
        return f"sequences of {described(element)}"
    return f"structures of {', '.join(dtype.names)}" if dtype.names else str(dtype)


def join(group: str, name: str) -> str:
    """Join a group path and a name: ``("/", "x") -> "/x"``, ``("/g", "x") -> "/g/x"``."""
    return f"{group.rstrip('/')}/{name}"


def is_below(path: str, above: str) -> bool:
    """Tell whether the group at `path` is the one at `above`, or below it."""
    return f"{path.rstrip('/')}/".startswith(f"{above.rstrip('/')}/")
