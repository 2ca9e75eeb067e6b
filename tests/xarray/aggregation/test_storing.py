"""Where the data of variables are to be: every case."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.aggregated import decide

CASES = [
    {"is_coordinate": a, "is_small": b, "stays": c or a}
    for a, b, c in itertools.product([False, True], repeat=3)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_of_new_aggregations(case: Any) -> None:
    same = decide("/v", [], None, **case)
    assert same == ("values" if case["is_small"] else "first values" if case["stays"] else "table")
    held = case["is_coordinate"] and case["is_small"]
    assert decide("/v", ["/t"], None, **case) == ("values" if held else "table")
    assert decide("/v", ["/t", "/x"], None, **case) == "table"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_of_those_that_grow(case: Any) -> None:
    """A variable stays where it is, or it is refused."""
    assert decide("/v", [], "files", **case) == "old table"
    assert decide("/v", ["/t"], "files", **case) == "table"
    assert decide("/v", [], "master", **case) == "values"
    if case["is_coordinate"] and case["is_small"]:
        assert decide("/v", ["/t"], "master", **case) == "values"
    else:
        reason = r"differs along /t:" if case["is_small"] else "cannot be read of the files"
        with pytest.raises(ExportError, match=reason):
            decide("/v", ["/t"], "master", **case)
    with pytest.raises(ExportError, match="make it anew"):
        decide("/v", ["/t", "/x"], "master", **case)
