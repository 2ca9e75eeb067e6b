"""Compressors whose fastest or most faithful call is not the one of numcodecs.

All of them let go of the interpreter lock, give the same bytes for the same
values, and may run in many threads at once.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nczarr_xarray.codecs.codec import Buffer, Encode, Step
from nczarr_xarray.model import CodecConfig

LIBDEFLATE: Callable[[Buffer, int], Buffer] | None
_whole_stream: Callable[[Buffer, int], Buffer]
_adler32: Callable[[Buffer], int]
try:
    from deflate import adler32, deflate_compress, zlib_compress

    LIBDEFLATE, _whole_stream, _adler32 = deflate_compress, zlib_compress, adler32
except ImportError:  # no wheel for this platform: zlib does it, two to three times slower
    LIBDEFLATE, _whole_stream, _adler32 = None, zlib.compress, zlib.adler32

#: By level of zlib: the lowest level of libdeflate, not below it, with which no field measured gets
#: more than 3 % larger. Measured by bench/compress.py (deflate 0.9.0 against zlib 1.2.13): 17 kinds
#: of fields, shuffled, in chunks of 64 KB to 2 MiB. Sizes are relative to zlib at its level: the
#: worst field by libdeflate at the same level, then what is done here; times are for 2 MiB. (What
#: shrinks more than tenfold may differ by a third either way: by little, that is, of the field. Of
#: 2,000 random ones that shrink less, 2 KB to 1 MB, levels 1, 4, 6, 36 get 3 to 9 % larger.)
#:
#:     level of zlib     1     2     3     4     5     6     7     8     9
#:     same, worst    2.44  2.75  1.59  1.01  1.08  1.47  1.02  1.00  1.02
#:     mapped to         4     4     5     5     6     7     7     8     9
#:     worst          1.00  1.03  1.03  1.00  1.00  1.00  1.02  1.01  1.02
#:     mean           0.85  0.89  0.90  0.92  0.95  0.97  0.98  0.98  0.99
#:     times faster    1.8   1.9   1.8   2.3   2.2   1.8   2.6   3.4   3.1
#:
#: With noise, which is stored (see `deflate`), 2 MiB are done 3 to 7 times faster at level 4. That
#: is not mapped to 4: large chunks would be 2 % larger, and one random field of 475 30 % larger.
_LEVELS = (0, 4, 4, 5, 5, 6, 7, 7, 8, 9)
#: libdeflate takes all of the memory it may need beforehand, and deflate counts in 32 bits.
_LARGE = 1 << 31


def deflate(config: CodecConfig, typesize: int) -> Step:
    """Make ``{"id": "zlib", "level": -1 to 9}``: a zlib stream.

    Shuffled numbers begin with the byte planes that say least, which often are
    mere noise. Compressors take longest for what they cannot shrink, so those
    planes are stored (RFC 1951, section 3.2.4) and only what follows is deflated.
    Not in small chunks: threads would wait for each other's interpreter longer
    than it saves (64 by 64 float32 on 2 cores: 121 µs a chunk, without 63).
    """
    from numcodecs import lz4

    level = _level(config)
    if level == 0:
        return lambda data: zlib.compress(data, 0)
    mapped = _LEVELS[6 if level < 0 else level]
    header = zlib.compress(b"", level)[:2]
    fast = LIBDEFLATE

    def compress(data: Buffer) -> Buffer:
        content = memoryview(data)
        if not 0 < content.nbytes < _LARGE:
            return zlib.compress(data, level)
        if content.nbytes < _SMALL:
            if fast is None or _few_bytes(content):
                return zlib.compress(data, level)
            return _whole_stream(data, mapped)
        plain = np.frombuffer(content, np.uint8)
        noise = _noise(plain, typesize, lz4.compress)
        rest: Buffer = plain[noise:]
        packed = fast(rest, mapped) if fast else zlib.compress(rest, level, wbits=-15)
        checksum = struct.pack(">I", _adler32(plain))
        return b"".join((header, *_stored(plain[:noise]), packed, checksum))

    return compress


#: So many bytes of a plane are looked at, in pieces from all over it.
_SAMPLE, _PIECES = 1024, 8
#: The sum of the squares of how often each value is in a sample. Bytes that are equally likely give
#: 5116, with a standard deviation of 90; those that give this hold 7.9 bits.
_UNEVEN = 5730
#: How many second differences of a sample may be -1, 0 or 1. Noise gives 12. On a slope, noise of a
#: standard deviation of 3 gives 170, and deflate gains 4 % at best; of 2, 250 and 7 %. Smooth
#: values, of which it finds parts again, give nearly 1022.
_SMOOTH = 240


def _noise(data: np.ndarray, typesize: int, lz4: Callable[[Any], bytes]) -> int:
    """Return how many bytes at the beginning, in whole planes, deflate would not make smaller.

    Their values are equally likely (nothing to gain for Huffman's code), they are not smooth, and
    nothing is repeated in them, as LZ4 finds out in a hundredth of the time.
    """
    plane = data.size // typesize
    if plane < _SAMPLE:
        return 0
    size = 0
    # the last is left to the compressor: numbers of one byte are smooth in ways not seen here
    while size < plane * (typesize - 1) and _is_noise(data[size : size + plane]):
        size += plane
    # without a single match, LZ4 takes a byte more for every 255, and some
    return size if size and len(lz4(data[:size])) > size + size // 256 else 0


def _is_noise(plane: np.ndarray) -> bool:
    sample = _sampled(plane)
    counts = np.bincount(sample, minlength=256)
    return bool(counts.dot(counts) < _UNEVEN) and _small_bends(sample) < _SMOOTH


def _sampled(plane: np.ndarray) -> np.ndarray:
    pieces = plane[: plane.size // _PIECES * _PIECES].reshape(_PIECES, -1)
    return pieces[:, : _SAMPLE // _PIECES].ravel()


def _small_bends(sample: np.ndarray) -> int:
    """Return how many second differences, modulo 256, are -1, 0 or 1."""
    steps = sample[1:] - sample[:-1]
    bends = steps[1:] - steps[:-1]
    return int(np.count_nonzero(bends + 1 < 3))


#: Chunks smaller than this go to zlib if they begin with few different bytes.
_SMALL = 1 << 16
_FEW = 48
_BYTES = bytes(range(256))


def _few_bytes(data: memoryview) -> bool:
    """Tell whether libdeflate would leave out short matches that are worth it.

    From how many different bytes there are in the first 4 KiB it concludes how long a match has to
    be, and thinks again after 10,000 bytes. The first plane of float32 rounded to tenths has 5: at
    level 4, 16 KB of them get 23 % larger than by zlib. With 20 other bytes put in front they get
    3 % larger, with 80 of them 1 %. (Of 80 that are equally likely, 77 are in 256.)
    """
    # what is left of all bytes without those; a set of them takes ten times as long
    return len(_BYTES.translate(None, data[:4096:16].tobytes())) > 256 - _FEW


def _stored(data: np.ndarray) -> Iterator[Buffer]:
    """Return stored blocks, each with its header, none of them the last of a stream."""
    for start in range(0, data.size, 0xFFFF):
        block = data[start : start + 0xFFFF]
        yield struct.pack("<BHH", 0, block.size, block.size ^ 0xFFFF)
        yield block


def gzip(config: CodecConfig, _: int) -> Step:
    """Make ``{"id": "gzip", "level": -1 to 9}``: a gzip member without name and time."""
    level = _level(config)
    return lambda data: zlib.compress(data, level, wbits=31)


def blosc(config: CodecConfig, typesize: int) -> Step:
    """Make ``{"id": "blosc", "cname", "clevel", "shuffle", "blocksize"}``: a blosc 1 container."""
    from numcodecs import blosc

    cname = config.get("cname", "lz4")
    clevel, shuffle = config.get("clevel", 5), config.get("shuffle", 1)
    blocksize = config.get("blocksize", 0)
    if cname not in blosc.list_compressors():
        raise ValueError(f"cname is {cname!r}, none of {', '.join(blosc.list_compressors())}")
    if clevel not in range(10):
        raise ValueError(f"clevel is {clevel!r}, not 0 to 9")
    if shuffle not in range(-1, 3):
        raise ValueError(f"shuffle is {shuffle!r}, not 0 (none), 1 (bytes), 2 (bits) or -1 (auto)")
    if shuffle < 0:
        shuffle = 2 if typesize == 1 else 1  # as numcodecs has it
    name = cname.encode()
    return lambda data: blosc.compress(data, name, clevel, shuffle, blocksize, typesize=typesize)


def _level(config: CodecConfig) -> int:
    level = config.get("level", 1)  # numcodecs' default; netCDF-C always says it
    if level not in range(-1, 10):
        raise ValueError(f"level is {level!r}, not 0 to 9")
    return int(level)


def of_elements(make: Callable[[CodecConfig, int], Step]) -> Encode:
    """Return an `Encode` of a function that needs the size of an element."""
    # (objects have become bytes of no known structure)
    return lambda config, array: make(config, 1 if array.dtype.hasobject else array.dtype.itemsize)
