"""The arithmetic of rechunking, by its rules and against what it stands for."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nczarr_xarray.export.form.chunk_shapes import (
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


@pytest.mark.parametrize(
    ("part", "chunks", "most", "cuts"),
    [
        # all chunks of the part, if there are no more
        (((0, 6), (0, 10)), (2, 5), 6, [[0], [0]]),
        (((3, 9), (7, 23)), (3, 8), 6, [[3], [7]]),
        (((3, 9), (7, 25)), (3, 8), 8, [[3], [7]]),
        (((0, 6), (16, 24)), (2, 8), 3, [[0], [16]]),
        # whole rows of chunks
        (((3, 10), (7, 25)), (3, 8), 8, [[3, 9], [7]]),
        (((0, 6), (0, 10)), (2, 5), 5, [[0, 4], [0]]),
        (((0, 6), (0, 10)), (2, 5), 3, [[0, 2, 4], [0]]),
        (((1, 6), (3, 10)), (2, 5), 2, [[1, 2, 4], [3]]),
        (((0, 9), (0, 2), (0, 2)), (1, 1, 1), 9, [[0, 2, 4, 6, 8], [0], [0]]),
        # some of a row
        (((0, 6), (0, 10)), (2, 5), 1, [[0, 2, 4], [0, 5]]),
        (((0, 2), (3, 50)), (2, 5), 4, [[0], [3, 20, 40]]),
        (((0, 4), (0, 10)), (1, 1), 7, [[0, 1, 2, 3], [0, 7]]),
        # of nothing there is one empty box
        (((5, 5), (0, 3)), (2, 2), 4, [[5], [0]]),
        ((), (), 1, []),
    ],
)
def test_boxes_are_as_large_as_they_may(
    part: tuple[tuple[int, int], ...],
    chunks: tuple[int, ...],
    most: int,
    cuts: list[list[int]],
) -> None:
    """They are whole rows of chunks if they can, begin where chunks do, and come in C order."""
    along = [
        [slice(*pair) for pair in itertools.pairwise([*starts, stop])]
        for starts, (_, stop) in zip(cuts, part, strict=True)
    ]
    found = [*chunk_boxes([slice(*pair) for pair in part], chunks, most)]
    assert found == [*itertools.product(*along)]


def test_parts_come_in_c_order() -> None:
    assert [*boxes((3, 5), (2, 3))] == [
        (slice(0, 2), slice(0, 3)),
        (slice(0, 2), slice(3, 5)),
        (slice(2, 3), slice(0, 3)),
        (slice(2, 3), slice(3, 5)),
    ]
    assert [*boxes((), ())] == [()]
    assert [*boxes((4, 0), (2, 2))] == []


def test_grids_of_another_rank_are_refused() -> None:
    two, one = (8, 8), (2,)
    with pytest.raises(ValueError, match=r"zip\(\)"):
        [*boxes(two, one)]
    with pytest.raises(ValueError, match=r"zip\(\)"):
        [*chunk_boxes([slice(0, 8)], two, 4)]
    for lengths, chunks in ((one, two), (two, one)):
        with pytest.raises(ValueError, match=r"zip\(\)"):
            repeats(two, lengths, chunks)
        with pytest.raises(ValueError, match=r"zip\(\)"):
            plan_rechunking(two, lengths, chunks, 8, passes=1)


def test_no_room_for_a_chunk_is_a_part_of_one_chunk() -> None:
    plan = Case((60, 60), (1, 60), (60, 1), 1).plan(1)
    assert plan == Rechunking((60, 60), (60, 1), 60)
    assert Case((), (), (), 1).plan(2) == Rechunking((), (), 1)


@given(cases(), st.sampled_from([1, 2]))
@example(Case((60, 60), (1, 60), (60, 1), 120), 2)
@example(Case((7, 11, 13), (1, 11, 3), (7, 1, 5), 80), 2)
def test_parts_are_whole_chunks_and_fit(case: Case, passes: int) -> None:
    plan = case.plan(passes)
    assert plan.shape == case.shape
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
    else:
        assert plan.between is None
        assert plan.repeats == repeats(case.shape, plan.parts, case.old)


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


@given(cases(most=60))
@example(Case((1, 6), (1, 1), (1, 1), 10))
def test_the_room_is_used(case: Case) -> None:
    """If a part is no whole array along a dimension, there is no room for twice as long a part."""
    parts = case.plan(1).parts
    for axis, (size, length) in enumerate(zip(case.shape, parts, strict=True)):
        longer = [*parts]
        longer[axis] *= 2
        assert length >= size or size_of(case.shape, (*longer,)) > case.room


@pytest.mark.parametrize(
    ("room", "parts"),
    [(1, (1, 1, 1)), (10, (1, 1, 10)), (35, (1, 3, 10)), (99, (1, 9, 10)), (100, (1, 10, 10))],
)
def test_room_without_another_use_goes_to_the_last_dimensions(
    room: int, parts: tuple[int, ...]
) -> None:
    assert Case((10, 10, 10), (1, 1, 1), (1, 1, 1), room).plan(1).parts == parts
    assert Case((1, 1, *(10,) * 3), (1,) * 5, (1,) * 5, room).plan(1).parts == (1, 1, *parts)


@pytest.mark.parametrize(
    "case",
    [
        Case((7, 4, 4), (7, 3, 3), (4, 1, 2), 42),
        Case((28, 24), (9, 3), (15, 1), 40),
        Case((15, 26), (14, 12), (7, 8), 307),
        Case((29, 24), (8, 3), (13, 2), 423),
        Case((40, 40), (1, 40), (40, 1), 320),
        Case((24, 30), (24, 1), (1, 6), 60),
    ],
)
def test_nothing_that_fits_decodes_less(case: Case) -> None:
    """All grids of parts that are whole chunks are tried."""
    lengths = (range(new, size + new, new) for size, new in zip(case.shape, case.new, strict=True))
    fitting = [one for one in itertools.product(*lengths) if size_of(case.shape, one) <= case.room]
    least = min(repeats(case.shape, one, case.old) for one in fitting)
    assert case.plan(1).repeats == pytest.approx(least)


@pytest.mark.parametrize(
    ("case", "most"),
    [
        # each element is decoded, written into a grid between the two, and read from there
        (Case((4, 12, 3), (3, 11, 3), (4, 1, 1), 44), 3),
        (Case((5, 6, 4), (2, 5, 4), (1, 4, 1), 6), 3),
        (Case((60, 60), (1, 60), (60, 1), 600), 3),
        # some chunks between the grids are touched twice
        (Case((27,), (11,), (2,), 1), 3.08),
        (Case((9, 4), (7, 4), (2, 1), 4), 3.2),
    ],
)
def test_two_passes_cost_little_more_than_their_copies(case: Case, most: float) -> None:
    plan = case.plan(2)
    assert plan.first is not None
    assert plan.between is not None
    cost = 1 + sum(repeats(case.shape, one, plan.between) for one in (plan.first, plan.parts))
    assert cost <= most
    assert cost < case.plan(1).repeats


def test_a_second_pass_that_saves_nothing_is_not_made() -> None:
    case = Case((12, 11), (7, 11), (7, 2), 28)
    assert case.plan(1).repeats == 3
    assert case.plan(2) == case.plan(1)


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
