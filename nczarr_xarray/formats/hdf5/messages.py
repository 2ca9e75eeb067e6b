"""Messages of object headers (specification IV.A.2), also those that several objects share.

Shared are committed datatypes, and what is in the file's heap of messages (III.H).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.binary import MOST_DIMENSIONS, Cursor, Frame, verify
from nczarr_xarray.formats.hdf5.heaps import FractalHeap, read_heap
from nczarr_xarray.formats.rounds import Once, caught, together


@dataclass(frozen=True, slots=True)
class Dataspace:
    """A dataspace: `shape` is None for a null one, ``()`` for a scalar.

    `maxshape` has None where a dimension has no limit.
    """

    shape: tuple[int, ...] | None
    maxshape: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a pipeline, in the order of encoding."""

    id: int
    name: str
    values: tuple[int, ...]


_MOST_FILTERS = 32


def decode_dataspace(cursor: Cursor) -> Dataspace:
    """Decode a dataspace, versions 1 and 2 (IV.A.2.b)."""
    version, rank, flags, kind = cursor.unpack("4B")
    if version not in (1, 2) or rank > MOST_DIMENSIONS:
        raise cursor.error(f"a dataspace of version {version} with {rank} dimensions")
    if version == 1:
        cursor.take(4)
    elif kind > 2 or (kind != 1 and rank):
        raise cursor.error(f"a dataspace of type {kind} with {rank} dimensions")
    elif kind == 2:
        return Dataspace(None)
    shape = cursor.unpack(f"{rank}L")
    if not flags & 1:
        return Dataspace(shape, shape)
    unlimited = (1 << (8 * cursor.frame.length_size)) - 1
    limits = cursor.unpack(f"{rank}L")
    maxshape = tuple([None if limit == unlimited else limit for limit in limits])
    for size, limit in zip(shape, maxshape, strict=True):
        if limit is not None and size > limit:
            raise cursor.error(f"a dataspace {shape} that is larger than its maximum {maxshape}")
    return Dataspace(shape, maxshape)


def decode_old_fill(cursor: Cursor) -> bytes | None:
    """Decode an old fill value (IV.A.2.e); None if there is none."""
    size = cursor.uint(4)
    if size in (0, 0xFFFFFFFF):  # zeros, and -1: undefined
        return None
    return cursor.take(size)


def decode_fill(cursor: Cursor) -> bytes | None:
    """Decode a fill value, versions 1 to 3 (IV.A.2.f); None if the file states none."""
    version = cursor.uint(1)
    if version == 3:
        stated = cursor.uint(1) & 0x20
    elif version in (1, 2):
        cursor.take(2)  # when space is allocated, when the value is written
        stated = cursor.uint(1)
    else:
        raise cursor.error(f"has version {version}, known are 1 to 3")
    return decode_old_fill(cursor) if stated else None


def decode_filters(cursor: Cursor) -> tuple[Filter, ...]:
    """Decode a filter pipeline, versions 1 and 2 (IV.A.2.l), in the order of encoding."""
    version, count = cursor.unpack("BB")
    if version not in (1, 2) or count > _MOST_FILTERS:
        raise cursor.error(f"{count} filters in a pipeline of version {version}")
    if version == 1:
        cursor.take(6)
    filters = []
    for _ in range(count):
        id_ = cursor.uint(2)
        # version 2 does not name the filters that come with the library
        length = cursor.uint(2) if version == 1 or id_ >= 256 else 0
        number = cursor.unpack("2xH")[0]
        name = cursor.take(length).split(b"\0")[0].decode("utf-8", "replace")
        values = cursor.unpack(f"{number}I")
        if version == 1 and number % 2:
            cursor.take(4)
        filters.append(Filter(id_, name, values))
    return tuple(filters)


class Link(NamedTuple):
    """A member of a group: at `address`, or wherever the path `target` leads, or elsewhere.

    `elsewhere` says why the member is not in this file. `order` is of creation, if the
    group keeps it.
    """

    name: bytes
    address: int | None = None
    target: bytes | None = None
    elsewhere: str = ""
    order: int | None = None


def decode_link(cursor: Cursor) -> Link:
    """Decode a link (IV.A.2.g)."""
    version, flags = cursor.unpack("BB")
    if version != 1:
        raise cursor.error(f"a link of version {version}, known is 1")
    kind = cursor.uint(1) if flags & 0x08 else 0
    order = cursor.uint(8) if flags & 0x04 else None
    if flags & 0x10:
        cursor.take(1)  # the name's character set: ASCII or UTF-8
    name = cursor.take(cursor.uint(1 << (flags & 0x03)))
    if kind == 0:
        return Link(name, address=cursor.address(), order=order)
    value = cursor.take(cursor.uint(2))
    if kind == 1:
        return Link(name, target=value.rstrip(b"\0"), order=order)
    if kind == 64:
        file, path = [*value[1:].split(b"\0"), b"", b""][:2]
        reason = f"a link to {_text(path)!r} in another file, {_text(file)!r}"
        return Link(name, elsewhere=reason, order=order)
    return Link(name, elsewhere=f"a link of type {kind}, defined by its user", order=order)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


class DenseStorage(NamedTuple):
    """The location of links or attributes that are not in the object header.

    `heap` and `tree` are addresses of a fractal heap and of a B-tree by name,
    None if all are in the header. `ordered` says whether the order of creation
    is kept.
    """

    heap: int | None
    tree: int | None
    ordered: bool


def decode_dense(cursor: Cursor, order_size: int) -> DenseStorage:
    """Decode link information (IV.A.2.c) or attribute information (IV.A.2.v).

    Parameters
    ----------
    order_size
        Bytes of a number in the order of creation.
    """
    version, flags = cursor.unpack("BB")
    if version:
        raise cursor.error(f"has version {version}, known is 0")
    if flags & 0x01:
        cursor.take(order_size)
    heap, tree = map(cursor.frame.known, cursor.unpack("AA"))
    if (heap is None) != (tree is None):
        raise cursor.error("a heap without an index, or an index without a heap")
    return DenseStorage(heap, tree, bool(flags & 0x01))


def decode_symbol_table(cursor: Cursor) -> tuple[int, int]:
    """Decode a symbol table (IV.A.2.r): addresses of a B-tree and a local heap."""
    tree, heap = map(cursor.frame.known, cursor.unpack("AA"))
    if tree is None or heap is None:
        raise cursor.error("without an index or a heap")
    return tree, heap


# -- shared messages -----------------------------------------------------------------------------


#: Messages that are elsewhere, or why they cannot be read.
Found: TypeAlias = dict[oh.Shared, bytes | NCZarrError]
#: Lines of the table, at most: one for each combination of types.
_MOST_INDEXES = 8


class SharedMessages:
    """Finds shared messages, each once."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._found: Found = {}
        self._committed: dict[oh.Shared, Once[bytes]] = {}
        self._heaps: dict[int, Once[FractalHeap]] = {}
        self._table: Once[dict[int, int]] | None = None

    async def find(self, bodies: Iterable[oh.Body]) -> Found:
        """Find those of some messages that are elsewhere; all are read in the same rounds.

        Returns
        -------
        What has been found so far, for `whole`.
        """
        missing = {one for one in bodies if isinstance(one, oh.Shared) and one not in self._found}
        if not missing:
            return self._found
        by_type: dict[int, list[oh.Shared]] = {}
        for one in missing:
            if one.address is None:
                by_type.setdefault(one.type, []).append(one)
        parts = [self._from_header(one) for one in missing if one.address is not None]
        parts += [self._from_heap(type_, listed) for type_, listed in by_type.items()]
        await together(parts)
        return self._found

    async def _from_header(self, shared: oh.Shared) -> None:
        """Find a message of another object header."""
        if shared not in self._committed:
            self._committed[shared] = Once(partial(self._read_committed, shared))
        self._found[shared] = await caught(self._committed[shared].get())

    async def _read_committed(self, shared: oh.Shared) -> bytes:
        assert shared.address is not None
        name = f"shared message of type {shared.type}"
        header = await oh.read_header(self.frame, shared.address, name)
        message = header.first(shared.type)
        if message is None or isinstance(message.body, oh.Shared):
            raise self.frame.error(header.what, "it is not there")
        return message.body

    async def _from_heap(self, type_: int, wanted: list[oh.Shared]) -> None:
        """Find messages of one type in the heap."""
        if self._table is None:
            self._table = Once(self._read_table)
        try:
            address = (await self._table.get()).get(type_)
            if address is None:
                reason = f"no heap for shared messages of type {type_}"
                raise self.frame.error("table of shared messages", reason)
            if address not in self._heaps:
                read = partial(read_heap, self.frame, address, "shared messages")
                self._heaps[address] = Once(read)
            heap = await self._heaps[address].get()
            bodies = await heap.objects([one.heap_id for one in wanted])
            self._found.update(zip(wanted, bodies, strict=True))
        except NCZarrError as error:
            self._found.update(dict.fromkeys(wanted, error))

    async def _read_table(self) -> dict[int, int]:
        """Return the addresses of the heaps by type of message."""
        frame = self.frame
        what = "table of shared messages"
        if frame.extension is None:
            raise frame.error(what, "the file has none")
        header = await oh.read_header(frame, frame.extension, "superblock extension")
        message = header.first(oh.SHARED_TABLE)
        if message is None:
            raise frame.error(what, "the file has none")
        cursor = header.cursor(message, what)
        cursor.take(1)
        address, count = cursor.address(), cursor.uint(1)
        size = 8 + count * (14 + 2 * frame.offset_size)
        address = frame.within(address, size, what)
        if not 0 < count <= _MOST_INDEXES:
            raise cursor.error(f"{count} indexes, at most {_MOST_INDEXES} are possible")
        block = await frame.read(address, size)
        verify(block, frame, what)
        cursor = Cursor(block, frame, what)
        cursor.expect(b"SMTB")
        heaps: dict[int, int] = {}
        for _ in range(count):
            cursor.take(2)  # version, whether the index is a list or a tree
            types = cursor.uint(2)
            cursor.take(10)  # smallest message, when the index changes, number of messages
            cursor.address()  # of the index, which only writers need
            heap = cursor.address()
            if heap is not None:
                heaps.update((bit, heap) for bit in range(16) if types >> bit & 1)
        return heaps


def whole(body: oh.Body, found: Found) -> bytes:
    """Return the bytes of a message, wherever they are.

    Raises
    ------
    NCZarrError
        If it is elsewhere, and cannot be read.
    """
    if not isinstance(body, oh.Shared):
        return body
    there = found[body]
    if isinstance(there, NCZarrError):
        raise there
    return there
