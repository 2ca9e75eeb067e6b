"""A trace as a page of HTML that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias

from nczarr_fsspec.text import format_size
from nczarr_fsspec.transport.recording import Record
from nczarr_xarray.tools.trace.summary import (
    Summary,
    asked_for,
    format_seconds,
    lines,
    pauses,
    rounds,
)

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


#: colour and name of each part of a request's time
PHASES: dict[Phase, tuple[str, str]] = {
    "queued": ("#d5dbe3", "waits for its turn"),
    "waiting": ("#9db8d9", "waits for the answer"),
    "body": ("#2b6cb0", "bytes come"),
    "failed": ("#c8553d", "fails"),
    "pause": ("#f0c9a8", "pause before a retry"),
}
#: pixels: a row, the heading of a round, the margin on the left, the bars, all of it
_ROW, _ABOVE, _LEFT, _BARS, _WIDTH = 14, 22, 230, 560, 900
_PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" font-family="sans-serif" font-size="11" fill="#1d2733">
<title>Requests over time, by read rounds</title>
<rect width="{width}" height="{height}" fill="#fff"/>
{content}
</svg>
"""


def draw(read_rounds: Sequence[ReadRound]) -> str:
    """Return a picture with a row for each request."""
    last = max((row.end for one in read_rounds for row in one.rows), default=0.0)
    scale = _BARS / last if last > 0 else 0.0
    rows = sum(len(one.rows) for one in read_rounds)
    bottom = _ABOVE + rows * _ROW + len(read_rounds) * _ABOVE
    content = [*_legend(), *_axis(last, scale, bottom)]
    y = _ABOVE
    for one in read_rounds:
        many = "" if len(one.rows) == 1 else "s"
        about = f"round {one.number}: {len(one.rows)} request{many}, {format_size(one.nbytes)}"
        content.append(f'<text x="4" y="{y + 16}" font-weight="bold">{about}</text>')
        y += _ABOVE
        for row in one.rows:
            content += _bars(row, y, scale)
            y += _ROW
    return _PICTURE.format(width=_WIDTH, height=bottom + 20, content="\n".join(content))


def _bars(row: Row, y: int, scale: float) -> Iterator[str]:
    record = row.record
    name = record.url.rstrip("/").rpartition("/")[2] or record.url
    what = f"{row.number} {record.cause} {name} {asked_for(record)}"
    shown = what if len(what) <= 40 else f"{what[:39]}…"
    yield f"<g><title>{escape(f'{row.number}: {record.url}, {asked_for(record)}')}</title>"
    yield f'<text x="12" y="{y + 11}" font-size="10">{escape(shown)}</text>'
    for one in row.segments:
        x, width = _LEFT + one.begin * scale, max(0.5, (one.end - one.begin) * scale)
        yield (
            f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 4}" '
            f'fill="{PHASES[one.phase][0]}"/>'
        )
    end = _LEFT + row.end * scale + 4
    again = f", {len(record.tries)} tries" if len(record.tries) > 1 else ""
    came = f"{format_size(record.nbytes)}{again}"
    yield f'<text x="{end:.1f}" y="{y + 11}" font-size="9">{came}</text></g>'


def _axis(last: float, scale: float, bottom: int) -> Iterator[str]:
    for at in ticks(last):
        x = _LEFT + at * scale
        yield f'<path d="M{x:.1f} {_ABOVE}V{bottom}" stroke="#e4e8ee"/>'
        text = format_seconds(at)
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{text}</text>'


def _legend() -> Iterator[str]:
    for i, (colour, name) in enumerate(PHASES.values()):
        x = 4 + i * 150
        yield f'<rect x="{x}" y="6" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14}" y="15">{name}</text>'


_FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Trace of {requests} requests</title>
<style>
body {{ font: 14px sans-serif; color: #1d2733; margin: 2em }}
table {{ border-collapse: collapse; margin: 1em 0 }}
th, td {{ text-align: left; padding: 2px 10px 2px 0; vertical-align: top }}
.requests {{ font-size: 12px }}
.requests td {{ border-top: 1px solid #e4e8ee; overflow-wrap: anywhere }}
.requests .failed {{ color: #c8553d }}
</style>
</head>
<body>
<h1>Trace of {requests} requests</h1>
<table>
{summary}
</table>
<p>The limit is the time of the read rounds, each with the least latency seen, and of the bytes at
the highest bandwidth seen. A read round is all requests that were under way together. Times count
from the first request.</p>
{picture}
<h2>Requests</h2>
<table class="requests">
<tr>{heading}</tr>
{rows}
</table>
</body>
</html>
"""
_HEADING = ("", "round", "for", "of", "asked for", "status", "from", "first byte", "took", "came")


def render(read_rounds: Sequence[ReadRound], summary: Summary) -> str:
    """Return the page: what the trace adds up to, the waterfall, a line for each request."""
    return _FRAME.format(
        requests=summary.requests,
        summary="\n".join(
            f"<tr><th>{label}</th><td>{escape(text)}</td></tr>" for label, text in lines(summary)
        ),
        picture=draw(read_rounds),
        heading="".join(f"<th>{name}</th>" for name in _HEADING),
        rows="\n".join("".join(_row(row, one.number)) for one in read_rounds for row in one.rows),
    )


def _row(row: Row, number: int) -> Iterator[str]:
    record = row.record
    last = record.tries[-1]
    begun = None if last.first_byte is None else format_seconds(last.first_byte - last.begin)
    cells = (
        str(row.number),
        str(number),
        record.cause or "metadata",
        record.url,
        asked_for(record),
        "" if last.status is None else str(last.status),
        format_seconds(row.begin),
        begun or "",
        format_seconds(row.end - row.begin),
        format_size(record.nbytes),
    )
    yield f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in cells)}</tr>"
    waits = [*map(format_seconds, pauses(record))]
    for i, one in enumerate(record.tries):
        if one.error:
            then = f"; tried again after {waits[i]}" if i < len(waits) else "; given up"
            text = f"{one.error} after {format_seconds(one.end - one.begin)}{then}"
            yield f'<tr class="failed"><td></td><td></td><td colspan="8">{escape(text)}</td></tr>'
