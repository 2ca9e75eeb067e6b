"""What decodes one chunk: every library for each codec, for the shuffle, and for checksums.

`bench/decoding.py` measures these. "nczarr" is what this package runs, with its checks; the others
are bare calls of libraries, which get the size of the chunk where they take it, and no threads of
their own: many chunks are decoded at once anyway.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numcodecs
import numpy as np
from harness import OURS
from libraries import SIZE, Codec, Decode, Make, codec, library, nbytes, ours
from numcodecs import blosc, lz4, zstd
from shuffles import shuffle, shuffles

from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.codecs.decompress import together
from nczarr_xarray.codecs.registry import codec as row_of
from nczarr_xarray.codecs.shuffle import unshuffle
from nczarr_xarray.model import ChunkedArray


def of_zstandard(shape: tuple[int, int]) -> Decode:
    """One for each thread: "ZstdDecompressor instances are not thread-safe" (its manual)."""
    decompressor = resolve_name("zstandard:ZstdDecompressor")()
    return partial(decompressor.decompress, max_output_size=nbytes(shape))


def zstd_into(shape: tuple[int, int]) -> Decode:
    return lambda stored: zstd.decompress(stored, np.empty(nbytes(shape), np.uint8))


def of_blosc2(_: tuple[int, int]) -> Decode:
    resolve_name("blosc2:set_nthreads")(1)
    return resolve_name("blosc2:decompress")


# ---- several chunks --------------------------------------------------------------------------


def our_several(name: str) -> Make:
    """The decoder of an array of small chunks that were shuffled and compressed."""

    def make(shape: tuple[int, int]) -> Decode:
        codecs = ({"id": "shuffle", "elementsize": 4}, {"id": name})
        decoder = Decoder(ChunkedArray("v", shape, shape, np.dtype("<f4"), codecs=codecs), 0)

        if decoder.together is not None:
            return decoder.together
        return lambda stored: unshuffle(decoder.decode(stored, str), 4)

    return make


def by_libblosc2(name: str) -> Make:
    """As blocks of one frame, also where chunks are larger than `Codec.frame` says."""

    def make(shape: tuple[int, int]) -> Decode:
        frame = row_of(name).frame
        assert frame is not None
        decode = together(frame._replace(most=nbytes(shape)), 4, nbytes(shape))
        if decode is None:
            raise ModuleNotFoundError("blosc2")
        return decode

    return make


def one_by_one(name: str) -> Make:
    def make(shape: tuple[int, int]) -> Decode:
        decode = ours(name)(shape)
        return lambda stored: unshuffle([decode(chunk) for chunk in stored], 4)

    return make


def several(name: str, compress: Callable[[bytes], bytes], row: int) -> Codec:
    """Chunks that are decoded together, and unshuffled."""
    return Codec(
        lambda chunk: (compress(shuffle(chunk)), chunk.tobytes()),
        {
            OURS: our_several(name),
            "libblosc2, one call": by_libblosc2(name),
            "one by one": one_by_one(name),
        },
        row,
        shapes={
            "4 KB": (32, 32),
            "16 KB": (64, 64),
            "32 KB": (64, 128),
            "64 KB": (128, 128),
            "128 KB": (128, 256),
        },
    )


# ---- checksums -------------------------------------------------------------------------------


def checked(path: str) -> Make:
    """Compare the last four bytes with what a function says of the others."""

    def make(_: tuple[int, int]) -> Decode:
        function: Callable[[Any], int] = globals().get(path) or resolve_name(path)

        def decode(stored: bytes) -> memoryview:
            body = memoryview(stored)[:-4]
            if function(body) != int.from_bytes(stored[-4:], "little"):
                raise ValueError("the checksum is wrong")
            return body

        return decode

    return make


def fletcher32(body: Any) -> int:
    """Sums of rows and of columns of a table are enough, and numpy adds without the lock."""
    words = np.frombuffer(body, ">u2").byteswap().view("<u2")
    width = 256
    count, whole = words.size, words.size // width
    table = words[: whole * width].reshape(whole, width)
    by_row, by_column = table.sum(1, dtype=np.uint64), table.sum(0, dtype=np.uint64)
    rest = words[whole * width :].astype(np.uint64)
    first = int(by_row.sum()) + int(rest.sum())
    # word k is counted (count - k) times
    second = int((by_row * (count - width * np.arange(whole, dtype=np.uint64))).sum())
    second -= int((by_column * np.arange(width, dtype=np.uint64)).sum())
    second += int((rest * np.arange(rest.size, 0, -1, dtype=np.uint64)).sum())
    low, high = ((s % 65535 or 65535) if s else 0 for s in (first, second))
    return high << 16 | low


# ---- everything ------------------------------------------------------------------------------


def compressed(compress: Callable[[bytes], bytes]) -> Callable[[np.ndarray], tuple[Any, bytes]]:
    """Stored shuffled, by a compressor that knows nothing of the shuffle."""

    def encode(chunk: np.ndarray) -> tuple[Any, bytes]:
        plain = shuffle(chunk)
        return compress(plain), plain

    return encode


def filtered(name: str) -> Callable[[np.ndarray], tuple[Any, bytes]]:
    return compressed(lambda plain: bytes(numcodecs.get_codec({"id": name}).encode(plain)))


def blosced(name: bytes) -> Callable[[np.ndarray], tuple[Any, bytes]]:
    return lambda chunk: (blosc.compress(np.ascontiguousarray(chunk), name, 5, 1), chunk.tobytes())


BLOSC: dict[str, Make] = {
    OURS: ours("blosc"),
    "numcodecs": library("numcodecs.blosc:decompress"),
    # "compatible with Blosc1 frames" (README of c-blosc2)
    "blosc2": of_blosc2,
    "imagecodecs": library("imagecodecs:blosc_decode", numthreads=1, out=SIZE),
    "imagecodecs, blosc2": library("imagecodecs:blosc2_decode", numthreads=1, out=SIZE),
}
#: Peers of zlib's module take its arguments; `bufsize` is the size of the first output buffer.
CODECS: dict[str, Codec] = {
    "zlib": Codec(
        compressed(partial(zlib.compress, level=1)),
        {
            OURS: ours("zlib"),
            "zlib": library("zlib:decompress", bufsize=SIZE),
            "deflate": library("deflate:zlib_decompress", SIZE),
            "isal": library("isal.isal_zlib:decompress", bufsize=SIZE),
            "zlib-ng": library("zlib_ng.zlib_ng:decompress", bufsize=SIZE),
            "imagecodecs, libdeflate": library("imagecodecs:deflate_decode", out=SIZE),
            "imagecodecs, isal": library("imagecodecs:isal_decode", out=SIZE),
            "imagecodecs, zlib-ng": library("imagecodecs:zlibng_decode", out=SIZE),
            "numcodecs": codec("zlib"),
            "cramjam": library("cramjam:zlib.decompress", output_len=SIZE),
        },
    ),
    "zlib, 16 chunks": several("zlib", partial(zlib.compress, level=1), 16),
    "gzip": Codec(
        compressed(partial(gzip.compress, compresslevel=1)),
        {
            OURS: ours("gzip"),
            "zlib": library("zlib:decompress", wbits=31, bufsize=SIZE),
            "deflate": library("deflate:gzip_decompress", SIZE),
            "isal": library("isal.isal_zlib:decompress", wbits=31, bufsize=SIZE),
            "zlib-ng": library("zlib_ng.zlib_ng:decompress", wbits=31, bufsize=SIZE),
            "imagecodecs": library("imagecodecs:gzip_decode", out=SIZE),
            "numcodecs": codec("gzip"),
            "cramjam": library("cramjam:gzip.decompress", output_len=SIZE),
        },
    ),
    "zstd": Codec(
        compressed(partial(zstd.compress, level=3)),
        {
            OURS: ours("zstd"),
            "numcodecs": library("numcodecs.zstd:decompress"),
            "numcodecs, into an array": zstd_into,
            "zstandard": of_zstandard,
            "pyzstd": library("pyzstd:decompress"),
            # what Python 3.14 calls compression.zstd
            "backports.zstd": library("backports.zstd:decompress"),
            "imagecodecs": library("imagecodecs:zstd_decode", out=SIZE),
            "cramjam": library("cramjam:zstd.decompress", output_len=SIZE),
        },
    ),
    "zstd, 16 chunks": several("zstd", partial(zstd.compress, level=3), 16),
    "lz4": Codec(
        compressed(lz4.compress),
        {
            OURS: ours("lz4"),
            "numcodecs": library("numcodecs.lz4:decompress"),
            "lz4": library("lz4.block:decompress"),
            "imagecodecs": library("imagecodecs:lz4_decode", header=True, out=SIZE),
            "cramjam": library("cramjam:lz4.decompress_block"),
        },
    ),
    "blosc lz4": Codec(blosced(b"lz4"), BLOSC),
    "blosc zstd": Codec(blosced(b"zstd"), BLOSC),
    "bz2": Codec(
        compressed(partial(bz2.compress, compresslevel=1)),
        {
            OURS: ours("bz2"),
            "bz2": library("bz2:decompress"),
            "numcodecs": codec("bz2"),
            "imagecodecs": library("imagecodecs:bz2_decode", out=SIZE),
            "cramjam": library("cramjam:bzip2.decompress", output_len=SIZE),
        },
        part=1 / 16,
    ),
    "lzma": Codec(
        compressed(partial(lzma.compress, preset=1)),
        {
            OURS: ours("lzma"),
            "lzma": library("lzma:decompress"),
            "numcodecs": codec("lzma"),
            "imagecodecs": library("imagecodecs:lzma_decode", out=SIZE),
            "cramjam": library("cramjam:xz.decompress", output_len=SIZE),
        },
        part=1 / 8,
    ),
    "unshuffle 4 bytes": shuffles(4),
    "unshuffle 8 bytes": shuffles(8),
    "unshuffle 4 bytes, 16 chunks": shuffles(4, row=16),
    "fletcher32": Codec(
        filtered("fletcher32"),
        {
            OURS: ours("fletcher32"),
            "numcodecs": codec("fletcher32"),
            "numpy, sums of a table": checked("fletcher32"),
            "imagecodecs": checked("imagecodecs:h5checksum_fletcher32"),
        },
    ),
    "crc32c": Codec(
        filtered("crc32c"),
        {
            OURS: ours("crc32c"),
            "numcodecs": codec("crc32c"),
            "crc32c": checked("crc32c:crc32c"),
        },
    ),
}
