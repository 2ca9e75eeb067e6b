"""The fragments of aggregations, for ``nczarr info``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nczarr_fsspec.text import printable
from nczarr_xarray.model import FragmentArray


def summary(array: FragmentArray) -> str:
    """Return how many fragments an aggregation has, and where they are."""
    fragments = array.fragments
    there = np.flatnonzero(fragments.addresses != np.array(None))
    missing = fragments.count - len(there)
    grid = " × ".join(map(str, fragments.grid))
    text = f"{fragments.count:,} fragments" + (f" ({grid})" if len(fragments.grid) > 1 else "")
    if missing:
        text += f", {missing:,} missing"
    if fragments.values is not None:
        return f"{text}, each of one value"
    names = [fragments.addresses[number] or "this file" for number in there[[0, -1][: len(there)]]]
    if not names:
        return text
    return f"{text}: {' … '.join(map(printable, dict.fromkeys(names)))}"


def rows(array: FragmentArray) -> Iterator[str]:
    """Yield a line for each fragment: its place in the grid, its extent, where it is."""
    fragments = array.fragments
    for number in range(fragments.count):
        extent = ", ".join(f"{start}:{stop}" for start, stop in fragments.extent(number))
        places = fragments.places(number)
        where = " or ".join(f"{place.address or 'this file'} {place.name}" for place in places)
        if places and fragments.values is not None:
            where = str(fragments.values[number])
        position = ", ".join(map(str, fragments.position(number)))
        yield f"({position})  [{extent}]  {printable(where) or 'missing'}"
