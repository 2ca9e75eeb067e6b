"""Data layout messages (specification IV.A.2.i), versions 1 to 5."""

from __future__ import annotations

import math
from typing import Literal

from nczarr_xarray.formats.hdf5.binary import Cursor
from nczarr_xarray.formats.hdf5.objects import (
    Address,
    ChunkedLayout,
    CompactLayout,
    ContiguousLayout,
    Dataspace,
    Datatype,
    Layout,
    OtherLayout,
)

_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = range(4)
#: Bytes of a chunk before filters, up to layout version 4.
_LARGEST_CHUNK = (1 << 32) - 1
_INDEXES: dict[int, Literal["single", "implicit", "fixed", "extensible", "btree2"]] = {
    1: "single",
    2: "implicit",
    3: "fixed",
    4: "extensible",
    5: "btree2",
}
#: Bytes of the parameters of an index in the message, which the header of the index repeats.
_PARAMETERS = {"single": 0, "implicit": 0, "fixed": 1, "extensible": 5, "btree2": 6}


def decode_layout(cursor: Cursor, space: Dataspace, type_: Datatype) -> Layout:
    """Decode a layout.

    Parameters
    ----------
    space, type_
        Dataspace and datatype of the dataset, with which the layout must agree.

    Raises
    ------
    FormatError
        If it does not.
    """
    version = cursor.uint(1)
    size = math.prod(space.shape) * type_.size if space.shape is not None else 0
    if version in (1, 2):
        return _decode_old(cursor, space, type_, size)
    if version not in (3, 4, 5):
        raise cursor.error(f"has version {version}, known are 1 to 5")
    kind = cursor.uint(1)
    if kind == _COMPACT:
        return _compact(cursor, cursor.uint(2), size)
    if kind == _CONTIGUOUS:
        address, stored = cursor.address(), cursor.length()
        if address is not None and stored < size:
            raise cursor.error(f"{stored} bytes are stored, {size} are needed")
        return ContiguousLayout(address, size)
    if kind == _VIRTUAL:
        return OtherLayout("it is a virtual dataset", (cursor.address(), cursor.uint(4)))
    if kind != _CHUNKED:
        raise cursor.error(f"is of class {kind}, known are 0 to 3")
    if version > 3:
        return _decode_chunked(cursor, space, type_, version)
    rank, address = cursor.uint(1), cursor.address()
    return _with_tree(cursor, rank, address, space, type_)


def _decode_old(cursor: Cursor, space: Dataspace, type_: Datatype, size: int) -> Layout:
    rank, kind = cursor.uint(1), cursor.uint(1)
    cursor.take(5)
    address = None if kind == _COMPACT else cursor.address()
    if kind == _CHUNKED:
        return _with_tree(cursor, rank, address, space, type_)
    cursor.take(4 * rank)  # the shape, as in the dataspace
    if kind == _COMPACT:
        return _compact(cursor, cursor.uint(4), size)
    if kind == _CONTIGUOUS:
        return ContiguousLayout(address, size)
    raise cursor.error(f"is of class {kind}, known are 0 to 2")


def _with_tree(
    cursor: Cursor, rank: int, address: Address, space: Dataspace, type_: Datatype
) -> ChunkedLayout:
    """Return a chunked layout up to version 3, whose index is a version 1 B-tree."""
    shape = tuple(cursor.uint(4) for _ in range(rank))
    _check_chunks(cursor, shape, space, type_, _LARGEST_CHUNK)
    return ChunkedLayout(shape[:-1], shape[-1], "btree1", address)


def _compact(cursor: Cursor, stored: int, size: int) -> CompactLayout:
    if stored < size:
        raise cursor.error(f"{stored} bytes are stored, {size} are needed")
    return CompactLayout(cursor.take(stored)[:size])


def _decode_chunked(cursor: Cursor, space: Dataspace, type_: Datatype, version: int) -> Layout:
    """Return a chunked layout of version 4 or later, which states its kind of index."""
    flags, rank, width = cursor.uint(1), cursor.uint(1), cursor.uint(1)
    shape = tuple(cursor.uint(width) for _ in range(rank))
    code = cursor.uint(1)
    index = _INDEXES.get(code)
    if index is None:
        raise cursor.error(f"its chunk index is of type {code}, known are 1 to 5")
    size, mask = None, 0
    if index == "single" and flags & 0x02:
        size, mask = cursor.length(), cursor.uint(4)
    cursor.take(_PARAMETERS[index])
    address = cursor.address()
    _check_chunks(cursor, shape, space, type_, _LARGEST_CHUNK if version == 4 else math.inf)
    return ChunkedLayout(
        shape[:-1],
        shape[-1],
        index,
        address,
        single_size=size,
        single_mask=mask,
        unfiltered_edges=bool(flags & 0x01),
    )


def _check_chunks(
    cursor: Cursor, shape: tuple[int, ...], space: Dataspace, type_: Datatype, most: float
) -> None:
    """Raise `FormatError` for a chunk shape that contradicts the dataset or has too many bytes.

    Parameters
    ----------
    shape
        Of a chunk in elements, and the bytes of an element.
    most
        Bytes that a chunk may have before filters.
    """
    if space.shape is None or len(shape) != len(space.shape) + 1:
        raise cursor.error(f"chunks {shape[:-1]} for a dataset of shape {space.shape}")
    if not all(shape) or shape[-1] != type_.size:
        raise cursor.error(f"chunks {shape[:-1]} of elements of {shape[-1]} bytes")
    if math.prod(shape) > most:
        raise cursor.error(f"chunks of {math.prod(shape)} bytes")
