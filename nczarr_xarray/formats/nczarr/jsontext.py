r"""JSON as netCDF-C reads and writes it.

Two things differ from the standard. Numbers keep their text (`Number`), because
a char attribute that spells a number is stored as that bare number
and its digits must come back unchanged. And the parser accepts what
netCDF-C's own parser accepts: bare words, ``NaN`` and ``Infinity``, trailing commas, ``\'``, and
whatever follows the value: netCDF-C 4.10.1 was seen to rewrite a document with a
shorter one and to leave the end of the old one behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from nczarr_fsspec.errors import FormatError, PageError, refuse_pointer
from nczarr_xarray.model import text_of

#: None, bool, Number, str, list and dict of the same. Typed loosely: it is foreign data.
JSON: TypeAlias = Any

#: Nesting of documents, at most. netCDF-C's is a few levels; this bounds hostile input.
MAX_DEPTH = 100


class Number(str):
    """The text of a number or of a bare NaN or Infinity, as it stands in the document."""

    __slots__ = ()


#: Objects in which netCDF-C 4.8, which writes ``\'`` for ``"``, has text.
_OF_TEXT = (".zattrs", ".nczattr", "zarr.json")
STANDARD = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=Number, strict=False
)


def loads(data: bytes, key: str) -> JSON:
    r"""Parse one document.

    Parameters
    ----------
    data
        UTF-8 text; bytes that are not UTF-8, which netCDF-C writes into attributes of
        type string, are kept as `nczarr_xarray.model.text_of` keeps them.
    key
        Names the document in errors. It tells also what the escape ``\'`` stands for: in names it
        was a double quote, as the keys of the store show; in the text of attributes it is what
        netCDF-C reads.

    Raises
    ------
    FormatError
        If `data` is empty or not JSON even in netCDF-C's dialect.
    """
    text = ""
    refuse_pointer(key, data)
    try:
        text = text_of(data)
        value = parse_text(text, "'" if key.endswith(_OF_TEXT) else '"')
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(value)
    except RecursionError:
        raise FormatError(key, "is JSON nested too deeply") from None
    except MemoryError:
        raise FormatError(key, f"is JSON of {len(data)} bytes, too many for the memory") from None
    except ValueError as error:
        if not text.strip():
            raise FormatError(key, "is empty, JSON was expected") from None
        if text.lstrip().startswith("<"):  # from a server that answers everything so
            reason = "is a web page, not JSON; the server may want a login"
            raise PageError(key, reason) from None
        raise FormatError(key, f"is not valid JSON ({error})") from None
    return value


def parse_text(text: str, apostrophe: str) -> JSON:
    """Return the value of a text, by the parser of Python if that takes it."""
    text = text.removeprefix("\ufeff")  # editors of Windows write it
    if _SURROGATE.search(text):  # json accepts half of a surrogate pair, which is no text
        return Dialect(text, apostrophe).parse()
    try:
        return STANDARD.decode(text)
    except ValueError as error:
        try:
            return Dialect(text, apostrophe).parse()
        except ValueError:
            raise error from None  # its message has the position


def is_standard(data: str | bytes) -> bool:
    """Tell whether text is JSON for strict parsers, which refuse bare NaN and infinities."""
    try:
        json.loads(data, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def has_remains(data: bytes) -> bool:
    """Tell whether something follows the value of a document that `loads` accepts."""
    reader = Dialect(text_of(data).removeprefix("\ufeff"), "'")
    reader.parse()
    return bool(reader.text[reader.position :].strip())


def _refuse(word: str) -> None:
    raise ValueError(word)


def _check_depth(value: JSON) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        holders = [node for node in level if isinstance(node, (dict, list))]
        if not holders:
            return
        level = [
            member
            for node in holders
            for member in (node.values() if isinstance(node, dict) else node)
        ]
    raise ValueError("nested too deeply")


def dumps(value: JSON) -> str:
    """Write a value the way netCDF-C does: a space after ``:`` and after ``,`` in objects only."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{','.join(map(dumps, value))}]"
    members = (f"{dumps(str(name))}: {dumps(member)}" for name, member in value.items())
    return f"{{{', '.join(members)}}}"


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<punctuation>[][{}:,])
      | "(?P<string>[^"\\]*(?:\\.[^"\\]*)*)"
      | (?P<word>[\w$+.\-]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nanf?|inf|infinityf?)", re.IGNORECASE
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(r"((?:\\u[0-9a-fA-F]{4})+)|\\(.)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Dialect:
    """Recursive descent over netCDF-C's dialect; the slow path, for documents json refuses."""

    def __init__(self, text: str, apostrophe: str) -> None:
        self.text = text
        self.escapes = {**_ESCAPED, "'": apostrophe}
        self.position = 0

    def parse(self) -> JSON:
        return self.value(0)  # the remaining bytes belong to an older document

    def token(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise ValueError("unexpected character or end")
        self.position = match.end()
        kind = match.lastgroup or ""
        return kind, match[kind]

    def value(self, depth: int) -> JSON:
        return self.of(*self.token(), depth)

    def of(self, kind: str, text: str, depth: int) -> JSON:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if kind == "string":
            return self.unescape(text)
        if kind == "word":
            return _word(text)
        if text == "[":
            return [self.of(*token, depth + 1) for token in self.members("]")]
        if text == "{":
            return self.object(depth + 1)
        raise ValueError(f"unexpected {text}")

    def members(self, end: str) -> Iterator[tuple[str, str]]:
        """Yield the first token of each member up to a closing bracket."""
        while (token := self.token()) != ("punctuation", end):
            yield token
            token = self.token()
            if token == ("punctuation", end):
                return
            if token != ("punctuation", ","):
                raise ValueError("a comma was expected")

    def object(self, depth: int) -> dict[str, JSON]:
        found: dict[str, JSON] = {}
        for kind, text in self.members("}"):
            if kind == "punctuation" or self.token() != ("punctuation", ":"):
                raise ValueError("a name and a colon were expected")
            name = self.unescape(text) if kind == "string" else text
            found[name] = self.value(depth)
        return found

    def unescape(self, text: str) -> str:
        def character(match: re.Match[str]) -> str:
            escaped: str | None = match[1]
            if escaped is None:
                return self.escapes.get(match[2], match[2])  # other characters stand for themselves
            plain = "".join(chr(int(code, 16)) for code in escaped.split(r"\u")[1:])
            # pairs like \ud83d\ude00 come out as two surrogates: join them
            return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

        return _ESCAPE.sub(character, text)


def _word(text: str) -> JSON:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered == "null":
        return None
    return Number(text) if _NUMBER.fullmatch(text) else text


def same(one: JSON, other: JSON) -> bool:
    """Tell whether two documents have the same content, however their numbers are spelt."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Number) and isinstance(other, Number) and one != other:
        try:
            return Decimal(one) == Decimal(other)
        except InvalidOperation:
            return False
    return bool(one == other)


def difference(before: JSON, after: JSON) -> str | None:
    """Say how a later description of an array makes chunks mean something else than before.

    None if it does not: the array may have become longer.
    """
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return None if same(before, after) else "it is another document"
    for name in (*before, *(after.keys() - before.keys())):
        old, new = before.get(name), after.get(name)
        if not (same(old, new) or (name == "shape" and _is_longer(old, new))):
            return f"{name} was {_shown(old)} and is {_shown(new)}"
    return None


def _is_longer(old: JSON, new: JSON) -> bool:
    """Tell whether a shape is that of an array that was lengthened."""
    try:
        lengths = zip(map(int, old), map(int, new), strict=True)
        return all(before <= after for before, after in lengths)
    except (ValueError, TypeError):
        return False


def _shown(value: JSON) -> str:
    return "missing" if value is None else f"{dumps(value):.80}"
