"""A dataset in a zip archive, read member by member: never unpacked, never downloaded whole."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError
from nczarr_fsspec.keystore import LocalStore, RemoteStore
from nczarr_fsspec.stores._zipformat import TAIL_BYTES, Archive, advance, answer, read_archive
from nczarr_fsspec.stores.directory import OPEN_FLAGS, read_at

#: what costs the event loop more to unpack than to hand to a thread, in bytes
_HEAVY = 64 * 1024


class ZipStore(LocalStore):
    """An archive on this machine.

    Parameters
    ----------
    source
        Path or content, or a binary file; a file is left open by `close`, and
        keeps the store from being pickled.
    url
        How messages name it; by default the path.
    """

    def __init__(
        self, source: str | os.PathLike[str] | bytes | BinaryIO, url: str | None = None
    ) -> None:
        if isinstance(source, (str, os.PathLike)):
            source = os.path.abspath(os.fspath(source))
        self._source = source
        self.url = url or (source if isinstance(source, str) else "zip archive")
        self._lock = threading.Lock()
        self._opened: tuple[_Read, Archive] | None = None

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        read, archive = self._open()
        return answer(archive.read(key, start, stop, whole=False), read)

    def list(self, prefix: str) -> frozenset[str]:
        return self._open()[1].children.get(prefix, frozenset())

    def close(self) -> None:
        self._opened = None  # the file closes with the last read that is under way

    def _open(self) -> tuple[_Read, Archive]:
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened
                if opened is None:
                    read, size = _open_source(self.url, self._source)
                    opened = read, answer(read_archive(self.url, size), read)
                    self._opened = opened
        return opened

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._source, self.url)


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
        self, key: str, start: int | None = None, stop: int | None = None
    ) -> bytes | None:
        archive, tail, size = await self._open()
        plan = archive.read(key, start, stop, whole=True)
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

    async def list(self, prefix: str) -> frozenset[str]:
        return (await self._open())[0].children.get(prefix, frozenset())

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
        return type(self), (self._files, self._path, self.url)


_Read = Callable[[int, int], bytes]


class _LocalFile:
    """An open file that closes when the last reference to it goes, not under a reader."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, OPEN_FLAGS)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, stop: int) -> bytes:
        return read_at(self._descriptor, start, stop)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _open_source(url: str, source: str | bytes | BinaryIO) -> tuple[_Read, int]:
    """A function that reads a range of `source`, and its size."""
    if isinstance(source, bytes):
        content = source
        return (lambda start, stop: content[start:stop]), len(content)
    try:
        if isinstance(source, str):
            local = _LocalFile(source)
            return _guarded(url, local.read), local.size
        file, lock = source, threading.Lock()

        def read(start: int, stop: int) -> bytes:
            with lock:
                file.seek(start)
                return file.read(max(stop - start, 0))

        return _guarded(url, read), file.seek(0, os.SEEK_END)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetNotFoundError(url, "there is no such file") from error
    except (OSError, ValueError) as error:
        raise StoreError(url, f"cannot be opened: {error}") from error


def _guarded(url: str, read: _Read) -> _Read:
    def guarded(start: int, stop: int) -> bytes:
        try:
            return read(start, stop)
        except (OSError, ValueError) as error:
            raise StoreError(url, f"cannot be read: {error}") from error

    return guarded
