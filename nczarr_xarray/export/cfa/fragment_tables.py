"""Tables of fragments: new ones, longer ones, and such with other fragments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from nczarr_xarray.export.cfa.split import Edges
from nczarr_xarray.model import Fragments


def table(edges: Iterable[Edges], addresses: Sequence[str], name: str, kind: str = "") -> Fragments:
    """Return the table of fragments that lie side by side.

    Parameters
    ----------
    addresses
        In C order.
    name, kind
        `FragmentPlace.name` and `FragmentPlace.format` of all of them.
    """
    edges, count = [*edges], len(addresses)
    return Fragments(
        tuple(edge[:-1] for edge in edges),
        tuple(edge[1:] for edge in edges),
        _column(addresses),
        np.broadcast_to(_column([name]), (count,)),
        np.broadcast_to(_column([kind]), (count,)),
    )


def joined(fragments: Fragments, more: Fragments, axis: int) -> Fragments:
    """Return a table with the fragments of another one behind its own along one dimension."""
    grids = fragments.grid, more.grid

    def column(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        parts = [c.reshape(grid) for c, grid in zip((one, other), grids, strict=True)]
        return np.concatenate(parts, axis).reshape(-1)

    before = np.arange(fragments.count).reshape(fragments.grid)
    places = np.concatenate([before, np.full(more.grid, -1)], axis).reshape(-1)
    new = {int(old): at for at, old in enumerate(places.tolist()) if old >= 0}
    starts, stops = [*fragments.starts], [*fragments.stops]
    starts[axis] = np.concatenate([starts[axis], more.starts[axis]])
    stops[axis] = np.concatenate([stops[axis], more.stops[axis]])
    return replace(
        fragments,
        starts=tuple(starts),
        stops=tuple(stops),
        addresses=column(fragments.addresses, more.addresses),
        names=column(fragments.names, more.names),
        formats=column(fragments.formats, more.formats),
        mappings={new[n]: mapping for n, mapping in fragments.mappings.items()},
        others={new[n]: other for n, other in fragments.others.items()},
    )


def replaced(fragments: Fragments, more: Fragments, first: Sequence[int]) -> Fragments:
    """Return a table in which those of another one are in the place of a block of fragments.

    Parameters
    ----------
    first
        The first fragment of the block, per dimension.
    """
    part = tuple(slice(a, a + n) for a, n in zip(first, more.grid, strict=True))

    def column(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        found = np.array(one).reshape(fragments.grid)
        found[part] = other.reshape(more.grid)
        return found.reshape(-1)

    gone = {*np.arange(fragments.count).reshape(fragments.grid)[part].reshape(-1).tolist()}
    return replace(
        fragments,
        addresses=column(fragments.addresses, more.addresses),
        names=column(fragments.names, more.names),
        formats=column(fragments.formats, more.formats),
        mappings={n: mapping for n, mapping in fragments.mappings.items() if n not in gone},
        others={n: other for n, other in fragments.others.items() if n not in gone},
    )


def edges_between(starts: np.ndarray, stops: np.ndarray, low: int, high: int) -> tuple[int, Edges]:
    """Return the number of the first fragment that touches a range, and the borders of all.

    Raises
    ------
    ValueError
        If there are gaps in the range, or it is empty.
    """
    (touched,) = np.nonzero((stops > low) & (starts < high))
    if not len(touched):
        raise ValueError("there are no fragments there")
    starts, stops = starts[touched], stops[touched]
    if starts[0] > low or stops[-1] < high or (starts[1:] != stops[:-1]).any():
        raise ValueError("there are gaps between fragments")
    return int(touched[0]), np.append(starts, stops[-1]).astype(np.int64)


def _column(values: Sequence[str]) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found
