"""Tables that are put together: against a dictionary of places and fragments."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray.model import FragmentMapping, FragmentPlace, Fragments, assembled, in_a_row

#: By place in the grid: where the fragment may be, and how it is mapped.
Held: TypeAlias = "dict[tuple[int, ...], tuple[tuple[FragmentPlace, ...], FragmentMapping | None]]"


def column(values: list[Any]) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def held(table: Fragments) -> Held:
    numbers = range(table.count)
    found = {table.position(n): (table.places(n), table.mappings.get(n)) for n in numbers}
    return {position: one for position, one in found.items() if one[0]}


@st.composite
def tables(draw: st.DrawFn, grid: tuple[int, ...], word: str, begin: tuple[int, ...]) -> Fragments:
    """Draw a table, some of whose fragments are missing, mapped, or at other places too."""
    count = int(np.prod(grid, dtype=int))
    kinds = draw(st.lists(st.sampled_from("aamot"), min_size=count, max_size=count))
    starts = tuple(10 * (at + np.arange(n)) for at, n in zip(begin, grid, strict=True))
    return Fragments(
        starts,
        tuple(start + 9 for start in starts),
        column([None if kind == "m" else f"{word}{n}" for n, kind in enumerate(kinds)]),
        column([f"{word}v{n}" for n in range(count)]),
        column([word] * count),
        mappings={n: FragmentMapping(units=word) for n, kind in enumerate(kinds) if kind == "t"},
        others={n: (FragmentPlace("o", word),) for n, kind in enumerate(kinds) if kind == "o"},
    )


@given(st.data(), st.lists(st.integers(1, 4), max_size=3))
def test_a_block_replaces_what_it_covers_or_lets_the_grid_grow(
    data: st.DataObject, lengths: list[int]
) -> None:
    grid = tuple(lengths)
    first = [data.draw(st.integers(0, n - 1)) for n in grid]
    size = [data.draw(st.integers(1, n - at)) for n, at in zip(grid, first, strict=True)]
    grows: bool = data.draw(st.booleans())
    if grid and grows:  # behind all others along one dimension
        axis = data.draw(st.integers(0, len(grid) - 1))
        first, size = [0] * len(grid), [*grid]
        first[axis], size[axis] = grid[axis], data.draw(st.integers(1, 3))
    table = data.draw(tables(grid, "a", (0,) * len(grid)))
    block = data.draw(tables(tuple(size), "b", tuple(first)))
    found = table.with_block(block, first)
    moved = {
        tuple(a + b for a, b in zip(first, position, strict=True)): one
        for position, one in held(block).items()
    }
    assert held(found) == {**held(table), **moved}
    ends = [max(n, at + more) for n, at, more in zip(grid, first, size, strict=True)]
    assert found.grid == tuple(ends)
    for number in range(found.count):
        position = found.position(number)
        assert found.extent(number) == tuple((10 * at, 10 * at + 9) for at in position)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["x", "y", None])), max_size=9))
def test_a_later_fragment_takes_the_place_of_an_earlier_one(
    rows: list[tuple[int, str | None]],
) -> None:
    addresses = column([address for _, address in rows])
    names = column([f"v{n}" for n in range(len(rows))])
    edges = np.arange(7)
    row = in_a_row(addresses, names, column([""] * len(rows)))
    places = np.array([place for place, _ in rows], np.int64)
    found = assembled((edges[:-1],), (edges[1:],), [(row, places)])
    wanted = {
        (place,): ((FragmentPlace(address, f"v{n}"),), None)
        for n, (place, address) in enumerate(rows)
        if address is not None
    }
    assert held(found) == wanted
