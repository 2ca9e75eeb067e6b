"""Several small chunks decoded by one call: the same as one by one, and as safe."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Fletcher32, Shuffle

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks import grid
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.codecs import decompress
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.model import ChunkedArray

Compress = Callable[[bytes], bytes]
COMPRESS: dict[str, Compress] = {"zlib": zlib.compress, "zstd": zstandard.compress}
#: Elements of a chunk.
COUNT = 500


@pytest.fixture(autouse=True)
def library() -> None:
    if decompress.library() is None:
        pytest.skip("blosc2 is not installed: pip install 'nczarr-xarray[fast]'")


def decoder_of(name: str, dtype: str, *, count: int = COUNT, shuffled: bool = True) -> Decoder:
    codecs: list[dict[str, Any]] = [{"id": name, "level": 1}]
    if shuffled:
        codecs.insert(0, {"id": "shuffle", "elementsize": np.dtype(dtype).itemsize})
    array = ChunkedArray("v", (8 * count,), (count,), np.dtype(dtype), codecs=tuple(codecs))
    return Decoder(array, 0)


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
    several=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_any_chunks(
    name: str, dtype: str, shuffled: bool, count: int, several: int, seed: int
) -> None:
    """Whatever the elements are, in however many chunks of any size."""
    values = some("u1", several, count * np.dtype(dtype).itemsize, seed)
    chunks = values.view(dtype).reshape(several, count)
    decoder = decoder_of(name, dtype, count=count, shuffled=shuffled)
    assert decoder.together is not None
    stored = stored_as(name, chunks, shuffled=shuffled)
    found = decoder.together(stored)
    if found is None:  # as blosc takes a block of this length for one that is not compressed
        assert chunks[0].nbytes in map(len, stored)
    else:
        assert np.asarray(found).tobytes() == chunks.tobytes()


@pytest.mark.parametrize("name", sorted(COMPRESS))
@pytest.mark.parametrize("case", ["cut", "flipped", "empty", "short", "long", "noise"])
def test_a_damaged_chunk_is_named(name: str, case: str) -> None:
    """Nothing is decoded together with it, and one by one it is found."""
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
    decoder = decoder_of(name, "<i4")
    assert decoder.together is not None
    assert decoder.together(stored) is None
    with pytest.raises(FormatError, match="chunk 3"):
        decoder.decode(stored, lambda i: f"chunk {i}")


@pytest.mark.parametrize("more", [1, 7, None])
def test_what_follows_a_stream_is_ignored(more: int | None) -> None:
    """netCDF-C leaves the end of a longer object there; None: as much as blosc takes for plain."""
    chunks = some("<i4")
    stored = stored_as("zlib", chunks)
    stored[2] += bytes(chunks[2].nbytes - len(stored[2]) if more is None else more)
    decoder = decoder_of("zlib", "<i4")
    assert decoder.together is not None
    found = decoder.together(stored)
    assert (found is None) == (more is None)
    assert found is None or np.asarray(found).tobytes() == chunks.tobytes()


def test_checksums_are_undone_before() -> None:
    chunks = some("<i4")
    codecs = ({"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 1}, {"id": "fletcher32"})
    decoder = Decoder(ChunkedArray("v", (8 * COUNT,), (COUNT,), np.dtype("<i4"), codecs=codecs), 0)
    assert decoder.together is not None
    stored = [
        bytes(Fletcher32().encode(np.frombuffer(one, "u1"))) for one in stored_as("zlib", chunks)
    ]
    assert np.asarray(decoder.together(stored)).tobytes() == chunks.tobytes()
    stored[5] = stored[5][:-1] + bytes([stored[5][-1] ^ 1])
    assert decoder.together(stored) is None


@pytest.mark.parametrize(
    "codecs",
    [({"id": "delta", "dtype": "<i4"}, {"id": "zlib", "level": 1}), ({"id": "gzip"},), ()],
)
def test_other_codecs_are_undone_one_by_one(codecs: tuple[dict[str, Any], ...]) -> None:
    array = ChunkedArray("v", (8 * COUNT,), (COUNT,), np.dtype("<i4"), codecs=codecs)
    assert Decoder(array, 0).together is None


@pytest.mark.parametrize("name", sorted(COMPRESS))
def test_large_chunks_are_undone_one_by_one(name: str) -> None:
    frame = codec(name).frame
    assert frame is not None
    assert decoder_of(name, "u1", count=frame.most).together is not None
    assert decoder_of(name, "u1", count=frame.most + 1).together is None


def test_threads_decode_at_once() -> None:
    """Each has what the library keeps for itself; also threads that have ended."""
    chunks, decode = some("<f4", 64), decoder_of("zlib", "<f4").together
    assert decode is not None
    stored = stored_as("zlib", chunks)

    def is_right(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(64)
        return np.asarray(decode([stored[i] for i in order])).tobytes() == chunks[order].tobytes()

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(is_right, range(50)))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompress, "library", lambda: None)
    assert decoder_of("zlib", "<f4").together is None


# ---- whole reads -----------------------------------------------------------------------------

SHAPE, CHUNKS = (5, 30, 40), (2, 8, 16)
SELECTIONS: list[dict[str, Any]] = [
    {},
    {"t": 1},
    {"t": slice(1, 4), "y": slice(3, 29), "x": slice(5, 33)},
    {"y": 7, "x": 11},
    {"t": slice(None, None, 3), "y": slice(1, None, 5), "x": slice(2, None, 7)},
    {"y": [3, 1, 17], "x": [30, 2]},
    {name: xr.DataArray([2, 0, 4], dims="p") for name in "tyx"},
]


def written(kind: str, tmp_path: Path) -> str:
    values = some("i4", SHAPE[0] * SHAPE[1], SHAPE[2]).reshape(SHAPE)
    ds = xr.Dataset({"v": (tuple("tyx"), values)})
    encoding = {"v": {"zlib": True, "complevel": 1, "shuffle": True, "chunksizes": CHUNKS}}
    target = tmp_path / "a"
    if kind == "netcdf4":
        ds.to_netcdf(target, engine="netcdf4", encoding=encoding)
    else:
        ds.nczarr.to_nczarr(target, encoding=encoding)
    return str(target)


@pytest.fixture(params=["netcdf4", "nczarr"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return written(request.param, tmp_path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks each call has decoded. (It does so in reads of any size.)"""
    counts: list[int] = []
    make = decompress.together

    def counting(*arguments: Any) -> Any:
        decode = make(*arguments)
        assert decode is not None

        def counted(chunks: Any) -> Any:
            counts.append(len(chunks))
            return decode(chunks)

        return counted

    monkeypatch.setattr("nczarr_xarray.chunks.decoder.together", counting)
    monkeypatch.setattr(grid, "SHARED_BYTES", 0)
    return counts


@pytest.mark.parametrize("selection", SELECTIONS)
def test_selections(path: str, calls: list[int], selection: dict[str, Any]) -> None:
    """In a thread that remembers nothing, as those of dask do not."""
    with xr.open_dataset(path, engine="nczarr") as ds, ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: ds.v.isel(selection).values).result()
    expected = some("i4", SHAPE[0] * SHAPE[1], SHAPE[2]).reshape(SHAPE)
    assert np.array_equal(found, xr.DataArray(expected, dims=tuple("tyx")).isel(selection).values)
    assert calls


def test_a_read_that_is_remembered_is_decoded_one_by_one(path: str, calls: list[int]) -> None:
    """The decoded chunks of a call are one array, of which a part would keep all."""
    with xr.open_dataset(path, engine="nczarr") as ds:
        assert ds.v[1, 2, 3].values == some("i4", SHAPE[0] * SHAPE[1], SHAPE[2])[32, 3]
    assert not calls


def test_a_damaged_chunk_of_a_dataset_is_named(tmp_path: Path, calls: list[int]) -> None:
    """After several were decoded together in vain."""
    path = written("nczarr", tmp_path)
    chunk = Path(path, "v", "1.2.1")
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with (
        xr.open_dataset(path, engine="nczarr") as ds,
        pytest.raises(FormatError, match=r"v/1\.2\.1"),
    ):
        ds.v.load()
    assert calls
