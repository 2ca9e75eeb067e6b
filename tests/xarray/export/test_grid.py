"""Chunk grids: the default lengths, and dask's blocks on them."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray.export.form.chunk_shapes import (
    DEFAULT_BYTES,
    aligned,
    default_chunk_shape,
    largest_block,
    shared_chunk,
    suits,
)

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


def borders(blocks: tuple[int, ...], start: int) -> list[int]:
    """Where blocks begin and end."""
    return [start, *(start + end for end in itertools.accumulate(blocks))]


@given(blocks=lengths, chunk=st.integers(1, 8), start=st.integers(0, 20))
def test_aligned_blocks(blocks: tuple[int, ...], chunk: int, start: int) -> None:
    (new,) = aligned([blocks], [chunk], [start])
    assert shared_chunk([new], [chunk], [start]) is None
    found = borders(new, start)
    assert (found[0], found[-1]) == (start, start + sum(blocks))
    assert found == sorted(found)
    assert all(border % chunk == 0 for border in found[1:-1])
    assert 0 not in new
    assert len(new) <= len(blocks)


@given(blocks=lengths, chunk=st.integers(1, 8), start=st.integers(0, 20))
def test_shared_chunks_are_chunks_of_two_blocks(
    blocks: tuple[int, ...], chunk: int, start: int
) -> None:
    ends = borders(blocks, start)
    inner = [border for border in ends[1:-1] if border % chunk]
    found = shared_chunk([blocks], [chunk], [start])
    assert (found is None) == (not inner)
    if found is not None:
        assert (found.axis, found.position, found.chunk) == (0, inner[0], chunk)
        assert found.position in ends[found.block + 1 : found.block + 2]


@given(blocks=st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple))
def test_chunks_of_the_largest_block_suit_all(blocks: tuple[int, ...]) -> None:
    (chunk,) = largest_block([blocks])
    assert chunk == max(1, *blocks, 0)
    (moved,) = aligned([blocks], [chunk], [0])
    assert shared_chunk([moved], [chunk], [0]) is None
    assert max(moved) < 2 * chunk
    if all(length == chunk for length in blocks[:-1]):
        assert moved == blocks or not blocks[-1]


def test_grids_of_blocks() -> None:
    assert largest_block([(4, 4, 2), (3,), (0,), (2, 2), ()]) == (4, 3, 1, 2, 1)
    small, large = (10, 10, 10), 1000
    for blocks, chunks, suit in [
        ((small, small), (10, 10), True),
        ((small, small), (5, 2), True),
        ((small, small), (15, 10), False),  # they are a grid of their own
        (((7, 10, 3), small), (10, 10), True),
        (((7, 10, 3), small), (20, 10), True),  # larger, but small
        (((7, *(10,) * 99, 3), (large,)), (10, 100), True),
        (((7, *(10,) * 99, 3), (large,)), (1000, 10), False),  # one block of everything
    ]:
        assert suits(blocks, chunks, large) == suit, (blocks, chunks)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 10**7), st.booleans()), min_size=1, max_size=4),
    itemsize=st.sampled_from([1, 2, 4, 8, 100]),
)
def test_default_chunks(sizes: list[tuple[int, bool]], itemsize: int) -> None:
    shape = [size for size, _ in sizes]
    unlimited = [grows for _, grows in sizes]
    chunks = default_chunk_shape(shape, unlimited, itemsize)
    assert all(chunk >= 1 for chunk in chunks)
    if 0 not in shape:  # else there is nothing to store
        assert math.prod(chunks) * itemsize <= DEFAULT_BYTES * 1.01
    for size, grows, chunk in zip(shape, unlimited, chunks, strict=True):
        if not all(unlimited):
            assert chunk == 1 if grows else chunk <= max(1, size)


def test_default_chunks_of_some_shapes() -> None:
    assert default_chunk_shape((), (), 8) == ()
    assert default_chunk_shape((0, 5), (False, False), 4) == (1, 5)
    assert default_chunk_shape((100, 200), (False, False), 4) == (100, 200)
    assert default_chunk_shape((9,), (True,), 8) == (512,)
    assert default_chunk_shape((9, 180, 360), (True, False, False), 4) == (1, 180, 360)
    # as long as each other, with no small rest
    assert default_chunk_shape((2**20 + 8,), (False,), 8) == (349_528,)
