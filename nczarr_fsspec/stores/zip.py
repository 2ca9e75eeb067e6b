"""A dataset in a zip archive, read member by member: never unpacked, never downloaded whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

from nczarr_fsspec.concurrency import Once
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import ALL, LocalStore, RemoteStore
from nczarr_fsspec.ranges.local import CHANGED, LocalFileBytes, MemoryBytes, open_file_object
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.stores.zipformat import TAIL_BYTES, Archive, Plan, advance, answer, read_archive
from nczarr_fsspec.transport.request import Extent

T = TypeVar("T")

#: what an archive on this machine is opened from
LocalSource: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | LocalBytes"
#: bytes from which a member is unpacked in a thread, and not on the event loop
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
        source: LocalSource,
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
        # of the file at a path; what is read after `close`, or by a pickled copy, insists on it
        self._version = ""

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        read, archive = self._open()
        return answer(archive.read(key, part, most, whole=False), read)

    def divides(self, keys: Iterable[str]) -> bool:
        return self._open()[1].divides(keys)

    @property
    def directory(self) -> str:
        """Where in the archive the dataset is, with a slash; ``""`` if that is its top."""
        return self.archive.directory

    @property
    def archive(self) -> Archive:
        """The members of the dataset, and what is beside it."""
        return self._open()[1]

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
                        if self._version not in ("", source.validator):
                            raise StoreError(self.url, CHANGED)
                    read = _reading(source)
                    opened = read, answer(read_archive(self.url, source.size), read)
                    self._opened, self._version = opened, source.validator
        return opened

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"max_metadata": self.max_metadata, "_version": self._version}
        return type(self), (self._source, self.url), state


class RemoteZipStore(RemoteStore):
    """An archive behind a network: one request for its directory, one for each member.

    Parameters
    ----------
    source
        The archive, opened best with its last `TAIL_BYTES`.
    """

    steady = True

    def __init__(self, source: RemoteBytes) -> None:
        self.source = source
        self.url = source.url
        self._opened: tuple[Archive, bytes] | None = None
        self._opening: Once[tuple[Archive, bytes]] = Once()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.source.loop

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        archive, tail = await self._open()
        return await self._answer(archive.read(key, part, most, whole=True), tail)

    async def divides(self, keys: Iterable[str]) -> bool:
        return (await self._open())[0].divides(keys)

    async def _answer(self, plan: Plan[T], tail: bytes) -> T:
        """Run `plan` with reads of the source and of its last bytes, which are here."""
        held = self.source.size - len(tail)
        wanted, result = advance(plan)
        while wanted is not None:
            begin, end = wanted
            if begin >= held:
                data = tail[begin - held : end - held]
            else:
                data = await self.read(begin, end)
            if len(data) < _HEAVY:
                wanted, result = advance(plan, data)
            else:
                wanted, result = await asyncio.to_thread(advance, plan, data)
        return cast("T", result)

    @property
    def directory(self) -> str:
        """Where in the archive the dataset is, with a slash; ``""`` if that is its top."""
        return self.archive.directory

    @property
    def archive(self) -> Archive:
        """The members of the dataset, and what is beside it."""
        return self.run(self._open())[0]

    async def list(self, prefix: str) -> frozenset[str]:
        return (await self._open())[0].children.get(prefix, frozenset())

    def contents(self) -> str:
        return self.archive.digest()

    def close(self) -> None:
        self._opened = None
        self.source.close()

    async def _open(self) -> tuple[Archive, bytes]:
        """Return the archive and its last bytes; read once, however many ask at a time."""
        opened = self._opened
        if opened is None:
            opened = self._opened = await self._opening.ask(self._read_directory)
        return opened

    async def _read_directory(self) -> tuple[Archive, bytes]:
        source = self.source
        tail = source.tail or source.head[: source.size]
        if len(tail) < min(source.size, TAIL_BYTES):
            tail = await self.read(max(0, source.size - TAIL_BYTES), source.size)
        return await self._answer(read_archive(self.url, source.size, tail), tail), tail

    async def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)`` of the archive, or those up to its end."""
        stop = min(stop, self.source.size)
        if start >= stop:
            return b""
        (data,) = await self.source.fetch([Extent(start, stop)])
        return bytes(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source,), {"max_metadata": self.max_metadata}


def open_archive(
    source: RemoteBytes | LocalSource, url: str | None = None
) -> RemoteZipStore | ZipStore:
    """Return the store of an archive.

    Parameters
    ----------
    source, url
        As of `ZipStore`; or a remote archive, which has a name already.

    Raises
    ------
    StoreError
        If its directory cannot be read, or it holds no dataset.
    """
    store: RemoteZipStore | ZipStore
    store = RemoteZipStore(source) if isinstance(source, RemoteBytes) else ZipStore(source, url)
    (found,) = store.list_many([""])
    if isinstance(found, StoreError):
        store.close()
        raise found
    return store


def _reading(source: LocalBytes) -> Callable[[int, int], bytes]:
    """Return a function that reads a range of `source`, or what there is of it."""
    size = source.size
    return lambda start, stop: bytes(source.read(min(start, size), min(max(start, stop), size)))
