"""Aggregated data: a grid of fragments, each of which is a variable of some dataset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from nczarr_fsspec.transport.request import UNKNOWN, Stamp
from nczarr_xarray.model.arrays import Array, LibraryArray, Selections

#: Bytes of fragments that are read together at least, by dask.
_BLOCK_BYTES = 32 << 20


class FragmentPlace(NamedTuple):
    """Where a fragment is.

    Attributes
    ----------
    address
        Of the dataset, as the aggregation states it; ``""`` is the aggregation itself.
    name
        Path of the variable in it, ``"tas"`` or ``"group/tas"``; ``"#3"`` is its number.
    format
        What the aggregation calls the format; ``""`` if it does not say.
    stamp
        Of the version of the file that is meant.
    """

    address: str
    name: str
    format: str = ""
    stamp: Stamp = UNKNOWN


@dataclass(frozen=True, slots=True)
class FragmentMapping:
    """How the data of a fragment become those of its part of the aggregation.

    In the order in which it is applied: `part`, `reverse`, `axes`, `units`.

    Parameters
    ----------
    part
        Per dimension of the fragment, what of it counts; None for all.
    reverse
        Dimensions of the fragment that run backwards.
    axes
        Per dimension of the fragment, the dimension of the aggregation that it is, or None for
        one of length 1 that the aggregation does not have; None if they are in the same order.
        A dimension of the aggregation that is not named has length 1 here.
    units, calendar
        Of the fragment's values, instead of its attributes.
    """

    part: tuple[slice | tuple[int, ...], ...] | None = None
    reverse: tuple[int, ...] = ()
    axes: tuple[int | None, ...] | None = None
    units: str | None = None
    calendar: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Which versions of the files of fragments a table is about: columns, as those of `Fragments`.

    Parameters
    ----------
    sizes, numbers
        int64: as of `Stamp`.
    place
        What tells the folder of the master where it was made from others: the same file has
        another number elsewhere.
    sources
        The folders, patterns and lists of which all files are wanted, those that come later, too.
    """

    sizes: np.ndarray
    numbers: np.ndarray
    place: str = ""
    sources: tuple[str, ...] = ()

    @classmethod
    def unknown(cls, count: int, place: str = "", sources: tuple[str, ...] = ()) -> Record:
        """Return a record that tells nothing of fragments."""
        return cls(np.full(count, -1, np.int64), np.zeros(count, np.int64), place, sources)

    def stamp(self, number: int) -> Stamp:
        """Return what there is of a fragment."""
        return Stamp(int(self.sizes[number]), int(self.numbers[number]))


@dataclass(frozen=True, slots=True)
class Fragments:
    """A table of fragments: columns in C order over the grid of fragments.

    Parameters
    ----------
    starts, stops
        int64, per dimension of the aggregation: where the fragments begin and end along it,
        ascending and without overlap. What lies between them is missing.
    addresses
        Objects: `FragmentPlace.address`, or None if there is no such fragment.
    names, formats
        Objects: as of `FragmentPlace`.
    values
        The only value of each fragment, where the table holds these instead of addresses;
        an address that is not None says that there is one.
    mappings
        How fragments are mapped that are not taken as they are, by their number.
    others
        By number: where else the same fragment may be, in the order in which to try.
    record
        Which versions of the files are meant; None if that is not known.
    """

    starts: tuple[np.ndarray, ...]
    stops: tuple[np.ndarray, ...]
    addresses: np.ndarray
    names: np.ndarray
    formats: np.ndarray
    values: np.ndarray | None = None
    mappings: Mapping[int, FragmentMapping] = field(default_factory=dict)
    others: Mapping[int, tuple[FragmentPlace, ...]] = field(default_factory=dict)
    record: Record | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """Fragments along each dimension."""
        return tuple(map(len, self.starts))

    @property
    def count(self) -> int:
        """All fragments, missing ones among them."""
        return math.prod(self.grid)

    def position(self, number: int) -> tuple[int, ...]:
        """Return the place of a fragment in the grid."""
        return tuple(int(i) for i in np.unravel_index(number, self.grid)) if self.grid else ()

    def extent(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return begin and end of a fragment per dimension."""
        position = self.position(number)
        bounds = zip(self.starts, self.stops, position, strict=True)
        return tuple((int(start[at]), int(stop[at])) for start, stop, at in bounds)

    def places(self, number: int) -> tuple[FragmentPlace, ...]:
        """Return where a fragment may be, in the order in which to try; () if it is missing."""
        address = self.addresses[number]
        if address is None:
            return ()
        stated = self.names[number], self.formats[number], self.stamp(number)
        return (FragmentPlace(address, *stated), *self.others.get(number, ()))

    def stamp(self, number: int) -> Stamp:
        """Return of the file of a fragment what is known."""
        return UNKNOWN if self.record is None else self.record.stamp(number)

    def is_beside(self, other: Fragments) -> bool:
        """Tell whether two tables have the same files at the same places, and nothing special."""
        if not (self.values is other.values is None) or self.grid != other.grid:
            return False
        if any((self.mappings, self.others, other.mappings, other.others)):
            return False
        own, theirs = (one.record or Record.unknown(0) for one in (self, other))
        pairs = zip(
            (*self.starts, *self.stops, self.addresses, self.formats, own.sizes, own.numbers),
            (
                *(*other.starts, *other.stops, other.addresses, other.formats),
                *(theirs.sizes, theirs.numbers),
            ),
            strict=True,
        )
        return all(np.array_equal(one, two) for one, two in pairs)


def borders(starts: np.ndarray, stops: np.ndarray, length: int) -> np.ndarray:
    """Return where fragments, and what lies between them, begin and end along a dimension."""
    between = np.stack([starts, stops], axis=1).reshape(-1)
    return _distinct(np.concatenate(([0], between, [length])))


def _distinct(ascending: np.ndarray) -> np.ndarray:
    """Return the different ones of ascending numbers, without sorting them again."""
    distinct: np.ndarray = ascending[np.append(True, ascending[1:] > ascending[:-1])]
    return distinct


def in_a_row(addresses: np.ndarray, names: np.ndarray, formats: np.ndarray) -> Fragments:
    """Return fragments that are in no grid yet."""
    edges = np.arange(len(addresses) + 1, dtype=np.int64)
    return Fragments((edges[:-1],), (edges[1:],), addresses, names, formats)


def assembled(
    starts: tuple[np.ndarray, ...],
    stops: tuple[np.ndarray, ...],
    parts: Iterable[tuple[Fragments, np.ndarray]],
) -> Fragments:
    """Return a table of the fragments of others.

    Parameters
    ----------
    starts, stops
        As of `Fragments`.
    parts
        Tables of addresses, each with the numbers that its fragments get. A later fragment takes
        the place of an earlier one; one that is missing takes none.
    """
    count = math.prod(map(len, starts))
    addresses = np.full(count, None, object)
    names, formats = np.full(count, "", object), np.full(count, "", object)
    mappings: dict[int, FragmentMapping] = {}
    others: dict[int, tuple[FragmentPlace, ...]] = {}
    parts = [*parts]
    known = [table.record for table, _ in parts if table.record is not None]
    record = None
    if known:
        sources = dict.fromkeys(source for one in known for source in one.sources)
        record = Record.unknown(count, max(one.place for one in known), (*sources,))
    for table, places in parts:
        assert table.values is None
        is_there = [address is not None for address in table.addresses.tolist()]
        there = np.flatnonzero(np.array(is_there, bool))
        new = places[there]
        addresses[new] = table.addresses[there]
        names[new] = table.names[there]
        formats[new] = table.formats[there]
        if record is not None:
            own = table.record or Record.unknown(table.count)
            record.sizes[new], record.numbers[new] = own.sizes[there], own.numbers[there]
        if mappings or others:
            for number in new.tolist():
                mappings.pop(number, None)
                others.pop(number, None)
        numbers = (
            dict(zip(there.tolist(), new.tolist(), strict=True))
            if table.mappings or table.others
            else {}
        )
        mappings |= {numbers[n]: one for n, one in table.mappings.items() if n in numbers}
        others |= {numbers[n]: one for n, one in table.others.items() if n in numbers}
    return Fragments(starts, stops, addresses, names, formats, None, mappings, others, record)


class FragmentOpener(Protocol):
    """Opens fragments. Picklable and safe in threads.

    Attributes
    ----------
    under_way
        Bytes that fragments which are read at a time may take, but one fragment in any case; None
        if only their number is limited.
    """

    under_way: int | None

    def selections(self, array: FragmentArray) -> Selections:
        """Return what reads selections of an aggregation."""

    def sample(self, array: FragmentArray) -> Array | None:
        """Return how the first fragment is stored, if it is on this machine and can be opened."""


@dataclass(frozen=True, slots=True)
class FragmentArray(LibraryArray):
    """The data of an aggregation variable: fragments, which are variables of other datasets.

    A fragment is unpacked, its missing values become `fill`, its units those of the aggregation,
    and its type becomes `dtype`.

    Parameters
    ----------
    path, shape, dtype
        As of `Array`.
    fragments
        Where the data are.
    fill
        What missing data are.
    units, calendar
        Of the values; None if they are not stated, and those of the fragments are not looked at.
    packing
        ``scale_factor``, ``add_offset`` and ``_Unsigned`` of the variable, if its data are
        packed as fragments are, as in CFA-0.4; None if fragments are unpacked, and no more.
    read_as
        The type as which the variable's integers are read: with ``_Unsigned`` it is not `dtype`;
        None if it is.
    warning
        What to say when missing data are read, where the table does not say that they are missing.
    opener
        What opens fragments; set when the aggregation is opened.
    dialect
        The version of the convention by which it was spelled.
    dimensions
        Names of the dimensions; () if they are not known, and those of fragments are not looked at.
    marks
        Numbers of which the variable says that they stand for missing data.
    """

    dtype: np.dtype
    fragments: Fragments
    fill: Any = None
    units: str | None = None
    calendar: str | None = None
    packing: Mapping[str, Any] | None = None
    read_as: np.dtype | None = None
    warning: str = ""
    opener: FragmentOpener | None = None
    dialect: str = ""
    dimensions: tuple[str, ...] = ()
    marks: tuple[int | float, ...] = ()

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        lengths = zip(self.fragments.starts, self.fragments.stops, strict=True)
        return tuple(int((stop - start).max(initial=1)) for start, stop in lengths)

    def sample(self) -> Array | None:
        """Return how the first fragment is stored: see `FragmentOpener.sample`."""
        return None if self.opener is None else self.opener.sample(self)

    def _edges(self) -> list[np.ndarray]:
        return [_edges(*bounds) for bounds in zip(self.fragments.starts, self.shape, strict=True)]

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Lengths of fragments, per dimension, and what lies before and between them with them."""
        return tuple(tuple(np.diff(edges).tolist()) for edges in self._edges())

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Fragments, several together where they are small."""
        edges = self._edges()
        joined = [1] * len(edges)

        def nbytes() -> int:
            sizes = (
                max(1, -(-length * count // max(1, len(edge) - 1)))
                for edge, length, count in zip(edges, self.shape, joined, strict=True)
            )
            return math.prod(sizes) * self.dtype.itemsize

        while nbytes() < _BLOCK_BYTES:
            parts = [(len(edge) - 1) / count for edge, count in zip(edges, joined, strict=True)]
            if max(parts, default=1) <= 1:
                break
            joined[parts.index(max(parts))] *= 2
        return tuple(
            tuple(np.diff(np.append(edge[:-1][::count], edge[-1])).tolist())
            for edge, count in zip(edges, joined, strict=True)
        )

    def selections(self, store: Any) -> Selections:
        assert self.opener is not None
        return self.opener.selections(self)


def _edges(starts: np.ndarray, length: int) -> np.ndarray:
    """Return where parts of a dimension begin, what lies before and between fragments with them."""
    return _distinct(np.concatenate(([0], starts[1:], [length])))
