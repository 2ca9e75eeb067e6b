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
