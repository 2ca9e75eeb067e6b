from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.axes import Axis, Blocks, by_coordinate


@st.composite
def cut(draw: st.DrawFn) -> tuple[np.ndarray, list[np.ndarray]]:
    """A coordinate, and its blocks in any order."""
    kind = draw(st.sampled_from(["f8", "f4", "i4", "i8"]))
    steps = draw(st.lists(st.integers(1, 9), min_size=1, max_size=30))
    values = np.cumsum(np.array(steps)).astype(kind)
    if draw(st.booleans()):
        values = values[::-1]
    edges = sorted(draw(st.sets(st.integers(1, max(1, len(values) - 1)), max_size=10)))
    blocks = [block for block in np.split(values, edges) if len(block)]
    if all(len(block) == 1 for block in blocks):
        values = np.sort(values)  # nothing says that they fall
    return values, draw(st.permutations(blocks))


@given(cut())
def test_blocks_are_put_in_order(given: tuple[np.ndarray, list[np.ndarray]]) -> None:
    values, blocks = given
    axis = by_coordinate(
        "/t", Blocks.of(blocks), [f"{n}.nc" for n in range(len(blocks))], gaps=True
    )
    assert axis.values is not None
    assert np.array_equal(axis.values, values)
    assert axis.length == len(values)
    for number, block in enumerate(blocks):
        at = axis.places[number]
        assert np.array_equal(values[axis.starts[at] : axis.stops[at]], block)
        assert axis.order[at] == number


@given(
    st.lists(
        st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True).map(sorted),
        min_size=2,
        max_size=6,
        unique_by=tuple,
    )
)
def test_blocks_that_overlap_are_refused_and_no_others(lists: list[list[int]]) -> None:
    spans = sorted((block[0], block[-1]) for block in lists)
    apart = all(one[1] < other[0] for one, other in itertools.pairwise(spans))
    blocks = [np.array(block) for block in lists]
    names = [str(block) for block in lists]
    if apart:
        axis = by_coordinate("/t", Blocks.of(blocks), names, gaps=True)
        assert axis.values is not None
        assert axis.values.tolist() == sorted(itertools.chain(*lists))
    else:
        with pytest.raises(ExportError, match="overlaps with"):
            by_coordinate("/t", Blocks.of(blocks), names, gaps=True)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["bc", "a"], "abc"),
        (["a", "c", "b"], "abc"),
        (["ba", "dc"], "dcba"),  # they fall
        (["ab", "dc"], "abdc"),
        (["d", "ba", "c"], "dcba"),
    ],
)
def test_text_is_in_the_order_of_its_first_labels(texts: list[str], expected: str) -> None:
    blocks = Blocks.of([np.array([*text], object) for text in texts])
    axis = by_coordinate("/m", blocks, texts, gaps=True)
    assert axis.values is not None
    assert "".join(axis.values) == expected


def test_texts_of_two_files_are_others() -> None:
    blocks = [np.array(["b", "c"], object)]
    both = Blocks.of([*blocks[:1], np.array(["c"], object)])
    with pytest.raises(ExportError, match=r"1.nc: overlaps with 0.nc along /m: both have 'c'"):
        by_coordinate("/m", both, ["0.nc", "1.nc"], gaps=True)


def test_a_block_of_nothing_is_refused() -> None:
    blocks = Blocks.of([np.array([1.0]), np.array([])])
    with pytest.raises(ExportError, match=r"1.nc: has nothing along /t"):
        by_coordinate("/t", blocks, ["0.nc", "1.nc"], gaps=True)


def test_lengths_in_sequence() -> None:
    axis = Axis.of(np.arange(3), [2, 0, 3])
    assert axis.starts.tolist() == [0, 2, 2]
    assert axis.stops.tolist() == [2, 2, 5]
    assert axis.length == 5
