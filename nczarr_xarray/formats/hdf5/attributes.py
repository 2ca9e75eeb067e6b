"""Attributes of an object (specification IV.A.2.m and IV.A.2.v), in its header or in a heap."""

from __future__ import annotations

import math
from dataclasses import replace
from struct import Struct
from typing import NamedTuple

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.decoded import Decoded
from nczarr_xarray.formats.hdf5.fractal import read_dense
from nczarr_xarray.formats.hdf5.messages import decode_attribute_info
from nczarr_xarray.formats.hdf5.objects import H5Attribute
from nczarr_xarray.formats.hdf5.shared import SharedMessages

#: Types of B-tree records (by name, by order).
_RECORDS = (8, 9)
_HEAP_ID = 8
#: Bytes of a record up to the order of creation: heap identifier, flags, order.
_RECORD = 13
_IS_SHARED = 0x02
#: What a message begins with: version, flags, bytes of the name, the datatype and the dataspace.
_HEAD = Struct("<BB3H")

Body = memoryview | oh.Shared


class Attributes(NamedTuple):
    """Attributes in the order in which netCDF-C lists them, and why others are missing."""

    found: dict[str, H5Attribute]
    problems: list[NCZarrError]


class _Encoded(NamedTuple):
    """An attribute message, taken apart."""

    name: str
    type: Body
    space: Body
    data: memoryview
    order: int | None


async def read_attributes(header: oh.Header, shared: SharedMessages) -> Attributes:
    """Read the attributes of an object; what is damaged is left out and said in `problems`."""
    problems: list[NCZarrError] = []
    messages = [(one.body, one.order) for one in header.all(oh.ATTRIBUTE)]
    ordered = bool(messages) and all(order is not None for _, order in messages)
    dense: list[tuple[Body, int | None]] = []
    try:
        dense, keeps = await _read_dense(header)
        ordered = keeps if dense else ordered
        messages += dense
    except NCZarrError as error:
        problems.append(error)
    encoded: list[_Encoded] = []
    resolved = await _resolve(shared, [body for body, _ in messages])
    for (_, order), whole in zip(messages, resolved, strict=True):
        if isinstance(whole, NCZarrError):
            problems.append(whole)
            continue
        try:
            encoded.append(_split(whole, order, header))
        except NCZarrError as error:
            problems.append(error)
    if ordered:  # else netCDF-C takes them as they come, from a heap by the hashes of names
        encoded.sort(key=lambda one: one.order or 0)
    bodies = await _resolve(shared, [body for one in encoded for body in (one.type, one.space)])
    found: dict[str, H5Attribute] = {}
    for one, type_, space in zip(encoded, bodies[::2], bodies[1::2], strict=True):
        try:
            found[one.name] = _decode(one, type_, space, header, shared.decoded)
        except NCZarrError as error:
            problems.append(error)
    return Attributes(found, problems)


async def _read_dense(
    header: oh.Header,
) -> tuple[list[tuple[Body, int | None]], bool]:
    """Attribute messages of a heap with their order, and whether that is the order of creation."""
    info = header.first(oh.ATTRIBUTE_INFO)
    if info is None:
        return [], False
    storage = decode_attribute_info(header.cursor(info, "attribute information"))
    if storage.heap is None or storage.tree is None:
        return [], storage.ordered
    what = f"{header.what}, attributes"
    heap, _, records = await read_dense(header.frame, storage.heap, storage.tree, _RECORDS, what)
    if records and len(records[0]) < _RECORD:
        raise header.frame.error(what, f"index records of {len(records[0])} bytes")
    own = [record for record in records if not record[_HEAP_ID] & _IS_SHARED]
    bodies: list[Body] = list(await heap.objects([record[:_HEAP_ID] for record in own]))
    others = [record for record in records if record[_HEAP_ID] & _IS_SHARED]
    bodies += [oh.Shared(oh.ATTRIBUTE, None, bytes(record[:_HEAP_ID])) for record in others]
    orders = [
        int.from_bytes(record[_HEAP_ID + 1 : _RECORD], "little") if storage.ordered else None
        for record in own + others
    ]
    return list(zip(bodies, orders, strict=True)), storage.ordered


async def _resolve(shared: SharedMessages, bodies: list[Body]) -> list[memoryview | NCZarrError]:
    """The bytes of messages, wherever they are."""
    wanted = {body for body in bodies if isinstance(body, oh.Shared)}
    found = await shared.find(wanted) if wanted else {}
    return [found[body] if isinstance(body, oh.Shared) else body for body in bodies]


def _split(body: memoryview, order: int | None, header: oh.Header) -> _Encoded:
    """Take an attribute message apart, versions 1 to 3."""
    if len(body) < _HEAD.size:
        raise header.frame.error(header.what, f"an attribute of {len(body)} bytes")
    version, flags, *sizes = _HEAD.unpack_from(body)
    if version not in (1, 2, 3):
        reason = f"an attribute of version {version}, known are 1 to 3"
        raise header.frame.error(header.what, reason)
    at = _HEAD.size + (version == 3)  # the name's character set: ASCII or UTF-8
    fields = []
    for size in sizes:
        fields.append(body[at : at + size])
        at += size + (-size % 8 if version == 1 else 0)
    if at > len(body):
        reason = f"an attribute ends after {len(body)} bytes, {at} were expected"
        raise header.frame.error(header.what, reason)
    name = bytes(fields[0]).partition(b"\0")[0].decode("utf-8", "surrogateescape")
    type_: Body = fields[1]
    space: Body = fields[2]
    if version > 1 and flags & 3:
        what = _what(header, name)
        if flags & 1:
            type_ = oh.shared_location(Cursor(fields[1], header.frame, what), oh.DATATYPE)
        if flags & 2:
            space = oh.shared_location(Cursor(fields[2], header.frame, what), oh.DATASPACE)
    return _Encoded(name, type_, space, body[at:], order)


def _decode(
    encoded: _Encoded,
    type_body: memoryview | NCZarrError,
    space_body: memoryview | NCZarrError,
    header: oh.Header,
    decoded: Decoded,
) -> H5Attribute:
    if isinstance(type_body, NCZarrError):
        raise type_body
    if isinstance(space_body, NCZarrError):
        raise space_body
    what = _what(header, encoded.name)
    type_ = decoded.datatype(type_body, what)
    if isinstance(encoded.type, oh.Shared):
        type_ = replace(type_, committed=encoded.type.address)
    space = decoded.dataspace(space_body, what)
    size = math.prod(space.shape) * type_.size if space.shape is not None else 0
    if size > len(encoded.data):
        reason = f"{len(encoded.data)} bytes of data, {size} are needed"
        raise header.frame.error(what, reason)
    return H5Attribute(encoded.name, type_, space, bytes(encoded.data[:size]), encoded.order)


def _what(header: oh.Header, name: str) -> str:
    """The name of an attribute, for messages."""
    return f"{header.what}, attribute {name!r}"
