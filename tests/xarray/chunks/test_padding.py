"""Variables shorter or longer than their dimensions, against numpy's padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec import FormatError
from nczarr_xarray.chunks.pieces import padded_selection
from nczarr_xarray.chunks.plan import plan_outer, plan_points
from tests.support.builders.keys import outer, outer_keys, point_keys, pointwise


def read(stored: np.ndarray[Any, Any], key: tuple[Any, ...], *, points: bool) -> Any:
    """Read `key` of an array as the engine does: planned, as one chunk."""
    chunks = [max(1, n) for n in stored.shape]
    plan = (plan_points if points else plan_outer)(key, stored.shape, chunks)
    result = np.empty(plan.shape, stored.dtype)
    for task in plan.tasks():
        chunk = stored if plan.axes is None else stored.transpose(plan.axes)
        result[task.target] = chunk[task.source]
    return plan.finish(result)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], np.ndarray[Any, Any]]:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    stored = tuple(draw(st.integers(0, 7)) for _ in range(rank))
    return shape, np.arange(np.prod(stored, dtype=int)).reshape(stored)


def whole(shape: tuple[int, ...], stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    full = np.full(shape, -9)
    part = tuple(slice(min(n, m)) for n, m in zip(shape, stored.shape, strict=True))
    full[part] = stored[part]
    return full


@given(case=cases(), data=st.data())
def test_boxes(case: Any, data: st.DataObject) -> None:
    shape, stored = case
    key = data.draw(outer_keys(shape))
    padded = padded_selection(key, shape, stored.shape, -9, points=False, path="/v")
    got = padded.finish(read(stored, padded.key, points=False))
    np.testing.assert_array_equal(got, outer(whole(shape, stored), key))


@given(case=cases(), data=st.data())
def test_points(case: Any, data: st.DataObject) -> None:
    shape, stored = case
    key = data.draw(point_keys(shape))
    padded = padded_selection(key, shape, stored.shape, -9, points=True, path="/v")
    got = padded.finish(read(stored, padded.key, points=True))
    np.testing.assert_array_equal(got, pointwise(whole(shape, stored), key))


def test_what_no_memory_holds_is_refused() -> None:
    with pytest.raises(FormatError, match="/v: a selection of"):
        padded_selection((slice(None),), (1 << 40,), (3,), 0, points=False, path="/v")


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("index", [5, -6])
def test_positions_that_there_are_not(index: int, points: bool) -> None:
    with pytest.raises(IndexError, match="out of bounds for a dimension of length 5"):
        padded_selection((np.array([0, index]),), (5,), (3,), 0, points=points, path="/v")
