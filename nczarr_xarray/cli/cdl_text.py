"""Names and strings in CDL: ncdump's spelling, as observed with release 4.9.0."""

from __future__ import annotations

import re

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
