"""The borders of fragments: of ``aggregated_data``, and of the matrices of CFA-0.4 and 0.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.formats.cf import Scoped, marks_of, text_in
from nczarr_xarray.formats.cfa.dialect import Term, column, constant, count_of, dimensions_of
from nczarr_xarray.model import NC_DEFAULT_FILL, Dimension, Fragments, Record, Variable, borders

#: Names the variables with the record of a table: which versions of files it is about.
_RECORD = "aggregated_versions"
ATTRIBUTES = frozenset({"aggregated_dimensions", "aggregated_data", _RECORD})

_INT64 = np.dtype(np.int64)
#: What stands for no fragment in maps that are written.
_NO_FRAGMENT = int(NC_DEFAULT_FILL["int"])


def keywords(variable: Variable) -> list[str]:
    """Return the keywords of the attribute, as far as it can be understood."""
    return [key for key, _ in _pairs(variable)[0]]


def _pairs(
    variable: Variable, attribute: str = "aggregated_data"
) -> tuple[list[tuple[str, str]], bool]:
    """Return keywords with the names of variables, and whether that is all there is."""
    words = (text_in(variable.attributes, attribute) or "").split()
    pairs = [
        (key[:-1], name)
        for key, name in zip(words[::2], words[1::2], strict=False)
        if key.endswith(":") and len(key) > 1
    ]
    return pairs, bool(words) and len(pairs) * 2 == len(words)


def names_of(scoped: Scoped, *, fold: bool) -> dict[str, str]:
    """Return the names of the terms' variables by keyword.

    Parameters
    ----------
    fold
        Whether keywords are taken in lower case.

    Raises
    ------
    FormatError
        If the attribute is not a list of these, or has one twice.
    """
    pairs, whole = _pairs(scoped.variable)
    if not whole:
        text = scoped.text("aggregated_data")
        raise scoped.error(f"has the aggregated_data {text!r:.200}, not 'keyword: name ...'")
    names: dict[str, str] = {}
    for key, name in pairs:
        term = key.lower() if fold else key
        if term in names:
            raise scoped.error(f"has {key!r} twice in aggregated_data")
        names[term] = name
    return names


def variables_of(scoped: Scoped, names: Mapping[str, str]) -> dict[str, Variable]:
    """Find the variables that terms name, and those of the record, if it is all there.

    Raises
    ------
    FormatError
        If one is not there.
    """
    variables = {}
    for key, name in names.items():
        variable = scoped.sibling(name)
        if variable is None or variable is scoped.variable:
            raise scoped.error(
                f"names the variable {name!r:.200} in aggregated_data ({key}), there is none",
            )
        variables[key] = variable
    found = {key: scoped.sibling(name) for key, name in _pairs(scoped.variable, _RECORD)[0]}
    sizes, numbers = found.get("sizes"), found.get("versions")
    return (
        variables
        if sizes is None or numbers is None
        else {**variables, "sizes": sizes, "versions": numbers}
    )


class Borders(NamedTuple):
    """Where fragments are.

    Attributes
    ----------
    dimensions
        Of the aggregated data.
    starts, stops
        As of `nczarr_xarray.model.Fragments`.
    """

    dimensions: tuple[Dimension, ...]
    starts: tuple[np.ndarray, ...]
    stops: tuple[np.ndarray, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Fragments along each dimension."""
        return tuple(map(len, self.starts))


def borders_of(scoped: Scoped, sizes: np.ndarray, variable: Variable) -> Borders:
    """Make the borders of fragments of their sizes along each dimension, padded with missing.

    Raises
    ------
    FormatError
        If they are not those of the aggregated dimensions.
    """

    def wrong(reason: str) -> FormatError:
        return FormatError(variable.path, reason)

    names = scoped.text("aggregated_dimensions")
    if names is None:
        raise scoped.error("has aggregated_data, and no text aggregated_dimensions")
    dimensions = dimensions_of(scoped, "aggregated_dimensions", names.split())
    if sizes.dtype.kind not in "iu":
        raise wrong(f"holds {sizes.dtype}; sizes of fragments are integers")
    if not dimensions:
        if sizes.size != 1:
            raise scoped.error(f"is one value, and {variable.path} has {sizes.size} sizes")
        return Borders((), (), ())
    if sizes.ndim != 2 or len(sizes) != len(dimensions):
        expected = f"one row for each of the dimensions {names.split()} of {scoped.variable.path}"
        raise wrong(f"has the shape {sizes.shape}; {expected} is expected")
    none = [mark for mark in marks_of(variable) if not isinstance(mark, (str, bytes))]
    starts, stops = [], []
    for row, dimension in zip(sizes, dimensions, strict=True):
        missing = np.append(np.isin(row, none), True)
        filled = int(np.argmax(missing))
        lengths, along = row[:filled], repr(dimension.name)
        odd = lengths[(lengths <= 0) | (lengths > dimension.size)]
        if odd.size or filled > dimension.size or not missing[filled:].all():
            shown = f"{int(odd[0])}" if odd.size else f"{row[:8].tolist()}"
            raise wrong(
                f"has the sizes {shown} along {along}, which has the length {dimension.size}"
            )
        if (total := sum(lengths.tolist())) != dimension.size:
            raise wrong(f"has sizes along {along} whose sum is {total}, not {dimension.size}")
        stops.append(np.cumsum(lengths, dtype=np.int64))
        starts.append(stops[-1] - lengths.astype(np.int64))
    return Borders(dimensions, tuple(starts), tuple(stops))


def whole(
    scoped: Scoped, values: np.ndarray, borders: Borders, variable: Variable, *, scalar: bool
) -> np.ndarray:
    """Return a term as a column; one that is scalar stands for all fragments.

    Raises
    ------
    FormatError
        If it has not one value for each fragment.
    """
    if scalar and values.shape == ():
        count = count_of(scoped, borders.grid, 0)
        return np.broadcast_to(values, (count,))
    if values.shape != borders.grid:
        fragments = f"{scoped.variable.path} the fragments {borders.grid}"
        raise FormatError(variable.path, f"has the shape {values.shape}, and {fragments}")
    return values.reshape(-1)


class Spelled(NamedTuple):
    """A grid of fragments as it is written: without what lies between fragments.

    Attributes
    ----------
    map
        The term.
    dimensions
        Of the other terms.
    numbers
        In C order over `dimensions`: the fragment, or -1 for what lies between fragments.
    """

    map: Term
    dimensions: tuple[tuple[str, int], ...]
    numbers: np.ndarray


def spelled(
    name: str, dimensions: tuple[tuple[str, int], ...], fragments: Fragments, keyword: str
) -> Spelled:
    """Spell the borders of fragments; what lies between them becomes fragments that are missing.

    Raises
    ------
    ExportError
        If a size is more than netCDF's int.
    """
    sizes: list[list[int]] = []
    numbers = np.zeros((), np.int64)
    missing = np.zeros((), bool)
    bounds = zip(fragments.starts, fragments.stops, dimensions, strict=True)
    for starts, stops, (_, length) in bounds:
        edges = borders(starts, stops, length)
        along = np.full(len(edges) - 1, -1, np.int64)
        along[np.searchsorted(edges, starts)] = np.arange(len(starts))
        sizes.append(np.diff(edges).tolist())
        numbers = numbers[..., None] * len(starts) + np.maximum(along, 0)
        missing = missing[..., None] | (along < 0)
    numbers = np.where(missing, -1, numbers)
    longest = max(map(len, [[0], *sizes]))
    table = np.full((len(sizes), longest), _NO_FRAGMENT, np.int64)
    for row, own_sizes in zip(table, sizes, strict=True):
        row[: len(own_sizes)] = own_sizes
    if (table > np.iinfo(np.int32).max).any():
        raise ExportError(name, "has a fragment that is longer than netCDF's int can say")
    path = f"cfa_{keyword}_{name}"
    if sizes:
        shape = ((f"cfa_dimensions_{name}", len(sizes)), (f"cfa_most_{name}", longest))
        term = Term(path, shape, table.astype(np.int32), {"_FillValue": np.int32(_NO_FRAGMENT)})
    elif keyword == "location":  # CFA-0.6.2 wants one dimension, CF-1.13 none
        term = Term(path, ((f"cfa_most_{name}", 1),), np.array([1], np.int32))
    else:
        term = Term(path, (), np.array(1, np.int32))
    own_dimensions = tuple((f"cfa_{at}_{name}", len(one)) for at, one in enumerate(sizes))
    return Spelled(term, own_dimensions, numbers.reshape(-1))


def text_term(
    path: str, dimensions: tuple[tuple[str, int], ...], values: list[str], scalar: bool
) -> Term:
    """Return a term of text, one value if it may be and all are the same."""
    if scalar and len(set(values)) == 1:
        return Term(path, (), np.array(values[0], object))
    shape = [length for _, length in dimensions]
    return Term(path, dimensions, column(values).reshape(shape))


# -- records -------------------------------------------------------------------------------------
# Which versions of the files of fragments are meant: for other readers, variables like any other.
# Their names are behind that of the data when they are sorted, as cfdm sorts what it returns.

_MEANING = {
    "sizes": "bytes of the file of each fragment; -1: unknown",
    "versions": "time of its last change in ns, or digest of its entity tag or time; 0: unknown",
}


def record_terms(
    name: str, grid: Spelled, fragments: Fragments
) -> tuple[dict[str, str], list[Term]]:
    """Return the attribute and the variables of a record; none if there is nothing to tell."""
    record = fragments.record
    if record is None or (record.sizes < 0).all():
        return {}, []
    shape, lacking = [length for _, length in grid.dimensions], grid.numbers < 0
    terms = []
    for key, known, nothing in (("sizes", record.sizes, -1), ("versions", record.numbers, 0)):
        values = np.where(lacking, nothing, known[grid.numbers]).reshape(shape)
        attributes = {"long_name": _MEANING[key], "place": record.place}
        if record.sources:
            attributes["sources"] = "\n".join(record.sources)
        terms.append(Term(f"{name}_fragment_{key}", grid.dimensions, values, attributes))
    return {_RECORD: f"sizes: {terms[0].path} versions: {terms[1].path}"}, terms


def with_record(
    fragments: Fragments, values: Mapping[str, np.ndarray], terms: Mapping[str, Variable]
) -> tuple[Fragments, tuple[str, ...]]:
    """Return a table with its record, and what is wrong with that."""
    if "versions" not in terms:
        return fragments, ()
    sizes, numbers = (np.asarray(values[key]) for key in ("sizes", "versions"))
    if {sizes.shape, numbers.shape} != {fragments.grid} or {sizes.dtype, numbers.dtype} != {_INT64}:
        return fragments, (f"{terms['versions'].path} is not of its fragments, and is not used",)
    said = (text_in(terms["versions"].attributes, name) or "" for name in ("place", "sources"))
    place, sources = said
    record = Record(sizes.reshape(-1), numbers.reshape(-1), place, (*sources.splitlines(),))
    return replace(fragments, record=record), ()


# -- partitions --------------------------------------------------------------------------------


#: What partitions that are not listed divide, at most: its product with their number is an int64.
_LONGEST = 1 << 40
#: Partitions that are not listed and have a place of their own in the grid, at most.
_MOST_UNLISTED = 1 << 16


class PartitionGrid(NamedTuple):
    """The borders of partitions.

    Attributes
    ----------
    starts, stops
        As of `nczarr_xarray.model.Fragments`.
    places
        Numbers of the partitions, in C order over the grid.
    total
        All partitions, those that are not listed among them.
    gaps
        What data are in no partition, for a warning; "" if all are in one, or in one that is
        not listed.
    """

    starts: tuple[np.ndarray, ...]
    stops: tuple[np.ndarray, ...]
    places: np.ndarray
    total: int
    gaps: str

    def spread(self, texts: list[str]) -> np.ndarray:
        """Return a column of all partitions, given what those say that are listed."""
        listed = column(texts)
        if not texts or listed.strides == (0,):
            return constant(texts[0] if texts else "", self.total)
        result = np.full(self.total, "", object)
        result[self.places] = listed
        return result


def grid_of(
    scoped: Scoped,
    dimensions: Sequence[Dimension],
    shape: Sequence[int],
    index: np.ndarray,
    bounds: np.ndarray,
    named: Callable[[int], str],
) -> PartitionGrid:
    """Find the borders of the grid that partitions make.

    Parameters
    ----------
    shape
        Of the matrix, per dimension.
    index
        int64, by partition and dimension: its place in the matrix.
    bounds
        int64, by partition, dimension and end: its begin and end (exclusive) in the data.
    named
        Describes a partition, for errors.

    Raises
    ------
    FormatError
        If the partitions are not a grid: naming one that is at fault.
    """

    def check(wrong: np.ndarray, what: Callable[[int, int], str]) -> None:
        if wrong.any():
            row, axis = (int(at) for at in np.argwhere(wrong)[0])
            raise scoped.error(f"{named(row)} {what(row, axis)}")

    sizes = np.array([dimension.size for dimension in dimensions], np.int64)
    begins, ends = bounds[..., 0], bounds[..., 1]
    check(
        (index < 0) | (index >= np.array(shape, np.int64)),
        lambda row, _: f"has the index {index[row].tolist()} in a matrix of {list(shape)}",
    )
    check(
        (begins < 0) | (ends <= begins) | (ends > sizes),
        lambda row, axis: (
            f"is at {bounds[row, axis].tolist()} of {dimensions[axis].name!r}, "
            f"which has the length {dimensions[axis].size}"
        ),
    )
    starts, stops, places, gaps = [], [], [], []
    for axis, dimension in enumerate(dimensions):
        listed, first, inverse = np.unique(index[:, axis], return_index=True, return_inverse=True)
        low, high = begins[first, axis], ends[first, axis]
        differs = (low[inverse] != begins[:, axis]) | (high[inverse] != ends[:, axis])
        if differs.any():
            row = int(np.argmax(differs))
            other = named(int(first[inverse[row]]))
            raise scoped.error(
                f"{named(row)} has another place along {dimension.name!r} than {other}"
            )
        overlap = low[1:] < high[:-1]
        if overlap.any():
            at = int(np.argmax(overlap))
            raise scoped.error(
                f"{named(int(first[at + 1]))} overlaps {named(int(first[at]))}, or comes before "
                f"it, along {dimension.name!r}",
            )
        own = _completed(listed, low, high, shape[axis], dimension.size)
        starts.append(own.starts)
        stops.append(own.stops)
        places.append(own.places[inverse])
        gaps += [f"{dimension.name} {begin}:{end}" for begin, end in own.gaps]
    grid = tuple(map(len, starts))
    count = count_of(scoped, grid, len(index))
    numbers = np.zeros(len(index), np.int64)
    for place, length in zip(places, grid, strict=True):
        numbers = numbers * length + place
    ordered = np.sort(numbers)
    if (ordered[1:] == ordered[:-1]).any():
        twice = ordered[1:][ordered[1:] == ordered[:-1]][0]
        one, other = np.flatnonzero(numbers == twice)[:2].tolist()
        raise scoped.error(f"{named(other)} has the index of {named(one)}")
    more = f" and {len(gaps) - 4} more" if len(gaps) > 4 else ""
    gap = f"no fragment holds {', '.join(gaps[:4])}{more}" if gaps else ""
    return PartitionGrid(tuple(starts), tuple(stops), numbers, count, gap)


class _Borders(NamedTuple):
    starts: np.ndarray
    stops: np.ndarray
    places: np.ndarray
    gaps: list[tuple[int, int]]


def _completed(
    listed: np.ndarray, low: np.ndarray, high: np.ndarray, count: int, size: int
) -> _Borders:
    """Return all borders along a dimension, given those of the listed partitions.

    Partitions that are not listed divide what lies between their neighbours, as all tools that
    leave partitions out divide data. Those that no data are left for are left out of the grid.
    """
    skipped = np.diff(np.concatenate(([-1], listed, [count]))) - 1
    left = np.concatenate(([0], high))
    right = np.concatenate((low, [size]))
    room = right - left
    divided = np.where((room >= skipped) & (room < _LONGEST), skipped, 0)
    gaps = [(int(left[at]), int(right[at])) for at in np.flatnonzero((room > 0) & (skipped == 0))]
    unlisted = np.flatnonzero(divided)
    pieces = sum(int(divided[at]) for at in unlisted)
    if pieces > _MOST_UNLISTED + 64 * len(listed):  # one missing part instead of each of them
        return _Borders(low, high, np.arange(len(listed)), gaps)
    begins, ends = [low], [high]
    for at in unlisted:
        parts = int(divided[at])
        edges = left[at] + np.arange(parts + 1) * room[at] // parts
        begins.append(edges[:-1])
        ends.append(edges[1:])
    places = np.arange(len(listed)) + np.cumsum(divided)[: len(listed)]
    starts = np.sort(np.concatenate(begins))
    return _Borders(starts, np.sort(np.concatenate(ends)), places, gaps)
