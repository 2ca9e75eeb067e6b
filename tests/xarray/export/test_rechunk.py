"""The arithmetic of rechunking, by its rules and against what it stands for."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nczarr_xarray.export.rechunk import (
    Rechunking,
    boxes,
    chunk_boxes,
    plan_rechunking,
    repeats,
    touched,
)


class Case(NamedTuple):
    """An array, its two chunk grids, and the elements that memory has room for."""

    shape: tuple[int, ...]
    old: tuple[int, ...]
    new: tuple[int, ...]
    room: int

    def plan(self, passes: int) -> Rechunking:
        return plan_rechunking(*self, passes=passes)


@st.composite
def cases(draw: st.DrawFn, most: int = 10**4) -> Case:
    rank = draw(st.integers(0, 4))
    lengths = st.integers(1, draw(st.sampled_from([3, 12, most])))

    def grid() -> tuple[int, ...]:
        return tuple(draw(st.lists(lengths, min_size=rank, max_size=rank)))

    shape = tuple(draw(st.sampled_from([size, size, 0, 1])) for size in grid())
    return Case(shape, grid(), grid(), draw(st.integers(1, 10**6)))


def size_of(shape: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    return math.prod(max(1, min(pair)) for pair in zip(shape, lengths, strict=True))


@given(st.integers(0, 60), st.integers(1, 70), st.integers(1, 70))
def test_touched_chunks_are_counted(size: int, length: int, chunk: int) -> None:
    parts = [slice(at, min(at + length, size)) for at in range(0, size, length)]
    slow = sum((part.stop - 1) // chunk - part.start // chunk + 1 for part in parts)
    assert touched(size, length, chunk) == slow


@given(cases(most=40), st.integers(1, 30), st.data())
def test_boxes_have_few_chunks_and_make_a_part(case: Case, most: int, data: st.DataObject) -> None:
    part = [slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in case.shape]
    whole = np.zeros(case.shape, int)
    for box in chunk_boxes(part, case.old, most):
        touched = (
            -(-along.stop // chunk) - along.start // chunk
            for along, chunk in zip(box, case.old, strict=True)
            if along.stop > along.start
        )
        assert math.prod(touched) <= most
        whole[box] += 1
    wanted = np.zeros_like(whole)
    wanted[(*part,)] = 1
    np.testing.assert_array_equal(whole, wanted)


@given(cases(), st.sampled_from([1, 2]))
def test_parts_are_whole_chunks_and_fit(case: Case, passes: int) -> None:
    plan = case.plan(passes)
    assert all(p % n == 0 for p, n in zip(plan.parts, case.new, strict=True))
    assert size_of(case.shape, plan.parts) <= max(case.room, size_of(case.shape, case.new))
    if passes == 1:
        assert plan.first is None
    if plan.first is not None:
        assert plan.between is not None
        assert all(p % n == 0 for p, n in zip(plan.first, case.old, strict=True))
        assert size_of(case.shape, plan.first) <= max(case.room, size_of(case.shape, case.old))
        assert all(b <= p for b, p in zip(plan.between, plan.parts, strict=True))
        assert all(b <= p for b, p in zip(plan.between, plan.first, strict=True))
        assert plan.repeats == 1


@given(cases())
def test_it_is_no_worse_than_chunk_by_chunk(case: Case) -> None:
    """A second pass is made only where one pass would decode more."""
    one, two = case.plan(1), case.plan(2)
    assert one.repeats <= repeats(case.shape, case.new, case.old) * (1 + 1e-9)
    if two.first is not None:
        assert one.repeats > 3
    else:
        assert two == one


@given(cases())
def test_with_room_for_all_there_is_one_part(case: Case) -> None:
    plan = case._replace(room=math.prod(max(1, size) for size in case.shape)).plan(2)
    assert plan.first is None
    assert all(p >= size for p, size in zip(plan.parts, case.shape, strict=True))


@given(cases(most=6))
@example(Case((8, 8, 8), (1, 8, 8), (8, 1, 1), 70))
@example(Case((60, 60), (1, 60), (60, 1), 120))
def test_both_passes_copy_every_element_once(case: Case) -> None:
    plan = case._replace(room=case.room % 100 + 1).plan(2)
    array = np.arange(math.prod(case.shape)).reshape(case.shape)
    for lengths in (plan.first, plan.parts):
        if lengths is None:
            continue
        seen = np.zeros(case.shape, int)
        copy = np.full_like(array, -1)
        for part in boxes(case.shape, lengths):
            seen[part] += 1
            copy[part] = array[part]
        assert (seen == 1).all()
        array = copy
    np.testing.assert_array_equal(array.reshape(-1), np.arange(math.prod(case.shape)))


@pytest.mark.parametrize(
    ("case", "passes", "most"),
    [
        # maps into series, with room for a fiftieth
        (Case((10_000, 1000, 1000), (1, 1000, 1000), (10_000, 10, 10), 2 * 10**8), 2, 1),
        # the same grid, and one that whole factors lead to
        (Case((100, 100), (10, 10), (10, 10), 100), 1, 1),
        (Case((100, 100), (10, 10), (20, 5), 400), 1, 1),
        # chunks that overlap a little
        (Case((1000, 1000), (100, 100), (130, 130), 17_000), 1, 3.2),
    ],
)
def test_known_grids(case: Case, passes: int, most: float) -> None:
    plan = case.plan(2)
    assert (1 if plan.first is None else 2) == passes
    assert plan.repeats <= most
