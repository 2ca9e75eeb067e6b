"""A way to store one chunk, and the libraries that decode it: `bench/decoders.py` has the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numcodecs
import numpy as np

from nczarr_xarray.codecs.codec import Size
from nczarr_xarray.codecs.registry import step_of
from nczarr_xarray.model import ChunkedArray

#: Chunks of four-byte elements, by their size.
SHAPES = {"4 KB": (32, 32), "16 KB": (64, 64), "256 KB": (256, 256), "2 MiB": (512, 1024)}
#: Takes a chunk as it is stored (or several in a row), returns what it holds.
Decode = Callable[[Any], Any]
#: Makes that for chunks of a shape; called once in every thread of a turn.
Make = Callable[[tuple[int, int]], Decode]


class _Bytes:
    """Stands for the size of a decoded chunk among a library's arguments."""


SIZE = _Bytes()


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to store chunks, and the libraries that read them.

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
