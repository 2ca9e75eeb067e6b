"""Chunk grids: the default lengths, and dask's blocks on them."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray.export.chunk_shapes import (
    DEFAULT_BYTES,
    aligned,
    default_chunk_shape,
    shared_chunk,
    uniform_chunks,
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


@given(blocks=st.lists(lengths, min_size=1, max_size=3), start=st.lists(st.just(0), min_size=3))
def test_blocks_that_are_a_grid(blocks: list[tuple[int, ...]], start: list[int]) -> None:
    chunks = uniform_chunks(blocks)
    if chunks is not None:
        assert shared_chunk(blocks, chunks, start[: len(blocks)]) is None
        for axis, chunk in zip(blocks, chunks, strict=True):
            assert all(length == chunk for length in axis[:-1])
    else:
        assert any(len(axis) > 1 for axis in blocks)


def test_grids_of_blocks() -> None:
    assert uniform_chunks([(4, 4, 2), (3,), (0,), (2, 2)]) == (4, 3, 1, 2)
    for blocks in ((4, 3, 4), (2, 4), (4, 4, 5), (0, 4)):
        assert uniform_chunks([blocks]) is None


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
