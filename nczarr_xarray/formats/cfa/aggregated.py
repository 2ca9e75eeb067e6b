"""``aggregated_data``, as CFA-0.6.2 and CF-1.13 have it: terms, and the map of fragments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.formats.cfa.dialect import Scoped, Term, text_in
from nczarr_xarray.formats.cfa.table import column, count_of, dimensions_of, marks_of
from nczarr_xarray.model import NC_DEFAULT_FILL, Dimension, Fragments, Variable

ATTRIBUTES = frozenset({"aggregated_dimensions", "aggregated_data"})

#: What stands for no fragment in maps that are written.
_NO_FRAGMENT = int(NC_DEFAULT_FILL["int"])


def keywords(variable: Variable) -> list[str]:
    """Return the keywords of the attribute, as far as it can be understood."""
    return [key for key, _ in _pairs(variable)[0]]


def _pairs(variable: Variable) -> tuple[list[tuple[str, str]], bool]:
    """Return keywords with the names of variables, and whether that is all there is."""
    words = (text_in(variable.attributes, "aggregated_data") or "").split()
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
        raise FormatError(
            scoped.variable.path, f"has the aggregated_data {text!r:.200}, not 'keyword: name ...'"
        )
    names: dict[str, str] = {}
    for key, name in pairs:
        term = key.lower() if fold else key
        if term in names:
            raise FormatError(scoped.variable.path, f"has {key!r} twice in aggregated_data")
        names[term] = name
    return names


def variables_of(scoped: Scoped, names: Mapping[str, str]) -> dict[str, Variable]:
    """Find the variables that terms name.

    Raises
    ------
    FormatError
        If one is not there.
    """
    variables = {}
    for key, name in names.items():
        variable = scoped.sibling(name)
        if variable is None or variable is scoped.variable:
            raise FormatError(
                scoped.variable.path,
                f"names the variable {name!r:.200} in aggregated_data ({key}), there is none",
            )
        variables[key] = variable
    return variables


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
    path = scoped.variable.path
    names = scoped.text("aggregated_dimensions")
    if names is None:
        raise FormatError(path, "has aggregated_data, and no text aggregated_dimensions")
    dimensions = dimensions_of(scoped, "aggregated_dimensions", names.split())
    if sizes.dtype.kind not in "iu":
        raise FormatError(variable.path, f"holds {sizes.dtype}; sizes of fragments are integers")
    if not dimensions:
        if sizes.size != 1:
            raise FormatError(path, f"is one value, and {variable.path} has {sizes.size} sizes")
        return Borders((), (), ())
    if sizes.ndim != 2 or len(sizes) != len(dimensions):
        raise FormatError(
            variable.path,
            f"has the shape {sizes.shape}; one row for each of the dimensions "
            f"{names.split()} of {path} is expected",
        )
    none = [mark for mark in marks_of(variable) if not isinstance(mark, (str, bytes))]
    starts, stops = [], []
    for row, dimension in zip(sizes, dimensions, strict=True):
        lengths = row[: _filled(row, none)]
        beyond = row[len(lengths) :]
        wrong = lengths[(lengths <= 0) | (lengths > dimension.size)]
        # each is at most the length, so that sums can be taken of as many as fit into it
        if wrong.size or len(lengths) > dimension.size or not np.isin(beyond, none).all():
            shown = f"{int(wrong[0])}" if wrong.size else f"{row[:8].tolist()}"
            raise FormatError(
                variable.path,
                f"has the sizes {shown} along {dimension.name!r}, "
                f"which has the length {dimension.size}",
            )
        ends = np.cumsum(lengths.astype(np.float64))
        total = int(ends[-1]) if len(ends) else 0
        if total != dimension.size:
            raise FormatError(
                variable.path,
                f"has sizes along {dimension.name!r} whose sum is {total}, not {dimension.size}",
            )
        exact = np.cumsum(lengths.astype(np.int64))
        starts.append(exact - lengths.astype(np.int64))
        stops.append(exact)
    return Borders(dimensions, tuple(starts), tuple(stops))


def _filled(row: np.ndarray, none: list[Any]) -> int:
    """Return how many of the sizes come before the first that is missing."""
    missing = np.isin(row, none)
    return int(np.argmax(missing)) if missing.any() else len(row)


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
        raise FormatError(
            variable.path,
            f"has the shape {values.shape}, and {scoped.variable.path} the fragments "
            f"{borders.grid}",
        )
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
        edges = np.unique(np.concatenate(([0, length], starts, stops)))
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
