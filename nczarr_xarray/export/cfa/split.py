"""Where variables are cut into fragments: pure arithmetic.

The rule is that of S3netCDF4: latitude and longitude are divided first, then time, as long as
fragments are too large. What is large is the largest fragment, not the average one, and borders
are exact integers, so that every element is in one fragment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from nczarr_xarray.formats.cfa.dialect import column, constant
from nczarr_xarray.model import Fragments

#: Longitude, latitude, the vertical, time, any other; "" is a dimension that is never divided.
AxisType: TypeAlias = Literal["X", "Y", "Z", "T", "N", ""]

#: Borders of fragments along one dimension: int64, from 0 to its length.
Edges: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_FIELD: tuple[AxisType, ...] = ("X", "Y")
_LINEAR: tuple[AxisType, ...] = ("T", "Z", "N")
#: Letter, what a name contains, and what it begins with.
_NAMES: tuple[tuple[AxisType, str | None, str | None], ...] = (
    ("T", "time", None),
    ("Z", "level", None),
    ("Y", None, "lat"),
    ("X", None, "lon"),
)


def axis_type(name: str, attribute: object) -> AxisType:
    """Tell what a dimension is by the attribute ``axis`` of its coordinate, or by its name."""
    if isinstance(attribute, str) and attribute in (*_FIELD, *_LINEAR):
        return attribute
    for kind, inside, start in _NAMES:
        short = len(name) < 3 and name.startswith(kind.lower())
        if short or (inside and inside in name) or (start and name.startswith(start)):
            return kind
    return "N"


def split_counts(
    shape: Sequence[int],
    axes: Sequence[AxisType],
    most: float,
) -> tuple[int, ...]:
    """Decide into how many fragments each dimension is divided.

    Parameters
    ----------
    shape, axes
        Lengths and types of the dimensions.
    most
        Elements that a fragment may have.
    """
    counts = [1] * len(shape)
    while _largest(shape, counts) > most:
        wanted = _wanted(counts, axes)
        other = _LINEAR if wanted is _FIELD else _FIELD
        found = _least(counts, shape, axes, wanted)
        if found is None:
            found = _least(counts, shape, axes, other)
        if found is None:  # all that may be divided is
            break
        counts[found] += 1
    return tuple(counts)


def _wanted(counts: Sequence[int], axes: Sequence[AxisType]) -> tuple[AxisType, ...]:
    """Return the types of dimensions to divide next: horizontal ones, or the others."""

    def divided(kind: AxisType) -> int | None:
        return next((n for n, axis in zip(counts, axes, strict=True) if axis == kind), None)

    field = math.prod(divided(kind) or 1 for kind in _FIELD)
    linear = next((n for kind in _LINEAR if (n := divided(kind)) is not None), 1)
    return _FIELD if field <= linear else _LINEAR


def _least(
    counts: Sequence[int],
    shape: Sequence[int],
    axes: Sequence[AxisType],
    wanted: tuple[AxisType, ...],
) -> int | None:
    """Return the first of the least divided dimensions of these types; None if there is none."""
    able = [
        number
        for number, (count, size, axis) in enumerate(zip(counts, shape, axes, strict=True))
        if axis in wanted and count < size
    ]
    return min(able, key=counts.__getitem__, default=None)


def _largest(shape: Sequence[int], counts: Sequence[int]) -> int:
    return math.prod(-(-size // count) for size, count in zip(shape, counts, strict=True))


def even_edges(length: int, count: int) -> Edges:
    """Return the borders of `count` parts whose lengths differ by at most one."""
    return np.arange(count + 1, dtype=np.int64) * length // count


def regular_edges(length: int, part: int) -> Edges:
    """Return the borders of parts of the same length, of which the last may be shorter."""
    return np.append(np.arange(0, length, part, dtype=np.int64), np.int64(length))


# -- fragment tables -----------------------------------------------------------------------------
# Tables of new fragments, and which present ones these touch. Pure.


def table(edges: Iterable[Edges], addresses: Sequence[str], name: str, kind: str) -> Fragments:
    """Return the table of fragments that lie side by side.

    Parameters
    ----------
    addresses
        In C order.
    name, kind
        `FragmentPlace.name` and `FragmentPlace.format` of all of them.
    """
    edges, count = [*edges], len(addresses)
    return Fragments(
        tuple(edge[:-1] for edge in edges),
        tuple(edge[1:] for edge in edges),
        column([*addresses]),
        constant(name, count),
        constant(kind, count),
    )


def edges_between(starts: np.ndarray, stops: np.ndarray, low: int, high: int) -> tuple[int, Edges]:
    """Return the number of the first fragment that touches a range, and the borders of all.

    Raises
    ------
    ValueError
        If there are gaps in the range, or it is empty.
    """
    (touched,) = np.nonzero((stops > low) & (starts < high))
    if not len(touched):
        raise ValueError("there are no fragments there")
    starts, stops = starts[touched], stops[touched]
    if starts[0] > low or stops[-1] < high or (starts[1:] != stops[:-1]).any():
        raise ValueError("there are gaps between fragments")
    return int(touched[0]), np.append(starts, stops[-1]).astype(np.int64)
