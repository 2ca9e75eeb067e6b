"""A trace as a page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nczarr_fsspec.text import format_size
from nczarr_xarray.tools.trace.analysis import Summary, pauses
from nczarr_xarray.tools.trace.svg import draw
from nczarr_xarray.tools.trace.text import asked_for, format_seconds, lines
from nczarr_xarray.tools.trace.waterfall import ReadRound, Row

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
