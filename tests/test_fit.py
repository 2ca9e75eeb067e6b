"""What lies beyond the stored part of a variable reads as padding; numpy says what is where."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray.chunks.fit import fit


@st.composite
def _cases(draw: Any, points: bool) -> tuple[tuple[int, ...], tuple[int, ...], list[Any]]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    stored = tuple(draw(st.integers(0, length)) for length in shape)
    count = draw(st.integers(0, 5))
    key: list[Any] = []
    for length in shape:
        kind = draw(st.sampled_from(["slice", "array"] if points else ["slice", "array", "int"]))
        if kind == "slice":
            key.append(draw(st.slices(length)))
        elif kind == "int":
            key.append(draw(st.integers(-length, length - 1)))
        else:
            values = st.lists(st.integers(-length, length - 1), min_size=count, max_size=count)
            array = np.array(draw(values), dtype=np.int64)
            # two axes that are broadcast against each other
            key.append(array[:, np.newaxis] if points and draw(st.booleans()) else array)
    return shape, stored, key


def _padded(shape: tuple[int, ...], stored: tuple[int, ...]) -> tuple[Any, Any]:
    inner = np.arange(1, 1 + int(np.prod(stored))).reshape(stored)
    whole = np.full(shape, -7)
    whole[tuple(slice(0, n) for n in stored)] = inner
    return inner, whole


def _outer(array: Any, key: list[Any]) -> Any:
    for axis in reversed(range(len(key))):
        array = array[(*[slice(None)] * axis, key[axis])]
    return array


def _pointwise(array: Any, key: list[Any]) -> Any:
    arrays = [axis for axis, index in enumerate(key) if not isinstance(index, slice)]
    slices = [axis for axis in range(len(key)) if axis not in arrays]
    moved = array.transpose([*arrays, *slices])
    return moved[tuple(key[axis] for axis in (*arrays, *slices))]


@given(_cases(points=False))
def test_boxes(case: Any) -> None:
    shape, stored, key = case
    inner, whole = _padded(shape, stored)
    fitted = fit(key, shape, stored, -7, points=False)
    found = fitted.finish(_outer(inner, list(fitted.key)))
    np.testing.assert_array_equal(found, _outer(whole, key), strict=True)


@given(_cases(points=True))
def test_points(case: Any) -> None:
    shape, stored, key = case
    if all(isinstance(index, slice) for index in key):
        return  # there are no points
    inner, whole = _padded(shape, stored)
    fitted = fit(key, shape, stored, -7, points=True)
    found = fitted.finish(_pointwise(inner, list(fitted.key)))
    np.testing.assert_array_equal(found, _pointwise(whole, key), strict=True)


def test_longer_data_are_cut_off() -> None:
    fitted = fit((slice(None),), (3,), (5,), -7, points=False)
    np.testing.assert_array_equal(fitted.finish(_outer(np.arange(5), list(fitted.key))), range(3))
