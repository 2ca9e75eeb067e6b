"""Attribute values and data in CDL, one token per element."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from nczarr_xarray.model import NC_DEFAULT_FILL, Attribute, EnumType, Variable, bytes_of, text_of

_ESCAPES: dict[int, str] = {
    **{code: f"\\{code:03o}" for code in (*range(0x20), 0x7F)},
    **{ord(char): rf"\{letter}" for char, letter in zip("\b\f\n\r\t\v", "bfnrtv", strict=True)},
    **{ord(char): f"\\{char}" for char in "\\\"'"},
}
#: ncdump spells a vertical tab in string data, and only there, as a newline
_ELEMENT_ESCAPES = _ESCAPES | {ord("\v"): r"\n"}
_BYTE_ESCAPES = _ESCAPES | {code: f"\\{code:03o}" for code in range(0x80, 0x100)}

#: characters to escape in a name; in a path, slashes stay, and so does all that is not ASCII
_SPECIAL = re.compile(r"[\x00-\x7f](?<![0-9A-Za-z_.@+%/-])")


_SECTIONS = frozenset({"types", "dimensions", "variables", "data", "group"})


def name(text: str) -> str:
    r"""Spell a name or the path of a group: ``"1 a"`` as ``\1\ a``."""
    escaped = _SPECIAL.sub(_escape_in_name, text)
    return f"\\{escaped}" if text.startswith(tuple("0123456789")) else escaped


def owner(text: str) -> str:
    """Spell the name of a variable in front of the colon of an attribute.

    A blank distinguishes it from the word that begins a section. (Other words of CDL as names,
    such as ``int``, have no spelling that ncgen understands.)
    """
    return f"{text} " if text in _SECTIONS else name(text)


def _escape_in_name(match: re.Match[str]) -> str:
    char = match[0]
    return f"\\%{ord(char):02x}" if char < " " or char == "\x7f" else f"\\{char}"


def quoted(text: str) -> str:
    """Spell one string of an attribute."""
    return f'"{text.translate(_ESCAPES)}"'


def quoted_element(text: str) -> str:
    """Spell one element of a string variable."""
    return f'"{text.translate(_ELEMENT_ESCAPES)}"'


def row_text(part: bytes) -> str:
    r"""Spell a part of a row of a char variable, without quotes.

    Bytes beyond ASCII become octal escapes, and after each newline the text goes on
    in a string on a line of its own.
    """
    lines = part.decode("latin-1").split("\n")
    return '\\n",\n    "'.join(line.translate(_BYTE_ESCAPES) for line in lines)


def columns(token: str) -> int:
    """Return the width of `token` as ncdump counts it: bytes of UTF-8."""
    return len(token) if token.isascii() else len(token.encode("utf-8", "surrogateescape"))


Values: TypeAlias = np.ndarray
Spelling: TypeAlias = Callable[[Values], list[str]]
Test: TypeAlias = Callable[[Values], Values]

#: suffix of an integer attribute; int has none
_SUFFIXES = {
    "byte": "b",
    "ubyte": "UB",
    "short": "s",
    "ushort": "US",
    "uint": "U",
    "int64": "LL",
    "uint64": "ULL",
}
#: one conversion of a number between plain texts; ``%`` may not appear in those
_PRINTF = re.compile(
    r"(?P<before>[^%\n]*)%(?P<flags>[-+ 0]*)(?P<width>\d{0,3})(?P<precision>(?:\.\d{0,3})?)"
    r"(?P<length>l{0,2})(?P<conversion>[diuoxXeEfFgG])(?P<after>[^%\n]*)"
)
#: the length and conversion that C prescribes for numbers of a kind and size
_CONVERSIONS = {
    **dict.fromkeys(("i1", "i2", "i4"), re.compile("[di]")),
    **dict.fromkeys(("u1", "u2"), re.compile("[diuoxX]")),
    "u4": re.compile("[uoxX]"),
    "i8": re.compile("ll?[di]"),
    "u8": re.compile("ll?[uoxX]"),
    **dict.fromkeys(("f4", "f8"), re.compile("l?[eEfFgG]")),
}


def attribute_value(attribute: Attribute) -> str:
    """Spell everything after the ``=`` of an attribute."""
    value = attribute.value
    if isinstance(value, str):
        return quoted(value.rstrip("\0"))
    if len(value) == 0:
        return '""'
    if isinstance(value, tuple):
        return ", ".join(map(quoted, value))
    if attribute.enum is not None:
        return ", ".join(_members(attribute.enum)(value))
    if value.dtype.names is not None:
        return ", ".join(_structures(value))
    if value.dtype.kind == "f":
        suffix = "f" if value.dtype.itemsize == 4 else ""
        return ", ".join(_with_point(token, suffix) for token in _floats(value))
    suffix = _SUFFIXES.get(attribute.type, "")
    return ", ".join(f"{number}{suffix}" for number in value.tolist())


def _with_point(token: str, suffix: str) -> str:
    """Mark a floating-point constant: ``1e+20`` as ``1.e+20f``."""
    if "N" in token or "I" in token:  # NaN and Infinity are marked already
        return token
    if "." not in token:
        mantissa, exponent, power = token.partition("e")
        token = f"{mantissa}.{exponent}{power}"
    return token + suffix


def cdl_type(variable: Variable) -> str:
    """Return the type in a declaration; for a type of Zarr alone, the nearest one of CDL."""
    if variable.nc_type is not None:
        return variable.nc_type
    kind, size = variable.dtype.kind, variable.dtype.itemsize
    if kind == "V":
        return f"opaque({size})"
    nearest = {"b": "byte", "f": "float", "m": "int64", "c": f"complex{size * 8}"}
    return nearest.get(kind, "string")


def zarr_type(dtype: np.dtype) -> str:
    """Return Zarr's spelling of a dtype: ``|b1``, ``<M8[ns]``, ``[('x', '<i4')]``."""
    return dtype.str if dtype.names is None else str(dtype.descr)


def spelling(variable: Variable) -> Spelling:
    """Return the function that spells 1-D data of a variable that is not char.

    Elements equal to the fill value are spelt ``_``.
    """
    spell = _formatted(variable) or _spelling_of(variable.dtype)
    if variable.enum is not None:
        spell = _members(variable.enum)
    is_fill = _fill_test(variable)
    if is_fill is None:
        return spell

    def spell_with_fill(values: Values) -> list[str]:
        tokens = spell(values)
        for index in np.flatnonzero(is_fill(values)).tolist():
            tokens[index] = "_"
        return tokens

    return spell_with_fill


def _fill_test(variable: Variable) -> Test | None:
    """Return the function that finds fill values; None if there are none.

    The fill value is ``_FillValue``, else netCDF's default for the type, but
    byte, ubyte and enums have no default. A float matches within one unit of precision.
    """
    if variable.nc_type is None:
        return np.isnat if variable.dtype.kind in "mM" else None
    defaults = variable.nc_type not in ("byte", "ubyte") and variable.enum is None
    fill: Any = NC_DEFAULT_FILL[variable.nc_type] if defaults else None
    attribute = variable.attributes.get("_FillValue")
    if attribute is not None and len(attribute.value) == 1:
        fill = attribute.value[0]
    if fill is None or isinstance(fill, str) != (variable.nc_type == "string"):
        return None
    if variable.dtype.kind == "f":
        with np.errstate(over="ignore"):  # the attribute may be of another type
            return _near(variable.dtype.type(fill))
    if variable.dtype.kind == "S":
        fill = bytes_of(fill)
    return lambda values: np.asarray(values == fill)


def _near(fill: Any) -> Test:
    if np.isnan(fill):
        return np.isnan
    if np.isinf(fill):
        return lambda values: np.asarray(values == fill)
    eps = np.finfo(fill.dtype).eps

    def test(values: Values) -> Values:
        with np.errstate(all="ignore"):
            found: Values = np.isfinite(values) & (np.abs(values - fill) <= np.abs(eps * values))
        return found

    return test


def _formatted(variable: Variable) -> Spelling | None:
    """Return the speller for a ``C_format`` attribute; None if that does not suit the type.

    ncdump hands any text to printf; what would be undefined behaviour there is
    ignored here.
    """
    attribute = variable.attributes.get("C_format")
    allowed = _CONVERSIONS.get(variable.dtype.str[1:])
    if attribute is None or attribute.type != "char" or allowed is None:
        return None
    match = _PRINTF.fullmatch(str(attribute.value).split("\0")[0])
    if match is None or not allowed.fullmatch(match["length"] + match["conversion"]):
        return None
    template = "{before}%{flags}{width}{precision}{conversion}{after}".format_map(match.groupdict())
    if variable.dtype.kind == "f":
        return lambda values: _floats(values, template)
    return lambda values: [template % number for number in values.tolist()]


def _floats(values: Values, template: str | None = None) -> list[str]:
    """Spell floating-point numbers: 7 digits of a float, 15 of a double."""
    single = values.dtype.itemsize <= 4
    template = template or ("%.7g" if single else "%.15g")
    # one formatting of all values takes half the time of one formatting per value
    tokens = (f"{template}\n" * values.size % tuple(values.tolist())).split("\n")[:-1]
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        number = values[index]
        word = "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        tokens[index] = word + ("f" if single else "")
    return tokens


def _integers(values: Values) -> list[str]:
    return list(map(str, values.tolist()))


def _complex(values: Values) -> list[str]:
    pairs = zip(_floats(values.real), _floats(values.imag), strict=True)
    return [f"{{{real}, {imaginary}}}" for real, imaginary in pairs]


def _members(enum: EnumType) -> Spelling:
    """Return the speller of an enum's values; one without a name is spelt as a number."""
    names = {value: name(member) for member, value in reversed([*enum.members.items()])}
    return lambda values: [names.get(value) or str(value) for value in values.tolist()]


def _structures(values: Values) -> list[str]:
    """Spell structures, arrays in them and sequences, all in braces."""
    fields = [_nested(values[field]) for field in values.dtype.names or ()]
    return [f"{{{', '.join(row)}}}" for row in zip(*fields, strict=True)]


def _nested(values: Values) -> list[str]:
    if values.ndim == 1:
        return _spelling_of(values.dtype)(values)
    return [f"{{{', '.join(_nested(row.reshape(-1)))}}}" for row in values]


def _objects(values: Values) -> list[str]:
    return [
        f"{{{', '.join(_nested(value))}}}"
        if isinstance(value, np.ndarray)
        else quoted_element(str(value))
        for value in values.tolist()
    ]


def _spelling_of(dtype: np.dtype) -> Spelling:
    return _structures if dtype.names else _SPELLINGS[dtype.kind]


_SPELLINGS: dict[str, Spelling] = {
    "i": _integers,
    "u": _integers,
    "f": _floats,
    "b": lambda values: _integers(values.view("i1")),
    "m": lambda values: _integers(values.astype("i8")),
    "M": lambda values: [f'"{time}"' for time in np.datetime_as_string(values)],
    "c": _complex,
    "O": _objects,
    "U": _objects,
    "S": lambda values: [quoted_element(text_of(value)) for value in values.tolist()],
    "V": lambda values: [f"0X{value.tobytes().hex().upper()}" for value in values],
}
