"""Fixed arrays as chunk indexes (specification VII.C): no dimension is unlimited."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nczarr_xarray.formats.hdf5.chunkindex_arrays import (
    BLOCK_BYTES,
    ArrayIndex,
    Block,
    element_numbers,
    is_set,
    joined,
)
from nczarr_xarray.formats.rounds import together


@dataclass(frozen=True, slots=True)
class _Header:
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
            return self.pick(joined([]), numbers)
        if numbers.max() >= header.count:
            raise self.grid.error(f"its chunk index has {header.count} elements")
        head = self.head(b"FADB")
        if header.count <= header.page:
            block = Block(header.block, 0, header.count, head)
            return self.pick(joined(await self.blocks([block], header.entry)), numbers)
        return self.pick(await self._pages(header, head, numbers), numbers)

    async def _header(self) -> _Header:
        known: _Header | None = self.memory.get("header")
        if known is not None:
            return known
        size = 12 + self.grid.frame.length_size + self.grid.frame.offset_size
        cursor = await self.structure(self.address, size, self.head(b"FAHD", owner=False))
        entry = self.entry(cursor.uint(1))
        bits, count = cursor.uint(1), cursor.length()
        if bits > 32:
            raise cursor.error(f"has pages of 2**{bits} elements")
        header = _Header(entry, 1 << bits, count, cursor.address())
        self.memory.keep("header", header, BLOCK_BYTES)
        return header

    async def _pages(self, header: _Header, head: bytes, numbers: np.ndarray) -> np.ndarray:
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
        return joined([*(part for part in known if part is not None), *fresh])
