"""Attributes of an object (specification IV.A.2.m and IV.A.2.v), in its header or in a heap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.binary import Cursor
from nczarr_xarray.formats.hdf5.decoded import Decoded
from nczarr_xarray.formats.hdf5.messages import decode_attribute_info
from nczarr_xarray.formats.hdf5.objects import H5Attribute
from nczarr_xarray.formats.hdf5.shared_messages import Found, SharedMessages, whole

#: Types of B-tree records (by name, by order).
_RECORDS = (8, 9)
#: The first fields of records: heap identifier, flags of the message, order of creation.
_RECORD = Struct("<8sBI")
#: First fields of a message: version, flags, and bytes of name, datatype and dataspace.
_HEAD = Struct("<BB3H")
_IS_SHARED = 0x02
#: Flags of a message whose datatype, or dataspace, is elsewhere (since version 2).
_TYPE_SHARED, _SPACE_SHARED = 0x01, 0x02


class Attributes(NamedTuple):
    """Attributes in the order in which netCDF-C lists them, and why others are missing.

    A problem comes with the name of the attribute; None if that cannot be read either.
    """

    found: dict[str, H5Attribute]
    problems: list[tuple[str | None, NCZarrError]]


async def read_attributes(header: oh.Header, shared: SharedMessages) -> Attributes:
    """Read the attributes of an object; a damaged one is left out and named in `problems`."""
    problems: list[tuple[str | None, NCZarrError]] = []
    messages = [(one.body, one.order) for one in header.all(oh.ATTRIBUTE)]
    try:
        messages += await _read_dense(header)
    except NCZarrError as error:
        problems.append((None, error))
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
    known = await shared.find(_parts(bodies, header))
    attributes: dict[str, H5Attribute] = {}
    for body in bodies:
        name = None
        try:
            parts = _split(body, header)
            name = parts[0]
            attributes[name] = _decode(*parts, header, shared.decoded, known)
        except NCZarrError as error:
            problems.append((name, error))
    return Attributes(attributes, problems)


async def _read_dense(header: oh.Header) -> list[tuple[oh.Body, int]]:
    """Return attribute messages of a heap, with their numbers in order of creation."""
    info = header.first(oh.ATTRIBUTE_INFO)
    if info is None:
        return []
    storage = decode_attribute_info(header.cursor(info, "attribute information"))
    if storage.heap is None or storage.tree is None:
        return []
    from nczarr_xarray.formats.hdf5.fractal import read_dense

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
        return oh.shared_location(Cursor(part, header.frame, _what(header, text)), type_)

    return (
        text,
        elsewhere(type_, oh.DATATYPE) if flags & _TYPE_SHARED else type_,
        elsewhere(space, oh.DATASPACE) if flags & _SPACE_SHARED else space,
        data,
    )


def _decode(
    name: str,
    type_body: oh.Body,
    space_body: oh.Body,
    data: bytes,
    header: oh.Header,
    decoded: Decoded,
    known: Found,
) -> H5Attribute:
    """Decode the parts of an attribute message, which may be among the shared messages `known`."""
    what = _what(header, name)
    type_ = decoded.datatype(whole(type_body, known), what)
    space = decoded.dataspace(whole(space_body, known), what)
    size = math.prod(space.shape) * type_.size if space.shape is not None else 0
    if size > len(data):
        raise header.frame.error(what, f"{len(data)} bytes of data, {size} are needed")
    return H5Attribute(name, type_, space, data[:size])


def _what(header: oh.Header, name: str) -> str:
    """Return the name of an attribute for messages."""
    return f"{header.what}, attribute {name!r}"
