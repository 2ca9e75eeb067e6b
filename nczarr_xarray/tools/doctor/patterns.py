"""What users read of a variable: a map, a series, a box, everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from nczarr_xarray.export.form.chunk_shapes import plane_of

Key: TypeAlias = tuple[int | slice, ...]

_ALL = slice(None)


def _map(shape: Sequence[int]) -> Key:
    """Select one step of all leading dimensions, and all of the last two."""
    plane = plane_of(len(shape))
    return (*(length // 2 for length in shape[:plane]), *(_ALL for _ in shape[plane:]))


def _series(shape: Sequence[int]) -> Key:
    """Select all of the first dimension, and one place."""
    return (_ALL, *(length // 2 for length in shape[1:]))


def _box(shape: Sequence[int]) -> Key:
    """Select a quarter of each dimension, in the middle."""
    return tuple(slice(length * 3 // 8, -(-length * 5 // 8)) for length in shape)


def _everything(shape: Sequence[int]) -> Key:
    return (_ALL,) * len(shape)


#: What is predicted, by name: from a shape to a selection.
PATTERNS: dict[str, Callable[[Sequence[int]], Key]] = {
    "map": _map,
    "series": _series,
    "box": _box,
    "everything": _everything,
}


def selections(shape: Sequence[int]) -> dict[str, Key]:
    """Return the patterns that make sense for a shape, by name."""
    if not all(shape):
        return {}
    if len(shape) < 2:
        return {"everything": _everything(shape)}
    return {name: pattern(shape) for name, pattern in PATTERNS.items()}
