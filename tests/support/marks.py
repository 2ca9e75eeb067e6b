"""Parameters of which most are tried by `ci/run.py check` only."""

from collections.abc import Iterable
from typing import Any

import pytest

SLOW = pytest.mark.slow


def slow_but(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return `values` as parameters, marked slow except for `quick`."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, missing
    return [value if value in quick else pytest.param(value, marks=SLOW) for value in values]


def slow_cases_but(cases: Iterable[tuple[Any, ...]], *quick: Any) -> list[Any]:
    """Return `cases`, of several parameters each, marked slow unless the first is in `quick`."""
    return [case if case[0] in quick else pytest.param(*case, marks=SLOW) for case in cases]
