"""JSON attribute values to typed attributes, and enums as attributes."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from urllib.parse import quote, unquote

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, dumps, loads
from nczarr_xarray.model import (
    NC_DTYPES,
    NC_NUMBERS,
    NC_TYPES,
    Attribute,
    EnumType,
    Group,
    Variable,
    bytes_of,
    join,
)

#: ``types`` of netCDF-C 4.8.0 hold numbers as text.
G1_TYPES = {str(number): name for number, name in NC_NUMBERS.items()}

#: The kinds of numpy that Zarr v2 has, a size, and the unit of times. (A unit that counts
#: from zero, ``[0s]``, makes numpy divide by it: the process dies of SIGFPE.)
DTYPE = re.compile(r"([<>|=]?)([biufcmMSUVO])([0-9]*)(\[(?:[1-9][0-9]*)?[a-zA-Z]+\])?")
#: Keys that carry structure, not attributes of the user, in any generation.
HIDDEN = frozenset(
    {
        "_ARRAY_DIMENSIONS",
        "_NCProperties",
        "_nczarr_superblock",
        "_nczarr_group",
        "_nczarr_array",
        "_nczarr_attr",
        "_nczarr_attrs",
        "_NCZARR_SUPERBLOCK",
        "_NCZARR_GROUP",
        "_NCZARR_ARRAY",
        "_NCZARR_ATTR",
    }
)

#: Names of numbers that Python does not know, or gives a sign.
_FLOAT_NAMES = {
    "-nan": "nan",
    "nanf": "nan",
    "-nanf": "nan",
    "infinityf": "inf",
    "-infinityf": "-inf",
}
#: What becomes of numbers that JSON has not, where its readers are strict.
NAMED_NUMBERS = "NaN and infinities among attributes become texts, as JSON has no such numbers"
_INTEGERS = ("int", "uint", "int64", "uint64")
#: Texts that stand for a number in arrays of pure Zarr, as in its fill values.
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


def attribute_type(code: JSON) -> str | None:
    """Return the netCDF type name of an entry of ``types``; None if netCDF has no such type.

    ``"|J0"`` marks NCZarr's own keys and gives None.
    """
    if not isinstance(code, str):
        return None
    if code in G1_TYPES:
        return G1_TYPES[code]
    match = DTYPE.match(code)
    if match is None:
        return None
    prefix, kind, size, _ = match.groups()
    if kind == "S":
        return "char" if (prefix, size) == (">", "1") else "string"
    if kind == "U":
        return "char"
    return NC_TYPES.get(kind + size)


def decode_attributes(
    values: Mapping[str, JSON],
    types: Mapping[str, JSON],
    where: str,
    *,
    netcdf: bool,
    ours: bool = False,
    fill_type: str | None = None,
) -> tuple[dict[str, Attribute], list[FormatError]]:
    """Decode all attributes of one object.

    Parameters
    ----------
    values
        The ``.zattrs`` object.
    types
        The ``types`` map of NCZarr; empty in pure Zarr.
    where
        Names the object in errors.
    netcdf
        Whether netCDF-C wrote the dataset: decides what an untyped array of
        strings is (see `infer`).
    ours
        Whether this package wrote the dataset. Then JSON that is not as `types` has it is meant;
        netCDF-C stores so what is text that looks like JSON.
    fill_type
        netCDF type of the variable: the type of an untyped ``_FillValue``.

    Returns
    -------
    attributes, problems
        An attribute whose value contradicts its type is decoded by its value
        alone, and reported in `problems`.
    """
    attributes: dict[str, Attribute] = {}
    problems: list[FormatError] = []
    for name, value in values.items():
        if name in HIDDEN:
            continue
        nc_type = attribute_type(types[name]) if name in types else None
        is_fill = nc_type is None and name == "_FillValue"
        if is_fill:
            nc_type = fill_type
            while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
                value = value[0]  # readers take its elements, whatever its shape is
        if nc_type is not None:
            try:
                if is_fill and nc_type in ("float", "double") and type(value) is str:
                    value = float_of(value)  # VirtualiZarr writes it so into references
                inexact = not is_exact(value) or (nc_type == "char" and type(value) is list)
                kept = dumps(value) if ours and inexact else None
                found = convert(value, nc_type)
                if is_fill and nc_type == "float" and np.isinf(found).any():
                    _refuse_overflow(value)
                attributes[name] = Attribute(name, nc_type, found, json=kept)
                continue
            except ValueError as error:
                reason = f"attribute {name!r} is not of its type {nc_type}: {error}"
                problems.append(FormatError(where, reason))
        attribute = infer(name, value, netcdf=netcdf)
        kept = None if netcdf or is_exact(value) else dumps(value)
        attributes[name] = replace(attribute, json=kept)
    return attributes, problems


def _refuse_overflow(value: JSON) -> None:
    """Raise `ValueError` for numbers that are infinite in single precision only."""
    for element in value if isinstance(value, list) else [value]:
        if np.isinf(np.float32(as_float(element))) and not np.isinf(as_float(element)):
            raise ValueError(f"{element} is out of range")


def is_exact(value: JSON) -> bool:
    """Tell whether an attribute of netCDF says all that a JSON value does."""
    if isinstance(value, list):
        texts = [e for e in value if isinstance(e, str) and not isinstance(e, Number)]
        named = _NOT_FINITE.issuperset(texts)  # which stand for numbers
        if len(value) == 1 and not (texts and named):
            return False
        one_kind = named or len(texts) == len(value)
        return one_kind and all(isinstance(e, str) and is_exact(e) for e in value)
    if not isinstance(value, Number):
        return isinstance(value, str)
    try:
        return -(2**63) <= int(value) < 2**64
    except ValueError:
        return True  # a float


def is_list_of_one(text: str) -> bool:
    """Tell whether JSON is a list of one number or text, which netCDF has without the list."""
    value = loads(text.encode("utf-8", "surrogateescape"), "attribute")
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)


def convert(value: JSON, nc_type: str) -> str | tuple[str, ...] | np.ndarray:
    """Return the value of an attribute of known type.

    Raises
    ------
    ValueError
        If the value does not fit the type.
    """
    if nc_type == "char":
        # text that looked like JSON was stored as that JSON
        return str(value) if isinstance(value, str) else dumps(value)
    elements = value if isinstance(value, list) else [value]
    if nc_type == "string":
        return tuple(str(e) if isinstance(e, str) else dumps(e) for e in elements)
    dtype = NC_DTYPES[nc_type]
    return numbers(elements, dtype)


def numbers(elements: Iterable[JSON], dtype: np.dtype) -> np.ndarray:
    """Return an exact 1-D array of numeric `dtype` (ValueError if an element does not fit in)."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array([as_float(e) for e in elements], dtype=dtype)
    integers = [as_integer(e) for e in elements]
    limits = np.iinfo(dtype)
    for integer in integers:
        if not limits.min <= integer <= limits.max:
            raise ValueError(f"{integer} is out of range")
    return np.array(integers, dtype=dtype)


def as_float(element: JSON) -> float:
    """Return a JSON number, bool, or the name of a non-finite value, as float."""
    if isinstance(element, bool):
        return float(element)
    if isinstance(element, str):
        return float(_FLOAT_NAMES.get(element.lower(), element))
    raise ValueError(f"{dumps(element):.80} is not a number")


def float_of(text: str) -> Number:
    """Return a float that xarray states as text: its name, or its bytes as a double in base64.

    Raises
    ------
    ValueError
        If it is neither.
    """
    try:
        return Number(repr(as_float(text)))
    except ValueError:
        pass
    try:
        return Number(repr(struct.unpack("<d", base64.b64decode(text, validate=True))[0]))
    except struct.error as error:
        raise ValueError(str(error)) from None


def as_integer(element: JSON) -> int:
    """Return a JSON number or bool as int; fractions are cut off, as by netCDF-C."""
    if isinstance(element, bool):
        return int(element)
    if isinstance(element, str):
        try:
            return int(element)
        except ValueError:
            number = as_float(element)
            if number - number != 0:
                raise ValueError(f"{element:.80} is not an integer") from None
            return int(number)
    raise ValueError(f"{dumps(element):.80} is not a number")


def infer(name: str, value: JSON, *, netcdf: bool) -> Attribute:
    """Decode an untyped attribute.

    netCDF-C takes the type of an array's first element and then truncates or
    fails on the rest; here it is the smallest type in netCDF-C's order that
    holds all elements. An array of strings is its JSON text if netCDF-C wrote
    it (the text may have been a char attribute). Otherwise it is an array of strings, unless all of
    them name NaN or an infinity, for which JSON has no numbers.
    """
    elements = value if isinstance(value, list) else [value]
    if isinstance(value, str) and not isinstance(value, Number):
        return Attribute(name, "char", value)
    if value == []:
        return Attribute(name, "double", np.empty(0))
    texts = [e for e in elements if isinstance(e, str) and not isinstance(e, Number)]
    if texts and not netcdf and _NOT_FINITE.issuperset(texts):
        elements = [Number(e) if e in _NOT_FINITE else e for e in elements]
    elif len(texts) == len(elements) and not netcdf:
        return Attribute(name, "string", tuple(elements))
    nc_type = _smallest(elements)
    if nc_type is None:
        return Attribute(name, "char", dumps(value))
    return Attribute(name, nc_type, numbers(elements, NC_DTYPES[nc_type]))


def _smallest(elements: list[JSON]) -> str | None:
    """Return the smallest netCDF type for all `elements`; None if they are not all numbers."""
    if not isinstance(elements[0], (bool, Number)):
        return None
    if all(isinstance(e, bool) for e in elements):
        return "ubyte"
    try:
        integers = [as_integer(e) if isinstance(e, bool) else int(e) for e in elements]
    except (ValueError, TypeError):
        try:
            for element in elements:
                as_float(element)
        except ValueError:
            return None
        return "double"
    if max(integers) >= 2**63 - 1 and min(integers) >= 0:
        # netCDF-C's strtoll reports overflow at exactly this value
        return "uint64" if max(integers) < 2**64 else "double"
    for nc_type in _INTEGERS:
        limits = np.iinfo(NC_DTYPES[nc_type])
        if all(limits.min <= integer <= limits.max for integer in integers):
            return nc_type
    return "double"


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
