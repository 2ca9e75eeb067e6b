import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.text import parse_size
from nczarr_xarray.export.cfa.parts import (
    AxisType,
    axis_type,
    even_edges,
    regular_edges,
    split_counts,
)

_VECTORS = Path(__file__).parents[3] / "data" / "cfa-vectors"
_SEED = json.loads((_VECTORS / "split_seed01.json").read_text())
_SECOND = json.loads((_VECTORS / "split_s3nc21.json").read_text())


def _axes(case: Any) -> Any:
    return [axis_type(*pair) for pair in zip(case["dims"], case["axes"], strict=True)]


def _most(case: Any) -> Any:
    return case["max_object_size"] / np.dtype(case["dtype"]).itemsize


def test_most_cases_are_divided_as_by_the_seed_anyway() -> None:
    same = [
        split_counts(case["shape"], _axes(case), _most(case)) == tuple(case["pmshape_float"])
        for case in _SEED
    ]
    assert sum(same) == 13


def test_second_generation_finds_the_same_axes() -> None:
    for ours, theirs in zip(_SEED, _SECOND, strict=True):
        assert _axes(ours) == ours["axis_types"] == theirs["axis_types"]


@pytest.mark.parametrize(
    ("shape", "axes", "most", "counts"),
    [
        ((20, 10, 30, 40), "NNNN", 1250, (4, 4, 4, 4)),  # no field: the others in turn
        ((180, 360), "YX", 12500, (3, 2)),  # nothing but field
        ((1, 10, 10), "TYX", 1, (1, 10, 10)),  # no more than an element each
        ((3, 2, 2), "TYX", 0.5, (3, 2, 2)),
        ((4, 100), ["T", ""], 100, (4, 1)),
        ((4, 100), ["T", ""], 10, (4, 1)),
        ((0, 100), "TY", 10, (1, 1)),
        ((), "", 1, ()),
        ((5,), "N", 5, (1,)),
    ],
)
def test_degenerate_cases(shape: Any, axes: Any, most: Any, counts: Any) -> None:
    assert split_counts(shape, list(axes), most) == counts


@pytest.mark.parametrize(
    ("name", "attribute", "kind"),
    [
        ("t", None, "T"),
        ("t0", None, "T"),
        ("ocean_time", None, "T"),
        ("tau", None, "N"),
        ("plev", None, "N"),
        ("z", None, "Z"),
        ("hybrid_level", None, "Z"),
        ("latitude0", None, "Y"),
        ("rlat", None, "N"),
        ("rlat", "Y", "Y"),
        ("lon", "spam", "X"),
        ("time", 3, "T"),
        ("x", None, "X"),
        ("xyz", None, "N"),
    ],
)
def test_axis_types(name: Any, attribute: Any, kind: Any) -> None:
    assert axis_type(name, attribute) == kind


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("XYZTN")), max_size=4),
    st.integers(1, 5000),
)
def test_no_fragment_is_larger_than_the_cap(
    dimensions: list[tuple[int, AxisType]], most: int
) -> None:
    shape, axes = [size for size, _ in dimensions], [axis for _, axis in dimensions]
    counts = split_counts(shape, axes, most)
    edges = [even_edges(size, count) for size, count in zip(shape, counts, strict=True)]
    assert math.prod(int(np.diff(edge).max()) for edge in edges) <= most
    assert all(1 <= count <= max(1, size) for count, size in zip(counts, shape, strict=True))


def test_nothing_is_lost_for_all_lengths_and_counts_to_400() -> None:
    for count in range(1, 401):
        lengths = np.arange(count, 401)
        edges = np.stack([even_edges(int(length), count) for length in lengths])
        parts = np.diff(edges, axis=1)
        np.testing.assert_array_equal(edges[:, 0], 0)
        np.testing.assert_array_equal(edges[:, -1], lengths)
        np.testing.assert_array_equal(parts.max(axis=1), -(-lengths // count))
        np.testing.assert_array_equal(parts.min(axis=1), lengths // count)


def test_nothing_is_lost_with_equal_parts() -> None:
    for length in range(1, 121):
        for part in range(1, 130):
            edges = regular_edges(length, part)
            assert edges[0] == 0
            assert edges[-1] == length
            parts = np.diff(edges)
            assert (parts[:-1] == part).all()
            assert 0 < parts[-1] <= part


def test_a_dimension_without_length_is_one_part() -> None:
    assert even_edges(0, 1).tolist() == [0, 0]


NO_SIZES = ["", "MB", "-1", "5 parsecs", "1iB", 0, -3, "0MB", "1e6", 1.5, {}, "9" * 5000]


@pytest.mark.parametrize("size", [*NO_SIZES, "9" * 400 + ".5 GB"])
def test_what_is_no_size(size: Any) -> None:
    with pytest.raises(URLError, match="max_object_size"):
        parse_size(size, "max_object_size")
