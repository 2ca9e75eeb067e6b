"""Extensible arrays as chunk indexes (specification VII.D): one dimension is unlimited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nczarr_xarray.formats.hdf5.btree2 import unsigned
from nczarr_xarray.formats.hdf5.chunkindex_arrays import (
    BLOCK_BYTES,
    ArrayIndex,
    Block,
    element_numbers,
    is_set,
    joined,
)
from nczarr_xarray.formats.hdf5.chunkindex_base import ChunkGrid
from nczarr_xarray.formats.rounds import together


class _SuperBlock(NamedTuple):
    """`blocks` data blocks of `length` elements each.

    The super blocks before it have `elements` elements (without those in the
    index block) and `before` data blocks.
    """

    blocks: int
    length: int
    elements: int
    before: int


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of an extensible array.

    Parameters
    ----------
    entry
        Layout of an element.
    offset_size
        Bytes of an element number.
    inline
        Elements in the index block.
    page
        Elements of a page; longer data blocks are in pages.
    direct
        Super blocks that are not there themselves: the index block leads to their
        data blocks.
    supers
        All super blocks.
    length
        The number of elements up to the last one that was ever set.
    index
        Address of the index block.
    """

    entry: np.dtype
    offset_size: int
    inline: int
    page: int
    direct: int
    supers: tuple[_SuperBlock, ...]
    length: int
    index: int | None

    def offset(self, element: int) -> bytes:
        """Return the number of an element as blocks state it."""
        return element.to_bytes(16, "little")[: self.offset_size]


class _IndexBlock(NamedTuple):
    """Elements, addresses of data blocks, addresses of super blocks."""

    inline: np.ndarray
    data: list[int]
    supers: list[int]


class ExtensibleArrayIndex(ArrayIndex):
    """An extensible array: its index block leads to data blocks, or to super blocks that do."""

    def __init__(self, grid: ChunkGrid, address: int) -> None:
        super().__init__(grid, address)
        unlimited = [axis for axis, longest in enumerate(grid.maxshape) if longest is None]
        self._growing = unlimited[0] if unlimited else 0

    async def find(self, ids: np.ndarray) -> np.ndarray:
        header = await self._header()
        numbers = element_numbers(self.grid, ids, self._growing)
        index = await self._index(header)
        if index is None:
            return self.pick(joined([]), numbers)
        there = (numbers >= header.inline) & (numbers < header.length)
        behind = np.unique(numbers[there]) - header.inline
        starts = np.array([one.elements for one in header.supers])
        order = np.searchsorted(starts, behind, side="right") - 1
        found = await together(
            self._in_super(header, index, number, behind[order == number] - starts[number])
            for number in np.unique(order).tolist()
        )
        blocks = (block for part in found for block in part)
        return self.pick(joined([index.inline, *blocks]), numbers)

    async def _header(self) -> _Header:
        known: _Header | None = self.memory.get("header")
        if known is not None:
            return known
        frame = self.grid.frame
        size = 16 + 6 * frame.length_size + frame.offset_size
        cursor = await self.structure(self.address, size, self.head(b"EAHD", owner=False))
        entry, bits, inline, shortest, pointers, page_bits = (cursor.uint(1) for _ in range(6))
        for _ in range(4):
            cursor.length()  # numbers and sizes of blocks
        length = cursor.length()
        cursor.length()  # elements that the block has room for
        powers = (shortest, pointers)
        if not 0 < bits <= 62 or page_bits > 32 or any(n < 1 or n & (n - 1) for n in powers):
            reason = f"{bits} and {page_bits} bits, {shortest} elements and {pointers} pointers"
            raise cursor.error(f"cannot have {reason}")
        supers: list[_SuperBlock] = []
        elements = before = 0
        for number in range(1 + bits - (shortest.bit_length() - 1)):
            one = _SuperBlock(1 << number // 2, shortest << (number + 1) // 2, elements, before)
            supers.append(one)
            elements += one.blocks * one.length
            before += one.blocks
        direct = 2 * (pointers.bit_length() - 1)
        if direct > len(supers) or any(one.length > 1 << page_bits for one in supers[:direct]):
            raise cursor.error(f"cannot have {pointers} pointers and pages of 2**{page_bits}")
        header = _Header(
            self.entry(entry),
            (bits + 7) // 8,
            inline,
            1 << page_bits,
            direct,
            tuple(supers),
            min(length, inline + elements),
            cursor.address(),
        )
        self.memory.keep("header", header, BLOCK_BYTES)
        return header

    async def _index(self, header: _Header) -> _IndexBlock | None:
        """Return the index block; None if it was not written."""
        known: _IndexBlock | None = self.memory.get("index")
        if known is not None or header.index is None:
            return known
        entry, direct, width = header.entry, header.direct, self.grid.frame.offset_size
        data_blocks = sum(one.blocks for one in header.supers[:direct])
        pointers = data_blocks + len(header.supers) - direct
        size = 10 + width + header.inline * entry.itemsize + pointers * width
        cursor = await self.structure(header.index, size, self.head(b"EAIB"))
        elements = np.frombuffer(cursor.take(header.inline * entry.itemsize), dtype=entry)
        inline = self.elements(elements, np.arange(header.inline))
        addresses = _addresses(cursor.take(pointers * width), width)
        index = _IndexBlock(inline, addresses[:data_blocks], addresses[data_blocks:])
        self.memory.keep("index", index, size)
        return index

    async def _in_super(
        self, header: _Header, index: _IndexBlock, number: int, within: np.ndarray
    ) -> list[np.ndarray]:
        """Return the elements of the blocks that hold the elements `within` one super block."""
        one = header.supers[number]
        written: bytes | memoryview = b""
        if number < header.direct:
            addresses = index.data[one.before : one.before + one.blocks]
        else:
            address = index.supers[number - header.direct]
            if address == self.grid.frame.undefined:
                return []
            addresses, written = await self._super(header, one, address)
        unit = min(one.length, header.page)
        pages = one.length // unit
        front = len(self.head(b"EADB")) + header.offset_size + 4
        blocks = []
        for part in np.unique(within // unit).tolist():
            address = addresses[part // pages]
            first = one.elements + part * unit
            if address == self.grid.frame.undefined:
                continue
            if pages == 1:
                # libhdf5 counts the blocks of all super blocks if the index block leads to them
                counted = first + (one.before * unit if number < header.direct else 0)
                head = self.head(b"EADB", offset=header.offset(counted))
                blocks.append(Block(address, header.inline + first, unit, head))
            elif is_set(written, part):
                # the head of a block in pages has nothing new
                address += front + part % pages * (unit * header.entry.itemsize + 4)
                blocks.append(Block(address, header.inline + first, unit))
        return await self.blocks(blocks, header.entry)

    async def _super(
        self, header: _Header, one: _SuperBlock, address: int
    ) -> tuple[list[int], bytes]:
        """Return the addresses of a super block's data blocks, and which pages were written."""
        known: tuple[list[int], bytes] | None = self.memory.get(("super", address))
        if known is not None:
            return known
        width = self.grid.frame.offset_size
        pages = one.length // header.page if one.length > header.page else 0
        bitmap = one.blocks * -(-pages // 8)
        size = 10 + width + header.offset_size + bitmap + one.blocks * width
        head = self.head(b"EASB", offset=header.offset(one.elements))
        cursor = await self.structure(address, size, head)
        written = bytes(cursor.take(bitmap))
        addresses = _addresses(cursor.take(one.blocks * width), width)
        self.memory.keep(("super", address), (addresses, written), 40 * len(addresses))
        return addresses, written


def _addresses(data: bytes, width: int) -> list[int]:
    addresses: list[int] = unsigned(np.frombuffer(data, dtype=np.uint8).reshape(-1, width)).tolist()
    return addresses
