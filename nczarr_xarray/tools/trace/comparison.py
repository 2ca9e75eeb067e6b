"""What differs between two traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nczarr_fsspec.text import format_size
from nczarr_fsspec.transport.recording import Record
from nczarr_xarray.tools.trace.analysis import Summary
from nczarr_xarray.tools.trace.names import names
from nczarr_xarray.tools.trace.text import asked_for, format_rate, format_seconds

#: requests of one trace only that are shown
_SHOWN = 10
#: the numbers that are compared, each with how it is said
_NUMBERS: dict[str, Callable[[Summary], tuple[float, str]]] = {
    "requests": lambda one: (one.requests, str(one.requests)),
    "rounds": lambda one: (one.rounds, str(one.rounds)),
    "retries": lambda one: (one.retries, str(one.retries)),
    "bytes": lambda one: (one.nbytes, format_size(one.nbytes)),
    "time": lambda one: (one.seconds, format_seconds(one.seconds)),
    "network": lambda one: (one.network, format_seconds(one.network)),
    "limit": lambda one: (one.limit, format_seconds(one.limit)),
    "latency": lambda one: (one.latency, format_seconds(one.latency)),
    "bandwidth": lambda one: (one.bandwidth or 0, format_rate(one.bandwidth)),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two traces beside each other.

    Parameters
    ----------
    first, second
        What they add up to.
    only_first, only_second
        Requests that only one of them has, or more often: file and part, with how many times.
    """

    first: Summary
    second: Summary
    only_first: Counter[str]
    only_second: Counter[str]

    @property
    def same_requests(self) -> bool:
        """Whether both asked for the same, in as many rounds; times are never the same."""
        alike = self.first.rounds == self.second.rounds and self.first.nbytes == self.second.nbytes
        return alike and not self.only_first and not self.only_second

    def lines(self) -> Iterator[str]:
        """Say what differs: a table of numbers, then the first requests of one trace only."""
        yield f"{'':10} {'A':>12} {'B':>12} {'B / A':>8}"
        for label, say in _NUMBERS.items():
            (a, shown), (b, other) = say(self.first), say(self.second)
            ratio = f"{b / a:.2f}" if a and b else ""
            yield f"{label:10} {shown:>12} {other:>12} {ratio:>8}"
        for name, only in (("A", self.only_first), ("B", self.only_second)):
            if only:
                yield f"only in {name}: {only.total()} requests"
            for request, count in only.most_common(_SHOWN):
                yield f"  {request}" + (f", {count} times" if count > 1 else "")


def compare(
    first: Sequence[Record], second: Sequence[Record], summaries: tuple[Summary, Summary]
) -> Comparison:
    """Compare the requests of two traces, wherever their files are."""
    a, b = _requests(first), _requests(second)
    return Comparison(*summaries, a - b, b - a)


def _requests(records: Sequence[Record]) -> Counter[str]:
    found = zip(names(records), records, strict=True)
    return Counter(f"{name} {asked_for(record)}".lstrip() for name, record in found)
