"""The order of blocks along a dimension, found by their coordinates: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nczarr_fsspec.errors import ExportError

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
    """

    order: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray | None

    @classmethod
    def of(
        cls, order: np.ndarray, lengths: Sequence[int], values: np.ndarray | None = None
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
    name: str, blocks: Sequence[np.ndarray], names: Sequence[str], *, gaps: bool
) -> Axis:
    """Return the axis of blocks in the order of their coordinates.

    Text has no order: its blocks follow each other as they are given.

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

    Raises
    ------
    ExportError
        Naming the file, if there is no such order: coordinates that are missing, that go up and
        down, or that overlap; if there is a gap that there may not be.
    """
    for number, block in enumerate(blocks):
        if not len(block):
            raise nothing_along(names[number], name)
    if blocks[0].dtype.kind not in "iuf":
        order = np.arange(len(blocks))
        _check_text(name, blocks, names)
    else:
        order = _ordered(name, blocks, names)
        if not gaps:
            numbers = order.tolist()
            _check_gaps(name, [blocks[at] for at in numbers], [names[at] for at in numbers])
    ordered = [blocks[at] for at in order.tolist()]
    return Axis.of(order, [*map(len, ordered)], np.concatenate(ordered))


def nothing_along(file: str, name: str) -> ExportError:
    """Return the error for a file of which a dimension has no elements."""
    return ExportError(file, f"has nothing along {name}; leave this file out")


def _ordered(name: str, blocks: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    rises = _direction(name, blocks, names)
    firsts = np.array([block[0] for block in blocks])
    lasts = np.array([block[-1] for block in blocks])
    order = np.argsort(firsts, kind="stable")
    if not rises:
        order = order[::-1]
    ends, begins = lasts[order[:-1]], firsts[order[1:]]
    wrong = np.flatnonzero(ends >= begins if rises else ends <= begins)
    if len(wrong):
        one, other = int(order[wrong[0]]), int(order[wrong[0] + 1])
        raise ExportError(
            names[other],
            f"overlaps with {names[one]} along {name}: {_span(blocks[other])} and "
            f"{_span(blocks[one])}",
        )
    return order


def _direction(name: str, blocks: Sequence[np.ndarray], names: Sequence[str]) -> bool:
    """Tell whether coordinates rise; all must do the same."""
    rises, example = True, None
    for number, block in enumerate(blocks):
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            raise ExportError(names[number], f"has coordinates along {name} that are no numbers")
        if len(block) == 1:
            continue
        up = bool(block[1] > block[0])
        if not (block[1:] > block[:-1] if up else block[1:] < block[:-1]).all():
            raise ExportError(
                names[number], f"has coordinates along {name} that neither rise nor fall throughout"
            )
        if example is not None and up != rises:
            raise ExportError(
                names[number],
                f"has coordinates along {name} that {'rise' if up else 'fall'}, and those of "
                f"{names[example]} {'rise' if rises else 'fall'}",
            )
        rises, example = up, number
    return rises


def _check_text(name: str, blocks: Sequence[np.ndarray], names: Sequence[str]) -> None:
    owners: dict[str, int] = {}
    for number, block in enumerate(blocks):
        for text in block.tolist():
            owner = owners.setdefault(text, number)
            if owner != number:
                raise ExportError(
                    names[number], f"overlaps with {names[owner]} along {name}: both have {text!r}"
                )


def _check_gaps(name: str, blocks: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Raise if the step from one block to the next is longer than steps usually are."""
    between = [abs(float(b[0]) - float(a[-1])) for a, b in pairwise(blocks)]
    inside = [float(np.abs(np.diff(block)).max()) for block in blocks if len(block) > 1]
    usual = max(inside) if inside else float(np.median(between)) if between else 0.0
    for number, step in enumerate(between):
        if step > _GAP * usual:
            raise ExportError(
                names[number + 1],
                f"does not follow {names[number]} along {name}: after "
                f"{blocks[number][-1]} comes {blocks[number + 1][0]}, and steps are {usual:g}; "
                "gaps='allow' takes them as they are",
            )


def _span(block: np.ndarray) -> str:
    return f"{block[0]}" if len(block) == 1 else f"{block[0]} to {block[-1]}"
