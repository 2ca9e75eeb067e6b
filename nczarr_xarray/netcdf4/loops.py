"""Loops over the steps of a variable that is far away: a read brings the steps that follow, too.

``for i in range(n): v[i]`` waits for the network at each step, or at each chunk. From the second
step on, more and more steps are read by one read, whose requests are made at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.netcdf4.indexing import Index

#: Bytes of steps that are read at a time.
MOST_BYTES = 1 << 24
#: How many times as many steps the next read has.
_GROWTH = 4


class _Steps(NamedTuple):
    """Steps that were read, and what of them is wanted next in a loop.

    Attributes
    ----------
    rest
        The indices of the other dimensions.
    first
        The number of the first step.
    values
        Theirs, along the first dimension.
    next
        The step behind the one that was wanted last.
    """

    rest: tuple[Index, ...]
    first: int
    values: np.ndarray
    next: int


class LoopReader:
    """Reads selections of a variable, those of a loop many at a time. Safe in threads."""

    def __init__(self, reader: VariableReader) -> None:
        self._reader = reader
        self._last: _Steps | None = None

    def read(self, key: tuple[Index, ...]) -> np.ndarray:
        """Return an orthogonal selection; dimensions that integers index are left out."""
        step, rest = (key[0], key[1:]) if key else (None, ())
        if not isinstance(step, int) or any(isinstance(index, np.ndarray) for index in rest):
            return self._reader.read(key)
        last = self._last
        loops = last is not None and (last.rest, last.next) == (rest, step)
        if last is None or not loops or step == last.first + len(last.values):
            count = self._count(last) if last is not None and loops else 1
            values = self._reader.read(
                (slice(step, min(step + count, self._reader.shape[0])), *rest)
            )
            if values.nbytes > 2 * MOST_BYTES:  # a step that is long without others
                self._last = None
                return values.reshape(values.shape[1:])
            last = _Steps(rest, step, values, step)
        self._last = last._replace(next=step + 1)
        at = step - last.first
        return last.values[at : at + 1].reshape(last.values.shape[1:]).copy()

    def _count(self, last: _Steps) -> int:
        """Return how many steps to read after some, up to the end of a chunk."""
        known = len(last.values)
        count = min(known * _GROWTH, MOST_BYTES * known // max(1, last.values.nbytes))
        array = self._reader.array
        length = array.chunk_shape[0] if array is not None and array.is_chunked else 1
        end = last.next + count
        return max(1, count if count < length else end // length * length - last.next)
