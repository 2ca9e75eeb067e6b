"""From answers to pieces: views where a piece came in one, a copy where it came in several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nczarr_fsspec.ranges.planner import Integers, Requests
from nczarr_fsspec.transport.buffer import buffer


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
