"""The chunks of a variable as they are stored, not decoded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.keystore import WritableStore
from nczarr_xarray.chunks.grid import Grid
from nczarr_xarray.chunks.sources import EncodedChunk, LocalSource, source_of
from nczarr_xarray.dataset.file import loop_of
from nczarr_xarray.dataset.variable import VariableReader, explained
from nczarr_xarray.model import ChunkTable

#: Chunks that are looked for, at most, to learn what is so of all.
_SAMPLED = 64


class StoredChunks:
    """Brings the stored bytes of chunks. Safe in threads; every method blocks.

    Parameters
    ----------
    reader
        Of a variable whose array is a grid of chunks.

    Attributes
    ----------
    is_local : bool
        Whether the chunks are at hand.
    """

    def __init__(self, reader: VariableReader) -> None:
        reader.prepare()
        assert reader.array is not None
        self._reader = reader
        self._array = reader.array
        self._grid = Grid(reader.array)
        self._source = source_of(reader.store, *reader.documents)
        self._loop = loop_of(reader.store)
        self.is_local = self._loop is None

    def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks (see `Array.locate`).

        Raises
        ------
        NCZarrError
            If their index cannot be read, or one is stated to have more bytes than it can have.
        """
        source, locating = self._source, self._array.locate(ids)
        if isinstance(source, LocalSource):
            table = source.locate(locating)
        else:
            assert self._loop is not None
            table = self._loop.run(source.locate(locating))
        self._grid.check_sizes(ids, table.size)
        return table

    @cached_property
    def are_longer(self) -> bool:
        """Whether chunks are longer than they should be (`Array.longer`), as the first there is."""
        count = math.prod(self._grid.numbers.shape)
        if self._array.longer > self._grid.nbytes:
            for number in range(0, count, max(1, -(-count // _SAMPLED))):
                (data,) = self.fetch(self.locate(np.array([number])))
                if data is not None:
                    return self._grid.decoder.beginning(data) is not None
        return False

    def fetch(self, table: ChunkTable) -> Sequence[EncodedChunk]:
        """Fetch the chunks of a table, which exist as far as it says; None for a missing key.

        Raises
        ------
        NCZarrError
            Naming the object that cannot be read.
        """
        source = self._source
        with explained(self._reader):
            if isinstance(source, LocalSource):
                return source.fetch(table, self._grid.bound)
            assert self._loop is not None
            return self._loop.run(self._fetch_remote(table))

    def put(self, table: ChunkTable, keys: Sequence[str], store: WritableStore) -> list[bool]:
        """Store the chunks of a table as they are; tell which there are.

        What is in files is copied from file to file. Errors are those of `fetch`, and of `store`.

        Parameters
        ----------
        keys
            Where each goes.
        store
            Where to.
        """
        source, ranges = self._source, None
        if isinstance(source, LocalSource):
            ranges = source.ranges(table, self._grid.bound)
        if ranges is None:
            return _put(store.put, keys, self.fetch(table))
        with explained(self._reader):
            return _put(store.put_range, keys, ranges)

    async def _fetch_remote(self, table: ChunkTable) -> Sequence[EncodedChunk]:
        source = self._source
        assert not isinstance(source, LocalSource)
        chunks: list[EncodedChunk] = [None] * len(table.start)

        async def receive(numbers: Any, data: list[Any]) -> None:
            for number, stored in zip(numbers, data, strict=True):
                chunks[number] = stored

        await source.fetch(table, self._grid.bound, receive)
        return chunks


def _put(put: Callable[[str, Any], None], keys: Sequence[str], chunks: Iterable[Any]) -> list[bool]:
    """Put each of what was found but None under its key; tell which were put."""
    there = []
    for key, data in zip(keys, chunks, strict=True):
        there.append(data is not None)
        if data is not None:
            put(key, data)
    return there
