"""CF-1.13 aggregation variables: a map, and URIs with identifiers, or unique values.

Before 1.13 other keywords were proposed, and written: ``shape``, ``location`` and ``address``, and
``value`` for unique values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.formats.cf import Scoped, marks_of, missing_in, missing_numbers, stated_numbers
from nczarr_xarray.formats.cfa.borders import (
    ATTRIBUTES,
    Borders,
    borders_of,
    names_of,
    record_terms,
    spelled,
    text_term,
    variables_of,
    whole,
    with_record,
)
from nczarr_xarray.formats.cfa.dialect import (
    IN_04,
    MAPPED,
    Decoded,
    Encoded,
    Term,
    array_of,
    column,
    constant,
    names_in_text,
    refuse,
    texts,
)
from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES, Fragments, Variable, bytes_of

_VERSION = "CF-1.13"
#: What to do where it has no spelling.
_WRITE = "; write it with cfa_version='0.6.2'"
#: The sets of keywords, and what each is called here.
_SETS = (
    {"map": "map", "uris": "uris", "identifiers": "identifiers"},
    {"map": "map", "unique_values": "unique_values"},
    {"shape": "map", "location": "uris", "address": "identifiers"},
    {"shape": "map", "value": "unique_values"},
)


class Cf113:
    """Reads and writes CF-1.13."""

    name = "1.13"
    conventions = "CF-1.13"
    text_terms = frozenset({"uris", "identifiers"})
    plain_addresses = False
    keeps_packing = False
    keeps_versions = True

    def recognizes(self, variable: Variable) -> bool:
        """Tell an aggregation variable by its attribute ``aggregated_data``."""
        return "aggregated_data" in variable.attributes

    def terms(self, scoped: Scoped) -> Mapping[str, Variable]:
        """Find the variables of the terms."""
        names = names_of(scoped, fold=False)
        spelling = next((one for one in _SETS if one.keys() == names.keys()), None)
        if spelling is None:
            raise scoped.error(
                f"has the keywords {', '.join(names)!r:.200} in aggregated_data; 'map, uris, "
                "identifiers' or 'map, unique_values' are expected",
            )
        return variables_of(scoped, {spelling[key]: name for key, name in names.items()})

    def decode(self, scoped: Scoped, values: Mapping[str, np.ndarray]) -> Decoded:
        """Make a table of fragments of the terms."""
        terms = self.terms(scoped)
        borders = borders_of(scoped, np.asarray(values["map"]), terms["map"])
        if "unique_values" in terms:
            fragments = _of_values(scoped, values["unique_values"], borders, terms["unique_values"])
            array = array_of(scoped, borders.dimensions, fragments)
            return Decoded(borders.dimensions, array, ATTRIBUTES)
        addresses = whole(scoped, values["uris"], borders, terms["uris"], scalar=False)
        identifiers = values["identifiers"]
        if identifiers.shape == () and identifiers[()] is not None:
            names = constant(identifiers[()], len(addresses))
        else:
            found = whole(scoped, identifiers, borders, terms["identifiers"], scalar=True).tolist()
            for number, (address, name) in enumerate(zip(addresses.tolist(), found, strict=True)):
                if address is not None and name is None:
                    raise scoped.error(
                        f"has no identifier of a variable in {address!r:.200} (fragment {number})",
                    )
            names = column([name or "" for name in found])
        lacking = addresses.tolist().count(None)
        nothing = constant("", len(addresses))
        fragments = Fragments(borders.starts, borders.stops, addresses, names, nothing)
        warning = f"{lacking} fragments have no URI" if lacking else ""
        fragments, problems = with_record(fragments, values, terms)
        array = array_of(scoped, borders.dimensions, fragments, warning=warning)
        return Decoded(borders.dimensions, array, ATTRIBUTES, problems=problems)

    def encode(
        self,
        name: str,
        dimensions: tuple[tuple[str, int], ...],
        fragments: Fragments,
        beside: str = "",
    ) -> Encoded:
        """Spell a table of fragments: the terms are ``cfa_map_...``, ``cfa_uris_...``, ..."""
        for cases, what, instead in (
            (fragments.mappings, MAPPED, IN_04),
            (fragments.others, "is in several datasets", ""),
        ):
            if cases:
                raise refuse(name, fragments, next(iter(cases)), what, _VERSION, instead)
        names = names_in_text(name, dimensions, _VERSION, name)
        grid = spelled(beside or name, dimensions, fragments, "map")
        numbers = grid.numbers
        attributes = {"aggregated_dimensions": " ".join(names)}
        if fragments.values is not None:
            term = _value_term(name, grid.dimensions, fragments, fragments.values, numbers)
            attributes["aggregated_data"] = f"map: {grid.map.path} unique_values: {term.path}"
            return Encoded(attributes, (grid.map, term))
        if (numbers < 0).any():
            raise ExportError(
                name, f"has data that no fragment holds, which {_VERSION} cannot say{_WRITE}"
            )
        uris = f"cfa_uris_{beside or name}"
        identifiers = text_term(
            f"cfa_identifiers_{name}", grid.dimensions, fragments.names.tolist(), True
        )
        attributes["aggregated_data"] = (
            f"map: {grid.map.path} uris: {uris} identifiers: {identifiers.path}"
        )
        recorded, record = record_terms(beside or name, grid, fragments)
        attributes |= recorded
        if beside:
            return Encoded(attributes, (identifiers,))
        addresses = fragments.addresses.tolist()
        for number, address in enumerate(addresses):
            if not address:
                what = "is missing" if address is None else "is in the same dataset"
                raise refuse(name, fragments, number, what, _VERSION, _WRITE)
        own = text_term(uris, grid.dimensions, addresses, False)
        return Encoded(attributes, (grid.map, own, identifiers, *record))


def _of_values(
    scoped: Scoped, values: np.ndarray, borders: Borders, variable: Variable
) -> Fragments:
    """Return a table whose fragments are values."""
    dtype = scoped.variable.dtype.newbyteorder("=")
    values = np.asarray(values)
    if dtype.kind == "O":
        values = texts(values, variable)
    elif values.dtype != dtype and {values.dtype.kind, dtype.kind} - set("iufb"):
        raise FormatError(
            variable.path, f"holds {values.dtype}, and {scoped.variable.path} {dtype}"
        )
    uniques = whole(scoped, values, borders, variable, scalar=True)
    missing = _missing(uniques, variable)
    addresses = column([None if one else "" for one in missing.tolist()])
    with np.errstate(invalid="ignore", over="ignore"):
        cast = np.array(uniques, dtype)
        if dtype.kind in "iu" and not ((cast == uniques) | missing).all():
            raise FormatError(
                variable.path, f"has values that are no {dtype}, which {scoped.variable.path} holds"
            )
    if dtype.kind == "O":
        cast[missing] = ""
    nothing = constant("", len(uniques))
    return Fragments(borders.starts, borders.stops, addresses, nothing, nothing, values=cast)


def _missing(values: np.ndarray, variable: Variable) -> np.ndarray:
    if values.dtype.kind == "O":
        return np.array([value is None for value in values.tolist()], bool)
    if values.dtype.kind == "S":
        marks = (bytes_of(m) if isinstance(m, str) else m for m in marks_of(variable))
        return np.isin(values, np.array([m for m in marks if isinstance(m, bytes)], "S"))
    missing = missing_in(values, missing_numbers(variable.nc_type, stated_numbers(variable)))
    return np.zeros(values.shape, bool) if missing is None else missing


def _value_term(
    name: str,
    dimensions: tuple[tuple[str, int], ...],
    fragments: Fragments,
    values: np.ndarray,
    numbers: np.ndarray,
) -> Term:
    """Return the term of unique values."""
    addresses = fragments.addresses
    missing = np.array([n < 0 or addresses[n] is None for n in numbers.tolist()], bool)
    column = np.zeros(len(numbers), values.dtype)
    column[~missing] = values[numbers[~missing]]
    attributes: dict[str, Any] = {}
    if values.dtype.kind == "O":
        column[missing] = ""
        if any(value == "" for value in column[~missing].tolist()):
            raise ExportError(name, f"has an empty text as a value, which {_VERSION} cannot say")
    else:
        fill = _unused(column[~missing])
        if fill is None:
            raise ExportError(
                name, f"has all values of {values.dtype}, and {_VERSION} needs one for missing data"
            )
        column[missing] = fill
        attributes["_FillValue"] = fill
    shape = [length for _, length in dimensions]
    return Term(f"cfa_unique_values_{name}", dimensions, column.reshape(shape), attributes)


def _unused(values: np.ndarray) -> Any:
    """Return a value that is none of `values`; None if there is no other."""
    kind = next((kind for kind, dtype in NC_DTYPES.items() if dtype == values.dtype), "")
    candidates: list[Any] = [NC_DEFAULT_FILL[kind]] if kind else []
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        few = min(len(values) + 1, int(limits.max) - int(limits.min) + 1)
        candidates += range(int(limits.max), int(limits.max) - few, -1)
    elif values.dtype.kind == "f":
        candidates += [-9.969209968386869e36, *range(len(values) + 1)]
    elif values.dtype.kind == "S":
        candidates += [bytes([at]) for at in range(1, 256)]
    taken = set(values.tolist())
    for candidate in candidates:
        number = np.array(candidate, values.dtype)
        if number.item() not in taken:
            return number[()]
    return None
