"""Equality of values to the last bit, and tolerances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from nczarr_xarray import URLError
from nczarr_xarray.model import sequence_of
from nczarr_xarray.tools.compare.values import Tolerance, differing, spelled, type_text

PLAIN = st.sampled_from(
    ["i1", "<u2", ">i4", "<f4", ">f8", "<f2", "S1", "S5", "?", "<c16", "<M8[ns]"]
)


@given(st.data())
def test_one_changed_bit_is_found_and_nothing_else(data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(PLAIN))
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=3, max_side=4))
    bits = data.draw(npst.arrays("u1", (*shape, dtype.itemsize)))
    bits[...] = bits & 1 if dtype.kind == "b" else bits
    values = bits.view(dtype).reshape(shape)
    other = values.astype(dtype.newbyteorder())
    assert not differing(values, other).any()
    assert spelled(values.reshape(-1)) == spelled(other.reshape(-1))
    at = data.draw(st.integers(0, bits.size - 1))
    bit = 1 if dtype.kind == "b" else 1 << data.draw(st.integers(0, 7))
    changed = bits.copy()
    changed.reshape(-1)[at] ^= bit
    again = changed.view(dtype).reshape(shape)
    mask = differing(values, again)
    assert np.flatnonzero(mask).tolist() == [at // dtype.itemsize]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_zeros_and_nans_differ_by_their_bits(dtype: str) -> None:
    payload = np.array([np.nan], dtype)
    payload.view(f"u{payload.itemsize}")[0] += 5
    a = np.array([0.0, np.nan, np.nan], dtype)
    b = np.array([-0.0, np.nan, payload[0]], dtype)
    assert differing(a, b).tolist() == [True, False, True]
    assert not differing(a, b, Tolerance.of("1%")).any()
    texts = spelled(b)
    assert texts[:2] == ["-0.0", "nan"]
    assert texts[2].startswith("nan (0x7f")
    assert texts[2].endswith("5)")


def objects(*values: object) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def test_text_sequences_and_compounds() -> None:
    a = objects("é", "a", "")
    assert differing(a, objects("é", "b", "\0")).tolist() == [False, True, True]
    one, other = np.array([1, 2], "<i2"), np.array([1, 3], ">i2")
    assert differing(objects(one, one), objects(one.astype(">i2"), other)).tolist() == [False, True]
    fields = np.dtype([("x", "<f4", (2,)), ("y", "i1")], align=True)
    left = np.zeros(3, fields)
    right = np.zeros(3, fields.newbyteorder(">"))
    right["x"][1, 1] = -0.0
    assert differing(left, right).tolist() == [False, True, False]
    assert spelled(right[1:2]) == ['{"x": [0.0, -0.0], "y": 0}']


def test_types_are_named_without_byte_order_and_padding() -> None:
    fields = [("x", ">f4", (2,)), ("y", "i1")]
    text = 'compound {float[2] "x", byte "y"}'
    assert type_text(np.dtype(fields)) == type_text(np.dtype(fields, align=True)) == text
    assert type_text(sequence_of(np.dtype(">u2"))) == "sequence of ushort"
    assert type_text(np.dtype("S1")) == "char"
    assert type_text(np.dtype(object)) == "string"
    assert type_text(np.dtype(">M8[ns]")) == "M8[ns]"


@pytest.mark.parametrize(
    ("tolerance", "differ"),
    [
        (0, [True, True, True, True]),
        (0.5, [False, True, True, False]),
        ("1%", [True, False, True, True]),
        ("100%", [False, False, True, False]),
    ],
)
def test_tolerances(tolerance: float | str, differ: list[bool]) -> None:
    a = np.array([1.0, 200.0, np.inf, 0.25])
    b = np.array([1.5, 201.0, 1.0, 0.5])
    assert differing(a, b, Tolerance.of(tolerance)).tolist() == differ


def test_tolerance_of_integers_and_text() -> None:
    a, b = np.array([1, -128, 0], "i1"), np.array([2, 127, 0], "i1")
    assert differing(a, b, Tolerance.of(1)).tolist() == [False, True, False]
    large = np.array([2**63 - 1, -(2**63)])
    assert differing(large, large + np.array([-1, 1]), Tolerance.of(0.5)).tolist() == [True, True]
    assert differing(objects("a"), objects("b"), Tolerance.of(1)).tolist() == [True]


@pytest.mark.parametrize("bad", ["x", "-1", "nan", "inf", "%", ""])
def test_what_is_no_tolerance_is_refused(bad: str) -> None:
    with pytest.raises(URLError, match="tolerance"):
        Tolerance.of(bad)
