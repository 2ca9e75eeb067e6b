"""Decoding several chunks together."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from numcodecs import Delta, Fletcher32, Shuffle

from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.codecs import decompress, frames
from nczarr_xarray.model import ChunkedArray

COUNT = 10


@pytest.mark.parametrize(
    ("config", "codec"),
    [
        (None, None),
        ({"id": "shuffle", "elementsize": 4}, Shuffle(4)),
        ({"id": "fletcher32"}, Fletcher32()),  # returns a view of Cython
        ({"id": "delta", "dtype": "<i4"}, Delta("<i4")),  # returns elements
    ],
)
def test_each_chunk_is_decoded_once(
    config: Any, codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kind of buffer a codec returns."""
    inflated: list[int] = []

    def inflate(data: Any, most: int) -> bytes:
        inflated.append(most)
        return zlib.decompress(data)

    monkeypatch.setattr(frames, "library", lambda: None)  # else it undoes all of them at once
    monkeypatch.setitem(decompress._libdeflate, "zlib", inflate)
    chunks = np.arange(6 * COUNT, dtype="<i4").reshape(6, COUNT)
    stored = [
        zlib.compress(row.tobytes() if codec is None else codec.encode(row)) for row in chunks
    ]
    codecs = (*([] if config is None else [config]), {"id": "zlib", "level": 1})
    decoder = Decoder(ChunkedArray("v", (6 * COUNT,), (COUNT,), np.dtype("<i4"), codecs=codecs))
    found = decoder.decode(stored, str)
    assert len(inflated) == len(stored)
    for plain, row in zip(found, chunks, strict=True):
        expected = Shuffle(4).encode(row) if decoder.planes else row
        assert bytes(plain) == bytes(expected)
        assert len(plain) == row.nbytes
