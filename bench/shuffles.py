"""What undoes the shuffle of chunks, alone: a part of the table in `bench/decoders.py`."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import numcodecs
import numpy as np
from harness import OURS
from libraries import SHAPES, Codec, Decode, Make, nbytes

from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.plan import ChunkTask
from nczarr_xarray.chunks.scatter import Scatter
from nczarr_xarray.codecs.shuffle import unshuffle
from nczarr_xarray.model import ChunkedArray


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
        decoder = Decoder(ChunkedArray("v", whole, (rows, columns), dtype, codecs=codecs), 0)
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
