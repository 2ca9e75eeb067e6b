"""The metadata of an HDF5 file in HDF5's own terms, not yet in netCDF's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from nczarr_fsspec.errors import NCZarrError

#: Dimensions that HDF5 allows.
MOST_DIMENSIONS = 32
#: An address of HDF5, relative to the base address; None where the file says "undefined".
Address: TypeAlias = "int | None"


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a compound type, which begins `offset` bytes behind the beginning of that."""

    name: str
    offset: int
    type: Datatype


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype (specification IV.A.2.d).

    Parameters
    ----------
    kind
        The class.
    size
        Bytes of one element as stored.
    numpy
        The equal of numpy, with its byte order: integers, IEEE floats (also two
        bytes), ``S<size>`` for fixed strings, ``V<size>`` for opaque, references
        and variable-length types, a structure for compounds of such, the base's
        for enums, a sub-array for arrays. None if numpy has no equal.
    base
        Base type of an enum, a vlen or an array.
    members
        Fields of a compound.
    enum
        Names of an enum, each with its value.
    shape
        Shape of an array.
    text
        Whether a vlen is a string.
    tag
        Tag of an opaque type.
    encoded
        For numbers in a format that numpy lacks: the message itself.
    """

    kind: Literal[
        "integer", "float", "time", "string", "bitfield", "opaque", "compound",
        "reference", "enum", "vlen", "array", "complex", "unknown",
    ]  # fmt: skip
    size: int
    numpy: np.dtype | None = None
    base: Datatype | None = None
    members: tuple[Member, ...] = ()
    enum: tuple[tuple[str, int], ...] = ()
    shape: tuple[int, ...] = ()
    text: bool = False
    tag: str = ""
    encoded: bytes = b""


@dataclass(frozen=True, slots=True)
class Dataspace:
    """A dataspace: `shape` is None for a null one, ``()`` for a scalar.

    `maxshape` has None where a dimension has no limit.
    """

    shape: tuple[int, ...] | None
    maxshape: tuple[int | None, ...] = ()


@dataclass(slots=True)  # not frozen, because that is slow to create: there are thousands
class H5Attribute:
    """An attribute with its value as stored (`data`; vlen elements are heap references)."""

    name: str
    type: Datatype
    space: Dataspace
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a pipeline, in the order of encoding."""

    id: int
    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompactLayout:
    """The data are in the object header."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ContiguousLayout:
    """The data are at `address`, or nothing has been written (None)."""

    address: Address
    size: int


@dataclass(frozen=True, slots=True)
class ChunkedLayout:
    """The data are in chunks that an index finds.

    Parameters
    ----------
    chunk_shape
        In elements, without the dimension for the element size.
    element_size
        In bytes.
    index
        Which kind of index.
    address
        Address of the index; of the chunk itself for "single"; None if nothing has been written.
    single_size, single_mask
        Stored size and filter mask of a filtered single chunk.
    unfiltered_edges
        Whether chunks that reach over the edge of the dataset are stored
        unfiltered (flag 1 of layout version 4).
    """

    chunk_shape: tuple[int, ...]
    element_size: int
    index: Literal["btree1", "single", "implicit", "fixed", "extensible", "btree2"]
    address: Address
    single_size: int | None = None
    single_mask: int = 0
    unfiltered_edges: bool = False


@dataclass(frozen=True, slots=True)
class OtherLayout:
    """Data in external files, or a virtual dataset: not read by the parser here.

    A virtual dataset is described by an object of a global heap, at the address
    and with the index `mappings`.
    """

    reason: str
    mappings: tuple[Address, int] | None = None


Layout: TypeAlias = CompactLayout | ContiguousLayout | ChunkedLayout | OtherLayout


@dataclass(slots=True)
class H5Dataset:
    """A dataset.

    Parameters
    ----------
    address
        Address of its object header, which identifies it.
    fill
        Bytes of one element; None where the file defines no fill value (zeros are read).
    problems
        Errors about attributes that could not be understood, with their names (None: not known).
    """

    name: str
    address: int
    type: Datatype
    space: Dataspace
    layout: Layout
    fill: bytes | None
    filters: tuple[Filter, ...]
    attributes: dict[str, H5Attribute]
    problems: tuple[tuple[str | None, NCZarrError], ...]


@dataclass(slots=True)
class H5NamedType:
    """A committed datatype."""

    name: str
    type: Datatype


@dataclass(slots=True)
class H5Group:
    """A group. `members` are in the order netCDF-C lists them: of creation if kept, else of name.

    A member that cannot be read, or a link that leads nowhere, is its error.
    `loaded` is False for a group that was not asked for: then it has no members.
    """

    name: str
    address: int
    attributes: dict[str, H5Attribute]
    loaded: bool
    problems: tuple[NCZarrError, ...]
    members: dict[str, H5Group | H5Dataset | H5NamedType | NCZarrError] = field(
        default_factory=dict
    )
