"""What most tests of a kind are left out for: slowness, and an older xarray."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
import xarray as xr
from packaging.version import Version

SLOW = pytest.mark.slow
#: Whether encodings, text of numpy, and indexes are not yet as today, as for `ci/run.py oldest`.
OLD_XARRAY = Version(xr.__version__) < Version("2026.9")
needs_new_xarray = pytest.mark.skipif(OLD_XARRAY, reason="xarray before 2026.9 does otherwise")


def slow_but(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return `values` as parameters, marked slow except for `quick`."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, missing
    return [value if value in quick else pytest.param(value, marks=SLOW) for value in values]


def slow_cases_but(cases: Iterable[tuple[Any, ...]], *quick: Any) -> list[Any]:
    """Return `cases`, of several parameters each, marked slow unless the first is in `quick`."""
    return [case if case[0] in quick else pytest.param(*case, marks=SLOW) for case in cases]


def each_once(*parameters: Sequence[Any]) -> list[Any]:
    """Return all combinations of `parameters`, slow but for so few that every value is in one.

    The first of the quick ones has the first value of each, the second the second of each, and so
    on; a parameter with few values begins with its first again.
    """
    most = max(map(len, parameters))
    quick = {tuple(n % len(values) for values in parameters) for n in range(most)}
    return [
        pytest.param(*(value for _, value in case), marks=() if places in quick else SLOW)
        for case in product(*map(enumerate, parameters))
        for places in [tuple(place for place, _ in case)]
    ]
