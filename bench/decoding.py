"""Decoding one chunk: every library for each codec, for the shuffle, and for checksums.

A turn decodes the same eight mebibytes of different chunks (one chunk again and again would teach
the branch predictor), once in one thread and once in two, of libraries in turn. All sizes of
chunks are cut from the same field, shuffled as netCDF-C does it. "nczarr" is what our reader
runs, with its checks; the others are bare calls of libraries, which get the size of the chunk
where they take it, and no threads of their own: many chunks are decoded at once anyway. Every
chunk is compared before the clock runs.

Two threads tell whether the interpreter lock is released only on a quiet machine. Hence the
second question is asked directly, too: how long is another thread silent during one long call?

The tables go between the marks of ``docs/codecs.md``. (A module named ``codecs`` would hide the
one of Python.)
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import data
import numcodecs
import numpy as np
from harness import OURS, Options, Row, Work, document, heading, insert, measure
from numcodecs import blosc, lz4, zstd

from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.plan import ChunkTask
from nczarr_xarray.chunks.scatter import Scatter
from nczarr_xarray.codecs.codec import Size
from nczarr_xarray.codecs.registry import step_of
from nczarr_xarray.codecs.shuffle import unshuffle
from nczarr_xarray.model import ChunkedArray

SECTION = "decoding"
PACKAGES = {
    *("backports.zstd", "blosc2", "cramjam", "crc32c", "deflate", "imagecodecs", "isal", "lz4"),
    *("nczarr-xarray", "numcodecs", "numpy", "pyzstd", "zlib-ng", "zstandard"),
}
#: Chunks of four-byte elements, by their size.
SHAPES = {"4 KB": (32, 32), "16 KB": (64, 64), "256 KB": (256, 256), "2 MiB": (512, 1024)}
#: One chunk of this shape is long enough to notice that other threads are silent.
LONG = (4096, 4096)
#: Above this part of the call the interpreter lock is held.
SILENT = 0.5
TWO, LOCK = ", 2 threads", ", longest silence"

#: Takes a chunk as it is stored (or several in a row), returns what it holds.
Decode = Callable[[Any], Any]
#: Makes that for chunks of a shape; called once in every thread of a turn.
Make = Callable[[tuple[int, int]], Decode]


class _Bytes:
    """Stands for the size of a decoded chunk among a library's arguments."""


SIZE = _Bytes()


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to store chunks, and who can read them.

    Attributes
    ----------
    encode
        Of a chunk: what is stored, and the bytes that decoding has to return.
    row
        How many chunks are decoded at once.
    part
        Of the eight mebibytes: slow codecs need less of them.
    """

    encode: Callable[[np.ndarray], tuple[Any, bytes]]
    libraries: dict[str, Make]
    row: int = 1
    part: float = 1.0
    shapes: dict[str, tuple[int, int]] = field(default_factory=lambda: SHAPES)


def nbytes(shape: tuple[int, ...]) -> int:
    return 4 * shape[0] * shape[1]


def library(path: str, *arguments: Any, **options: Any) -> Make:
    """A function ``module:name`` of the stored bytes and these arguments."""

    def make(shape: tuple[int, int]) -> Decode:
        function = resolve_name(path)  # ImportError: it is not installed
        filled = [nbytes(shape) if value is SIZE else value for value in arguments]
        named = {k: nbytes(shape) if value is SIZE else value for k, value in options.items()}
        if not filled:
            return partial(function, **named)
        return lambda stored: function(stored, *filled, **named)

    return make


def ours(name: str, **config: Any) -> Make:
    def make(shape: tuple[int, int]) -> Decode:
        array = ChunkedArray("v", shape, shape, np.dtype("<f4"))
        return step_of({"id": name, **config}, array, Size(nbytes(shape)))[0]

    return make


def codec(name: str, **config: Any) -> Make:
    return lambda _: numcodecs.get_codec({"id": name, **config}).decode


def of_zstandard(shape: tuple[int, int]) -> Decode:
    """One for each thread: "ZstdDecompressor instances are not thread-safe" (its manual)."""
    decompressor = resolve_name("zstandard:ZstdDecompressor")()
    return partial(decompressor.decompress, max_output_size=nbytes(shape))


def zstd_into(shape: tuple[int, int]) -> Decode:
    return lambda stored: zstd.decompress(stored, np.empty(nbytes(shape), np.uint8))


def of_blosc2(_: tuple[int, int]) -> Decode:
    resolve_name("blosc2:set_nthreads")(1)
    return resolve_name("blosc2:decompress")


# ---- the shuffle -----------------------------------------------------------------------------


def shuffle(chunk: np.ndarray, width: int = 4) -> bytes:
    """All first bytes, all second bytes ... of the elements."""
    return np.ascontiguousarray(chunk).view(np.uint8).reshape(-1, width).T.tobytes()


def placed(way: Callable[..., Any], width: int, row: int = 1) -> Make:
    """Put the elements of `row` chunks beside each other into a larger array, as reading does."""

    def make(shape: tuple[int, int]) -> Decode:
        rows, columns = shape[0], nbytes(shape) // shape[0] // width
        result = np.zeros((rows, (row + 1) * columns), f"f{width}")
        out = result[:, : row * columns].reshape(rows, row, columns).swapaxes(0, 1)

        def decode(stored: Any) -> Any:
            way(out, [stored] if row == 1 else stored)
            return out

        return decode

    return make


def by_planes(out: np.ndarray, chunks: list[bytes]) -> None:
    """One strided copy for each byte of an element, straight to its place."""
    width = out.itemsize
    planes = np.frombuffer(b"".join(chunks) if len(chunks) > 1 else chunks[0], np.uint8)
    planes = planes.reshape(len(chunks), width, *out.shape[1:])
    bytewise = out.view([(f"f{i}", np.uint8) for i in range(width)])
    for i in range(width):
        bytewise[f"f{i}"] = planes[:, i]


def by_planes_and_copy(out: np.ndarray, chunks: list[bytes]) -> None:
    plain = np.empty(out.shape, out.dtype)
    by_planes(plain, chunks)
    out[...] = plain


def by_transposing(out: np.ndarray, chunks: list[bytes]) -> None:
    for place, chunk in zip(out, chunks, strict=True):
        planes = np.frombuffer(chunk, np.uint8).reshape(out.itemsize, -1)
        place[...] = planes.T.copy().view(out.dtype).reshape(place.shape)


def by_shifting(out: np.ndarray, chunks: list[bytes]) -> None:
    for place, chunk in zip(out, chunks, strict=True):
        planes = np.frombuffer(chunk, np.uint8).reshape(out.itemsize, -1)
        whole = planes[-1].astype(f"u{out.itemsize}")
        for plane in planes[-2::-1]:
            whole <<= 8
            whole |= plane
        place[...] = whole.view(out.dtype).reshape(place.shape)


def by_numcodecs(out: np.ndarray, chunks: list[bytes]) -> None:
    decode = numcodecs.Shuffle(out.itemsize).decode
    for place, chunk in zip(out, chunks, strict=True):
        place[...] = np.frombuffer(decode(chunk), out.dtype).reshape(place.shape)


def by_imagecodecs(out: np.ndarray, chunks: list[bytes]) -> None:
    decode = resolve_name("imagecodecs:byteshuffle_decode")
    for place, chunk in zip(out, chunks, strict=True):
        place[...] = decode(np.frombuffer(chunk, out.dtype).reshape(1, -1)).reshape(place.shape)


def by_blosc(out: np.ndarray, chunks: list[bytes]) -> None:
    """What `nczarr_xarray.codecs.shuffle` does, without the decoder around it."""
    out[...] = unshuffle(chunks, out.itemsize).view(out.dtype).reshape(out.shape)


def our_shuffle(width: int, row: int = 1) -> Make:
    """The decoder of an array without compressor, for whole chunks beside each other."""

    def make(shape: tuple[int, int]) -> Decode:
        rows, columns = shape[0], nbytes(shape) // shape[0] // width
        codecs = ({"id": "shuffle", "elementsize": width},)
        whole = (rows, (row + 1) * columns)
        dtype = np.dtype(f"<f{width}")
        decoder = Decoder(ChunkedArray("v", whole, (rows, columns), dtype, codecs=codecs))
        scatter = Scatter(decoder)
        result = np.zeros(whole, dtype)
        every = (slice(0, rows, 1), slice(0, columns, 1))
        tasks = [
            ChunkTask((0, i), every, (every[0], slice(i * columns, (i + 1) * columns)))
            for i in range(row)
        ]
        out = result[:, : row * columns].reshape(rows, row, columns).swapaxes(0, 1)

        def decode(stored: Any) -> Any:
            stored = [stored] if row == 1 else stored
            chunks = decoder.decode(stored, str)
            scatter.many(chunks, tasks, None, result)
            return out

        return decode

    return make


def shuffles(width: int, row: int = 1) -> Codec:
    ways = {
        "numpy, planes in place": by_planes,
        "numpy, planes, then copy": by_planes_and_copy,
        "numpy, transposed": by_transposing,
        "numpy, shifts": by_shifting,
        "numcodecs.Shuffle": by_numcodecs,
        "imagecodecs.byteshuffle": by_imagecodecs,
        "numcodecs.blosc, then copy": by_blosc,
    }
    libraries = {name: placed(way, width, row) for name, way in ways.items()}
    shapes = SHAPES if row == 1 else dict(list(SHAPES.items())[:2])
    return Codec(
        lambda chunk: (shuffle(chunk, width), chunk.tobytes()),
        {OURS: our_shuffle(width, row), **libraries},
        row,
        shapes=shapes,
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


def filtered(name: str) -> Callable[[np.ndarray], tuple[Any, bytes]]:
    def encode(chunk: np.ndarray) -> tuple[Any, bytes]:
        plain = shuffle(chunk)
        return bytes(numcodecs.get_codec({"id": name}).encode(plain)), plain

    return encode


# ---- everything ------------------------------------------------------------------------------


def compressed(compress: Callable[[bytes], bytes]) -> Callable[[np.ndarray], tuple[Any, bytes]]:
    """Stored shuffled, by a compressor that knows nothing of the shuffle."""

    def encode(chunk: np.ndarray) -> tuple[Any, bytes]:
        plain = shuffle(chunk)
        return compress(plain), plain

    return encode


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


def run(options: Options) -> dict[str, Row]:
    """Rows ``zlib, 16 KB`` (one thread), the same in two, and of one long call."""
    found: dict[str, Row] = {}
    wanted = {name: c for name, c in CODECS.items() if _wanted(name, c, options)}
    values = data.field((2048, 1024)) if wanted else np.empty(0)
    long = data.field(LONG) if wanted else values
    with ThreadPoolExecutor(2) as pool:
        for name, codec_ in wanted.items():
            for size, shape in codec_.shapes.items():
                if options.wants(f"{name}, {size}"):
                    work = _work(f"{name}, {size}", codec_, shape, values, options.scale, pool)
                    found |= _divided(work.name, measure(work, options.repeat))
            if name.startswith("unshuffle") and codec_.row > 1:
                continue  # the same functions as for one chunk
            names = list(found[next(reversed(found))].times)
            found |= _long(name, codec_, long[: round(len(long) * codec_.part)], names)
    return found


def _wanted(name: str, codec_: Codec, options: Options) -> bool:
    return any(options.wants(f"{name}, {size}") for size in codec_.shapes)


def _work(
    name: str,
    codec_: Codec,
    shape: tuple[int, int],
    values: np.ndarray,
    scale: float,
    pool: ThreadPoolExecutor,
) -> Work:
    chunks = tiles(values, shape)
    least = 2 * codec_.row  # one for each thread
    count = max(least, round(len(chunks) * scale * codec_.part) // least * least)
    pairs = [codec_.encode(chunk) for chunk in chunks[: min(count, len(chunks))]]
    stored, plain = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if codec_.row > 1:
        starts = range(0, len(pairs), codec_.row)
        stored = [stored[i : i + codec_.row] for i in starts]
        plain = [b"".join(plain[i : i + codec_.row]) for i in starts]
    programs: dict[str, Callable[[], Any] | float] = {}
    for library_, make in codec_.libraries.items():
        try:
            decode = make(shape)
            if any(_bytes(decode(s)) != p for s, p in zip(stored, plain, strict=True)):
                raise ValueError("wrong values")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001  (whatever a library raises is its result)
            programs[library_] = partial(_raise, error)
            continue
        for label, threads in ((library_, 1), (library_ + TWO, 2)):
            programs[label] = partial(_turn, pool, make, shape, stored, threads)
    return Work(name, programs, megabytes=len(pairs) * nbytes(shape) / 1e6)


def tiles(values: np.ndarray, shape: tuple[int, int]) -> list[np.ndarray]:
    (rows, columns), (height, width) = values.shape, shape
    return [
        np.ascontiguousarray(values[y : y + height, x : x + width])
        for y in range(0, rows, height)
        for x in range(0, columns, width)
    ]


def _bytes(decoded: Any) -> bytes:
    return decoded.tobytes() if isinstance(decoded, np.ndarray) else bytes(memoryview(decoded))


def _raise(error: Exception) -> None:
    raise error


def _turn(
    pool: ThreadPoolExecutor, make: Make, shape: tuple[int, int], stored: list[Any], threads: int
) -> bytes:
    """Decode all chunks; the last one, as bytes. (Both numbers of threads are of the pool.)"""

    def part(stored: list[Any]) -> Any:
        decode, last = make(shape), None
        for chunk in stored:
            last = decode(chunk)
        return last

    share = len(stored) // threads
    parts = [stored[i * share : (i + 1) * share] for i in range(threads)]
    return _bytes(list(pool.map(part, parts))[-1])


def _divided(name: str, row: Row) -> dict[str, Row]:
    """One thread and two were measured in turn; they are rows of their own."""
    rows = {name: Row(megabytes=row.megabytes), name + TWO: Row(megabytes=row.megabytes)}
    rows[name].errors = row.errors
    for label, times in row.times.items():
        rows[name + TWO if label.endswith(TWO) else name].times[label.removesuffix(TWO)] = times
    return rows


def _long(
    name: str, codec_: Codec, chunk: np.ndarray, names: list[str], repeat: int = 5
) -> dict[str, Row]:
    """Calls that last long, and how long another thread was silent in each at most."""
    shape = (chunk.shape[0], chunk.shape[1])
    stored, _ = codec_.encode(chunk)
    took, silent = Row(megabytes=chunk.nbytes / 1e6), Row(megabytes=chunk.nbytes / 1e6)
    for library_ in names:
        decode = codec_.libraries[library_](shape)
        pairs = [_silence(partial(decode, stored)) for _ in range(repeat)]
        took.times[library_] = [pair[0] for pair in pairs]
        silent.times[library_] = [pair[1] for pair in pairs]
    return {f"{name}, long": took, f"{name}, long{LOCK}": silent}


def _silence(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a call in another thread, and the longest time in which we were not heard."""
    begin = end = 0.0

    def timed() -> None:
        nonlocal begin, end
        begin = time.perf_counter()
        call()
        end = time.perf_counter()

    thread = threading.Thread(target=timed)
    heard = []
    thread.start()
    while not end and thread.is_alive():
        heard.append(time.perf_counter())
        time.sleep(1e-4)
    thread.join()
    moments = [begin, *(moment for moment in heard if begin < moment < end), end]
    return end - begin, max(b - a for a, b in pairwise(moments))


# ---- what is shown ---------------------------------------------------------------------------


def holds_lock(rows: dict[str, Row], name: str, library_: str) -> bool | None:
    """Whether other threads stand still, in most of several calls, as others use the machine."""
    took, silent = rows.get(f"{name}, long"), rows.get(f"{name}, long{LOCK}")
    if not took or not silent or library_ not in took.times:
        return None
    parts = zip(silent.times[library_], took.times[library_], strict=True)
    return statistics.median(quiet / whole for quiet, whole in parts) > SILENT


def table(rows: dict[str, Row]) -> str:
    return "\n\n".join(
        f"### {name}\n\n{_of_codec(name, codec_, rows)}"
        for name, codec_ in CODECS.items()
        if any(f"{name}, {size}" in rows for size in codec_.shapes)
    )


def _of_codec(name: str, codec_: Codec, rows: dict[str, Row]) -> str:
    """Microseconds of a chunk: median, and best; speed; two threads; the lock."""
    sizes = [size for size in codec_.shapes if f"{name}, {size}" in rows]
    head = ["µs per chunk", *sizes, f"MB/s, {sizes[-1]}"]
    head += [f"2 threads, {size}" for size in dict.fromkeys((sizes[0], sizes[-1]))]
    lines = [[*head, "lock"], ["---"] * (len(head) + 1)]
    for library_ in codec_.libraries:
        cells = [library_]
        for size in sizes:
            row = rows[f"{name}, {size}"]
            if library_ not in row.times:
                absent = row.errors.get(library_, "").startswith(("ModuleNotFound", "ImportError"))
                cells.append("not installed" if absent else "fails")
                continue
            count = row.megabytes * 1e6 / nbytes(codec_.shapes[size])
            factor, times = 1e6 / count, row.times[library_]
            middle, best = factor * statistics.median(times), factor * min(times)
            cells.append(f"{_short(middle)} ({_short(best)})")
        last = rows[f"{name}, {sizes[-1]}"]
        if library_ in last.times:
            cells.append(f"{last.megabytes / last.median(library_):,.0f}")
            ends = dict.fromkeys((sizes[0], sizes[-1]))
            cells += [_gain(rows, f"{name}, {size}", library_) for size in ends]
            held = holds_lock(rows, name, library_)
            cells.append("–" if held is None else "**held**" if held else "released")
        lines.append(cells + [""] * (len(head) + 1 - len(cells)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _gain(rows: dict[str, Row], name: str, library_: str) -> str:
    """How many times as fast two threads are, in pairs of turns that followed each other."""
    one, two = (rows[label].times.get(library_) for label in (name, name + TWO))
    if not one or not two:
        return "–"
    return f"{statistics.median(a / b for a, b in zip(one, two, strict=True)):.2f}"


def lines(rows: dict[str, Row], path: Path) -> None:
    """Throughput over the size of chunks, a panel for each codec."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = [n for n, c in CODECS.items() if all(f"{n}, {size}" in rows for size in c.shapes)]
    if not names:
        return
    columns = min(3, len(names))
    height = -(-len(names) // columns)
    figure, panels = plt.subplots(
        height, columns, figsize=(4.4 * columns, 3.4 * height), layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for name, axes in zip(names, panels.flat, strict=False):
        shapes = CODECS[name].shapes
        places = [nbytes(shape) / 1024 for shape in shapes.values()]
        for number, library_ in enumerate(CODECS[name].libraries):
            mine = library_ == OURS
            style = {"color": "#1b7837" if mine else f"C{number}", "linewidth": 2.2 if mine else 1}
            found = [rows[f"{name}, {size}"] for size in shapes]
            if all(library_ in row.times for row in found):
                rates = [row.megabytes / row.median(library_) / 1e3 for row in found]
                axes.plot(places, rates, label=library_, **style)
        axes.set_xscale("log", base=4)
        axes.set_yscale("log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(lambda value, _: f"{value:.2g}")
        axes.set_xticks(places, list(shapes))
        axes.set_title(name, fontsize="medium")
        axes.legend(frameon=False, fontsize=6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel("GB/s of decoded bytes in one thread (median)", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def save(found: dict[str, Row], options: Options, command: str, folder: Path) -> None:
    """Write numbers and picture, and the tables on the page on codecs."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = document(found, options, command)
    installed = {d.name: d.version for d in distributions() if d.name in PACKAGES}
    numbers["machine"]["versions"] = dict(sorted(installed.items()))
    (folder / f"{SECTION}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    lines(found, folder / f"{SECTION}.png")
    page = folder.parent / "codecs.md"
    if page.exists():
        picture = f"![The same as curves](bench/{SECTION}.png)"
        insert(page, SECTION, f"{heading(numbers)}\n\n{picture}\n\n{table(found)}")


if __name__ == "__main__":  # as `python bench --section decoding`, to look at one codec
    print(table(run(Options(repeat=3, scale=0.5, only=" ".join(sys.argv[1:])))))
