"""Runs a parser over bytes in memory, wave by wave."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.waves import Parsing, Read, waves

T = TypeVar("T")


class Driven(NamedTuple):
    """What came out of a parser, how many waves it took, and the bytes each of them asked for."""

    result: Any
    waves: int
    reads: list[list[tuple[int, int]]]

    @property
    def flat(self) -> list[tuple[int, int]]:
        return [one for wave in self.reads for one in wave]


def answer(wish: Read, data: bytes | memoryview) -> memoryview | NCZarrError:
    """The bytes that a driver gives for a wish, or its error if the file ends before."""
    if wish.start < 0 or wish.length < 0:
        return FormatError("memory", f"a read of {wish.length} bytes at {wish.start}")
    found = memoryview(data)[wish.start : wish.start + wish.length]
    if len(found) < wish.least:
        reason = f"ends at {len(data)}, {wish.least} bytes at {wish.start} were to be read"
        return FormatError("memory", reason)
    return found


def drive(parsing: Parsing[T], data: bytes | memoryview, head: int = 0) -> Driven:
    """Run `parsing` over the bytes of a file.

    Waves that ask only for some of the first `head` bytes are not counted, as
    they are answered from what opening the file brought.
    """
    running = waves(parsing)
    count = 0
    reads: list[list[tuple[int, int]]] = []
    try:
        wishes = next(running)
        while True:
            reads.append([(wish.start, wish.length) for wish in wishes])
            count += any(min(wish.start + wish.length, len(data)) > head for wish in wishes)
            wishes = running.send([answer(wish, data) for wish in wishes])
    except StopIteration as stop:
        return Driven(stop.value, count, reads)
