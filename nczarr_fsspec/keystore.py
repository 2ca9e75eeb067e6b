"""The seam between formats and storage: a map from keys to bytes, to read and to write.

A key is a ``/``-separated path without a leading slash, relative to the root
of one dataset: ``".zgroup"``, ``"g1/v/.zarray"``, ``"g1/v/0.0"``. What a store can do
are coroutines of `KeyStore`. There are two kinds: nothing suspends those of a
`LocalStore`, so that they run to their end in the calling thread; those of a
`RemoteStore` run on an event loop, so that many requests wait together.

All calls of a `WritableStore` block. To write much, call from
`WritableStore.parallel` threads: a remote store sends their requests at the same
time, on its event loop.
"""

from __future__ import annotations

import builtins
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from nczarr_fsspec.concurrency import Budget, at_once, gather_or_cancel
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.local_files import FileRange, temporary_file
from nczarr_fsspec.transport.policy import most_connections

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from typing_extensions import Buffer


A = TypeVar("A")
T = TypeVar("T")
#: what a store answers about a key: its bytes, None if it is missing, why it cannot be read
Object: TypeAlias = bytes | StoreError | None
#: what it answers about a prefix: the names below it, None if it cannot list, why it failed to
Listing: TypeAlias = frozenset[str] | StoreError | None

#: what objects of metadata are called in Zarr 2 and 3, ...
ZARR_METADATA = frozenset({".zgroup", ".zarray", ".zattrs", ".zmetadata", "zarr.json"})
#: ... and besides in NCZarr of netCDF-C 4.8.0
OLD_METADATA = frozenset({".nczarr", ".nczgroup", ".nczvar", ".nczattr"})
#: bytes of one object of metadata, at most; consolidated metadata of 10,000 arrays take 10 MB
MAX_METADATA = 16 << 20
#: the part of an object that is all of it
ALL = slice(None)
#: segments without NUL, none of them empty, "." or ".."; one regex, for every chunk passes here
_KEY = re.compile(r"(?:(?!\.{1,2}(?:/|\Z))[^/\0]+(?:/(?!\Z)|\Z))+")


def check_key(key: str) -> str:
    """Return `key`, or raise `StoreError` if it could name anything outside the dataset."""
    if _KEY.fullmatch(key) is None:
        raise StoreError(repr(key), "is not a key inside a dataset")
    return key


def is_safe_name(name: str) -> bool:
    """Tell whether `name` is usable as one segment of a key (one group, array or chunk)."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def child_names(keys: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the names directly below every prefix that `keys` imply; ``""`` is the root.

    Parameters
    ----------
    keys
        Paths without a leading slash; a directory may be among them.
    """
    children: dict[str, set[str]] = {"": set()}
    for key in keys:
        while key:
            parent, _, name = key.rpartition("/")
            siblings = children.setdefault(parent, set())
            if name in siblings:
                break  # so its ancestors are known as well
            siblings.add(name)
            key = parent
    return {prefix: frozenset(names) for prefix, names in children.items()}


def chunk_number(words: Sequence[str], grid: Sequence[int]) -> int | None:
    """Return the number of a chunk in its grid, by the `words` of its name; None for other names.

    The chunk of a scalar is called 0.
    """
    if not grid:
        return 0 if [*words] == ["0"] else None
    if len(words) != len(grid):
        return None
    number = 0
    for word, count in zip(words, grid, strict=True):
        if not (word.isascii() and word.isdigit() and len(word) <= 19):
            return None
        position = int(word)
        if position >= count or str(position) != word:
            return None
        number = number * count + position
    return number


class KeyStore(ABC):
    """Read-only keys and bytes of one dataset. Picklable and safe in threads.

    Attributes
    ----------
    url : str
        How messages and ``encoding["source"]`` name the dataset; free of secrets.
    max_metadata : int
        Bytes of one object of metadata, at most.
    steady : bool
        Whether its objects stay the same as long as it is open.
    elsewhere : bool
        Whether some of their bytes are in other files, of which `contents` tells nothing.
    """

    url: str
    max_metadata: int = MAX_METADATA
    steady: bool = False
    elsewhere: bool = False

    @abstractmethod
    async def fetch(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        """Return bytes of `key`, or None if there is no such key.

        Parameters
        ----------
        part
            Which bytes, without a step. A negative start counts from the end, and goes without a
            stop.
        most
            The number of bytes that `key` may have. If all of it is asked for, an object with
            more is an error, and is not read.

        Raises
        ------
        TooLargeError
            If there are more than `most`.
        StoreError
            If the key exists and cannot be read.
        """

    @abstractmethod
    async def names(self, prefix: str) -> frozenset[str] | None:
        """Return the names directly below `prefix`; None if this store cannot list."""

    async def divisible(self, keys: Iterable[str]) -> bool:
        """Tell whether a part of one of `keys` costs less than all of it."""
        return True

    @abstractmethod
    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine of this store returns, which is run where it has to be."""

    @abstractmethod
    async def together(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """Run coroutines at the same time where they wait, else one after the other."""

    @abstractmethod
    async def gather(
        self, function: Callable[[A], Awaitable[T]], arguments: Iterable[A]
    ) -> list[T | StoreError]:
        """Call `function` on every argument; return an error in place of what raises it."""

    async def gather_objects(self, keys: Iterable[str], most: int | None = None) -> list[Object]:
        """Do as `get_many`, in a coroutine."""
        get = partial(self.fetch, most=self.max_metadata if most is None else most)
        return await self.gather(get, keys)

    async def gather_names(self, prefixes: Sequence[str]) -> list[Listing]:
        """Do as `list_many`, in a coroutine."""
        return await self.gather(self.names, prefixes)

    def get_many(self, keys: Sequence[str], most: int | None = None) -> list[Object]:
        """Return the bytes of each key, None if there is no such key, the error if reading failed.

        Parameters
        ----------
        most
            The number of bytes that each may have; by default `max_metadata`.
        """
        return self.run(self.gather_objects(keys, most))

    def get_one(self, key: str) -> bytes | None:
        """Return the bytes of a key, None if there is no such key.

        Raises
        ------
        StoreError
            If it cannot be read.
        """
        (data,) = self.get_many([key])
        if isinstance(data, StoreError):
            raise data
        return data

    def list_many(self, prefixes: Sequence[str]) -> list[Listing]:
        """Return the names directly below each prefix (``""``: the root); None without listing."""
        return self.run(self.gather_names(prefixes))

    def note_place(self) -> None:
        """Note what is at this place now, for `check_place`; done when the store is made, too."""

    def check_place(self) -> None:
        """Raise `StoreError` if what is here now is not what was here at the last `note_place`."""

    def stamp(self, key: str) -> Hashable:
        """Return a value that changes whenever `key` does, if it can be found out quickly."""
        return None

    def contents(self) -> str | None:
        """Return a text that identifies the content: a later state at this place has another.

        None if there is no such text. A `steady` store always has one.
        """
        return None

    def close(self) -> None:
        """Release file handles. The store opens them again if it is used again."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


class LocalStore(KeyStore):
    """A store that answers at once, in the calling thread."""

    @abstractmethod
    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        """Return what `KeyStore.fetch` does."""

    async def fetch(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        return self.get(key, part, most)

    def get_parts(
        self, key: str, parts: Sequence[slice], most: int | None = None
    ) -> Sequence[bytes | None]:
        """Return several parts of `key`, as `get` does each of them."""
        if len(parts) > 1 and not self.divides([key]):
            data = self.get(key, most=most)
            return [None if data is None else data[part] for part in parts]
        return [self.get(key, part, most) for part in parts]

    def divides(self, keys: Iterable[str]) -> bool:
        """Tell whether a part of one of `keys` costs less than all of it."""
        return True

    def get_into(self, key: str, buffer: memoryview) -> int | None:
        """Read the bytes of `key` into `buffer`, without a copy where the store can.

        Returns
        -------
        The number of bytes that were read; a number larger than `buffer` if `key` has more bytes
        than that; None if there is no such key.

        Raises
        ------
        StoreError
            If the key exists and cannot be read.
        """
        data = self.get(key)
        if data is None:
            return None
        there = min(len(data), len(buffer))
        buffer[:there] = memoryview(data)[:there]
        return len(data)

    def ranges(
        self, keys: Iterable[tuple[str, slice]], most: int
    ) -> Iterator[FileRange | None] | None:
        """Return the ranges of files that `get` would read, to be copied; None without files.

        A range is open until the next one is asked for.
        """
        return None

    def present(self, keys: Sequence[str]) -> Sequence[bool] | None:
        """Tell which of many keys there are; None where it costs as much to ask for each."""
        return None

    @abstractmethod
    def list(self, prefix: str) -> frozenset[str] | None:
        """Return the names directly below `prefix`; None if this store cannot list."""

    async def names(self, prefix: str) -> frozenset[str] | None:
        return self.list(prefix)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return at_once(coroutine)

    async def together(self, *coroutines: Coroutine[Any, Any, Any]) -> builtins.list[Any]:
        return [await coroutine for coroutine in coroutines]

    async def gather(
        self, function: Callable[[A], Awaitable[T]], arguments: Iterable[A]
    ) -> builtins.list[T | StoreError]:
        found: builtins.list[T | StoreError] = []
        for argument in arguments:
            try:
                found.append(await function(argument))
            except StoreError as error:
                found.append(error)
        return found


class StoreAtHand(LocalStore):
    """A local store that is written as coroutines, with a base class of remote ones, too."""

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        return at_once(self.fetch(key, part, most))

    def divides(self, keys: Iterable[str]) -> bool:
        return at_once(self.divisible(keys))

    def list(self, prefix: str) -> frozenset[str] | None:
        return at_once(self.names(prefix))


class OnLoop(ABC):
    """An object whose coroutines run on one event loop, in a thread of its own."""

    url: str

    @property
    @abstractmethod
    def loop(self) -> asyncio.AbstractEventLoop:
        """The (background) event loop that owns the connections."""

    @property
    def led(self) -> str:
        """The URL to which redirects have led, without a query; ``""`` if that is not known."""
        return ""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `coroutine` on `loop`, from any other thread."""
        import asyncio

        loop = self.loop
        try:
            if asyncio.get_running_loop() is loop:
                coroutine.close()
                raise StoreError(self.url, "blocking read from inside the I/O event loop")
        except RuntimeError:
            pass
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on `loop` and wait for it from any other thread."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the waiting thread was interrupted: the rest is not wanted
            raise


class RemoteStore(OnLoop, KeyStore):
    """A store that waits for a network. Its coroutines must run on `loop`."""

    #: requests in flight at most, each on a connection of its own
    concurrency: int = most_connections()
    #: bytes of chunks, when decoded, that reads may have in flight; some chunks always may be
    in_flight_bytes: int = 1 << 28
    #: whether `list` can be expected to work
    can_list: bool = True
    #: when its metadata were read, by `time.monotonic` of this process
    seen: float = -math.inf

    @property
    def younger_by(self) -> float:
        """Seconds from the first answer to when the youngest object was written that has come.

        Both by the clock of the server. Below 0, nothing has come that was written since the store
        was opened, as far as that is known.
        """
        return -math.inf

    @abstractmethod
    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        """Return what `KeyStore.fetch` does."""

    async def fetch(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        return await self.get(key, part, most)

    async def divides(self, keys: Iterable[str]) -> bool:
        """Tell whether a part of one of `keys` costs less than all of it."""
        return True

    @abstractmethod
    async def list(self, prefix: str) -> frozenset[str] | None:
        """Return the names directly below `prefix`; None if this store cannot list."""

    async def names(self, prefix: str) -> frozenset[str] | None:
        return await self.list(prefix)

    async def together(self, *coroutines: Coroutine[Any, Any, Any]) -> builtins.list[Any]:
        return await gather_or_cancel(*coroutines)

    def gate(self) -> asyncio.Semaphore:
        """Return the semaphore that limits this store to `concurrency` requests in flight.

        Writers, and stores of zarr-python, have no other bound: only a `Transport` has a throttle.
        """
        import asyncio

        return self._of_loop("_gate", lambda: asyncio.Semaphore(self.concurrency))

    def room(self) -> Budget:
        """Return what bounds the chunks that all reads have in flight to `in_flight_bytes`."""
        room = self._of_loop("_room", lambda: Budget(self.in_flight_bytes))
        room.limit = self.in_flight_bytes
        return room

    def _of_loop(self, name: str, make: Callable[[], T]) -> T:
        """Return what the running loop's first request made; after a fork, that is another loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        owner, made = self.__dict__.get(name, (None, None))
        if owner is not loop:
            made = make()
            self.__dict__[name] = loop, made
        found: T = made
        return found

    def __getstate__(self) -> dict[str, Any]:
        own = ("_gate", "_room", "_root_asked", "seen")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    async def gather(
        self, function: Callable[[A], Awaitable[T]], arguments: Iterable[A]
    ) -> builtins.list[T | StoreError]:
        gate = self.gate()  # at most `concurrency` at a time

        async def one(argument: A) -> T | StoreError:
            async with gate:
                try:
                    return await function(argument)
                except StoreError as error:
                    return error

        return await gather_or_cancel(*map(one, arguments))

    def run_each(
        self, function: Callable[[A], Awaitable[T]], arguments: Iterable[A]
    ) -> builtins.list[T]:
        """Do as `gather` does, from another thread, and raise the first error.

        What has not begun by then is not begun.
        """
        failed: builtins.list[StoreError] = []

        async def unless_failed(argument: A) -> T:
            if failed:
                raise failed[0]
            try:
                return await function(argument)
            except StoreError as error:
                failed.append(error)
                raise

        results: builtins.list[T] = []
        for result in self.run(self.gather(unless_failed, arguments)):
            if isinstance(result, StoreError):
                raise failed[0]
            results.append(result)
        return results


#: held by `WritableStore.create` of stores that have no atomic creation
creating = ProcessLock()


class WritableStore(ABC):
    """Keys and bytes of one dataset that can be changed.

    Picklable, safe in threads and in processes. Every method raises `StoreError`, which names the
    object and the cause; so does a key that leads out of the dataset.

    Attributes
    ----------
    url : str
        How messages name the dataset; free of secrets.
    parallel : int
        How many puts are worth having in flight at a time; 1 if the store answers at once, so that
        what counts is the number of processors.
    stamps : bool
        Whether an object that is replaced can be told from the one before, even if it
        holds the same bytes (`LocalStore.stamp`).
    """

    url: str
    parallel: ClassVar[int]
    stamps: ClassVar[bool] = False

    @property
    def timeout(self) -> float:
        """Seconds that one request may take in all, its further tries included."""
        return math.inf

    @abstractmethod
    def reader(self) -> KeyStore:
        """Return a read-only store of the same keys."""

    @abstractmethod
    def put(self, key: str, data: Buffer) -> None:
        """Store `data` under `key`, and replace what is there.

        A reader sees all of the old bytes or all of the new ones, and after an
        error there is no part of the new ones.
        """

    def put_file(self, key: str, fill: Callable[[str], None]) -> None:
        """Store a file under `key`, as `put` does, and without holding it in memory if possible.

        Parameters
        ----------
        fill
            Makes the file, given the path of one that does not exist.
        """
        with temporary_file() as path:
            fill(path)
            self.put(key, Path(path).read_bytes())

    def put_range(self, key: str, part: FileRange) -> None:
        """Store bytes of a file under `key`, as `put` does, and without reading if possible."""
        self.put(key, part.read())

    @abstractmethod
    def create(self, key: str, data: Buffer) -> bool:
        """Store `data` unless `key` exists; tell whether it was stored.

        If several callers create the same key, one gets True. Each store documents
        whether that holds among processes, or in this process only.
        """

    @property
    def swaps(self) -> bool:
        """Whether `replace` is atomic among all clients; if not, it is not there."""
        return False

    def get_versioned(self, key: str) -> tuple[bytes, str] | None:
        """Return what is there now, and the version that `replace` takes; None if nothing is."""
        raise NotImplementedError

    def replace(self, key: str, data: Buffer, version: str) -> bool:
        """Store `data` if what is there still is of a version; tell whether it was stored."""
        raise NotImplementedError

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete `keys`; missing ones are no error.

        Local directories that become empty are removed, too.
        """

    @abstractmethod
    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Rename keys, given as ``(source, target)``; a target that exists is replaced.

        A source that is missing while its target exists was moved before, so an
        interrupted move may be repeated. Pairs go in any order: no target may be
        the source of another pair.
        """

    @abstractmethod
    def keys_below(self, prefix: str) -> list[str]:
        """Return every full key below `prefix` (``""`` is the root), at any depth, sorted."""

    @abstractmethod
    def child(self, prefix: str) -> WritableStore:
        """Return a store whose root is `prefix` of this one, for objects that are not read yet.

        Its `put` need not be atomic.
        """

    def close(self) -> None:
        """Release connections. The store connects by itself if it is used again."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
