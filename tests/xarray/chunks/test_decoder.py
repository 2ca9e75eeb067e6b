"""Decoding several chunks together, and large ones straight into a result."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
import zstandard
from numcodecs import Blosc, Delta, Fletcher32, Shuffle, Zstd

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.stores.mapping import MappingStore
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.plan import plan_outer
from nczarr_xarray.codecs import decompress, registry
from nczarr_xarray.codecs.codec import Codec, Size, Step
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

    monkeypatch.setattr(decompress, "library", lambda: None)  # else it undoes all of them at once
    monkeypatch.setitem(decompress.LIBDEFLATE, "zlib", inflate)
    chunks = np.arange(6 * COUNT, dtype="<i4").reshape(6, COUNT)
    stored = [
        zlib.compress(row.tobytes() if codec is None else codec.encode(row)) for row in chunks
    ]
    codecs = (*([] if config is None else [config]), {"id": "zlib", "level": 1})
    decoder = Decoder(ChunkedArray("v", (6 * COUNT,), (COUNT,), np.dtype("<i4"), codecs=codecs), 0)
    found = decoder.decode(stored, str)
    assert len(inflated) == len(stored)
    for plain, row in zip(found, chunks, strict=True):
        expected = Shuffle(4).encode(row) if decoder.planes else row
        assert bytes(plain) == bytes(expected)
        assert len(plain) == row.nbytes


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">U2", ">c8"])
def test_elements_of_the_other_byte_order_that_were_shuffled(dtype: str) -> None:
    """To reverse the bytes of an element is right for one number only."""
    values = np.arange(COUNT).astype(dtype)
    values[4] = "é€" if values.dtype.kind == "U" else 1e3 + (5j if values.dtype.kind == "c" else 0)
    codecs = ({"id": "shuffle", "elementsize": values.dtype.itemsize}, {"id": "zlib", "level": 1})
    array = ChunkedArray("v", (COUNT,), (COUNT,), values.dtype, codecs=codecs)
    stored = zlib.compress(Shuffle(values.dtype.itemsize).encode(values))
    reader = ChunkReader(array, MappingStore({"v/0": stored}))
    for part in (slice(None), slice(3, 5), slice(0, 1)):
        found = reader.read(plan_outer((part,), array.shape, array.chunk_shape))
        np.testing.assert_array_equal(found, values[part])


LARGE = 1 << 17  # of four bytes each: a chunk is not decoded with others
_NUMBERS = np.random.default_rng(0).integers(0, 999, LARGE, "<i4")
_DIRECT = [
    Blosc("lz4", 5, Blosc.SHUFFLE),
    Blosc("zstd", 1, Blosc.BITSHUFFLE),
    Blosc("lz4", 0, Blosc.NOSHUFFLE),
    Zstd(3),
    Zstd(1, checksum=True),
]


def _decoder(*codecs: Any, dtype: str = "<i4") -> Decoder:
    configs = tuple(codec.get_config() for codec in codecs)
    return Decoder(ChunkedArray("v", (2 * LARGE,), (LARGE,), np.dtype(dtype), codecs=configs), 0)


@pytest.mark.parametrize("before", [(), (Fletcher32(),)])
@pytest.mark.parametrize("codec", _DIRECT, ids=str)
def test_large_chunks_are_decoded_into_the_result(codec: Any, before: tuple[Any, ...]) -> None:
    """With what follows the container, too, as netCDF-C may leave it there."""
    stored = codec.encode(_NUMBERS)
    for one in before:
        stored = one.encode(stored)
    decoder = _decoder(codec, *before)
    for more in (b"", b"rest") if not before else (b"",):
        room = np.full(LARGE, -1, "<i4")
        assert decoder.is_direct
        assert decoder.decode_into(bytes(stored) + more, room.view(np.uint8).data)
        np.testing.assert_array_equal(room, _NUMBERS)


@pytest.mark.parametrize("codec", [Blosc("lz4"), Zstd()], ids=str)
@pytest.mark.parametrize("damage", ["cut", "other_size", "noise", "empty"])
def test_what_is_no_chunk_is_not_decoded_into_the_result(codec: Any, damage: str) -> None:
    stored = {
        "cut": codec.encode(_NUMBERS)[:-9],
        "other_size": codec.encode(_NUMBERS[1:]),
        "noise": bytes(range(256)),
        "empty": b"",
    }[damage]
    decoder = _decoder(codec)
    assert not decoder.decode_into(stored, np.empty(4 * LARGE, np.uint8).data)
    with pytest.raises(FormatError, match=r"^v/1: "):
        decoder.decode([stored], lambda _: "v/1")


def test_a_frame_that_does_not_state_its_size_is_decoded_beside_the_result() -> None:
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(_NUMBERS.tobytes())
    decoder = _decoder(Zstd())
    assert not decoder.decode_into(stored, np.empty(4 * LARGE, np.uint8).data)
    (plain,) = decoder.decode([stored], str)
    assert bytes(plain) == _NUMBERS.tobytes()


def test_bytes_of_the_other_order_are_not_decoded_into_the_result() -> None:
    assert not _decoder(Zstd(), dtype=">i4").is_direct


@pytest.mark.parametrize("codec", [Blosc("lz4"), Zstd()], ids=str)
def test_a_read_decodes_whole_chunks_into_its_result(
    codec: Any, tmp_path: Path, decoded: list[int]
) -> None:
    """A chunk of which a part is wanted is decoded beside the result, as at the edge."""
    values = np.arange(3 * 8 * LARGE // 8, dtype="<i4").reshape(24, LARGE // 8)
    stored = zarr.create_array(
        tmp_path / "x.zarr" / "v",
        shape=(23, LARGE // 8),
        chunks=(8, LARGE // 8),
        dtype="<i4",
        compressors=codec,
        zarr_format=2,
        attributes={"_ARRAY_DIMENSIONS": ["y", "x"]},
    )
    stored[...] = values[:23]
    (tmp_path / "x.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    with xr.open_dataset(tmp_path / "x.zarr", engine="nczarr", cache=False) as ds:
        np.testing.assert_array_equal(ds["v"].values, values[:23])
        assert decoded == [1]
        np.testing.assert_array_equal(ds["v"][3:19].values, values[3:19])
        assert decoded == [1] * 3  # the chunk in the middle is wanted whole


def test_stored_chunks_may_be_as_large_as_their_codec_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an added codec that makes text of numbers, they are up to three times as large."""

    def numbers_of(text: bytes) -> np.ndarray:
        return np.array(bytes(text).split(), "f8")

    def decode(_: object, __: object, size: Size) -> tuple[Step, Size]:
        return numbers_of, Size(3 * size.most, exact=False)

    monkeypatch.setitem(registry.BY_ID, "text", Codec(id="text", decode=decode))
    values = np.random.default_rng(0).random(100_000)
    xr.Dataset({"v": ("x", values)}).nczarr.to_nczarr(
        f"file://{tmp_path}/x.zarr#mode=zarr", encoding={"v": {"chunks": values.shape}}
    )
    document = tmp_path / "x.zarr" / "v" / ".zarray"
    codecs = {"filters": [{"id": "text"}], "compressor": None}
    document.write_text(json.dumps(json.loads(document.read_text()) | codecs))
    text = " ".join(map(str, values.tolist())).encode()
    assert len(text) > 2 * values.nbytes
    (tmp_path / "x.zarr" / "v" / "0").write_bytes(text)
    with xr.open_dataset(tmp_path / "x.zarr", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"].values, values)
