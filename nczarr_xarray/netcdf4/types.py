"""What netCDF4-python calls the types of netCDF, and the default fill values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    NC_DTYPES,
    NC_TYPES,
    NamedType,
    Variable,
    element_of,
)
from nczarr_xarray.model import EnumType as StoredEnum

#: By numpy's code of the type: what netCDF stores where nothing was written.
default_fillvals: dict[str, Any] = {
    dtype.str[1:]: NC_DEFAULT_FILL[name] for name, dtype in NC_DTYPES.items() if name != "string"
} | {"S1": "\0"}

#: The types of the classic data model.
CLASSIC = frozenset({"byte", "char", "short", "int", "float", "double"})

is_native_little = np.dtype("<f4").isnative
is_native_big = np.dtype(">f4").isnative


class CompoundType:
    """A structure: a fixed number of members.

    Attributes
    ----------
    dtype : numpy.dtype
        The structure.
    dtype_view : numpy.dtype
        The same one with its arrays of characters as texts of fixed length.
    name : str
        The name of the type; ``""`` if the format keeps none.
    """

    def __init__(self, dtype: Any, name: str = "") -> None:
        self.dtype = np.dtype(dtype)
        self.dtype_view = text_view(self.dtype)
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self)!r}: name = {self.name!r}, numpy dtype = {self.dtype}"


class VLType:
    """Sequences of elements of one type, each of its own length.

    Attributes
    ----------
    dtype : numpy.dtype or type
        Of the elements; ``str`` for texts.
    name : str or None
        The name of the type; None for texts.
    """

    def __init__(self, dtype: Any, name: str | None = None) -> None:
        self.dtype: Any = str if dtype is str else np.dtype(dtype)
        self.name = None if self.dtype is str else name

    def __repr__(self) -> str:
        if self.dtype is str:
            return f"{type(self)!r}: string type"
        return f"{type(self)!r}: name = {self.name!r}, numpy dtype = {self.dtype}"


class EnumType:
    """Integers that have names.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the integers.
    name : str
        The name of the type.
    enum_dict : dict
        The integer of each name.
    """

    def __init__(self, dtype: Any, name: str, enum_dict: Mapping[str, int]) -> None:
        self.dtype = np.dtype(dtype)
        self.name = name
        self.enum_dict = dict(enum_dict)
        #: the path of the group that declares it
        self.group = "/"

    @classmethod
    def of(cls, stored: StoredEnum) -> EnumType:
        """Return the type that the model has."""
        made = cls(NC_DTYPES[stored.nc_type], stored.name, stored.members)
        made.group = stored.group
        return made

    def stored(self) -> StoredEnum:
        """Return the type as the model has it."""
        members = {name: int(value) for name, value in self.enum_dict.items()}
        return StoredEnum(self.name, members, NC_TYPES[self.dtype.str[1:]], self.group)

    def __repr__(self) -> str:
        return (
            f"{type(self)!r}: name = {self.name!r}, numpy dtype = {self.dtype}, "
            f"fields/values ={self.enum_dict}"
        )


UserType = CompoundType | VLType | EnumType


def named(stored: NamedType) -> CompoundType | VLType:
    """Return the structure, or the sequences, that the model has."""
    element = element_of(stored.dtype)
    if element is None:
        return CompoundType(stored.dtype, stored.name)
    return VLType(element, stored.name)


def type_of(variable: Variable, *, native: bool) -> Any:
    """Return netCDF4-python's `datatype` of a variable: a dtype, or a user-defined type.

    Parameters
    ----------
    native
        Whether the byte order of storage does not show, as of classic files.
    """
    if variable.nc_type == "string":
        return VLType(str)
    if variable.dtype.names is not None or element_of(variable.dtype) is not None:
        return named(variable.named_type or NamedType("", variable.dtype))
    if variable.enum is not None:
        return EnumType.of(variable.enum)
    return variable.dtype.newbyteorder("=") if native else variable.dtype


def text_view(dtype: np.dtype) -> np.dtype:
    """Return a structure in which arrays of characters are texts of fixed length."""
    if dtype.names is None:
        if dtype.subdtype is not None and dtype.subdtype[0] == np.dtype("S1"):
            shape = dtype.shape
            text = np.dtype(f"S{shape[-1]}")
            return np.dtype((text, shape[:-1])) if shape[:-1] else text
        return dtype
    assert dtype.fields is not None
    formats = [text_view(dtype.fields[name][0]) for name in dtype.names]
    offsets = [dtype.fields[name][1] for name in dtype.names]
    described = {"names": dtype.names, "formats": formats, "offsets": offsets}
    return np.dtype({**described, "itemsize": dtype.itemsize})  # type: ignore[call-overload,no-any-return]
