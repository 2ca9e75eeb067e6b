"""A dataset in a zip archive, read member by member: never unpacked, never downloaded whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import LocalStore, RemoteStore
from nczarr_fsspec.ranges.local import LocalFileBytes, MemoryBytes
from nczarr_fsspec.ranges.open import open_file_object
from nczarr_fsspec.ranges.source import LocalBytes
from nczarr_fsspec.stores.zipformat import TAIL_BYTES, Archive, advance, answer, read_archive

#: what costs the event loop more to unpack than to hand to a thread, in bytes
_HEAVY = 64 * 1024


class ZipStore(LocalStore):
    """An archive on this machine.

    Parameters
    ----------
    source
        Path or content, or what `open_file_object` takes: a binary file is left open by `close`,
        and keeps the store from being pickled.
    url
        How messages name it; by default the path.
    """

    steady = True

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | BinaryIO | LocalBytes,
        url: str | None = None,
    ) -> None:
        self._source: str | LocalBytes
        if isinstance(source, (str, os.PathLike)):
            self._source = os.path.abspath(os.fspath(source))
        elif isinstance(source, bytes):
            self._source = MemoryBytes(source, url or "zip archive")
        elif isinstance(source, LocalBytes):
            self._source = source
        else:
            self._source = open_file_object(source, url or "zip archive")
        self.url = url or (self._source if isinstance(self._source, str) else self._source.url)
        self._lock = ProcessLock()
        self._opened: tuple[Callable[[int, int], bytes], Archive] | None = None

    def get(
        self,
        key: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        read, archive = self._open()
        return answer(archive.read(key, start, stop, most, whole=False), read)

    @property
    def directory(self) -> str:
        """Where in the archive the dataset is, with a slash; ``""`` if that is its top."""
        return self._open()[1].directory

    def list(self, prefix: str) -> frozenset[str]:
        return self._open()[1].children.get(prefix, frozenset())

    def contents(self) -> str:
        return self._open()[1].digest()

    def close(self) -> None:
        self._opened = None  # the file closes with the last read that is under way

    def _open(self) -> tuple[Callable[[int, int], bytes], Archive]:
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened
                if opened is None:
                    source = self._source
                    if isinstance(source, str):
                        source = LocalFileBytes(source, self.url)
                    read = _reading(source)
                    opened = read, answer(read_archive(self.url, source.size), read)
                    self._opened = opened
        return opened

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._source, self.url), {"max_metadata": self.max_metadata}


class RemoteFiles(Protocol):
    """What a remote archive needs of the place it is in."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def describe(self, path: str) -> str: ...
    async def read(
        self, path: str, start: int | None = None, stop: int | None = None
    ) -> bytes | None: ...
    async def read_tail(self, path: str, count: int) -> tuple[bytes, int] | None: ...
    def close(self) -> None: ...


class RemoteZipStore(RemoteStore):
    """An archive behind a network: one request for its directory, one for each member.

    Parameters
    ----------
    files, path
        Where the archive is.
    url
        How messages name it, where that is not plain from `path`.
    """

    steady = True

    def __init__(self, files: RemoteFiles, path: str, url: str | None = None) -> None:
        self._files = files
        self._path = path
        self.url = url or files.describe(path)
        self._opened: tuple[Archive, bytes, int] | None = None
        self._opening: asyncio.Future[tuple[Archive, bytes, int]] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._files.loop

    async def get(
        self,
        key: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        archive, tail, size = await self._open()
        plan = archive.read(key, start, stop, most, whole=True)
        wanted, content = advance(plan)
        while wanted is not None:
            begin, end = wanted
            held = size - len(tail)
            if begin >= held:
                data = tail[begin - held : end - held]
            else:
                data = await self._read(begin, end)
            if len(data) < _HEAVY:
                wanted, content = advance(plan, data)
            else:
                wanted, content = await asyncio.to_thread(advance, plan, data)
        return content

    @property
    def directory(self) -> str:
        """Where in the archive the dataset is, with a slash; ``""`` if that is its top."""
        return self.run(self._open())[0].directory

    async def list(self, prefix: str) -> frozenset[str]:
        return (await self._open())[0].children.get(prefix, frozenset())

    def contents(self) -> str:
        return self.run(self._open())[0].digest()

    def close(self) -> None:
        self._opened = None
        self._files.close()

    async def _open(self) -> tuple[Archive, bytes, int]:
        """The archive, its last bytes and its size; read once, however many ask at a time."""
        opened = self._opened
        if opened is None:
            opening = self._opening
            # after a fork, the one under way belongs to a loop that does not run here
            if opening is None or opening.get_loop() is not asyncio.get_running_loop():
                opening = self._opening = asyncio.ensure_future(self._read_directory())
            try:
                opened = self._opened = await asyncio.shield(opening)
            finally:
                if opening.done():
                    self._opening = None
        return opened

    async def _read_directory(self) -> tuple[Archive, bytes, int]:
        found = await self._files.read_tail(self._path, TAIL_BYTES)
        if found is None:
            raise DatasetNotFoundError(self.url, "there is no such file")
        tail, size = found
        plan = read_archive(self.url, size, tail)
        wanted, archive = await asyncio.to_thread(advance, plan)
        while wanted is not None:
            data = await self._read(*wanted)
            wanted, archive = await asyncio.to_thread(advance, plan, data)
        assert archive is not None
        return archive, tail, size

    async def _read(self, start: int, stop: int) -> bytes:
        data = await self._files.read(self._path, start, stop) if start < stop else b""
        if data is None:
            raise StoreError(self.url, "the archive has disappeared")
        return data

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._files, self._path, self.url
        return type(self), arguments, {"max_metadata": self.max_metadata}


def _reading(source: LocalBytes) -> Callable[[int, int], bytes]:
    """A function that reads a range of `source`, or what there is of it."""
    size = source.size
    return lambda start, stop: bytes(source.read(min(start, size), min(max(start, stop), size)))
