"""Attributes of an object (specification IV.A.2.m and IV.A.2.v), in its header or in a heap."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame, keep
from nczarr_xarray.formats.hdf5.datatypes import Datatype, decode_datatype
from nczarr_xarray.formats.hdf5.heaps import read_dense, resolve_vlen
from nczarr_xarray.formats.hdf5.messages import (
    Dataspace,
    SharedMessages,
    decode_dataspace,
    decode_dense,
    whole,
)
from nczarr_xarray.formats.hdf5.netcdf_types import TypeNames, bits_of, is_plain, value_type
from nczarr_xarray.formats.rounds import caught, together
from nczarr_xarray.model import NC_HIDDEN, Attribute, text_of


@dataclass(slots=True)  # not frozen, because that is slow to create: there are thousands
class H5Attribute:
    """An attribute with its value as stored (`data`; vlen elements are heap references)."""

    name: str
    type: Datatype
    space: Dataspace
    data: bytes | memoryview


# -- values --------------------------------------------------------------------------------------
# Values of attributes, as netCDF4-python shows them.


#: Attributes that hold structure of HDF5 and netCDF-C; `_NCProperties` is handled separately.
HIDDEN = NC_HIDDEN | {
    *("_NCProperties", "_ARRAY_DIMENSIONS", "_nczarr_superblock", "_nczarr_group"),
    *("_nczarr_array", "_nczarr_attr"),
}


def count_of(attribute: H5Attribute) -> int:
    """Return the number of elements of an attribute, 0 for a null dataspace.

    Raises
    ------
    FormatError
        If it has fewer bytes than its shape needs.
    """
    shape = attribute.space.shape
    count = 0 if shape is None else math.prod(shape)
    if count * attribute.type.size > len(attribute.data):
        raise FormatError(
            attribute.name,
            f"has {len(attribute.data)} bytes for {count} elements of {attribute.type.size}",
        )
    return count


@dataclass(frozen=True, slots=True)
class Sequences:
    """Elements of variable length: their stored bytes, their number, bytes of what they are of."""

    data: bytes | memoryview
    count: int
    size: int = 1


async def read_heap_values(
    frame: Frame, wanted: list[Sequences]
) -> list[list[bytes] | FormatError]:
    """Return the elements of variable length of many attributes, all read in one round.

    Returns
    -------
    For each attribute its elements' bytes, or why they cannot be read.
    """
    parts = [bytes(one.data[: one.count * (frame.offset_size + 8)]) for one in wanted]
    sizes = np.repeat([one.size for one in wanted], [one.count for one in wanted])
    everything = await caught(resolve_vlen(frame, b"".join(parts), sizes))
    if isinstance(everything, list):
        elements = iter(everything)
        return [list(itertools.islice(elements, one.count)) for one in wanted]
    # one is damaged: read them one by one to find it
    found = await together(
        caught(resolve_vlen(frame, part, np.full(one.count, one.size)))
        for part, one in zip(parts, wanted, strict=True)
    )
    return [one if isinstance(one, list) else FormatError(one.object, one.reason) for one in found]


def decode_attribute(
    attribute: H5Attribute, heap: list[bytes] | None, types: TypeNames
) -> Attribute | None:
    """Return an attribute as netCDF shows it; None if netCDF has no such type and hides it.

    Parameters
    ----------
    heap
        Its elements, if they are in the global heap.
    types
        Types of the file. Values of an enum that is not among them are not shown.

    Raises
    ------
    FormatError
        If it is damaged, or has a form that netCDF does not know.
    """
    name, type_ = attribute.name, attribute.type
    count = count_of(attribute)
    data = attribute.data
    if type_.kind == "vlen":
        if not type_.text:
            return None
        assert heap is not None
        return Attribute(name, "string", tuple(map(c_text, heap)))
    if type_.kind == "string":
        if attribute.space.shape in ((), None):
            return Attribute(name, "char", text_of(bytes(data[: count * type_.size])))
        texts = (bytes(data[i * type_.size : (i + 1) * type_.size]) for i in range(count))
        return Attribute(name, "string", tuple(map(c_text, texts)))
    if type_.kind in ("enum", "compound") and not types.knows(type_):
        return None
    value = value_type(type_)
    bits = None if is_plain(type_) or type_.kind != "integer" else bits_of(type_)
    if value is None or not (is_plain(type_) or bits):
        return None
    nc_type = "compound" if type_.kind == "compound" else value.nc_type
    if nc_type is None:
        return None
    numbers = np.frombuffer(data, value.stored, count)
    values = bits.values(numbers) if bits else numbers.astype(value.dtype.newbyteorder("="))
    if type_.kind == "compound":
        values = values.view(_with_strings(values.dtype))
    return Attribute(name, nc_type, values, types.enum(type_))


def _with_strings(dtype: np.dtype) -> np.dtype:
    """Return `dtype` with strings in place of arrays of characters, as netCDF4-python has them."""
    if dtype.fields is not None:
        fields = [dtype.fields[name] for name in dtype.names or ()]
        layout: Any = {
            "names": dtype.names,
            "formats": [_with_strings(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
        structure: np.dtype = np.dtype(layout)
        return structure
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        if base == np.dtype("S1"):
            return np.dtype((f"S{shape[-1]}", shape[:-1]))
        return np.dtype((_with_strings(base), shape))
    return dtype


def c_text(data: bytes) -> str:
    """Return text of type string, which ends at its first NUL."""
    return text_of(data.partition(b"\0")[0])


# -- attributes ----------------------------------------------------------------------------------


#: Types of B-tree records (by name, by order).
_RECORDS = (8, 9)
#: The first fields of records: heap identifier, flags of the message, order of creation.
_RECORD = Struct("<8sBI")
#: First fields of a message: version, flags, and bytes of name, datatype and dataspace.
_HEAD = Struct("<BB3H")
_IS_SHARED = 0x02
_DENSE = partial(decode_dense, order_size=2)
#: Flags of a message whose datatype, or dataspace, is elsewhere (since version 2).
_TYPE_SHARED, _SPACE_SHARED = 0x01, 0x02


class Attributes(NamedTuple):
    """Attributes in the order in which netCDF-C lists them, and why others are missing.

    A problem comes with the name of the attribute; None if that cannot be read either. `alone`
    tells whether the header alone has all of them.
    """

    found: dict[str, H5Attribute]
    problems: list[tuple[str | None, NCZarrError]]
    alone: bool = False


async def read_attributes(header: oh.Header, shared: SharedMessages) -> Attributes:
    """Read the attributes of an object; a damaged one is left out and named in `problems`."""
    problems: list[tuple[str | None, NCZarrError]] = []
    messages = [(one.body, one.order) for one in header.all(oh.ATTRIBUTE)]
    dense = None
    try:
        dense = await _read_dense(header)
    except NCZarrError as error:
        problems.append((None, error))
    messages += dense or []
    # Attributes that moved from the header into a heap have numbers there even if no order is
    # tracked. Others of such heaps have one number, and stay as they are: by hashes of names.
    messages.sort(key=itemgetter(1))
    known = await shared.find(body for body, _ in messages)
    bodies: list[bytes] = []
    for body, _ in messages:
        try:
            bodies.append(whole(body, known))
        except NCZarrError as error:
            problems.append((None, error))
    parts = list(_parts(bodies, header))
    known = await shared.find(parts)
    decoded, kept = header.frame.decoded, header.frame.kept(H5Attribute)
    attributes: dict[str, H5Attribute] = {}
    for body in bodies:
        name = None
        try:
            attribute = kept.get(body)
            if attribute is None:
                name, type_body, space_body, data = _split(body, header)
                what = f"{header.what}, attribute {name!r}"
                type_ = decoded(decode_datatype, whole(type_body, known), what)
                space = decoded(decode_dataspace, whole(space_body, known), what)
                size = math.prod(space.shape) * type_.size if space.shape is not None else 0
                if size > len(data):
                    reason = f"{len(data)} bytes of data, {size} are needed"
                    raise header.frame.error(what, reason)
                attribute = H5Attribute(name, type_, space, data[:size])
                if oh.Shared not in (type(type_body), type(space_body)):
                    keep(kept, body, attribute, len(body))
            attributes[attribute.name] = attribute
        except NCZarrError as error:
            problems.append((name, error))
    return Attributes(attributes, problems, dense is None and not parts and not problems)


async def _read_dense(header: oh.Header) -> list[tuple[oh.Body, int]] | None:
    """Return attribute messages of a heap, with their numbers in order of creation."""
    info = header.first(oh.ATTRIBUTE_INFO)
    storage = info and header.decoded(_DENSE, info, "attribute information")
    if not storage or storage.heap is None or storage.tree is None:
        return None
    what = f"{header.what}, attributes"
    heap, _, records = await read_dense(header.frame, storage.heap, storage.tree, _RECORDS, what)
    if records and len(records[0]) < _RECORD.size:
        raise header.frame.error(what, f"index records of {len(records[0])} bytes")
    fields = [_RECORD.unpack_from(record) for record in records]
    own = await heap.objects([id_ for id_, flags, _ in fields if not flags & _IS_SHARED])
    bodies = iter(own)
    return [
        (oh.Shared(oh.ATTRIBUTE, None, id_) if flags & _IS_SHARED else next(bodies), order)
        for id_, flags, order in fields
    ]


def _parts(messages: list[bytes], header: oh.Header) -> Iterator[oh.Body]:
    """Yield the datatypes and dataspaces of attribute messages, which may be elsewhere."""
    for body in messages:
        if body[:1] > b"\1" and body[1:2] > b"\0":  # version and flags
            with suppress(NCZarrError):  # the error is raised again when the message is decoded
                yield from _split(body, header)[1:3]


def _split(body: bytes, header: oh.Header) -> tuple[str, oh.Body, oh.Body, bytes]:
    """Take an attribute message apart, versions 1 to 3: name, datatype, dataspace, data."""
    if len(body) < _HEAD.size:
        raise header.frame.error(header.what, f"an attribute of {len(body)} bytes")
    version, flags, name_size, type_size, space_size = _HEAD.unpack_from(body)
    if version not in (1, 2, 3):
        reason = f"an attribute of version {version}, known are 1 to 3"
        raise header.frame.error(header.what, reason)
    padding = 7 if version == 1 else 0  # to a multiple of 8 bytes
    name_at = _HEAD.size + (version == 3)  # the name's character set: ASCII or UTF-8
    type_at = name_at + (name_size + padding & ~padding)
    space_at = type_at + (type_size + padding & ~padding)
    data_at = space_at + (space_size + padding & ~padding)
    if data_at > len(body):
        reason = f"an attribute ends after {len(body)} bytes, {data_at} were expected"
        raise header.frame.error(header.what, reason)
    name = body[name_at : name_at + name_size - 1].partition(b"\0")[0]
    text = name.decode("utf-8", "surrogateescape")
    type_ = body[type_at : type_at + type_size]
    space = body[space_at : space_at + space_size]
    data = body[data_at:]
    if version == 1 or not flags:
        return text, type_, space, data

    def elsewhere(part: bytes, type_: int) -> oh.Shared:
        what = f"{header.what}, attribute {text!r}"
        return oh.shared_location(Cursor(part, header.frame, what), type_)

    return (
        text,
        elsewhere(type_, oh.DATATYPE) if flags & _TYPE_SHARED else type_,
        elsewhere(space, oh.DATASPACE) if flags & _SPACE_SHARED else space,
        data,
    )
