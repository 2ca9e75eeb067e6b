"""What fixed and extensible arrays share as chunk indexes (specification VII.C and VII.D).

Their elements are chunks in C order over the grid of the *largest* shape, the
unlimited dimension first in an extensible array. Elements lie in blocks; above a
size blocks are in pages, each with its own checksum, of which only those that
are used have been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.formats.hdf5.binary import Cursor
from nczarr_xarray.formats.hdf5.btree2 import unsigned
from nczarr_xarray.formats.hdf5.checksum import verify
from nczarr_xarray.formats.hdf5.chunkindex_base import CHUNK, ChunkGrid, HDF5ChunkIndex
from nczarr_xarray.formats.waves import together

#: A block that is remembered takes this much more than its arrays.
BLOCK_BYTES = 300


class Block(NamedTuple):
    """Elements ``[first, first + length)`` and a checksum, after a head of `head` bytes.

    Pages have no head; that of other blocks begins with `signature`.
    """

    address: int
    first: int
    length: int
    signature: bytes = b""
    head: int = 0


class ArrayIndex(HDF5ChunkIndex):
    """A chunk index whose elements have numbers."""

    #: Along which dimension the array grows: the first of its order.
    growing = 0

    def numbers(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Elements of the array that stand for chunks."""
        grid = self.grid
        strides = linear_strides(grid, self.growing)
        last = sum((count - 1) * stride for count, stride in zip(grid.counts, strides, strict=True))
        if last >= 1 << 62:
            raise grid.error(f"its chunk index has an element {last}")
        numbers = np.zeros(len(ids), dtype=np.int64)
        for at, stride in zip(grid.positions(ids), strides, strict=True):
            if stride < 1 << 62:  # else there is one chunk along this dimension
                numbers += at * stride
        return numbers

    def entry(self, size: int) -> np.dtype[Any]:
        """The dtype of an element of `size` bytes, or `FormatError`."""
        width = self.grid.frame.offset_size
        fields: list[Any] = [("address", "u1", (width,))]
        if self.grid.filters and 1 <= size - width - 4 <= 8:
            fields += [("size", "u1", (size - width - 4,)), ("mask", "<u4")]
        entry = np.dtype(fields)
        if entry.itemsize != size:
            raise self.grid.error(f"its chunk index has elements of {size} bytes")
        return entry

    def cursor(self, data: memoryview, address: int, signature: bytes) -> Cursor:
        """A cursor behind signature, version and client of a verified structure."""
        what = f"{self.grid.path}, chunk index at {address}"
        verify(data, self.grid.frame, what)
        cursor = Cursor(data, self.grid.frame, what)
        cursor.expect(signature)
        version, client = cursor.uint(1), cursor.uint(1)
        if version != 0 or client != int(self.grid.filters > 0):
            raise cursor.error(f"has version {version} for client {client}")
        return cursor

    def owned(self, cursor: Cursor) -> None:
        """Take the address of the header that a block belongs to, or raise `FormatError`."""
        if cursor.address() != self.address:
            raise cursor.error("belongs to another chunk index")

    def elements(
        self, entries: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Entries as `CHUNK`."""
        addresses = unsigned(entries["address"])
        if "size" not in (entries.dtype.names or ()):
            return self.grid.chunks(numbers, addresses)
        return self.grid.chunks(numbers, addresses, unsigned(entries["size"]), entries["mask"])

    async def fetch(self, block: Block, entry: np.dtype[Any]) -> memoryview:
        """The bytes of a block; fewer if the file ends before (it may never have been written)."""
        size = block.head + block.length * entry.itemsize + 4
        return await self.grid.frame.read_some(block.address, size, 0)

    async def blocks(
        self, blocks: Sequence[Block], entry: np.dtype[Any]
    ) -> list[np.ndarray[Any, Any]]:
        """The elements of blocks, as `CHUNK`; what is not remembered is read in one wave."""
        known = {block.address: self.memory.get(block.address) for block in blocks}
        unknown = [block for block in blocks if known[block.address] is None]
        datas = await together(self.fetch(block, entry) for block in unknown)
        fresh = self.parse(unknown, datas, entry)
        known.update(zip((block.address for block in unknown), fresh, strict=True))
        return [known[block.address] for block in blocks]

    def parse(
        self, blocks: Sequence[Block], datas: Sequence[memoryview], entry: np.dtype[Any]
    ) -> list[np.ndarray[Any, Any]]:
        """The elements of blocks, as `CHUNK`, all parsed as one array; they are remembered."""
        if not blocks:
            return []
        frame, bodies = self.grid.frame, []
        for block, data in zip(blocks, datas, strict=True):
            size = block.head + block.length * entry.itemsize + 4
            what = f"{self.grid.path}, block at {block.address} of its chunk index"
            if len(data) < size:
                raise frame.error(what, f"has {len(data)} of {size} bytes")
            if block.head:
                self.owned(self.cursor(data, block.address, block.signature))
            else:
                verify(data, frame, what)
            bodies.append(data[block.head : -4])
        entries = np.frombuffer(b"".join(bodies), dtype=entry)
        numbers = np.concatenate([np.arange(b.first, b.first + b.length) for b in blocks])
        chunks = self.elements(entries, numbers)
        ends = np.cumsum([block.length for block in blocks])
        parts = np.split(chunks, ends[:-1])
        for block, part in zip(blocks, parts, strict=True):
            self.memory.keep(block.address, part, part.nbytes + BLOCK_BYTES)
        return parts


def linear_strides(grid: ChunkGrid, growing: int = 0) -> tuple[int, ...]:
    """Elements of an array index from one chunk to the next, along each dimension."""
    rank = len(grid.shape)
    order = [growing, *(axis for axis in range(rank) if axis != growing)]
    strides = [0] * rank
    stride = 1
    for axis in reversed(order):
        strides[axis] = stride
        longest = grid.maxshape[axis]
        if longest is None:
            if axis != order[0]:
                raise grid.error("its chunk index is not for more than one unlimited dimension")
        else:
            stride *= -(-longest // grid.chunk_shape[axis])
    return tuple(strides)


def joined(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """One array of `CHUNK`."""
    return np.concatenate([np.empty(0, dtype=CHUNK), *parts])


def is_set(bits: bytes | memoryview, number: int) -> bool:
    """A bit of a page bitmap, which begins with the highest bit of the first byte."""
    return bool(bits[number >> 3] << (number & 7) & 0x80)
