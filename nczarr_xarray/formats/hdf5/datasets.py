"""Datasets and committed datatypes, from the messages of their object headers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.codecs.libhdf5 import lacks
from nczarr_xarray.codecs.registry import codec_of_filter
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.attributes import H5Attribute, read_attributes
from nczarr_xarray.formats.hdf5.binary import Address, Cursor, keep
from nczarr_xarray.formats.hdf5.datatypes import Datatype, decode_datatype
from nczarr_xarray.formats.hdf5.messages import (
    Dataspace,
    Filter,
    SharedMessages,
    decode_dataspace,
    decode_fill,
    decode_filters,
    decode_old_fill,
    whole,
)
from nczarr_xarray.formats.rounds import both
from nczarr_xarray.model import CodecConfig


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


T = TypeVar("T")

# -- filters -------------------------------------------------------------------------------------
# Filter pipelines of HDF5 (specification IV.A.2.l) as codecs of `nczarr_xarray.chunks`.
#
# Each filter becomes one codec, so that bit i of a chunk's filter mask belongs to codec i.


#: Names of registered filters that are no codecs here, for messages: the file may have none.
_NAMES = {
    305: "LZO",
    32008: "bitshuffle",
    32013: "ZFP",
    32017: "SZ",
    32018: "FCIDECOMP",
    32019: "JPEG",
    32024: "SZ3",
    32026: "Blosc2",
    32028: "FLAC/SPERR",
}


def codecs_of(
    filters: tuple[Filter, ...], dtype: np.dtype, chunk_shape: tuple[int, ...]
) -> tuple[CodecConfig, ...]:
    """Return the codecs of a pipeline, one for each filter.

    A filter that cannot be undone becomes a codec that raises an error for chunks to which it was
    applied: ``hdf5-wrong`` for impossible parameters, ``hdf5-missing`` for a filter that no
    installed package has.

    Parameters
    ----------
    filters
        In the order of encoding.
    dtype, chunk_shape
        Dtype and shape of the chunks before the first filter.
    """
    nbytes = math.prod(chunk_shape) * dtype.itemsize
    return tuple(_codec(one, nbytes) for one in filters)


def _codec(one: Filter, nbytes: int) -> CodecConfig:
    known = codec_of_filter(one.id)
    if known is not None and known.hdf5 is not None and known.hdf5.decodes:
        try:
            return {"id": known.id, **known.hdf5.settings(one.values)}
        except (IndexError, ValueError):
            reason = f"cannot have the parameters {one.values!r:.80}"
            return _refused("hdf5-wrong", one, reason)
    if not 0 < nbytes < 1 << 32:
        return _refused("hdf5-wrong", one, f"cannot be undone in chunks of {nbytes} bytes")
    if reason := lacks(one.id):
        return _refused("hdf5-missing", one, reason)
    return {"id": "hdf5", "filter": one.id, "values": list(one.values)}


def _refused(id_: str, one: Filter, reason: str) -> CodecConfig:
    return {"id": id_, "filter": one.id, "reason": f"its filter {name_of(one)} {reason}"}


def name_of(one: Filter) -> str:
    """Return number and name of a filter for messages: ``"32026 (Blosc2)"``."""
    known = codec_of_filter(one.id)
    name = one.name or (known.id.removeprefix("hdf5-") if known else _NAMES.get(one.id, ""))
    return f"{one.id} ({name:.60})" if name else str(one.id)


# -- layouts -------------------------------------------------------------------------------------
# Data layout messages (specification IV.A.2.i), versions 1 to 5.


_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = range(4)
#: Bytes of a chunk before filters, at most, up to layout version 4.
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
    if not 1 <= version <= 5:
        raise cursor.error(f"has version {version}, known are 1 to 5")
    size = math.prod(space.shape) * type_.size if space.shape is not None else 0
    old = version < 3
    rank = cursor.uint(1) if old else 0
    kind = cursor.uint(1)
    address: Address = None
    if old:
        cursor.take(5)
        address = None if kind == _COMPACT else cursor.address()
        cursor.take(0 if kind == _CHUNKED else 4 * rank)  # the shape, as in the dataspace
    if kind == _COMPACT:
        stored = cursor.uint(4 if old else 2)
        if stored < size:
            raise cursor.error(f"{stored} bytes are stored, {size} are needed")
        return CompactLayout(cursor.take(stored)[:size])
    if kind == _CONTIGUOUS:
        if not old:
            address, stored = cursor.address(), cursor.length()
            if address is not None and stored < size:
                raise cursor.error(f"{stored} bytes are stored, {size} are needed")
        return ContiguousLayout(address, size)
    if kind == _VIRTUAL and not old:
        return OtherLayout("it is a virtual dataset", (cursor.address(), cursor.uint(4)))
    if kind != _CHUNKED:
        raise cursor.error(f"is of class {kind}, known are 0 to {2 if old else 3}")
    if version > 3:
        layout = _with_index(cursor)
    else:  # the index is a version 1 B-tree
        if not old:
            rank, address = cursor.uint(1), cursor.address()
        shape = tuple(cursor.uint(4) for _ in range(rank))
        layout = ChunkedLayout(shape[:-1], (shape or (0,))[-1], "btree1", address)
    chunks, element_size = layout.chunk_shape, layout.element_size
    if space.shape is None or len(chunks) != len(space.shape):
        raise cursor.error(f"chunks {chunks} for a dataset of shape {space.shape}")
    if not all(chunks) or element_size != type_.size:
        raise cursor.error(f"chunks {chunks} of elements of {element_size} bytes")
    nbytes = math.prod(chunks) * element_size
    if version < 5 and nbytes > _LARGEST_CHUNK:
        raise cursor.error(f"chunks of {nbytes} bytes")
    return layout


def _with_index(cursor: Cursor) -> ChunkedLayout:
    """Decode a chunked layout of version 4 or later, which states its kind of index."""
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
    address, edges = cursor.address(), bool(flags & 0x01)
    element_size = (shape or (0,))[-1]
    return ChunkedLayout(shape[:-1], element_size, index, address, size, mask, edges)


# -- datasets ------------------------------------------------------------------------------------


_OF_DATASETS = (oh.DATASPACE, oh.DATATYPE, oh.OLD_FILL, oh.FILL, oh.EXTERNAL, oh.LAYOUT, oh.FILTERS)


async def read_dataset(header: oh.Header, shared: SharedMessages) -> H5Dataset | H5NamedType:
    """Read a dataset, or a committed datatype; its name is added later.

    Parameters
    ----------
    header
        It has a datatype. Without a dataspace, it is that of a committed one.
    shared
        Finds the messages that are stored elsewhere.

    Raises
    ------
    FormatError
        If the header lacks what is needed to read the data.
    """
    kept, key = header.frame.kept(H5Dataset), (header.address, header.messages)
    same: H5Dataset | None = kept.get(key)
    if same is not None:
        return same
    parts = [m for m in header.messages if m.type in _OF_DATASETS]
    finding = shared.find(m.body for m in parts)
    attributes = None
    if header.first(oh.DATASPACE):
        found, attributes = await both(finding, read_attributes(header, shared))
    else:
        found = await finding
    # of several messages of a type, the first one counts
    bodies = {m.type: m.body for m in reversed(parts)}
    frame = header.frame

    def body(type_: int) -> bytes | None:
        there = bodies.get(type_)
        return None if there is None else whole(there, found)

    def decode(function: Callable[[Cursor], T], stored: bytes | None, name: str) -> T:
        assert stored is not None  # or it is no dataset; see `tree.py`
        return frame.decoded(function, stored, f"{header.what}, {name}")

    type_ = decode(decode_datatype, body(oh.DATATYPE), "datatype")
    if attributes is None:
        return H5NamedType("", type_)
    space = decode(decode_dataspace, body(oh.DATASPACE), "dataspace")
    layout: Layout
    if oh.EXTERNAL in bodies:
        layout = OtherLayout("its data are in external files")
    elif (placed := body(oh.LAYOUT)) is not None:
        layout = decode_layout(Cursor(placed, frame, f"{header.what}, layout"), space, type_)
    else:
        raise frame.error(header.what, "it has no data layout")
    pipeline = body(oh.FILTERS)
    fill, how = body(oh.FILL), decode_fill
    if fill is None:
        fill, how = body(oh.OLD_FILL), decode_old_fill
    if fill is not None:
        fill = how(Cursor(fill, frame, f"{header.what}, fill value"))
    if fill is not None and len(fill) != type_.size:
        reason = f"a fill value of {len(fill)} bytes, elements of {type_.size}"
        raise frame.error(header.what, reason)
    filters = decode(decode_filters, pipeline, "filter pipeline") if pipeline else ()
    stored, problems = (type_, space, layout, fill, filters), tuple(attributes.problems)
    dataset = H5Dataset("", header.address, *stored, attributes.found, problems)
    if attributes.alone and oh.Shared not in [type(m.body) for m in parts]:
        keep(kept, key, dataset, sum(len(m.body) for m in header.messages))
    return dataset
