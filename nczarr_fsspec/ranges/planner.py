"""From pieces of a file to requests: merge what is near, split what is long, pack what is small.

Pure arithmetic on arrays. What a request costs is the model behind the rules:
`Limits.latency` before its first byte, once more if it has to open a
connection, then its bytes at `Limits.bandwidth`; connections share the line.

The rules, which the tests check as properties:

- Every wanted byte is in exactly one extent; no byte is asked for twice.
- Two wanted pieces become one extent if the gap between them is at most
  `SMALL_GAP`, or a quarter of the second and no more than what one connection
  carries in ``latency / concurrency``: the part of a round trip that a request
  costs when all connections are busy. So the bytes that were not asked for are less
  than ``SMALL_GAP * (pieces - 1) + wanted / 4``.
- If one request can name several extents, a gap saves no request but only the
  header of a part: only gaps up to `PART_GAP` are read.
- No extent and no request is longer than `longest` says, 4 MiB at most. Extents
  end where pieces end, if these are not longer themselves.
- Requests of several extents are made so that they fit on the connections that
  are open already, unless the bytes keep these busy for longer than it takes to
  open more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nczarr_fsspec.ranges.source import Limits
from nczarr_fsspec.transport.bodies import buffer
from nczarr_fsspec.transport.request import Extent

Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Booleans: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

#: Gaps up to this many bytes are read: to skip them would take one more request.
SMALL_GAP = 1 << 14
#: The same where skipping costs a part's header and its parsing, about 150 bytes and 20 us.
PART_GAP = 1 << 12
#: Bounds for the length of one request, in bytes.
LEAST_PART, MOST_PART = 1 << 20, 1 << 22
#: Long reads begin with so many requests of ascending length.
RAMP = 12
#: Requests are not made shorter than this to use more connections.
LEAST_SHARE = 1 << 18
#: Metadata are asked for in no smaller pieces: the next ones are often near.
LEAST_METADATA = 1 << 12
#: Where metadata lie together, up to this much around what is wanted is read with it, ...
MOST_AROUND = 1 << 16
#: and no more than a connection carries in this share of a round trip, ...
_AROUND_SHARE = 1 / 40
#: and not around more than so many places at a time.
_PLACES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """What to ask for, and where each wanted piece then is. All arrays are int64.

    Parameters
    ----------
    starts, stops
        The extents, ascending and apart from each other.
    first
        Request i asks for extents ``first[i]`` up to ``first[i + 1]``.
    whole
        Numbers of the pieces that lie in one extent, ordered by it.
    bounds
        Request i brings ``whole[bounds[i]:bounds[i + 1]]``.
    within
        The extent of each piece in `whole`.
    split
        Numbers of the pieces that lie in several extents, ascending by start.
    spans
        Their first and last extents, of shape ``(len(split), 2)``.
    """

    starts: Integers
    stops: Integers
    first: Integers
    whole: Integers
    bounds: Integers
    within: Integers
    split: Integers
    spans: Integers

    def __len__(self) -> int:
        return len(self.first) - 1

    def extents(self, request: int) -> list[Extent]:
        """Return what one request asks for."""
        part = slice(self.first[request], self.first[request + 1])
        pairs = zip(self.starts[part].tolist(), self.stops[part].tolist(), strict=True)
        return [Extent(start, stop) for start, stop in pairs]


def longest(limits: Limits) -> int:
    """Return the most bytes of a request: what a connection carries in a round trip, bounded.

    Then it waits half of the time, and a handful of connections still fill the line.
    """
    carried = limits.latency * limits.bandwidth
    return int(min(max(carried, LEAST_PART), MOST_PART))


def widened(fresh: Sequence[Extent], size: int, limits: Limits, *, around: bool) -> list[Extent]:
    """Return extents of metadata with what is read beside them, since it may be wanted next.

    Parameters
    ----------
    fresh
        What is wanted and not known.
    size
        Of the file.
    around
        Whether what is wanted next is likely to lie near.
    """
    block = int(min(MOST_AROUND, _AROUND_SHARE * limits.latency * limits.bandwidth))
    if around and len(fresh) <= _PLACES and block > LEAST_METADATA:
        # up to the bounds of blocks: what belongs to a page of the file lies on both sides
        return [
            Extent(start - start % block, min(size, stop + -stop % block)) for start, stop in fresh
        ]
    return [Extent(start, max(stop, min(size, start + LEAST_METADATA))) for start, stop in fresh]


def plan_requests(
    starts: Integers, stops: Integers, limits: Limits, connections: int = 1
) -> Requests:
    """Plan the requests for pieces of a file.

    Parameters
    ----------
    starts, stops
        The pieces ``[start, stop)`` in bytes, in any order; they may touch,
        overlap or repeat. Empty ones are in none of the result's lists.
    limits
        What is known of the way to the file.
    connections
        That are open, so that using them costs no extra round trip.
    """
    kept = np.flatnonzero(stops > starts)
    if not np.all(np.diff(starts[kept]) >= 0):
        kept = kept[np.argsort(starts[kept], kind="stable")]
    low, high = starts[kept], stops[kept]
    atom_starts, atom_stops = _union(low, high)
    gaps = atom_starts[1:] - atom_stops[:-1]
    near = _near(atom_starts, atom_stops, limits)
    # gaps that are read count, too: else a run that one request can bring would be cut
    total = int((atom_stops - atom_starts).sum()) + int(gaps[near].sum())
    most, share = longest(limits), _share(limits)
    part = min(most, max(share, -(-total // max(1, connections))))
    atom_starts, atom_stops = _cut(atom_starts, atom_stops, part)
    extent_starts, extent_stops = _merge(atom_starts, atom_stops, limits, part)
    sizes = extent_stops - extent_starts
    if limits.ranges > 1 and len(sizes) > 1:
        count = _count(len(sizes), int(sizes.sum()), limits, connections)
        touching = np.flatnonzero(extent_starts[1:] == extent_stops[:-1]) + 1
        # parts of one run go by requests of their own: a server may join them in its answer
        first = np.union1d(pack_requests(sizes, limits.ranges, most, count), touching)
    else:
        first = np.arange(len(sizes) + 1)
    begin = np.searchsorted(extent_starts, low, side="right") - 1
    end = np.searchsorted(extent_starts, high, side="left") - 1
    one = begin == end
    several = ~one
    return Requests(
        starts=extent_starts,
        stops=extent_stops,
        first=first,
        whole=kept[one],
        bounds=np.searchsorted(begin[one], first),
        within=begin[one],
        split=kept[several],
        spans=np.stack([begin[several], end[several]], axis=1),
    )


def _share(limits: Limits) -> int:
    """Return the least bytes of a request of several extents: a quarter of a round trip's."""
    return int(min(max(limits.latency * limits.bandwidth / 4, LEAST_SHARE), LEAST_PART))


def _union(low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """Join pieces that overlap; those that only touch stay apart. `low` ascends."""
    if not len(low):
        return low, high
    reach = np.maximum.accumulate(high)
    fresh = np.flatnonzero(low[1:] >= reach[:-1]) + 1
    return low[np.concatenate(([0], fresh))], reach[np.concatenate((fresh - 1, [len(low) - 1]))]


def _cut(starts: Integers, stops: Integers, part: int) -> tuple[Integers, Integers]:
    """Cut what is longer than `part` into equal pieces."""
    sizes = stops - starts
    if not np.any(sizes > part):
        return starts, stops
    counts = -(-sizes // part)
    which = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    each, rest = np.divmod(sizes[which], counts[which])  # no product: sizes may be near 2**63
    low = starts[which] + number * each + np.minimum(number, rest)
    return low, low + each + (number < rest)


def _near(starts: Integers, stops: Integers, limits: Limits) -> Booleans:
    """Tell for each piece after the first whether the gap before it is read, not skipped."""
    gaps = starts[1:] - stops[:-1]
    most: int | Integers = PART_GAP
    if limits.ranges == 1:
        worth = int(limits.latency * limits.bandwidth / limits.concurrency)
        most = np.maximum(SMALL_GAP, np.minimum(worth, (stops[1:] - starts[1:]) // 4))
    near: Booleans = gaps <= most
    return near


def _merge(
    starts: Integers, stops: Integers, limits: Limits, part: int
) -> tuple[Integers, Integers]:
    """Join neighbours over small gaps, up to `part` bytes."""
    if len(starts) < 2:
        return starts, stops
    fresh = np.flatnonzero(~_near(starts, stops, limits)) + 1
    begins = np.concatenate(([0], fresh))
    ends = np.concatenate((fresh, [len(starts)]))
    long = np.flatnonzero(stops[ends - 1] - starts[begins] > part)
    if len(long):
        ramp = RAMP if int((stops - starts).sum()) > RAMP * part else 0
        cuts: list[int] = []
        for begin, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
            cuts += _parts(starts, stops, begin, end, part, ramp - len(cuts))
        begins = np.sort(np.concatenate((begins, np.asarray(cuts, dtype=np.int64))))
        ends = np.concatenate((begins[1:], [len(starts)]))
    return starts[begins], stops[ends - 1]


def _parts(
    starts: Integers, stops: Integers, begin: int, end: int, part: int, ramp: int
) -> list[int]:
    """Return where to cut a run of neighbours into parts of at most `part` bytes.

    The parts are about equal, but of a long read the first ones, of which `ramp` are to come,
    ascend in length. Else all requests of the first round, which share the line, would
    end at the same moment, and so would those of the next: the line would be idle for a round
    trip each time, and there would be nothing to decode and then too much.
    """
    cuts: list[int] = []
    last = int(stops[end - 1])
    while True:
        low = int(starts[begin])
        left = last - low
        if left <= part:
            return cuts
        if len(cuts) < ramp:
            goal = low + part * (RAMP - ramp + len(cuts) + 1) // RAMP
        else:
            goal = low + -(-left // -(-left // part))
        begin = max(begin + 1, int(np.searchsorted(stops, goal, side="right")))
        cuts.append(begin)


def _count(extents: int, nbytes: int, limits: Limits, connections: int) -> int:
    """Return how many requests to make of small extents."""
    least = -(-extents // limits.ranges)
    count = max(least, -(-nbytes // _share(limits)))
    # as long as the open connections need for all of it no longer than a new one to open
    if least <= connections and nbytes <= connections * limits.latency * limits.bandwidth:
        count = max(least, min(count, connections))
    return count


def pack_requests(sizes: Integers, ranges: int, most: int, count: int) -> Integers:
    """Group neighbours into about `count` requests of about equal bytes."""
    ends = np.cumsum(sizes).tolist()
    total, first, done = ends[-1], [0], 0
    while first[-1] < len(ends):
        begin = first[-1]
        goal = done + min(most, math.ceil((total - done) / max(1, count)))
        end = max(bisect_right(ends, goal, begin), begin + 1)
        if end < len(ends) and ends[end] - goal < goal - ends[end - 1] and ends[end] - done <= most:
            end += 1  # nearer to the goal
        fits = max(bisect_right(ends, done + most, begin), begin + 1)
        left = len(ends) - ranges * (count - 1)  # the others cannot take more
        end = min(max(end, left), begin + ranges, fits)
        first.append(end)
        done = ends[end - 1]
        count -= 1
    return np.asarray(first, dtype=np.int64)


def by_owner(first: Integers, numbers: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield whose pieces some of those are that were read together, and which of `numbers` these.

    Parameters
    ----------
    first
        The number of the first piece of each owner, ascending.
    """
    owners = np.searchsorted(first, numbers, side="right") - 1
    order = np.argsort(owners, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if len(numbers) else ():
        yield int(owners[own[0]]), own


# -- pieces --------------------------------------------------------------------------------------
# From answers to pieces: views where a piece came in one, a copy where it came in several.


@dataclass(slots=True, eq=False)
class _Assembly:
    """A piece that comes by several requests."""

    start: int
    stop: int
    missing: int
    pieces: list[int]
    data: memoryview | None = None


class Delivery:
    """Finds the pieces of one read in what its requests bring.

    Parameters
    ----------
    plan
        The requests for the pieces.
    low, high
        The pieces, as the planner had them.
    """

    def __init__(self, plan: Requests, low: Integers, high: Integers) -> None:
        self._plan = plan
        self._low = low
        self._high = high
        self._parts: dict[int, list[_Assembly]] = {}  # of each extent
        together: dict[tuple[int, int], _Assembly] = {}
        spans = plan.spans.tolist()
        for piece, (begin, end) in zip(plan.split.tolist(), spans, strict=True):
            bounds = int(low[piece]), int(high[piece])
            if bounds in together:
                together[bounds].pieces.append(piece)
                continue
            together[bounds] = assembly = _Assembly(*bounds, end - begin + 1, [piece])
            for extent in range(begin, end + 1):
                self._parts.setdefault(extent, []).append(assembly)

    def landed(
        self, request: int, views: list[memoryview]
    ) -> Iterator[tuple[Integers, list[memoryview], int]]:
        """Yield the pieces that are whole now that one request has landed.

        Parameters
        ----------
        request
            Its number. Each comes once, in any order.
        views
            The bytes of its extents.

        Yields
        ------
        Numbers of pieces, their bytes, and how much memory these take beyond `views`.
        """
        plan = self._plan
        part = slice(plan.bounds[request], plan.bounds[request + 1])
        which, within = plan.whole[part], plan.within[part]
        if len(which):
            base = plan.starts[within]
            places = zip(
                (within - plan.first[request]).tolist(),
                (self._low[which] - base).tolist(),
                (self._high[which] - base).tolist(),
                strict=True,
            )
            yield which, [views[extent][start:stop] for extent, start, stop in places], 0
        if not self._parts:
            return
        for number, view in enumerate(views, int(plan.first[request])):
            start = int(plan.starts[number])
            for assembly in self._parts.pop(number, ()):
                low, high = assembly.start, assembly.stop
                begin, end = max(low, start), min(high, start + len(view))
                if assembly.data is None:
                    assembly.data = buffer(high - low)
                assembly.data[begin - low : end - low] = view[begin - start : end - start]
                assembly.missing -= 1
                if not assembly.missing:
                    whole = assembly.data.toreadonly()
                    pieces = np.asarray(assembly.pieces, dtype=np.int64)
                    yield pieces, [whole] * len(pieces), len(whole)
