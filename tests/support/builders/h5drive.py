"""Runs a parser over bytes in memory, round by round."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.rounds import Parsing, Read, read_rounds

T = TypeVar("T")


class Driven(NamedTuple):
    """What came out of a parser, how many rounds it took, and the bytes each of them asked for."""

    result: Any
    rounds: int
    reads: list[list[tuple[int, int]]]

    @property
    def flat(self) -> list[tuple[int, int]]:
        return [one for reads in self.reads for one in reads]


def answer(read: Read, data: bytes | memoryview) -> memoryview | NCZarrError:
    """The bytes that a driver gives for a read, or its error if the file ends before."""
    if read.start < 0 or read.length < 0:
        return FormatError("memory", f"a read of {read.length} bytes at {read.start}")
    found = memoryview(data)[read.start : read.start + read.length]
    if len(found) < read.least:
        reason = f"ends at {len(data)}, {read.least} bytes at {read.start} were to be read"
        return FormatError("memory", reason)
    return found


def drive(parsing: Parsing[T], data: bytes | memoryview, head: int = 0) -> Driven:
    """Run `parsing` over the bytes of a file.

    Rounds that ask only for some of the first `head` bytes are not counted, as
    they are answered from what opening the file brought.
    """
    running = read_rounds(parsing)
    count = 0
    reads: list[list[tuple[int, int]]] = []
    try:
        awaited = next(running)
        while True:
            reads.append([(read.start, read.length) for read in awaited])
            count += any(min(read.start + read.length, len(data)) > head for read in awaited)
            awaited = running.send([answer(read, data) for read in awaited])
    except StopIteration as stop:
        return Driven(stop.value, count, reads)
