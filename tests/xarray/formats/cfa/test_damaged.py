"""Damaged, absurd and hostile tables: one error that names the variable, or a sound table."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.cfa.cf113 import Cf113
from nczarr_xarray.formats.cfa.cfa062 import Cfa062
from nczarr_xarray.formats.cfa.dialect import Encoded, Term
from nczarr_xarray.model import FragmentArray, FragmentPlace, Fragments
from tests.support.builders.aggregations import grid_is_sound, held, master_of, read

LENGTHS = (("time", 4), ("lat", 3))


def partition(*index: int, **own: Any) -> dict[str, Any]:
    i, j = index
    return {
        "index": [i, j],
        "location": [[2 * i, 2 * i + 1], [2 * j, 1 + j]],
        "subarray": {
            "shape": [2, 2 - j],
            "ncvar": "tas",
            "file": f"f{i}{j}.nc",
            "format": "netCDF",
        },
        **own,
    }


def table() -> dict[str, Any]:
    return {
        "Partitions": [partition(i, j) for i in range(2) for j in range(2)],
        "pmshape": [2, 2],
        "pmdimensions": ["time", "lat"],
    }


def read_04(document: Any, lengths: Any = LENGTHS, **attributes: str) -> FragmentArray:
    text = document if isinstance(document, str) else json.dumps(document)
    names = " ".join(name for name, _ in lengths)
    encoded = Encoded({"cfa_dimensions": names, "cfa_array": text, **attributes})
    return read(*master_of("tas", lengths, encoded))


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all places in a document: what holds them, and the key."""
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(pairs):
        yield value, key
        if isinstance(child, (dict, list)):
            yield from nodes(child)


anything: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 9),
        st.sampled_from([2**31, 2**40, 2**63, -(2**63), 10**30]),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["time", "lat", "", "[[0, 1, 1]]", "[(0,)]", "../x", "[0, -1, 0]"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = ["part", "reverse", "flip", "pdimensions", "punits", "pcalendar", "base", "data", "varid"]


@given(st.data())
def test_damaged_json(data: st.DataObject) -> None:
    document = table()
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(list(nodes(document))))
        what = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "remove":
            del holder[key]
        elif what == "add" and isinstance(holder, dict):
            holder[data.draw(st.sampled_from(KEYS))] = data.draw(anything)
        else:
            holder[key] = data.draw(anything)
    try:
        array = read_04(document)
    except FormatError as error:
        assert error.object == "/tas"
    else:
        grid_is_sound(array)
        assert array.fragments.count <= 100


@given(st.data())
def test_cut_json(data: st.DataObject) -> None:
    text = json.dumps(table())
    at = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(FormatError, match="not valid JSON"):
        read_04(text[:at])


def changed(at: int, **own: Any) -> dict[str, Any]:
    document = table()
    document["Partitions"][at].update(own)
    return document


WRONG = {
    "a level too many": ("[" * 100 + "]" * 100, "not a dict"),
    "very deep": ("[" * 100_000 + "]" * 100_000, "nested too deeply|not a dict"),
    "deep in a partition": (
        json.dumps(table()).replace("[0, 0]", "[" * 900 + "]" * 900, 1),
        "nested too deeply|index",
    ),
    "nothing": ("", "not valid JSON"),
    "a number": ("5", "not a dict"),
    "partitions are text": ({"Partitions": "x"}, "Partitions"),
    "a partition is text": ({**table(), "Partitions": ["x"]}, "not all objects"),
    "an index beyond the matrix": (
        changed(3, index=[1, 2]),
        r"partition 3 of cfa_array \(index \[1, 2\]\) has the index \[1, 2\] in a matrix of",
    ),
    "a negative index": (changed(3, index=[1, -1]), "partition 3 .* matrix"),
    "an index of one": (changed(1, index=[1]), "partition 1 .* has an index .* not 2 small"),
    "an index of truth": (changed(1, index=[True, 1]), "partition 1 .* has an index"),
    "an index of fractions": (changed(1, index=[0.0, 1]), "partition 1 .* has an index"),
    "an index twice": (
        changed(3, index=[1, 0], location=[[2, 3], [0, 1]]),
        "partition 3 .* has the index of partition 2 ",
    ),
    "no index": (changed(2, index=None), "partition 2 .* has an index None"),
    "beyond the data": (
        changed(2, location=[[2, 9], [0, 1]]),
        r"partition 2 .* \[2, 10\] of 'time'",
    ),
    "before the data": (changed(2, location=[[-1, 3], [0, 1]]), r"partition 2 .* 'time'"),
    "backwards": (changed(2, location=[[3, 2], [0, 1]]), "partition 2 .* 'time'"),
    "another place": (
        changed(3, location=[[2, 3], [1, 2]]),
        "partition 3 .* another place along 'lat' than partition 1 ",
    ),
    "no place": (changed(3, location=None), "partition 3 .* location None"),
    "three places": (changed(3, location=[[2, 3]] * 3), "partition 3 .* not one of 2 pairs"),
    "a triple": (changed(3, location=[[2, 3], [2, 2, 2]]), "partition 3 .* a location that"),
    "overlap": (
        {**table(), "Partitions": [
            partition(0, 0), partition(1, 0, location=[[1, 3], [0, 1]])
        ]},
        "partition 1 .* overlaps partition 0 .* along 'time'",
    ),
    "another order": (
        {**table(), "Partitions": [
            partition(0, 0, location=[[2, 3], [0, 1]]), partition(1, 0, location=[[0, 1], [0, 1]])
        ]},
        "partition 1 .* overlaps partition 0 .* comes before it, along 'time'",
    ),
    "a matrix of text": ({**table(), "pmshape": "2 2"}, "pmshape"),
    "a negative matrix": ({**table(), "pmshape": [2, -2]}, "pmshape"),
    "a matrix of one": ({**table(), "pmshape": [4]}, "pmshape"),
    "a huge matrix": ({**table(), "pmshape": [2**63, 2]}, "pmshape"),
    "another dimension": ({**table(), "pmdimensions": ["time", "lon"]}, "'lon'"),
    "a dimension twice": ({**table(), "pmdimensions": ["time", "time"]}, "'time'"),
    "a base of numbers": ({**table(), "base": 5}, "base"),
    "a file of numbers": (changed(1, subarray={"file": 5}), "partition 1 .* file 5"),
    "a list of files": (changed(1, subarray=["f.nc"]), "partition 1 .* subarray"),
    "no variable": (changed(1, subarray={"file": "f.nc"}), "partition 1 .* no name of a variable"),
    "a negative variable": (changed(1, subarray={"file": "f.nc", "varid": -1}), "partition 1 .*"),
    "a part of nothing": (changed(1, part="[[0, 1]"), "partition 1 .* part"),
    "a step of zero": (changed(1, part="[[0, 1, 0], [0, 1, 1]]"), "partition 1 .* part"),
    "a part that runs": (changed(1, part="__import__('os')"), "partition 1 .* part"),
    "reverse of no dimension": (changed(1, reverse=["lon"]), "partition 1 .* reverse"),
    "reverse of another": (changed(1, reverse=["lat"], pdimensions=["time"]), "1 .*reverses"),
    "an order of numbers": (changed(1, pdimensions=[0, 1]), "partition 1 .* pdimensions"),
    "units of numbers": (changed(1, punits=5), "partition 1 .* punits"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_the_error_names_variable_and_partition(case: str) -> None:
    document, message = WRONG[case]
    with pytest.raises(FormatError, match=message) as caught:
        read_04(document)
    assert caught.value.object == "/tas"
    assert len(str(caught.value)) < 500


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(FormatError, match="'lon' in cfa_dimensions"):
        read_04(table(), cfa_dimensions="time lat lon")


def test_more_dimensions_than_arrays_have() -> None:
    with pytest.raises(FormatError, match="more than 32 dimensions in cfa_dimensions"):
        read_04(table(), cfa_dimensions="time " * 1000)


@pytest.mark.parametrize("shape", [[2**40, 2], [2**20, 2**20], [2**31, 2**31]])
def test_a_matrix_of_many_partitions_takes_no_memory(shape: list[int]) -> None:
    lengths = (("time", 2**41), ("lat", 2**41))
    document = {
        **table(), "pmshape": shape, "Partitions": [
            {"index": [0, 0], "location": [[0, 1], [0, 1]], "subarray": {"file": "f", "ncvar": "t"}}
        ],
    }  # fmt: skip
    tracemalloc.start()
    array = read_04(document, lengths)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(held(array)) == 1
    assert peak < 1 << 20


def test_addresses_that_a_base_makes_huge_are_refused() -> None:
    document = {
        "base": "x" * 1_000_000,
        "pmdimensions": ["time"],
        "pmshape": [1000],
        "Partitions": [
            {"index": [i], "location": [[i, i]], "subarray": {"file": "f", "ncvar": "t"}}
            for i in range(1000)
        ],
    }
    with pytest.raises(FormatError, match="base of 1000000 characters"):
        read_04(document, (("time", 1000),))


@pytest.mark.slow
def test_long_tables_take_little_memory() -> None:
    count = 20_000
    document = {
        "pmdimensions": ["time"],
        "pmshape": [count],
        "Partitions": [
            {
                "index": [i],
                "location": [[i, i]],
                "subarray": {"file": f"f{i}", "ncvar": "tas", "format": "netCDF", "shape": [1]},
                "pdimensions": ["time"],
                "punits": "degC",
            }
            for i in range(count)
        ],
    }
    text = json.dumps(document)
    del document
    tracemalloc.start()
    array = read_04(text, (("time", count),))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert array.fragments.count == count
    assert len({id(mapping) for mapping in array.fragments.mappings.values()}) == 1
    assert kept < 300 * count
    assert peak < 500 * count
    assert array.fragments.names.strides == (0,)


def fragments() -> Fragments:
    column = np.empty(4, object)
    column[:] = ["a", "b", "c", "d"]
    return Fragments(
        (np.array([0, 2]), np.array([0, 1])),
        (np.array([2, 4]), np.array([1, 3])),
        column,
        column.copy(),
        np.full(4, "nc", object),
        others={1: (FragmentPlace("e", "e", "nc"),)},
    )


def values_of(count: int, dtype: str) -> np.ndarray:
    if dtype == "O":
        return np.array(["x", None, "", 5, b"y"] * count, object)
    return (np.arange(5 * count) % 7).astype(dtype)


@pytest.mark.parametrize("dialect", [Cfa062(), Cf113()], ids=lambda d: d.name)
@given(data=st.data())
def test_damaged_terms(dialect: Any, data: st.DataObject) -> None:
    own = fragments()
    if dialect.name == "1.13":
        own = Fragments(own.starts, own.stops, own.addresses, own.names, own.formats)
    encoded = dialect.encode("tas", LENGTHS, own)
    terms = list(encoded.terms)
    at = data.draw(st.integers(0, len(terms) - 1))
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    if data.draw(st.booleans()):
        shape = terms[at].values.shape
    dtype = data.draw(st.sampled_from(["i1", "i4", "u8", "f4", "S1", "S3", "U2", "O", "M8[s]"]))
    count = int(np.prod(shape))
    values = np.resize(values_of(max(1, count), dtype), count).reshape(shape)
    dimensions = tuple((f"d{n}_{length}", length) for n, length in enumerate(shape))
    plain = "S1" if dtype in ("S3", "U2", "M8[s]") else dtype
    terms[at] = Term(terms[at].path, dimensions, np.zeros(shape, plain), terms[at].attributes)
    text = data.draw(st.sampled_from([None, "", "x", "location: tas", "map:", "a: b c", "Map: x"]))
    attributes = dict(encoded.attributes)
    if text is not None:
        attributes[data.draw(st.sampled_from(sorted(attributes)))] = text
    hierarchy, own_values = master_of("tas", LENGTHS, Encoded(attributes, tuple(terms)))
    try:
        array = read(hierarchy, {**own_values, f"/{terms[at].path}": values})
    except FormatError as error:
        assert error.object in {"/tas", *(f"/{term.path}" for term in terms)}
    else:
        grid_is_sound(array)


def read_113(sizes: Any, lengths: Any, text: str, **terms: Any) -> FragmentArray:
    values = np.array(sizes)
    if values.dtype == np.int64:
        values = values.astype(np.int32)
    own = [Term("m", tuple((f"m{n}", k) for n, k in enumerate(values.shape)), values)]
    for name, value in terms.items():
        column = np.asarray(value)
        if column.dtype.kind == "U":
            column = column.astype(object)
        shape = tuple((f"{name}{n}", k) for n, k in enumerate(column.shape))
        own.append(Term(name, shape, column))
    names = " ".join(name for name, _ in lengths)
    encoded = Encoded({"aggregated_dimensions": names, "aggregated_data": text}, tuple(own))
    return read(*master_of("tas", lengths, encoded))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([[2, 3]], "sum is 5, not 4"),
        ([[2, 1]], "sum is 3, not 4"),
        ([[5, -1]], "sizes 5 along 'time'"),
        ([[4, -1]], "sizes -1 along 'time'"),
        ([[-2147483647, 4]], "'time', which has the length 4"),
        ([[0, 4]], "sizes 0 along"),
        ([[2, 2], [2, 2]], "one row for each"),
        ([2, 2], "one row for each"),
        ([[2.0, 2.0]], "integers"),
    ],
)
def test_sizes_that_are_not_those_of_the_dimension(sizes: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_113(sizes, (("time", 4),), "map: m uris: u identifiers: i", u=["a", "b"], i="t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("map: m uris: u", "keywords"),
        ("Map: m uris: u identifiers: i", "keywords"),
        ("map: m uris: u identifiers: i format: f", "keywords"),
        ("map: m uris: u identifiers: gone", "'gone' in aggregated_data"),
        ("map: m map: m", "'map' twice"),
        ("map: m uris: u identifiers", "not 'keyword: name ...'"),
        ("location: m file: u format: i", "no address"),
    ],
)
def test_terms_that_make_no_table(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_113([[2, 2]], (("time", 4),), text, u=["a", "b"], i="t")
    assert caught.value.object == "/tas"


def test_an_address_that_stands_for_more_fragments_than_can_be() -> None:
    lengths = (("x", 5000), ("y", 5000))
    sizes = np.ones((2, 5000), np.int32)
    with pytest.raises(FormatError, match="5000 x 5000 fragments, and its table lists 1"):
        read_113(sizes, lengths, "location: m address: a", a="t")


def test_substitutions_that_grow_are_refused() -> None:
    names = np.array(["${a}" * 1000] * 4, object)
    own = Fragments(
        (np.arange(4),), (np.arange(1, 5),), names, np.full(4, "t", object), np.full(4, "", object)
    )
    encoded = Cfa062().encode("tas", (("time", 4),), own)
    file = encoded.terms[1]._replace(attributes={"substitutions": "${a}: " + "x" * 100_000})
    terms = (encoded.terms[0], file, *encoded.terms[2:])
    with pytest.raises(FormatError, match="after its substitutions"):
        read(*master_of("tas", (("time", 4),), Encoded(encoded.attributes, terms)))
