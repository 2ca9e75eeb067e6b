"""Arrays of references that are put together of random variables are taken apart again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_xarray.aggregation.whole_variables import (
    ArrayReferences,
    Placements,
    WholeVariable,
    place,
)
from nczarr_xarray.model import ChunkedArray, ChunkTable
from tests.support.examples import examples

#: Per dimension: the length of a chunk, chunks of each file along it, what the last one lacks.
AXES = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.lists(st.integers(1, 3), min_size=1, max_size=3),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=3,
)


class Made:
    """Files of a grid, each with one variable whose chunks lie one behind the other."""

    def __init__(self, axes: list[tuple[int, list[int], int]]) -> None:
        self.chunks = tuple(chunk for chunk, _, _ in axes)
        self.edges = [np.cumsum([0, *counts]) for _, counts, _ in axes]
        grid = tuple(int(edges[-1]) for edges in self.edges)
        self.shape = tuple(
            n * chunk - min(less, chunk - 1) for n, (chunk, _, less) in zip(grid, axes, strict=True)
        )
        self.found: dict[tuple[int, ...], Part | bytes | None] = {}
        self.variables: dict[str, WholeVariable] = {}
        for cell in itertools.product(*(range(len(edges) - 1) for edges in self.edges)):
            lows = [int(e[at]) for e, at in zip(self.edges, cell, strict=True)]
            highs = [int(e[at + 1]) for e, at in zip(self.edges, cell, strict=True)]
            name = "-".join(map(str, cell))
            places = itertools.product(*itertools.starmap(range, zip(lows, highs, strict=True)))
            for number, position in enumerate(places):
                self.found[position] = Part(name, 100 * number, 100 * number + 10 + number)
            sizes = zip(lows, highs, self.chunks, self.shape, strict=True)
            shape = tuple(min(high * n, length) - low * n for low, high, n, length in sizes)
            starts = np.arange(number + 1) * 100
            table = ChunkTable(starts, 10 + starts // 100, np.zeros(len(starts), "u4"))
            self.variables[name] = WholeVariable("/v", shape, table)

    def references(self) -> ArrayReferences:
        array = ChunkedArray("v", self.shape, self.chunks, np.dtype("f4"))
        return ArrayReferences.of("refs", array, (self.found[key] for key in sorted(self.found)))

    def placements(self) -> Placements:
        references = self.references()
        placements = Placements(references)
        for address, numbers in references.chunks_of().items():
            placed = place(references, int(numbers[0]), self.variables[address])
            if placed is None:
                raise references.error(int(numbers[0]), "is no chunk of the variable")
            assert sorted(placed.numbers.tolist()) == sorted(numbers.tolist())
            assert not placed.compared.size
            placements.add(address, placed)
        return placements


@given(axes=AXES)
@settings(max_examples=examples(200))
def test_what_is_whole_becomes_a_table(axes: list[tuple[int, list[int], int]]) -> None:
    made = Made(axes)
    table = made.placements().table()
    assert [*table.addresses] == [*made.variables]
    assert {*table.names} == {"v"}
    for starts, stops, edges, chunk, length in zip(
        table.starts, table.stops, made.edges, made.chunks, made.shape, strict=True
    ):
        assert starts.tolist() == (edges[:-1] * chunk).tolist()
        assert stops.tolist() == np.minimum(edges[1:] * chunk, length).tolist()


@given(axes=AXES, data=st.data())
@settings(max_examples=examples(200))
def test_one_other_extent_is_found(
    axes: list[tuple[int, list[int], int]], data: st.DataObject
) -> None:
    made = Made(axes)
    key = data.draw(st.sampled_from(sorted(made.found)))
    was = made.found[key]
    assert isinstance(was, Part)
    others = [Part(was.address, was.start + 1, was.stop), Part(was.address, was.start), None]
    made.found[key] = data.draw(st.sampled_from(others))
    references = made.references()
    if made.found[key] is None:
        for address, numbers in references.chunks_of().items():
            placed = place(references, int(numbers[0]), made.variables[address])
            assert placed is not None
            lacking = [references.position(int(number)) for number in placed.compared]
            assert lacking == ([key] if address == was.address else [])
    else:
        with pytest.raises(ExportError, match="reference 'v/"):
            made.placements()
