"""Little-endian fields of HDF5 structures, read with bounds checked."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any, TypeAlias, TypeVar

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.rounds import Read

T = TypeVar("T")

#: Dimensions that HDF5 allows.
MOST_DIMENSIONS = 32
#: An address of HDF5, relative to the base address; None where the file says "undefined".
Address: TypeAlias = "int | None"


#: Codes of `struct` for unsigned numbers, by their size.
_UNSIGNED = {2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Frame:
    """The properties that the superblock fixes for the rest of the file.

    Parameters
    ----------
    url
        The file, for messages.
    base
        The position of address 0 in the file (behind a user block, say).
    offset_size, length_size
        Bytes of an address and of a length.
    end
        The end of the file, relative to `base`.
    extension
        Address of the superblock extension, an object header, if there is one.
    missing
        Bytes that the file lacks, compared with the end that the superblock states.
    notes
        Where to note addresses and lengths of what the parser depends on; None if that is not
        wanted.
    head
        The first bytes of the file, if they are at hand.
    """

    url: str
    base: int = 0
    offset_size: int = 8
    length_size: int = 8
    end: int = (1 << 63) - 1
    extension: int | None = None
    missing: int = 0
    notes: list[tuple[int, int]] | None = field(default=None, compare=False, repr=False)
    head: bytes = field(default=b"", compare=False, repr=False)

    @property
    def undefined(self) -> int:
        """The address that means "none"."""
        return (1 << (8 * self.offset_size)) - 1

    def known(self, address: int) -> int | None:
        """Return `address`, or None if it is the one that means "none"."""
        return None if address == self.undefined else address

    def layout(self, fields: str) -> Struct:
        """Return the layout of `fields`: codes of `struct`, A for an address, L for a length."""
        return _layout(fields, _UNSIGNED[self.offset_size], _UNSIGNED[self.length_size])

    def read(self, address: int, length: int) -> Read:
        """Await `length` bytes at an address."""
        self.note(address, length)
        return self.peek(address, length, length)

    def read_some(self, address: int, length: int, least: int = 1) -> Read:
        """Await up to `length` bytes at an address; fewer only at the end of the file."""
        self.note(address, length)
        return self.peek(address, length, least)

    def peek(self, address: int, length: int, least: int = 1) -> Read:
        """Do as `read_some` does, of bytes on which the parser need not depend."""
        start, head = self.base + address, self.head
        stop = min(start + length, self.base + self.end)
        there = stop <= len(head) and stop - start >= least
        return Read(start, length, least, memoryview(head)[start:stop] if there else None)

    def note(self, address: int, length: int) -> None:
        """Note that the parser depends on these bytes."""
        if self.notes is not None:
            self.notes.append((self.base + address, length))

    def within(self, address: int | None, length: int, what: str) -> int:
        """Return `address`; raise `FormatError` if the file ends within `length` bytes."""
        if address is None or address + length > self.end:
            where = "nowhere" if address is None else f"at {address}"
            cut = f" (it is truncated: {self.missing} bytes are missing)" if self.missing else ""
            ends = f"in a file that ends at {self.end}{cut}"
            raise self.error(what, f"{length} bytes {where}, {ends}")
        return address

    def decoded(self, decode: Callable[[Cursor], T], data: bytes, what: str) -> T:
        """Return what a function makes of bytes; of equal ones in any file the same object.

        Parameters
        ----------
        decode
            Depends on nothing but the bytes, and the sizes of addresses and lengths.
        what
            What the bytes belong to: the name in the `FormatError` for damaged ones.
        """
        kept = self.kept(decode)
        found: T | None = kept.get(data)
        if found is None:
            found = decode(Cursor(data, self, what))
            keep(kept, data, found, len(data))
        return found

    def kept(self, decode: object) -> dict[Any, Any]:
        """Return what a function has made of structures of files with the same sizes."""
        return known_structures.setdefault((decode, self.offset_size, self.length_size), {})

    def error(self, what: str, reason: str) -> FormatError:
        """Return an error about a structure of this file (``"B-tree at 1234"``)."""
        return FormatError(self.url, f"{what}: {reason}")


@lru_cache(maxsize=256)
def _layout(fields: str, address: str, length: str) -> Struct:
    return Struct("<" + fields.replace("L", length).replace("A", address))


# -- decoded -------------------------------------------------------------------------------------
# Thousands of attributes and datasets have the same few datatypes, dataspaces and filter pipelines,
# byte for byte. Files of one kind have whole headers in common.


#: Structures of all files up to so many bytes are kept, and so many of each kind at most.
_SHORT = MOST_STRUCTURES = 2048
#: They, by what decodes them and by the sizes of addresses and lengths.
known_structures: dict[tuple[object, int, int], dict[Any, Any]] = {}


def keep(kept: dict[Any, Any], key: object, value: object, nbytes: int) -> None:
    """Keep what so many bytes were decoded into; if there is too much of it, forget the rest."""
    if nbytes <= _SHORT:
        if len(kept) >= MOST_STRUCTURES:
            kept.clear()
        kept[key] = value


class Cursor:
    """Walks over the fields of one structure.

    Parameters
    ----------
    data
        The bytes of the structure; fields are copied from it.
    frame
        Frame of its file.
    what
        The structure's name, for messages: ``"object header at 96"``.
    """

    __slots__ = ("data", "frame", "position", "what")

    def __init__(self, data: bytes | memoryview, frame: Frame, what: str) -> None:
        self.data = bytes(data)  # slices of bytes are cheaper than views, also to collect
        self.frame = frame
        self.what = what
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes that have not been taken."""
        return len(self.data) - self.position

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start, stop = self.position, self.position + count
        if count < 0 or stop > len(self.data):
            raise self._short(stop)
        self.position = stop
        return self.data[start:stop]

    def unpack(self, fields: str) -> tuple[Any, ...]:
        """Return several fields at once (see `Frame.layout`); addresses are as stored."""
        layout = self.frame.layout(fields)
        start = self.position
        self.position = stop = start + layout.size
        if stop > len(self.data):
            raise self._short(stop)
        return layout.unpack_from(self.data, start)

    def uint(self, size: int) -> int:
        """Return an unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def address(self) -> int | None:
        """Return an address; None for the undefined one."""
        return self.frame.known(self.uint(self.frame.offset_size))

    def length(self) -> int:
        """Return a length."""
        return self.uint(self.frame.length_size)

    def expect(self, signature: bytes, version: int | None = None) -> None:
        """Take a signature, and the number of a version if there is one, or raise `FormatError`."""
        found = self.take(len(signature))
        if found != signature:
            raise self.error(f"begins with {found!r}, not {signature!r}")
        if version is not None and (stated := self.uint(1)) != version:
            raise self.error(f"has version {stated}, known is {version}")

    def error(self, reason: str) -> FormatError:
        """Return an error about this structure."""
        return self.frame.error(self.what, reason)

    def _short(self, stop: int) -> FormatError:
        return self.error(f"ends after {len(self.data)} bytes, {stop} were expected")


# -- checksum ------------------------------------------------------------------------------------
# The checksum over HDF5's metadata: Jenkins' lookup3 (specification, appendix of version 3.0).
#
# numcodecs has it compiled: a node of two kilobytes takes about a microsecond. But to import
# numcodecs takes as long as to sum 200 kB in Python, and most files have a few kB of metadata. So a
# process sums its first bytes in Python.


#: Bytes that a process sums in Python, if it has not imported numcodecs anyway.
_IN_PYTHON = 1 << 15
_ALL = 0xFFFFFFFF
#: How the words are mixed at the end: which of the three changes, by which, rotated how far.
_LAST = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


class Lookup3:
    """Sums bytes, by numcodecs once there are many."""

    def __init__(self) -> None:
        self._left = _IN_PYTHON
        self._compiled: Callable[[bytes | memoryview, int], Any] | None = None

    def __call__(self, data: bytes | memoryview) -> int:
        """Return the checksum of `data`."""
        if self._compiled is None:
            self._left -= len(data)
            if self._left >= 0 and "numcodecs" not in sys.modules:
                return in_python(data)
            from numcodecs.jenkins import jenkins_lookup3

            self._compiled = jenkins_lookup3
        return int(self._compiled(data, 0))


lookup3 = Lookup3()


def in_python(data: bytes | memoryview) -> int:
    """Return the checksum of `data`, without numcodecs."""
    a = b = c = (0xDEADBEEF + len(data)) & _ALL
    if not data:
        return c
    whole = (len(data) - 1) // 12  # the last block is mixed in another way, also if it is full
    words = iter(struct.unpack_from(f"<{3 * whole}I", data))
    for x, y, z in zip(words, words, words, strict=True):
        a, b, c = a + x, b + y, (c + z) & _ALL
        a, c = (a - c) & _ALL ^ (c << 4 & _ALL | c >> 28), (c + b) & _ALL
        b, a = (b - a) & _ALL ^ (a << 6 & _ALL | a >> 26), (a + c) & _ALL
        c, b = (c - b) & _ALL ^ (b << 8 & _ALL | b >> 24), (b + a) & _ALL
        a, c = (a - c) & _ALL ^ (c << 16 & _ALL | c >> 16), (c + b) & _ALL
        b, a = (b - a) & _ALL ^ (a << 19 & _ALL | a >> 13), (a + c) & _ALL
        c, b = (c - b) & _ALL ^ (b << 4 & _ALL | b >> 28), (b + a) & _ALL
    x, y, z = struct.unpack("<3I", bytes(data[12 * whole :]).ljust(12, b"\0"))
    mixed: list[int] = [(a + x) & _ALL, (b + y) & _ALL, (c + z) & _ALL]
    for one, other, bits in _LAST:
        word = mixed[other]
        rotated = word << bits & _ALL | word >> 32 - bits
        mixed[one] = ((mixed[one] ^ word) - rotated) & _ALL
    return mixed[2]


def verify(data: bytes | memoryview, frame: Frame, what: str) -> None:
    """Raise `FormatError` unless the last four bytes are the checksum of those before.

    Parameters
    ----------
    data
        A whole structure.
    frame, what
        For the message: its file and name (``"B-tree node at 4096"``).
    """
    if len(data) < 4 or lookup3(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise frame.error(what, "its checksum is wrong (damaged, or changed while it was read)")
