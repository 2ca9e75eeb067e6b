"""A chunk grid: what all reads of it have in common, and how a single chunk is read."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.cache import CACHE, SHARE, Chunks
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.part import PartsRead, may_be_sparse
from nczarr_xarray.chunks.plan import ChunkTask, Plan
from nczarr_xarray.chunks.scatter import Scatter, allocate, fill_element
from nczarr_xarray.chunks.sources import EncodedChunk, LocalSource, RemoteKeys
from nczarr_xarray.chunks.threads import ON_LOOP_BYTES, items_at_a_time
from nczarr_xarray.chunks.windows import LOCAL_WINDOW, ONLY_CHUNK, WINDOW, GridNumbers, Window
from nczarr_xarray.model import Array, ChunkTable, grid_of


class Grid:
    """An array of chunks, as far as all reads have it in common."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.numbers = GridNumbers(grid_of(array.shape, array.chunk_shape))
        #: by mask: what decodes and scatters chunks that were stored without some of the codecs
        self._decoders: dict[int, tuple[Decoder, Scatter]] = {}
        self.decoder, self.scatter = self.decoder_of(0)
        #: for what `Decoder.together` returns, which is not shuffled
        self.scatter_elements = Scatter(self.decoder, planes=0)
        self.nbytes = self.decoder.nbytes
        self.needs_libhdf5 = self.decoder.needs_libhdf5
        self.known = CACHE.of(self)
        self.parts_read = PartsRead(self.nbytes)
        #: all of an array that is one chunk, and most of it
        self._whole: ChunkTask | None = None
        large = 0 < math.prod(array.chunk_shape) * SHARE <= math.prod(array.shape)
        if large and set(self.numbers.shape) <= {1}:
            everything = tuple(map(slice, array.shape))
            self._whole = ChunkTask((0,) * len(array.shape), everything, everything)

    @property
    def is_direct(self) -> bool:
        """Whether chunks are read to where they belong in the result, where that can be."""
        return self.decoder.is_plain and not self.decoder.in_rows

    def is_sparse(self, plan: Plan) -> bool:
        """Tell whether parts of chunks may be enough: of chunks of plain elements, not small."""
        plain = not self.array.codecs and self.array.dtype.kind != "O"
        large = not self.decoder.in_rows and self.nbytes < 1 << 62  # what numpy can say
        return plain and large and may_be_sparse(plan, self.array.chunk_shape)

    def decoder_of(self, mask: int) -> tuple[Decoder, Scatter]:
        """Return what undoes the codecs of a chunk that was stored without those of `mask`."""
        if mask not in self._decoders:
            decoder = Decoder(self.array, mask)
            self._decoders[mask] = decoder, Scatter(decoder)
        return self._decoders[mask]

    def windows(self, plan: Plan, *, local: bool) -> Iterator[tuple[np.ndarray, Window]]:
        """Yield windows of the chunks of a selection, and before each what has to be located."""
        if not local:
            return self.numbers.windows(plan, WINDOW, WINDOW)
        together = items_at_a_time(plan.count, self.nbytes) if self.decoder.in_rows else 1
        return self.numbers.windows(plan, together, LOCAL_WINDOW)

    def located(self, wanted: np.ndarray, window: Window, table: ChunkTable) -> ChunkTable:
        """Return where the chunks of a window are, from where those are that were looked up."""
        self.check_sizes(wanted, table.size)
        if wanted is window.ids:
            return table
        return table.of(np.searchsorted(wanted, window.ids))

    def whole(self, source: LocalSource) -> np.ndarray | None:
        """Read all elements, if they are one chunk; None if not."""
        task, array = self._whole, self.array
        if task is None:
            return None
        table = source.locate(array.locate(ONLY_CHUNK))
        self.check_sizes(ONLY_CHUNK, table.size)
        result = allocate(array, array.shape)
        room = self.scatter.room_for(task, None, result) if self.is_direct else None
        if room is None or table.start[0] < 0 or not source.fetch_together(table, room):
            self.take(source, table, 0, task, None, result, None)
        return result

    def whole_remote(self, source: RemoteKeys) -> Coroutine[Any, Any, np.ndarray] | None:
        """Return what reads all elements on the loop of the source; None if not a small chunk."""
        small = self.nbytes <= ON_LOOP_BYTES and not self.needs_libhdf5
        return None if self._whole is None or not small else self._read_whole(source, self._whole)

    async def _read_whole(self, source: RemoteKeys, task: ChunkTask) -> np.ndarray:
        table = await source.locate(self.array.locate(ONLY_CHUNK))
        self.check_sizes(ONLY_CHUNK, table.size)
        result = allocate(self.array, self.array.shape)
        there = table.start[0] >= 0
        data = await source.fetch_one(table, self.decoder.most) if there else None
        self._put(data, int(table.mask[0]), 0, task, None, result)
        return result

    def take(
        self,
        source: LocalSource,
        table: ChunkTable,
        number: int,
        task: ChunkTask,
        axes: tuple[int, ...] | None,
        result: np.ndarray,
        known: Chunks | None,
    ) -> None:
        """Fetch, decode and scatter the only chunk of a table, which is this one of the grid."""
        data: EncodedChunk = None
        versions: Sequence[Hashable] = ()
        if table.start[0] >= 0:
            if known is not None:
                versions = source.versions([number], table)  # before it is read
                (chunk,) = known.get(versions)
                if chunk is not None:
                    self.scatter.one(chunk, task, axes, result)
                    return
            if self.is_direct:
                room = self.scatter.room_for(task, axes, result)
                if room is not None and source.fetch_into(table, 0, room):
                    return
            (data,) = source.fetch(table, self.decoder.most)
        self._put(data, int(table.mask[0]), number, task, axes, result, known, versions)

    def _put(
        self,
        data: EncodedChunk,
        mask: int,
        number: int,
        task: ChunkTask,
        axes: tuple[int, ...] | None,
        result: np.ndarray,
        known: Chunks | None = None,
        versions: Sequence[Hashable] = (),
    ) -> None:
        """Decode and scatter a chunk that was stored without the codecs of `mask`."""
        if data is None:
            result[task.target] = fill_element(self.array)
            return
        decoder, scatter = self.decoder_of(mask)
        if decoder.is_direct and known is None:
            room = scatter.room_for(task, axes, result)
            if room is not None and decoder.decode_into(data, room):
                return
        chunks = decoder.decode([data], lambda _: self.name(number))
        if known is not None and not mask:  # remembered is what the first decoder leaves
            known.put(versions, chunks, self.nbytes)
        scatter.one(chunks[0], task, axes, result)

    def name(self, number: int) -> str:
        """Name a chunk, for messages."""
        return self.array.chunk_name(self.numbers.position(int(number)))

    def check_sizes(self, numbers: np.ndarray, sizes: np.ndarray) -> None:
        """Refuse chunks that are stated to be longer than codecs can make them."""
        most = self.decoder.most
        if (sizes[0] if len(sizes) == 1 else sizes.max(initial=0)) > most:
            worst = int(sizes.argmax())
            raise FormatError(
                self.name(numbers[worst]),
                f"is stated to have {int(sizes[worst])} bytes, and can have {most} at most",
            )
