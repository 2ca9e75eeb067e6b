"""NetCDF's types for HDF5's datatypes, and the values of stored elements.

Source: netCDF-C 4.10.1 and netCDF4-python, observed (tests/xarray/formats/test_hdf5_corpus.py).
Values are those of netCDF4-python, if it has any: text and sequences are objects, structures have
the layout of C on this machine.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.libhdf5 import convert_numbers
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.datatypes import Datatype
from nczarr_xarray.formats.hdf5.heaps import resolve_vlen
from nczarr_xarray.formats.rounds import together
from nczarr_xarray.model import NC_TYPES, EnumType, NamedType, sequence_of

#: Classes without a netCDF type; datasets and attributes of them are hidden.
INVISIBLE = frozenset({"reference", "bitfield", "array", "time", "unknown"})
_NUMBERS = frozenset({"integer", "float"})
#: Bytes of the widest integers of numpy, and of the widest floats of any machine.
_WIDEST, _WIDEST_FLOAT = 8, 16


@dataclass(frozen=True, slots=True)
class ValueType:
    """The types of a dataset's elements, stored and as netCDF shows them.

    Parameters
    ----------
    nc_type
        netCDF type name; None where netCDF's Python interface has no scalar type for it.
    stored
        dtype of the stored elements.
    dtype
        Dtype of the values: see `nczarr_xarray.model.Variable`.
    enum
        The members, of enums.
    named
        The name of the type, of structures and sequences.
    """

    nc_type: str | None
    stored: np.dtype
    dtype: np.dtype
    enum: EnumType | None = None
    named: NamedType | None = None


def value_type(type_: Datatype, enum: EnumType | None = None) -> ValueType | None:
    """Return how netCDF shows elements of a datatype; None if it does not (`INVISIBLE`).

    Parameters
    ----------
    enum
        The netCDF type, if the datatype is an enum.
    """
    if type_.numpy is not None and type_.kind in _NUMBERS:
        return ValueType(NC_TYPES.get(type_.numpy.str[1:]), type_.numpy, type_.numpy)
    stored = None if type_.kind in INVISIBLE else stored_dtype(type_)
    values = value_dtype(type_)
    if stored is None or values is None:
        return None
    if type_.kind == "string":
        if type_.size == 1:
            return ValueType("char", stored, stored)
        return ValueType("string", stored, np.dtype(object))
    if type_.kind == "vlen":
        return ValueType("string" if type_.text else None, stored, values)
    if type_.kind == "enum":
        if stored.kind not in "iu":
            return None
        # netCDF keeps byte orders of numbers only
        return ValueType(NC_TYPES.get(stored.str[1:]), stored, stored.newbyteorder("="), enum)
    if type_.numpy is not None and type_.kind != "compound":
        return ValueType(NC_TYPES.get(stored.str[1:]), stored, stored)
    nc_type = NC_TYPES.get(values.str[1:]) if type_.kind in _NUMBERS else None
    return ValueType(nc_type, stored, values)


def stored_dtype(type_: Datatype) -> np.dtype | None:
    """Return the dtype of stored elements; None if there is none.

    Parts that numpy does not have are bytes in it.
    """
    try:
        if type_.kind == "compound":
            formats = [stored_dtype(member.type) for member in type_.members]
            if any(one is None for one in formats):
                return None
            return np.dtype(
                {
                    "names": [member.name for member in type_.members],
                    "formats": formats,
                    "offsets": [member.offset for member in type_.members],
                    "itemsize": type_.size,
                }
            )
        if type_.kind == "array" and type_.base is not None:
            base = stored_dtype(type_.base)
            return None if base is None else np.dtype((base, type_.shape))
        return type_.numpy if type_.numpy is not None else np.dtype(f"V{type_.size}")
    except (TypeError, ValueError, OverflowError, MemoryError):  # numpy has none that large
        return None


def value_dtype(type_: Datatype) -> np.dtype | None:
    """Return the native dtype of values in structures and sequences; None if there is none.

    Text of fixed size remains bytes there, as netCDF has it.
    """
    base = None if type_.base is None else value_dtype(type_.base)
    if type_.kind == "compound":
        return _structure(type_, [value_dtype(member.type) for member in type_.members])
    if type_.kind == "array":
        return None if base is None else np.dtype((base, type_.shape))
    if type_.kind == "vlen":
        if type_.text:
            return np.dtype(object)
        return None if base is None else sequence_of(base)
    if type_.kind in ("reference", "time", "unknown"):
        return None
    if type_.numpy is not None:
        return type_.numpy.newbyteorder("=")
    if type_.kind == "float" and type_.size <= _WIDEST_FLOAT:
        # as in h5py: the smallest format that can hold them
        return np.dtype("f4" if type_.size <= 4 else "f8" if type_.size <= 8 else np.longdouble)
    if type_.kind == "integer" and type_.size <= _WIDEST:
        return bits_of(type_).dtype
    return None


class Bits(NamedTuple):
    """Where the bits of an integer are that does not fill its bytes."""

    big: bool
    signed: bool
    offset: int
    precision: int

    @property
    def dtype(self) -> np.dtype:
        """The smallest type that holds such integers, as netCDF has it."""
        size = next(size for size in (1, 2, 4, 8) if 8 * size >= self.precision)
        return np.dtype(f"{'i' if self.signed else 'u'}{size}")

    def values(self, stored: np.ndarray) -> np.ndarray:
        """Return the integers in stored elements (dtype ``V<n>``, or one of numpy's).

        Not by libhdf5: of big-endian ones as long as the result it loses the sign (2.0, observed).
        """
        rows = np.frombuffer(stored.tobytes(), np.uint8).reshape(stored.size, stored.itemsize)
        wide = np.zeros((stored.size, _WIDEST), np.uint8)
        wide[:, : stored.itemsize] = rows[:, ::-1] if self.big else rows
        above = np.uint64(8 * _WIDEST - self.precision)
        bits = wide.view("<u8").astype("u8").reshape(stored.shape) >> np.uint64(self.offset)
        bits <<= above  # what is beside them is not part of the number
        return (bits.view("i8") >> above.view("i8") if self.signed else bits >> above).astype(
            self.dtype
        )


def bits_of(type_: Datatype) -> Bits:
    """Return where the bits of an integer are (specification IV.A.2.d)."""
    offset, precision = struct.unpack_from("<HH", type_.encoded, 8)
    return Bits(bool(type_.encoded[1] & 1), bool(type_.encoded[1] & 8), offset, precision)


def _structure(type_: Datatype, formats: list[np.dtype | None]) -> np.dtype | None:
    """Return a structure with the layout of C on this machine; None if there is none."""
    names = [member.name for member in type_.members]
    if any(one is None for one in formats) or not all(names):  # not `in`: float64 == None
        return None
    try:
        return np.dtype({"names": names, "formats": formats}, align=True)
    except (ValueError, OverflowError, MemoryError):
        return None


def is_plain(type_: Datatype) -> bool:
    """Tell whether elements need no conversion, apart from a change of layout."""
    if type_.kind == "compound":
        return all(is_plain(member.type) for member in type_.members)
    if type_.kind == "array" and type_.base is not None:
        return is_plain(type_.base)
    return type_.kind != "vlen" and type_.numpy is not None


class TypeNames:
    """The user-defined types of a file, as netCDF-C knows them.

    Types are compared as in memory: by their members, not by byte order or
    place of definition. Types without a name are numbered, and types of the root group.
    """

    def __init__(self) -> None:
        #: by their form in memory; None for types that netCDF4-python leaves out
        self._types: dict[Hashable, EnumType | NamedType | None] = {}
        self._anonymous = 0

    def add(self, type_: Datatype, name: str, group: str) -> EnumType | NamedType | None:
        """Add a named type of the group at a path; return it as netCDF4-python shows it."""
        made = _named(type_, name, group)
        self._types.setdefault(_in_memory(type_), made)
        return made

    def note(self, type_: Datatype) -> EnumType | NamedType | None:
        """Add the type of a dataset; return it as netCDF4-python shows it.

        Datasets must come in netCDF-C's order, after all named types.
        """
        if type_.text or type_.kind not in ("enum", "compound", "opaque", "array", "vlen"):
            return None
        key = _in_memory(type_)
        if key not in self._types:
            self._anonymous += 1
            name = f"_Anonymous{type_.kind.capitalize()}{self._anonymous}"
            self._types[key] = _named(type_, name, "/")
        return self._types[key]

    def knows(self, type_: Datatype) -> bool:
        """Tell whether the type is among the named ones."""
        return _in_memory(type_) in self._types

    def enum(self, type_: Datatype) -> EnumType | None:
        """Return the enum of netCDF for a type; None if there is none."""
        found = self._types.get(_in_memory(type_)) if type_.kind == "enum" else None
        return found if isinstance(found, EnumType) else None


def _named(type_: Datatype, name: str, group: str) -> EnumType | NamedType | None:
    """Return an enum, structure or sequence under a name; None if the type is none of these."""
    if type_.kind in ("compound", "vlen"):
        values = value_dtype(type_)
        return None if values is None else NamedType(name, values, group)
    stored = stored_dtype(type_) if type_.kind == "enum" else None
    if stored is None or stored.kind not in "iu":
        return None
    return EnumType(name, dict(type_.enum), NC_TYPES[stored.str[1:]], group)


def _in_memory(type_: Datatype) -> Hashable:
    """Return what is equal for types that are equal in memory."""
    base = None if type_.base is None else _in_memory(type_.base)
    fields = tuple((member.name, _in_memory(member.type)) for member in type_.members)
    number = None
    if type_.kind in _NUMBERS and type_.numpy is not None:
        number = type_.numpy.newbyteorder("=").str
    size = None if type_.kind == "compound" else type_.size
    names = tuple(sorted(type_.enum))
    return (type_.kind, size, number, base, fields, names, type_.shape, type_.tag)


# -- values ----------------------------------------------------------------------------------------


#: The first two bits of a continuation byte in UTF-8.
_CONTINUES, _MASK = 0x80, 0xC0


@dataclass(frozen=True, slots=True)
class Values:
    """`nczarr_xarray.model.Conversion` of text, and of every type that numpy does not have.

    Parameters
    ----------
    path
        Path of the variable, for messages.
    frame
        Frame of the file.
    type
        Type of the elements.
    errors
        As in `decode_texts`.

    Raises
    ------
    FormatError
        If they are damaged.
    """

    path: str
    frame: Frame
    type: Datatype
    errors: str = "strict"

    def exact(self) -> Values:
        """See `nczarr_xarray.model.Conversion`."""
        return replace(self, errors="surrogateescape")

    @property
    def needs_libhdf5(self) -> bool:
        """Whether there are floats that numpy lacks."""
        return _has_odd_floats(self.type)

    async def __call__(self, stored: np.ndarray) -> np.ndarray:
        """Return values; global heaps are read in one round, nested sequences in more."""
        if self.type.kind == "string":  # (in structures it remains bytes)
            texts = decode_texts(stored.ravel().tolist(), self.path, self.errors)
            return np.fromiter(texts, object, len(texts)).reshape(stored.shape)
        return await self._convert(stored, self.type)

    async def _convert(self, stored: np.ndarray, type_: Datatype) -> np.ndarray:
        if type_.kind == "array":  # numpy has its elements already, also of arrays of arrays
            assert type_.base is not None
            return await self._convert(stored, type_.base)
        dtype = value_dtype(type_)
        assert dtype is not None  # or there would be no variable
        if is_plain(type_):
            return stored.astype(dtype)
        if type_.kind == "compound":
            return await self._structures(stored, type_, dtype)
        if type_.kind == "vlen":
            return (await self._sequences(stored.ravel(), type_)).reshape(stored.shape)
        if type_.kind == "integer":
            return bits_of(type_).values(stored)
        try:
            return convert_numbers(stored, type_.encoded, dtype)
        except FormatError as error:
            raise FormatError(self.path, error.reason) from None

    async def _structures(self, stored: np.ndarray, type_: Datatype, dtype: np.dtype) -> np.ndarray:
        values = np.empty(stored.shape, dtype)
        # an array field adds its dimensions to the result of numpy
        fields = await together(
            self._convert(stored[member.name], member.type) for member in type_.members
        )
        for member, field in zip(type_.members, fields, strict=True):
            values[member.name] = field
        return values

    async def _sequences(self, stored: np.ndarray, type_: Datatype) -> np.ndarray:
        base = type_.base
        assert base is not None
        size = 1 if type_.text else base.size
        found = await resolve_vlen(self.frame, stored.tobytes(), np.full(stored.size, size))
        if type_.text:
            return np.fromiter(decode_texts(found, self.path, self.errors), object, len(found))
        # the elements of all sequences at once
        elements = np.frombuffer(b"".join(found), stored_dtype(base))
        values = await self._convert(elements, base)
        ends = np.cumsum([0, *(len(one) // size for one in found)]).tolist()
        parts = (values[a:b] for a, b in itertools.pairwise(ends))
        return np.fromiter(parts, object, len(found))


def _has_odd_floats(type_: Datatype) -> bool:
    """Tell whether a type has a part that `convert_numbers` must convert."""
    if type_.kind == "compound":
        return any(_has_odd_floats(member.type) for member in type_.members)
    if type_.base is not None and type_.kind in ("array", "vlen"):
        return not type_.text and _has_odd_floats(type_.base)
    return type_.kind == "float" and not is_plain(type_)


def decode_texts(texts: Sequence[bytes], what: str, errors: str = "strict") -> list[str]:
    """Return the texts of a variable, each of which ends at its first NUL.

    Parameters
    ----------
    what
        The variable, for the message.
    errors
        What to do with text that is not UTF-8, in the words of `bytes.decode`.

    Raises
    ------
    FormatError
        If one of them is not UTF-8, and that is an error.
    """
    everything = b"".join(texts)
    if b"\0" in everything:
        texts = [text.partition(b"\0")[0] for text in texts]
        everything = b"".join(texts)
    ends = np.cumsum([0, *map(len, texts)])
    try:
        whole = everything.decode()
    except UnicodeDecodeError:
        whole = ""
    if len(whole) < len(everything):  # some character has several bytes, or the text is not UTF-8
        characters = (np.frombuffer(everything, np.uint8) & _MASK) != _CONTINUES
        starts = ends[:-1][ends[:-1] < ends[1:]]
        if not whole or not characters[starts].all():
            return [decoded(text, what, errors) for text in texts]
        ends = np.concatenate([[0], np.cumsum(characters)])[ends]
    bounds = ends.tolist()
    return [whole[start:stop] for start, stop in itertools.pairwise(bounds)]


def decoded(text: bytes, what: str, errors: str) -> str:
    """Return a text; parameters and errors as of `decode_texts`."""
    try:
        return text.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise FormatError(what, f"{text[:60]!r} is not UTF-8") from None
