"""What was asked of a network, when, and what came: the records, and what they are given to.

`Transport` makes them where every request passes. Without a recorder that costs one look at
`recorders` for a request, and one at a context variable for a try.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: answers that say there is no such file
MISSING = frozenset({404, 410})

Kind: TypeAlias = Literal["get", "list", "put", "delete", "copy"]


@dataclass(frozen=True, slots=True)
class Try:
    """One time that a request was sent.

    Parameters
    ----------
    begin, end
        When it was sent, and when its last byte came or it failed; in seconds.
    first_byte
        When the answer began; None if it did not, or nothing tells.
    status
        That of HTTP; None if there was no answer, or no HTTP. 404 for no such file in any case.
    nbytes
        Bytes of the body that came, or that were written.
    error
        Why it failed, without secrets; ``""`` if it did not.
    """

    begin: float
    end: float
    first_byte: float | None = None
    status: int | None = None
    nbytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One request with all its tries; a pause lies between two of them.

    Parameters
    ----------
    url
        Of the file, without secrets (`nczarr_fsspec.transport.watch.masked`).
    asked
        When it was wanted, in seconds; it may have waited for its turn until the first try.
    tries
        At least one.
    kind
        ``"list"`` for the names below a prefix. Of writes, one try is all that the filesystem did.
    extents, tail
        As of `Request`; an extent without a stop goes to the end of the file.
    cause
        What was being read (`caused_by`); ``""`` for the metadata of a dataset.
    """

    url: str
    asked: float
    tries: tuple[Try, ...]
    kind: Kind = "get"
    extents: tuple[tuple[int, int | None], ...] | None = None
    tail: int = 0
    cause: str = ""

    @property
    def end(self) -> float:
        """When it was answered, or given up."""
        return self.tries[-1].end

    @property
    def answered(self) -> bool:
        """Whether it brought what was asked for at last."""
        last = self.tries[-1]
        return not last.error and last.status not in MISSING

    @property
    def nbytes(self) -> int:
        """Bytes that came or went, in all tries."""
        return sum(one.nbytes for one in self.tries)


Recorder: TypeAlias = Callable[[Record], None]

#: what gets every record of this process, from any thread
recorders: tuple[Recorder, ...] = ()
_changing = threading.Lock()
#: the clock of all records
now: Callable[[], float] = time.monotonic


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Call `recorder` with each request that is answered, or given up, meanwhile."""
    global recorders  # noqa: PLW0603 - the requests of all threads and loops
    with _changing:
        recorders = (*recorders, recorder)
    try:
        yield
    finally:
        with _changing:
            recorders = tuple(one for one in recorders if one is not recorder)


@dataclass(slots=True)
class Seen:
    """What is seen of a try while it is under way."""

    first_byte: float | None = None
    status: int | None = None
    nbytes: int = 0

    def begins(self, status: int) -> None:
        """Note that the answer has begun."""
        self.first_byte, self.status = now(), status


#: the try under way, for what reads its answer; None if nothing records
SEEN: ContextVar[Seen | None] = ContextVar("SEEN", default=None)
#: what is being read
CAUSE: ContextVar[str] = ContextVar("CAUSE", default="")


@contextmanager
def caused_by(what: str) -> Iterator[None]:
    """Say of requests that are sent here that they are for `what`, such as a variable."""
    if not recorders:
        yield
        return
    token = CAUSE.set(what)
    try:
        yield
    finally:
        CAUSE.reset(token)
