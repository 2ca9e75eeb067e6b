"""Zarr v2 ``dtype`` strings as netCDF types and numpy types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number
from nczarr_xarray.model import (
    NC_DTYPES,
    NC_TYPES,
    Attribute,
    EnumType,
    Group,
    Variable,
    bytes_of,
    join,
)

#: ``types`` of netCDF-C 4.8.0 hold nc_type numbers as text.
G1_TYPES: dict[str, str] = {
    "1": "byte",
    "2": "char",
    "3": "short",
    "4": "int",
    "5": "float",
    "6": "double",
    "7": "ubyte",
    "8": "ushort",
    "9": "uint",
    "10": "int64",
    "11": "uint64",
    "12": "string",
}

#: The kinds of numpy that Zarr v2 has, a size, and the unit of times. (A unit that counts
#: from zero, ``[0s]``, makes numpy divide by it: the process dies of SIGFPE.)
_SYNTAX = re.compile(r"([<>|=]?)([biufcmMSUVO])([0-9]*)(\[(?:[1-9][0-9]*)?[a-zA-Z]+\])?")
#: Bytes of an element, at most: one hostile element could fill the memory.
MAX_ITEM = 1 << 24


def attribute_type(code: JSON) -> str | None:
    """Return the netCDF type name of an entry of ``types``; None if netCDF has no such type.

    ``"|J0"`` marks NCZarr's own keys and gives None.
    """
    if not isinstance(code, str):
        return None
    if code in G1_TYPES:
        return G1_TYPES[code]
    match = _SYNTAX.match(code)
    if match is None:
        return None
    prefix, kind, size, _ = match.groups()
    if kind == "S":
        return "char" if (prefix, size) == (">", "1") else "string"
    if kind == "U":
        return "char"
    return NC_TYPES.get(kind + size)


def variable_type(code: JSON, key: str, *, netcdf: bool) -> tuple[str | None, np.dtype]:
    """Return the netCDF type name (or None) and the stored numpy dtype of a ``dtype``.

    Parameters
    ----------
    code
        The JSON value: a string, or a list for structured types.
    key
        Names the ``.zarray`` in errors.
    netcdf
        Whether netCDF-C wrote the array. Then ``<U1`` is one byte per element
        (4.8.x, 4.9.0) and means char. ``>S1`` means char wherever it appears:
        only netCDF-C writes that spelling.

    Raises
    ------
    FormatError
        If numpy has no such type.
    """
    if isinstance(code, list):
        return None, _numpy_dtype(_fields(code, key), key)
    if not isinstance(code, str) or isinstance(code, Number):
        raise FormatError(key, f"dtype {code!r:.80} is not text")
    match = _SYNTAX.fullmatch(code)
    if match is None:
        raise FormatError(key, f"dtype {code!r:.80} is not a Zarr data type")
    prefix, kind, size, unit = match.groups()
    if kind == "S" and (prefix, size) == (">", "1"):
        return "char", np.dtype("S1")
    if kind == "U" and size == "1" and netcdf:
        return "char", np.dtype("S1")
    # "|i4" and "i4" name no byte order: take the common one (4.9.3+ swap the bytes)
    order = "<" if prefix in ("", "|", "=") else prefix
    if not size and kind != "O":
        raise FormatError(key, f"dtype {code!r} has no size")
    if kind == "M" and unit is None:  # numpy has such types, but cannot print them
        raise FormatError(key, f"dtype {code!r} has no unit of time")
    dtype = _numpy_dtype(f"{order}{kind}{size}{unit or ''}", key)
    if kind in "SUO":
        return "string", dtype
    return NC_TYPES.get(kind + size), dtype


def _numpy_dtype(spec: Any, key: str) -> np.dtype:
    try:
        dtype: np.dtype = np.dtype(spec)
    except (TypeError, ValueError) as error:
        raise FormatError(key, f"dtype {spec!r:.80} is not known ({error})") from None
    if dtype.hasobject and dtype.kind != "O":
        raise FormatError(key, f"dtype {spec!r:.80} has Python objects inside")
    if not 0 < dtype.itemsize <= MAX_ITEM:
        raise FormatError(key, f"dtype {spec!r:.80} has elements of {dtype.itemsize} bytes")
    return dtype


def _fields(code: list[JSON], key: str) -> list[tuple[Any, ...]]:
    """Return a structured dtype: ``[["a", "<i4"], ["b", "<f8", [2]]]`` as numpy wants it."""
    fields: list[tuple[Any, ...]] = []
    for entry in code:
        try:
            name, kind, *shapes = entry
            simple = None if isinstance(kind, list) else _SYNTAX.fullmatch(kind)
            sizes = [tuple(int(n) for n in shape) for shape in shapes]
        except (TypeError, ValueError):
            raise FormatError(key, f"structured dtype {code!r:.80} is malformed") from None
        if simple is None and not isinstance(kind, list):
            raise FormatError(key, f"dtype {kind!r:.80} is not a Zarr data type")
        fields.append((name, kind if simple else _fields(kind, key), *sizes))
    return fields


def packed(dtype: np.dtype) -> np.dtype:
    """Return a dtype without padding between its fields, which Zarr would take for fields."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((packed(base), shape))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, packed(dtype[name])) for name in dtype.names])


# -- enums ---------------------------------------------------------------------------------------
# Enums in formats that have none: integers with CF's flags, and a mark to restore them by.
#
# A variable of an enum gets ``flag_values`` and ``flag_meanings``, which CF's
# readers understand, and `MARK`, a text of percent-encoded words. The first word
# is the path of the type. If a name is not a word of CF, all names follow. If the
# variable has flags of its own, these stay, and members follow as ``name=value``.


#: For netCDF-C it is an attribute like any other.
MARK = "_nczarr_enum"
VALUES, MEANINGS = "flag_values", "flag_meanings"
#: Characters that CF allows in a word of ``flag_meanings``.
_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_.+@-]")


def as_flags(variable: Variable) -> dict[str, Attribute]:
    """Return the attributes of a variable of an enum, with CF's flags and our mark."""
    enum = variable.enum
    assert enum is not None
    attributes = dict(variable.attributes)
    marks = [_quoted(join(enum.group, enum.name))]
    if VALUES in attributes or MEANINGS in attributes:
        marks += [f"{_quoted(name)}={value}" for name, value in enum.members.items()]
    else:
        words = [_NOT_IN_WORDS.sub("_", name) for name in enum.members]
        if words != [*enum.members]:
            marks += map(_quoted, enum.members)
        numbers = np.array([*enum.members.values()], NC_DTYPES[enum.nc_type])
        attributes[VALUES] = Attribute(VALUES, enum.nc_type, numbers)
        attributes[MEANINGS] = Attribute(MEANINGS, "char", " ".join(words))
    attributes[MARK] = Attribute(MARK, "char", " ".join(marks))
    return attributes


def restore(variable: Variable, group_at: Callable[[str], Group | None]) -> None:
    """Restore the enum that was stored as flags, unless its name now means another one.

    `group_at` returns the group at a path, if there is one.
    """
    found = restored(variable)
    if found is None or found.enum is None:
        return
    group = group_at(found.enum.group)
    if group is None or group.types.setdefault(found.enum.name, found.enum) != found.enum:
        return
    variable.enum, variable.attributes = found.enum, found.attributes


def restored(variable: Variable) -> Variable | None:
    """Return a variable as it was before `as_flags`; None if it does not come from there."""
    mark = variable.attributes.get(MARK)
    if mark is None or not isinstance(mark.value, str) or variable.dtype.kind not in "iu":
        return None
    path, *words = mark.value.split() or [""]
    names = [unquote(word, errors="surrogateescape") for word in words]
    group, _, name = unquote(path, errors="surrogateescape").rpartition("/")
    used = {MARK}
    try:
        if words and all("=" in word for word in words):
            parts = [word.rpartition("=") for word in words]
            names = [unquote(part[0], errors="surrogateescape") for part in parts]
            numbers = [int(part[2]) for part in parts]
        else:
            used |= {VALUES, MEANINGS}
            names = names or _meanings(variable.attributes)
            numbers = _numbers(variable.attributes)
        members = dict(zip(names, numbers, strict=True))
    except ValueError:
        return None  # the flags were changed: now they define the meaning of the values
    limits = np.iinfo(variable.dtype)
    within = all(limits.min <= number <= limits.max for number in numbers)
    if not (name and members and all(members) and within) or len(members) < len(names):
        return None
    if not group:  # xarray's datasets do not keep the group of a type
        group = "/" if path.startswith("/") else variable.group
    enum = EnumType(name, members, str(variable.nc_type), group)
    attributes = {n: one for n, one in variable.attributes.items() if n not in used}
    if "_FillValue" in attributes:
        attributes["_FillValue"] = replace(attributes["_FillValue"], enum=enum)
    return replace(variable, enum=enum, attributes=attributes)


def _numbers(attributes: Mapping[str, Attribute]) -> list[int]:
    values = attributes[VALUES].value if VALUES in attributes else None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise ValueError(f"{VALUES} are not integers")
    return [int(value) for value in values.tolist()]


def _meanings(attributes: Mapping[str, Attribute]) -> list[str]:
    value = attributes[MEANINGS].value if MEANINGS in attributes else ""
    return value.split() if isinstance(value, str) else []


def _quoted(text: str) -> str:
    return quote(bytes_of(text))
