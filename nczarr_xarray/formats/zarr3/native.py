"""Arrays of Zarr 3 whose chunks the chunk engine reads: their codecs are rows of its table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, StoreError, refuse_pointer
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.missing_chunks import Presence
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.codecs.registry import same_in_zarr2
from nczarr_xarray.model import Array, ChunkedArray, ChunkTable, CodecConfig, grid_of

#: Codecs of bytes.
OF_BYTES = frozenset({"blosc", "crc32c", "gzip", "zstd"})
#: Kinds of numpy's types whose elements are stored as they are in memory.
_PLAIN = frozenset("biufcmMSU")
#: Chunks of a shard, whose index is read whole.
_MOST = 1 << 24
#: A byte that no object has, and a number of bytes.
_TOO_MUCH = 1 << 62


@dataclass(frozen=True, slots=True)
class NativeArray(Array):
    """The chunks of an array of Zarr 3; those inside of shards, if it has such.

    Parameters
    ----------
    path, shape, chunk_shape, dtype
        As of `Array`.
    start, separator
        What keys begin with, and what is between their parts.
    inside
        Chunks of an object, per dimension.
    indexes
        Of its shards.
    most_of_object
        As of `Array`.
    fill, codecs
        As of `Array`.
    """

    chunk_shape: tuple[int, ...]
    dtype: np.dtype
    start: tuple[str, ...]
    separator: str
    inside: tuple[int, ...]
    indexes: ShardIndexes | None
    most_of_object: int = 0
    fill: Any = None
    codecs: tuple[CodecConfig, ...] = ()

    def chunk_name(self, position: tuple[int, ...]) -> str:
        key = self._key([at // count for at, count in zip(position, self.inside, strict=True)])
        return key if self.indexes is None else f"{key} (chunk {position} of the array)"

    def _key(self, position: Sequence[int]) -> str:
        key = self.separator.join([*self.start, *map(str, position)]) or "0"
        return f"{self.path}/{key}" if self.path else key

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        nothing = np.zeros(len(ids), np.int64)
        numbers, step, columns = nothing.copy(), 1, []
        counts = zip(grid_of(self.shape, self.chunk_shape), self.inside, strict=True)
        for count, inside in reversed([*counts]):
            ids, at = ids // count, ids % count
            columns.append((at // inside).tolist())
            numbers += (at % inside).astype(np.int64) * step
            step *= inside
        keys = [*map(self._key, zip(*reversed(columns), strict=True) if columns else [()])]
        start, size = nothing, nothing - 1
        if self.indexes is not None:
            start, size = await self.indexes.find(keys, numbers)
        return ChunkTable(start, size, nothing.astype(np.uint32), np.array(keys, object))


class ShardIndexes:
    """Finds chunks in shards.

    Parameters
    ----------
    presence
        Of the array, if others may remove it.
    index
        Of a shard, of two numbers for each of its chunks: where it begins, and its bytes.
    at_end
        Whether it is the end of a shard, or the beginning.
    most
        Bytes that a shard may have.
    """

    def __init__(
        self,
        store: KeyStore,
        presence: Presence | None,
        index: ChunkedArray,
        *,
        at_end: bool,
        most: int,
    ) -> None:
        self._store = store
        self._presence = presence
        self._most = most
        self._decoder = Decoder(index, 0)
        size = self._size = self._decoder.nbytes + 4 * len(index.codecs)
        self._part = slice(-size, None) if at_end else slice(0, size)

    async def find(self, keys: Sequence[str], numbers: np.ndarray) -> np.ndarray:
        """Return where chunks begin, and their sizes, as of `ChunkTable`.

        Parameters
        ----------
        keys, numbers
            Of the shard of each chunk, and which one it is of that.

        Raises
        ------
        FormatError
            If an index is damaged.
        """
        found = np.full((2, len(keys)), -1)
        rows: dict[str, list[int]] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)

        async def find(key: str) -> bool:
            data = await self._store.fetch(key, self._part, self._most)
            if data is not None:
                found[:, rows[key]] = self._entries(key, data, numbers[rows[key]])
            return data is not None

        there = await self._store.gather(find, rows)
        for one in there:
            if isinstance(one, StoreError):
                raise one
        if not all(there) and self._presence is not None:
            await self._presence.check()
        return found

    def _entries(self, key: str, data: bytes, numbers: np.ndarray) -> np.ndarray:
        name = f"{key} (its index of chunks)"
        if len(data) != self._size:
            refuse_pointer(key, data)
            raise FormatError(name, f"has {len(data)} bytes, not {self._size}: truncated?")
        (index,) = self._decoder.decode([data], lambda _: name)
        # what a shard does not have is -1 here, in both columns
        pairs: np.ndarray = np.frombuffer(index, self._decoder.array.dtype).reshape(-1, 2)
        entries: np.ndarray = pairs[numbers]
        there = (entries != -1).any(axis=1)
        if (there & ((entries < (0, 1)) | (entries >= _TOO_MUCH)).any(axis=1)).any():
            raise FormatError(name, "has a chunk where none can be")
        return entries.T


def native(
    array: Array,
    objects: tuple[int, ...],
    keys: tuple[tuple[str, ...], str],
    fill: Any,
    most: int,
    store: KeyStore,
    presence: Presence | None,
) -> NativeArray | None:
    """Return an array of Zarr 3 as the chunk engine reads it; None if zarr-python has to.

    Parameters
    ----------
    array
        With codecs as Zarr 3 states them.
    objects
        Lengths per dimension of what an object has.
    keys
        What keys of objects begin with, and what is between their parts.
    fill
        Element of what is missing.
    most
        Bytes that an object may have.
    store, presence
        Where it is, and whether it still is there.
    """
    codecs, indexes = array.codecs, None
    inside = tuple(n // own for n, own in zip(objects, array.chunk_shape, strict=True))
    sharding = codecs[0] if [one["id"] for one in codecs] == ["sharding_indexed"] else None
    if sharding is not None:
        codecs = _stated(sharding["codecs"])
        index = _chain(np.dtype("i8"), _stated(sharding["index_codecs"]))
        shape = math.prod(inside), 2
        if index is None or shape[0] > _MOST or any(one["id"] != "crc32c" for one in index[1]):
            return None
        entries = ChunkedArray(array.path, shape, shape, index[0], None, index[1])
        at_end = sharding.get("index_location", "end") == "end"
        indexes = ShardIndexes(store, presence, entries, at_end=at_end, most=most)
    chain = _chain(array.dtype, codecs) if array.dtype.kind in _PLAIN else None
    if chain is None:
        return None
    dtype, undone = chain
    where = *keys, inside, indexes, 0 if indexes is None else most
    return NativeArray(array.path, array.shape, array.chunk_shape, dtype, *where, fill, undone)


def _stated(codecs: Iterable[Any]) -> tuple[CodecConfig, ...]:
    """Return codecs inside of another one as `Array.codecs` has them."""
    return tuple({"id": one["name"], **(one.get("configuration") or {})} for one in codecs)


def _chain(
    dtype: np.dtype, codecs: Sequence[CodecConfig]
) -> tuple[np.dtype, tuple[CodecConfig, ...]] | None:
    """Return a type as it is stored, and the codecs of its bytes; None if others are there."""
    first, *others = codecs or ({"id": None},)
    if first["id"] != "bytes" or any(one["id"] not in OF_BYTES for one in others):
        return None
    stored = dtype.newbyteorder("<" if first.get("endian", "little") == "little" else ">")
    return stored, tuple(same_in_zarr2(one) or one for one in others)
