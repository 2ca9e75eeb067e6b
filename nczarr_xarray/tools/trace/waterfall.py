"""The waterfall of a trace: which part of which request lies when, in which read round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nczarr_fsspec.transport.recording import Record
from nczarr_xarray.tools.trace.analysis import rounds

#: until its turn came, until the first byte, until the last, a try that failed, a pause after it
Phase: TypeAlias = Literal["queued", "waiting", "body", "failed", "pause"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a request's time, in seconds from when the first request was asked for."""

    phase: Phase
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Row:
    """A request and the parts of its time; `number` counts the requests of a trace."""

    number: int
    record: Record
    begin: float
    end: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ReadRound:
    """A read round with its requests."""

    number: int
    rows: tuple[Row, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that its requests brought."""
        return sum(row.record.nbytes for row in self.rows)


def waterfall(records: Sequence[Record]) -> list[ReadRound]:
    """Group the rows of all records by read rounds."""
    first = min((record.asked for record in records), default=0.0)
    by_round: dict[int, list[Row]] = {}
    for i, (record, number) in enumerate(zip(records, rounds(records), strict=True)):
        span = record.asked - first, record.end - first
        row = Row(i + 1, record, *span, tuple(segments(record, first)))
        by_round.setdefault(number, []).append(row)
    return [ReadRound(number, tuple(by_round[number])) for number in sorted(by_round)]


def segments(record: Record, first: float = 0.0) -> Iterator[Segment]:
    """Yield the parts of a request's time, one behind the other, those of no length left out.

    Parameters
    ----------
    first
        From when on time counts.
    """
    at = record.asked
    for i, one in enumerate(record.tries):
        parts: list[tuple[Phase, float]] = [("pause" if i else "queued", one.begin)]
        if one.error:
            parts.append(("failed", one.end))
        elif one.first_byte is None:  # nothing tells when the body began
            parts.append(("waiting", one.end))
        else:
            parts += [("waiting", one.first_byte), ("body", one.end)]
        for phase, end in parts:
            if end > at:
                yield Segment(phase, at - first, end - first)
            at = max(at, end)


def ticks(seconds: float) -> list[float]:
    """Return round times from 0 to `seconds`, nine at most, for an axis."""
    if seconds <= 0:
        return [0.0]
    least = 10.0 ** math.floor(math.log10(seconds / 8))
    step = next(least * factor for factor in (1, 2, 5, 10) if seconds / (least * factor) <= 8)
    return [i * step for i in range(int(seconds / step) + 1)]
