"""What records of requests add up to, in numbers and in words."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nczarr_fsspec.text import format_size
from nczarr_fsspec.transport.recording import Record, Try

#: read rounds with fewer bytes than this do not tell the bandwidth
TELLING = 1 << 18


@dataclass(frozen=True, slots=True)
class Summary:
    """What a trace adds up to; times in seconds.

    Parameters
    ----------
    requests, rounds, retries
        How many there were. A retry is a try of a request after its first.
    nbytes
        Bytes that came or were written, in all tries.
    seconds
        For how long requests were recorded.
    network
        For how much of this at least one request was under way.
    paused
        Pauses before retries, added up.
    latency
        From sending a request to the first byte of its answer, the least seen.
    bandwidth
        Bytes per second, of the fastest read round that tells; None if no body took time.
    limit
        ``rounds x latency + bytes / bandwidth``, of the answers that were of use.
    """

    requests: int
    rounds: int
    retries: int
    nbytes: int
    seconds: float
    network: float
    paused: float
    latency: float
    bandwidth: float | None
    limit: float

    @property
    def times_limit(self) -> float | None:
        """How many times as long as the limit the network took; None without a limit."""
        return self.network / self.limit if self.limit > 0 else None


def summarize(records: Sequence[Record], seconds: float) -> Summary:
    """Add up what was recorded in so many seconds."""
    numbers = rounds(records)
    depth = max(numbers, default=0)
    least, fastest = latency(records), bandwidth(records, numbers)
    useful = sum(record.tries[-1].nbytes for record in records)
    return Summary(
        requests=len(records),
        rounds=depth,
        retries=sum(len(record.tries) - 1 for record in records),
        nbytes=sum(record.nbytes for record in records),
        seconds=seconds,
        network=covered((record.asked, record.end) for record in records),
        paused=sum(sum(pauses(record)) for record in records),
        latency=least,
        bandwidth=fastest,
        limit=depth * least + (useful / fastest if fastest else 0.0),
    )


def rounds(records: Sequence[Record]) -> list[int]:
    """Return the read round of each record, from 1 on.

    A request may need all answers that were there when it was asked for, so its round is the one
    behind theirs. Requests of one round were all under way, or waited for their turn, together.
    """
    found = [0] * len(records)
    ends: list[tuple[float, int]] = []  # of requests that are under way, and their rounds
    answered = 0
    for i in sorted(range(len(records)), key=lambda i: records[i].asked):
        while ends and ends[0][0] <= records[i].asked:
            answered = max(answered, heapq.heappop(ends)[1])
        found[i] = answered + 1
        heapq.heappush(ends, (records[i].end, found[i]))
    return found


def latency(records: Iterable[Record]) -> float:
    """Return the least time from sending a request to the beginning of its answer."""
    tries = [one for record in records for one in record.tries]
    told = [one.first_byte - one.begin for one in tries if one.first_byte is not None]
    return min(told or [one.end - one.begin for one in tries], default=0.0)


def bandwidth(records: Sequence[Record], numbers: Sequence[int]) -> float | None:
    """Return the bytes per second of the read round that had the most.

    Rounds of few bytes count together, and only if there is no other: their bodies come at once.
    """
    by_round: dict[int, list[Try]] = {}
    for record, number in zip(records, numbers, strict=True):
        by_round.setdefault(number, []).extend(record.tries)
    speeds = [speed(tries) for tries in by_round.values() if _size(tries) >= TELLING]
    told = [speed for speed in speeds if speed]
    return max(told) if told else speed([one for tries in by_round.values() for one in tries])


def pauses(record: Record) -> list[float]:
    """Return the seconds before each retry."""
    pairs = zip(record.tries, record.tries[1:], strict=False)
    return [after.begin - before.end for before, after in pairs]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return for how long at least one of the spans of time lasts."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _size(tries: Iterable[Try]) -> int:
    return sum(one.nbytes for one in tries)


def speed(tries: Sequence[Try]) -> float | None:
    """Return the bytes per second of bodies; None if they took no time."""
    begins = (one.begin if one.first_byte is None else one.first_byte for one in tries)
    spans = zip(begins, tries, strict=True)
    time = covered((begin, one.end) for begin, one in spans if one.nbytes)
    return _size(tries) / time if time > 0 else None


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
