"""Kerchunk references as the keys of a dataset: bytes inside, or extents of other files.

The files are read as any other, by `nczarr_fsspec.ranges`: all bytes of a file are of one version
as long as its source is remembered, requests to a host are bounded and tried again, and what is
wanted of a file at a time is asked for together.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from nczarr_fsspec.concurrency import Once, at_once, gather_or_cancel
from nczarr_fsspec.errors import ChangedError, NCZarrError, StoreError, too_large
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import ALL, KeyStore, RemoteStore, StoreAtHand, check_key
from nczarr_fsspec.ranges.local import CHANGED
from nczarr_fsspec.ranges.remote import Batches, RemoteFileBytes
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes, RemoteBytes, beyond
from nczarr_fsspec.stores.referencefolder import MAX_FILE, FolderReferences, Rows
from nczarr_fsspec.stores.referenceformat import (
    CONSOLIDATED,
    MAX_JSON,
    JSONReferences,
    Part,
    References,
    Row,
)
from nczarr_fsspec.transport.request import Extent, Stamp
from nczarr_fsspec.transport.shared import background_loop

T = TypeVar("T")

#: Where references are: one file of JSON, a folder of Parquet, or a mapping of the caller.
Origin: TypeAlias = ByteSource | KeyStore | Mapping[str, Any]
#: A file that references name, open.
File: TypeAlias = LocalBytes | RemoteFileBytes

#: Files that are kept open, on this machine and elsewhere.
OPEN_HERE = 128
OPEN_ELSEWHERE = 1 << 14
#: Files of references that are remembered, for one dataset.
MOST_FOLDER_FILES = 64
#: Files of references that are looked at to find out where most files are.
_LOOKED_AT = 16
#: References whose bytes are asked for together.
_TOGETHER = 4096


#: The references of this process; copies of a store that come by pickle share them.
_shared: WeakValueDictionary[str, References] = WeakValueDictionary()
#: Those that copies have read last: dask may make a copy for each task.
_last_read: deque[References] = deque(maxlen=2)


class Opener(Protocol):
    """Opens the files that references name. Picklable.

    Attributes
    ----------
    moves
        Whether files have moved since: a copy has another time, and of versions only the size.
    """

    @property
    def moves(self) -> bool: ...

    def open(self, address: str) -> File:
        """Open a file; of one behind a network, nothing is asked yet.

        Raises
        ------
        NCZarrError
            If there is none, or the references may not name it.
        """


class _Keys(KeyStore):
    """The keys of a set of references.

    Parameters
    ----------
    origin
        Where the references are.
    opener
        Opens the files that they name.
    token
        Identifies these references, in all copies of the store.
    references
        What is there, if that was read already.
    """

    steady = True
    elsewhere = True

    def __init__(
        self,
        origin: Origin,
        opener: Opener,
        token: str | None = None,
        references: References | None = None,
    ) -> None:
        self.url = "references" if isinstance(origin, Mapping) else origin.url
        self.origin = origin
        self._opener = opener
        self._token = token or secrets.token_hex()
        self._is_copy = token is not None
        self._lock = ProcessLock()
        self._references = references
        self._files: OrderedDict[str, File] = OrderedDict()
        self._versions: dict[str, str] = {}
        self._rows: OrderedDict[str, Rows] = OrderedDict()

    def contents(self) -> str:
        if isinstance(self.origin, ByteSource):
            return f"{self.origin.size} {self.origin.validator}"
        if isinstance(self.origin, KeyStore):
            return hashlib.sha256(repr(self.origin.get_many([CONSOLIDATED])).encode()).hexdigest()
        return self._token

    def close(self) -> None:
        with self._lock:
            files = [*self._files.values()]
            self._files.clear()
        for file in files:
            file.close()
        if not isinstance(self.origin, Mapping):
            self.origin.close()

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"max_metadata": self.max_metadata}
        return type(self), (self.origin, self._opener, self._token), state

    def _file(self, address: str) -> File:
        """Return a file that references name."""
        with self._lock:
            file = self._files.get(address)
            if file is not None:
                self._files.move_to_end(address)
                return file
        opened = self._opener.open(address)
        here = isinstance(opened, LocalBytes)
        if here:
            self._check_version(address, opened)
        with self._lock:
            if here and self._versions.setdefault(address, opened.validator) != opened.validator:
                raise StoreError(opened.url, CHANGED)
            file = self._files.setdefault(address, opened)
            # one that is dropped closes with the last read that is under way
            while len(self._files) > (OPEN_HERE if here else OPEN_ELSEWHERE):
                self._files.popitem(last=False)
        return file

    def _check_version(self, address: str, file: File) -> None:
        """Raise `ChangedError` if a file that was read is not the one that references are about."""
        if self._references is not None and address in self._references.versions:
            stamp = self._references.versions[address]
            known = Stamp(stamp.size) if self._opener.moves else stamp
            known.check(file.stamp, file.url)

    async def fetch(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        found = await self._find(key)
        if most is not None and part == ALL:
            size = found.size if isinstance(found, Part) else len(found or b"")
            if size is not None and size > most:
                raise too_large(self._named(key), most)
        if not isinstance(found, Part):
            return None if found is None else found[part]
        try:
            file = self._file(found.address)
            if isinstance(file, LocalBytes):
                start, stop = within(found, part, file)
                if most is not None and part == ALL and stop - start > most:
                    raise too_large(file.url, most)
                return bytes(file.read(start, stop))
            data = await self._read_part(file, found, part, most)
            self._check_version(found.address, file)
            return data
        except NCZarrError as error:
            raise self._explained(error, key) from error

    async def names(self, prefix: str) -> frozenset[str] | None:
        return (await self._ready()).names(prefix)

    def find_many(self, keys: Iterable[str]) -> Sequence[bytes | Part | None]:
        """Return what the references say of keys; nothing that they name is opened.

        Raises
        ------
        StoreError
            If one of them is nothing that can be read.
        """

        async def find() -> Sequence[bytes | Part | None]:
            return [await self._find(key) for key in keys]

        return self.run(find())

    async def _find(self, key: str) -> bytes | Part | None:
        found = (await self._ready()).find(check_key(key))
        if not isinstance(found, Row):
            return found
        rows = self._rows.get(found.file)
        if rows is None:
            rows = await self._once(found.file, partial(self._read_rows, found.file))
        return rows.find(found.number, self._named(key))

    async def _ready(self) -> References:
        known = self._references or _shared.get(self._token)
        if known is None:
            return await self._once("", self._load)
        self._references = known
        return known

    async def _load(self) -> References:
        origin, shown = self.origin, self.url
        known: References
        if isinstance(origin, ByteSource):
            known = await self._apart(JSONReferences.parse, await read_json(origin), shown)
        elif isinstance(origin, KeyStore):
            metadata = await origin.fetch(CONSOLIDATED, most=origin.max_metadata)
            known = FolderReferences.parse(metadata or b"", shown)
        else:
            known = JSONReferences.of(origin, shown)
        self._references = _shared.setdefault(self._token, known)
        if self._is_copy:
            _last_read.append(self._references)
        return self._references

    async def _read_rows(self, file: str) -> Rows:
        origin = self.origin
        assert isinstance(origin, KeyStore)
        data = await origin.fetch(file, most=MAX_FILE)
        origin.check_place()  # without a file of another folder, chunks would be fill values
        rows = await self._apart(Rows.parse, data, f"{self.url}/{file}")
        with self._lock:
            self._rows[file] = rows
            while len(self._rows) > MOST_FOLDER_FILES:
                self._rows.popitem(last=False)
        return rows

    @abstractmethod
    async def _once(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `make` returns, which is awaited once for all that ask at the same time."""

    @abstractmethod
    async def _apart(self, parse: Callable[[Any, str], T], data: Any, shown: str) -> T:
        """Parse much, where nothing else waits for it."""

    @abstractmethod
    async def _read_part(
        self, file: RemoteFileBytes, found: Part, part: slice, most: int | None
    ) -> bytes:
        """Return bytes of a part of a file behind a network."""

    def _named(self, key: str) -> str:
        return f"{self.url}: reference {key!r}"

    def _explained(self, error: NCZarrError, key: str) -> StoreError:
        """Return an error that also names the reference."""
        kind = type(error) if isinstance(error, StoreError) else StoreError
        advice = "; make these anew" if isinstance(error, ChangedError) else ""
        return kind(error.object, f"{error.reason} (reference {key!r} of {self.url}{advice})")


class LocalReferences(_Keys, StoreAtHand):
    """References whose files are on this machine, as far as is known. Others are waited for."""

    async def _once(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await make()

    async def _apart(self, parse: Callable[[Any, str], T], data: Any, shown: str) -> T:
        return parse(data, shown)

    async def _read_part(
        self, file: RemoteFileBytes, found: Part, part: slice, most: int | None
    ) -> bytes:
        return file.run(read_part(file, None, found, part, most))

    def get_into(self, key: str, buffer: memoryview) -> int | None:
        found = at_once(self._find(key))
        if isinstance(found, Part) and (count := found.size) is not None:
            if count > len(buffer):
                return count
            try:
                file = self._file(found.address)
                if isinstance(file, LocalBytes):
                    within(found, ALL, file)
                    file.read_into(found.start, buffer[:count])
                    return count
            except NCZarrError as error:
                raise self._explained(error, key) from error
        return super().get_into(key, buffer)

    def addresses(self) -> Iterator[str]:
        """Yield addresses of files, among them those of the first chunks of some arrays."""
        references = at_once(self._ready())
        yield from references.addresses()
        for file in islice(references.files(), _LOOKED_AT):
            with suppress(StoreError):  # an error of those that read the array
                yield from at_once(self._read_rows(file)).names

    def as_remote(self) -> RemoteReferences:
        """Return a store of the same references whose files may be behind a network."""
        return RemoteReferences(self.origin, self._opener, self._token, at_once(self._ready()))


class RemoteReferences(_Keys, RemoteStore):
    """References of which some lead to a network, or that are behind one themselves.

    All that is asked for in one turn of the event loop goes out together, in as few requests for
    each file as its `RangeReader` thinks best. That bounds what is in flight, so there may be more
    keys under way than requests.
    """

    concurrency = _TOGETHER
    get = _Keys.fetch
    list = _Keys.names

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._asking: Once[Any] = Once()
        self._batches: OrderedDict[int, Batches] = OrderedDict()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return background_loop()

    def close(self) -> None:
        self._batches = OrderedDict()  # a read that is under way goes on
        super().close()

    async def _once(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        found: T = await self._asking.ask(make, name)
        return found

    async def _apart(self, parse: Callable[[Any, str], T], data: Any, shown: str) -> T:
        return await asyncio.to_thread(parse, data, shown)

    async def _read_part(
        self, file: RemoteFileBytes, found: Part, part: slice, most: int | None
    ) -> bytes:
        batches = self._batches.get(id(file))
        if batches is None:
            batches = self._batches[id(file)] = Batches(file)
            while len(self._batches) > OPEN_ELSEWHERE:
                self._batches.popitem(last=False)
        return await read_part(file, batches, found, part, most)


#: JSON from a network comes in pieces of so many bytes.
PIECE = 1 << 23


async def read_part(
    file: RemoteFileBytes, batches: Batches | None, found: Part, which: slice, most: int | None
) -> bytes:
    """Return bytes of a part of a file behind a network, together with others if there are any."""
    if found.stop is not None:
        start, stop = within(found, which, file)
    elif which.stop is not None:  # parts of large files come again and again
        start = which.start or 0
        stop = max(start, which.stop)
    else:
        data = await file.fetch_all(most if which == ALL else None)
        return bytes(data[which])
    if start == stop:
        return b""
    if batches is not None:
        return bytes(await batches.read(start, stop))
    (data,) = await file.fetch([Extent(start, stop)])
    return bytes(data)


def within(found: Part, which: slice, file: ByteSource) -> tuple[int, int]:
    """Return the extent of a file that a slice of a part of it is."""
    start, stop = found.start, file.size if found.stop is None else found.stop
    if stop > file.size:
        raise beyond(file, start, stop)
    begin, end, _ = which.indices(stop - start)
    return start + begin, start + max(begin, end)


async def read_json(origin: ByteSource) -> bytes | memoryview:
    """Return all of a file of JSON."""
    if origin.size > MAX_JSON:
        raise StoreError(
            origin.url,
            f"has {origin.size} bytes, and references as JSON may have {MAX_JSON}; write so many "
            "of them as Parquet",
        )
    if isinstance(origin, LocalBytes):
        return origin.read(0, origin.size)
    assert isinstance(origin, RemoteBytes)
    size, head = origin.size, origin.head[: origin.size]
    starts = range(len(head), size, PIECE)
    pieces = [Extent(start, min(start + PIECE, size)) for start in starts]
    found = await gather_or_cancel(*(origin.fetch([piece]) for piece in pieces))
    return b"".join((head, *(data for (data,) in found)))
