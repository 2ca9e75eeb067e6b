"""What netCDF makes of HDF5's datatypes.

Source: netCDF-C 4.10.1 and netCDF4-python, observed (tests/test_hdf5_corpus.py).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nczarr_xarray.formats.hdf5.objects import Datatype
from nczarr_xarray.model import NC_DTYPES, EnumType

_NC_TYPES = {dtype.str[1:]: name for name, dtype in NC_DTYPES.items() if dtype.kind in "iuf"}

#: Classes that netCDF has nothing for; datasets and attributes of them do not appear.
INVISIBLE = frozenset({"reference", "bitfield", "array", "time", "unknown"})
#: Types in types; deeper ones are taken for damage.
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class ValueType:
    """How the elements of a dataset are read.

    Parameters
    ----------
    nc_type
        netCDF type name; None where netCDF's Python interface has no scalar type for it.
    stored
        dtype of the stored elements (`read`: "plain", "fixed text", "text").
    dtype
        Of the values.
    read
        How values come from stored elements: as they are, as text of fixed
        size, as text in the global heap, or not by our own code ("h5py").
    reason
        Why not by our own code.
    enum
        The members, of enums.
    """

    nc_type: str | None
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    read: Literal["plain", "fixed text", "text", "h5py"] = "plain"
    reason: str = ""
    enum: EnumType | None = None


def value_type(type_: Datatype, enum_name: str = "") -> ValueType | None:
    """How netCDF shows elements of a datatype; None if it does not (`INVISIBLE`).

    Parameters
    ----------
    enum_name
        What the type is called, should it be an enum.
    """
    if type_.kind in INVISIBLE:
        return None
    nothing = np.dtype(object)
    if type_.kind == "string" or (type_.kind == "vlen" and type_.text):
        if type_.kind == "vlen":
            return ValueType("string", np.dtype(f"V{type_.size}"), nothing, "text")
        if type_.size == 1:
            return ValueType("char", np.dtype("S1"), np.dtype("S1"))
        return ValueType("string", np.dtype(f"S{type_.size}"), nothing, "fixed text")
    if type_.kind == "vlen":
        # what a reader gets are arrays, and their dtype is what netCDF4-python says
        base = value_type(type_.base) if type_.base is not None else None
        if base is None or base.read == "h5py":
            return None
        dtype = base.dtype
        return ValueType(None, nothing, dtype, "h5py", "is of variable-length sequences")
    if type_.kind == "enum":
        return _enum(type_, enum_name)
    if type_.kind == "compound":
        return _compound(type_)
    if type_.numpy is not None:
        dtype = type_.numpy
        return ValueType(_NC_TYPES.get(dtype.str[1:]), dtype, dtype)
    if type_.kind == "float":
        # as h5py reads them: into the next format that can hold them
        dtype = np.dtype("f4" if type_.size <= 4 else "f8" if type_.size <= 8 else np.longdouble)
        return ValueType(None, nothing, dtype, "h5py", f"has floats of {type_.size} odd bytes")
    if type_.kind == "integer":
        size = next((size for size in (1, 2, 4, 8) if size >= type_.size), 0)
        if size:
            dtype = np.dtype(f"i{size}")
            return ValueType(None, nothing, dtype, "h5py", "has integers of an odd format")
    return None


def _enum(type_: Datatype, name: str) -> ValueType | None:
    base = value_type(type_.base) if type_.base is not None else None
    if base is None or base.read != "plain" or base.dtype.kind not in "iu":
        return None
    enum = EnumType(name, {member.name: member.value for member in type_.members})
    return ValueType(base.nc_type, base.stored, base.dtype, enum=enum)


def _compound(type_: Datatype) -> ValueType | None:
    if type_.numpy is not None and _is_plain(type_.numpy):
        return ValueType(None, type_.numpy, native(type_.numpy))
    try:
        dtype = _value_dtype(type_)
    except ValueError:
        return None
    return ValueType(
        None, np.dtype(object), dtype, "h5py", "is of compounds with other than numbers"
    )


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether elements need nothing but a change of byte order."""
    pending = [dtype]
    while pending:
        current = pending.pop()
        if current.fields is not None:
            pending.extend(field[0] for field in current.fields.values())
        elif current.subdtype is not None:
            pending.append(current.subdtype[0])
        elif current.kind not in "iufcS":
            return False
    return True


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A structure as C lays it out on this machine."""
    if dtype.fields is not None:
        fields = [(str(name), native(dtype.fields[name][0])) for name in dtype.names or ()]
        return np.dtype(fields, align=True)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((native(base), shape))
    return dtype.newbyteorder("=")


def _value_dtype(type_: Datatype, depth: int = 0) -> np.dtype[Any]:
    """dtype of what h5py reads, in this machine's byte order; ValueError if that is nothing."""
    if depth > _DEEPEST:
        raise ValueError("types nested too deep")
    if type_.kind == "compound":
        fields = [(m.name, _value_dtype(m.type, depth + 1)) for m in type_.members if m.type]
        return np.dtype(fields, align=True)
    if type_.kind == "array" and type_.base is not None:
        return np.dtype((_value_dtype(type_.base, depth + 1), type_.shape))
    if type_.kind == "enum" and type_.base is not None:
        return _value_dtype(type_.base, depth + 1)
    if type_.kind == "vlen":
        return np.dtype(object)
    if type_.kind == "reference" or type_.numpy is None:
        raise ValueError(f"{type_.kind} in a compound")
    return type_.numpy.newbyteorder("=")


class TypeNames:
    """The user-defined types of a file, as netCDF-C knows them.

    It compares types as they would be in memory: by their members, whatever
    their byte order and wherever they are defined. Those without a name are
    numbered.
    """

    def __init__(self) -> None:
        self._names: dict[Hashable, str] = {}
        self._anonymous = 0

    def add(self, type_: Datatype, name: str) -> None:
        """Note a named type."""
        self._names.setdefault(_in_memory(type_), name)

    def note(self, type_: Datatype) -> str:
        """Note the type of a dataset; its name if it is an enum.

        Datasets must come in netCDF-C's order, after all named types.
        """
        if type_.text or type_.kind not in ("enum", "compound", "opaque", "array", "vlen"):
            return ""
        key = _in_memory(type_)
        if key not in self._names:
            self._anonymous += 1
            self._names[key] = f"_AnonymousEnum{self._anonymous}"
        return self._names[key]

    def knows(self, type_: Datatype) -> bool:
        """Whether there is such a type."""
        return _in_memory(type_) in self._names


def _in_memory(type_: Datatype, depth: int = 0) -> Hashable:
    if depth > _DEEPEST:
        return id(type_)
    base = None if type_.base is None else _in_memory(type_.base, depth + 1)
    members = [
        (m.name, None if type_.kind == "compound" else m.value,
         None if m.type is None else _in_memory(m.type, depth + 1))
        for m in type_.members
    ]  # fmt: skip
    plain = type_.kind in ("integer", "float") and type_.numpy is not None
    number = type_.numpy.newbyteorder("=").str if plain and type_.numpy is not None else None
    ordered = tuple(members if type_.kind == "compound" else sorted(members))
    size = None if type_.kind == "compound" else type_.size
    return (type_.kind, size, number, base, ordered, type_.shape, type_.tag)
