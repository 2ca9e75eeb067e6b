"""Records of requests that nothing has sent."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

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
