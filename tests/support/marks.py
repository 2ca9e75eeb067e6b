"""Parameters of which most are tried by `ci/run.py check` only."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return `values` as parameters, marked slow except for `quick`."""
    values = list(values)
    missing = [value for value in quick if value not in values]
    assert not missing, missing
    return [v if v in quick else pytest.param(v, marks=pytest.mark.slow) for v in values]
