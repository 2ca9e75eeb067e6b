"""The common part of fixed and extensible arrays as chunk indexes (specification VII.C, VII.D).

Their elements are chunks in C order over the grid of the *largest* shape, the
unlimited dimension first in an extensible array. Elements are in blocks. Large
blocks are divided into pages, each with its own checksum; only pages that are
used have been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.formats.hdf5.binary import Cursor, verify
from nczarr_xarray.formats.hdf5.btree2 import unsigned
from nczarr_xarray.formats.hdf5.chunkindex_base import CHUNK, ChunkGrid, HDF5ChunkIndex
from nczarr_xarray.formats.rounds import together

#: Bytes that a cached block takes besides its arrays.
BLOCK_BYTES = 300


class Block(NamedTuple):
    """The elements ``[first, first + length)`` and a checksum, behind a head (pages have none)."""

    address: int
    first: int
    length: int
    head: bytes = b""

    def size(self, entry: np.dtype) -> int:
        """Return the number of bytes of the block if an element is an `entry`."""
        return len(self.head) + self.length * entry.itemsize + 4


class ArrayIndex(HDF5ChunkIndex):
    """A chunk index whose elements have numbers."""

    def entry(self, size: int) -> np.dtype:
        """Return the dtype of an element of `size` bytes; raise `FormatError` if there is none."""
        width = self.grid.frame.offset_size
        fields: list[Any] = [("address", "u1", (width,))]
        if self.grid.filters and 1 <= size - width - 4 <= 8:
            fields += [("size", "u1", (size - width - 4,)), ("mask", "<u4")]
        entry = np.dtype(fields)
        if entry.itemsize != size:
            raise self.grid.error(f"its chunk index has elements of {size} bytes")
        return entry

    def head(self, signature: bytes, owner: bool = True, offset: bytes = b"") -> bytes:
        """Return the first bytes of a structure of this index; only the header names no owner."""
        head = signature + bytes((0, self.grid.filters > 0))
        if owner:
            head += self.address.to_bytes(self.grid.frame.offset_size, "little")
        return head + offset

    async def structure(self, address: int, size: int, head: bytes) -> Cursor:
        """Return a cursor over a verified structure, past its head."""
        what = f"{self.grid.path}, chunk index at {address}"
        self.grid.frame.within(address, size, what)
        return self.verified(await self.grid.frame.read(address, size), what, head)

    def verified(self, data: memoryview, what: str, head: bytes) -> Cursor:
        """Return a cursor over the verified bytes of a structure, past its head."""
        verify(data, self.grid.frame, what)
        cursor = Cursor(data, self.grid.frame, what)
        cursor.expect(head)
        return cursor

    def elements(self, entries: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return entries in the form `CHUNK`."""
        addresses = unsigned(entries["address"])
        if "size" not in (entries.dtype.names or ()):
            return self.grid.chunks(numbers, addresses)
        return self.grid.chunks(numbers, addresses, unsigned(entries["size"]), entries["mask"])

    async def fetch(self, address: int, size: int) -> memoryview:
        """Return the bytes of a block; none outside the file, where an unwritten block may be."""
        if address + size > self.grid.frame.end:
            return memoryview(b"")
        return await self.grid.frame.read(address, size)

    async def blocks(self, blocks: Sequence[Block], entry: np.dtype) -> list[np.ndarray]:
        """Return the elements of blocks as `CHUNK`; those not in memory are read in one round."""
        known = {block: self.memory.get(block) for block in blocks}
        unknown = [block for block in blocks if known[block] is None]
        datas = await together(self.fetch(b.address, b.size(entry)) for b in unknown)
        known.update(zip(unknown, self.parse(unknown, datas, entry), strict=True))
        return [known[block] for block in blocks]

    def parse(
        self, blocks: Sequence[Block], datas: Sequence[memoryview], entry: np.dtype
    ) -> list[np.ndarray]:
        """Return the elements of blocks as `CHUNK`, parsed as one array, and remember them."""
        if not blocks:
            return []
        frame, bodies = self.grid.frame, []
        for block, data in zip(blocks, datas, strict=True):
            what = f"{self.grid.path}, block at {block.address} of its chunk index"
            if not data:
                raise frame.error(what, f"its {block.size(entry)} bytes are not within the file")
            cursor = self.verified(data, what, block.head)
            bodies.append(cursor.take(cursor.remaining - 4))
        entries = np.frombuffer(b"".join(bodies), dtype=entry)
        numbers = np.concatenate([np.arange(b.first, b.first + b.length) for b in blocks])
        chunks = self.elements(entries, numbers)
        ends = np.cumsum([block.length for block in blocks])
        parts = np.split(chunks, ends[:-1])
        for block, part in zip(blocks, parts, strict=True):
            self.memory.keep(block, part, part.nbytes + BLOCK_BYTES)
        return parts


def element_numbers(grid: ChunkGrid, ids: np.ndarray, growing: int = 0) -> np.ndarray:
    """Return the element numbers that stand for chunks of the array.

    Parameters
    ----------
    growing
        The dimension that comes first, before the others in their order.
    """
    rest = [axis for axis in range(len(grid.shape)) if axis != growing]
    numbers = np.zeros(len(ids), dtype=np.int64)
    positions = grid.positions(ids)
    stride, last = 1, 0
    for axis in (*reversed(rest), growing):
        last += (grid.counts[axis] - 1) * stride
        if last >= 1 << 62:
            raise grid.error(f"its chunk index has an element {last}")
        if grid.counts[axis] > 1:
            numbers += positions[axis] * stride
        longest = grid.maxshape[axis]
        if longest is not None:
            stride *= -(-longest // grid.chunk_shape[axis])
        elif axis != growing:
            raise grid.error("its chunk index is not for more than one unlimited dimension")
    return numbers


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return several arrays of `CHUNK` as one."""
    return np.concatenate([np.empty(0, dtype=CHUNK), *parts])


def is_set(bits: bytes | memoryview, number: int) -> bool:
    """Return one bit of a page bitmap, which begins with the highest bit of its first byte."""
    return bool(bits[number >> 3] << (number & 7) & 0x80)
