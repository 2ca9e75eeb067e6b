"""CDL: names, values of attributes, and data in rows, all spelled and broken as ncdump does."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy as np

from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    Attribute,
    EnumType,
    Variable,
    bytes_of,
    position_of,
    text_of,
)

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


# -- data ------------------------------------------------------------------------------------------

#: bytes of one read, and elements that are text at one time
READ_BYTES = 1 << 25
TEXT_ELEMENTS = 1 << 15

#: a line ends before the token that would reach this column (blanks count)
LINE_COLUMNS = 79


class ReadBlock(Protocol):
    """Reads the block of a variable that `key` selects, one slice per dimension."""

    def __call__(self, variable: Variable, key: tuple[slice, ...], /) -> np.ndarray: ...


def write_data(
    variable: Variable, read: ReadBlock, write: Callable[[str], object], indent: int
) -> None:
    """Write the values of `variable`, block by block; nothing for an empty one.

    Parameters
    ----------
    read, write
        Read a block of values; write a piece of text.
    indent
        Columns by which the group of the variable is indented.

    Raises
    ------
    NCZarrError
        The errors of `read`. Values that were read before have been written.
    """
    shape = variable.shape
    if 0 in shape:
        return
    head = f"\n{' ' * indent} {name(variable.name)} =" + ("\n  " if shape[1:] else " ")
    margin = 2 if shape[1:] else columns(variable.name) + 4
    line = Line(write, indent)
    # the rows inside one index of each dimension that has braces
    braced = [
        math.prod(shape[level:-1])
        for level, dim in enumerate(variable.dimensions)
        if level and dim.unlimited
    ]
    blocks = (read(variable, key).reshape(-1) for key in block_keys(variable))
    parts = _char_rows if variable.nc_type == "char" else _number_rows
    last, row, begins = math.prod(shape[:-1]) - 1, 0, True
    for tokens, ends in parts(variable, blocks):
        if begins:
            opening = "{" * sum(row % rows == 0 for rows in braced)
            write((head if row == 0 else "") + opening)
            line.column = indent + margin + len(opening)
        if ends:
            tokens[-1] += "}" * sum((row + 1) % rows == 0 for rows in braced)
        if variable.nc_type == "char":
            write(tokens[0])  # the only data that ncdump never breaks
        else:
            line.put(tokens, ends)
        if ends:
            write(" ;\n" if row == last else ",\n  ")
            row += 1
        begins = ends


def block_keys(variable: Variable) -> Iterator[tuple[slice, ...]]:
    """Yield selections that cover the variable in row-major order, each of at most `READ_BYTES`.

    Each is contiguous: single indices of the first dimensions, a range of the
    next, everything of the rest. Ranges end where chunks end if that limit allows.
    """
    shape = variable.shape
    if not shape:
        yield ()
        return
    size = 64 if variable.dtype.kind == "O" else variable.dtype.itemsize
    sizes = [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axis = next((axis for axis, size in enumerate(sizes) if size <= READ_BYTES), len(shape) - 1)
    step = max(READ_BYTES // sizes[axis], 1)
    if variable.array is not None and step > variable.array.chunk_shape[axis]:
        step -= step % variable.array.chunk_shape[axis]
    rest = [slice(0, length) for length in shape[axis + 1 :]]
    # (`itertools.product` would first make lists of the indices)
    for number in range(math.prod(shape[:axis])):
        outer = position_of(number, shape[:axis])
        for start in range(0, shape[axis], step):
            along = slice(start, min(start + step, shape[axis]))
            yield (*(slice(index, index + 1) for index in outer), along, *rest)


def _number_rows(variable: Variable, blocks: Iterable[Values]) -> Iterator[tuple[list[str], bool]]:
    """Yield the tokens of a row, or of a part of a long one, and whether the row ends with them."""
    spell = spelling(variable)
    length = variable.shape[-1] if variable.shape else 1
    left = length
    for block in blocks:
        for start in range(0, block.size, TEXT_ELEMENTS):
            tokens = spell(block[start : start + TEXT_ELEMENTS])
            position = 0
            while position < len(tokens):
                part = tokens[position : position + left]
                position += left
                left -= len(part)
                yield part, left == 0
                left = left or length


def _char_rows(variable: Variable, blocks: Iterable[Values]) -> Iterator[tuple[list[str], bool]]:
    """Yield the text of a row, or of a part of a long one, and whether the row ends with it.

    NULs at the end of a row are dropped.
    """
    length = variable.shape[-1] if variable.shape else 1
    left, nuls = length, 0
    for block in blocks:
        data = block.tobytes()
        start = 0
        while start < len(data):
            opening = '"' if left == length else ""
            part = data[start : start + min(left, TEXT_ELEMENTS)]
            start += len(part)
            left -= len(part)
            text = part.rstrip(b"\0")
            if text:
                part, nuls = bytes(nuls) + text, len(part) - len(text)
                opening += row_text(part)
            else:
                nuls += len(part)
            yield [opening if left else f'{opening}"'], left == 0
            if left == 0:
                left, nuls = length, 0


class Line:
    """Output that ends a line before a token that would be too long for it.

    Attributes
    ----------
    indent
        Indentation of the group; a continued line is indented by four columns more.
    column
        The column of the next token. In a group it differs from that on the
        terminal: ncdump counts the indent even where it does not print it.
    """

    def __init__(self, write: Callable[[str], object], indent: int) -> None:
        self.write = write
        self.indent = indent
        self.column = 0

    def put(self, tokens: list[str], ends: bool) -> None:
        """Write some tokens of a row, each followed by a comma except the one that ends the row."""
        text = ", ".join(tokens) if ends else ", ".join([*tokens, ""])
        if self.column + columns(text) < LINE_COLUMNS:  # the common case of short rows
            self.write(text)
            self.column += columns(text)
            return
        texts = [f"{token}, " for token in tokens]
        if ends:
            texts[-1] = tokens[-1]
        totals = list(accumulate(map(columns, texts)))
        start = before = at_least = 0
        while True:
            stop = bisect_left(totals, before + LINE_COLUMNS - self.column, start)
            stop = max(stop, start + at_least)
            if stop == len(texts) - 1 and columns(texts[stop]) <= 2:
                stop += 1  # one or two characters never move to the next line
            self.write("".join(texts[start:stop]))
            if stop == len(texts):
                self.column += totals[-1] - before
                return
            self.write("\n" + " " * (self.indent + 4))
            self.column = self.indent + 4
            start, before, at_least = stop, totals[stop - 1] if stop else 0, 1
