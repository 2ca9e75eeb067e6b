"""CFA-0.6.2: terms for location, file, format and address, by keywords in any case."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.formats.cf import Scoped, text_in
from nczarr_xarray.formats.cfa.borders import (
    ATTRIBUTES,
    Borders,
    borders_of,
    keywords,
    names_of,
    record_terms,
    spelled,
    text_term,
    variables_of,
    with_record,
)
from nczarr_xarray.formats.cfa.dialect import (
    IN_04,
    MAPPED,
    MOST_TEXT,
    Decoded,
    Encoded,
    array_of,
    column,
    constant,
    count_of,
    is_netcdf,
    names_in_text,
    refuse,
)
from nczarr_xarray.model import FragmentPlace, Fragments, Variable

_KEYWORDS = ("location", "file", "format", "address")
_VERSION = "CFA-0.6.2"
_SUBSTITUTED = re.compile(r"\$\{[^{}]*\}")


class Cfa062:
    """Reads and writes CFA-0.6.2."""

    name = "0.6.2"
    conventions = "CFA-0.6.2"
    text_terms = frozenset({"file", "format", "address"})
    plain_addresses = False
    keeps_packing = False
    keeps_versions = True

    def recognizes(self, variable: Variable) -> bool:
        """Tell an aggregation variable by the keywords of its terms."""
        terms = keywords(variable)
        folded = {key.lower() for key in terms}
        # ``shape`` and ``location`` were CF-1.13's words for ``map`` and ``uris`` once
        return "location" in folded and ("file" in folded or "shape" not in terms)

    def terms(self, scoped: Scoped) -> Mapping[str, Variable]:
        """Find the variables of the terms; those of other keywords are not looked at."""
        names = names_of(scoped, fold=True)
        if "address" not in names:
            raise scoped.error("has no address in aggregated_data")
        return variables_of(scoped, {key: names[key] for key in _KEYWORDS if key in names})

    def decode(self, scoped: Scoped, values: Mapping[str, np.ndarray]) -> Decoded:
        """Make a table of fragments of the terms."""
        terms = self.terms(scoped)
        borders = borders_of(scoped, np.asarray(values["location"]), terms["location"])
        columns = {key: values[key] for key in ("file", "format", "address") if key in terms}
        listed = max(one.size for one in columns.values())
        count = count_of(scoped, borders.grid, listed)
        tries = max(
            (one.shape[-1] for one in columns.values() if one.ndim == len(borders.grid) + 1),
            default=1,
        )
        spread = {
            key: _spread(scoped, one, borders, terms[key], tries) for key, one in columns.items()
        }
        if "file" in terms:
            spread["file"] = _substituted(spread["file"], terms["file"])
        places = _places(scoped, terms["address"], spread, count, tries)
        fragments = Fragments(borders.starts, borders.stops, *places[:3], others=places[3])
        fragments, problems = with_record(fragments, values, terms)
        array = array_of(scoped, borders.dimensions, fragments)
        return Decoded(borders.dimensions, array, ATTRIBUTES, problems=problems)

    def encode(
        self,
        name: str,
        dimensions: tuple[tuple[str, int], ...],
        fragments: Fragments,
        beside: str = "",
    ) -> Encoded:
        """Spell a table of fragments: the terms are ``cfa_location_...``, ``cfa_file_...``, ..."""
        if fragments.values is not None:
            raise ExportError(name, f"has values instead of fragments, which {_VERSION} cannot say")
        if fragments.mappings:
            number = next(iter(fragments.mappings))
            raise refuse(name, fragments, number, MAPPED, _VERSION, IN_04)
        names = names_in_text(name, dimensions, _VERSION, name)
        grid = spelled(name, dimensions, fragments, "location")
        tries = 1 + max(map(len, fragments.others.values()), default=0)
        own = [
            (fragments.places(number) if number >= 0 else ())[:tries]
            for number in grid.numbers.tolist()
        ]
        shape = grid.dimensions if tries == 1 else (*grid.dimensions, (f"cfa_tries_{name}", tries))
        nowhere = FragmentPlace("", "", "")
        every = [place for places in own for place in (*places, *[nowhere] * (tries - len(places)))]
        formats = [_format_of(place.format) for place in every]
        stated = [kind for kind, place in zip(formats, every, strict=True) if place.name]
        file = text_term(f"cfa_file_{name}", shape, [place.address for place in every], False)
        variables = [place.name for place in every]
        alike = len(set(variables)) == 1 and all(place.address for place in every)
        address = text_term(f"cfa_address_{name}", shape, variables, alike)
        if len(set(stated)) <= 1:
            formats = stated[:1] or ["nc"]
        recorded, record = record_terms(name, grid, fragments)
        return Encoded(
            {
                "aggregated_dimensions": " ".join(names),
                "aggregated_data": (
                    f"location: cfa_location_{name} file: cfa_file_{name} "
                    f"format: cfa_format_{name} address: cfa_address_{name}"
                ),
                **recorded,
            },
            (
                grid.map,
                file,
                text_term(f"cfa_format_{name}", shape, formats, True),
                address,
                *record,
            ),
        )


def _format_of(name: str) -> str:
    """Return what CFA-0.6.2 calls a format: only netCDF has a name, ``nc``."""
    return "nc" if is_netcdf(name) else name


def _spread(
    scoped: Scoped, values: np.ndarray, borders: Borders, variable: Variable, tries: int
) -> np.ndarray:
    """Return a term by fragment and version.

    Raises
    ------
    FormatError
        If it has another shape.
    """
    grid = borders.grid
    if values.shape in ((), grid):
        values = values[..., None]
    if values.shape not in ((1,), (*grid, 1), (*grid, tries)):
        raise FormatError(
            variable.path,
            f"has the shape {values.shape}, and {scoped.variable.path} the fragments {grid}",
        )
    return np.broadcast_to(values, (*grid, tries))


def _substituted(values: np.ndarray, variable: Variable) -> np.ndarray:
    """Put what the file term's attribute says for each ``${name}`` in its texts.

    Raises
    ------
    FormatError
        If the attribute cannot be understood, or the texts become too long.
    """
    text = text_in(variable.attributes, "substitutions")
    if text is None:
        return values
    words = text.split()
    if len(words) % 2 or not all(
        key.endswith(":") and _SUBSTITUTED.fullmatch(key[:-1]) for key in words[::2]
    ):
        raise FormatError(
            variable.path, f"has the substitutions {text!r:.200}, not '${{name}}: value ...'"
        )
    known = {key[:-1]: value for key, value in zip(words[::2], words[1::2], strict=True)}
    longest = max(map(len, known.values()), default=0)
    room = MOST_TEXT
    result = []
    for one in values.reshape(-1).tolist():
        if one is not None and "${" in one:
            room -= len(one) + longest * one.count("${")
            if room < 0:
                raise FormatError(
                    variable.path, "has more text than can be, after its substitutions"
                )
            one = _SUBSTITUTED.sub(lambda match: known.get(match[0], match[0]), one)
        result.append(one)
    return column(result).reshape(values.shape)


def _places(
    scoped: Scoped, address: Variable, spread: Mapping[str, np.ndarray], count: int, tries: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[int, tuple[FragmentPlace, ...]]]:
    """Return addresses, names, formats and other places of all fragments."""
    nothing = constant(None, count * tries)
    files, names, formats = (
        spread[key].reshape(-1).tolist() if key in spread else nothing.tolist()
        for key in ("file", "address", "format")
    )
    own: dict[str, str | None] = {}
    # a fragment in the master may be in the group of the terms, as in the specification's examples
    beside = Scoped(address, scoped.root.find(address.group) or scoped.root, scoped.root)
    for at, (file, name) in enumerate(zip(files, names, strict=True)):
        if file is not None and name is None:
            raise scoped.error(
                f"has no address of a variable in {file!r:.200} (fragment {at // tries})",
            )
        if file is None and name is not None:  # a variable of the master, if there is another
            if name not in own:
                variable = scoped.sibling(name) or beside.sibling(name)
                itself = variable is scoped.variable
                own[name] = None if itself else (variable.path if variable else name).lstrip("/")
            if own[name] is not None:
                files[at], names[at] = "", own[name]
    if tries == 1:
        return column(files), _named(names), _named(formats), {}
    others: dict[int, tuple[FragmentPlace, ...]] = {}
    first: list[FragmentPlace | None] = []
    for number in range(count):
        places = [
            FragmentPlace(files[at], names[at] or "", formats[at] or "")
            for at in range(number * tries, (number + 1) * tries)
            if files[at] is not None
        ]
        first.append(places[0] if places else None)
        if len(places) > 1:
            others[number] = tuple(places[1:])
    return (
        column([place.address if place else None for place in first]),
        column([place.name if place else "" for place in first]),
        column([place.format if place else "" for place in first]),
        others,
    )


def _named(values: list[str | None]) -> np.ndarray:
    return column([value or "" for value in values])
