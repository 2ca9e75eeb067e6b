"""One file behind a network, by any transport: all bytes are of the version that was opened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from nczarr_fsspec.concurrency import Coalescer, Question, gather_or_cancel
from nczarr_fsspec.errors import DatasetNotFoundError, NCZarrError, StoreError
from nczarr_fsspec.ranges.local import LocalFileBytes, MemoryBytes
from nczarr_fsspec.ranges.planner import Integers
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import HEAD_BYTES, Known, Limits, LocalBytes, RemoteBytes, beyond
from nczarr_fsspec.transport import open_transport
from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.filesystems import describe, kind_of
from nczarr_fsspec.transport.policy import MAX_WHOLE, RequestLimits, Timeout
from nczarr_fsspec.transport.request import (
    END,
    FASTEST,
    Answer,
    Data,
    Extent,
    FileVersion,
    Request,
    ServerState,
    Stamp,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_Questions: TypeAlias = list[Question[Extent, memoryview]]
_UNKNOWN = Limits()
_NOTHING = FileVersion()
#: limits for what is in memory
_HELD = Limits(concurrency=64, ranges=1 << 16, latency=1e-6, bandwidth=FASTEST)


class RemoteFileBytes(RemoteBytes):
    """One version of a file of any `Transport`. Begun by `begin`, or `unasked`.

    A server that ignores ranges sends the whole file: that answer is kept in memory.

    Parameters
    ----------
    transport
        The connections.
    path
        The file's, with its secrets.
    url
        How messages name the file.
    max_whole
        Bytes to keep in memory at most.
    """

    head: bytes = b""

    def __init__(self, transport: Transport, path: str, url: str, max_whole: int) -> None:
        self.transport = transport
        self._path = path
        self.url = url
        self._server = ServerState(transport.ranges, max_whole)
        self._version = FileVersion()
        self.size = -1
        self.validator = ""

    def unasked(self) -> Self:
        """Wait for no answer: the first one tells the version. Until then, `size` is `END`."""
        self.size = END
        return self

    def beside(self, name: str) -> Self:
        """Return the file of this name in the same folder; nothing is asked yet.

        The path of the file, and its URL, have to end with its own name.
        """
        path, url = (f"{text.rpartition('/')[0]}/{name}" for text in (self._path, self.url))
        return type(self)(self.transport.again(), path, url, self._server.max_whole)

    @property
    def location(self) -> tuple[AbstractFileSystem, str]:
        """A filesystem like the one in use, and the path in it."""
        return self.transport.recipe, self._path

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.transport.loop

    @property
    def led(self) -> str:
        return self.transport.led

    @property
    def limits(self) -> Limits:
        server = self._server
        if server.whole is not None:
            return _HELD
        return Limits(
            self.transport.throttle(self._path).limit,
            server.ranges,
            _UNKNOWN.latency if server.latency is None else server.latency,
            _UNKNOWN.bandwidth if server.bandwidth is None else server.bandwidth,
        )

    @property
    def stamp(self) -> Stamp:
        return self._version.stamp

    async def ask(self) -> Stamp:
        """Ask which version there is now, on the loop; the file need not be open.

        Raises
        ------
        DatasetNotFoundError, StoreError
            As `open_source`.
        """
        request = Request(self._path, self.url, [Extent(0, 1)])
        return self._found(await self.transport.fetch(request)).version.stamp

    async def fetch(self, extents: Sequence[Extent]) -> list[Data]:
        limit = self._server.ranges
        if self._server.whole is not None:
            whole = memoryview(self._server.whole)
            return [whole[start:stop] for start, stop in extents]
        batches = [extents[at : at + limit] for at in range(0, len(extents), limit)]
        found = await gather_or_cancel(*map(self._fetch, batches))
        return [data for batch in found for data in batch]

    async def fetch_all(self, most: int | None = None) -> Data:
        """Return all of the file, `TooLargeError` if that is more than `most` bytes."""
        request = Request(self._path, self.url, most=most)
        answer = self._found(await self.transport.fetch(request))
        self._learn(answer.version)
        return answer.parts[0] or b""

    def close(self) -> None:
        self._server.whole = None
        self.tail = b""
        self.transport.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("head", "tail")
        }

    async def begin(self, known: Known | None, tail: int = 0) -> None:
        """Ask for the first bytes, on the loop; from the answer come size and version, too.

        Parameters
        ----------
        known
            The version of which the caller has the metadata. If the file still is that one, HTTP
            and S3 answer without a ``head``.
        tail
            How many of its last bytes to ask for, instead of the first.

        Raises
        ------
        DatasetNotFoundError, StoreError
            As `open_source`; the file is closed.
        """
        unless = FileVersion.known(*known) if known is not None and known.validator else None
        extents = None if tail else [Extent(0, HEAD_BYTES)]
        fetch = self.transport.fetch
        try:
            request = self._request(extents=extents, tail=tail, unless=unless)
            answer = self._found(await fetch(request))
            version = answer.version
            if version.size < 0:
                request = self._request(extents=(), version=version)
                version = self._found(await fetch(request)).version
        except BaseException:
            self.close()
            raise
        self._version, self.size, self.validator = version, version.size, version.validator
        begin = self._server.whole or (bytes(answer.parts[0] or b"") if answer.parts else b"")
        if tail:
            self.tail = begin[-tail:]
        else:
            self.head = begin[:HEAD_BYTES]
        if self.head and not min(self.size, HEAD_BYTES) <= len(self.head) <= self.size:
            self.head = b""  # cut, by a server that did not say how long it would be

    async def _fetch(self, extents: Sequence[Extent]) -> list[Data]:
        """Return the bytes of `extents` by one request; what that does not bring, by others."""
        version = None if self._version == _NOTHING else self._version
        request = self._request(extents=extents, version=version)
        answer = self._found(await self.transport.fetch(request))
        self._learn(answer.version)
        lacking = [
            extent for extent, data in zip(extents, answer.parts, strict=True) if data is None
        ]
        if lacking and len(extents) > 1:  # or one of them would come with each request in turn
            self._server.ranges = 1
        rest = iter(await self.fetch(lacking) if lacking else [])
        found = [next(rest) if data is None else data for data in answer.parts]
        for (start, stop), data in zip(extents, found, strict=True):
            if len(data) != stop - start:
                raise StoreError(self.url, f"{len(data)} bytes came of {start}-{stop - 1}")
        return found

    def _learn(self, version: FileVersion) -> None:
        """Add what an answer says of the version, which must be the same one."""
        if version != _NOTHING:
            self._version = self._version.agreeing(version, self.url)
        if self.size == END and self._version.size >= 0:
            self.size, self.validator = self._version.size, self._version.validator

    def _request(self, **asked: Any) -> Request:
        return Request(self._path, self.url, server=self._server, **asked)

    def _found(self, answer: Answer | None) -> Answer:
        if answer is None:
            gone = "the file has disappeared" if 0 <= self.size < END else ""
            raise DatasetNotFoundError(self.url, gone or f"there is no such {self.transport.noun}")
        return answer


def open_source(
    fs: AbstractFileSystem,
    path: str,
    shown: str | None = None,
    *,
    known: Known | None = None,
    max_whole: int = MAX_WHOLE,
    timeout: Timeout | None = None,
    tail: int = 0,
) -> RemoteFileBytes | LocalBytes:
    """Open one file for checked reads of byte ranges; a remote one with one request.

    Parameters
    ----------
    fs
        Any fsspec filesystem; used as a recipe only (`SharedFilesystem`).
    path
        In `fs`, without protocol; for HTTP the URL.
    shown
        How messages name the file; by default its URL without secrets.
    known, tail
        See `nczarr_fsspec.ranges.remote.RemoteFileBytes.begin`.
    max_whole
        Bytes of a file that may be kept in memory if its server does not serve ranges.
    timeout
        Of each request, if not what `fs` says.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file, or it is a directory.
    StoreError
        If it cannot be read.
    """
    limits = RequestLimits(timeout=timeout, max_whole=max_whole)
    source = source_at_once(fs, path, shown, limits)
    if not isinstance(source, LocalBytes):
        source.run(source.begin(known, tail))
    return source


def source_at_once(
    fs: AbstractFileSystem,
    path: str,
    shown: str | None,
    limits: RequestLimits,
) -> RemoteFileBytes | LocalBytes:
    """Return one file as `open_source` does, but for a remote one: it is asked nothing yet."""
    shown = shown or describe(fs, path)
    if kind_of(fs) == "s3" and "/" not in path.strip("/"):
        raise DatasetNotFoundError(shown, "is a bucket, not a file")
    if kind_of(fs) == "local":
        return LocalFileBytes(fs._strip_protocol(path), shown)
    if kind_of(fs) == "memory":
        return _open_memory(fs, path, shown)
    return RemoteFileBytes(open_transport(fs, limits), path, shown, limits.max_whole)


def _open_memory(fs: AbstractFileSystem, path: str, shown: str) -> LocalBytes:
    try:
        created = fs.info(path).get("created", "")
        data = fs.cat_file(path)
        return MemoryBytes(data, shown, f"{created};{len(data)}")
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(shown, "there is no such file") from None
    except IsADirectoryError:
        raise DatasetNotFoundError(shown, "is a directory, not a file") from None


class Batches:
    """Reads one file: what is wanted of it in one turn of the event loop is asked for together.

    Parameters
    ----------
    file
        Its size need not be known; then one of the first answers tells it.
    """

    def __init__(self, file: RemoteBytes) -> None:
        self.file = file
        self._reader = RangeReader(file)
        self._parts: Coalescer[Extent, memoryview] = Coalescer(self._fetch)

    async def read(self, start: int, stop: int) -> memoryview:
        """Return the bytes ``[start, stop)``.

        Raises
        ------
        StoreError
            If they are not in the file, or cannot be read.
        """
        return await self._parts.ask(Extent(start, stop))

    async def _fetch(self, questions: _Questions) -> None:
        while questions := [one for one in questions if one.wanted]:
            size = self.file.size
            try:
                await self._read(questions)
            except NCZarrError as error:
                if self.file.size == END and len(questions) > 1:
                    await self._fetch_first(questions)
                    continue
                # a part that is beyond the end must not take the others with it
                outside = [one for one in questions if one.wish.stop > self.file.size]
                again = self.file.size != size or outside
                for one in outside if again else questions:
                    one.fail(beyond(self.file, *one.wish) if again else error)

    async def _fetch_first(self, questions: _Questions) -> None:
        """Fetch the part that starts first, after a request failed while the size was unknown.

        The failed part may be beyond the end, and the answer that tells the size still under
        way.  Parts start nowhere before the first: if that one fails too, all others do.
        """
        try:
            await self._read([min(questions, key=lambda one: one.wish.start)])
        except NCZarrError as error:
            if self.file.size == END:
                for one in questions:
                    one.fail(error)

    async def _read(self, questions: _Questions) -> None:
        async def receive(numbers: Integers, parts: list[memoryview]) -> None:
            for number, data in zip(numbers.tolist(), parts, strict=True):
                questions[number].settle(data)

        starts, stops = np.array([one.wish for one in questions], dtype=np.int64).T
        await self._reader.read_data(starts, stops, receive)
