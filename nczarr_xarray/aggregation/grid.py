"""Where files lie in the grid of an aggregation: one axis for each dimension they differ along."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nczarr_fsspec.errors import ExportError, NCZarrWarning, caller_level
from nczarr_xarray.aggregation.axes import (
    OVERLAP_ADVICE,
    Axis,
    Blocks,
    Overlap,
    by_coordinate,
    nothing_along,
)
from nczarr_xarray.aggregation.checks import DECIMALS, converted, typed
from nczarr_xarray.aggregation.summary import Layout, Summary


@dataclass(frozen=True, slots=True)
class Before:
    """The blocks that an aggregation has already, along one dimension.

    Parameters
    ----------
    edges
        Where they begin and end, ascending.
    values
        The coordinate; None if there is none.
    """

    edges: np.ndarray
    values: np.ndarray | None

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of the blocks."""
        lengths: np.ndarray = np.diff(self.edges)
        return lengths


@dataclass(frozen=True, slots=True)
class FileGrid:
    """The axes of an aggregation, and where files are along them.

    Parameters
    ----------
    axes
        By path of the dimension.
    numbers
        Of the block that each file has, by path of the dimension; -1 if it does not have that.
    new
        The dimensions that files do not have.
    overlap
        Which of the files at one place counts.
    """

    axes: Mapping[str, Axis]
    numbers: Mapping[str, np.ndarray]
    new: tuple[str, ...] = ()
    overlap: Overlap = "error"

    def shape(self, dimensions: Sequence[str]) -> tuple[int, ...]:
        """Return how many blocks there are along dimensions."""
        return tuple(len(self.axes[d].order) if d in self.axes else 1 for d in dimensions)

    def places(self, dimensions: Sequence[str]) -> np.ndarray:
        """Return where files are in a grid of these dimensions, in C order."""
        place = np.zeros(len(next(iter(self.numbers.values()))), np.int64)
        for dimension, length in zip(dimensions, self.shape(dimensions), strict=True):
            place *= length
            if dimension in self.axes:
                place += self.axes[dimension].places[self.numbers[dimension]]
        return place


@dataclass(slots=True)
class Arranger:
    """Finds the grid of files.

    Parameters
    ----------
    files
        In the order in which they are given.
    expected
        What they should have.
    asked
        Paths of dimensions along which they follow each other; none to find that out.
    gaps
        Whether there may be gaps.
    before
        What an aggregation has already, by dimension, to which the files are added.
    url
        Of that aggregation.
    overlap
        What counts where files overlap.
    labelled
        Paths of dimensions along which they have, or get, a coordinate in any case.
    """

    files: Sequence[Summary]
    expected: Layout
    asked: Sequence[str]
    gaps: bool
    before: Mapping[str, Before]
    url: str
    overlap: Overlap = "error"
    labelled: Sequence[str] = ()

    def grid(self) -> FileGrid:
        """Return the grid.

        Raises
        ------
        ExportError
            Naming the file that does not fit, and why.
        """
        new = self._new_dimensions()
        along: dict[str, tuple[np.ndarray, Blocks]] = {}
        whole: dict[str, tuple[np.ndarray, Blocks]] = {}
        plain: list[str] = []
        for dimension in dict.fromkeys((*self.expected.dimensions, *new)):
            if self._has_coordinate(dimension, new):
                numbers, blocks = self._blocks(dimension)
                if len(blocks.lengths) > 1 or dimension in (*self.asked, *self.labelled):
                    self._check_asked(dimension, numbers)
                    along[dimension] = numbers, blocks
                else:
                    whole[dimension] = numbers, blocks
            elif dimension in self.asked or self._grows(dimension, new):
                plain.append(dimension)
            else:
                self._check_sizes(dimension)
        if len(plain) > 1:
            names = " and ".join(plain)
            raise ExportError(
                self.files[0].target, f"{names} have no coordinates: the order is not known"
            )
        if not along and not plain:
            if not whole or not self._lack_variables():
                self._nothing_differs()
            along = dict([*whole.items()][:1])  # files of other variables are beside each other
        every = {dimension: numbers for dimension, (numbers, _) in along.items()}
        axes: dict[str, Axis] = {}
        for dimension in plain:
            every[dimension], axes[dimension] = self._sequence(dimension, every, new)
        for dimension, (numbers, blocks) in along.items():
            owners = self._owners(dimension, numbers, len(blocks.lengths))
            read = self._as_read(dimension, blocks)
            axis = by_coordinate(dimension, read, owners, gaps=self.gaps, overlap=self.overlap)
            if axis.parts and dimension in self.before:
                reason = "overlaps with what the aggregation has already: make a new one"
                raise ExportError(owners[min(axis.parts)], reason)
            assert axis.values is not None
            axes[dimension] = replace(axis, values=axis.values.view(blocks.values.dtype))
        return FileGrid(axes, every, new, self.overlap)

    def _new_dimensions(self) -> tuple[str, ...]:
        """Return the dimensions that files do not have but follow each other along."""
        dimensions = {path for layout in self._layouts for path in layout.dimensions}
        wanted = (*self.labelled, *self.asked, *self.before)
        return tuple(path for path in dict.fromkeys(wanted) if path not in dimensions)

    @property
    def _layouts(self) -> Iterable[Layout]:
        """The different layouts of the files."""
        return {id(file.layout): file.layout for file in self.files}.values()

    def _lack_variables(self) -> bool:
        """Tell whether a file lacks a variable that another one has."""
        return any(
            layout.form(form.path) is None
            for layout in self._layouts
            for form in self.expected.forms
        )

    def _has_coordinate(self, dimension: str, new: Sequence[str]) -> bool:
        form = self.expected.form(dimension)
        if form is None or not form.is_small:
            return False
        return form.dimensions in ((dimension,), ()) or dimension in new

    def _blocks(self, dimension: str) -> tuple[np.ndarray, Blocks]:
        """Return which coordinates along a dimension each file has, and the different ones."""
        wanted = self.expected.form(dimension)
        assert wanted is not None
        before = self.before.get(dimension)
        exact = wanted.calendar is None or self._units(dimension) == {wanted.units}
        own: list[np.ndarray] = []
        same: dict[tuple[int, int], int] = {}
        numbers = np.empty(len(self.files), np.int64)
        for at, file in enumerate(self.files):
            layout, form = file.layout, file.layout.form(dimension)
            if form is None:
                if dimension in layout.dimensions:
                    reason = f"has no {dimension}, by which other files are in order along it"
                    raise ExportError(file.target, reason)
                numbers[at] = -1
                continue
            values = file.value(dimension)
            number = same.setdefault((id(values), id(layout)), len(own))
            if number == len(own):
                own.append(np.atleast_1d(converted(file.target, values, form, wanted)))
            numbers[at] = number
        if not own:
            reason = f"has no {dimension}, along which the aggregation is"
            raise ExportError(self.files[0].target, reason)
        blocks, first = Blocks.of(own), 0
        if before is not None and before.values is not None:
            held = np.atleast_1d(typed(self.url, before.values, wanted))
            first = len(before.lengths)
            lengths = np.concatenate([before.lengths, blocks.lengths])
            blocks = Blocks(np.concatenate([held, blocks.values]), lengths)
        keys = _keys(blocks, exact)
        known = {key: number for number, key in enumerate(keys[:first])}
        kept = [*range(first)]
        found = []
        for at in range(first, len(keys)):
            found.append(known.setdefault(keys[at], len(kept)))
            if found[-1] == len(kept):
                kept.append(at)
        return np.array([*found, -1])[numbers], blocks.taken(np.array(kept))

    def _as_read(self, dimension: str, blocks: Blocks) -> Blocks:
        """Return coordinates as those numbers of which the order counts: with their own sign."""
        form = self.expected.form(dimension)
        unsigned = None if form is None else dict(form.packing).get("_Unsigned")
        dtype = blocks.values.dtype
        if unsigned is None or dtype.kind not in "iu":
            return blocks
        kind = "u" if unsigned.lower() == "true" else "i"
        return blocks._replace(values=blocks.values.view(f"{kind}{dtype.itemsize}"))

    def _units(self, dimension: str) -> set[str | None]:
        """Return the units that files have along a dimension."""
        forms = (layout.form(dimension) for layout in self._layouts)
        return {form.units for form in forms if form is not None}

    def _check_asked(self, dimension: str, numbers: np.ndarray) -> None:
        if self.asked and dimension not in self.asked:
            having = np.flatnonzero(numbers >= 0)
            one = int(having[0])
            other = int(
                having[np.argmax(numbers[having] != numbers[one])]
            )  # `one` if all are equal
            first = self.url if self.before else self.files[one].target
            names = ", ".join(path.strip("/") for path in self.asked)
            raise ExportError(
                self.files[other].target,
                f"has other coordinates along {dimension} than {first}; the files are to follow "
                f"each other along {names} only",
            )

    def _grows(self, dimension: str, new: Sequence[str]) -> bool:
        if dimension in new:
            return True
        return dimension in self.before and len(self.before[dimension].edges) > 2

    def _check_sizes(self, dimension: str) -> None:
        before = self.before.get(dimension)
        files = [file for file in self.files if dimension in file.layout.dimensions]
        sizes = [file.size(dimension) for file in files]
        first = int(before.edges[-1]) if before is not None else sizes[0]
        for file, size in zip(files, sizes, strict=True):
            if size != first:
                other = files[0].target if before is None else self.url
                name = dimension.strip("/")
                raise ExportError(
                    file.target,
                    f"has length {size} along {dimension}, and {other} has "
                    f"{first}; if the files are to follow each other along it in the order in "
                    f"which they are given, say dim={name!r}",
                )

    def _nothing_differs(self) -> None:
        if len(self.files) > 1 or self.before:
            other = self.url if self.before else self.files[0].target
            file = self.files[0 if self.before else 1].target
            if file == other:
                raise ExportError(file, "is given twice")
            raise ExportError(
                file,
                f"has the same coordinates as {other}; if the files are to follow each other in "
                "the order in which they are given, say dim=NAME, the name of a dimension, which "
                "may be a new one",
            )
        raise ExportError(
            self.files[0].target,
            "is one file; say dim=NAME, the dimension along which others are to follow it",
        )

    def _sequence(
        self, dimension: str, others: Mapping[str, np.ndarray], new: Sequence[str]
    ) -> tuple[np.ndarray, Axis]:
        """Return the blocks of files, in the order in which they are given."""
        count = len(self.files)
        parts = [part.tolist() for part in others.values()]
        keys = zip(*parts, strict=True) if parts else [()] * count
        seen: dict[tuple[int, ...], int] = {}
        before = self.before.get(dimension)
        lengths: list[int] = [] if before is None else before.lengths.tolist()
        first = len(lengths)
        owners: list[str] = []
        numbers = np.empty(count, np.int64)
        for at, (file, key) in enumerate(zip(self.files, keys, strict=True)):
            if dimension not in (*new, *file.layout.dimensions):
                numbers[at] = -1
                continue
            number = seen[key] = seen.get(key, -1) + 1
            length = 1 if dimension in new else file.size(dimension)
            if not length:
                raise nothing_along(file.target, dimension)
            if number == len(owners):
                owners.append(file.target)
                lengths.append(length)
            elif lengths[first + number] != length:
                raise ExportError(
                    file.target,
                    f"has length {length} along {dimension}, and {owners[number]}, which is to be "
                    f"beside it, {lengths[first + number]}",
                )
            numbers[at] = first + number
        if others and len(set(seen.values())) > 1:
            raise ExportError(
                self.files[-1].target,
                f"{dimension} has no coordinate, and there are not as many files everywhere "
                "along it: the order is not known",
            )
        return numbers, Axis.of(np.arange(len(lengths)), lengths)

    def _owners(self, dimension: str, numbers: np.ndarray, count: int) -> list[str]:
        """Return a file for each block, for messages."""
        owners = [self.url] * count
        before = self.before.get(dimension)
        known = 0 if before is None else len(before.edges) - 1
        for at in range(len(numbers) - 1, -1, -1):
            if numbers[at] >= known:
                owners[numbers[at]] = self.files[at].target
        return owners


def check_places(grid: FileGrid, files: Sequence[Summary], *, gaps: bool, partly: bool) -> None:
    """Raise if two files are at the same place; say which places have none.

    Parameters
    ----------
    gaps
        Whether places without a file are allowed; then a warning tells of them.
    partly
        Whether there are others besides these files.

    Raises
    ------
    ExportError
        Naming the files, or the place.
    """
    dimensions = list(grid.axes)
    if grid.overlap == "error":
        _check_alone(grid, files)
    if partly:
        return
    shape = grid.shape(dimensions)
    whole = np.all([numbers >= 0 for numbers in grid.numbers.values()], axis=0)
    places = grid.places(dimensions)[whole]
    lacking = np.setdiff1d(np.arange(np.prod(shape, dtype=np.int64)), places)
    if not len(lacking):
        return
    position = np.unravel_index(int(lacking[0]), shape)
    where = []
    for dimension, at in zip(dimensions, position, strict=True):
        axis = grid.axes[dimension]
        start = int(axis.starts[at])
        where.append(f"{dimension} {start if axis.values is None else axis.values[start]}")
    message = (
        f"{len(lacking)} of {np.prod(shape)} parts have no file; the first is at {', '.join(where)}"
    )
    if not gaps:
        raise ExportError(files[0].target, f"{message}; gaps='allow' takes them as missing data")
    warnings.warn(f"{message}; they read as missing data", NCZarrWarning, stacklevel=caller_level())


def _check_alone(grid: FileGrid, files: Sequence[Summary]) -> None:
    """Raise if two files at one place have a variable in common."""
    places = np.zeros(len(files), np.int64)
    for dimension, numbers in grid.numbers.items():
        places = places * (len(grid.axes[dimension].order) + 1) + numbers + 1
    order = np.argsort(places, kind="stable")
    same = np.flatnonzero(np.diff(places[order]) == 0)
    place, owners = -1, dict[str, int]()
    for at in order[np.union1d(same, same + 1)].tolist():
        if places[at] != place:
            place, owners = places[at], {}
        for form in files[at].layout.forms:
            if form.is_coordinate or not (grid.new or grid.axes.keys() & {*form.dimensions}):
                continue
            other = owners.setdefault(form.path, at)
            if other != at:
                first, names = files[other].target, ", ".join(grid.axes)
                reason = f"has the same coordinates as {first}, along {names}; {OVERLAP_ADVICE}"
                twice = "is given twice" if first == files[at].target else reason
                raise ExportError(files[at].target, twice)


def _keys(blocks: Blocks, exact: bool) -> list[object]:
    """Return what equal blocks have in common; conversion of units is not `exact`."""
    values, stops = blocks.values, np.cumsum(blocks.lengths)
    bounds = [*zip((stops - blocks.lengths).tolist(), stops.tolist(), strict=True)]
    if values.dtype.kind in "OS":
        texts = values.tolist()
        return [tuple(texts[start:stop]) for start, stop in bounds]
    if values.dtype.kind == "f":
        values = values.astype(np.float64) + 0.0  # -0.0 is 0.0
        values = values if exact else np.round(values, DECIMALS)
    size, data = values.dtype.itemsize, values.tobytes()
    return [data[start * size : stop * size] for start, stop in bounds]
