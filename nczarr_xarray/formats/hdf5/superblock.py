"""The superblock (specification II.A): where HDF5 begins in a file, and how to read the rest."""

from __future__ import annotations

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.checksum import verify
from nczarr_xarray.formats.waves import read_some, together

SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Longer than any superblock.
_LONGEST = 128
_FIRST_READ = 4096
#: Bytes of another file that its error message shows.
_SHOWN = 24


async def read_superblock(url: str, size: int) -> tuple[Frame, int]:
    """Find the superblock at 0, 512, 1024, 2048, ... and read it.

    Parameters
    ----------
    url, size
        Of the file; `url` is for messages.

    Returns
    -------
    What holds for the rest of the file, and the address of the root group's object header.

    Raises
    ------
    FormatError
        If this is no HDF5 file, or its superblock is damaged.

    Notes
    -----
    Addresses count from the superblock, whatever base address it states, and
    the file ends where it ends, whatever the superblock states: libhdf5 does
    the first too. Of a file that has been cut off the rest can be read.
    """
    base, block = await _find(url, size)
    version = block[8]
    frame = Frame(url, base, end=size - base)
    cursor = Cursor(block, frame, "superblock")
    cursor.take(9)
    if version <= 1:
        return _read_old(cursor, version)
    if version <= 3:
        return _read_new(cursor)
    raise cursor.error(f"has version {version}, known are 0 to 3")


async def _find(url: str, size: int) -> tuple[int, memoryview]:
    """Address and bytes of the first superblock."""
    if not size:
        raise FormatError(url, "is neither a classic netCDF file nor HDF5: it is empty")
    head = await read_some(0, _FIRST_READ)
    starts = [0]
    while (start := starts[-1] * 2 or 512) + len(SIGNATURE) < size:
        starts.append(start)
    blocks = [head[start : start + _LONGEST] for start in starts if start < len(head)]
    if not any(bytes(block[:8]) == SIGNATURE for block in blocks):
        behind = starts[len(blocks) :]
        blocks += await together(_some(start) for start in behind)
    for start, block in zip(starts, blocks, strict=False):
        if bytes(block[:8]) == SIGNATURE and len(block) > 8:
            return start, block
    begins = f"it begins with {bytes(head[:_SHOWN])!r}"
    if bytes(head).lstrip().startswith(b"<"):
        begins += ", as a web page does"
    raise FormatError(url, f"is neither a classic netCDF file nor HDF5: {begins}")


async def _some(start: int) -> memoryview:
    return await read_some(start, _LONGEST)


def _frame(cursor: Cursor, offset_size: int, length_size: int) -> Frame:
    frame = cursor.frame
    if offset_size not in (2, 4, 8) or length_size not in (2, 4, 8):
        reason = f"addresses of {offset_size} bytes and lengths of {length_size}"
        raise cursor.error(f"{reason}, known are 2, 4 and 8")
    return Frame(frame.url, frame.base, offset_size, length_size, frame.end)


def _read_old(cursor: Cursor, version: int) -> tuple[Frame, int]:
    cursor.take(4)  # versions of other structures
    frame = cursor.frame = _frame(cursor, cursor.uint(1), cursor.uint(1))
    cursor.take(9 if version == 0 else 13)  # widths of group and chunk trees, flags
    for _ in range(4):  # base, free space, end of file, driver information
        cursor.address()
    cursor.length()  # the root group's symbol table entry: it has no name
    root = cursor.address()
    return frame, frame.within(root, 16, "root group")


def _read_new(cursor: Cursor) -> tuple[Frame, int]:
    frame = cursor.frame = _frame(cursor, cursor.uint(1), cursor.uint(1))
    cursor.take(1)  # flags
    cursor.address()  # base
    extension = cursor.address()
    cursor.address()  # end of file
    root = cursor.address()
    end = cursor.position + 4
    verify(cursor.data[:end], frame, cursor.what)
    frame = Frame(frame.url, frame.base, frame.offset_size, frame.length_size, frame.end, extension)
    return frame, frame.within(root, 16, "root group")
