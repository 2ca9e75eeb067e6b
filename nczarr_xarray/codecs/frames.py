"""Many small chunks undone by one call: as the blocks of one frame of blosc.

A frame of blosc is a header, where each block begins, and the blocks: each of them a compressed
stream of bytes that were shuffled before. So stored chunks can be blocks as they are. libblosc2
undoes all blocks of a frame in one call, in which it has no use for the interpreter's lock. Chunk
by chunk, threads ask for the lock several times a chunk: where a chunk is inflated in some 10 us,
two threads hardly take less time than one.

libblosc2 is a part of the package blosc2 (extra ``fast``). The package itself is not imported.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from nczarr_xarray.codecs.codec import Buffer, Frame

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

_of_thread = threading.local()


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
            context = _of_thread.context
        except AttributeError:
            context = _of_thread.context = _Context(found)
        done = decompress(context.address, joined, total, plain.ctypes.data, plain.nbytes)
        return plain if done == plain.nbytes else None

    return decode
