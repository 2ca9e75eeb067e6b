"""Messages that several objects share: committed datatypes, and the file's heap of messages.

Specification III.H (shared object header message table) and IV.A.2 (shared message).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame, verify
from nczarr_xarray.formats.hdf5.datatypes import decode_datatype
from nczarr_xarray.formats.hdf5.messages import decode_dataspace, decode_filters
from nczarr_xarray.formats.hdf5.objects import Dataspace, Datatype, Filter
from nczarr_xarray.formats.rounds import Once, caught, together

if TYPE_CHECKING:
    from nczarr_xarray.formats.hdf5.fractal import FractalHeap


# -- decoded -------------------------------------------------------------------------------------
# Messages that many objects have in common, decoded once.
#
# Thousands of attributes and datasets have the same few datatypes, dataspaces
# and filter pipelines, byte for byte; so have thousands of files of one kind.


T = TypeVar("T")

#: Messages of all files up to so many bytes are kept, and so many of each kind at most.
_SHORT = 512
MOST_MESSAGES = 4096
#: They, by what decodes them and by the sizes of addresses and lengths.
KNOWN: dict[tuple[Callable[[Cursor], Any], int, int], dict[bytes, Any]] = {}


class Decoded:
    """Decodes messages of one file that depend on nothing but their bytes.

    Each method takes the bytes of a message and the name of what it belongs
    to, and raises `FormatError` with that name if the message is damaged.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._types: dict[bytes, Datatype] = {}
        self._spaces: dict[bytes, Dataspace] = {}
        self._filters: dict[bytes, tuple[Filter, ...]] = {}

    def datatype(self, body: bytes, what: str) -> Datatype:
        """Return the datatype of a message."""
        found = self._types.get(body)
        return found or self._decode(self._types, decode_datatype, body, what)

    def dataspace(self, body: bytes, what: str) -> Dataspace:
        """Return the dataspace of a message."""
        found = self._spaces.get(body)
        return found or self._decode(self._spaces, decode_dataspace, body, what)

    def filters(self, body: bytes, what: str) -> tuple[Filter, ...]:
        """Return the filter pipeline of a message."""
        found = self._filters.get(body)
        return found or self._decode(self._filters, decode_filters, body, what)

    def _decode(
        self, known: dict[bytes, T], decode: Callable[[Cursor], T], body: bytes, what: str
    ) -> T:
        frame = self.frame
        everywhere = KNOWN.setdefault((decode, frame.offset_size, frame.length_size), {})
        found: T | None = everywhere.get(body)
        if found is None:
            found = decode(Cursor(body, frame, what))
            if len(body) <= _SHORT:
                if len(everywhere) >= MOST_MESSAGES:
                    everywhere.clear()
                everywhere[body] = found
        known[body] = found
        return found


# -- shared messages -----------------------------------------------------------------------------


#: Messages that are elsewhere, or why they cannot be read.
Found: TypeAlias = dict[oh.Shared, bytes | NCZarrError]
#: Lines of the table, at most: one for each combination of types.
_MOST_INDEXES = 8


class SharedMessages:
    """Finds shared messages, each once.

    Attributes
    ----------
    decoded : Decoded
        Decoder of equal messages, which objects have in common without sharing them.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.decoded = Decoded(frame)
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
        bodies = await caught(self._bodies(type_, wanted))
        if isinstance(bodies, NCZarrError):
            self._found.update(dict.fromkeys(wanted, bodies))
        else:
            self._found.update(zip(wanted, bodies, strict=True))

    async def _bodies(self, type_: int, wanted: list[oh.Shared]) -> list[bytes]:
        if self._table is None:
            self._table = Once(self._read_table)
        address = (await self._table.get()).get(type_)
        if address is None:
            reason = f"no heap for shared messages of type {type_}"
            raise self.frame.error("table of shared messages", reason)
        if address not in self._heaps:
            from nczarr_xarray.formats.hdf5.fractal import read_heap

            self._heaps[address] = Once(partial(read_heap, self.frame, address, "shared messages"))
        heap = await self._heaps[address].get()
        return await heap.objects([one.heap_id for one in wanted])

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
