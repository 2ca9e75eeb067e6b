"""The waterfall as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nczarr_fsspec.text import format_size
from nczarr_xarray.tools.trace.text import asked_for, format_seconds
from nczarr_xarray.tools.trace.waterfall import Phase, ReadRound, Row, ticks

#: colour and name of each part of a request's time
PHASES: dict[Phase, tuple[str, str]] = {
    "queued": ("#d5dbe3", "waits for its turn"),
    "waiting": ("#9db8d9", "waits for the answer"),
    "body": ("#2b6cb0", "bytes come"),
    "failed": ("#c8553d", "fails"),
    "pause": ("#f0c9a8", "pause before a retry"),
}
#: pixels: a row, the heading of a round, the margin on the left, the bars, all of it
_ROW, _HEADING, _LEFT, _BARS, _WIDTH = 14, 22, 230, 560, 900
_FRAME = """\
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
    bottom = _HEADING + rows * _ROW + len(read_rounds) * _HEADING
    content = [*_legend(), *_axis(last, scale, bottom)]
    y = _HEADING
    for one in read_rounds:
        many = "" if len(one.rows) == 1 else "s"
        about = f"round {one.number}: {len(one.rows)} request{many}, {format_size(one.nbytes)}"
        content.append(f'<text x="4" y="{y + 16}" font-weight="bold">{about}</text>')
        y += _HEADING
        for row in one.rows:
            content += _row(row, y, scale)
            y += _ROW
    return _FRAME.format(width=_WIDTH, height=bottom + 20, content="\n".join(content))


def _row(row: Row, y: int, scale: float) -> Iterator[str]:
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
        yield f'<path d="M{x:.1f} {_HEADING}V{bottom}" stroke="#e4e8ee"/>'
        text = format_seconds(at)
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{text}</text>'


def _legend() -> Iterator[str]:
    for i, (colour, name) in enumerate(PHASES.values()):
        x = 4 + i * 150
        yield f'<rect x="{x}" y="6" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14}" y="15">{name}</text>'
