"""The order of blocks along a dimension, found by their coordinates: pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from nczarr_fsspec.errors import ExportError

#: Which of the files counts that have values for the same coordinates.
Overlap: TypeAlias = Literal["error", "first", "last"]
#: How an error ends where files overlap.
OVERLAP_ADVICE = "overlap='first' or 'last' says which of them counts"

#: A step from one file to the next that is more than so many times a usual one is a gap.
_GAP = 1.5


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
                f"{OVERLAP_ADVICE}",
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
