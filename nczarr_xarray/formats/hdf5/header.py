"""The headers of a file and of its objects: superblock (specification II.A), messages (IV.A.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from struct import Struct
from typing import NamedTuple, TypeAlias, TypeVar

from nczarr_fsspec.errors import FormatError, NCZarrError, UnsupportedError
from nczarr_xarray.formats.hdf5.binary import Address, Cursor, Frame, verify
from nczarr_xarray.formats.rounds import all_of, caught, read_some

T = TypeVar("T")

# Types of messages.
NIL = 0x00
DATASPACE = 0x01
LINK_INFO = 0x02
DATATYPE = 0x03
OLD_FILL = 0x04
FILL = 0x05
LINK = 0x06
EXTERNAL = 0x07
LAYOUT = 0x08
FILTERS = 0x0B
ATTRIBUTE = 0x0C
SHARED_TABLE = 0x0F
CONTINUATION = 0x10
SYMBOL_TABLE = 0x11
DRIVER = 0x14
ATTRIBUTE_INFO = 0x15
CACHE_IMAGE = 0x18
#: All types of version 3.0 of the specification except "bogus", which is unknown on purpose.
_KNOWN = frozenset(range(0x19)) - {0x09}

# Flags of messages.
_IS_SHARED = 0x02
_FAIL_IF_UNKNOWN = 0x80

#: First fields of messages: type, size, flags, and the order of creation if it is kept.
_OLD_HEAD = Struct("<HHB3x")
_NEW_HEAD = Struct("<BHB")
_ORDERED_HEAD = Struct("<BHBH")

#: Bytes read of a header at first: most are not longer, and the rest takes another round.
_FIRST_READ = 2048


class Shared(NamedTuple):
    """The location of a message that several objects share (specification IV.A.2, shared message).

    It is the message of type `type` in the object header at `address`, or the
    object `heap_id` of the file's heap of shared messages.
    """

    type: int
    address: int | None
    heap_id: bytes = b""


#: The bytes of a message, or where they are.
Body: TypeAlias = bytes | Shared


class Message(NamedTuple):
    """A message: its bytes, or where they are, and its number if the order of creation is kept."""

    type: int
    body: Body
    order: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The messages of one object, in their order.

    Parameters
    ----------
    what
        The object's name, for messages to users: ``"/v, object header at 96"``.
    """

    frame: Frame
    what: str
    address: int
    messages: tuple[Message, ...]

    def all(self, type_: int) -> list[Message]:
        """Return the messages of a type."""
        return [message for message in self.messages if message.type == type_]

    def first(self, type_: int) -> Message | None:
        """Return the first message of a type."""
        for message in self.messages:
            if message.type == type_:
                return message
        return None

    def cursor(self, message: Message, name: str) -> Cursor:
        """Return a cursor over the fields of a message that is not shared."""
        what = f"{self.what}, {name}"
        if isinstance(message.body, Shared):
            raise self.frame.error(what, "is a shared message, and must not be")
        return Cursor(message.body, self.frame, what)

    def decoded(self, decode: Callable[[Cursor], T], message: Message, name: str) -> T:
        """Decode a message that is not shared; see `Frame.decoded`."""
        cursor = self.cursor(message, name)
        return self.frame.decoded(decode, cursor.data, cursor.what)


async def read_header(frame: Frame, address: int, name: str) -> Header:
    """Read an object header with all its continuation blocks.

    Parameters
    ----------
    name
        Name of the object, for messages (``"/g/v"``).

    Raises
    ------
    FormatError
        If it is damaged, or has an unknown message that readers must understand.
    """
    what = f"{name}, object header at {address}"
    frame.within(address, 16, what)
    block = bytes(await frame.peek(address, _FIRST_READ))  # how many count is seen below
    cursor = Cursor(block, frame, what)
    size, head = _prefix(cursor)
    total = cursor.position + size + (0 if head is _OLD_HEAD else 4)
    frame.within(address, total, what)
    frame.note(address, total)
    if total > len(block):
        block = bytes(await frame.read(address, total))
    found, further = frame.decoded(_first_block, block[:total], what)
    blocks, seen, used = 1, {address}, total
    while further:
        wanted = [(frame.within(there, length, what), length) for there, length in further]
        used += sum([length for _, length in wanted])
        seen.update([there for there, _ in wanted])
        blocks += len(wanted)
        if len(seen) != blocks or used > frame.end:
            raise frame.error(what, "its continuation blocks overlap")
        further = ()
        read = await all_of(frame.read(*one) for one in wanted)
        for (there, _), data in zip(wanted, read, strict=True):
            of = f"{what}, continuation at {there}"
            more, behind = frame.decoded(_FURTHER[head], bytes(data), of)
            found += more
            further += behind
    return Header(frame, what, address, found)


def _prefix(cursor: Cursor) -> tuple[int, Struct]:
    """Take what is before the messages: their bytes in this block, and their first fields."""
    if cursor.data[:4] != b"OHDR":
        version, size = cursor.unpack("B7xI4x")  # between them: numbers of messages and links
        if version != 1:
            reason = f"there is none (it would begin with 1 or 'OHDR', not {version})"
            raise cursor.error(reason)
        return size, _OLD_HEAD
    version, flags = cursor.unpack("4xBB")
    if version != 2:
        raise cursor.error(f"has version {version}, known are 1 and 2")
    cursor.take((16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0))  # times, phase change
    return cursor.uint(1 << (flags & 0x03)), _ORDERED_HEAD if flags & 0x04 else _NEW_HEAD


#: The messages of a block, and extents of further ones.
_Block: TypeAlias = "tuple[tuple[Message, ...], tuple[tuple[Address, int], ...]]"


def _first_block(cursor: Cursor) -> _Block:
    """Decode the first block of a header."""
    size, head = _prefix(cursor)
    if head is not _OLD_HEAD:
        verify(cursor.data, cursor.frame, cursor.what)
    return _messages(cursor.take(size), head, cursor)


def _further_block(head: Struct, cursor: Cursor) -> _Block:
    """Decode a continuation block of a header."""
    if head is _OLD_HEAD:
        return _messages(cursor.data, head, cursor)
    cursor.expect(b"OCHK")
    verify(cursor.data, cursor.frame, cursor.what)
    return _messages(cursor.data[4:-4], head, cursor)


_FURTHER = {h: partial(_further_block, h) for h in (_OLD_HEAD, _NEW_HEAD, _ORDERED_HEAD)}


def _messages(block: bytes, head: Struct, of: Cursor) -> _Block:
    """Return the messages of one block of a header, and extents of further blocks.

    Parameters
    ----------
    head
        The first fields of each message.
    """
    frame, what = of.frame, of.what
    messages: list[Message] = []
    further: list[tuple[Address, int]] = []
    unpack, at, last = head.unpack_from, 0, len(block) - head.size
    while at <= last:  # behind the last one there may be a gap
        type_, size, flags, *order = unpack(block, at)
        start = at + head.size
        at = start + size
        if at > len(block):
            raise frame.error(what, f"ends after {len(block)} bytes, {at} were expected")
        body = block[start:at]
        if type_ == NIL:
            continue
        if type_ == CONTINUATION:
            cursor = Cursor(body, frame, what)
            further.append((cursor.address(), cursor.length()))
        elif type_ in _KNOWN:
            shared = flags & _IS_SHARED
            location = shared_location(Cursor(body, frame, what), type_) if shared else body
            messages.append(Message(type_, location, *order))
        elif flags & _FAIL_IF_UNKNOWN:
            reason = f"has a message of type {type_}, which is not known but must be"
            raise frame.error(what, reason)
    return tuple(messages), tuple(further)


def shared_location(cursor: Cursor, type_: int) -> Shared:
    """Decode the location of a shared message of a type."""
    version, kind = cursor.unpack("BB")
    if version == 1:
        cursor.take(6)
        cursor.length()  # a symbol table entry, of which only the address is used
    elif version == 3 and kind == 1:
        return Shared(type_, None, cursor.take(8))
    elif version not in (2, 3):
        raise cursor.error(f"a shared message of version {version}, known are 1 to 3")
    address = cursor.address()
    if address is None:
        raise cursor.error("a shared message without an address")
    return Shared(type_, address)


# -- superblock ------------------------------------------------------------------------------------


SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Longer than any superblock.
_LONGEST = 128
_SUPERBLOCK_READ = 4096
#: Bytes of a file of another kind that the error message shows.
_SHOWN = 24
#: Files of other kinds that users take for one, by how they begin, and what to do with them.
_OTHERS = (
    (b"<", "as a web page does: the server may want a login"),
    (b"\x1f\x8b", "as gzip does: decompress it first"),
    (b"BZh", "as bzip2 does: decompress it first"),
    (b"\xfd7zXZ", "as xz does: decompress it first"),
    (b"\x28\xb5\x2f\xfd", "as zstd does: decompress it first"),
    (b"GRIB", "as GRIB does: engine='cfgrib' reads it"),
    (b"\x0e\x03\x13\x01", "as HDF4 does: h4toh5 converts it"),
    (b"version https://git-lfs", "as a pointer of Git LFS does: git lfs pull gets the file"),
)
_UNKNOWN = (
    "; if another engine of xarray reads it, "
    "xr.open_dataset(PATH, engine=...).nczarr.to_nczarr(TARGET) copies it"
)


async def read_superblock(url: str, size: int, head: bytes = b"") -> tuple[Frame, int]:
    """Find the superblock at 0, 512, 1024, 2048, ... and read it.

    Parameters
    ----------
    url, size
        URL of the file for messages, and its size in bytes.
    head
        Its first bytes, if they are at hand.

    Returns
    -------
    The properties of the file, and the address of the root group's object header.

    Raises
    ------
    FormatError
        If this is no HDF5 file, or its superblock is damaged.
    UnsupportedError
        If its data, or its metadata, are not where addresses lead: in other files, or in an image
        of the metadata cache.

    Notes
    -----
    Addresses count from the superblock, as in libhdf5, even if it states another
    base address. The end of the file is its real end, even if the superblock
    states another one: so the rest of a truncated file can be read.
    """
    base, block = await _find(url, size)
    version = block[8]
    cursor = Cursor(block, Frame(url, base, end=size - base), "superblock")
    cursor.take(9)
    if version > 3:
        raise cursor.error(f"has version {version}, known are 0 to 3")
    cursor.take(4 if version < 2 else 0)  # versions of other structures
    sizes = cursor.uint(1), cursor.uint(1)
    if not {2, 4, 8}.issuperset(sizes):
        reason = f"addresses of {sizes[0]} bytes and lengths of {sizes[1]}"
        raise cursor.error(f"{reason}, known are 2, 4 and 8")
    cursor.frame = frame = Frame(url, base, *sizes, end=size - base, head=head)
    cursor.take((9, 13, 1, 1)[version])  # widths of group and chunk trees, flags
    extension = driver = None
    if version < 2:
        stated_base, _, end, driver = (cursor.address() for _ in range(4))  # and of free space
        cursor.length()  # the root group's symbol table entry: it has no name
        root = cursor.address()
    else:
        stated_base, extension, end, root = (cursor.address() for _ in range(4))
        verify(cursor.data[: cursor.position + 4], frame, cursor.what)
    # if a user block was put before it, the file ends later than stated
    missing = 0 if end is None else max(0, end - (stated_base or 0) - frame.end)
    frame = replace(frame, extension=extension, missing=missing)
    if driver is not None:
        what = "driver information"
        block = await frame.read(frame.within(driver, 16, what), 16)
        _refuse(frame, bytes(block[8:]))  # behind version and size
    elif extension is not None:
        await _check_extension(frame, extension)
    return frame, frame.within(root, 16, "root group")


async def _check_extension(frame: Frame, address: int) -> None:
    """Refuse a file whose extension says that the data are in other files, or in an image."""
    header = await caught(read_header(frame, address, "superblock extension"))
    if isinstance(header, NCZarrError):
        return  # readers of what is in there raise the error
    if driver := header.first(DRIVER):
        cursor = header.cursor(driver, "driver information")
        cursor.take(1)  # version
        _refuse(frame, cursor.take(8))
    if header.first(CACHE_IMAGE):
        reason = "has its metadata in an image of the metadata cache, which libhdf5 alone can read:"
        raise UnsupportedError(
            frame.url, f"{reason} rewrite it (h5repack FILE whole.h5) and open that"
        )


def _refuse(frame: Frame, driver: bytes) -> None:
    """Refuse a driver that puts bytes elsewhere; other drivers are ignored, as in libhdf5."""
    if driver == b"NCSAmult":
        reason = (
            "is of HDF5's multi (or split) driver, and has its data in other files: make one of "
            "them (h5repack --src-vfd-name=split NAME whole.h5, or h5py with driver='split') "
            "and open that"
        )
    elif not frame.missing:
        return
    elif driver == b"NCSAfami":
        reason = (
            f"is one of the pieces of a file of HDF5's family driver, and {frame.missing} bytes "
            "are in others: join them all in their order (cat NAME0.h5 NAME1.h5 ... > whole.h5) "
            "and open that"
        )
    else:
        name = driver.rstrip(b"\0").decode("ascii", "backslashreplace")
        reason = (
            f"is of HDF5's driver {name!r}, and {frame.missing} bytes are in other files: make "
            "one of them (with h5repack; of subfiling with h5fuse) and open that"
        )
    raise UnsupportedError(frame.url, reason)


async def _find(url: str, size: int) -> tuple[int, memoryview]:
    """Return address and bytes of the first superblock."""
    if not size:
        raise FormatError(url, "is neither a classic netCDF file nor HDF5: it is empty")
    head = await read_some(0, _SUPERBLOCK_READ)
    starts = [0]
    while (start := starts[-1] * 2 or 512) + len(SIGNATURE) < size:
        starts.append(start)
    blocks = [head[start : start + _LONGEST] for start in starts if start < len(head)]
    if not any(bytes(block[:8]) == SIGNATURE for block in blocks):
        behind = starts[len(blocks) :]
        blocks += await all_of(read_some(start, _LONGEST) for start in behind)
    for start, block in zip(starts, blocks, strict=False):
        if bytes(block[:8]) == SIGNATURE and len(block) > 8:
            return start, block
    begin = bytes(head)
    kinds = (f", {kind}" for beginning, kind in _OTHERS if begin.lstrip().startswith(beginning))
    reason = f"is neither a classic netCDF file nor HDF5: it begins with {begin[:_SHOWN]!r}"
    raise FormatError(url, f"{reason}{next(kinds, _UNKNOWN)}")
