"""What traces add up to and how they are drawn, of made-up records."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.transport.recording import Record, Try
from nczarr_xarray.tools.trace import Trace
from nczarr_xarray.tools.trace.page import draw, render, segments, ticks, waterfall
from nczarr_xarray.tools.trace.summary import TELLING, asked_for, covered, lines, rounds, summarize
from tests.support.builders.traces import LASTING, TRACES, record, records

SVG = "{http://www.w3.org/2000/svg}"


# ---- read rounds


def longest_chain(found: list[Record], last: Record) -> int:
    """How many requests follow each other up to `last`, each after the answer before it."""
    before = [longest_chain(found, one) for one in found if one.end <= last.asked]
    return 1 + max(before, default=0)


@given(LASTING.map(lambda found: found[:9]))
def test_a_round_is_the_longest_chain_of_requests_up_to_it(found: list[Record]) -> None:
    assert rounds(found) == [longest_chain(found, one) for one in found]


@given(LASTING)
def test_requests_of_a_round_were_under_way_together(found: list[Record]) -> None:
    numbers = rounds(found)
    for one, number in zip(found, numbers, strict=True):
        for other, its in zip(found, numbers, strict=True):
            if number == its:
                assert one.asked < other.end
    assert set(numbers) == set(range(1, max(numbers, default=0) + 1))


def test_a_request_that_waited_for_its_turn_is_of_the_round_in_which_it_was_asked_for() -> None:
    late = Record("u", 0.0, (Try(5, 6),))
    assert rounds([record(0, 5), late, record(6, 7)]) == [1, 1, 2]


# ---- totals and the limit


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=20))
def test_covered_time_counts_each_moment_once(spans: list[tuple[int, int]]) -> None:
    moments = {at for begin, length in spans for at in range(begin, begin + length)}
    assert covered((begin, begin + length) for begin, length in spans) == len(moments)


@given(TRACES)
def test_totals_are_those_of_the_tries(found: list[Record]) -> None:
    total = summarize(found, 1.0)
    assert total.requests == len(found)
    assert total.retries + total.requests == sum(len(one.tries) for one in found)
    assert total.nbytes == sum(one.nbytes for one in found)
    assert total.network <= sum(one.end - one.asked for one in found) * (1 + 1e-9) + 1e-9
    assert total.limit >= total.rounds * total.latency


def test_the_limit_is_rounds_times_latency_and_bytes_over_bandwidth() -> None:
    found = [
        record(0, 0.1, 1000, 0.1),
        record(0.2, 1.35, 1_000_000, 0.35),  # a megabyte a second
        record(0.2, 1.35, 2_000_000, 0.35),  # and two at the same time
    ]
    total = summarize(found, 2.0)
    assert (total.rounds, total.latency) == (2, 0.1)
    assert total.bandwidth == pytest.approx(3e6)
    assert total.limit == pytest.approx(2 * 0.1 + 3_001_000 / 3e6)
    assert total.times_limit == pytest.approx(1.25 / total.limit)


def test_small_rounds_tell_the_bandwidth_only_if_there_are_no_others() -> None:
    small = record(0, 1, TELLING - 1, 0.999)
    large = record(1, 3, TELLING, 2)
    assert summarize([small], 1).bandwidth == pytest.approx((TELLING - 1) / 0.001)
    assert summarize([small, large], 3).bandwidth == pytest.approx(TELLING)


def test_bytes_of_tries_that_failed_are_not_in_the_limit() -> None:
    cut = Record("u", 0, (Try(0, 2, 1, 206, 500_000, "cut"), Try(3, 5, 4, 206, 1_000_000)))
    total = summarize([cut], 5)
    assert (total.retries, total.paused, total.nbytes) == (1, 1, 1_500_000)
    assert total.limit == pytest.approx(1 + 1_000_000 / 750_000)


def test_without_requests_there_is_no_limit() -> None:
    total = summarize([], 1.0)
    assert (total.rounds, total.limit, total.times_limit, total.bandwidth) == (0, 0, None, None)
    assert "requests" in dict(lines(total))


# ---- the waterfall


@given(records())
def test_segments_cover_a_request_from_asking_to_its_end(one: Record) -> None:
    at = one.asked
    for segment in segments(one):
        assert segment.begin == at < segment.end
        at = segment.end
    assert at == one.end


def test_a_retry_is_drawn_with_its_pause() -> None:
    again = Record("u", 0, (Try(1, 2, error="busy"), Try(4, 6, 5, 200, 10)))
    assert [(one.phase, one.begin, one.end) for one in segments(again)] == [
        ("queued", 0, 1),
        ("failed", 1, 2),
        ("pause", 2, 4),
        ("waiting", 4, 5),
        ("body", 5, 6),
    ]


@given(TRACES)
def test_every_request_has_one_row(found: list[Record]) -> None:
    rows = [row for one in waterfall(found) for row in one.rows]
    assert sorted(row.number for row in rows) == list(range(1, len(found) + 1))
    assert min((row.begin for row in rows), default=0) == 0


@given(TRACES)
def test_the_picture_is_xml_and_all_bars_are_in_it(found: list[Record]) -> None:
    root = ET.fromstring(draw(waterfall(found)))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    bars = list(root.iter(f"{SVG}rect"))
    for bar in bars:
        x, y = float(bar.get("x", 0)), float(bar.get("y", 0))
        assert 0 <= x <= x + float(bar.attrib["width"]) <= width
        assert 0 <= y <= y + float(bar.attrib["height"]) <= height
    assert len(list(root.iter(f"{SVG}g"))) == len(found)


@given(st.floats(1e-6, 1e9))
def test_an_axis_has_a_few_round_times(seconds: float) -> None:
    found = ticks(seconds)
    assert 3 <= len(found) <= 9
    assert found[0] == 0
    assert found[-1] <= seconds * (1 + 1e-9)


@given(TRACES)
def test_the_page_needs_nothing_else_and_runs_nothing(found: list[Record]) -> None:
    page = render(waterfall(found), summarize(found, 1))
    tags = set(re.findall(r"<([a-z!][a-z0-9]*)", page))
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?\w""", re.sub(">[^<]*<", "><", page))


def test_what_files_and_servers_say_is_no_part_of_the_page() -> None:
    bad = "<script>alert(1)</script>"
    one = Record(f"https://h/{bad}", 0, (Try(0, 1, error=bad), Try(1, 2)), cause=bad)
    page = render(waterfall([one]), summarize([one], 1))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 3


# ---- the document


@given(TRACES, st.floats(0, 1e6))
def test_the_document_has_all_of_a_trace(found: list[Record], seconds: float) -> None:
    document = json.loads(Trace(found, seconds).json())
    assert document.pop("requests") == json.loads(json.dumps(list(map(asdict, found))))
    assert document == {"format": "nczarr-trace", "version": 1, "seconds": seconds}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "list"}, "names below it"),
        ({"kind": "put"}, "written"),
        ({"tail": 5}, "last 5 bytes"),
        ({"extents": None}, "all"),
        ({"extents": ()}, "version"),
        ({"extents": ((0, 4), (7, None))}, "bytes 0-3, 7-"),
        ({"extents": tuple((n, n + 1) for n in range(0, 50, 5))}, "bytes 0-0, 5-5, 10-10 and 7 ra"),
    ],
)
def test_what_was_asked_for_is_said(changes: dict[str, Any], text: str) -> None:
    assert asked_for(replace(record(0, 1), **changes)).startswith(text)
