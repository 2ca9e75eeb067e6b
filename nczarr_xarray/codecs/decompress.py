"""Decompressors that never return more than the chunk they belong to.

A chunk of a few kilobytes may be made to inflate to gigabytes; each function
here stops at the size that is expected, or believes no header that says more.

What follows a complete stream is ignored: netCDF-C (4.10.1, observed) rewrites an
object in place and leaves the end of a longer one behind what it wrote.
"""

from __future__ import annotations

import bz2
import ctypes
import lzma
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import Buffer, Frame, Size, Step
from nczarr_xarray.model import CodecConfig

#: Of deflate (libdeflate), by codec: takes stored bytes, and how many they become at most.
LIBDEFLATE: dict[str, Callable[[Buffer, int], Buffer]] = {}
try:
    import deflate

    LIBDEFLATE = {"zlib": deflate.zlib_decompress, "gzip": deflate.gzip_decompress}
except ImportError:  # no wheel for this platform: zlib does it, two to three times slower
    pass
ZSTANDARD: Any = None
try:
    import zstandard

    ZSTANDARD = zstandard
except ImportError:  # numcodecs does it; of small chunks in twice the time
    pass

#: Decompressors that cannot be shared by threads; a new one takes as long as a small chunk.
_of_thread = threading.local()
#: Of a blosc 1 chunk: uncompressed size at byte 4, compressed size at byte 12.
_BLOSC_HEADER = struct.Struct("<4xI4xI")
#: What lzma may use for its dictionary; presets ask for 64 MiB at most.
_LZMA_MEMORY = 1 << 28


def inflate(config: CodecConfig, size: Size) -> Step:
    """Undo ``zlib``, a zlib stream, or ``gzip``, a gzip member."""
    fast, most = LIBDEFLATE.get(config["id"]), size.most
    # deflate counts in 32 bits, and takes all of the memory beforehand
    if fast is not None and size.exact and most < 1 << 31:
        return lambda data: fast(data, most)
    bits = 31 if config["id"] == "gzip" else 15
    return _stream(lambda: zlib.decompressobj(wbits=bits), size)


def bunzip2(_: CodecConfig, size: Size) -> Step:
    """Undo ``bz2``: a bzip2 stream."""
    return _stream(bz2.BZ2Decompressor, size)


def unlzma(config: CodecConfig, size: Size) -> Step:
    """Undo ``lzma``: a stream of xz, or what its settings say."""
    kind, filters = config.get("format", lzma.FORMAT_XZ), config.get("filters")
    if kind == lzma.FORMAT_RAW:
        return _stream(lambda: lzma.LZMADecompressor(kind, filters=filters), size)
    return _stream(lambda: lzma.LZMADecompressor(kind, memlimit=_LZMA_MEMORY), size)


def _stream(new: Callable[[], Any], size: Size) -> Step:
    def decompress(data: Buffer) -> Buffer:
        decompressor = new()
        plain = decompressor.decompress(data, size.most + 1)
        if len(plain) > size.most:
            raise FormatError("", f"decodes to more than {size.most} bytes")
        if not decompressor.eof:
            raise FormatError("", "the compressed stream is truncated")
        return plain

    return decompress


def unblosc(_: CodecConfig, size: Size) -> Step:
    """Undo ``blosc``: a blosc 1 container."""
    from numcodecs import blosc

    return lambda data: blosc.decompress(blosc_container(data, size))


def unblosc_into(_: CodecConfig, size: Size) -> Callable[[Buffer, memoryview], bool]:
    """Do as `unblosc` does, into a result."""
    from numcodecs import blosc

    def decompress(data: Buffer, room: memoryview) -> bool:
        blosc.decompress(blosc_container(data, size), room)
        return True

    return decompress


def blosc_container(data: Buffer, size: Size) -> Buffer:
    """Return a container whose header states the right size, without what follows it."""
    there = len(data)
    if there < _BLOSC_HEADER.size:
        raise FormatError("", f"holds {there} bytes, less than blosc's header")
    plain, stored = _BLOSC_HEADER.unpack_from(data)
    if stored > there:
        raise FormatError("", f"holds {there} bytes of a blosc chunk of {stored}")
    if plain != size.most:
        size.check(plain)
    return data if stored == there else memoryview(data)[:stored]


def unlz4(_: CodecConfig, size: Size) -> Step:
    """Undo ``lz4`` of numcodecs: the decoded size, then a block."""
    from numcodecs import lz4

    def decompress(data: Buffer) -> Buffer:
        size.check(int.from_bytes(memoryview(data)[:4], "little"))
        return lz4.decompress(data)

    return decompress


def unzstd(_: CodecConfig, size: Size) -> Step:
    """Undo ``zstd``: a frame."""
    if ZSTANDARD is None:
        return _unzstd_by_numcodecs(size)
    content_size, new = ZSTANDARD.frame_content_size, ZSTANDARD.ZstdDecompressor

    def decompress(data: Buffer) -> Buffer:
        stated = content_size(data)  # -1 if it is not stated
        if stated < 0 and not size.exact:
            raise FormatError("", "the zstd frame does not state its size")
        if stated >= 0:
            size.check(stated)
        try:
            decompressor = _of_thread.zstd
        except AttributeError:
            decompressor = _of_thread.zstd = new()
        return decompressor.decompress(data, max_output_size=size.most)

    return decompress


def unzstd_into(_: CodecConfig, size: Size) -> Callable[[Buffer, memoryview], bool]:
    """Do as `unzstd` does, into a result: numcodecs can, which is as fast with large chunks."""

    def decompress(data: Buffer, room: memoryview) -> bool:
        data = memoryview(data)
        frame = _ZstdFrame.parse(data)
        if frame.content != size.most:
            return False
        _numcodecs_zstd(data, frame, room)
        return True

    return decompress


def _unzstd_by_numcodecs(size: Size) -> Step:
    def decompress(data: Buffer) -> Buffer:
        data = memoryview(data)  # a checksum before it gives an array
        frame = _ZstdFrame.parse(data)
        stated = frame.content
        if stated is None and not size.exact:
            raise FormatError("", "the zstd frame does not state its size")
        if stated is not None:
            size.check(stated)  # numcodecs would leave the rest of `plain` as it is
        plain = np.empty(size.most if stated is None else stated, dtype=np.uint8)
        return _numcodecs_zstd(data, frame, plain)

    return decompress


def _numcodecs_zstd(data: memoryview, frame: _ZstdFrame, room: Buffer) -> Buffer:
    """Undo a frame into memory of the right size, and leave out what follows the frame."""
    from numcodecs import zstd

    try:
        return zstd.decompress(data, room)
    except (RuntimeError, ValueError):
        end = frame.end(data)
        if end >= len(data):
            raise
        return zstd.decompress(data[:end], room)


class _ZstdFrame(NamedTuple):
    """What the header of a zstd frame says (RFC 8878, section 3.1.1)."""

    content: int | None  # decoded size, if stated
    blocks: int  # where the first block begins
    checksum: bool

    @classmethod
    def parse(cls, data: memoryview) -> _ZstdFrame:
        if len(data) < 6 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":
            raise FormatError("", "does not begin with a zstd frame")
        descriptor = data[4]
        single = bool(descriptor & 0x20)
        width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
        start = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
        field = data[start : start + width]
        content = None
        if width and len(field) == width:
            content = int.from_bytes(field, "little") + (256 if width == 2 else 0)
        return cls(content, start + width, bool(descriptor & 4))

    def end(self, data: memoryview) -> int:
        """Return where the frame ends; beyond the end of `data` if that is cut."""
        position, last = self.blocks, False
        while not last and position < len(data):
            header = int.from_bytes(data[position : position + 3], "little")
            last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
            position += 3 + (1 if kind == 1 else length)  # kind 1: one byte, repeated
        return position + 4 * self.checksum if last else len(data) + 1


# -- frames --------------------------------------------------------------------------------------
# Many small chunks undone by one call: as the blocks of one frame of blosc.
#
# A frame of blosc is a header, where each block begins, and the blocks: each of them a compressed
# stream of bytes that were shuffled before. So stored chunks can be blocks as they are. libblosc2
# undoes all blocks of a frame in one call, in which it has no use for the interpreter's lock. Chunk
# by chunk, threads ask for the lock several times a chunk: where a chunk is inflated in some 10 us,
# two threads hardly take less time than one.
#
# libblosc2 is a part of the package blosc2 (extra ``fast``). The package itself is not imported.


#: Takes stored chunks; returns an array of bytes whose rows are the chunks. It is None if one of
#: them is damaged, or looks like something else to blosc.
Together: TypeAlias = Callable[[Sequence[Buffer]], "Sequence[Buffer] | None"]

#: version of the frame, version of the compressor, flags, bytes of an element; then bytes of the
#: data, of a block, and of the frame
_HEADER = struct.Struct("<BBBBiii")
_SHUFFLED = 0x1
#: A block is one stream, and not one for each byte of an element.
_UNDIVIDED = 0x10
#: Sizes are less than that, here and in the header.
MOST = 1 << 31
_LIBRARY = {"darwin": "libblosc2.dylib", "win32": "libblosc2.dll"}.get(sys.platform, "libblosc2.so")

_of_this_thread = threading.local()


class _Settings(ctypes.Structure):
    """libblosc2's ``blosc2_dparams``: longer than any release has it, as all but one are zero."""

    _fields_: ClassVar = [("nthreads", ctypes.c_int), ("rest", ctypes.c_char * 124)]


class _Context:
    """What libblosc2 keeps for one thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._free = library.blosc2_free_ctx
        self.address = library.blosc2_create_dctx(_Settings(nthreads=1))

    def __del__(self) -> None:
        self._free(self.address)


@cache
def library() -> ctypes.CDLL | None:
    """Return libblosc2, loaded at the first need; None if it is not installed."""
    package = find_spec("blosc2")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder, "lib", _LIBRARY)
        try:
            found = ctypes.CDLL(str(path))
        except OSError:  # releases before 4.0 have it elsewhere
            continue
        address, size = ctypes.c_void_p, ctypes.c_int32
        found.blosc2_create_dctx.argtypes = [_Settings]
        found.blosc2_create_dctx.restype = address
        found.blosc2_free_ctx.argtypes = [address]
        found.blosc2_free_ctx.restype = None
        found.blosc2_decompress_ctx.argtypes = [address, ctypes.c_char_p, size, address, size]
        found.blosc2_unshuffle.argtypes = [size, size, address, address]
        found.blosc2_init()
        return found
    return None


def together(frame: Frame, width: int, nbytes: int) -> Together | None:
    """Make what undoes small chunks of one array together; None if that does not pay, or cannot be.

    Parameters
    ----------
    frame
        Of the codec that compressed them.
    width
        Bytes of an element, if it was shuffled before; else 1.
    nbytes
        Of a chunk.
    """
    possible = 0 < nbytes <= frame.most and 0 < width < 256 and not nbytes % width
    found = library() if possible else None
    if found is None:
        return None
    decompress = found.blosc2_decompress_ctx
    flags = _UNDIVIDED | frame.number << 5 | (_SHUFFLED if width > 1 else 0)

    def decode(chunks: Sequence[Buffer]) -> Sequence[Buffer] | None:
        count = len(chunks)
        sizes = np.fromiter(map(len, chunks), np.int64, count)
        # to blosc a block without bytes is zeros, and one of a block's bytes is not compressed
        if not count or not sizes.all() or (sizes == nbytes).any():
            return None
        ends = _HEADER.size + 4 * count + np.cumsum(sizes + 4)
        total = int(ends[-1])
        if total >= MOST or count * nbytes >= MOST:
            return None
        parts: list[Any] = [b""] * (2 * count + 2)
        parts[0] = _HEADER.pack(2, 1, flags, width, count * nbytes, nbytes, total)
        parts[1] = (ends - sizes - 4).astype("<i4").tobytes()
        parts[2::2] = sizes.astype("<i4").view("V4").tolist()
        parts[3::2] = chunks
        joined = b"".join(parts)
        if len(joined) != total:  # not all are bytes
            return None
        plain: Any = np.empty((count, nbytes), np.uint8)
        try:
            context = _of_this_thread.context
        except AttributeError:
            context = _of_this_thread.context = _Context(found)
        done = decompress(context.address, joined, total, plain.ctypes.data, plain.nbytes)
        return plain if done == plain.nbytes else None

    return decode
