"""The JSON of CFA-0.4: read a few partitions at a time, their mappings, and written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_fsspec.places.address import is_absolute
from nczarr_xarray.formats.cfa.dialect import Encoded, is_netcdf, names_in_text, refuse
from nczarr_xarray.model import Dimension, FragmentMapping, Fragments

# -- the document ---------------------------------------------------------------------------------
# It is read a few partitions at a time: a long table is many small objects.


#: Partitions that are objects of Python at the same time.
PARTITIONS_AT_A_TIME = 1024

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
        if len(some) == PARTITIONS_AT_A_TIME:
            take(some)
            some = []
    take(some)
    return at


# -- mappings ------------------------------------------------------------------------------------
# What says how partitions are mapped: ``part``, ``reverse``, ``pdimensions``, units.


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
        pieces = spelled_part(value) if type(value) is str else listed_part(value)
        if pieces is None:
            raise wrong(f"has the part {value!r:.60}, which cannot be understood")
        return pieces or None  # "[]" is all


def listed_part(value: Any) -> Part | None:
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


def spelled_part(text: str) -> Part | None:
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


# -- writing -----------------------------------------------------------------------------------


_VERSION = "CFA-0.4"
#: The number of a variable, instead of its name.
_NUMBER = re.compile(r"#\d{1,18}")


def _format_of(name: str) -> str | None:
    """Return what CFA-0.4 calls a format; None if it has no word for it."""
    if is_netcdf(name):
        return "netCDF"
    return "NCZarr" if name.lower() in ("nczarr", "zarr") else None


def encode(name: str, dimensions: tuple[tuple[str, int], ...], fragments: Fragments) -> Encoded:
    """Spell a table of fragments; those that are missing are left out."""
    if fragments.values is not None:
        raise ExportError(name, f"has values instead of fragments, which {_VERSION} cannot say")
    if fragments.others:
        number = next(iter(fragments.others))
        raise refuse(name, fragments, number, "is in several datasets", _VERSION)
    names = names_in_text(name, dimensions, _VERSION)
    axes = [
        [(at, start, stop) for at, (start, stop) in enumerate(zip(*bounds, strict=True))]
        for bounds in zip(
            (starts.tolist() for starts in fragments.starts),
            (stops.tolist() for stops in fragments.stops),
            strict=True,
        )
    ]
    table: dict[str, Any] = {
        "Partitions": [
            {
                "index": [at for at, _, _ in place],
                "location": [[start, stop - 1] for _, start, stop in place],
                **_stored(
                    name, names, fragments, number, [stop - start for _, start, stop in place]
                ),
            }
            for number, place in enumerate(product(*axes))
            if fragments.addresses[number] is not None
        ],
        "pmdimensions": names,
        "pmshape": list(fragments.grid),
    }
    if any(address and not is_absolute(address) for address in fragments.addresses.tolist()):
        table["base"] = ""  # for cf-python: beside the master
    listed = " ".join(names)
    return Encoded(
        {
            "cf_role": "cfa_variable",
            "cfa_dimensions": listed,
            "cf_dimensions": listed,
            "cfa_array": json.dumps(table),
        }
    )


def _stored(
    name: str, names: list[str], fragments: Fragments, number: int, lengths: list[int]
) -> dict[str, Any]:
    """Return what is said of the file of a fragment, and of its mapping."""
    address, variable = fragments.addresses[number], fragments.names[number]
    kind = _format_of(fragments.formats[number])
    if kind is None:
        what = f"has the format {fragments.formats[number]!r}"
        raise refuse(name, fragments, number, what, _VERSION)
    mapping = fragments.mappings.get(number)
    shape = lengths
    if mapping is not None and mapping.axes is not None:
        shape = [1 if axis is None else lengths[axis] for axis in mapping.axes]
    stored: dict[str, Any] = {"shape": shape}
    if _NUMBER.fullmatch(variable):
        stored["varid"] = int(variable[1:])
    else:
        stored["ncvar"] = variable
    if address:
        stored["file"] = address
    stored["format"] = kind
    mapped = {} if mapping is None else _mapped(name, names, fragments, number, shape)
    return {"subarray": stored, **mapped}


def _mapped(
    name: str, names: list[str], fragments: Fragments, number: int, shape: list[int]
) -> dict[str, Any]:
    """Return what is said of the mapping of a fragment."""
    mapping = fragments.mappings[number]
    stated: dict[str, Any] = {}
    dimensions = names
    if mapping.axes is not None:
        dimensions = [
            f"cfa_{at}_{name}" if axis is None else names[axis]
            for at, axis in enumerate(mapping.axes)
        ]
    if mapping.part is not None:
        pieces = [_piece(piece, shape[at : at + 1]) for at, piece in enumerate(mapping.part)]
        if None in pieces:
            what = f"is cut at {mapping.part[pieces.index(None)]}"
            raise refuse(name, fragments, number, what, _VERSION)
        stated["part"] = f"[{', '.join(map(str, pieces))}]"
    if mapping.reverse:
        if max(mapping.reverse) >= len(dimensions):
            what = "runs backwards along a dimension that the data lack"
            raise refuse(name, fragments, number, what, _VERSION)
        stated["reverse"] = [dimensions[at] for at in mapping.reverse]
    if mapping.axes is not None:
        stated["pdimensions"] = dimensions
    if mapping.units is not None:
        stated["punits"] = mapping.units
    if mapping.calendar is not None:
        stated["pcalendar"] = mapping.calendar
    return stated


def _piece(piece: slice | tuple[int, ...], length: list[int]) -> str | None:
    """Return what of a dimension counts, with its last position; None if that cannot be said.

    Parameters
    ----------
    length
        How much of the dimension counts, if it is known.
    """
    if isinstance(piece, tuple):
        return f"({', '.join(map(str, piece))}{',' * (len(piece) == 1)})"
    start, stop, step = piece.start, piece.stop, 1 if piece.step is None else piece.step
    if step > 0:
        start = start or 0
        if stop is None and length:
            stop = start + length[0] * step
        last = -1 if stop is None else stop - 1
    else:
        last = 0 if stop is None else stop + 1
    if start is None or min(start, last) < 0 or (stop is not None and stop < 0):
        return None
    return f"[{start}, {last}, {step}]"
