"""Blocks divide every shape, within bounds, and read chunks as seldom as possible."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray.tools.compare import Blocks, block_lengths

SIZES = st.integers(0, 12)


@st.composite
def divisions(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A shape and two chunk grids."""
    shape = tuple(draw(st.lists(SIZES, max_size=3)))

    def lengths(most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(1, most)) for _ in shape)

    return shape, [lengths(14), lengths(14)]


@given(divisions(), st.integers(1, 500))
def test_blocks_divide_the_shape(
    division: tuple[tuple[int, ...], list[tuple[int, ...]]], most: int
) -> None:
    shape, grids = division
    lengths = block_lengths(shape, 4, grids, most)
    blocks = Blocks(shape, lengths)
    seen = np.zeros(shape, int)
    for number in range(blocks.count):
        part = blocks.part(number)
        seen[part] += 1
    assert (seen == 1).all()
    if 0 not in shape:
        own = (math.prod(map(min, shape, grid)) for grid in grids)
        assert math.prod(lengths) * 4 <= max(most, 4 * max(own, default=1))


def test_blocks_are_whole_chunks_of_both_grids_where_memory_allows() -> None:
    lengths = block_lengths((1000, 600), 8, [(10, 30), (4, 20)], 8 * 20 * 60 * 2)
    assert all(
        n % math.lcm(*pair) == 0 for n, pair in zip(lengths, [(10, 4), (30, 20)], strict=True)
    )


def test_opposite_grids_cost_less_than_reading_by_either() -> None:
    shape, grids = (1000, 1000, 1000), [(1, 1000, 1000), (1000, 10, 10)]
    lengths = block_lengths(shape, 8, grids, 1 << 26)

    def readings(lengths: tuple[int, ...]) -> int:
        return sum(
            math.prod(
                sum(-(-min(s, at + n) // c) - at // c for at in range(0, s, n))
                for s, n, c in zip(shape, lengths, grid, strict=True)
            )
            * math.prod(grid)
            for grid in grids
        )

    assert readings(lengths) < min(readings(grid) for grid in grids) / 4


def test_one_large_chunk_is_read_once() -> None:
    assert block_lengths((4000, 4000), 8, [(4000, 4000), (10, 10)], 1 << 20) == (4000, 4000)


def test_a_sample_is_always_the_same_and_spread() -> None:
    blocks = Blocks((10**12, 10**12), (1, 1))
    sample = blocks.numbers(7)
    assert sample == blocks.numbers(7)
    assert len(set(sample)) == 7
    assert max(sample) > blocks.count // 2
    assert list(Blocks((4,), (2,)).numbers(9)) == [0, 1]
