"""Tables of new fragments, and which present ones these touch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nczarr_xarray.export.cfa.split import Edges
from nczarr_xarray.formats.cfa.table import column, constant
from nczarr_xarray.model import Fragments


def table(edges: Iterable[Edges], addresses: Sequence[str], name: str, kind: str) -> Fragments:
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
        column([*addresses]),
        constant(name, count),
        constant(kind, count),
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
