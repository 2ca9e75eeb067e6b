"""Where files lie in the grid of an aggregation: one axis for each dimension they differ along."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from nczarr_fsspec.errors import ExportError, NCZarrWarning, caller_level
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


class Blocks(NamedTuple):
    """What blocks have along a dimension, one behind the other: there may be very many.

    Attributes
    ----------
    values
        Of all blocks.
    lengths
        int64, of each.
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, blocks: Sequence[np.ndarray]) -> Blocks:
        """Put blocks one behind the other."""
        return cls(np.concatenate(blocks), np.array([*map(len, blocks)], np.int64))

    @property
    def starts(self) -> np.ndarray:
        """Where they begin."""
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    def block(self, number: int) -> np.ndarray:
        """Return one of them."""
        start = int(self.lengths[:number].sum())
        block: np.ndarray = self.values[start : start + int(self.lengths[number])]
        return block

    def taken(self, numbers: np.ndarray, parts: Mapping[int, slice] | None = None) -> Blocks:
        """Return some of the blocks; parameters as of `gathered`."""
        index, lengths = gathered(self.lengths, numbers, parts or {})
        return Blocks(self.values[index], lengths)


def gathered(
    lengths: np.ndarray, numbers: np.ndarray, parts: Mapping[int, slice]
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the elements of some blocks are, and how many there are of each.

    Parameters
    ----------
    lengths
        Of all blocks, which lie one behind the other.
    numbers
        Of those that are wanted, in this order.
    parts
        What is wanted of a block, by number, if not all.
    """
    starts, lengths = np.cumsum(lengths) - lengths, lengths.copy()
    for number, part in parts.items():
        begin, end, _ = part.indices(int(lengths[number]))
        starts[number] += begin
        lengths[number] = end - begin
    starts, lengths = starts[numbers], lengths[numbers]
    shifts = starts - (np.cumsum(lengths) - lengths)
    return np.arange(lengths.sum()) + np.repeat(shifts, lengths), lengths


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
                reason = f"has the same coordinates as {first}, along {names}; {_ADVICE}"
                raise ExportError(files[at].target, reason)


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


# -- axes -----------------------------------------------------------------------------------------


# The order of blocks along a dimension, found by their coordinates: pure arithmetic.

#: Which of the files counts that have values for the same coordinates.
Overlap: TypeAlias = Literal["error", "first", "last"]
_ADVICE = "overlap='first' or 'last' says which of them counts"

#: A step from one file to the next that is more than so many times a usual one is a gap.
_GAP = 1.5


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension with the blocks that files have of it.

    Parameters
    ----------
    order
        Numbers of the blocks, in the order of the dimension.
    starts, stops
        Where the blocks begin and end along it, in this order.
    values
        The coordinate; None if there is none.
    parts
        What counts of blocks that overlap with others, by number.
    """

    order: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray | None
    parts: Mapping[int, slice] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        order: np.ndarray,
        lengths: Sequence[int] | np.ndarray,
        values: np.ndarray | None = None,
    ) -> Axis:
        """Return an axis of blocks of these lengths, in the order of the dimension."""
        stops = np.cumsum(lengths, dtype=np.int64)
        return cls(order, stops - lengths, stops, values)

    @property
    def length(self) -> int:
        """Length of the dimension."""
        return int(self.stops[-1])

    @property
    def places(self) -> np.ndarray:
        """By number of a block, its place in the order."""
        places = np.empty(len(self.order), np.int64)
        places[self.order] = np.arange(len(self.order))
        return places


def by_coordinate(
    name: str, blocks: Blocks, names: Sequence[str], *, gaps: bool, overlap: Overlap = "error"
) -> Axis:
    """Return the axis of blocks in the order of their coordinates.

    Blocks of text are in the order of their first labels, as xarray has them.

    Parameters
    ----------
    name
        Path of the dimension, for messages.
    blocks
        The coordinates of each, no two of them equal.
    names
        A file for each, for messages.
    gaps
        Whether there may be gaps.
    overlap
        What counts where blocks overlap: nothing ("error"), the one that begins first, or last.

    Raises
    ------
    ExportError
        Naming the file, if there is no such order: coordinates that are missing, that go up and
        down, or that overlap; if there is a gap that there may not be.
    """
    parts: dict[int, slice] = {}
    empty = np.flatnonzero(blocks.lengths == 0)
    if len(empty):
        raise nothing_along(names[int(empty[0])], name)
    is_text = blocks.values.dtype.kind not in "iuf"
    if is_text:
        _check_text(name, blocks, names)
        order = _ordered_texts(blocks)
    else:
        order, parts = _ordered(name, blocks, names, overlap)
    ordered = blocks.taken(order, parts)
    if not gaps and not is_text:
        _check_gaps(name, ordered, [names[at] for at in order.tolist()])
    return replace(Axis.of(order, ordered.lengths, ordered.values), parts=parts)


def nothing_along(file: str, name: str) -> ExportError:
    """Return the error for a file of which a dimension has no elements."""
    return ExportError(file, f"has nothing along {name}; leave this file out")


def _ordered_texts(blocks: Blocks) -> np.ndarray:
    """Return the order of blocks by their first labels, falling if those of all blocks fall."""
    firsts = blocks.values[blocks.starts].tolist()
    lasts = blocks.values[blocks.starts + blocks.lengths - 1].tolist()
    falls = {one > other for one, other in zip(firsts, lasts, strict=True) if one != other} == {
        True
    }
    return np.array(sorted(range(len(firsts)), key=firsts.__getitem__, reverse=falls))


def _ordered(
    name: str, blocks: Blocks, names: Sequence[str], overlap: Overlap
) -> tuple[np.ndarray, dict[int, slice]]:
    """Return the order of blocks, and what counts of those that overlap with others."""
    rises = _direction(name, blocks, names)
    starts = blocks.starts
    firsts, lasts = blocks.values[starts], blocks.values[starts + blocks.lengths - 1]
    order = np.argsort(firsts, kind="stable")
    if not rises:
        order = order[::-1]
    ends, begins = lasts[order[:-1]], firsts[order[1:]]
    wrong = np.flatnonzero(ends >= begins if rises else ends <= begins)
    parts: dict[int, slice] = {}
    for at in wrong.tolist():
        one, other = order[at : at + 2].tolist()
        here, there = blocks.block(one), blocks.block(other)
        if overlap == "error":
            raise ExportError(
                names[other],
                f"overlaps with {names[one]} along {name}: {_span(there)} and {_span(here)}; "
                f"{_ADVICE}",
            )
        if overlap == "first":
            kept = there > here[-1] if rises else there < here[-1]
            cut, part = other, slice(len(kept) - int(kept.sum()), None)
        else:
            kept = here < there[0] if rises else here > there[0]
            cut, part = one, slice(0, int(kept.sum()))
        inside = there[-1] <= here[-1] if rises else there[-1] >= here[-1]
        if inside or not kept.any():
            raise ExportError(
                names[other],
                f"has only what {names[one]} has along {name}, too: {_span(there)} and "
                f"{_span(here)}; leave one of the files out",
            )
        parts[cut] = part
    return order, parts


def _direction(name: str, blocks: Blocks, names: Sequence[str]) -> bool:
    """Tell whether coordinates rise; all must do the same."""
    values = blocks.values
    owner = np.repeat(np.arange(len(blocks.lengths)), blocks.lengths)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        file = names[int(owner[np.argmin(np.isfinite(values))])]
        raise ExportError(file, f"has coordinates along {name} that are no numbers")
    inside = owner[1:] == owner[:-1]
    owner = owner[1:][inside]
    rise = (values[1:] > values[:-1])[inside]
    fall = (values[1:] < values[:-1])[inside]
    if rise.all() or fall.all():
        return bool(rise.all())
    known, first, step = np.unique(owner, return_index=True, return_inverse=True)
    mixed = np.where(rise[first][step], ~rise, ~fall)
    if mixed.any():
        file = names[int(owner[np.argmax(mixed)])]
        raise ExportError(
            file, f"has coordinates along {name} that neither rise nor fall throughout"
        )
    other = int(np.argmax(rise[first] != rise[0]))
    one = names[int(known[0])]
    raise ExportError(
        names[int(known[other])],
        f"has coordinates along {name} that {'fall' if rise[0] else 'rise'}, and those of {one} "
        f"{'rise' if rise[0] else 'fall'}",
    )


def _check_text(name: str, blocks: Blocks, names: Sequence[str]) -> None:
    owners: dict[str, int] = {}
    numbers = np.repeat(np.arange(len(blocks.lengths)), blocks.lengths)
    for number, text in zip(numbers.tolist(), blocks.values.tolist(), strict=True):
        owner = owners.setdefault(text, number)
        if owner != number:
            raise ExportError(
                names[number], f"overlaps with {names[owner]} along {name}: both have {text!r}"
            )


def _check_gaps(name: str, blocks: Blocks, names: Sequence[str]) -> None:
    """Raise if the step from one block to the next is longer than steps usually are."""
    steps = np.abs(np.diff(blocks.values.astype(np.float64)))
    borders = blocks.starts[1:] - 1
    between, inside = steps[borders], np.delete(steps, borders)
    usual = (
        float(inside.max()) if len(inside) else float(np.median(between)) if len(between) else 0.0
    )
    wrong = np.flatnonzero(between > _GAP * usual)
    if len(wrong):
        at = int(wrong[0])
        before, after = blocks.values[borders[at] : borders[at] + 2]
        raise ExportError(
            names[at + 1],
            f"does not follow {names[at]} along {name}: after {before} comes {after}, and steps "
            f"are {usual:g}; gaps='allow' takes them as they are",
        )


def _span(block: np.ndarray) -> str:
    return f"{block[0]}" if len(block) == 1 else f"{block[0]} to {block[-1]}"
