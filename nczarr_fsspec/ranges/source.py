"""The seam between formats and one file: byte ranges go in, bytes come out.

As with `nczarr_fsspec.keystore` there are two kinds, because the fastest way to
read them differs: a `LocalBytes` answers at once in the calling thread, a
`RemoteBytes` answers from an event loop, so that many requests wait together.
All bytes of one source belong to one version of the file: if it changes while
it is read, that is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import OnLoop
from nczarr_fsspec.local_files import FileRange
from nczarr_fsspec.transport.request import Extent, FileVersion, Stamp

#: What the first request of a remote file asks for: most metadata are there.
HEAD_BYTES = 1 << 16


class Known(NamedTuple):
    """A version of a file that was opened before: its ``size`` and ``validator``."""

    size: int
    validator: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What is known of the way to a file; the planner of requests goes by it.

    Parameters
    ----------
    concurrency
        Requests in flight at most.
    ranges
        Extents that one request may name; 1 if the server answers one at a time.
    latency
        Seconds from a request to the first byte of its answer, the least seen.
    bandwidth
        Bytes per second of one connection, the most seen.
    """

    concurrency: int = 64
    ranges: int = 1
    latency: float = 0.05
    bandwidth: float = 50e6


class ByteSource(ABC):
    """One version of one file. Picklable and safe in threads.

    Attributes
    ----------
    url : str
        How messages and ``encoding["source"]`` name the file; free of secrets.
    size : int
        Of the file, in bytes.
    validator : str
        What distinguishes this version of the file from others (an entity tag, a time
        and a size); ``""`` if nothing does.
    head : bytes
        The first bytes of the file, as many as opening it brought.
    """

    url: str
    size: int
    validator: str
    head: bytes

    @property
    def stamp(self) -> Stamp:
        """What is kept of this version for later."""
        return FileVersion.known(self.size, self.validator).stamp

    def close(self) -> None:
        """Release handles. The source reopens by itself if it is used again."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def beyond(source: ByteSource, start: int, stop: int) -> StoreError:
    """Return the error for bytes that a file does not have."""
    return StoreError(
        source.url, f"bytes {start}-{stop} are beyond the end of the file ({source.size} bytes)"
    )


class LocalBytes(ByteSource):
    """A file whose reads are quick and run in the calling thread."""

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes | memoryview:
        """Return the bytes ``[start, stop)``, all of them.

        Raises
        ------
        StoreError
            If they cannot be read, or the file is shorter.
        """

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes from `start` on, without a copy where that can be."""
        buffer[:] = self.read(start, start + len(buffer))

    def verify(self) -> bool:
        """Tell whether bytes read before are still those of the file.

        Returns
        -------
        False if that cannot be told.

        Raises
        ------
        StoreError
            If the file is another version than the one that was opened.
        """
        return False

    def read_many(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Sequence[bytes | memoryview]:
        """Read bytes for each pair of `starts` and `stops`."""
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def ranges(self, starts: Sequence[int], stops: Sequence[int]) -> Iterator[FileRange] | None:
        """Return the ranges of a file that `read_many` would read, to be copied; None without one.

        The last step of the iteration checks that the file has not changed meanwhile.
        """
        return None


class RemoteBytes(ByteSource, OnLoop):
    """A file whose reads wait for a network. Coroutines must run on `loop`.

    Attributes
    ----------
    identity : str
        What distinguishes this file, whatever its version, from all others; free of
        secrets. ``""`` if nothing does.
    tail : bytes
        The last bytes of the file, if opening it brought these instead of the first.
    """

    identity: str = ""
    tail: bytes = b""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """What is known by now of the way to the file."""

    @abstractmethod
    async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
        """Return the bytes of each extent, all of them, by one request where the server can.

        Parameters
        ----------
        extents
            Ascending, apart from each other, none empty, none beyond the end;
            at most ``limits.ranges`` (more are asked for in several requests).

        Raises
        ------
        StoreError
            If they cannot be read, or the file is not the one that was opened.
        """
