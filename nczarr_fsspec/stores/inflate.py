"""The compression methods of zip, undone within bounds."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable


def _deflate(data: bytes, most: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)


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


def _bzip2(data: bytes, most: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, most)


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
    8: _deflate,
    9: _deflate64,
    12: _bzip2,
    14: _lzma,
}
