"""How traces say numbers, requests and what they add up to."""

from __future__ import annotations

from nczarr_fsspec.text import format_size
from nczarr_fsspec.transport.recording import Record
from nczarr_xarray.tools.trace.analysis import Summary

_DONE = {"list": "names below it", "put": "written", "delete": "deleted", "copy": "moved"}


def format_seconds(seconds: float) -> str:
    """Return a time with three digits: ``52.3 ms``, ``1.2 s``."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def format_rate(rate: float | None) -> str:
    """Return bytes per second: ``48 MB/s``."""
    return "unknown" if rate is None else f"{format_size(round(rate))}/s"


def asked_for(record: Record) -> str:
    """Say which part of a file was asked for: ``bytes 0-65535``."""
    if record.kind != "get":
        return _DONE[record.kind]
    if record.tail:
        return f"last {record.tail} bytes"
    if record.extents is None:
        return "all"
    if not record.extents:
        return "version"
    first = [f"{a}-{'' if b is None else b - 1}" for a, b in record.extents[:3]]
    more = len(record.extents) - len(first)
    return f"bytes {', '.join(first)}" + (f" and {more} ranges more" if more else "")


def lines(summary: Summary) -> list[tuple[str, str]]:
    """Return what a trace adds up to, as labels and texts."""
    pause = f", {format_seconds(summary.paused)} of pauses" if summary.retries else ""
    answers = summary.limit - summary.rounds * summary.latency
    limit = (
        f"{format_seconds(summary.limit)} = {summary.rounds} x {format_seconds(summary.latency)}"
        f" + {format_seconds(answers)} at {format_rate(summary.bandwidth)}"
    )
    found = [
        ("requests", f"{summary.requests} in {summary.rounds} read rounds"),
        ("retries", f"{summary.retries}{pause}"),
        ("bytes", format_size(summary.nbytes)),
        ("time", format_seconds(summary.seconds)),
        ("network", f"{format_seconds(summary.network)} with a request under way"),
    ]
    if summary.requests:
        found.append(("limit", limit))
    if (times := summary.times_limit) is not None:
        found.append(("distance", f"the network took {times:.2f} x the limit"))
    return found
