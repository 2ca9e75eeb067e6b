"""Random keys of arrays, and numpy's answers to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st


def an_index(draw: st.DrawFn, size: int, *, pointwise: bool = False, slices: bool = False) -> Any:
    """An index of one dimension: of any kind, for points, or a slice."""
    kinds = (
        ["slice"] if slices else ["slice", "array"] if pointwise else ["slice", "array", "integer"]
    )
    kind = draw(st.sampled_from(kinds if size else ["slice"]))
    if kind == "integer":
        return draw(st.integers(-size, size - 1))
    if kind == "array":
        values = draw(st.lists(st.integers(-size, size - 1), max_size=15))
        return np.array(values, dtype=np.intp)
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = draw(st.none() | st.integers(-4, 4).filter(bool))
    return slice(draw(bound), draw(bound), step)


def outer(data: np.ndarray[Any, Any], key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """numpy's answer to an orthogonal selection."""
    dropped = []
    for axis, index in enumerate(key):
        part = [index] if isinstance(index, int) else index
        data = data[(slice(None),) * axis + (part,)]
        if isinstance(index, int):
            dropped.append(axis)
    return data.squeeze(axis=tuple(dropped))


@st.composite
def outer_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An orthogonal selection."""
    return tuple(an_index(draw, size) for size in shape)


@st.composite
def point_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A pointwise selection: arrays of one shape, one or more, and slices."""
    there = [axis for axis, size in enumerate(shape) if size]
    indexed = draw(st.sets(st.sampled_from(there), min_size=1))
    points = draw(st.sampled_from([(3,), (2, 2), (0,), (20,)]))
    key: list[Any] = []
    for axis, size in enumerate(shape):
        if axis in indexed:
            count = int(np.prod(points))
            values = draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))
            key.append(np.array(values, dtype=np.intp).reshape(points))
        else:
            key.append(an_index(draw, size, slices=True))
    return tuple(key)


def pointwise(data: np.ndarray[Any, Any], key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """numpy's answer to a pointwise selection: what points index comes first."""
    indexed = [axis for axis, index in enumerate(key) if isinstance(index, np.ndarray)]
    sliced = [axis for axis in range(data.ndim) if axis not in indexed]
    moved = data.transpose([*indexed, *sliced])
    part: np.ndarray[Any, Any] = moved[tuple(key[axis] for axis in indexed)]
    ahead = part.ndim - len(sliced)
    return part[(*[slice(None)] * ahead, *(key[axis] for axis in sliced))]
