"""Tables of fragments that a version of CFA has no words for are refused, not written in part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.formats.cfa.cf113 import Cf113
from nczarr_xarray.formats.cfa.cfa04 import Cfa04
from nczarr_xarray.formats.cfa.cfa062 import Cfa062
from nczarr_xarray.model import FragmentMapping, FragmentPlace, Fragments
from tests.support.builders.aggregations import master_of, read


def table(count: int, length: int = 1, **columns: Any) -> Fragments:
    """Fragments in a row, as long as each other."""
    starts = np.arange(count) * length
    addresses, names, formats = (np.full(count, text, object) for text in ("a.nc", "tas", ""))
    return Fragments((starts,), (starts + length,), addresses, names, formats, **columns)


def values_of(values: Any) -> Fragments:
    return table(len(values), values=np.asarray(values))


@pytest.mark.parametrize("dialect", [Cfa04(), Cfa062()])
def test_values_instead_of_fragments(dialect: Any) -> None:
    with pytest.raises(ExportError, match="tas: has values instead of fragments"):
        dialect.encode("tas", (("time", 2),), values_of([1, 2]))


def test_a_fragment_in_several_datasets() -> None:
    own = table(2, others={1: (FragmentPlace("b.nc", "tas"),)})
    with pytest.raises(ExportError, match="is in several datasets"):
        Cfa04().encode("tas", (("time", 2),), own)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (FragmentMapping(part=(slice(None, None, -1),)), "is cut at"),
        (FragmentMapping(part=(slice(-3, None),)), "is cut at"),
        (FragmentMapping(part=(slice(0, -1),)), "is cut at"),
        (FragmentMapping(reverse=(1,)), "runs backwards along a dimension that the data lack"),
    ],
)
def test_mappings(mapping: FragmentMapping, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        Cfa04().encode("tas", (("time", 4),), table(2, 2, mappings={1: mapping}))


@pytest.mark.parametrize(
    ("piece", "places"),
    [
        (slice(3, None), [3, 4]),
        (slice(3, 5), [3, 4]),
        (slice(None, None, 2), [0, 2]),
        (slice(3, None, 4), [3, 7]),
        (slice(1, None, -1), [1, 0]),
        (slice(7, 3, -2), [7, 5]),
        ((2, 9), [2, 9]),
    ],
)
def test_what_of_a_fragment_counts_is_read_as_it_was_written(piece: Any, places: list[int]) -> None:
    times = (("time", 4),)
    own = table(2, 2, mappings={1: FragmentMapping(part=(piece,))})
    array = read(*master_of("tas", times, Cfa04().encode("tas", times, own)))
    (found,) = array.fragments.mappings[1].part or ()
    of_ten = np.arange(10)
    assert of_ten[[*found] if isinstance(found, tuple) else found][:2].tolist() == places


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(-128, 128, dtype="i1"), "has all values of int8"),
        (np.arange(256, dtype="u1"), "has all values of uint8"),
        (np.array([bytes([at]) for at in range(256)], "S1"), r"has all values of \|S1"),
        (np.array(["a", ""], object), "has an empty text as a value"),
    ],
)
def test_values_that_leave_none_for_missing_data(values: Any, message: str) -> None:
    own = values_of(values)
    with pytest.raises(ExportError, match=message):
        Cf113().encode("tas", (("time", len(values)),), own)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(-128, 127, dtype="i1"),
        np.arange(1, 256, dtype="u1"),
        np.array([bytes([at]) for at in range(1, 255)], "S1"),
        np.array([9.969209968386869e36, -9.969209968386869e36, 0, 1, 2], "f4"),
    ],
)
def test_a_value_that_is_left_is_that_of_missing_data(values: Any) -> None:
    own = values_of(values)
    own.addresses[3] = None
    (term,) = (
        term
        for term in Cf113().encode("tas", (("time", len(values)),), own).terms
        if "unique_values" in term.path
    )
    found = np.asarray(term.values)
    assert np.array_equal(np.delete(found, 3), np.delete(values, 3))
    assert found[3] == term.attributes["_FillValue"]
    assert found[3] not in np.delete(found, 3)
