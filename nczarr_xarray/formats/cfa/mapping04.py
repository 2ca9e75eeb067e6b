"""How partitions of CFA-0.4 are mapped: ``part``, ``reverse``, ``pdimensions``, units."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import Dimension, FragmentMapping

# -- json04 --------------------------------------------------------------------------------------
# The JSON of CFA-0.4, a few partitions at a time: a long table is many small objects.


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


# -- mapping04 -----------------------------------------------------------------------------------


_KEYS = ("part", "reverse", "flip", "pdimensions", "punits", "pcalendar")
#: ``[0, 9, 3]`` is a slice whose end is included, ``(1, 3, 4)`` are positions.
_PIECE = re.compile(r"\s*(?:\[([-\d\s,]*)\]|\(([-\d\s,]*)\))\s*(,|$)")
_INTEGER = re.compile(r"\s*-?\d{1,18}\s*")

Part = tuple[slice | tuple[int, ...], ...]


_Wrong = Callable[[str], FormatError]


class Mappings:
    """Makes mappings of what partitions say; equal ones are one object.

    Parameters
    ----------
    dimensions
        Of the aggregated data.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self._names = [dimension.name for dimension in dimensions]
        self._known: dict[str, FragmentMapping | None] = {}

    def of(
        self, partitions: list[dict[str, Any]], wrong: Callable[[int, str], FormatError]
    ) -> dict[int, FragmentMapping]:
        """Return the mappings of the partitions that are not taken as they are.

        Parameters
        ----------
        wrong
            Returns the error for a partition, by its place in the list.
        """
        mappings: dict[int, FragmentMapping] = {}
        if set(_KEYS).isdisjoint(set().union(*partitions)):
            return mappings
        for at, one in enumerate(partitions):
            stated = repr([one.get(key) for key in _KEYS])
            if stated not in self._known:
                self._known[stated] = self._mapping(one, partial(wrong, at))
            mapping = self._known[stated]
            if mapping is not None:
                mappings[at] = mapping
        return mappings

    def _mapping(self, one: dict[str, Any], wrong: _Wrong) -> FragmentMapping | None:
        stated = self._dimensions(one, "pdimensions", wrong)
        names = self._names if stated is None else stated
        reverse = self._dimensions(one, "reverse" if "reverse" in one else "flip", wrong) or []
        if not set(reverse) <= set(names):
            raise wrong(f"reverses {reverse!r:.60}, and has the dimensions {names}")
        axes = {name: axis for axis, name in enumerate(self._names)}
        mapping = FragmentMapping(
            part=self._part(one.get("part"), wrong),
            reverse=tuple(sorted(names.index(name) for name in reverse)),
            # a dimension that the data lack has length 1
            axes=None if names == self._names else tuple(axes.get(name) for name in names),
            units=self._text(one, "punits", wrong),
            calendar=self._text(one, "pcalendar", wrong),
        )
        return None if mapping == FragmentMapping() else mapping

    def _text(self, one: dict[str, Any], key: str, wrong: _Wrong) -> str | None:
        value = one.get(key)
        if value is not None and type(value) is not str:
            raise wrong(f"has {key} {value!r:.60}, not text")
        return value

    def _dimensions(self, one: dict[str, Any], key: str, wrong: _Wrong) -> list[str] | None:
        names = one.get(key)
        if names is None:
            return None
        if type(names) is str:
            names = names.split()
        if (
            type(names) is not list
            or not all(type(name) is str for name in names)
            or len(set(names)) != len(names)
        ):
            raise wrong(f"has {key} {names!r:.60}, not names of dimensions")
        return names

    def _part(self, value: Any, wrong: _Wrong) -> Part | None:
        if value is None:
            return None
        pieces = _spelled(value) if type(value) is str else _listed(value)
        if pieces is None:
            raise wrong(f"has the part {value!r:.60}, which cannot be understood")
        return pieces or None  # "[]" is all


def _listed(value: Any) -> Part | None:
    """Read what was written as JSON, which has no tuples: three integers are a slice."""
    if type(value) is not list:
        return None
    parts: list[slice | tuple[int, ...]] = []
    for piece in value:
        if type(piece) is not list or not all(
            type(n) is int and 0 <= abs(n) < 1 << 62 for n in piece
        ):
            return None
        one = _slice(piece) if len(piece) == 3 else _positions(piece)
        if one is None:
            return None
        parts.append(one)
    return tuple(parts)


def _spelled(text: str) -> Part | None:
    """Read what was written as Python."""
    text = text.strip()
    if text[:1] + text[-1:] not in ("[]", "()"):
        return None
    inner, at = text[1:-1].strip(), 0
    parts: list[slice | tuple[int, ...]] = []
    while at < len(inner):
        match = _PIECE.match(inner, at)
        if match is None:
            return None
        number = match[2] if match[1] is None else match[1]
        numbers = number.strip().removesuffix(",").split(",") if number.strip() else []
        if not all(_INTEGER.fullmatch(one) for one in numbers):
            return None
        integers = [int(one) for one in numbers]
        piece = _positions(integers) if match[1] is None else _slice(integers)
        if piece is None:
            return None
        parts.append(piece)
        at = match.end()
    return tuple(parts)


def _positions(numbers: list[int]) -> tuple[int, ...] | None:
    return None if any(n < 0 for n in numbers) else tuple(numbers)


def _slice(numbers: list[int]) -> slice | None:
    """Return the slice of begin, last and step."""
    if len(numbers) == 2:
        numbers = [*numbers, 1]
    if len(numbers) != 3 or numbers[2] == 0 or min(numbers[:2]) < 0:
        return None
    start, last, step = numbers
    if step > 0:
        return slice(start, last + 1, step)
    return slice(start, last - 1 if last else None, step)
