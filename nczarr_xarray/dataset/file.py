"""One open classic or HDF5 file: bytes for the parsers of its format and for the chunk engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError, NCZarrWarning, caller_level
from nczarr_fsspec.keystore import KeyStore, OnLoop
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes, RemoteBytes
from nczarr_fsspec.transport.request import UNKNOWN, Extent, Stamp
from nczarr_xarray.formats.registry import OpenOptions, Source, read_hierarchy
from nczarr_xarray.formats.rounds import Parsing, Read, collection_paused, read_rounds
from nczarr_xarray.model import Hierarchy

if TYPE_CHECKING:
    from nczarr_fsspec.ranges.reader import RangeReader, Receive

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

#: Of data that are remembered, in all and in pieces: of one variable.
_MOST_BYTES = 1 << 20
_MOST_PIECES = 1 << 12


class DataFile:
    """Runs parsers over one file. Picklable and safe in threads.

    Parameters
    ----------
    source
        The bytes of the file.
    index_cache
        Folder in which the metadata of a remote file are kept for other processes.
    """

    def __init__(self, source: ByteSource, index_cache: Path | None = None) -> None:
        self.source = source
        self.url = source.url
        self.index_cache = index_cache
        self._remembers = False
        #: what merges and bounds the requests of a remote file
        self.ranges: RangeReader | None = None
        if isinstance(source, RemoteBytes):
            from nczarr_fsspec.ranges.index_memory import memory
            from nczarr_fsspec.ranges.reader import RangeReader

            self.ranges = RangeReader(source, memory.of(source).sparse)

    def hierarchy(self, options: OpenOptions) -> Hierarchy:
        """Read the metadata; those of a remote file are remembered.

        Raises
        ------
        NCZarrError
            If the file is of no known format, or damaged.
        """
        source = self.source
        seen = Source(source.url, source)
        if not isinstance(source, RemoteBytes):
            with collection_paused():
                return self.parse(read_hierarchy(seen, options))
        parsed, key = _parsed(source, options)
        hierarchy: Hierarchy | None = parsed.get(key)
        if hierarchy is None:
            hierarchy = self.parse(read_hierarchy(seen, options), around=True)
            parsed[key] = hierarchy
        return hierarchy

    async def hierarchy_remote(self, options: OpenOptions) -> Hierarchy:
        """Do as `hierarchy` does, of a remote file, on its loop."""
        source = self.source
        assert isinstance(source, RemoteBytes)
        parsed, key = _parsed(source, options)
        hierarchy: Hierarchy | None = parsed.get(key)
        if hierarchy is None:
            reading = read_hierarchy(Source(source.url, source), options)
            hierarchy = await self.parse_remote(reading, around=True)
            parsed[key] = hierarchy
        return hierarchy

    def save(self) -> None:
        """Keep what is known of the metadata in the folder, if there is one; warn if not."""
        if self.index_cache is None or not isinstance(self.source, RemoteBytes):
            return
        from nczarr_fsspec.ranges.index_memory import store

        try:
            store(self.index_cache, self.source)
        except OSError as error:
            warnings.warn(
                f"{self.index_cache}: the index cannot be kept there ({error})",
                NCZarrWarning,
                stacklevel=caller_level(),
            )
            self.index_cache = None  # once is enough

    def remembering(self) -> DataFile:
        """Return the same file; of the data that are read by it, short ones are remembered, too."""
        other = DataFile.__new__(DataFile)
        vars(other).update(vars(self), _remembers=True)
        return other

    async def read_data(self, starts: np.ndarray, stops: np.ndarray, receive: Receive) -> None:
        """Read data of a remote file, on its loop, by `RangeReader.read_data`."""
        ranges = self.ranges
        assert ranges is not None
        few = self._remembers and len(starts) <= _MOST_PIECES
        if not few or int(np.sum(stops - starts)) > _MOST_BYTES:
            await ranges.read_data(starts, stops, receive)
            return

        async def keep(numbers: np.ndarray, pieces: list[memoryview]) -> None:
            for number, piece in zip(numbers.tolist(), pieces, strict=True):
                ranges.sparse.add(int(starts[number]), bytes(piece))
            await receive(numbers, pieces)

        await ranges.read_data(starts, stops, keep)

    def parse(self, parsing: Parsing[T], *, around: bool = False) -> T:
        """Run a parser in this thread, and wait for what it reads.

        Parameters
        ----------
        around
            Whether what it reads is likely to lie together.

        Raises
        ------
        NCZarrError
            What the parser raises, or why bytes it needs cannot be read.
        """
        source, ranges = self.source, self.ranges
        if isinstance(source, LocalBytes):
            return answered(read_rounds(parsing), partial(self._read_round_local, source))
        assert isinstance(source, RemoteBytes)
        assert ranges is not None

        def answer(reads: Sequence[Read]) -> list[memoryview | NCZarrError]:
            # not the parser itself: it may be long, and may use libhdf5
            return source.run(self._read_round(ranges, reads, around))

        return answered(read_rounds(parsing), answer)

    async def parse_remote(self, parsing: Parsing[T], *, around: bool = False) -> T:
        """Parse a remote file on its loop: for parsers that are short."""
        assert self.ranges is not None
        running = read_rounds(parsing)
        try:
            reads = next(running)
            while True:
                reads = running.send(await self._read_round(self.ranges, reads, around))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            running.close()

    def close(self) -> None:
        """Save, and release the source, which reopens if it is used again."""
        self.save()
        self.source.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return DataFile, (self.source,)

    def extent_of(self, read: Read) -> Extent | FormatError:
        """Return the bytes that are there of those asked for, or why there are too few."""
        stop = min(read.start + read.length, self.source.size)
        if read.start < 0 or stop - read.start < read.least:
            return FormatError(
                self.url,
                f"the file has {self.source.size} bytes; its metadata refer to "
                f"{read.start} to {read.start + read.length} (truncated?)",
            )
        return Extent(read.start, max(read.start, stop))

    def _read_round_local(
        self, source: LocalBytes, reads: Sequence[Read]
    ) -> list[memoryview | NCZarrError]:
        extents = [self.extent_of(read) for read in reads]
        head = memoryview(source.head)  # most metadata of most files are there
        there = [e for e in extents if isinstance(e, Extent) and e.stop > len(head)]
        data = iter(_read_many(source, there) if there else ())
        return [
            extent
            if isinstance(extent, FormatError)
            else next(data)
            if extent.stop > len(head)
            else head[extent.start : extent.stop]
            for extent in extents
        ]

    async def _read_round(
        self, ranges: RangeReader, reads: Sequence[Read], around: bool
    ) -> list[memoryview | NCZarrError]:
        extents = [self.extent_of(read) for read in reads]
        there = [extent for extent in extents if isinstance(extent, Extent)]
        data = iter(await ranges.read_metadata(there, around=around) if there else [])
        return [next(data) if isinstance(extent, Extent) else extent for extent in extents]


def answered(parsing: Generator[Q, A, T] | Coroutine[Q, A, T], answer: Callable[[Q], A]) -> T:
    """Run what asks for things in this thread, with answers that are waited for."""
    try:
        asked = parsing.send(None)  # type: ignore[arg-type]  # as it begins
        while True:
            asked = parsing.send(answer(asked))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        parsing.close()


def _read_many(source: LocalBytes, extents: Sequence[Extent]) -> list[memoryview | NCZarrError]:
    """Read all extents together, or, where one of them cannot be read, each by itself."""
    try:
        return [memoryview(data) for data in source.read_many(*zip(*extents, strict=True))]
    except NCZarrError as error:
        return [error] if len(extents) == 1 else [_read_many(source, [e])[0] for e in extents]


def at_hand(source: ByteSource) -> DataFile | None:
    """Return a remote file as one in memory, if all of it came with the first answer."""
    data = whole_of(source)
    if data is None:
        return None
    from nczarr_fsspec.ranges.local import MemoryBytes

    return DataFile(MemoryBytes(data, source.url, source.validator))


def whole_of(source: ByteSource) -> bytes | None:
    """Return the bytes of a remote file all of which came with the first answer."""
    if not isinstance(source, RemoteBytes) or not 0 < source.size == len(source.head):
        return None
    return source.head


def stamp_of(store: KeyStore | DataFile) -> Stamp:
    """Return what is kept of the version of a file; nothing of a tree, which has no version."""
    return store.source.stamp if isinstance(store, DataFile) else UNKNOWN


def loop_of(store: KeyStore | DataFile) -> OnLoop | None:
    """Return what has the event loop on which `store` is read, if one does."""
    source = store.source if isinstance(store, DataFile) else store
    return source if isinstance(source, OnLoop) else None


def _parsed(source: RemoteBytes, options: OpenOptions) -> tuple[dict[Any, Any], Any]:
    """Return what parsers have made of a file, and the key of what these options ask for."""
    from nczarr_fsspec.ranges.index_memory import memory

    return memory.of(source).parsed, (options.path, options.tree, options.only)
