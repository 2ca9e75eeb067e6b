"""Watches one request, all its tries, for those that record requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

from nczarr_fsspec.places.url import redact
from nczarr_fsspec.text import printable
from nczarr_fsspec.transport import recording
from nczarr_fsspec.transport.recording import CAUSE, SEEN, Kind, Record, Recorder, Seen, Try
from nczarr_fsspec.transport.request import END, Answer, Request
from nczarr_fsspec.transport.throttle import Attempt

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
        began, error = recording.now(), ""
        try:
            yield seen
        except BaseException as problem:
            error = printable(redact(str(problem))) or type(problem).__name__
            raise
        finally:
            SEEN.reset(token)
            found = seen.first_byte, seen.status, seen.nbytes
            self.tries.append(Try(began, recording.now(), *found, error))

    def __enter__(self) -> Self:
        self.told, self.asked = recording.recorders, recording.now()
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
        recording.tell(record, self.told)


@contextmanager
def watched(request: Request, kind: Kind, nbytes: int = 0) -> Iterator[None]:
    """Tell the recorders, if there are any, of what happens meanwhile, as one try of `request`."""
    if not recording.recorders:
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
