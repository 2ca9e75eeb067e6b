"""Compressors whose fastest or most faithful call is not the one of numcodecs.

All of them let go of the interpreter lock, give the same bytes for the same
values, and may run in many threads at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from nczarr_xarray.chunks.decompress import Buffer, Step
from nczarr_xarray.model import CodecConfig

_libdeflate: Callable[[Buffer, int], Buffer] | None
try:
    from deflate import zlib_compress

    _libdeflate = zlib_compress
except ImportError:  # no wheel for this platform: zlib does it, two to three times slower
    _libdeflate = None

#: By level of zlib: the lowest level of libdeflate, not below it, with which no field measured gets
#: more than 3 % larger. Measured by bench/compress.py (deflate 0.9.0 against zlib 1.2.13): 17 kinds
#: of fields, shuffled, in chunks of 64 KB to 2 MiB. Sizes are relative to zlib at its level, the
#: worst field for the same level and for this one, and the mean; times are for 2 MiB. (What shrinks
#: more than tenfold may differ by a third either way: by little, that is, of the field.)
#:
#:     level of zlib     1     2     3     4     5     6     7     8     9
#:     same, worst    2.44  2.75  1.59  1.01  1.08  1.47  1.02  1.00  1.02
#:     mapped to         4     4     5     5     6     7     7     8     9
#:     worst          1.00  1.02  1.01  1.00  1.00  1.00  1.02  1.00  1.02
#:     mean           0.85  0.90  0.91  0.92  0.94  0.97  0.98  0.98  0.99
#:     times faster    1.8   1.7   1.8   1.9   1.8   1.8   2.4   2.8   3.2
_LEVELS = (0, 4, 4, 5, 5, 6, 7, 7, 8, 9)
#: Smaller chunks go to zlib: there, some fields break the 3 % at every level of libdeflate that is
#: faster than zlib. 16 KB of shuffled float32, rounded to tenths, get 24 % larger.
_SMALL = 1 << 16
#: libdeflate takes all of the memory it may need beforehand, and deflate counts in 32 bits.
_LARGE = 1 << 31


def deflate(config: CodecConfig, _: int) -> Step:
    """``{"id": "zlib", "level": -1 to 9}``: a zlib stream."""
    level = _level(config)
    fast = _libdeflate
    if fast is None:
        return lambda data: zlib.compress(data, level)
    mapped = _LEVELS[6 if level < 0 else level]

    def compress(data: Buffer) -> Buffer:
        if _SMALL <= memoryview(data).nbytes < _LARGE:
            return fast(data, mapped)
        return zlib.compress(data, level)

    return compress


def gzip(config: CodecConfig, _: int) -> Step:
    """``{"id": "gzip", "level": -1 to 9}``: a gzip member without name and time."""
    level = _level(config)
    return lambda data: zlib.compress(data, level, wbits=31)


def blosc(config: CodecConfig, typesize: int) -> Step:
    """``{"id": "blosc", "cname", "clevel", "shuffle", "blocksize"}``: a blosc 1 container."""
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


#: By codec id: makes the step of a codec, given the size of an element.
COMPRESSORS: dict[str, Callable[[CodecConfig, int], Step]] = {
    "zlib": deflate,
    "gzip": gzip,
    "blosc": blosc,
}
