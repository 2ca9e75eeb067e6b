"""What was asked of a network, when, and what came: the records, and what they are given to.

`Transport` makes them where every request passes. Without a recorder that costs one look at
`recorders` for a request, and one at a context variable for a try.

Processes that are started meanwhile, such as the workers of dask, write their records to files in a
folder which the environment names (`recorded_elsewhere`).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, TypeVar

from nczarr_fsspec.places.url import redact
from nczarr_fsspec.text import printable
from nczarr_fsspec.transport.request import END, Answer, Request

if TYPE_CHECKING:
    from nczarr_fsspec.transport.throttle import Attempt

#: Names the folder where processes that are started write their records.
_FOLDER = "NCZARR_TRACE_FOLDER"
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
        Of the file, without secrets (`nczarr_fsspec.transport.recording.masked`).
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
#: the clock of all records, which the processes of a machine share
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


def tell(record: Record, to: tuple[Recorder, ...] | None = None) -> None:
    """Give a record to recorders, by default to those that there are now."""
    for recorder in recorders if to is None else to:
        recorder(record)


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
    """Record requests that are sent meanwhile as those for `what`, such as a variable."""
    if not recorders:
        yield
        return
    token = CAUSE.set(printable(what))  # names may have any characters, a trace has lines
    try:
        yield
    finally:
        CAUSE.reset(token)


@contextmanager
def recorded_elsewhere() -> Iterator[Callable[[], Iterator[str]]]:
    """Let processes that are started meanwhile on this machine record their requests.

    Yields
    ------
    Called, it yields their records so far, each as JSON.
    """
    import tempfile  # which takes long

    before = os.environ.get(_FOLDER)
    with tempfile.TemporaryDirectory(prefix="nczarr-trace-", ignore_cleanup_errors=True) as folder:
        os.environ[_FOLDER] = folder
        try:
            yield lambda: _lines(Path(folder))
        finally:
            if before is None:
                os.environ.pop(_FOLDER, None)
            else:
                os.environ[_FOLDER] = before


def _lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        # the last line of a process that was killed may not be whole
        whole, _, _ = path.read_text(encoding="ascii").rpartition("\n")
        yield from whole.splitlines()


def _append(record: Record) -> None:
    """Write a record to the file that this process has in the folder."""
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return
    line = f"{json.dumps(asdict(record))}\n".encode("ascii")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with suppress(OSError):  # the trace may be over: then there is no folder
        descriptor = os.open(f"{folder}/{os.getpid()}", flags, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _begin() -> None:
    """Record what another process traces, if this one was started, or forked, meanwhile."""
    global recorders, _changing  # noqa: PLW0603 - a fork has none of its parent's
    recorders = (_append,) if _FOLDER in os.environ else ()
    _changing = threading.Lock()


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)


T = TypeVar("T")


def masked(url: str) -> str:
    """Return a URL without user, password and the values of its query, any of which may be secret.

    Messages keep those values that have harmless names (`redact`); a trace is given to others.
    """
    path, mark, _ = printable(redact(url)).partition("?")
    return f"{path}{mark}{'***' if mark else ''}"


@dataclass(slots=True)
class Watch:
    """Watches one request, and tells the recorders; a context manager."""

    request: Request
    kind: Kind
    told: tuple[Recorder, ...] = ()
    asked: float = 0.0
    tries: list[Try] = field(default_factory=list)

    def each(self, attempt: Attempt[T]) -> Attempt[T]:
        """Return `attempt`, every call of which is seen as a try."""

        async def watched(left: float) -> T:
            with self.one_try() as seen:
                answer = await attempt(left)
                seen.nbytes = seen.nbytes or _size(answer)
                if answer is None:  # however the filesystem says so
                    seen.status = seen.status or 404
                return answer

        return watched

    @contextmanager
    def one_try(self, nbytes: int = 0) -> Iterator[Seen]:
        """Record what happens meanwhile as one try, of which so many bytes are known."""
        seen = Seen(nbytes=nbytes)
        token = SEEN.set(seen)
        began, error = now(), ""
        try:
            yield seen
        except BaseException as problem:
            error = printable(redact(str(problem))) or type(problem).__name__
            raise
        finally:
            SEEN.reset(token)
            found = seen.first_byte, seen.status, seen.nbytes
            self.tries.append(Try(began, now(), *found, error))

    def __enter__(self) -> Self:
        self.told, self.asked = recorders, now()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.tries:  # nothing was sent
            return
        request = self.request
        record = Record(
            masked(request.shown),
            self.asked,
            tuple(self.tries),
            self.kind,
            _plain(request.extents),
            request.tail,
            CAUSE.get(),
        )
        tell(record, self.told)


@contextmanager
def watched(request: Request, kind: Kind, nbytes: int = 0) -> Iterator[None]:
    """Tell the recorders, if there are any, of what happens meanwhile, as one try of `request`."""
    if not recorders:
        yield
        return
    with Watch(request, kind) as watch, watch.one_try(nbytes):
        yield


def _plain(extents: Sequence[tuple[int, int]] | None) -> tuple[tuple[int, int | None], ...] | None:
    if extents is None:
        return None
    return tuple((start, None if stop >= END else stop) for start, stop in extents)


def _size(answer: object) -> int:
    """Return how many bytes an answer has; they are not seen on their way everywhere."""
    return sum(len(part or b"") for part in answer.parts) if isinstance(answer, Answer) else 0
