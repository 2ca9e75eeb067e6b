"""The planner, the sparse cache and the range reader: properties, in virtual time."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.concurrency import Budget
from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.ranges import index_memory as sparse_module
from nczarr_fsspec.ranges import reader as reader_module
from nczarr_fsspec.ranges.index_memory import SparseBytes, join, subtract
from nczarr_fsspec.ranges.planner import (
    LEAST_PART,
    LEAST_SHARE,
    MOST_PART,
    PART_GAP,
    RAMP,
    SMALL_GAP,
    Requests,
    _pack,
    longest,
    plan_requests,
)
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import Limits
from nczarr_fsspec.transport.request import Extent
from tests.support.examples import examples
from tests.support.servers.virtualnet import VirtualBytes, cases, check, perform, run

LIMITS = st.builds(
    Limits,
    concurrency=st.integers(1, 100),
    ranges=st.sampled_from([1, 1, 2, 7, 64, 100]),
    latency=st.sampled_from([0.0, 0.001, 0.05, 0.2]),
    bandwidth=st.sampled_from([1e5, 1e6, 50e6, 1e9]),
)
#: near each other and far apart, shorter and longer than a request may be
DISTANCES = st.sampled_from(
    [0, 0, 1, 100, 4096, 4097, 1 << 14, (1 << 14) + 1, 40_000, 1 << 20, 10**8, 10**12]
)
LENGTHS = st.one_of(
    st.sampled_from([0, 1, 4, 2600, 10_000, 16_000, 259_200, (1 << 20) + 1, 9_999_999]),
    st.integers(0, 70_000),
)


@st.composite
def pieces(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Pieces in any order, some of which overlap or repeat."""
    at, listed = 0, []
    for distance, length in draw(st.lists(st.tuples(DISTANCES, LENGTHS), max_size=60)):
        at += distance
        listed.append((at, at + length))
        at += length
    for number, shift in draw(st.lists(st.tuples(st.integers(0, 99), LENGTHS), max_size=10)):
        if listed:
            start, stop = listed[number % len(listed)]
            listed.append((start + shift // 2, stop + shift))
    listed = draw(st.permutations(listed)) if len(listed) < 20 else listed[::-1]
    bounds = np.asarray(listed, dtype=np.int64).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


def merged(starts: Any, stops: Any) -> list[Extent]:
    return join(map(Extent, starts.tolist(), stops.tolist()))


def total(extents: Sequence[Extent]) -> int:
    return sum(stop - start for start, stop in extents)


#: Eight extents of uneven sizes: by their bytes alone they went by six requests of two at most.
UNEVEN: tuple[Any, Any] = (
    np.array([0, 6697, 10795, 17492, 21590, 25688, 42072, 46170]),
    np.array([2600, 6698, 13395, 17493, 21591, 25689, 42073, 46171]),
)


@example(UNEVEN, Limits(ranges=2, bandwidth=1e5), 1)
@given(pieces(), LIMITS, st.integers(1, 100))
@settings(max_examples=examples(400), deadline=None)
def test_requests_keep_the_rules(
    wanted: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], limits: Limits, connections: int
) -> None:
    starts, stops = wanted
    plan = plan_requests(starts, stops, limits, connections)
    needed = merged(starts, stops)
    asked = [extent for request in range(len(plan)) for extent in plan.extents(request)]

    # nothing twice, nothing left out, nothing beyond what is wanted, by lawful requests
    assert all(a.stop <= b.start for a, b in itertools.pairwise(asked))
    assert subtract(needed, *(zip(*asked, strict=True) if asked else ((), ()))) == []
    if needed:
        assert asked[0].start == needed[0].start
        assert asked[-1].stop == needed[-1].stop
    for request in range(len(plan)):
        extents = plan.extents(request)
        check(extents, 1 << 62, limits.ranges)
        assert total(extents) <= longest(limits)

    # no more waste than stated, and none at all over larger gaps
    count = int(np.count_nonzero(stops > starts))
    waste = total(asked) - total(needed)
    gap = PART_GAP if limits.ranges > 1 else SMALL_GAP
    extra = 0 if limits.ranges > 1 else total(needed) // 4
    assert waste <= gap * max(0, count - 1) + extra

    # no more requests than the pieces, their bytes and their cuts account for
    touching = sum(a.stop == b.start for a, b in itertools.pairwise(asked))
    if limits.ranges == 1:
        assert len(plan) <= count + touching
    else:
        full = -(-len(asked) // limits.ranges) + total(asked) // (LEAST_SHARE // 2)
        assert len(plan) <= full + touching + 1
    _check_places(plan, starts, stops)


def _check_places(plan: Requests, starts: Any, stops: Any) -> None:
    seen = []
    for request in range(len(plan)):
        part = slice(plan.bounds[request], plan.bounds[request + 1])
        for piece, extent in zip(plan.whole[part], plan.within[part], strict=True):
            assert plan.first[request] <= extent < plan.first[request + 1]
            assert plan.starts[extent] <= starts[piece] < stops[piece] <= plan.stops[extent]
            seen.append(piece)
    for piece, (begin, end) in zip(plan.split, plan.spans, strict=True):
        assert begin < end
        assert plan.starts[begin] <= starts[piece] < plan.stops[begin]
        assert plan.starts[end] < stops[piece] <= plan.stops[end]
        assert np.array_equal(plan.stops[begin:end], plan.starts[begin + 1 : end + 1])
        seen.append(piece)
    assert sorted(seen) == np.flatnonzero(stops > starts).tolist()
    assert np.all(np.diff(plan.within) >= 0)
    assert np.all(np.diff(starts[plan.split]) >= 0)
    assert {getattr(plan, name).dtype for name in Requests.__slots__} == {np.dtype(np.int64)}


@pytest.mark.parametrize("ranges", [1, 7])
@pytest.mark.parametrize("bounds", [[], [(5, 5)], [(5, 4), (0, 0)]])
def test_of_nothing_there_is_no_request(bounds: list[tuple[int, int]], ranges: int) -> None:
    pairs = np.asarray(bounds, dtype=np.int64).reshape(-1, 2)
    plan = plan_requests(pairs[:, 0], pairs[:, 1], Limits(ranges=ranges))
    assert len(plan) == 0
    assert plan.spans.shape == (0, 2)
    _check_places(plan, pairs[:, 0], pairs[:, 1])


@pytest.mark.parametrize(
    ("latency", "bandwidth", "most", "share"),
    [
        (0.05, 50e6, 2_500_000, 625_000),
        (0.04, 50e6, 2_000_000, 500_000),
        (0.05, 21e6, LEAST_PART + 1424, 262_500),  # a quarter of it is a little more than the least
        (0.0, 50e6, LEAST_PART, LEAST_SHARE),
        (0.2, 1e9, MOST_PART, LEAST_PART),
    ],
)
def test_a_request_brings_what_a_round_trip_carries(
    latency: float, bandwidth: float, most: int, share: int
) -> None:
    """It is no longer. With more connections it is shorter, but no less than a quarter of it."""
    limits = Limits(latency=latency, bandwidth=bandwidth)
    assert longest(limits) == most
    size = 12 * MOST_PART
    start, stop = np.array([7]), np.array([7 + size])
    for connections in (0, 1, 2, 24, 30, 1000):
        plan = plan_requests(start, stop, limits, connections)
        wanted = min(most, max(share, -(-size // max(1, connections))))
        assert len(plan) == -(-size // wanted)
        assert np.ptp(plan.stops - plan.starts) <= 1
    assert len(plan_requests(start, stop, limits)) == -(-size // most)
    # what lies between pieces far apart does not count
    starts, stops = np.array([0, 10**9]), np.array([size, 10**9 + size])
    assert len(plan_requests(starts, stops, limits, 1000)) == 2 * -(-size // share)


@pytest.mark.parametrize(
    ("limits", "gap", "after"),
    [
        # one extent each: what a round trip costs is worth the gap, as a share of the piece after
        (Limits(), SMALL_GAP, 1),
        (Limits(), SMALL_GAP, 4 * SMALL_GAP + 3),
        (Limits(), 25_000, 100_000),
        (Limits(), 39_062, 200_000),  # 0.05 s at 50 MB/s by 64
        (Limits(concurrency=32), 50_000, 200_000),
        (Limits(concurrency=32), 78_125, 500_000),
        (Limits(latency=0.0), SMALL_GAP, 500_000),
        # several: it costs the header of a part
        (Limits(ranges=2), PART_GAP, 500_000),
        (Limits(ranges=100), PART_GAP, 1),
    ],
)
def test_gaps_are_read_where_that_costs_less(limits: Limits, gap: int, after: int) -> None:
    at = 500_000
    for distance, joined in ((gap, True), (gap + 1, False)):
        starts = np.array([at, 0])
        stops = np.array([at + after, at - distance])
        plan = plan_requests(starts, stops, limits)
        assert (len(plan.starts) == 1) == joined
        assert plan.starts[0] == 0
        assert plan.stops[-1] == at + after
        if not joined:
            assert plan.stops[0] == at - distance
            assert plan.starts[1] == at


def test_a_gap_that_is_read_makes_no_request_more() -> None:
    """The part for each connection is one of all bytes that are read, those in gaps, too."""
    starts = np.arange(200, dtype=np.int64) * 11_000
    for connections in (1, 2):
        plan = plan_requests(starts, starts + 10_000, Limits(), connections)
        assert len(plan) == connections
    two = np.array([[0, 10**6], [10**6 + 9, 10**6 + 10]])
    assert len(plan_requests(two[:, 0], two[:, 1], Limits())) == 1


@pytest.mark.parametrize("ranges", [1, 50])
def test_a_run_that_fits_into_a_request_is_one(ranges: int) -> None:
    limits = Limits(ranges=ranges)
    starts = np.arange(5) * 500_000
    for size, requests in ((500_000, 1), (500_001, 2)):
        stops = np.minimum(starts + size, starts[-1] + size)
        stops[:-1] = starts[1:]  # they touch
        assert len(plan_requests(starts, stops, limits)) == requests


def test_a_long_read_begins_with_short_requests() -> None:
    """The first ones ascend over all runs, in steps of a twelfth, if there are more than that."""
    limits = Limits()
    part = longest(limits)
    step = part // 25
    runs = [np.arange(number) * step + 10**9 * at for at, number in enumerate((50, 0, 40, 26, 400))]
    starts = np.concatenate(runs)
    plan = plan_requests(starts, starts + step, limits)
    ends = {run[-1] + step for run in runs if len(run)}
    assert ends < {*plan.stops.tolist()}
    # the last request of a run is what is left
    sizes = [b - a for a, b in zip(plan.starts, plan.stops, strict=True) if b not in ends]
    for number, size in enumerate(sizes):
        goal = part * min(number + 1, RAMP) / RAMP
        assert goal - 2 * step < size <= goal


@pytest.mark.parametrize("extra", [0, 1])
def test_a_read_of_a_dozen_requests_has_no_short_ones(extra: int) -> None:
    """It would take a request more; with one byte more it is a long read."""
    limits = Limits()
    part = longest(limits)
    step = part // 20
    starts = np.arange(RAMP * 20, dtype=np.int64) * step
    stops = starts + step
    stops[-1] += extra
    sizes = np.diff(np.append(plan_requests(starts, stops, limits).starts, stops[-1]))
    if extra:
        assert sizes[0] <= part // RAMP
    else:
        assert sizes.tolist() == [part] * RAMP


def test_parts_of_a_run_are_about_equal() -> None:
    limits = Limits()
    starts = np.arange(1001, dtype=np.int64) * 5000
    plan = plan_requests(starts, starts + 5000, limits)
    sizes = plan.stops - plan.starts
    assert len(sizes) == 3  # two would hold all but one piece
    assert np.ptp(sizes) <= 5000
    # as many requests as hold it exactly, but for a byte
    starts = np.arange(20, dtype=np.int64) * 250_000
    stops = starts + 250_000
    stops[-1] -= 1
    assert plan_requests(starts, stops, limits).starts.tolist() == [0, 2_500_000]
    # long pieces, of which two fit into no request, go one by one
    starts = np.arange(4, dtype=np.int64) * 1_500_000
    plan = plan_requests(starts, starts + 1_500_000, limits)
    assert plan.starts.tolist() == starts.tolist()
    assert len(plan.split) == 0


def test_the_order_of_pieces_makes_no_difference() -> None:
    lowest = np.array([0, 3_000_000, 3_000_100, 6_000_000, 9_000_000])
    lengths = np.array([50, 200, 10, 2_600_000, 1])
    for order in itertools.permutations(range(5)):
        starts = lowest[[*order]]
        stops = starts + lengths[[*order]]
        plan = plan_requests(starts, stops, Limits())
        assert plan.starts.tolist() == [0, 3_000_000, 6_000_000, 7_300_000, 9_000_000]
        assert plan.stops.tolist() == [50, 3_000_200, 7_300_000, 8_600_000, 9_000_001]
        _check_places(plan, starts, stops)


def test_pieces_that_overlap_are_asked_for_as_one() -> None:
    """They share an extent. Of pieces that only touch, each may have a request of its own."""
    starts = np.array([2_000_000, 0, 1_999_999, 5_000_000])
    stops = np.array([4_000_000, 2_000_000, 2_000_001, 5_000_001])
    plan = plan_requests(starts, stops, Limits(), 1)
    assert plan.starts.tolist() == [0, 2_000_000, 5_000_000]
    assert len(plan.split) == 3 - len(plan.whole) + 1
    touching = plan_requests(starts[:2], stops[:2], Limits(), 1)
    assert touching.starts.tolist() == [0, 2_000_000]
    assert touching.split.tolist() == []


@pytest.mark.parametrize(
    ("number", "size", "limits", "connections", "requests"),
    [
        # no more extents than one request may name, however few the bytes
        (100, 10, Limits(ranges=50), 1, 2),
        (101, 10, Limits(ranges=50), 1, 3),
        (100, 10, Limits(ranges=100), 64, 1),
        (2, 10, Limits(ranges=2), 1, 1),
        # a quarter of a round trip's bytes in each, on connections that are to be opened
        (100, 40_000, Limits(ranges=100), 1, 7),
        (100, 40_000, Limits(ranges=100, latency=0.04), 1, 8),
        (100, 40_000, Limits(ranges=100, latency=0.0), 3, 16),
        # those that are open carry all of it in a round trip
        (100, 25_000, Limits(ranges=100), 1, 1),
        (100, 25_001, Limits(ranges=100), 1, 5),
        (100, 50_000, Limits(ranges=100), 2, 2),
        (100, 50_001, Limits(ranges=100), 2, 9),
        (100, 50_000, Limits(ranges=50), 2, 2),
        (100, 50_000, Limits(ranges=40), 2, 8),  # three at least, which is more than are open
        (100, 50_000, Limits(ranges=40), 3, 3),
        (100, 50_000, Limits(ranges=40), 64, 8),
    ],
)
def test_so_many_requests_are_made_of_small_pieces(
    number: int, size: int, limits: Limits, connections: int, requests: int
) -> None:
    starts = np.arange(number, dtype=np.int64) * 10**6
    plan = plan_requests(starts, starts + size, limits, connections)
    assert len(plan) == requests
    assert len(plan.starts) == number
    counts = np.diff(plan.first)
    assert counts.max() <= limits.ranges
    if requests > -(-number // limits.ranges):
        assert np.ptp(counts) <= 1


@given(
    st.lists(st.one_of(st.integers(1, 9), st.integers(1, 400)), min_size=1, max_size=60),
    st.integers(1, 70),
    st.integers(1, 3000),
    st.integers(0, 30),
)
@settings(max_examples=examples(400), deadline=None)
def test_requests_of_several_extents_are_about_equal(
    sizes: list[int], ranges: int, most: int, count: int
) -> None:
    first = _pack(np.asarray(sizes), ranges, most, count).tolist()
    groups = [sizes[a:b] for a, b in itertools.pairwise(first)]
    assert [size for group in groups for size in group] == sizes
    assert all(1 <= len(group) <= ranges for group in groups)
    assert all(sum(group) <= most or len(group) == 1 for group in groups)
    if count * ranges >= len(sizes) and most >= sum(sizes):
        assert len(groups) <= max(1, count)
    if ranges >= len(sizes) and most >= sum(sizes):
        # beyond an equal share there is an extent at the end, and what others before had too little
        assert max(map(sum, groups)) <= sum(sizes) / max(1, count) + 1.5 * max(sizes)


@pytest.mark.parametrize(
    ("sizes", "ranges", "most", "count", "groups"),
    [
        ([3, 3, 3, 3], 9, 99, 2, [2, 2]),
        ([1, 1, 1, 9], 9, 99, 2, [3, 1]),
        ([5, 1, 1, 1], 9, 99, 2, [1, 3]),
        # an extent belongs where it leaves the first request nearer to half; not at all is shorter
        ([2, 3, 3], 9, 99, 2, [2, 1]),
        ([3, 2, 3], 9, 99, 2, [1, 2]),
        ([3, 1, 3, 3], 9, 99, 2, [2, 2]),
        # ... if it may
        ([2, 3, 3], 9, 5, 2, [2, 1]),
        ([2, 3, 3], 9, 4, 2, [1, 1, 1]),
        ([3, 2, 4, 3], 9, 6, 3, [1, 2, 1]),
        ([2, 3, 3], 1, 99, 2, [1, 1, 1]),
        # as many in one request that the others may take the rest
        ([9, 1, 1, 1], 2, 99, 2, [2, 2]),
        ([9, 1, 1, 1], 3, 99, 2, [1, 3]),
        ([9, 1, 1, 1], 3, 9, 2, [1, 3]),
        ([50, 1, 1, 1, 1, 1], 2, 99, 3, [2, 2, 2]),
        ([1, 1, 1, 1, 1, 50], 2, 99, 3, [2, 2, 2]),
        # an extent longer than that goes by itself
        ([9, 9, 9], 9, 5, 1, [1, 1, 1]),
        ([4, 4, 4, 4], 9, 8, 1, [2, 2]),
        ([4, 4, 4, 4], 9, 99, 0, [4]),
        ([10], 9, 99, 1, [1]),
    ],
)
def test_groups_of_extents(
    sizes: list[int], ranges: int, most: int, count: int, groups: list[int]
) -> None:
    assert np.diff(_pack(np.asarray(sizes), ranges, most, count)).tolist() == groups


def test_parts_of_one_run_go_by_requests_of_their_own() -> None:
    """A server may join them in its answer; those apart from each other still share requests."""
    starts = np.array([0, 10**7, 2 * 10**7, 3 * 10**7])
    stops = starts + np.array([100, 3_000_000, 100, 100])
    limits = Limits(ranges=10)
    plan = plan_requests(starts, stops, limits, 2)
    touching = np.flatnonzero(plan.starts[1:] == plan.stops[:-1]) + 1
    assert touching.tolist() == [2]
    assert 2 in plan.first
    assert len(plan) < len(plan.starts)


def test_small_pieces_share_the_connections_that_are_open() -> None:
    starts = np.arange(146, dtype=np.int64) * 700_000
    limits = Limits(ranges=100)
    for connections, requests in ((1, 3), (2, 2), (3, 3), (64, 3)):
        assert len(plan_requests(starts, starts + 9_800, limits, connections)) == requests
    few = plan_requests(starts[:90], starts[:90] + 9_800, limits, 1)
    assert len(few) == 1  # a second connection would come later than the bytes
    assert len(plan_requests(starts, starts + 9_800, Limits())) == 146


def test_pieces_end_where_extents_end() -> None:
    starts = np.arange(2000, dtype=np.int64) * 20_000
    plan = plan_requests(starts, starts + 20_000, Limits())
    assert len(plan.split) == 0
    sizes = plan.stops - plan.starts
    # the first ones ascend, so that they do not end together; the others are equal
    assert np.all(np.diff(sizes[:RAMP]) > 0)
    assert np.ptp(sizes[RAMP:]) <= 20_000
    short = plan_requests(starts[:500], starts[:500] + 20_000, Limits())
    assert np.ptp(short.stops - short.starts) <= 20_000
    # a piece that is longer than a request is cut into equal parts
    (size,) = (31_000_003,)
    plan = plan_requests(np.array([5]), np.array([5 + size]), Limits())
    assert plan.split.tolist() == [0]
    assert set((plan.stops - plan.starts).tolist()) == {size // 13, size // 13 + 1}


# what is known


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=30), st.data())
@settings(deadline=None)
def test_sparse_bytes_are_those_of_the_file(
    added: list[tuple[int, int]], data: st.DataObject
) -> None:
    file = random.Random(1).randbytes(400)
    known = bytearray(len(file))
    sparse = SparseBytes()
    asked = st.tuples(st.integers(0, 350), st.integers(0, 50))
    for start, length in added:
        sparse.add(start, file[start : start + length])
        known[start : start + length] = b"\1" * length
        assert sparse.nbytes == sum(known)
        low, size = data.draw(asked)
        view = sparse.get(low, low + size)
        if all(known[low : low + size]):
            assert view == file[low : low + size]
        else:
            assert view is None
    copy = SparseBytes.load(sparse.dump())
    assert copy.nbytes == sparse.nbytes
    assert copy.dump() == sparse.dump()
    listed = data.draw(st.lists(asked, max_size=8))
    extents = [Extent(low, low + size) for low, size in listed]
    bounds = np.asarray(extents, dtype=np.int64).reshape(-1, 2)
    wanted = {at for start, stop in extents for at in range(start, stop) if not known[at]}
    for one in (sparse, copy):
        covered = [all(known[low:high]) for low, high in extents]
        assert one.covers(bounds[:, 0], bounds[:, 1]).tolist() == covered
        missing = one.missing(extents)
        assert {at for start, stop in missing for at in range(start, stop)} == wanted
        assert all(a.stop < b.start for a, b in itertools.pairwise(missing))
        assert all(start < stop for start, stop in missing)


@given(st.data())
@settings(deadline=None)
def test_damaged_dumps_are_refused(data: st.DataObject) -> None:
    sparse = SparseBytes()
    sparse.add(0, b"head" * 10)
    sparse.add(100, b"tail")
    dump = bytearray(sparse.dump())
    if data.draw(st.booleans()):
        dump[data.draw(st.integers(0, len(dump) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del dump[data.draw(st.integers(0, len(dump) - 1)) :]
    with pytest.raises(ValueError, match="stored index"):
        SparseBytes.load(bytes(dump))


@pytest.mark.parametrize(
    ("numbers", "blocks", "message"),
    [
        ([1, 0, 4], b"head", None),
        ([-1], b"", "counts more blocks"),
        ([2, 0, 4], b"", "counts more blocks"),
        ([1 << 62, 0, 4], b"head", "counts more blocks"),
        ([2, 0, 2, 4, 6], b"headtail", "not in order"),
        ([2, 9, 0, 12, 4], b"headtail", "not in order"),
        ([1, 4, 4], b"", "not in order"),
        ([1, 5, 4], b"", "not in order"),
        ([1, -4, 0], b"head", "not in order"),
        ([1, 0, 5], b"head", "not there"),
        ([1, 0, 4], b"heads", "longer than its blocks"),
    ],
)
def test_dumps_that_contradict_themselves_are_refused(
    numbers: list[int], blocks: bytes, message: str | None
) -> None:
    """Their checksum is right: another program, or a version with an error, wrote them."""
    body = sparse_module._MAGIC + np.array(numbers, "<i8").tobytes() + blocks
    size = sparse_module._DIGEST
    dump = body + hashlib.blake2b(body, digest_size=size).digest()
    if message is None:
        assert SparseBytes.load(dump).get(0, 4) == b"head"
        return
    with pytest.raises(ValueError, match=f"stored index .*{message}"):
        SparseBytes.load(dump)


def test_sparse_bytes_do_not_keep_what_they_were_cut_from() -> None:
    sparse = SparseBytes()
    sparse.add(10, b"x" * 10)
    sparse.add(0, memoryview(bytearray(b"y" * 1000)))
    assert bytes(sparse.get(0, 1000) or b"") == b"y" * 10 + b"x" * 10 + b"y" * 980
    assert all(memoryview(block.obj).nbytes == len(block) for block in sparse._blocks)


# reading

FILE = random.Random(0).randbytes(3_000_000)


class Collector:
    """Receives pieces, compares them with the file, and takes its (virtual) time."""

    def __init__(self, starts: Any, stops: Any, seed: int = 0, data: bytes = FILE) -> None:
        self.starts, self.stops, self.data = starts, stops, data
        self.got: list[int] = []
        self.random = random.Random(seed)
        self.bytes = 0
        self.most = 0

    async def __call__(self, numbers: Any, views: list[memoryview]) -> None:
        assert len(numbers) == len(views) > 0
        size = sum(map(len, views))
        self.bytes += size
        self.most = max(self.most, self.bytes)
        await asyncio.sleep(self.random.random() * 0.1)
        for number, view in zip(numbers.tolist(), views, strict=True):
            assert view == self.data[self.starts[number] : self.stops[number]]
            self.got.append(number)
        self.bytes -= size


@given(
    st.lists(st.tuples(st.integers(0, len(FILE)), st.one_of(st.just(0), LENGTHS)), max_size=60),
    LIMITS,
    st.integers(0, 200_000),
    st.integers(0, 999),
)
@settings(max_examples=examples(150), deadline=None)
def test_all_pieces_arrive(
    wanted: list[tuple[int, int]], limits: Limits, head: int, seed: int
) -> None:
    order = random.Random(seed)

    async def delay(_: int) -> None:
        await asyncio.sleep(order.random())

    bounds = [(start, min(len(FILE), start + length)) for start, length in wanted]
    starts = np.asarray([start for start, _ in bounds], dtype=np.int64)
    stops = np.asarray([stop for _, stop in bounds], dtype=np.int64)
    source = VirtualBytes(FILE, limits, head=head, fault=delay)
    collector = Collector(starts, stops, seed)

    async def main() -> RangeReader:
        reader = RangeReader(source)
        await reader.read_data(starts, stops, collector)
        return reader

    reader, _ = run(main())
    assert sorted(collector.got) == list(range(len(bounds)))
    assert source.most_busy <= limits.concurrency
    asked = sorted(extent for extents in source.requests for extent in extents)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(asked))
    assert reader._held.used == reader._window.used == reader._requests.used == 0


@pytest.mark.parametrize("ranges", [1, 10])
@pytest.mark.parametrize("cause", ["fetch", "receive", "cancel"])
@pytest.mark.parametrize("when", [0, 3, 11])
def test_an_error_ends_everything(cause: str, when: int, ranges: int) -> None:
    starts = np.arange(0, 2_900_000, 20_000)
    stops = starts + 3_000
    calls = 0

    async def fault(number: int) -> None:
        if cause == "fetch" and number == when:
            raise StoreError("memory://file", "the line is cut") from OSError("reset")

    async def receive(numbers: Any, views: list[memoryview]) -> None:
        nonlocal calls
        calls += 1
        if cause == "receive" and calls == when + 1:
            raise FormatError("/v", "damaged chunk")
        await asyncio.sleep(0.01)

    source = VirtualBytes(FILE, Limits(8, ranges), head=100, fault=fault)

    async def main() -> RangeReader:
        reader = RangeReader(source)
        reading = asyncio.ensure_future(reader.read_data(starts, stops, receive))
        if cause == "cancel":
            await asyncio.sleep(0.01 * when + 0.001)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        else:
            expected = StoreError if cause == "fetch" else FormatError
            with pytest.raises(
                expected, match="line is cut" if cause == "fetch" else "damaged"
            ) as caught:
                await reading
            if cause == "fetch":
                assert isinstance(caught.value.__cause__, OSError)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return reader

    reader, _ = run(main())
    assert source.busy == 0
    assert reader._held.used == reader._window.used == reader._requests.used == 0


def test_no_more_is_held_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "HELD_BYTES", 1 << 22)
    size = 60_000_000
    starts = np.arange(0, size, 100_000)
    source = VirtualBytes(size, Limits(64, 1, 0.001, 1e9), line=1e10, head=0)
    held, most = 0, 0

    async def slow(numbers: Any, views: list[memoryview]) -> None:
        nonlocal held, most
        held += sum(map(len, views))
        most = max(most, held)
        await asyncio.sleep(1)
        held -= sum(map(len, views))

    run(RangeReader(source).read_data(starts, starts + 100_000, slow))
    assert 1 << 21 < most <= 1 << 22
    # pieces longer than a request: those that are whole count too
    most, starts = 0, np.arange(0, size, 3_000_000)
    run(RangeReader(source).read_data(starts, starts + 3_000_000, slow))
    assert most <= (1 << 22) + 3_000_000


def test_pieces_outside_of_the_file_are_refused() -> None:
    source = VirtualBytes(FILE)

    async def main() -> None:
        reader = RangeReader(source)
        for start, stop in ((-1, 5), (10, 5), (0, len(FILE) + 1), (1 << 62, (1 << 62) + 1)):
            with pytest.raises(StoreError, match="not in the file"):
                await reader.read_metadata([Extent(0, 1), Extent(start, stop)])
            with pytest.raises(StoreError, match="not in the file"):
                await reader.read_data(np.array([0, start]), np.array([1, stop]), None)  # type: ignore[arg-type]

    run(main())
    assert source.requests == []


def test_a_short_answer_is_an_error() -> None:
    class Short(VirtualBytes):
        async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
            return [memoryview(part)[1:] for part in await super().fetch(extents)]

    async def main() -> None:
        reader = RangeReader(Short(FILE, head=0))
        with pytest.raises(StoreError, match="not as long"):
            await reader.read_metadata([Extent(5, 10)])

    run(main())


def test_a_server_that_ceases_to_take_several_ranges() -> None:
    source = VirtualBytes(FILE, Limits(8, 50), head=0)

    async def lose(number: int) -> None:
        source._limits = Limits(8, 3)

    source.fault = lose
    starts = np.arange(0, 2_900_000, 20_000)
    collector = Collector(starts, starts + 10)
    run(RangeReader(source).read_data(starts, starts + 10, collector))
    assert sorted(collector.got) == list(range(len(starts)))
    assert source.most_busy <= 8


def test_a_request_that_was_planned_before_names_no_more_than_the_server_takes() -> None:
    extents = [Extent(at, at + 10) for at in range(0, 2_900_000, 290_000)]
    source = VirtualBytes(FILE, Limits(8, 3), head=0)
    views, _ = run(RangeReader(source)._fetch(extents))
    assert views == [FILE[start:stop] for start, stop in extents]
    assert [len(one) for one in source.requests] == [3, 3, 3, 1]


def test_metadata_that_want_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked for: a damaged file may say that they have any size."""
    monkeypatch.setattr(reader_module, "MOST_METADATA", 1000)
    source = VirtualBytes(FILE, head=0)
    wanted = [Extent(0, 600), Extent(2_000_000, 2_000_401)]

    async def main() -> None:
        with pytest.raises(StoreError, match="want too much of the file at once"):
            await RangeReader(source).read_metadata(wanted)

    run(main())
    assert source.requests == []


# small reads

SMALL = [np.arange(number * 5000, number * 5000 + 3000, 1000) for number in range(40)]


async def small_reads(reader: RangeReader, receives: Sequence[Any]) -> list[Any]:
    reads = (
        reader.read_data(starts, starts + 900, receive)
        for starts, receive in zip(SMALL, receives, strict=True)
    )
    return await asyncio.gather(*reads, return_exceptions=True)


def collectors() -> list[Collector]:
    return [Collector(starts, starts + 900) for starts in SMALL]


@pytest.mark.parametrize("failing", [None, 0])
def test_small_reads_of_one_turn_go_out_together(failing: int | None) -> None:
    """Where a request fails, each tries alone what it has not got, and each piece comes once."""

    async def fault(number: int) -> None:
        if number == failing:
            raise StoreError("memory://file", "the line is cut")

    source, receives = VirtualBytes(FILE, Limits(64, 100), head=0, fault=fault), collectors()

    async def main() -> RangeReader:
        reader = RangeReader(source)
        assert await small_reads(reader, receives) == [None] * len(SMALL)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return reader

    reader, _ = run(main())
    assert all(sorted(one.got) == [0, 1, 2] for one in receives)
    assert failing is not None or len(source.requests) <= 4
    assert reader._held.used == reader._window.used == reader._requests.used == 0


def test_an_error_in_a_small_read_is_its_own() -> None:
    source, receives = VirtualBytes(FILE, Limits(64, 100), head=0), collectors()

    async def damaged(numbers: Any, views: list[memoryview]) -> None:
        await asyncio.sleep(0.001)
        raise FormatError("v", "is damaged")

    async def main() -> RangeReader:
        reader = RangeReader(source)
        found = await small_reads(reader, [*receives[:7], damaged, *receives[8:]])
        assert [number for number, one in enumerate(found) if one is not None] == [7]
        assert isinstance(found[7], FormatError)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return reader

    reader, _ = run(main())
    assert all(sorted(one.got) == [0, 1, 2] for one in [*receives[:7], *receives[8:]])
    assert reader._held.used == reader._window.used == reader._requests.used == 0


@pytest.mark.parametrize("given_up", [[3], range(40)])
@pytest.mark.parametrize("after", [0, 0.001, 0.11, 0.2])
def test_small_reads_that_are_given_up(given_up: Sequence[int], after: float) -> None:
    """The others go on; nothing is left running when all are given up."""
    source, receives = VirtualBytes(FILE, Limits(64, 100), head=0), collectors()

    def slowly(receive: Collector) -> Any:
        async def received(numbers: Any, views: list[memoryview]) -> None:
            await asyncio.sleep(0.2)
            await receive(numbers, views)

        return received

    async def main() -> RangeReader:
        reader = RangeReader(source)
        tasks = [
            asyncio.ensure_future(reader.read_data(starts, starts + 900, slowly(receive)))
            for starts, receive in zip(SMALL, receives, strict=True)
        ]
        await asyncio.sleep(after)
        for number in given_up:
            tasks[number].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = [n for n, one in enumerate(found) if isinstance(one, asyncio.CancelledError)]
        assert cancelled == list(given_up)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return reader

    reader, _ = run(main())
    others = [one for number, one in enumerate(receives) if number not in given_up]
    assert all(sorted(one.got) == [0, 1, 2] for one in others)
    assert reader._held.used == reader._window.used == reader._requests.used == 0
    assert source.busy == 0


# metadata


def test_wishes_of_one_turn_go_out_together() -> None:
    source = VirtualBytes(FILE, Limits(64, 100))

    async def one(reader: RangeReader, number: int) -> None:
        for read_round in range(3):
            start = 100_000 + 10_000 * number + 700_000 * read_round
            await asyncio.sleep(0)
            (view,) = await reader.read_metadata([Extent(start, start + 50)])
            assert view == FILE[start : start + 50]

    async def main() -> None:
        reader = RangeReader(source)
        await asyncio.gather(*(one(reader, number) for number in range(60)))

    _, seconds = run(main())
    assert [len(extents) for extents in source.requests] == [60, 60, 60]
    assert seconds < 0.2


def test_bytes_on_their_way_are_waited_for() -> None:
    source = VirtualBytes(FILE, Limits(64, 1), head=0)

    async def later(reader: RangeReader, pause: float, *wanted: Extent) -> None:
        await asyncio.sleep(pause)
        views = await reader.read_metadata(wanted)
        assert views == [FILE[start:stop] for start, stop in wanted]

    async def main() -> None:
        reader = RangeReader(source)
        await asyncio.gather(
            later(reader, 0, Extent(100_000, 140_000), Extent(500_000, 500_001)),
            later(reader, 0, Extent(105_000, 105_010)),
            later(reader, 0.01, Extent(104_000, 142_000), Extent(104_000, 104_000)),
            later(reader, 0.02, Extent(99_000, 150_000), Extent(504_000, 504_200)),
        )
        await later(reader, 0, Extent(99_000, 150_000))

    run(main())
    asked = sorted(extent for extents in source.requests for extent in extents)
    assert asked == [
        (99_000, 100_000),
        (100_000, 140_000),
        (140_000, 144_096),
        (144_096, 150_000),
        (500_000, 504_096),
        (504_096, 508_192),
    ]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 0.3),
            st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 9_000)), max_size=6),
            st.sampled_from([None, None, 0.04]),
        ),
        max_size=12,
    ),
    st.sampled_from([1, 5]),
    st.sampled_from([1 << 28, 54_000]),  # of which one round wants no more
    st.sampled_from([None, 2, 5]),
)
@settings(max_examples=examples(150), deadline=None)
def test_rounds_at_any_time(
    rounds: list[tuple[float, list[tuple[int, int]], float | None]],
    ranges: int,
    bound: int,
    failing: int | None,
) -> None:
    """Overlapping read rounds, some given up, some requests failing, with little memory or much."""

    async def fault(number: int) -> None:
        await asyncio.sleep(0.01 * (number % 3))
        if number == failing:
            raise StoreError("memory://file", "the line is cut")

    source = VirtualBytes(FILE[:410_000], Limits(4, ranges), head=1000, fault=fault)
    failures = 0

    async def one(
        reader: RangeReader, pause: float, read_round: list[tuple[int, int]], patience: float | None
    ) -> None:
        nonlocal failures
        await asyncio.sleep(pause)
        wanted = [Extent(start, start + length) for start, length in read_round]
        try:
            async with asyncio.timeout(patience):
                views = await reader.read_metadata(wanted)
        except TimeoutError:
            return
        except StoreError:
            failures += 1
            return
        assert views == [FILE[start:stop] for start, stop in wanted]

    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader_module, "MOST_METADATA", bound)
            reader = RangeReader(source)
            await asyncio.gather(*(one(reader, *read_round) for read_round in rounds))
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert reader._coming._starts == []
            assert reader._requests.used == 0

    run(main())
    assert failing is not None or not failures
    if bound > 1 << 20 and failing is None and all(read_round[2] is None for read_round in rounds):
        total_wanted = {
            at >> 12
            for _, read_round, _ in rounds
            for start, length in read_round
            for at in range(start, start + length + 4096, 4096)
        }
        assert source.moved <= (len(total_wanted) * 4096 + 4096 + SMALL_GAP) * 6


def test_an_error_of_a_plan_reaches_all_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = VirtualBytes(FILE)

    async def main() -> None:
        reader = RangeReader(source)

        def lacks_memory(wanted: Any, around: bool) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(reader, "_plan_metadata", lacks_memory)
            reads = [reader.read_metadata([Extent(at, at + 9)]) for at in (100_000, 200_000)]
            found = await asyncio.gather(*reads, return_exceptions=True)
            assert [type(one) for one in found] == [MemoryError] * 2
        (view,) = await reader.read_metadata([Extent(100_000, 100_009)])
        assert view == FILE[100_000:100_009]

    run(main())


def test_metadata_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MOST_METADATA", 200_000)
    source = VirtualBytes(FILE)

    async def main() -> None:
        reader = RangeReader(source)
        for start in range(100_000, 2_900_000, 50_000):
            (view,) = await reader.read_metadata([Extent(start, start + 40_000)])
            assert view == FILE[start : start + 40_000]
            assert reader.sparse.nbytes <= 240_000
        assert reader.sparse.get(0, 65_536) == FILE[:65_536]

    run(main())


def test_a_reader_survives_a_fork() -> None:
    source = VirtualBytes(FILE, Limits(4))

    async def part(reader: RangeReader) -> None:
        (view,) = await reader.read_metadata([Extent(100_000, 100_010)])
        assert view == FILE[100_000:100_010]
        starts = np.arange(200_000, 400_000, 20_000)
        await reader.read_data(starts, starts + 10, Collector(starts, starts + 10))

    reader = RangeReader(source)
    run(part(reader))
    # what the parent had under way never ends in the child
    reader._requests.take_now(4)
    reader._held.take_now(1 << 26)
    reader._waiting += 1
    reader.sparse._starts.append(100_000)  # copied in the middle of `add`
    run(part(reader))


def test_data_that_came_with_metadata_cost_nothing() -> None:
    source = VirtualBytes(FILE)
    starts = np.array([60_000, 10, 65_000, 0])
    stops = np.array([65_536, 20, 65_537, 0])
    collector = Collector(starts, stops)
    run(RangeReader(source).read_data(starts, stops, collector))
    assert source.requests == [[Extent(65_000, 65_537)]]
    assert sorted(collector.got) == [0, 1, 2, 3]


# bounds for what is in flight


@given(st.lists(st.tuples(st.integers(1, 15), st.sampled_from([0.0, 1.0, 3.0])), max_size=30))
@settings(deadline=None)
def test_a_budget_is_kept(jobs: list[tuple[int, float]]) -> None:
    budget = Budget(10)
    used: list[int] = []

    async def job(amount: int, patience: float) -> None:
        try:
            async with asyncio.timeout(patience or None):
                await budget.take(amount)
        except TimeoutError:
            return
        used.append(amount)
        assert sum(used) <= 10 or used == [amount]
        await asyncio.sleep(amount / 10)
        used.remove(amount)
        budget.give(amount)

    async def main() -> None:
        await asyncio.gather(*(job(*each) for each in jobs))

    run(main())
    assert budget.used == 0


# the network model


@pytest.mark.parametrize("name", list(cases()))
@pytest.mark.parametrize("latency", [0.02, 0.05, 0.1])
def test_reads_come_near_the_limit_of_the_network(name: str, latency: float) -> None:
    size, rounds, data = cases()[name]
    source = VirtualBytes(size, Limits(64, 100, latency), line=125e6)
    _, seconds = run(perform(source, rounds, data))
    wanted = sum(map(total, rounds)) + (0 if data is None else int((data[1] - data[0]).sum()))
    trips = 1 + len(rounds) + (data is not None)
    assert seconds <= 1.4 * ((1 + trips) * latency + (wanted + len(source.head)) / 125e6)
    assert source.moved <= 1.03 * size
