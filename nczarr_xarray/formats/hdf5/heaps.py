"""Local and global heaps (specification III.D and III.E): names, and data of variable length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

import numpy as np

from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.rounds import together

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
    cursor.expect(b"HEAP")
    if version := cursor.uint(1):
        raise cursor.error(f"has version {version}, known is 0")
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
    cursor.expect(b"GCOL")
    if (version := cursor.uint(1)) != 1:
        raise cursor.error(f"has version {version}, known is 1")
    cursor.take(3)
    size = cursor.length()
    frame.within(address, size, what)
    if size > len(data):
        data = await frame.read(address, size)
    return _objects(bytes(data[:size]), frame, what)


def _objects(data: bytes, frame: Frame, what: str) -> GlobalHeap:
    # variables that were written together often have their text in the same collections
    find = _find_again if len(data) <= _REMEMBERED else _find
    found = find(data, frame.layout("H6xL"))
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
    frame: Frame, data: bytes | memoryview, count: int, size: int
) -> list[bytes]:
    """Return the bytes of elements of variable length.

    Parameters
    ----------
    data
        At least `count` elements as stored: a length in base elements, the
        address of a collection, and an index in there.
    size
        Size of a base element, in bytes.

    Raises
    ------
    FormatError
        If an element is in no heap, or in an object of fewer bytes.
    """
    cursor = Cursor(data, frame, "data of variable length")
    element = np.dtype([("length", "<u4"), ("address", f"<u{frame.offset_size}"), ("index", "<u4")])
    stored = np.frombuffer(cursor.take(count * element.itemsize), element)
    found = [b""] * count
    positions = np.flatnonzero(stored["length"])
    there = stored[positions]
    if np.isin(there["address"], (0, frame.undefined)).any():
        raise cursor.error("an element without an address in a heap")
    if _total(there, size) > frame.end:  # some may be wanted several times
        _, once = np.unique(there[["address", "index"]], return_index=True)
        if _total(there[once], size) > frame.end:
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
        lengths = there["length"][part].astype(np.int64)
        short = sizes // size < lengths
        if short.any():
            at = int(np.argmax(short))
            reason = f"{sizes[at]} bytes in the heap for {lengths[at]} elements of {size}"
            raise cursor.error(reason)
        starts = heap.starts[index]
        stops = starts + lengths * size
        bounds = zip(positions[part].tolist(), starts.tolist(), stops.tolist(), strict=True)
        for position, start, stop in bounds:
            found[position] = heap.data[start:stop]
    return found


def _total(stored: np.ndarray, size: int) -> int:
    """Return the number of bytes of all elements, of base elements of `size` bytes."""
    return int(stored["length"].sum(dtype=np.int64)) * size
