"""The shuffle of HDF5 and netCDF: planes of bytes instead of elements, for many chunks at a time.

A shuffled chunk holds the first bytes of all elements, then their second bytes, and so on. What
brings them together four to six times faster than numpy is blosc's vector code. libblosc2 has a
function for it (extra ``fast``). Without it, there is numcodecs' blosc, for SSE2 and AVX2: it has
no function, but a blosc frame may hold bytes that are shuffled and not compressed, and with such a
header in front of our planes, decompressing is unshuffling. Else numpy copies plane by plane.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import Buffer, Size, Step, bytewise
from nczarr_xarray.codecs.decompress import MOST, library
from nczarr_xarray.model import Array, CodecConfig, netcdf_size

#: Unshuffles chunks of one length, in whole elements of so many bytes, to where they go.
Unshuffler: TypeAlias = Callable[[Sequence[memoryview], int, np.ndarray], None]
#: Makes an array of any content for a use, of a shape and a dtype.
Empty: TypeAlias = Callable[[str, Any, np.dtype], np.ndarray]
#: Elements up to this many bytes are brought together plane by plane, if by numpy.
WIDEST = 16
#: version of blosc, version of its LZ4, flags, bytes of an element; then bytes of the data, of a
#: block, and of the frame; where the only block starts, and its size
_FRAME = struct.Struct("<BBBBIIIII")
#: shuffled, blocks are one stream each, "LZ4"
_FLAGS = 0x1 | 0x10 | 1 << 5
#: Bytes that are brought together at a time: they are copied twice on the way, which costs little
#: within a processor's own cache.
TILE = 1 << 19


@cache
def blosc_unshuffler() -> Unshuffler | None:
    """Return how blosc unshuffles; imported with the first chunk that needs it."""
    libblosc2 = library()
    if libblosc2 is not None:
        return partial(_by_libblosc2, libblosc2.blosc2_unshuffle)
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return None
    try:
        from numcodecs import blosc
    except ImportError:  # numcodecs can be built without
        return None
    return partial(_by_frame, blosc.decompress)


def element_size(config: CodecConfig, array: Array) -> int:
    """Return the bytes of an element."""
    size = config.get("elementsize") or 0
    if not isinstance(size, int) or size < 0:
        raise FormatError(array.described, f"shuffle elementsize is {size!r}")
    return size or netcdf_size(array.dtype)


def decode(config: CodecConfig, array: Array, size: Size) -> tuple[Step, Size]:
    """Return how to undo the shuffle of an array."""
    width = element_size(config, array)
    return (lambda data: unshuffle([bytewise(data)], width)) if width > 1 else _as_it_is, size


def _new(_: str, shape: Any, dtype: np.dtype) -> np.ndarray:
    return np.empty(shape, dtype)


def encode(config: CodecConfig, array: Array, empty: Empty = _new) -> Step:
    """Return how to shuffle chunks of an array."""
    width = element_size(config, array)

    def step(data: Buffer) -> Buffer:
        plain = np.frombuffer(data, np.uint8)
        whole = plain.size // width * width
        planes = shuffled(plain[None, :whole], width, empty).reshape(-1)
        return planes if whole == plain.size else np.concatenate([planes, plain[whole:]])

    return step if width > 1 else _as_it_is


def shuffled(rows: np.ndarray, size: int, empty: Empty) -> np.ndarray:
    """Shuffle bytes of elements of `size`, in rows, to byte planes in rows."""
    count = rows.shape[1] // size
    planes = empty("planes", (len(rows), size, count), np.dtype(np.uint8))
    if size in (2, 4):
        # as integers, which numpy shifts many at a time: twice to six times as fast as a copy
        numbers = rows.view(f"<u{size}")
        for i in range(size):
            np.right_shift(numbers, 8 * i, out=planes[:, i], casting="unsafe")
    else:
        planes[...] = rows.reshape(len(rows), count, size).transpose(0, 2, 1)
    return planes.reshape(rows.shape)


def _as_it_is(data: Buffer) -> Buffer:
    """Shuffle bytes one by one, which changes nothing."""
    return data


def unshuffle(chunks: Sequence[Buffer], size: int) -> np.ndarray:
    """Bring together the elements of shuffled chunks of equal length, one after the other.

    Parameters
    ----------
    chunks
        Bytes. What is left over behind their last whole element is not shuffled.
    size
        Of an element in bytes.

    Returns
    -------
    uint8, 1-D
    """
    plain = np.empty(sum(map(len, chunks)), dtype=np.uint8)
    unshuffle_into(chunks, size, plain)
    return plain


def unshuffle_into(chunks: Sequence[Buffer], size: int, plain: np.ndarray) -> None:
    """Do as `unshuffle` does, into contiguous memory of the right length."""
    views = [memoryview(chunk) for chunk in chunks]
    length = views[0].nbytes
    if any(view.nbytes != length for view in views) or plain.nbytes != length * len(views):
        raise ValueError("shuffled chunks differ in length")  # blosc would read beyond them
    rest = length % size
    fits = 1 < size < 256 and length >= size
    unshuffler = blosc_unshuffler() if fits else None
    if unshuffler is None or (rest and len(chunks) > 1):
        for i, chunk in enumerate(chunks):
            _by_planes(chunk, size, plain[i * length : (i + 1) * length])
        return
    whole = length - rest
    unshuffler([view[:whole] for view in views], size, plain[: len(views) * whole])
    if rest:
        plain[whole:] = np.frombuffer(chunks[0], np.uint8)[whole:]


def _by_libblosc2(
    unshuffle: Callable[..., Any], chunks: Sequence[memoryview], size: int, plain: np.ndarray
) -> None:
    alone = len(chunks) == 1 and plain.nbytes < MOST
    for planes, part in [(chunks, plain)] if alone else _tiles(chunks, size, plain):
        stored = np.frombuffer(planes[0] if alone else b"".join(planes), np.uint8)
        unshuffle(size, part.nbytes, stored.ctypes.data, part.ctypes.data)


def _by_frame(
    decompress: Callable[..., Any], chunks: Sequence[memoryview], size: int, plain: np.ndarray
) -> None:
    for planes, part in _tiles(chunks, size, plain):
        total = part.nbytes
        # one block for all: blosc would start threads for several
        head = _FRAME.pack(2, 1, _FLAGS, size, total, total, total + 24, 20, total)
        decompress(b"".join((head, *planes)), part)


def _tiles(
    chunks: Sequence[memoryview], size: int, plain: np.ndarray
) -> Iterator[tuple[Sequence[memoryview], np.ndarray]]:
    """Yield planes, which together are those of one large chunk, and where its elements go."""
    length = len(chunks[0])
    width = length // size
    if len(chunks) > 1:
        step = max(1, TILE // length)
        for at in range(0, len(chunks), step):
            some = chunks[at : at + step]
            firsts = range(0, length, width)
            planes = [chunk[first : first + width] for first in firsts for chunk in some]
            yield planes, plain[at * length : (at + len(some)) * length]
        return
    step = max(1, TILE // size)
    for at in range(0, width, step):
        stop = min(at + step, width)
        planes = [chunks[0][first + at : first + stop] for first in range(0, length, width)]
        yield planes, plain[at * size : stop * size]


def _by_planes(chunk: Buffer, size: int, plain: np.ndarray) -> None:
    shuffled = np.frombuffer(chunk, dtype=np.uint8)
    count = shuffled.size // size
    whole = count * size
    planes = shuffled[:whole].reshape(size, count)
    if size <= WIDEST:
        elements = plain[:whole].reshape(count, size)
        # one strided copy a byte plane: a third of the time of one transposed copy
        for i in range(size):
            elements[:, i] = planes[i]
    else:
        plain[:whole] = planes.T.reshape(-1)
    plain[whole:] = shuffled[whole:]
