"""The JSON of CFA-0.4, a few partitions at a time: a long table is many small objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

#: Partitions that are objects of Python at the same time.
_TOGETHER = 1024

_DECODER = json.JSONDecoder(strict=False)
_BLANK = re.compile(r"[ \t\n\r]*")
#: What follows a value.
_NEXT = re.compile(r"[ \t\n\r]*([],}:])[ \t\n\r]*")


def read_table(text: str, take: Callable[[list[Any]], None]) -> Any:
    """Parse a document.

    Parameters
    ----------
    take
        Is given the members of the list ``Partitions``, some at a time; that list is empty in
        the document that is returned.

    Raises
    ------
    ValueError
        If the text is not JSON.
    """
    at = _skipped(text, 0)
    if text[at : at + 1] != "{":
        return _DECODER.decode(text)
    table: dict[str, Any] = {}
    at = _skipped(text, at + 1)
    end = text[at : at + 1] == "}"
    at += end
    while not end:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name", text, at)
        key, at = _DECODER.raw_decode(text, at)
        _, at = _punctuation(text, at, ":")
        if key == "Partitions" and text[at : at + 1] == "[":
            table[key], at = [], _read_list(text, at + 1, take)
        else:
            table[key], at = _DECODER.raw_decode(text, at)
        mark, at = _punctuation(text, at, ",}")
        end = mark == "}"
    at = _skipped(text, at)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return table


def _skipped(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    assert match is not None  # it matches nothing
    return match.end()


def _punctuation(text: str, at: int, wanted: str) -> tuple[str, int]:
    match = _NEXT.match(text, at)
    if match is None or match[1] not in wanted:
        raise json.JSONDecodeError(f"Expecting one of {wanted!r}", text, at)
    return match[1], match.end()


def _read_list(text: str, at: int, take: Callable[[list[Any]], None]) -> int:
    """Read the members of a list; return where it ends."""
    at = _skipped(text, at)
    if text[at : at + 1] == "]":
        return at + 1
    some: list[Any] = []
    decode, following = _DECODER.raw_decode, _NEXT.match
    mark = ","
    while mark == ",":
        value, at = decode(text, at)
        some.append(value)
        match = following(text, at)
        if match is None or match[1] not in ",]":
            raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        mark = match[1]
        at = match.end()
        if len(some) == _TOGETHER:
            take(some)
            some = []
    take(some)
    return at
