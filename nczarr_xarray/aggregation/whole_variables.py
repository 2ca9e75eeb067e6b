"""Which chunks of an array of references are those of a whole variable of a file: arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_xarray.formats.cfa.dialect import column, constant
from nczarr_xarray.model import (
    ChunkedArray,
    ChunkTable,
    Fragments,
    assembled,
    grid_of,
    in_a_row,
)

#: Stand for an address: there is no reference, or it holds the bytes itself.
NONE, INSIDE = -1, -2


@dataclass(frozen=True, slots=True)
class ArrayReferences:
    """The references of one array: columns in C order over its grid of chunks.

    Parameters
    ----------
    url
        Of the references, for messages.
    array
        As the references describe it.
    addresses
        Of files.
    codes
        Per chunk, the number of its address, or what stands for one.
    starts, sizes
        Per chunk, in bytes; the size is -1 for a whole file.
    """

    url: str
    array: ChunkedArray
    addresses: list[str]
    codes: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(
        cls, url: str, array: ChunkedArray, references: Iterable[bytes | Part | None]
    ) -> ArrayReferences:
        """Return the columns of what was found for each chunk."""
        numbers: dict[str, int] = {}
        rows = np.zeros((math.prod(grid_of(array.shape, array.chunk_shape)), 3), np.int64)
        for at, one in enumerate(references):
            if isinstance(one, Part):
                code = numbers.setdefault(one.address, len(numbers))
                size = -1 if one.stop is None else one.stop - one.start
                rows[at] = code, one.start, size
            else:
                rows[at, 0] = NONE if one is None else INSIDE
        return cls(url, array, [*numbers], rows[:, 0], rows[:, 1], rows[:, 2])

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return grid_of(self.array.shape, self.array.chunk_shape)

    def chunks_of(self) -> dict[str, np.ndarray]:
        """Return the numbers of chunks, by the address of their file."""
        order = np.argsort(self.codes, kind="stable")
        edges = np.searchsorted(self.codes[order], np.arange(len(self.addresses) + 1))
        return {
            address: order[edges[code] : edges[code + 1]]
            for code, address in enumerate(self.addresses)
        }

    def position(self, number: int) -> tuple[int, ...]:
        """Return the place of a chunk in the grid."""
        return tuple(int(at) for at in np.unravel_index(number, self.grid))

    def error(self, number: int, reason: str) -> ExportError:
        """Return an error that names the reference of a chunk."""
        key = self.array.chunk_name(self.position(number))
        return ExportError(f"{self.url}: reference {key!r}", reason)

    def shown(self, number: int) -> str:
        """Say what the reference of a chunk is."""
        start, size = int(self.starts[number]), int(self.sizes[number])
        if self.codes[number] < 0:
            return "holds its bytes" if self.codes[number] == INSIDE else "is not there"
        extent = "all bytes" if size < 0 else f"the bytes {start} to {start + size}"
        return f"is {extent} of {self.addresses[int(self.codes[number])]}"


@dataclass(frozen=True, slots=True)
class WholeVariable:
    """A variable of a file, as chunks of the shape that the references have.

    Parameters
    ----------
    path
        Of the variable.
    shape
        In the dimensions of the references: 1 along those that it lacks.
    table
        Where its chunks are, in C order; a `mask` that is not zero means that they are not in
        the file as the references could have them.
    """

    path: str
    shape: tuple[int, ...]
    table: ChunkTable

    def find(self, start: int, size: int) -> int | None:
        """Return the number of the chunk that has an extent."""
        table = self.table
        there = (table.start == start) & (table.size == size) & (table.mask == 0)
        chunks = np.flatnonzero(there)
        return int(chunks[0]) if len(chunks) else None


class Placed(NamedTuple):
    """A variable of a file that is a part of an array of references.

    Attributes
    ----------
    name
        Path of the variable.
    extent
        Begin and end of the part per dimension.
    compared
        Chunks whose values have to be compared, as the references have no extents of them.
    numbers
        All its chunks.
    """

    name: str
    extent: tuple[tuple[int, int], ...]
    compared: np.ndarray
    numbers: np.ndarray


def place(references: ArrayReferences, first: int, variable: WholeVariable) -> Placed | None:
    """Find the part of an array that is one variable of a file.

    Parameters
    ----------
    first
        A chunk of the array that is in the file.

    Returns
    -------
    None if the chunk is none of this variable.

    Raises
    ------
    ExportError
        Naming the reference by which the part is not the whole variable.
    """
    number = variable.find(int(references.starts[first]), int(references.sizes[first]))
    if number is None:
        return None
    chunks, shape = references.array.chunk_shape, references.array.shape
    grid = grid_of(variable.shape, chunks)
    inside = np.unravel_index(number, grid)
    begin = [at - int(i) for at, i in zip(references.position(first), inside, strict=True)]
    extent = tuple(
        (at * chunk, at * chunk + length)
        for at, chunk, length in zip(begin, chunks, variable.shape, strict=True)
    )
    for (start, stop), chunk, length in zip(extent, chunks, shape, strict=True):
        if start < 0 or stop > length or (stop % chunk and stop != length):
            raise references.error(
                first,
                f"{references.shown(first)}, where {variable.path} has a chunk: with its shape "
                f"{list(variable.shape)} it is no whole part of the array, of which the shape is "
                f"{list(shape)} and the chunks {list(chunks)}",
            )
    ranges = np.ix_(*(np.arange(at, at + n) for at, n in zip(begin, grid, strict=True)))
    numbers = np.ravel_multi_index(ranges, references.grid).ravel()
    return Placed(variable.path, extent, _unequal(references, first, variable, numbers), numbers)


def _unequal(
    references: ArrayReferences, first: int, variable: WholeVariable, numbers: np.ndarray
) -> np.ndarray:
    """Return the chunks that have no extents; raise if one has another than the variable."""
    table, codes = variable.table, references.codes[numbers]
    equal = (
        (codes == references.codes[first])
        & (references.starts[numbers] == table.start)
        & (references.sizes[numbers] == table.size)
        & (table.mask == 0)
    )
    others = np.flatnonzero((codes >= 0) & ~equal)
    if len(others):
        chunk, number = int(others[0]), int(numbers[others[0]])
        start, size = int(table.start[chunk]), int(table.size[chunk])
        stored = start >= 0 and not table.mask[chunk]
        there = f"the bytes {start} to {start + size}" if stored else "not stored as it is"
        file = references.addresses[int(references.codes[first])]
        raise references.error(
            number,
            f"{references.shown(number)}; its neighbours make it a chunk of {variable.path} of "
            f"{file}, which is {there}",
        )
    # where neither has a chunk, both read as one value: a single chunk tells
    lacking = (codes == NONE) & (table.start < 0)
    lacking[np.flatnonzero(lacking)[:1]] = False
    compared: np.ndarray = numbers[~equal & ~lacking]
    return compared


@dataclass(slots=True)
class Placements:
    """The parts of one array that are found, until they are a table.

    Parameters
    ----------
    references
        Of the array.
    """

    references: ArrayReferences
    _found: list[tuple[str, Placed]] = field(default_factory=list)

    def add(self, address: str, placed: Placed) -> None:
        """Add a part that is a variable of a file."""
        self._found.append((address, placed))

    def missing(self) -> np.ndarray:
        """Return the chunks that are in none of the parts."""
        missing = np.ones(len(self.references.codes), bool)
        for _, placed in self._found:
            missing[placed.numbers] = False
        return np.flatnonzero(missing)

    def table(self) -> Fragments:
        """Return the table of all parts.

        Raises
        ------
        ExportError
            If they make no grid, or there is a reference that belongs to none of them.
        """
        references, missing = self.references, self.missing()
        inside = missing[references.codes[missing] == INSIDE]
        if len(inside):
            number = int(inside[0])
            raise references.error(
                number,
                f"{references.shown(number)}, and no other reference says in which file that part "
                "of the array is: make the references without bytes in them (inline_threshold=0)",
            )
        axes = [self._axis(axis) for axis in range(len(references.array.shape))]
        grid = tuple(len(starts) for starts, _ in axes)
        addresses = column([address for address, _ in self._found])
        names = column([placed.name.strip("/") for _, placed in self._found])
        row = in_a_row(addresses, names, constant("", len(names)))
        begins = np.array([[start for start, _ in placed.extent] for _, placed in self._found])
        positions = [np.searchsorted(starts, begins[:, n]) for n, (starts, _) in enumerate(axes)]
        starts, stops = (tuple(bounds[n] for bounds in axes) for n in range(2))
        return assembled(starts, stops, [(row, np.ravel_multi_index(positions, grid))])

    def _axis(self, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where parts begin and end along a dimension."""
        bounds = sorted({placed.extent[axis] for _, placed in self._found})
        starts, stops = np.array(bounds, np.int64).T
        overlapping = np.flatnonzero(starts[1:] < stops[:-1])
        if len(overlapping):
            extent = bounds[int(overlapping[0]) + 1]
            address, placed = next(one for one in self._found if one[1].extent[axis] == extent)
            start, stop = extent
            raise self.references.error(
                int(placed.numbers[0]),
                f"is of {placed.name} in {address}, which has the steps {start} to {stop} along "
                f"dimension {axis}: with those of other files they make no grid",
            )
        return starts, stops
