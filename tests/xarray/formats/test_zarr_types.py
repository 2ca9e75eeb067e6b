"""Zarr 2's ``dtype``: what netCDF and numpy make of it, and what is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr.attributes import attribute_type
from nczarr_xarray.formats.nczarr.jsontext import Number, loads
from nczarr_xarray.formats.nczarr.values import standard, standard_attribute
from nczarr_xarray.formats.nczarr.zarray import MAX_ITEM, variable_type


@pytest.mark.parametrize(
    ("code", "nc_type", "dtype"),
    [
        ("<i4", "int", "<i4"),
        (">i4", "int", ">i4"),
        ("i4", "int", "<i4"),
        ("|u1", "ubyte", "u1"),
        ("=f8", "double", "<f8"),
        (">S1", "char", "S1"),
        ("<U1", "char", "S1"),
        ("|S7", "string", "S7"),
        ("|O", "string", "O"),
        ("<M8[ns]", None, "<M8[ns]"),
        ("<m8[D]", None, "<m8[D]"),
        ("|b1", None, "?"),
        ("<c16", None, "<c16"),
    ],
)
def test_types(code: str, nc_type: str | None, dtype: str) -> None:
    assert variable_type(code, "v/.zarray", netcdf=True) == (nc_type, np.dtype(dtype))


def test_text_of_one_character_is_char_in_netcdf_only() -> None:
    assert variable_type("<U1", "k", netcdf=False) == ("string", np.dtype("<U1"))


def test_structures() -> None:
    code = loads(b'[["a", "<i4"], ["b", "<f8", [2, 3]], ["c", [["d", "|u1"]]]]', "k")
    wanted = [("a", "<i4"), ("b", "<f8", (2, 3)), ("c", [("d", "u1")])]
    assert variable_type(code, "k", netcdf=True) == (None, np.dtype(wanted))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Number("4"), "dtype '4' is not text"),
        (None, "dtype None is not text"),
        ({"a": "<i4"}, "dtype {'a': '<i4'} is not text"),
        ("<x4", "dtype '<x4' is not a Zarr data type"),
        ("<M8[0s]", "dtype '<M8[0s]' is not a Zarr data type"),
        ("<i", "dtype '<i' has no size"),
        ("<M8", "dtype '<M8' has no unit of time"),
        ("<i3", "dtype '<i3' is not known"),
        ("|S0", "has elements of 0 bytes"),
        (f"|V{MAX_ITEM + 1}", f"has elements of {MAX_ITEM + 1} bytes"),
        ([["a", "|O"]], "has Python objects inside"),
        ([["a", "<x4"]], "dtype '<x4' is not a Zarr data type"),
        ([["a"]], "is malformed"),
        ([["a", None]], "is malformed"),
        ([["a", "<i4", 2]], "is malformed"),
        ([["a", "<i4", ["x"]]], "is malformed"),
        (["a"], "is malformed"),
        ([["a", "<i4"], ["a", "<i4"]], "is not known"),
        ([], "has elements of 0 bytes"),
    ],
)
def test_refused(code: Any, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        variable_type(code, "v/.zarray", netcdf=True)
    assert caught.value.object == "v/.zarray"
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("code", "nc_type"),
    [
        *(("<i4", "int"), ("|u1", "ubyte"), (">S1", "char"), ("|S7", "string"), ("<U3", "char")),
        *(("2", "char"), ("12", "string"), ("|J0", None), ("<f2", None), (5, None), ("", None)),
    ],
)
def test_attribute_types(code: Any, nc_type: str | None) -> None:
    assert attribute_type(code) == nc_type


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers(-(2**70), 2**70) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=8,
    )
)
def test_standard_json_has_no_nan(value: Any) -> None:
    """Any parser of JSON reads it, and what was standard is as it was."""
    found = standard(loads(json.dumps(value).encode(), "k"))

    def plain(one: Any) -> Any:
        if isinstance(one, Number):
            return json.loads(one, parse_constant=pytest.fail)
        if isinstance(one, list):
            return [plain(member) for member in one]
        return {k: plain(v) for k, v in one.items()} if isinstance(one, dict) else one

    assert plain(found) == _quoted(value)


def _quoted(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[str(value)]
    if isinstance(value, list):
        return [_quoted(member) for member in value]
    return {k: _quoted(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("a", Number("NaN"), ["NaN"]),  # alone it would be text
        ("_FillValue", Number("NaN"), "NaN"),
        ("a", Number("1.50"), Number("1.50")),
        ("a", "NaN", "NaN"),
        ("a", [Number("1"), Number("Infinity")], [Number("1"), "Infinity"]),
    ],
)
def test_standard_attributes(name: str, value: Any, found: Any) -> None:
    assert standard_attribute(name, value) == found
