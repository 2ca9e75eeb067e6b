"""Chunk indexes whose elements have numbers: implicit, fixed and extensible arrays (VII.C, VII.D).

Their elements are chunks in C order over the grid of the *largest* shape, the
unlimited dimension first in an extensible array. Elements are in blocks. Large
blocks are divided into pages, each with its own checksum; only pages that are
used have been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.formats.hdf5.binary import Cursor, verify
from nczarr_xarray.formats.hdf5.btrees import unsigned
from nczarr_xarray.formats.hdf5.chunkindex import CHUNK, ChunkGrid, HDF5ChunkIndex
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
        known: dict[Block, Any] = {block: self.memory.get(block) for block in blocks}
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


def is_set(bits: bytes | memoryview, number: int) -> bool:
    """Return one bit of a page bitmap, which begins with the highest bit of its first byte."""
    return bool(bits[number >> 3] << (number & 7) & 0x80)


# -- implicit ------------------------------------------------------------------------------------


class ImplicitIndex(HDF5ChunkIndex):
    """All chunks of the largest shape, one behind the other."""

    async def find(self, ids: np.ndarray) -> np.ndarray:
        size, end = self.grid.chunk_bytes, self.grid.frame.end
        numbers = element_numbers(self.grid, ids)
        if self.address + (int(numbers.max()) + 1) * size > end:
            raise self.grid.error(f"its chunks are not all within the file, which ends at {end}")
        chunks = np.zeros(len(ids), dtype=CHUNK)
        chunks["address"] = self.address + numbers * size
        chunks["size"] = size
        return chunks


# -- fixed ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FixedHeader:
    entry: np.dtype
    page: int  # elements of a page, and of a block that is not in pages
    count: int
    block: int | None


class FixedArrayIndex(ArrayIndex):
    """A fixed array: a header, and one block that may be in pages."""

    async def find(self, ids: np.ndarray) -> np.ndarray:
        header = await self._header()
        numbers = element_numbers(self.grid, ids)
        if header.block is None:
            return self.pick([], numbers)
        if numbers.max() >= header.count:
            raise self.grid.error(f"its chunk index has {header.count} elements")
        head = self.head(b"FADB")
        if header.count <= header.page:
            block = Block(header.block, 0, header.count, head)
            return self.pick(await self.blocks([block], header.entry), numbers)
        return self.pick(await self._pages(header, head, numbers), numbers)

    async def _header(self) -> _FixedHeader:
        known: _FixedHeader | None = self.memory.get("header")
        if known is not None:
            return known
        size = 12 + self.grid.frame.length_size + self.grid.frame.offset_size
        cursor = await self.structure(self.address, size, self.head(b"FAHD", owner=False))
        entry = self.entry(cursor.uint(1))
        bits, count = cursor.uint(1), cursor.length()
        if bits > 32:
            raise cursor.error(f"has pages of 2**{bits} elements")
        header = _FixedHeader(entry, 1 << bits, count, cursor.address())
        self.memory.keep("header", header, BLOCK_BYTES)
        return header

    async def _pages(
        self, header: _FixedHeader, head: bytes, numbers: np.ndarray
    ) -> list[np.ndarray]:
        """Return the elements of all pages that hold `numbers`.

        Only the head of the block states whether a page was ever written. To save
        a round, pages are read together with the head, and checked afterwards.
        """
        assert header.block is not None
        entry, page, start = header.entry, header.page, header.block
        pages = (header.count + page - 1) // page
        front = len(head) + (pages + 7) // 8 + 4
        stride = page * entry.itemsize + 4
        wanted = [
            Block(start + front + n * stride, n * page, min(page, header.count - n * page))
            for n in np.unique(numbers // page).tolist()
        ]
        known = [self.memory.get(block) for block in wanted]
        unknown = [block for block, part in zip(wanted, known, strict=True) if part is None]
        written: bytes | None = self.memory.get("written")
        extents = [(start, front)] if written is None else []
        extents += [(block.address, block.size(entry)) for block in unknown]
        datas = await together(self.fetch(*extent) for extent in extents)
        if written is None:
            what = f"{self.grid.path}, block at {start} of its chunk index"
            cursor = self.verified(datas.pop(0), what, head)
            written = bytes(cursor.take(cursor.remaining - 4))
            self.memory.keep("written", written, len(written))
        read = [
            (block, data)
            for block, data in zip(unknown, datas, strict=True)
            if is_set(written, block.first // page)
        ]
        fresh = self.parse([block for block, _ in read], [data for _, data in read], entry)
        return [*(part for part in known if part is not None), *fresh]


# -- extensible ----------------------------------------------------------------------------------


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
class _ExtensibleHeader:
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
            return self.pick([], numbers)
        there = (numbers >= header.inline) & (numbers < header.length)
        behind = np.unique(numbers[there]) - header.inline
        starts = np.array([one.elements for one in header.supers])
        order = np.searchsorted(starts, behind, side="right") - 1
        found = await together(
            self._in_super(header, index, number, behind[order == number] - starts[number])
            for number in np.unique(order).tolist()
        )
        blocks = (block for part in found for block in part)
        return self.pick([index.inline, *blocks], numbers)

    async def _header(self) -> _ExtensibleHeader:
        known: _ExtensibleHeader | None = self.memory.get("header")
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
        header = _ExtensibleHeader(
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

    async def _index(self, header: _ExtensibleHeader) -> _IndexBlock | None:
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
        self, header: _ExtensibleHeader, index: _IndexBlock, number: int, within: np.ndarray
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
        self, header: _ExtensibleHeader, one: _SuperBlock, address: int
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
