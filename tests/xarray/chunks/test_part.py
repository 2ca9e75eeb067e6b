"""Parts of chunks of plain elements that a selection wants."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray.chunks.parts import FAR_APART, parts_of, strides_of
from nczarr_xarray.chunks.plan import ChunkTask, plan_outer, plan_points
from tests.support.examples import examples

ITEM = 4


@st.composite
def selections(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A chunk's shape, and what is wanted of it: slices with steps, and lists in any order."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    key: list[Any] = []
    for length in shape:
        if draw(st.booleans()):
            start = draw(st.integers(0, length - 1))
            stop = draw(st.integers(start + 1, length))
            key.append(slice(start, stop, draw(st.integers(1, 4))))
        else:
            some = draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=6))
            key.append(np.array(some))
    return shape, tuple(key)


def task_of(shape: tuple[int, ...], key: tuple[Any, ...]) -> tuple[ChunkTask, tuple[int, ...]]:
    plan = plan_outer(key, shape, shape)
    (segment,) = plan.segments(1)
    return segment.first, plan.shape


@given(selections(), st.integers(0, 200))
@settings(max_examples=examples(300))
def test_tasks_make_up_what_is_wanted(
    selection: tuple[tuple[int, ...], tuple[Any, ...]], far: int
) -> None:
    shape, key = selection
    chunk = np.arange(1, 1 + np.prod(shape), dtype=f"u{ITEM}").reshape(shape)
    task, wanted = task_of(shape, key)
    strides = strides_of(shape, "C", ITEM, None)
    (whole,) = parts_of(task, strides, ITEM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nczarr_xarray.chunks.parts.FAR_APART", far)
        parts = parts_of(task, strides, ITEM)
    found, times = np.zeros(wanted, chunk.dtype), np.zeros(wanted, int)
    expected = np.zeros(wanted, chunk.dtype)
    expected[task.target] = chunk[task.source]
    stored = chunk.tobytes()
    for one in parts:
        one.scatter(stored[one.start : one.stop], chunk.dtype, found)
        times[one.target] += 1
    assert np.array_equal(found, expected)
    assert np.all(times == 1)
    # what is read of the chunk does not overlap, and is never more than in one part
    bounds = sorted(one[:2] for one in parts)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(bounds))
    assert (bounds[0][0], bounds[-1][1]) == (whole.start, whole.stop)


def test_a_long_slice_is_no_list() -> None:
    """Of a slice whose positions are close to each other nothing is made for each position."""
    length = 1 << 40
    task, _ = task_of((length,), (slice(5, length // 2),))
    (found,) = parts_of(task, (ITEM,), ITEM)
    assert (found.start, found.stop) == (5 * ITEM, length // 2 * ITEM)
    assert found.source == (slice(0, length // 2 - 5, 1),)


def test_far_positions_of_a_slice_are_apart() -> None:
    step = FAR_APART
    task, _ = task_of((10 * step,), (slice(3, 10 * step, step),))
    parts = parts_of(task, (ITEM,), ITEM)
    assert [found.stop - found.start for found in parts] == [ITEM] * 10


def test_series_of_points_are_apart() -> None:
    """Where points are far apart, and steps too, nothing between is read: not all of the chunk."""
    shape = (3, 4, FAR_APART)
    key = (slice(None), np.array([0, 3]), np.array([7, 9]))
    plan = plan_points(key, shape, shape)
    (task,) = plan.tasks()
    parts = parts_of(task, strides_of(shape, "C", 1, plan.axes), 1)
    assert sorted(found.start for found in parts) == [
        (4 * step + y) * FAR_APART + x for step in range(3) for y, x in ((0, 7), (3, 9))
    ]
    assert {found.stop - found.start for found in parts} == {1}
