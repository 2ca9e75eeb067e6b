"""A dataset in a zip archive, read member by member: never unpacked, never downloaded whole."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

from nczarr_fsspec.concurrency import Once, at_once
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import ALL, KeyStore, RemoteStore, StoreAtHand
from nczarr_fsspec.ranges.local import CHANGED, LocalFileBytes, MemoryBytes, open_file_object
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.stores.zipformat import TAIL_BYTES, Archive, Plan, advance, answer, read_archive
from nczarr_fsspec.transport.request import Extent

T = TypeVar("T")

#: what an archive on this machine is opened from
LocalSource: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | LocalBytes"
#: reads a range of an archive, at once
Read: TypeAlias = Callable[[int, int], bytes]
#: bytes from which a member is unpacked in a thread, and not on the event loop
_HEAVY = 64 * 1024


class _Members(KeyStore):
    """The members of an archive, wherever it is."""

    steady = True

    @abstractmethod
    async def _open(self) -> Archive:
        """Return the directory of the archive, which is read once."""

    @abstractmethod
    async def _answer(self, plan: Plan[T]) -> T:
        """Run `plan` with reads of the archive."""

    @abstractmethod
    async def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)`` of the archive, or those up to its end."""

    async def fetch(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        archive = await self._open()
        whole = isinstance(self, RemoteStore)  # there, a request is dear
        return await self._answer(archive.read(key, part, most, whole=whole))

    async def divisible(self, keys: Iterable[str]) -> bool:
        return (await self._open()).divides(keys)

    async def names(self, prefix: str) -> frozenset[str]:
        return (await self._open()).children.get(prefix, frozenset())

    @property
    def directory(self) -> str:
        """Where in the archive the dataset is, with a slash; ``""`` if that is its top."""
        return self.archive.directory

    @property
    def archive(self) -> Archive:
        """The members of the dataset, and what is beside it."""
        return self.run(self._open())

    def contents(self) -> str:
        return self.archive.digest()


class ZipStore(_Members, StoreAtHand):
    """An archive on this machine.

    Parameters
    ----------
    source
        Path or content, or what `open_file_object` takes: a binary file is left open by `close`,
        and keeps the store from being pickled.
    url
        How messages name it; by default the path.
    """

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
        self._opened: tuple[Read, Archive] | None = None
        # of the file at a path; what is read after `close`, or by a pickled copy, insists on it
        self._version = ""

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        # as `fetch`, which takes 2.5 µs more, a tenth of a small member
        read, archive = self._file()
        return answer(archive.read(key, part, most, whole=False), read)

    def list(self, prefix: str) -> frozenset[str]:
        return at_once(self.names(prefix))

    def close(self) -> None:
        self._opened = None  # the file closes with the last read that is under way

    async def _open(self) -> Archive:
        return self._file()[1]

    def _file(self) -> tuple[Read, Archive]:
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

    async def _answer(self, plan: Plan[T]) -> T:
        return answer(plan, self._file()[0])

    async def read(self, start: int, stop: int) -> bytes:
        return self._file()[0](start, stop)

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"max_metadata": self.max_metadata, "_version": self._version}
        return type(self), (self._source, self.url), state


def _reading(source: LocalBytes) -> Read:
    """Return a function that reads a range of `source`, or what there is of it."""
    size = source.size
    return lambda start, stop: bytes(source.read(min(start, size), min(max(start, stop), size)))


class RemoteZipStore(_Members, RemoteStore):
    """An archive behind a network: one request for its directory, one for each member.

    Parameters
    ----------
    source
        The archive, opened best with its last `TAIL_BYTES`.
    """

    get = _Members.fetch
    list = _Members.names
    divides = _Members.divisible

    def __init__(self, source: RemoteBytes) -> None:
        self.source = source
        self.url = source.url
        self._tail = b""  # the last bytes of the archive
        self._opened: Archive | None = None
        self._opening: Once[Archive] = Once()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.source.loop

    async def _answer(self, plan: Plan[T]) -> T:
        wanted, result = advance(plan)
        while wanted is not None:
            data = await self.read(*wanted)
            if len(data) < _HEAVY:
                wanted, result = advance(plan, data)
            else:
                wanted, result = await asyncio.to_thread(advance, plan, data)
        return cast("T", result)

    def close(self) -> None:
        self._opened, self._tail = None, b""
        self.source.close()

    async def _open(self) -> Archive:
        opened = self._opened
        if opened is None:  # read once, however many ask at a time
            opened = self._opened = await self._opening.ask(self._read_directory)
        return opened

    async def _read_directory(self) -> Archive:
        source = self.source
        size, tail = source.size, source.tail or source.head[: source.size]
        if len(tail) < min(size, TAIL_BYTES):
            tail = await self.read(max(0, size - TAIL_BYTES), size)
        self._tail = tail
        return await self._answer(read_archive(self.url, size, tail))

    async def read(self, start: int, stop: int) -> bytes:
        tail = self._tail
        held, stop = self.source.size - len(tail), min(stop, self.source.size)
        if start >= stop:
            return b""
        if start >= held:
            return tail[start - held : stop - held]
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
