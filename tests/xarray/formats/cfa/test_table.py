"""How the values of an aggregation variable are to be read: signs, and marks of missing data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nczarr_xarray.formats.cf import fill_of, marks_of, read_as
from nczarr_xarray.model import Attribute, Variable
from tests.support.builders.aggregations import attribute_of


def variable(dtype: str, nc_type: str | None, **attributes: Any) -> Variable:
    found = {
        name: value if isinstance(value, Attribute) else attribute_of(name, value)
        for name, value in attributes.items()
    }
    return Variable("v", "/", (), nc_type, np.dtype(dtype), found)


def text(*values: str) -> Attribute:
    return Attribute("x", "string", values)


@pytest.mark.parametrize(
    ("dtype", "said", "found"),
    [
        ("i1", "true", "u1"),
        ("i1", "True", "u1"),
        ("u1", "false", "i1"),
        (">i2", "true", "u2"),
        ("i4", text("true"), "u4"),
        ("i4", text("no", "true"), "i4"),
        ("f4", "true", "f4"),
        ("i1", np.array([1], "i4"), "i1"),
    ],
)
def test_unsigned(dtype: str, said: Any, found: str) -> None:
    assert read_as(variable(dtype, None, _Unsigned=said)) == np.dtype(found)


def test_nothing_said_of_signs() -> None:
    assert read_as(variable(">i2", "short")) == np.dtype("i2")


@pytest.mark.parametrize(
    ("attributes", "marks"),
    [
        ({"_FillValue": np.array([1, 2], "i4"), "missing_value": np.array([3], "i4")}, [1, 2, 3]),
        ({"missing_value": "none"}, ["none"]),
        ({"missing_value": text("a", "b"), "_FillValue": np.array([7], "i4")}, [7, "a", "b"]),
        ({}, [-2147483647]),
    ],
)
def test_marks(attributes: dict[str, Any], marks: list[Any]) -> None:
    assert marks_of(variable("i4", "int", **attributes)) == marks


def test_a_type_that_netcdf_has_not_has_no_mark() -> None:
    assert marks_of(variable("f2", None)) == []


@pytest.mark.parametrize(
    ("dtype", "nc_type", "attributes", "fill"),
    [
        ("i4", "int", {"_FillValue": np.array([5], "i4")}, np.int32(5)),
        ("i4", "int", {"missing_value": "none", "_FillValue": text("x")}, np.int32(-2147483647)),
        ("i1", "byte", {"missing_value": np.array([400, 3], "i4")}, np.int8(3)),
        ("i1", "byte", {"missing_value": np.array([400], "i4")}, np.int8(-127)),
        ("f2", None, {"missing_value": "none"}, np.float16(0)),
        (">f8", "double", {}, np.float64(9.969209968386869e36)),
        ("O", "string", {"_FillValue": text("none")}, "none"),
    ],
)
def test_fill(dtype: str, nc_type: str | None, attributes: dict[str, Any], fill: Any) -> None:
    found = fill_of(variable(dtype, nc_type, **attributes))
    assert found == fill
    assert type(found) is type(fill)
