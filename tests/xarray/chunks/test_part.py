"""Parts of chunks of plain elements that a selection wants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray.chunks import part
from nczarr_xarray.chunks.part import ChunkPart, split, strides_of
from nczarr_xarray.chunks.plan import ChunkTask, plan_outer
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "FAR_APART", far)
        tasks = split(task, strides, ITEM)
    whole, found = np.zeros(wanted, chunk.dtype), np.zeros(wanted, chunk.dtype)
    whole[task.target] = chunk[task.source]
    times = np.zeros(wanted, int)
    for one in tasks:
        found[one.target] = chunk[one.source]
        times[one.target] += 1
    assert np.array_equal(found, whole)
    assert np.all(times == 1)
    # what is read of the chunk does not overlap, and is never more than before
    bounds = sorted(ChunkPart.of(one, strides, ITEM)[:2] for one in tasks)
    before = ChunkPart.of(task, strides, ITEM)
    assert bounds[0][0] == before.start
    assert max(stop for _, stop in bounds) == before.stop


def test_a_long_slice_is_no_list() -> None:
    """Of a slice whose positions are close to each other nothing is made for each position."""
    length = 1 << 40
    task, _ = task_of((length,), (slice(5, length // 2),))
    assert split(task, (ITEM,), ITEM) == [task]


def test_far_positions_of_a_slice_are_apart() -> None:
    step = part.FAR_APART
    task, _ = task_of((10 * step,), (slice(3, 10 * step, step),))
    tasks = split(task, (ITEM,), ITEM)
    sizes = [found.stop - found.start for found in (ChunkPart.of(t, (ITEM,), ITEM) for t in tasks)]
    assert sizes == [ITEM] * 10
