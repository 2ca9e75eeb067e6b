"""Numbers of chunks in their grid, and windows: chunks of a selection that are located together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from operator import mul
from typing import NamedTuple

import numpy as np

from nczarr_xarray.chunks.plan import Plan, Segment
from nczarr_xarray.model import position_of

#: Chunks that are looked up, fetched and decoded together: bounds what a huge read remembers.
WINDOW = 1 << 16
#: The same where looking up costs no round trip.
LOCAL_WINDOW = 1 << 13
#: The numbers of the chunks of an array that is one chunk.
ONLY_CHUNK = np.zeros(1, dtype=np.int64)


class Window(NamedTuple):
    """Chunks of a selection that are located together.

    Attributes
    ----------
    segments
        They are rows of these, one after the other.
    first
        The row that each segment begins with, and the end of the last one.
    ids
        Numbers of the chunks in the grid, row by row.
    """

    segments: list[Segment]
    first: list[int]
    ids: np.ndarray


class GridNumbers:
    """Numbers of the chunks of a grid, in C order.

    Parameters
    ----------
    shape
        Chunks along each dimension.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        #: from a chunk to the next along each dimension
        self._steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        #: (more chunks than numpy's integers count are told apart by Python's)
        self._dtype = np.dtype(np.int64 if math.prod(shape) < 1 << 63 else object)
        self._along = np.array(self._steps, self._dtype)

    def position(self, number: int) -> tuple[int, ...]:
        """Return where a chunk is in the grid."""
        return position_of(number, self.shape)

    def windows(self, plan: Plan, together: int, most: int) -> Iterator[tuple[np.ndarray, Window]]:
        """Yield windows of the chunks of a selection.

        Parameters
        ----------
        together
            Chunks that a segment may have.
        most
            Chunks after which a window ends.

        Yields
        ------
        The numbers of the chunks to locate, ascending, and the window.
        """
        if plan.count == 1:  # there is nothing to sort
            segments = list(plan.segments(1))
            number = sum(map(mul, segments[0].first.position, self._steps))
            ids = np.array([number], self._dtype)
            yield ids, Window(segments, [0, 1], ids)
            return
        segments, count = [], 0
        for segment in plan.segments(together):
            segments.append(segment)
            count += len(segment.pieces)
            if count >= most:
                yield self._window(segments)
                segments, count = [], 0
        if segments:
            yield self._window(segments)

    def _window(self, segments: list[Segment]) -> tuple[np.ndarray, Window]:
        lengths = [len(segment.pieces) for segment in segments]
        first = [0, *itertools.accumulate(lengths)]
        steps = self._along
        positions = np.array([segment.first.position for segment in segments], self._dtype)
        if first[-1] == len(segments):  # of one chunk each
            ids = positions @ steps
        else:
            axes = np.array([segment.axis for segment in segments])
            own = positions[np.arange(len(segments)), axes]
            base = positions @ steps - own * steps[axes]
            along = np.fromiter(
                (piece.chunk for segment in segments for piece in segment.pieces),
                self._dtype,
                first[-1],
            )
            ids = np.repeat(base, lengths) + along * np.repeat(steps[axes], lengths)
        window = Window(segments, first, ids)
        return (ids if np.all(ids[1:] > ids[:-1]) else np.unique(ids)), window
