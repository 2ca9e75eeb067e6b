"""The zip format without I/O: find the members, and turn one member's bytes into content.

Both readers here are generators: they yield the range ``(start, stop)`` of the
archive they want and are sent its bytes, so that one piece of code serves
local and remote archives (`answer`).

Source: PKWARE APPNOTE 6.3.10; layouts as netCDF-C 4.8.0 to 4.10.1 (everything
below one directory) and zarr-python's ``ZipStore`` (keys at the top) write them.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import lzma
import struct
import sys
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, cast

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError, too_large
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.keystore import (
    ALL,
    MAX_METADATA,
    ZARR_METADATA,
    check_key,
    child_names,
    is_safe_name,
)

# -- inflate -------------------------------------------------------------------------------------
# The compression methods of zip, undone within bounds.


def _deflate64(data: bytes, most: int) -> bytes:
    try:  # only when such a member is met: importing it also teaches zipfile this method
        from zipfile_deflate64 import deflate64
    except ImportError:
        raise ValueError("deflate64 needs pip install 'nczarr-xarray[deflate64]'") from None

    inflater = deflate64.Deflate64()
    parts: list[bytes] = []
    total = 0
    # It has no bound of its own: 256 bytes give 7.5 MB at most (65538 bytes from 18 bits).
    for start in range(0, len(data), 256):
        if total >= most or inflater.eof:
            break
        parts.append(inflater.decompress(data[start : start + 256]))
        total += len(parts[-1])
    return b"".join(parts)


def _lzma(data: bytes, most: int) -> bytes:
    # APPNOTE 5.8.8: version, size of properties, properties (lc, lp, pb; dictionary size)
    if len(data) < 9 or data[2:4] != b"\x05\x00" or data[4] >= 225:
        raise ValueError("bad LZMA properties")
    rest, lc = divmod(data[4], 9)
    pb, lp = divmod(rest, 5)
    # no match reaches back farther than the content is long
    dictionary = min(int.from_bytes(data[5:9], "little"), max(most, 4096))
    filters = [{"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": dictionary}]
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
    return decompressor.decompress(data[9:], most)


#: By number of the method: takes the data of a member and the most bytes to return.
INFLATE: dict[int, Callable[[bytes, int], bytes]] = {
    8: lambda data, most: zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most),
    9: _deflate64,
    12: lambda data, most: bz2.BZ2Decompressor().decompress(data, most),
    14: _lzma,
}


# -- zipformat -----------------------------------------------------------------------------------


T = TypeVar("T")

#: Yields ranges of the archive, is sent their bytes, returns a T.
Plan: TypeAlias = Generator[tuple[int, int], bytes, T]

#: the system that older programs for Windows say that an archive was made on
_DOS = 0
STORED = 0
#: enough for the end record with the longest comment, and the directory of a small archive
TAIL_BYTES = 66 * 1024
#: that of ten million members takes so much
_MAX_DIRECTORY = 1 << 30

LOCAL_HEADER = struct.Struct("<4s22xHH")
_LONGEST_EXTRA = 0xFFFF
_ENCRYPTED_OR_PATCHED = 0x1 | 0x20 | 0x40
_ROOT_KEYS = ZARR_METADATA | {".nczarr", ".nczgroup"}


def advance(
    plan: Plan[T], data: bytes | None = None
) -> tuple[tuple[int, int], None] | tuple[None, T]:
    """Send `data` (None at first) into `plan`: either the next range it wants, or its result."""
    try:
        return plan.send(data), None  # type: ignore[arg-type]
    except StopIteration as end:
        return None, end.value


def answer(plan: Plan[T], read: Callable[[int, int], bytes]) -> T:
    """Run `plan` with a function that reads a range at once."""
    wanted, result = advance(plan)
    while wanted is not None:
        wanted, result = advance(plan, read(*wanted))
    return cast(T, result)


@dataclass(frozen=True, slots=True)
class Member:
    """One file in the archive.

    Parameters
    ----------
    offset, limit
        Where its local header starts and the next thing in the archive begins.
    """

    offset: int
    limit: int
    compressed_size: int
    size: int
    crc: int
    method: int
    flags: int


@dataclass(frozen=True)
class Archive:
    """The members of one dataset in an archive, by key.

    Parameters
    ----------
    directory
        Where they are in the archive, with a slash; ``""`` if that is its top.
    others
        What is beside that directory, by its path in the archive.
    """

    url: str
    members: dict[str, Member]
    directory: str = ""
    others: dict[str, Member] = field(default_factory=dict)

    @cached_property
    def children(self) -> dict[str, frozenset[str]]:
        """Names directly below every prefix; without a dataset, of what there is instead."""
        return child_names(self.members or self.others)

    def digest(self) -> str:
        """Return names, places and checksums of all members, as a short text."""
        return hashlib.sha256(repr(sorted(self.members.items())).encode()).hexdigest()

    def divides(self, keys: Iterable[str]) -> bool:
        """Tell whether those of `keys` that exist are stored without compression."""
        found = map(self.members.get, keys)
        return all(member is None or member.method == STORED for member in found)

    def read(self, key: str, part: slice, most: int | None, *, whole: bool) -> Plan[bytes | None]:
        """Return `part` of the content of `key`; None if there is no such member.

        Parameters
        ----------
        most
            Bytes that the member may have.
        whole
            Fetch header and data in one range (a request is dear), not the
            header first and then exactly the data (a copy is dear).
        """
        member = self.members.get(check_key(key))
        if member is None:
            return None
        name = f"{self.url}: member {key!r}"
        check_readable(name, member)
        if most is not None:
            stored = min(member.compressed_size, member.limit - member.offset)
            # what does not compress becomes longer by very little
            if max(member.size, (stored - 64) * 7 // 8) > most:
                raise too_large(name, most)
        partial = member.method == STORED and part != ALL
        if whole and not partial:
            span = yield member.offset, member.limit
            begin = data_offset(name, member, span)
            data = span[begin : begin + member.compressed_size]
            _exactly(member.compressed_size, name, data)
        else:
            header = yield member.offset, member.offset + LOCAL_HEADER.size
            base = member.offset + data_offset(name, member, header)
            begin, end, _ = (part if partial else ALL).indices(member.compressed_size)
            end = max(begin, end)
            data = _exactly(end - begin, name, (yield base + begin, base + end))
            if partial:
                return data
        return _verified(name, member, inflated(name, member, data))[part]


def read_archive(url: str, size: int, tail: bytes = b"") -> Plan[Archive]:
    """Read the central directory of an archive.

    Parameters
    ----------
    url, size
        Of the archive; bytes.
    tail
        Its last bytes, if they are here already.

    Raises
    ------
    StoreError
        If this is not a zip archive or its directory is damaged.
    DatasetNotFoundError
        If it holds no dataset, or several.
    """
    while True:
        try:
            with zipfile.ZipFile(_Window(tail, size)) as directory:
                archive = _dataset(url, directory)
                inner = _first_directory(directory)
                if inner and f"{inner}.zgroup" in archive.members:
                    # netCDF-C reads what is in the first directory, whatever is at the top
                    within = _dataset(url, directory, inner)
                    if (yield from _is_nczarr(within)):
                        return within
                return archive
        except _OutsideError as outside:
            # never fewer than TAIL_BYTES at a time, for the end record is looked for in steps
            held = size - len(tail)
            start = max(0, min(outside.start, held - TAIL_BYTES))
            if held - start > _MAX_DIRECTORY:
                reason = f"has a directory of {size - start} bytes, more than any archive needs"
                raise StoreError(url, reason) from None
            tail = _exactly(held - start, url, (yield start, held)) + tail
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise StoreError(url, f"is not a readable zip archive: {error}") from error
        except (OSError, ValueError, struct.error, EOFError, OverflowError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(url, f"is a damaged zip archive: {error}") from error


class _OutsideError(Exception):
    """Bytes from `start` on are wanted and not here."""

    def __init__(self, start: int) -> None:
        self.start = start


class _Window(io.RawIOBase):
    """A file of `size` bytes of which only the last ones are here."""

    def __init__(self, tail: bytes, size: int) -> None:
        self._tail = tail
        self._size = size
        self._position = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {0: 0, 1: self._position, 2: self._size}[whence]
        if position < 0:
            raise OSError("an offset points before the start of the archive")
        self._position = position
        return position

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._position + size, self._size)
        held = self._size - len(self._tail)
        if self._position < min(held, stop):
            raise _OutsideError(self._position)
        data = self._tail[self._position - held : max(stop - held, 0)]
        self._position += len(data)
        return data


def _dataset(url: str, directory: zipfile.ZipFile, prefix: str | None = None) -> Archive:
    """Return the members below the dataset's prefix; where a name repeats, the last one counts."""
    entries = directory.infolist()
    if not entries:
        raise DatasetNotFoundError(url, "the zip archive is empty")
    offsets = sorted({entry.header_offset for entry in entries} | {directory.start_dir})
    named = {_path(entry): entry for entry in entries}
    prefix = _prefix(url, named) if prefix is None else prefix
    members: dict[str, Member] = {}
    others: dict[str, Member] = {}
    for name, entry in named.items():
        key = name.removeprefix(prefix)
        if not all(map(is_safe_name, key.split("/"))):
            continue  # a directory, or a name that no key can ever have
        following = min(bisect_right(offsets, entry.header_offset), len(offsets) - 1)
        longest = 30 + 4 * len(name) + 8 + _LONGEST_EXTRA + entry.compress_size + 24
        found = members if name.startswith(prefix) else others
        found[key] = Member(
            entry.header_offset,
            # a gap, left by a deleted member, is not read in full
            min(offsets[following], entry.header_offset + longest),
            entry.compress_size,
            entry.file_size,
            entry.CRC,
            entry.compress_type,
            entry.flag_bits,
        )
    return Archive(url, members, prefix, others)


def _path(entry: zipfile.ZipInfo) -> str:
    """Return the path of an entry in its archive, as programs that unpack it have it."""
    name = entry.filename
    if entry.create_system == _DOS and "/" not in name:  # of .NET before 4.6.1
        name = name.replace("\\", "/")
    while name.startswith(("/", "./")):
        name = name.removeprefix(".").lstrip("/")
    return name


def _first_directory(directory: zipfile.ZipFile) -> str:
    """Return the directory of the first entry, with a slash; ``""`` if that is at the top."""
    top, slash, _ = _path(directory.infolist()[0]).partition("/")
    return top + slash if slash else ""


def _is_nczarr(archive: Archive) -> Plan[bool]:
    """Tell whether the root has NCZarr's superblock, which no group inside of a dataset has."""
    if ".nczarr" in archive.members:
        return True
    for key in (".zattrs", ".zgroup"):
        content = yield from archive.read(key, ALL, MAX_METADATA, whole=True)
        if content is not None and b'"_nczarr_superblock"' in content.lower():
            return True
    return False


def _prefix(url: str, names: dict[str, zipfile.ZipInfo]) -> str:
    """Return ``""`` if the keys start at the top of the archive, else the dataset's directory."""
    if not _ROOT_KEYS.isdisjoint(names):
        return ""
    tops = {name.partition("/")[0] for name in names} - {""}
    if len(tops) > 1:  # a README or a macOS resource directory beside the dataset?
        tops = {top for top in tops if any(f"{top}/{key}" in names for key in _ROOT_KEYS)} or tops
    if len(tops) != 1:
        some = ", ".join(sorted(tops)[:5]) or "nothing"
        raise DatasetNotFoundError(
            url,
            f"the zip archive has {len(tops)} entries at its top ({some}"
            f"{', ...' if len(tops) > 5 else ''}) and no Zarr key among them; "
            "an archive must hold one dataset, in one directory or at its top",
        )
    return tops.pop() + "/"


def check_readable(name: str, member: Member) -> None:
    """Raise `StoreError` for a member that cannot be read, however its bytes are."""
    if not 0 <= member.offset < member.limit:
        raise StoreError(name, "lies outside the archive: damaged archive")
    if member.flags & _ENCRYPTED_OR_PATCHED:
        raise StoreError(name, "is encrypted or a patch; store it plainly")
    if member.method not in INFLATE and member.method != STORED:
        raise StoreError(
            name,
            f"uses compression method {member.method}, which is not one of "
            "0 (stored), 8 (deflate), 9 (deflate64), 12 (bzip2) and 14 (LZMA); repack the archive",
        )
    if member.method == STORED and member.size != member.compressed_size:
        raise StoreError(name, "is stored, yet states two sizes: damaged archive")


def data_offset(name: str, member: Member, header: bytes) -> int:
    """Return where the data begins after the local header, with its name and extra field."""
    if len(header) < LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise StoreError(name, "has no local header where the directory points: damaged archive")
    _, name_size, extra_size = LOCAL_HEADER.unpack_from(header)
    begin: int = LOCAL_HEADER.size + name_size + extra_size
    if member.offset + begin + member.compressed_size > member.limit:
        raise StoreError(name, "reaches into what follows it: damaged archive")
    return begin


def _exactly(count: int, name: str, data: bytes) -> bytes:
    if len(data) != count:
        raise StoreError(name, f"is truncated: {len(data)} bytes where {count} are expected")
    return data


def _verified(name: str, member: Member, content: bytes) -> bytes:
    if len(content) != member.size:
        more = "more than " if len(content) > member.size else f"{len(content)} bytes, not "
        raise StoreError(name, f"inflates to {more}the stated {member.size} bytes")
    if zlib.crc32(content) != member.crc:
        raise StoreError(name, "fails its CRC-32 check: the archive is damaged")
    return content


def inflated(name: str, member: Member, data: bytes) -> bytes:
    """Decompress, but never much beyond the stated size."""
    if member.method == STORED:
        return data
    try:
        return INFLATE[member.method](data, min(member.size + 1, sys.maxsize))
    except MemoryError:
        raise StoreError(name, f"states {member.size} bytes, which do not fit") from None
    except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
        raise StoreError(name, f"cannot be decompressed: {error}") from error
