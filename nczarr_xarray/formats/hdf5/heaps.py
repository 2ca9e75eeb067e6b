"""Local and global heaps (specification III.D and III.E): names, and data of variable length."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.waves import together

#: Formats of `struct`, by size.
_UNSIGNED = {2: "H", 4: "I", 8: "Q"}
#: libhdf5 makes no smaller collections.
_COLLECTION = 4096
#: Enough for the names of some ten members, if they lie behind the heap's header.
_LOCAL_HEAP = 512


@dataclass(frozen=True, slots=True)
class LocalHeap:
    """The names of an old-style group's members."""

    frame: Frame
    what: str
    data: memoryview

    def name(self, offset: int) -> bytes:
        """The bytes from `offset` up to a NUL."""
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
    """One collection of a global heap: its objects by their index."""

    address: int
    objects: dict[int, memoryview]


async def read_global_heap(frame: Frame, addresses: Iterable[int]) -> dict[int, GlobalHeap]:
    """Read collections of global heaps, in one wave unless they are large.

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
    prefix = 8 + frame.length_size
    frame.within(address, prefix, what)
    data = await frame.read_some(address, _COLLECTION)
    cursor = Cursor(data, frame, what)
    cursor.expect(b"GCOL")
    if (version := cursor.uint(1)) != 1:
        raise cursor.error(f"has version {version}, known is 1")
    cursor.take(3)
    size = cursor.length()
    frame.within(address, size, what)
    if size > len(data):
        data = await frame.read(address, size)
    cursor = Cursor(data[:size], frame, what)
    cursor.take(prefix)
    return GlobalHeap(address, _objects(cursor))


def _objects(cursor: Cursor) -> dict[int, memoryview]:
    # there are many of them, and each is read as often as anything that refers to it
    head = struct.Struct("<H6x" + _UNSIGNED[cursor.frame.length_size])
    data = cursor.data
    objects: dict[int, memoryview] = {}
    at = cursor.position
    while at + head.size <= len(data):
        index, size = head.unpack_from(data, at)
        if index == 0:  # the free space is the last
            break
        at += head.size
        if size > len(data) - at:
            raise cursor.error(f"object {index} has {size} bytes, {len(data) - at} are left")
        objects[index] = data[at : at + size]
        # the last object need not be padded
        at += size + -size % 8
    return objects


async def resolve_vlen(frame: Frame, data: bytes | memoryview, count: int) -> list[memoryview]:
    """The bytes of elements of variable length.

    Parameters
    ----------
    data
        At least `count` elements as stored: a length in base elements, the
        address of a collection, and an index in there.

    Returns
    -------
    The heap object of each, empty for elements of length 0. Whether its size
    is that of `length` base elements is for the caller to check.

    Raises
    ------
    FormatError
        If an element is in no heap.
    """
    cursor = Cursor(data, frame, "data of variable length")
    element = struct.Struct(f"<I{_UNSIGNED[frame.offset_size]}I")
    places: list[tuple[int, int] | None] = []
    for length, address, index in element.iter_unpack(cursor.take(count * element.size)):
        if length and address in (0, frame.undefined):
            raise cursor.error(f"an element of length {length} that is nowhere")
        places.append((address, index) if length else None)
    heaps = await read_global_heap(frame, {place[0] for place in places if place})
    found = []
    for place in places:
        if place is None:
            found.append(memoryview(b""))
            continue
        there = heaps[place[0]].objects.get(place[1])
        if there is None:
            raise cursor.error(f"no object {place[1]} in the global heap at {place[0]}")
        found.append(there)
    return found
