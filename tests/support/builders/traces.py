"""Records of requests that nothing has sent, and requests that are sent again."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import get_args

from hypothesis import strategies as st

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.transport.recording import Kind, Record, Try

URL = "https://h/d.nc"


def record(
    asked: float,
    end: float,
    nbytes: int = 0,
    first_byte: float | None = None,
    url: str = URL,
    extents: tuple[tuple[int, int | None], ...] | None = ((0, 100),),
) -> Record:
    """Make a request that is answered at its first try."""
    return Record(url, asked, (Try(asked, end, first_byte, 206, nbytes),), extents=extents)


_TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs", "Cf", "Cn", "Co"]))
_SIZES = st.integers(0, 10**12)
_SPANS = st.floats(0, 100) | st.just(0.0)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Make any record."""
    at = asked = draw(st.floats(0, 1000))
    tries = []
    for last in [False] * draw(st.integers(0, 3)) + [True]:
        begin = at + draw(_SPANS)
        first = begin + draw(_SPANS)
        at = first + draw(_SPANS)
        answered = draw(st.booleans())
        error = "" if last else draw(_TEXTS) or "busy"
        status = draw(st.none() | st.integers(100, 599))
        tries.append(Try(begin, at, first if answered else None, status, draw(_SIZES), error))
    starts = st.tuples(_SIZES, st.none() | _SIZES)
    extents = draw(st.none() | st.lists(starts, max_size=4).map(tuple))
    kind: Kind = draw(st.sampled_from(get_args(Kind)))
    url = "https://h/" + draw(_TEXTS)
    return Record(url, asked, tuple(tries), kind, extents, draw(_SIZES), draw(_TEXTS))


#: requests that take time
LASTING = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.01, 20)).map(lambda at: record(at[0], sum(at))),
    max_size=30,
)
TRACES = st.lists(records(), max_size=12)


async def send(answer: Callable[[Record], Awaitable[None]], records: Sequence[Record]) -> None:
    """Have requests answered again, each when those are answered that were before it."""
    order = sorted(range(len(records)), key=lambda i: records[i].end)
    ends = [records[i].end for i in order]
    place_of = {i: place for place, i in enumerate(order)}
    answered = [False] * len(order)
    # passed[n]: the first n of `order` are answered
    passed = [asyncio.Event() for _ in range(len(order) + 1)]
    passed[0].set()
    front = 0

    async def one(i: int) -> None:
        nonlocal front
        await passed[bisect_right(ends, records[i].asked)].wait()
        await answer(records[i])
        answered[place_of[i]] = True
        while front < len(order) and answered[front]:
            front += 1
            passed[front].set()

    asked = sorted(range(len(records)), key=lambda i: records[i].asked)
    await gather_or_cancel(*map(one, asked))
