"""Local, global and fractal heaps (specification III.D, III.E, III.G)."""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from struct import Struct

import numpy as np

from nczarr_fsspec.errors import UnsupportedError
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame, lookup3, verify
from nczarr_xarray.formats.hdf5.btrees import read_records
from nczarr_xarray.formats.rounds import Once, both, together

#: Bytes before the objects of a global heap and before each of them: a multiple of 8, whatever the
#: sizes of lengths (libhdf5 2.0, observed).
_OBJECT = 16
#: libhdf5 makes no smaller collections.
_COLLECTION = 4096
#: Bytes of a collection whose objects are remembered; the last 32 are.
_REMEMBERED = 1 << 16
#: Enough for the names of some ten members, if they lie behind the heap's header.
_LOCAL_HEAP = 512


@dataclass(frozen=True, slots=True)
class LocalHeap:
    """The names of an old-style group's members."""

    frame: Frame
    what: str
    data: memoryview

    def name(self, offset: int) -> bytes:
        """Return the bytes from `offset` up to a NUL."""
        rest = bytes(self.data[offset : offset + 256])
        end = rest.find(b"\0")
        if end < 0:
            rest = bytes(self.data[offset:])
            end = rest.find(b"\0")
        if end < 0:
            raise self.frame.error(self.what, f"no name at {offset} of {len(self.data)} bytes")
        return rest[:end]


async def read_local_heap(frame: Frame, address: int, what: str) -> LocalHeap:
    """Read a local heap.

    Parameters
    ----------
    what
        Whose it is, for messages.
    """
    what = f"{what}, local heap at {address}"
    frame.within(address, 8 + 2 * frame.length_size + frame.offset_size, what)
    head = await frame.read_some(address, _LOCAL_HEAP)
    cursor = Cursor(head, frame, what)
    cursor.expect(b"HEAP", 0)
    cursor.take(3)
    size = cursor.length()
    cursor.length()  # free space
    start = frame.within(cursor.address(), size, what)
    behind = start - address
    if behind >= 0 and behind + size <= len(head):
        return LocalHeap(frame, what, head[behind : behind + size])
    return LocalHeap(frame, what, await frame.read(start, size))


@dataclass(frozen=True, slots=True)
class GlobalHeap:
    """One collection of a global heap.

    Parameters
    ----------
    data
        All of its bytes.
    starts, sizes
        Positions and sizes of the objects in `data`, by index (int64); size -1 if missing.
    whole
        Whether objects and free space cover every byte. libhdf5 may loop for
        ever over a collection where they do not.
    """

    data: bytes
    starts: np.ndarray
    sizes: np.ndarray
    whole: bool


async def read_global_heap(frame: Frame, addresses: Iterable[int]) -> dict[int, GlobalHeap]:
    """Read collections of global heaps, in one round unless they are large.

    Returns
    -------
    The collections by address.

    Raises
    ------
    FormatError
        If one of them is damaged.
    """
    wanted = sorted(set(addresses))
    found = await together(_collection(frame, address) for address in wanted)
    return dict(zip(wanted, found, strict=True))


async def _collection(frame: Frame, address: int) -> GlobalHeap:
    what = f"global heap at {address}"
    frame.within(address, _OBJECT, what)
    data = await frame.read_some(address, _COLLECTION, 8 + frame.length_size)
    cursor = Cursor(data, frame, what)
    cursor.expect(b"GCOL", 1)
    cursor.take(3)
    size = cursor.length()
    frame.within(address, size, what)
    if size > len(data):
        data = await frame.read(address, size)
    # variables that were written together often have their text in the same collections
    find = _find_again if size <= _REMEMBERED else _find
    found = find(bytes(data[:size]), frame.layout("H6xL"))
    if isinstance(found, str):
        raise frame.error(what, found)
    return found


def _find(data: bytes, head: Struct) -> GlobalHeap | str:
    """Return the objects of a collection, or the reason why it has none.

    Parameters
    ----------
    head
        Layout of the index and the size that each object begins with.
    """
    unpack_from = head.unpack_from
    indexes, starts, sizes = [], [], []
    at, last = _OBJECT, len(data) - _OBJECT
    whole = True
    while at <= last:
        index, size = unpack_from(data, at)
        if index == 0:  # the free space, head and all, is the last
            whole = at + size == len(data)
            break
        at += _OBJECT
        if size > len(data) - at:
            return f"object {index} has {size} bytes, {len(data) - at} are left"
        indexes.append(index)
        starts.append(at)
        sizes.append(size)
        # the last object need not be padded
        at += size + -size % 8
    known = max(indexes, default=0) + 1
    heap = GlobalHeap(data, np.zeros(known, np.int64), np.full(known, -1, np.int64), whole)
    heap.starts[indexes] = starts
    heap.sizes[indexes] = sizes
    return heap


_find_again = lru_cache(maxsize=32)(_find)


async def resolve_vlen(
    frame: Frame, data: bytes | memoryview, base_sizes: np.ndarray
) -> list[bytes]:
    """Return the bytes of elements of variable length.

    Parameters
    ----------
    data
        The elements as stored, or more: a length in base elements, the
        address of a collection, and an index in there.
    base_sizes
        The size of a base element of each element, in bytes.

    Raises
    ------
    FormatError
        If an element is in no heap, or in an object of fewer bytes.
    """
    cursor = Cursor(data, frame, "data of variable length")
    element = np.dtype([("length", "<u4"), ("address", f"<u{frame.offset_size}"), ("index", "<u4")])
    count = len(base_sizes)
    stored = np.frombuffer(cursor.take(count * element.itemsize), element)
    found = [b""] * count
    positions = np.flatnonzero(stored["length"])
    there, base_sizes = stored[positions], base_sizes[positions]
    nbytes = there["length"] * base_sizes.astype(np.float64)  # which does not overflow
    if np.isin(there["address"], (0, frame.undefined)).any():
        raise cursor.error("an element without an address in a heap")
    if nbytes.sum() > frame.end:  # some may be wanted several times
        _, once = np.unique(there[["address", "index"]], return_index=True)
        if nbytes[once].sum() > frame.end:
            raise cursor.error("more bytes than the file has")
    addresses, which = np.unique(there["address"], return_inverse=True)
    heaps = await read_global_heap(frame, addresses.tolist())
    order = np.argsort(which, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    for address, part in zip(addresses.tolist(), parts, strict=False):
        heap, index = heaps[address], there["index"][part]
        known = index < len(heap.sizes)
        sizes = heap.sizes[np.where(known, index, 0)]
        if sizes.min(initial=0) < 0:
            lost = index[np.argmin(sizes)]
            raise cursor.error(f"no object {lost} in the global heap at {address}")
        lengths, base = there["length"][part].astype(np.int64), base_sizes[part]
        short = sizes // base < lengths
        if short.any():
            at = int(np.argmax(short))
            reason = f"{sizes[at]} bytes in the heap for {lengths[at]} elements of {base[at]}"
            raise cursor.error(reason)
        starts = heap.starts[index]
        stops = starts + lengths * base
        bounds = zip(positions[part].tolist(), starts.tolist(), stops.tolist(), strict=True)
        for position, start, stop in bounds:
            found[position] = heap.data[start:stop]
    return found


# -- fractal heaps -----------------------------------------------------------------------------


#: Longer than the header of any heap without filters.
_FIRST_READ = 256
_MANAGED, _HUGE, _TINY = range(3)
_HUGE_BY_KEY = 1  # type of B-tree records
_OFFSET = itemgetter(0)


@dataclass(frozen=True, slots=True)
class _Table:
    """The doubling table: how large the blocks of each row are.

    Parameters
    ----------
    width
        Blocks in a row.
    start, largest
        Bytes of the first and of the largest direct block, powers of 2.
    bits
        Bits of an offset in the heap.
    """

    width: int
    start: int
    largest: int
    bits: int

    @property
    def offset_size(self) -> int:
        """Bytes of an offset in the heap."""
        return (self.bits + 7) // 8

    def rows_of(self, bits: int) -> int:
        """Return the rows of an indirect block that spans so many bytes: a power of 2, its bits."""
        return bits - (self.start * self.width).bit_length() + 1


@dataclass(slots=True)
class FractalHeap:
    """A heap: its blocks by ascending offset, and where its huge objects are."""

    frame: Frame
    what: str
    address: int
    id_size: int
    table: _Table
    checked: bool
    most_managed: int
    huge_index: int | None
    blocks: list[tuple[int, bytes]] = field(default_factory=list)
    used: int = 0
    _extents: Once[dict[int, tuple[int, int]]] | None = None

    @property
    def length_size(self) -> int:
        """Bytes of the length of an object in an identifier."""
        largest = self.table.largest.bit_length() - 1
        return (min(largest, self.most_managed.bit_length()) + 7) // 8

    async def objects(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the objects with these heap identifiers; huge ones take some more rounds.

        Raises
        ------
        FormatError
            If one of them is not in the heap.
        """
        middle = 1 + self.table.offset_size
        end = middle + self.length_size
        found = [self._near(id_, middle, end) for id_ in ids]
        far = {i: ids[i] for i, one in enumerate(found) if one is None}
        if far:
            extents = await self._huge(list(far.values()))
            if sum(length for _, length in set(extents)) > self.frame.end:
                raise self.frame.error(self.what, "its huge objects are larger than the file")
            for i, data in zip(far, await together(map(self._read, extents)), strict=True):
                found[i] = data
        return [one for one in found if one is not None]

    async def _read(self, extent: tuple[int, int]) -> bytes:
        self.frame.within(*extent, self.what)
        return bytes(await self.frame.read(*extent))

    def _near(self, id_: bytes, middle: int, end: int) -> bytes | None:
        """Return an object from a block, or from its identifier; None for a huge one.

        Parameters
        ----------
        middle, end
            The ends of the fields "offset" and "length" in the identifier of an object.
        """
        kind = id_[0] >> 4 if id_ else -1
        if kind == _MANAGED and len(id_) > middle:
            offset = int.from_bytes(id_[1:middle], "little")
            length = int.from_bytes(id_[middle:end], "little")
            place = bisect.bisect_right(self.blocks, offset, key=_OFFSET) - 1
            if place >= 0:
                start, block = self.blocks[place]
                if offset - start + length <= len(block):
                    return block[offset - start : offset - start + length]
            reason = f"{length} bytes at {offset} are not in the heap"
        elif kind == _HUGE:
            return None
        elif kind == _TINY:
            start, length = 1, id_[0] & 0x0F
            if self.id_size > 17:  # then the length has 12 bits
                start, length = 2, length << 8 | int.from_bytes(id_[1:2])
            if start + length < len(id_):
                return id_[start : start + length + 1]
            reason = f"{length + 1} bytes in an identifier of {len(id_)}"
        else:
            reason = "an identifier that is too short, or of unknown version or type"
        raise self.frame.error(f"{self.what}, object {id_.hex()}", reason)

    async def _huge(self, ids: Sequence[bytes]) -> list[tuple[int, int]]:
        """Return address and length of each huge object."""
        frame = self.frame
        if frame.offset_size + frame.length_size < self.id_size:
            cursors = [Cursor(id_[1:], frame, self.what) for id_ in ids]
            return [(cursor.address() or 0, cursor.length()) for cursor in cursors]
        if self._extents is None:
            self._extents = Once(self._read_extents)
        extents = await self._extents.get()
        key_size = min(self.id_size - 1, frame.length_size)
        try:
            return [extents[int.from_bytes(id_[1 : 1 + key_size], "little")] for id_ in ids]
        except KeyError as error:
            raise frame.error(self.what, f"no huge object {error}") from None

    async def _read_extents(self) -> dict[int, tuple[int, int]]:
        """Return address and length of all huge objects by their keys."""
        frame = self.frame
        if self.huge_index is None:
            raise frame.error(self.what, "no index of its huge objects")
        kind, records = await read_records(frame, self.huge_index, self.what)
        if kind != _HUGE_BY_KEY:
            raise frame.error(self.what, f"an index of huge objects with records of type {kind}")
        extents: dict[int, tuple[int, int]] = {}
        for record in records:
            address, length, key = Cursor(record, frame, self.what).unpack("ALL")
            extents[key] = (frame.known(address) or 0, length)
        return extents

    async def read_direct(self, address: int, offset: int, size: int) -> None:
        """Read a direct block."""
        what = f"{self.what}, block at {address}"
        block = await self._block(address, size, what)
        cursor = self._open(block, b"FHDB", offset, what)
        if self.checked:
            stored = cursor.uint(4)
            end = cursor.position
            whole = b"".join((block[: end - 4], b"\0\0\0\0", block[end:]))
            if lookup3(whole) != stored:
                raise cursor.error("its checksum is wrong (damaged, or changed while it was read)")
        self.blocks.append((offset, block))

    async def read_indirect(self, address: int, offset: int, rows: int) -> None:
        """Read an indirect block of some rows, and all blocks below it."""
        what = f"{self.what}, block at {address}"
        frame, table = self.frame, self.table
        count = rows * table.width
        size = 9 + frame.offset_size + table.offset_size + count * frame.offset_size
        block = await self._block(address, size, what)
        verify(block, frame, what)
        cursor = self._open(block, b"FHIB", offset, what)
        children = []
        for row in range(rows):
            span = table.start << max(0, row - 1)
            for _ in range(table.width):
                child = cursor.address()
                if child is not None and span <= table.largest:
                    children.append(self.read_direct(child, offset, span))
                elif child is not None:
                    below = table.rows_of(span.bit_length())
                    children.append(self.read_indirect(child, offset, below))
                offset += span
        await together(children)

    async def _block(self, address: int, size: int, what: str) -> bytes:
        self.frame.within(address, size, what)
        self.used += size
        if self.used > self.frame.end:
            raise self.frame.error(self.what, "its blocks are larger than the file: some overlap")
        return bytes(await self.frame.read(address, size))

    def _open(self, block: bytes, signature: bytes, offset: int, what: str) -> Cursor:
        cursor = Cursor(block, self.frame, what)
        cursor.expect(signature)
        version, heap = cursor.unpack("BA")
        stated = cursor.uint(self.table.offset_size)
        if version or heap != self.address or stated != offset:
            reason = f"version {version}, of the heap at {heap}, offset {stated}"
            raise cursor.error(f"{reason}, where 0, {self.address}, {offset} were expected")
        return cursor


async def read_heap(frame: Frame, address: int, what: str) -> FractalHeap:
    """Read a heap with all its blocks.

    Parameters
    ----------
    what
        Whose it is, for messages (``"links of /g"``).

    Raises
    ------
    FormatError
        If it is damaged.
    UnsupportedError
        If it is filtered.
    """
    what = f"{what}, fractal heap at {address}"
    size = 26 + 12 * frame.length_size + 3 * frame.offset_size
    frame.within(address, size, what)
    block = await frame.read_some(address, _FIRST_READ)
    cursor = Cursor(block, frame, what)
    cursor.expect(b"FRHP", 0)
    id_size, filtered, flags = cursor.unpack("HHB")
    if filtered:
        size += frame.length_size + 4 + filtered
        frame.within(address, size, what)
        verify(await frame.read(address, size), frame, what)
        raise UnsupportedError(frame.url, f"{what}: is compressed, which is not supported")
    verify(block[:size], frame, what)
    most_managed, _, huge_index, *_ = cursor.unpack("ILALA8L")  # sizes and numbers of objects
    table = _Table(*cursor.unpack("HLLH"))
    root, rows = cursor.unpack("2xAH")
    powers = (table.width, table.start, table.largest)
    if (
        any(not number or number & (number - 1) for number in powers)
        or not table.start <= table.largest <= 1 << 32
        or table.bits > 64
        or rows > max(0, table.rows_of(table.bits + 1))
        or id_size < 2
    ):
        raise cursor.error(f"an impossible {table} of {rows} rows")
    heap = FractalHeap(
        frame, what, address, id_size, table, bool(flags & 2), most_managed, frame.known(huge_index)
    )
    if root != frame.undefined:
        read = heap.read_indirect(root, 0, rows) if rows else heap.read_direct(root, 0, table.start)
        await read
    heap.blocks.sort(key=_OFFSET)
    return heap


async def read_dense(
    frame: Frame, heap: int, index: int, types: Container[int], what: str
) -> tuple[FractalHeap, int, list[bytes]]:
    """Read a heap and the B-tree that lists its objects at the same time.

    Parameters
    ----------
    heap, index
        Addresses of both.
    types
        Types of records that the tree may have.

    Returns
    -------
    The heap, the type of the records, and the records in the order of the tree.
    """
    found, (kind, records) = await both(
        read_heap(frame, heap, what), read_records(frame, index, what)
    )
    if kind not in types:
        raise frame.error(what, f"an index with records of type {kind}")
    return found, kind, records
