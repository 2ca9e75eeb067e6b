"""Any table of fragments, written by each dialect and read again, is the same table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.transport.request import UNKNOWN
from nczarr_xarray.formats.cfa.cf113 import Cf113
from nczarr_xarray.formats.cfa.cfa04 import Cfa04
from nczarr_xarray.formats.cfa.cfa062 import Cfa062
from nczarr_xarray.formats.cfa.decode import WRITABLE
from nczarr_xarray.formats.cfa.dialect import VERSIONS
from nczarr_xarray.model import FragmentArray, FragmentMapping, FragmentPlace, Fragments, Record
from tests.support.builders.aggregations import Lengths, held, master_of, read, with_chars

NAMES = ("time", "lat", "lon", "level")

texts = st.text(
    st.characters(blacklist_categories=["Cs", "Cc", "Zs"], blacklist_characters="$#"),
    min_size=1,
    max_size=12,
)


@st.composite
def axes(draw: st.DrawFn, gaps: bool) -> tuple[list[int], list[int], int]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    holes = st.lists(st.integers(0, 2 * gaps), min_size=len(sizes) + 1, max_size=len(sizes) + 1)
    before = draw(holes)
    starts, stops, at = [], [], 0
    for hole, size in zip(before, sizes, strict=False):
        starts.append(at + hole)
        at += hole + size
        stops.append(at)
    return starts, stops, at + before[-1]


@st.composite
def tables(
    draw: st.DrawFn,
    *,
    gaps: bool = True,
    missing: bool = True,
    formats: tuple[str, ...] = ("nc",),
    recorded: bool = True,
) -> tuple[Lengths, Fragments]:
    own = [draw(axes(gaps)) for _ in range(draw(st.integers(0, 3)))]
    lengths = tuple((NAMES[at], length) for at, (_, _, length) in enumerate(own))
    count = int(np.prod([len(starts) for starts, _, _ in own]))
    one = draw(texts)
    alike = st.sampled_from([one])

    def column(strategy: st.SearchStrategy[Any]) -> np.ndarray:
        values = draw(st.lists(strategy, min_size=count, max_size=count))
        found = np.empty(count, object)
        found[:] = values
        return found

    addresses = column(st.one_of(texts, st.none()) if missing else texts)
    names = column(texts if draw(st.booleans()) else alike)
    return lengths, Fragments(
        tuple(np.array(starts, np.int64) for starts, _, _ in own),
        tuple(np.array(stops, np.int64) for _, stops, _ in own),
        addresses,
        names,
        column(st.sampled_from(formats)),
        record=draw(records(count)) if recorded else None,
    )


@st.composite
def records(draw: st.DrawFn, count: int) -> Record | None:
    """What is known of files, or not of all, or of none."""
    if not draw(st.booleans()):
        return None
    stamp = st.tuples(st.integers(-1, 1 << 40), st.integers(-(1 << 63), (1 << 63) - 1))
    stamps = draw(st.lists(stamp | st.just(UNKNOWN), min_size=count, max_size=count))
    columns = np.array(stamps, np.int64).reshape(-1, 2).T
    return Record(*(columns if (columns[0] >= 0).any() else np.array([[-1], [0]]).repeat(count, 1)))


def wanted(lengths: Lengths, fragments: Fragments) -> dict[Any, Any]:
    shape = tuple(length for _, length in lengths)
    return held(FragmentArray("/tas", shape, np.dtype("f4"), fragments))


@st.composite
def parts(draw: st.DrawFn, length: int) -> slice | tuple[int, ...]:
    """So many elements of a dimension of a fragment."""
    if draw(st.booleans()):
        return tuple(draw(st.lists(st.integers(0, 9), min_size=length, max_size=length)))
    step, start = draw(st.integers(1, 3)), draw(st.integers(0, 5))
    last = start + (length - 1) * step
    if draw(st.booleans()):
        return slice(start, last + draw(st.integers(1, step)), step)
    before = start - draw(st.integers(1, step))
    return slice(last, None if before < 0 else before, -step)


@st.composite
def mapped(draw: st.DrawFn) -> tuple[Lengths, Fragments]:
    lengths, fragments = draw(tables(formats=("netCDF", "NCZarr"), recorded=False))
    mappings = {}
    for number in range(fragments.count):
        if fragments.addresses[number] is None or draw(st.booleans()):
            continue
        ndim = len(lengths)
        more = [None] * draw(st.integers(0, 2))
        lengths_here = [stop - start for start, stop in fragments.extent(number)]
        some = [at for at, length in enumerate(lengths_here) if length > 1 or draw(st.booleans())]
        order = tuple(draw(st.permutations([*some, *more])))
        use = None if order == tuple(range(ndim)) or draw(st.booleans()) else order
        own = ndim if use is None else len(use)
        along = range(ndim) if use is None else use
        pieces = [parts(1 if axis is None else lengths_here[axis]) for axis in along]
        mapping = FragmentMapping(
            part=draw(st.one_of(st.none(), st.tuples(*pieces))) or None,
            reverse=tuple(sorted(draw(st.sets(st.integers(0, own - 1))) if own else ())),
            axes=use,
            units=draw(st.one_of(st.none(), st.just("degC"))),
            calendar=draw(st.one_of(st.none(), st.just("noleap"))),
        )
        if mapping != FragmentMapping():
            mappings[number] = mapping
    return lengths, replace(fragments, mappings=mappings)


@given(mapped())
def test_04(given_: tuple[Lengths, Fragments]) -> None:
    lengths, fragments = given_
    encoded = Cfa04().encode("tas", lengths, fragments)
    array = read(*master_of("tas", lengths, encoded))
    found, expected = held(array), wanted(lengths, fragments)
    assert found == expected
    assert array.packing == {}


@given(tables(formats=("nc", "zarr")), st.data())
def test_062(given_: tuple[Lengths, Fragments], data: st.DataObject) -> None:
    lengths, fragments = given_
    other = st.builds(FragmentPlace, texts, texts, st.just("nc"), st.just(UNKNOWN))
    places = st.lists(other, max_size=2).map(tuple)
    listed = [n for n in range(fragments.count) if fragments.addresses[n] is not None]
    others = {n: own for n in listed if (own := data.draw(places))}
    fragments = replace(fragments, others=others)
    encoded = Cfa062().encode("tas", lengths, fragments)
    array = read(*master_of("tas", lengths, encoded))
    assert held(array) == wanted(lengths, fragments)
    assert not array.warning
    assert array.packing is None
    chars = replace(encoded, terms=tuple(map(with_chars, encoded.terms)))
    assert held(read(*master_of("tas", lengths, chars))) == wanted(lengths, fragments)


@given(tables(gaps=False, missing=False, formats=("",)))
def test_113(given_: tuple[Lengths, Fragments]) -> None:
    lengths, fragments = given_
    encoded = Cf113().encode("tas", lengths, fragments)
    array = read(*master_of("tas", lengths, encoded))
    assert held(array) == wanted(lengths, fragments)
    assert array.fragments.grid == fragments.grid
    chars = replace(encoded, terms=tuple(map(with_chars, encoded.terms)))
    assert held(read(*master_of("tas", lengths, chars))) == wanted(lengths, fragments)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8", "f4", "f8", "O"])
@given(given_=tables(recorded=False), data=st.data())
def test_113_values(dtype: str, given_: tuple[Lengths, Fragments], data: st.DataObject) -> None:
    lengths, fragments = given_
    some: dict[str, st.SearchStrategy[Any]] = {
        "O": texts,
        "i1": st.integers(-128, 127),
        "f4": st.floats(width=32, allow_nan=False),
        "f8": st.floats(allow_nan=False),
    }
    strategy = some.get(dtype, st.integers(0, 255))
    drawn = data.draw(st.lists(strategy, min_size=fragments.count, max_size=fragments.count))
    values = np.empty(fragments.count, dtype)
    values[:] = drawn
    addresses = np.array([None if a is None else "" for a in fragments.addresses], object)
    fragments = replace(fragments, addresses=addresses, values=values)
    encoded = Cf113().encode("tas", lengths, fragments)
    array = read(*master_of("tas", lengths, encoded, dtype))
    assert held(array) == wanted(lengths, fragments)


def test_all_that_are_written_can_be_asked_for() -> None:
    assert sorted(VERSIONS) == sorted(dialect.name for dialect in WRITABLE)


@pytest.mark.parametrize("dialect", WRITABLE, ids=lambda d: d.name)
@given(given_=mapped(), data=st.data())
def test_what_a_dialect_cannot_say_is_refused(
    dialect: Any, given_: tuple[Lengths, Fragments], data: st.DataObject
) -> None:
    lengths, fragments = given_
    formats = fragments.formats.copy()
    formats[:] = data.draw(st.sampled_from(["", "nc", "netCDF"]))
    fragments = replace(fragments, formats=formats)
    try:
        encoded = dialect.encode("tas", lengths, fragments)
    except ExportError as error:
        assert error.object == "tas"
        assert dialect.name in error.reason
        return
    found = held(read(*master_of("tas", lengths, encoded)))
    expected = wanted(lengths, fragments)
    assert found.keys() == expected.keys()
    for extent, (places, mapping) in expected.items():
        assert [p[:2] for p in found[extent][0]] == [p[:2] for p in places]
        assert found[extent][1] == mapping
