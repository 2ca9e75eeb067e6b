"""Several small chunks decoded by one call: the same as one by one, and as safe."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Fletcher32, Shuffle

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.cache import ChunkCache
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.codecs import frames
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.model import ChunkedArray

Compress = Callable[[bytes], bytes]
COMPRESS: dict[str, Compress] = {"zlib": zlib.compress, "zstd": zstandard.compress}
#: Elements of a chunk.
COUNT = 500


@pytest.fixture(autouse=True)
def library() -> None:
    if frames.library() is None:
        pytest.skip("blosc2 is not installed: pip install 'nczarr-xarray[fast]'")


def decoder_of(name: str, dtype: str, *, count: int = COUNT, shuffled: bool = True) -> Decoder:
    codecs: list[dict[str, Any]] = [{"id": name, "level": 1}]
    if shuffled:
        codecs.insert(0, {"id": "shuffle", "elementsize": np.dtype(dtype).itemsize})
    array = ChunkedArray("v", (8 * count,), (count,), np.dtype(dtype), codecs=tuple(codecs))
    return Decoder(array)


def stored_as(name: str, chunks: np.ndarray, *, shuffled: bool = True) -> list[bytes]:
    shuffle = Shuffle(chunks.itemsize).encode if shuffled else np.ndarray.tobytes
    return [COMPRESS[name](bytes(shuffle(chunk))) for chunk in chunks]


def some(dtype: str, several: int = 8, count: int = COUNT, seed: int = 0) -> np.ndarray:
    steps = np.random.default_rng(seed).integers(0, 5, (several, count))
    return np.cumsum(steps, 1).astype(dtype)


@given(
    name=st.sampled_from(sorted(COMPRESS)),
    dtype=st.sampled_from(["u1", "<i2", ">i2", "<f4", ">f8", "<c16", "S3", "M8[s]"]),
    shuffled=st.booleans(),
    count=st.integers(1, 700),
    several=st.integers(2, 9),
    seed=st.integers(0, 9),
)
def test_any_chunks(
    name: str, dtype: str, shuffled: bool, count: int, several: int, seed: int
) -> None:
    """Whatever the elements are, in however many chunks of any size."""
    values = some("u1", several, count * np.dtype(dtype).itemsize, seed)
    chunks = values.view(dtype).reshape(several, count)
    decoder = decoder_of(name, dtype, count=count, shuffled=shuffled)
    assert decoder.is_together
    found = decoder.decode(stored_as(name, chunks, shuffled=shuffled), str)
    assert [bytes(chunk) for chunk in found] == [chunk.tobytes() for chunk in chunks]


@pytest.mark.parametrize("name", sorted(COMPRESS))
def test_one_call_undoes_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of the steps that undo one chunk is used."""
    chunks, decoder = some("<f4"), decoder_of(name, "<f4")
    monkeypatch.setattr(decoder, "_steps", ())
    found = decoder.decode(stored_as(name, chunks), str)
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == chunks.tobytes()


@pytest.mark.parametrize("name", sorted(COMPRESS))
@pytest.mark.parametrize("case", ["cut", "flipped", "empty", "short", "long", "noise"])
def test_a_damaged_chunk_is_named(name: str, case: str) -> None:
    """Among others that are not damaged."""
    chunks = some("<i4")
    stored = stored_as(name, chunks)
    damaged = stored[3]
    stored[3] = {
        "cut": damaged[:-1],
        "flipped": bytes([damaged[0] ^ 0x55]) + damaged[1:],
        "empty": b"",
        "short": COMPRESS[name](chunks[3].tobytes()[:-4]),
        "long": COMPRESS[name](chunks[3].tobytes() + b"more"),
        "noise": np.random.default_rng(0).bytes(chunks[3].nbytes),  # as long as it has to be
    }[case]
    with pytest.raises(FormatError, match="chunk 3"):
        decoder_of(name, "<i4").decode(stored, lambda i: f"chunk {i}")


@pytest.mark.parametrize("more", [1, 7, None])
def test_what_follows_a_stream_is_ignored(more: int | None) -> None:
    """netCDF-C leaves the end of a longer object there; None: as much as blosc takes for plain."""
    chunks = some("<i4")
    stored = stored_as("zlib", chunks)
    stored[2] += bytes(chunks[2].nbytes - len(stored[2]) if more is None else more)
    found = decoder_of("zlib", "<i4").decode(stored, str)
    assert [bytes(chunk) for chunk in found] == [chunk.tobytes() for chunk in chunks]


def test_checksums_are_undone_before() -> None:
    chunks = some("<i4")
    codecs = ({"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 1}, {"id": "fletcher32"})
    decoder = Decoder(ChunkedArray("v", (8 * COUNT,), (COUNT,), np.dtype("<i4"), codecs=codecs))
    stored = [
        bytes(Fletcher32().encode(np.frombuffer(one, "u1"))) for one in stored_as("zlib", chunks)
    ]
    found = decoder.decode(stored, str)
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == chunks.tobytes()
    stored[5] = stored[5][:-1] + bytes([stored[5][-1] ^ 1])
    with pytest.raises(FormatError, match="chunk 5"):
        decoder.decode(stored, lambda i: f"chunk {i}")


@pytest.mark.parametrize(
    "codecs",
    [
        ({"id": "delta", "dtype": "<i4"}, {"id": "zlib", "level": 1}),
        ({"id": "gzip", "level": 1},),
        (),
    ],
)
def test_other_codecs_are_undone_one_by_one(codecs: tuple[dict[str, Any], ...]) -> None:
    array = ChunkedArray("v", (8 * COUNT,), (COUNT,), np.dtype("<i4"), codecs=codecs)
    assert not Decoder(array).is_together


@pytest.mark.parametrize("name", sorted(COMPRESS))
def test_large_chunks_are_undone_one_by_one(name: str) -> None:
    frame = codec(name).frame
    assert frame is not None
    assert decoder_of(name, "u1", count=frame.most).is_together
    assert not decoder_of(name, "u1", count=frame.most + 1).is_together


def test_a_remembered_chunk_does_not_keep_the_others() -> None:
    chunks = some("<i4")
    found = decoder_of("zlib", "<i4").decode(stored_as("zlib", chunks), str)
    cache = ChunkCache(1 << 20)
    known = cache.of(frames)
    known.put(range(8), found, chunks[0].nbytes)
    remembered = known.get([4])[0]
    assert remembered.tobytes() == chunks[4].tobytes()
    assert remembered.base is None


def test_threads_decode_at_once() -> None:
    """Each has what the library keeps for itself; also threads that have ended."""
    chunks, decoder = some("<f4", 64), decoder_of("zlib", "<f4")
    stored = stored_as("zlib", chunks)

    def decode(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(64)
        found = decoder.decode([stored[i] for i in order], str)
        return np.asarray(found).tobytes() == chunks[order].tobytes()

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(decode, range(50)))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "library", lambda: None)
    chunks, decoder = some("<f4"), decoder_of("zlib", "<f4")
    assert not decoder.is_together
    assert decoder.planes == 4
    found = decoder.decode(stored_as("zlib", chunks), str)
    assert [bytes(Shuffle(4).decode(chunk)) for chunk in found] == [c.tobytes() for c in chunks]
