"""Datatype messages (specification IV.A.2.d), versions 1 to 5."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nczarr_xarray.formats.hdf5.binary import MOST_DIMENSIONS, Cursor


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


#: Nesting of types, at most; libhdf5 has no limit, but deeper ones are not in use.
_DEEPEST = 32
_NEWEST = 5
#: Bit offset, precision, places and sizes of exponent and mantissa, and bias of IEEE numbers.
_IEEE = {
    2: (0, 16, 10, 5, 0, 10, 15),
    4: (0, 32, 23, 8, 0, 23, 127),
    8: (0, 64, 52, 11, 0, 52, 1023),
}
#: Paddings of strings: they end with NUL, or are padded with NULs or spaces.
_PADDINGS = (0, 1, 2)


class _Head(NamedTuple):
    """The fields that every datatype begins with (except its class), and the depth of nesting."""

    bits: int
    size: int
    version: int
    depth: int

    @property
    def order(self) -> str:
        """The byte order, for numpy."""
        return ">" if self.bits & 1 else "<"


class _UnknownTypeError(Exception):
    """An unknown class or version: the bytes that follow cannot be parsed either."""


def decode_datatype(cursor: Cursor) -> Datatype:
    """Decode one datatype.

    Returns
    -------
    The type; of kind "unknown" if it is, or contains, a type that the
    specification did not have when this was written.

    Raises
    ------
    FormatError
        If it contradicts itself.
    """
    start = cursor.position
    try:
        return _decode(cursor, 0)
    except _UnknownTypeError:
        cursor.position = start + 4
        return Datatype("unknown", cursor.uint(4))


def _decode(cursor: Cursor, depth: int) -> Datatype:
    if depth > _DEEPEST:
        raise cursor.error(f"types within types, more than {_DEEPEST} deep")
    first, bits, size = cursor.uint(1), cursor.uint(3), cursor.uint(4)
    version = first >> 4
    if version > _NEWEST:
        raise _UnknownTypeError
    if not version or not size:
        raise cursor.error(f"a datatype of version {version} and {size} bytes")
    head = _Head(bits, size, version, depth)
    match first & 0x0F:
        case 0:
            start, sign = cursor.position - 8, "i" if bits & 8 else "u"
            if _integer_bits(cursor, size):
                return Datatype("integer", size, _dtype(f"{head.order}{sign}{size}"))
            return Datatype("integer", size, encoded=cursor.data[start : cursor.position])
        case 1:
            return _float(cursor, head)
        case 2:
            cursor.take(2)  # precision
            return Datatype("time", size)
        case 3:
            _check_padding(cursor, bits & 0x0F)
            return Datatype("string", size, _dtype(f"S{size}"))
        case 4:
            dtype = _dtype(f"{head.order}u{size}") if _integer_bits(cursor, size) else None
            return Datatype("bitfield", size, dtype)
        case 5:
            tag = cursor.take(bits & 0xFF).split(b"\0")[0].decode("utf-8", "replace")
            return Datatype("opaque", size, _dtype(f"V{size}"), tag=tag)
        case 6:
            return _compound(cursor, head)
        case 7:
            return Datatype("reference", size, _dtype(f"V{size}"))
        case 8:
            return _enum(cursor, head)
        case 9:
            return _vlen(cursor, head)
        case 10:
            return _array(cursor, head)
        case 11:
            return _complex(cursor, head)
    raise _UnknownTypeError


def _integer_bits(cursor: Cursor, size: int) -> bool:
    """Tell whether every bit of an integer counts, and numpy has integers of its size."""
    offset, precision = cursor.uint(2), cursor.uint(2)
    if not 0 < precision <= 8 * size - offset:
        raise cursor.error(f"{precision} bits from {offset} in an integer of {size} bytes")
    return offset == 0 and precision == 8 * size and size in (1, 2, 4, 8)


def _float(cursor: Cursor, head: _Head) -> Datatype:
    start, size = cursor.position - 8, head.size
    fields = tuple(cursor.uint(width) for width in (2, 2, 1, 1, 1, 1, 4))
    sign, leading, vax = head.bits >> 8 & 0xFF, head.bits >> 4 & 3, head.bits & 0x40
    if fields == _IEEE.get(size) and sign == 8 * size - 1 and leading == 2 and not vax:
        return Datatype("float", size, _dtype(f"{head.order}f{size}"))
    offset, precision, exponent, exponent_bits, mantissa, mantissa_bits, _ = fields
    ends = (offset + precision, exponent + exponent_bits, mantissa + mantissa_bits, sign + 1)
    if max(ends) > 8 * size or not (exponent_bits and mantissa_bits) or leading > 2:
        raise cursor.error(f"the bits {fields} in a float of {size} bytes")
    return Datatype("float", size, encoded=cursor.data[start : cursor.position])


def _check_padding(cursor: Cursor, code: int) -> None:
    if code not in _PADDINGS:
        raise cursor.error(f"strings with a padding of type {code}")


def _compound(cursor: Cursor, head: _Head) -> Datatype:
    size, version = head.size, head.version
    offset_size = (size.bit_length() + 7) // 8 if version >= 3 else 4
    members: list[Member] = []
    for _ in range(head.bits & 0xFFFF):
        name = _name(cursor, padded=version < 3)
        offset = cursor.uint(offset_size)
        shape: tuple[int, ...] = ()
        if version == 1:  # a field could be an array; there was no such type yet
            rank = cursor.uint(1)
            cursor.take(11)
            lengths = tuple(cursor.uint(4) for _ in range(4))
            if rank > len(lengths):
                raise cursor.error(f"a field {name!r} of {rank} dimensions, at most 4 are possible")
            shape = lengths[:rank]
        type_ = _decode(cursor, head.depth + 1)
        if shape:
            type_ = _array_of(cursor, type_, shape, type_.size * math.prod(shape))
        if offset + type_.size > size:
            raise cursor.error(f"field {name!r} ends behind its compound type of {size} bytes")
        members.append(Member(name, offset, type_))
    if len({member.name for member in members}) < len(members) or not members:
        raise cursor.error("a compound type without fields, or with two of one name")
    return Datatype("compound", size, _structure(members, size), members=tuple(members))


def _structure(members: list[Member], size: int) -> np.dtype | None:
    formats = [member.type.numpy for member in members]
    if any(found is None for found in formats):  # numpy takes None for float64
        return None
    names = [member.name for member in members]
    offsets = [member.offset for member in members]
    dtype = _dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    # numpy makes up names for fields that have none
    return dtype if dtype is not None and list(dtype.names or ()) == names else None


def _enum(cursor: Cursor, head: _Head) -> Datatype:
    base = _decode(cursor, head.depth + 1)
    if base.kind != "integer" or base.size != head.size:
        raise cursor.error(f"an enum of {head.size} bytes on a {base.kind} of {base.size}")
    count = head.bits & 0xFFFF
    names = [_name(cursor, padded=head.version < 3) for _ in range(count)]
    stored = cursor.take(count * head.size)
    if base.numpy is None:
        return Datatype("enum", head.size, None, base)
    values: list[int] = np.frombuffer(stored, base.numpy).tolist()
    named = tuple(zip(names, values, strict=True))
    return Datatype("enum", head.size, base.numpy, base, enum=named)


def _vlen(cursor: Cursor, head: _Head) -> Datatype:
    base = _decode(cursor, head.depth + 1)
    size, expected = head.size, 8 + cursor.frame.offset_size
    if size != expected:
        raise cursor.error(f"a variable-length type of {size} bytes, {expected} are needed")
    dtype = _dtype(f"V{size}")
    if head.bits & 0x0F != 1:
        return Datatype("vlen", size, dtype, base)
    _check_padding(cursor, head.bits >> 4 & 0x0F)
    return Datatype("vlen", size, dtype, base, text=True)


def _array(cursor: Cursor, head: _Head) -> Datatype:
    rank = cursor.uint(1)
    if head.version < 3:
        cursor.take(3)
    if not 0 < rank <= MOST_DIMENSIONS:
        raise cursor.error(f"an array type of {rank} dimensions")
    shape = tuple(cursor.uint(4) for _ in range(rank))
    if head.version < 3:
        cursor.take(4 * rank)  # a permutation, never used
    return _array_of(cursor, _decode(cursor, head.depth + 1), shape, head.size)


def _array_of(cursor: Cursor, base: Datatype, shape: tuple[int, ...], size: int) -> Datatype:
    if not size or math.prod(shape) * base.size != size:
        raise cursor.error(f"an array type {shape} of {size} bytes, with elements of {base.size}")
    dtype = None if base.numpy is None else _dtype((base.numpy, shape))
    return Datatype("array", size, dtype, base, shape=shape)


def _complex(cursor: Cursor, head: _Head) -> Datatype:
    base = _decode(cursor, head.depth + 1)
    if base.kind != "float" or 2 * base.size != head.size:
        raise cursor.error(f"a complex type of {head.size} bytes on a {base.kind} of {base.size}")
    dtype = None
    if base.numpy is not None and head.size in (8, 16):
        dtype = np.dtype(f"{base.numpy.byteorder}c{head.size}")
    return Datatype("complex", head.size, dtype, base)


def _name(cursor: Cursor, padded: bool) -> str:
    """Return a name that ends with NUL; in older versions it is padded to a multiple of 8 bytes."""
    rest, end, length = b"", -1, 64
    while end < 0 and len(rest) < cursor.remaining:
        rest = cursor.data[cursor.position : cursor.position + length]
        end = rest.find(b"\0")
        length *= 8
    if end < 0:
        raise cursor.error("a name has no end")
    cursor.take((end + 8) // 8 * 8 if padded else end + 1)
    return rest[:end].decode("utf-8", "surrogateescape")


def _dtype(spec: Any) -> np.dtype | None:
    """Return the numpy type of a specification; None if numpy has none of that size."""
    try:
        found: np.dtype = np.dtype(spec)
    except (TypeError, ValueError, OverflowError, MemoryError):
        return None
    return found
