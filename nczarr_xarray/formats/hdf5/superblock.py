"""The superblock (specification II.A): the beginning of HDF5 in a file, and its field sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from nczarr_fsspec.errors import FormatError, NCZarrError, UnsupportedError
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame, verify
from nczarr_xarray.formats.rounds import all_of, caught, read_some

SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Longer than any superblock.
_LONGEST = 128
_FIRST_READ = 4096
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


async def read_superblock(url: str, size: int) -> tuple[Frame, int]:
    """Find the superblock at 0, 512, 1024, 2048, ... and read it.

    Parameters
    ----------
    url, size
        URL of the file for messages, and its size in bytes.

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
    frame = Frame(url, base, end=size - base)
    cursor = Cursor(block, frame, "superblock")
    cursor.take(9)
    if version > 3:
        raise cursor.error(f"has version {version}, known are 0 to 3")
    stated = _read_old(cursor, version) if version <= 1 else _read_new(cursor)
    # if a user block was put before it, the file ends later than stated
    end = None if stated.end is None else stated.end - (stated.base or 0)
    frame = replace(
        cursor.frame,
        extension=stated.extension,
        missing=max(0, end - frame.end) if end is not None else 0,
    )
    if stated.driver is not None:
        await _check_old_driver(frame, stated.driver)
    elif stated.extension is not None:
        await _check_extension(frame, stated.extension)
    return frame, frame.within(stated.root, 16, "root group")


class _Stated(NamedTuple):
    """Addresses of a superblock; the first two count from the beginning of the file."""

    base: int | None
    end: int | None
    root: int | None
    extension: int | None = None
    driver: int | None = None


async def _check_old_driver(frame: Frame, address: int) -> None:
    """Refuse a file whose driver information block says that the data are in other files."""
    what = "driver information"
    block = await frame.read(frame.within(address, 16, what), 16)
    cursor = Cursor(block, frame, what)
    cursor.take(8)  # version, size
    _refuse(frame, cursor.take(8))


async def _check_extension(frame: Frame, address: int) -> None:
    """Refuse a file whose extension says that the data are in other files, or in an image."""
    header = await caught(oh.read_header(frame, address, "superblock extension"))
    if isinstance(header, NCZarrError):
        return  # readers of what is in there raise the error
    if driver := header.first(oh.DRIVER):
        cursor = header.cursor(driver, "driver information")
        cursor.take(1)  # version
        _refuse(frame, cursor.take(8))
    if header.first(oh.CACHE_IMAGE):
        raise UnsupportedError(
            frame.url,
            "has its metadata in an image of the metadata cache, which libhdf5 alone can read: "
            "rewrite it (h5repack FILE whole.h5) and open that",
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
    head = await read_some(0, _FIRST_READ)
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


def _frame(cursor: Cursor, offset_size: int, length_size: int) -> Frame:
    frame = cursor.frame
    if offset_size not in (2, 4, 8) or length_size not in (2, 4, 8):
        reason = f"addresses of {offset_size} bytes and lengths of {length_size}"
        raise cursor.error(f"{reason}, known are 2, 4 and 8")
    return Frame(frame.url, frame.base, offset_size, length_size, frame.end)


def _read_old(cursor: Cursor, version: int) -> _Stated:
    cursor.take(4)  # versions of other structures
    cursor.frame = _frame(cursor, cursor.uint(1), cursor.uint(1))
    cursor.take(9 if version == 0 else 13)  # widths of group and chunk trees, flags
    base, _, end, driver = (cursor.address() for _ in range(4))  # and where free space is listed
    cursor.length()  # the root group's symbol table entry: it has no name
    return _Stated(base, end, cursor.address(), driver=driver)


def _read_new(cursor: Cursor) -> _Stated:
    frame = cursor.frame = _frame(cursor, cursor.uint(1), cursor.uint(1))
    cursor.take(1)  # flags
    base, extension, end, root = (cursor.address() for _ in range(4))
    verify(cursor.data[: cursor.position + 4], frame, cursor.what)
    return _Stated(base, end, root, extension)
