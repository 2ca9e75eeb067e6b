"""The bytes of one version of a file that are known so far."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nczarr_fsspec.transport.request import Extent

_MAGIC = b"NCSPARSE\x01\0\0\0\0\0\0\0"
_DIGEST = 16


class SparseBytes:
    """Some of the bytes of a file: blocks that may touch but do not overlap.

    The bytes at one place are always the same, so the first ones are kept.
    Its callers bound it: nothing is dropped.

    Attributes
    ----------
    nbytes : int
        How many bytes are known.
    """

    __slots__ = ("_blocks", "_runs", "_starts", "_stops", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._blocks: list[memoryview] = []
        self._runs: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Remember the bytes from `start` on. `data` must not be changed afterwards."""
        view = memoryview(data).cast("B").toreadonly()
        for extent in self.missing([Extent(start, start + len(view))]):
            block = view[extent.start - start : extent.stop - start]
            if len(block) < len(view) or len(block) < memoryview(view.obj).nbytes // 2:
                block = memoryview(bytes(block))  # rather than keep all it is a part of alive
            at = bisect_left(self._starts, extent.start)
            self._starts.insert(at, extent.start)
            self._stops.insert(at, extent.stop)
            self._blocks.insert(at, block)
            self.nbytes += len(block)
            self._runs = None

    def get(self, start: int, stop: int) -> memoryview | None:
        """Return the bytes ``[start, stop)``, or None if not all of them are known."""
        if start >= stop:
            return memoryview(b"")
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._stops[at] <= start:
            return None
        if self._stops[at] >= stop:
            base = self._starts[at]
            return self._blocks[at][start - base : stop - base]
        if self.missing([Extent(start, stop)]):
            return None
        end = bisect_left(self._starts, stop)
        joined = b"".join(self._blocks[at:end])
        return memoryview(joined)[start - self._starts[at] : stop - self._starts[at]]

    def covers(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Tell for each of many pieces ``[start, stop)`` whether all of its bytes are known."""
        low, high = self._arrays()
        if not len(low):
            return stops <= starts
        at = np.searchsorted(low, starts, side="right") - 1
        return ((at >= 0) & (stops <= high[at])) | (stops <= starts)

    def missing(self, extents: Iterable[Extent]) -> list[Extent]:
        """Return what of `extents` is not known: ascending and apart from each other."""
        return subtract(extents, self._starts, self._stops)

    def dump(self) -> bytes:
        """Return all of it in a compact form, with a checksum, for `load`."""
        low, high = self._arrays()
        head = np.concatenate(([len(low)], low, high)).astype("<i8").tobytes()
        body = b"".join((_MAGIC, head, *self._blocks))
        return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()

    @classmethod
    def load(cls, data: bytes | memoryview) -> SparseBytes:
        """Make it again from what `dump` wrote.

        Raises
        ------
        ValueError
            If the data are damaged or from another version of this form.
        """
        body, digest = memoryview(data)[:-_DIGEST], bytes(memoryview(data)[-_DIGEST:])
        fixed = len(_MAGIC) + 8
        if len(body) < fixed or bytes(body[: len(_MAGIC)]) != _MAGIC:
            raise ValueError("not a stored index, or of another version")
        if hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
            raise ValueError("a stored index is damaged")
        (count,) = np.frombuffer(body[len(_MAGIC) : fixed], dtype="<i8").tolist()
        if not 0 <= count <= (len(body) - fixed) // 16:
            raise ValueError("a stored index counts more blocks than it has")
        at = fixed + 16 * count
        bounds = np.frombuffer(body[fixed:at], dtype="<i8").reshape(2, count).tolist()
        known, last = cls(), -1
        for start, stop in zip(*bounds, strict=True):
            if not last < start < stop or stop - start > len(body) - at:
                raise ValueError("a stored index has blocks that are not in order or not there")
            known.add(start, bytes(body[at : at + stop - start]))
            at, last = at + stop - start, stop
        if at != len(body):
            raise ValueError("a stored index is longer than its blocks")
        return known

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return starts and stops of the known runs, touching ones joined; kept until `add`."""
        if self._runs is None:
            low = np.asarray(self._starts, dtype=np.int64)
            high = np.asarray(self._stops, dtype=np.int64)
            apart = low[1:] > high[:-1]
            edge = np.ones(min(1, len(low)), dtype=bool)
            self._runs = low[np.concatenate((edge, apart))], high[np.concatenate((apart, edge))]
        return self._runs


def subtract(
    extents: Iterable[Extent], starts: Sequence[int], stops: Sequence[int]
) -> list[Extent]:
    """Return what of `extents` is outside of the intervals from `starts` to `stops`.

    Parameters
    ----------
    extents
        In any order; they may touch or overlap.
    starts, stops
        Of the intervals, ascending; they may touch but do not overlap.

    Returns
    -------
    Ascending and apart from each other, none empty.
    """
    rest: list[Extent] = []
    for start, stop in join(extents):
        at = max(0, bisect_right(starts, start) - 1)
        for i in itertools.count(at):
            if i == len(starts) or starts[i] >= stop:
                break
            if stops[i] <= start:
                continue
            if starts[i] > start:
                rest.append(Extent(start, starts[i]))
            start = stops[i]
        if start < stop:
            rest.append(Extent(start, stop))
    return rest


def join(extents: Iterable[Extent]) -> list[Extent]:
    """Return the same bytes as extents that ascend and are apart from each other, none empty."""
    joined: list[Extent] = []
    for extent in sorted(extents):
        if extent.start >= extent.stop:
            continue
        if joined and extent.start <= joined[-1].stop:
            if extent.stop > joined[-1].stop:
                joined[-1] = Extent(joined[-1].start, extent.stop)
        else:
            joined.append(extent)
    return joined


# -- requests under way --------------------------------------------------------------------------
# Which bytes the requests that are under way bring.


@dataclass(slots=True, eq=False)
class Flight:
    """A request for metadata on its way, how many wait for it, and what it alone brings."""

    task: asyncio.Task[None]
    waiters: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)


class Flights:
    """The requests on their way, by the bytes they bring: intervals that do not overlap."""

    __slots__ = ("_flights", "_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._flights: dict[int, Flight] = {}

    def __bool__(self) -> bool:
        return bool(self._flights)

    def missing(self, extents: Iterable[Extent]) -> list[Extent]:
        """Return what of `extents` none of them brings."""
        return subtract(extents, self._starts, self._stops)

    def add(self, flight: Flight, extents: Iterable[Extent]) -> None:
        """Enter a flight that has set off; what others bring of `extents` stays theirs."""
        for start, stop in self.missing(extents):
            insort(self._starts, start)
            insort(self._stops, stop)
            self._flights[start] = flight
            flight.entries.append((start, stop))

    def remove(self, flight: Flight) -> None:
        """Remove a request, for which nothing may wait any more. It need not be there."""
        for start, _ in flight.entries:
            at = bisect_left(self._starts, start)
            del self._starts[at], self._stops[at], self._flights[start]
        flight.entries = []

    def bringing(self, extents: Iterable[Extent]) -> list[Flight]:
        """Return those that bring some of `extents`, each once."""
        found: dict[int, Flight] = {}
        for start, stop in extents:
            begin = bisect_right(self._stops, start)
            for low in self._starts[begin : bisect_left(self._starts, stop)]:
                flight = self._flights[low]
                found[id(flight)] = flight
        return list(found.values())
