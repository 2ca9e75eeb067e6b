"""Decoding one chunk: bytes as stored to an array, by the fastest library for each codec.

A `Decoder` is made once per array and used for every chunk, from any thread.
Sizes are checked on the way: inflating stops at the chunk's size, and a chunk
that decodes to anything but its exact size is an error.
"""

from __future__ import annotations

import bz2
import math
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.szip import szip_decoder
from nczarr_xarray.model import ChunkedArray, CodecConfig

Buffer: TypeAlias = Any
#: Takes stored bytes; returns decoded bytes (anything with the buffer protocol).
Step: TypeAlias = Callable[[Buffer], Buffer]

_libdeflate: Callable[[Buffer, int], Buffer] | None
try:
    from deflate import zlib_decompress as _zlib_decompress
except ImportError:  # no wheel for this platform: zlib does it, two to three times slower
    _libdeflate = None
else:
    _libdeflate = _zlib_decompress

#: Codecs that would run code found in the data.
_UNSAFE = frozenset({"pickle"})


class Decoder:
    """Decodes chunks of one array.

    Parameters
    ----------
    array
        Its codecs are undone from the last to the first.

    Raises
    ------
    FormatError
        If a codec is not known or cannot be used.
    """

    __slots__ = ("_array", "_count", "_objects", "_steps", "nbytes")

    def __init__(self, array: ChunkedArray) -> None:
        self._array = array
        self._count = math.prod(array.chunk_shape)
        self._objects = array.dtype.kind == "O"
        self.nbytes = self._count * array.dtype.itemsize
        self._steps = self._plan(array)

    def _plan(self, array: ChunkedArray) -> tuple[Step, ...]:
        # How many bytes each step may return: known as long as no filter with a size of
        # its own stands between it and the elements.
        if self._objects and not array.codecs:
            reason = "dtype '|O' needs an object codec in 'filters'"
            raise FormatError(f"{array.path}/.zarray", reason)
        steps: list[Step] = []
        limit: int | None = None if self._objects else self.nbytes
        for config in array.codecs:
            try:
                step, limit = _step(config, array, limit)
            except FormatError:
                raise
            except Exception as error:
                reason = f"codec {config['id']!r} cannot be used ({error})"
                raise FormatError(f"{array.path}/.zarray", reason) from error
            steps.insert(0, step)
        return tuple(steps)

    def decode(self, data: Buffer, key: str) -> np.ndarray[Any, Any]:
        """The chunk stored as `data` under `key`, with the array's chunk shape.

        Raises
        ------
        FormatError
            If the bytes cannot be decoded, or have the wrong size.
        """
        array = self._array
        try:
            for step in self._steps:
                data = step(data)
        except FormatError as error:
            raise FormatError(key, error.reason) from None
        except MemoryError:
            raise FormatError(key, f"a chunk of {self.nbytes} bytes does not fit") from None
        except Exception as error:  # codec libraries raise whatever they like
            raise FormatError(key, f"the chunk cannot be decoded ({error})") from error
        if self._objects:
            chunk = np.asarray(data, dtype=object)
            if chunk.size != self._count:
                raise FormatError(key, f"holds {chunk.size} elements, not {self._count}")
        else:
            size = len(data) if isinstance(data, (bytes, bytearray)) else memoryview(data).nbytes
            if size != self.nbytes:
                hint = " (truncated?)" if size < self.nbytes else ""
                raise FormatError(key, f"decodes to {size} bytes, not {self.nbytes}{hint}")
            chunk = np.frombuffer(data, dtype=array.dtype)
        return chunk.reshape(array.chunk_shape, order=array.order)


def _step(config: CodecConfig, array: ChunkedArray, limit: int | None) -> tuple[Step, int | None]:
    """How to undo one codec whose *decoded* size is `limit`, and its encoded size if fixed."""
    name = config["id"]
    if name == "shuffle":
        return _unshuffle(_element_size(config, array)), limit
    if name == "fletcher32":
        return _registered(config), None if limit is None else limit + 4
    if name == "szip":
        return szip_decoder(config, array), None
    if name in _BOUNDED and limit is not None:
        return _BOUNDED[name](limit), None
    if name in _UNSAFE:
        raise FormatError(f"{array.path}/.zarray", f"codec {name!r} could run code: refused")
    return _registered(config), None


def _element_size(config: CodecConfig, array: ChunkedArray) -> int:
    """netCDF-C writes 0 and means its own type size, a pointer for strings (section 7)."""
    size = config.get("elementsize") or 0
    if not isinstance(size, int) or size < 0:
        raise FormatError(f"{array.path}/.zarray", f"shuffle elementsize is {size!r}")
    if size:
        return size
    return 8 if array.dtype.kind == "S" and array.dtype.itemsize > 1 else array.dtype.itemsize


def _unshuffle(size: int) -> Step:
    def unshuffle(data: Buffer) -> Buffer:
        shuffled = np.frombuffer(data, dtype=np.uint8)
        count = shuffled.size // size
        whole = count * size
        planes = shuffled[:whole].reshape(size, count)
        plain = np.empty(shuffled.size, dtype=np.uint8)
        elements = plain[:whole].reshape(count, size)
        # one strided copy a byte plane: a third of the time of one transposed copy
        for i in range(size):
            elements[:, i] = planes[i]
        plain[whole:] = shuffled[whole:]
        return plain

    return unshuffle if size > 1 else bytes_as_they_are


def bytes_as_they_are(data: Buffer) -> Buffer:
    """Shuffling bytes one by one changes nothing."""
    return data


def _inflate(limit: int) -> Step:
    if _libdeflate is not None:

        def inflate(data: Buffer) -> Buffer:
            return _libdeflate(data, limit)

        return inflate
    return _stream(zlib.decompressobj, limit)


def _gunzip(limit: int) -> Step:
    return _stream(lambda: zlib.decompressobj(wbits=31), limit)


def _bunzip2(limit: int) -> Step:
    return _stream(bz2.BZ2Decompressor, limit)


def _stream(new: Callable[[], Any], limit: int) -> Step:
    def decompress(data: Buffer) -> Buffer:
        decompressor = new()
        plain = decompressor.decompress(data, limit + 1)
        if len(plain) > limit:
            raise FormatError("", f"decodes to more than {limit} bytes")
        if not decompressor.eof:
            raise FormatError("", "the compressed stream is truncated")
        return plain

    return decompress


def _unblosc(limit: int) -> Step:
    from numcodecs import blosc

    def decompress(data: Buffer) -> Buffer:
        # blosc 1 header: uncompressed size at byte 4, compressed size at byte 12
        header = np.frombuffer(data, dtype="<u4", count=4)
        if header[3] != len(data):
            raise FormatError("", f"holds {len(data)} bytes of a blosc chunk of {header[3]}")
        if header[1] > limit:
            raise FormatError("", f"decodes to {header[1]} bytes, not {limit}")
        plain = np.empty(int(header[1]), dtype=np.uint8)
        blosc.decompress(data, plain)
        return plain

    return decompress


def _unzstd(limit: int) -> Step:
    from numcodecs import zstd

    def decompress(data: Buffer) -> Buffer:
        plain = np.empty(limit, dtype=np.uint8)
        return zstd.decompress(data, plain)

    return decompress


def _unlz4(limit: int) -> Step:
    from numcodecs import lz4

    def decompress(data: Buffer) -> Buffer:
        size = int(np.frombuffer(data, dtype="<u4", count=1)[0])
        if size > limit:
            raise FormatError("", f"decodes to {size} bytes, not {limit}")
        return lz4.decompress(data)

    return decompress


#: Codecs that are decoded without ever exceeding the size that is expected.
_BOUNDED: dict[str, Callable[[int], Step]] = {
    "zlib": _inflate,
    "gzip": _gunzip,
    "bz2": _bunzip2,
    "blosc": _unblosc,
    "zstd": _unzstd,
    "lz4": _unlz4,
}


def _registered(config: CodecConfig) -> Step:
    """Any other codec, as numcodecs knows it."""
    import numcodecs

    try:
        codec = numcodecs.get_codec(dict(config))
    except ValueError:
        raise ValueError("no such codec is known to numcodecs") from None
    decode: Step = codec.decode
    return decode
