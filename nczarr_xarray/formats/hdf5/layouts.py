"""Data layout messages (specification IV.A.2.i), versions 1 to 5."""

from __future__ import annotations

import math
from typing import Literal

from nczarr_xarray.formats.hdf5.binary import Cursor
from nczarr_xarray.formats.hdf5.objects import (
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
#: The parameters of each index in the message, with their numbers of bytes.
_PARAMETERS = {
    "fixed": {"page_bits": 1},
    "extensible": {
        "max_bits": 1,
        "index_elements": 1,
        "min_pointers": 1,
        "min_elements": 1,
        "page_bits": 1,
    },
    "btree2": {"node_size": 4, "split_percent": 1, "merge_percent": 1},
}


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
    shape = tuple(cursor.uint(4) for _ in range(rank))
    return _chunked(cursor, shape, space, type_, ChunkedLayout((), 0, "btree1", address))


def _decode_old(cursor: Cursor, space: Dataspace, type_: Datatype, size: int) -> Layout:
    rank, kind = cursor.uint(1), cursor.uint(1)
    cursor.take(5)
    address = None if kind == _COMPACT else cursor.address()
    shape = tuple(cursor.uint(4) for _ in range(rank))
    if kind == _COMPACT:
        return _compact(cursor, cursor.uint(4), size)
    if kind == _CONTIGUOUS:
        return ContiguousLayout(address, size)
    if kind != _CHUNKED:
        raise cursor.error(f"is of class {kind}, known are 0 to 2")
    return _chunked(cursor, shape, space, type_, ChunkedLayout((), 0, "btree1", address))


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
    parameters = {name: cursor.uint(n) for name, n in _PARAMETERS.get(index, {}).items()}
    layout = ChunkedLayout(
        (),
        0,
        index,
        cursor.address(),
        single_size=size,
        single_mask=mask,
        unfiltered_edges=bool(flags & 0x01),
        parameters=parameters,
        wide=version > 4,
    )
    return _chunked(cursor, shape, space, type_, layout)


def _chunked(
    cursor: Cursor,
    shape: tuple[int, ...],
    space: Dataspace,
    type_: Datatype,
    layout: ChunkedLayout,
) -> ChunkedLayout:
    """Return `layout` with a chunk shape, whose last number is the size of an element."""
    if space.shape is None or len(shape) != len(space.shape) + 1:
        raise cursor.error(f"chunks {shape[:-1]} for a dataset of shape {space.shape}")
    if not all(shape) or shape[-1] != type_.size:
        raise cursor.error(f"chunks {shape[:-1]} of elements of {shape[-1]} bytes")
    if not layout.wide and math.prod(shape) > _LARGEST_CHUNK:
        raise cursor.error(f"chunks of {math.prod(shape)} bytes")
    return ChunkedLayout(
        shape[:-1],
        shape[-1],
        layout.index,
        layout.address,
        layout.single_size,
        layout.single_mask,
        layout.unfiltered_edges,
        layout.parameters,
        layout.wide,
    )
