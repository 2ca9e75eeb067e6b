"""From partitions, each with its place in a matrix and in the data, to the borders of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.cfa.dialect import Scoped
from nczarr_xarray.formats.cfa.table import column, constant, count_of
from nczarr_xarray.model import Dimension

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
    path = scoped.variable.path

    def check(wrong: np.ndarray, what: Callable[[int, int], str]) -> None:
        if wrong.any():
            row, axis = (int(at) for at in np.argwhere(wrong)[0])
            raise FormatError(path, f"{named(row)} {what(row, axis)}")

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
            raise FormatError(
                path, f"{named(row)} has another place along {dimension.name!r} than {other}"
            )
        overlap = low[1:] < high[:-1]
        if overlap.any():
            at = int(np.argmax(overlap))
            raise FormatError(
                path,
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
        raise FormatError(path, f"{named(other)} has the index of {named(one)}")
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
