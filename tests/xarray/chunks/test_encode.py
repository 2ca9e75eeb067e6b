"""Encoding chunks: what `Decoder` and netCDF-C read is what was written."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.chunks.plan import ChunkTask
from nczarr_xarray.chunks.scatter import Scatter
from nczarr_xarray.codecs import compress
from nczarr_xarray.model import ChunkedArray
from tests.support.marks import each_once

# fmt: off
DTYPES = [
    "<i1", "<u1", "<i2", ">u2", "<i4", ">i4", "<u8", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8",
    ">f8", "|b1", "<c8", ">c8", "<c16", ">c16", "<M8[s]", ">m8[ms]", "|S1", "<U3", ">U3", "|V5",
    "|V20",
]
# fmt: on
SHUFFLE = {"id": "shuffle", "elementsize": 0}
COMPRESSED: list[dict[str, Any]] = [
    {"id": "zlib", "level": 1},
    {"id": "zlib", "level": 0},
    {"id": "gzip", "level": 9},
    {"id": "bz2", "level": 1},
    {"id": "lzma", "preset": 0},
    {"id": "zstd", "level": 3},
    {"id": "lz4"},
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 2, "blocksize": 1},
    {"id": "blosc", "cname": "zlib", "clevel": 9, "shuffle": 0},
    {"id": "blosc", "cname": "blosclz", "shuffle": -1},
    {"id": "blosc"},
    {"id": "fletcher32"},
    {"id": "crc32"},
    SHUFFLE,
    {"id": "shuffle", "elementsize": 3},
]

CHAINS = st.lists(st.sampled_from([SHUFFLE, *COMPRESSED]), max_size=3).map(tuple)


def positions(array: ChunkedArray) -> Iterator[tuple[int, ...]]:
    counts = (-(-n // c) for n, c in zip(array.shape, array.chunk_shape, strict=True))
    return itertools.product(*map(range, counts))


def region(array: ChunkedArray, position: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(
        slice(i * c, min((i + 1) * c, n))
        for i, c, n in zip(position, array.chunk_shape, array.shape, strict=True)
    )


def whole_chunk(array: ChunkedArray, data: Any) -> np.ndarray:
    """All elements of one chunk, padding too, in the stored dtype."""
    result = np.empty(array.chunk_shape, array.dtype.newbyteorder("="))
    everything = (slice(None),) * result.ndim
    decoder = Decoder(array, 0)
    (chunk,) = decoder.decode([bytes(data)], lambda _: "v/0")
    Scatter(decoder).one(chunk, ChunkTask((), everything, everything), None, result)
    return result.astype(array.dtype)


def missing(array: ChunkedArray) -> np.ndarray:
    """Return what an element of a chunk that is not stored reads as."""
    if array.fill is not None:
        return np.array(array.fill, array.dtype)
    times = array.dtype.kind in "mM"
    return np.array("NaT", array.dtype) if times else np.zeros((), array.dtype)


def random_bits(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Every pattern of bits that is valid: NaN with any payload, NaT, bytes after a NUL."""
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "U":
        points = rng.integers(0, 0xD800, count * dtype.itemsize // 4, np.uint32)
        return points.astype("u4").astype(f"{dtype.str[0]}u4").view(dtype).reshape(shape)
    few = rng.integers(0, rng.choice([2, 256]), count * dtype.itemsize, np.uint8)
    return few.view(dtype).reshape(shape)


LAYOUTS = ("contiguous", "fortran", "strided", "backwards", "swapped", "read-only")


def laid_out(values: np.ndarray, layout: str) -> np.ndarray:
    """The same values, somewhere else in memory."""
    if layout == "fortran":
        return np.array(values, order="F")
    if layout == "strided" and values.ndim:
        wide = np.repeat(values, 2, axis=-1)
        return wide[..., ::2]
    if layout == "backwards" and values.ndim:
        return np.ascontiguousarray(values[::-1])[::-1]
    if layout == "swapped":
        return values.astype(values.dtype.newbyteorder())
    values = values.copy()
    values.flags.writeable = layout != "read-only"
    return values


@st.composite
def cases(draw: st.DrawFn) -> tuple[ChunkedArray, np.ndarray]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    lengths = st.integers(1, 7)
    shape = tuple(draw(st.lists(lengths, max_size=3)))
    chunk_shape = tuple(draw(st.tuples(*(lengths for _ in shape))))
    fill = random_bits(dtype, (1,), draw(st.integers(0, 99)))[0]
    array = ChunkedArray(
        "v",
        shape,
        chunk_shape,
        dtype,
        fill=draw(st.sampled_from([None, fill])),
        codecs=draw(CHAINS),
        order=draw(st.sampled_from(["C", "F"])),
    )
    return array, random_bits(dtype, shape, draw(st.integers(0, 999)))


@given(cases(), st.sampled_from(LAYOUTS))
def test_what_is_decoded_is_what_was_encoded(
    case: tuple[ChunkedArray, np.ndarray], layout: str
) -> None:
    array, values = case
    source = laid_out(values, layout)
    encoder = Encoder(array)
    for position in positions(array):
        inside = region(array, position)
        data = encoder.encode(source[inside])
        assert data.ndim == 1
        assert data.itemsize == 1
        expected = np.full(array.chunk_shape, missing(array))
        expected[tuple(map(slice, values[inside].shape))] = values[inside]
        assert whole_chunk(array, data).tobytes() == expected.tobytes()


@given(cases(), st.sampled_from(LAYOUTS))
def test_any_layout_gives_the_same_bytes(
    case: tuple[ChunkedArray, np.ndarray], layout: str
) -> None:
    array, values = case
    part = region(array, (0,) * values.ndim)
    encoder = pickle.loads(pickle.dumps(Encoder(array)))
    assert encoder.nbytes == math.prod(array.chunk_shape) * array.dtype.itemsize
    assert encoder.encode(laid_out(values, layout)[part]) == encoder.encode(values[part].copy())


@pytest.mark.parametrize("codecs", [(), (SHUFFLE,), (SHUFFLE, {"id": "zlib", "level": 1})])
@pytest.mark.parametrize(
    ("source", "target"), [("f8", "<f4"), ("f8", ">f4"), (">i8", "<i2"), ("i4", ">f8")]
)
def test_casts(source: str, target: str, codecs: tuple[Any, ...]) -> None:
    array = ChunkedArray("v", (5, 3), (4, 4), np.dtype(target), fill=7, codecs=codecs)
    values = np.arange(15, dtype=source).reshape(5, 3) / np.ones((), source)
    values = values.astype(source)
    chunk = whole_chunk(array, Encoder(array).encode(values[:4]))
    assert np.array_equal(chunk[:, :3], values[:4])
    assert (chunk[:, 3] == 7).all()


def test_a_whole_native_chunk_is_not_copied() -> None:
    values = np.arange(12.0).reshape(3, 4)
    array = ChunkedArray("v", (3, 4), (3, 4), np.dtype("<f8"))
    assert np.shares_memory(np.frombuffer(Encoder(array).encode(values)), values)
    fortran = replace(array, order="F")
    values = np.asfortranarray(values)
    assert np.shares_memory(np.frombuffer(Encoder(fortran).encode(values)), values)


@pytest.mark.parametrize(
    "codec",
    [
        {"id": "delta", "dtype": "<i4"},
        {"id": "fixedscaleoffset", "scale": 2, "offset": 1, "dtype": "<i4", "astype": "<i8"},
        {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"},
        {"id": "packbits"},
        {"id": "base64"},
        {"id": "bitround", "keepbits": 23},
        {"id": "adler32"},
        {"id": "jenkins_lookup3"},
    ],
    ids=lambda codec: codec["id"],
)
def test_other_codecs_of_numcodecs(codec: dict[str, Any]) -> None:
    dtype = {"packbits": "|b1", "bitround": "<f4"}.get(codec["id"], "<i4")
    values = (np.arange(10) % 3).astype(dtype)
    array = ChunkedArray("v", (10,), (16,), np.dtype(dtype), codecs=(codec, {"id": "bz2"}))
    chunk = whole_chunk(array, Encoder(array).encode(values[::-1]))
    assert np.array_equal(chunk[:10], values[::-1])
    assert not chunk[10:].any()


# Text

TEXTS = np.array([["a", "", None, "Grüße"], ["日本", "x" * 10, "b\0c", "€€€"]], dtype=object)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("codecs", [(), (SHUFFLE,), (SHUFFLE, {"id": "zlib", "level": 5})])
def test_texts(order: Any, codecs: tuple[Any, ...]) -> None:
    array = ChunkedArray("v", (2, 4), (3, 4), np.dtype("S10"), b"-", codecs=codecs, order=order)
    chunk = whole_chunk(array, Encoder(array).encode(TEXTS[:, ::-1]))
    expected = [[(text or "").encode() for text in row] for row in TEXTS[:, ::-1]]
    assert chunk.tolist() == [*expected, [b"-"] * 4]


def test_a_text_that_is_too_long_is_not_cut() -> None:
    encoder = Encoder(ChunkedArray("g/v", (3,), (3,), np.dtype("S4")))
    fits = np.array(["abcd", "日a", ""], dtype=object)
    assert bytes(encoder.encode(fits)) == "abcd日a\0\0\0\0".encode()
    with pytest.raises(FormatError, match=r"g/v: text '日本' has 6 bytes, and 4 is the most"):
        encoder.encode(np.array(["a", "日本", "b"], dtype=object))


def test_characters_that_are_too_many_are_not_cut() -> None:
    array = ChunkedArray("g/v", (4,), (2,), np.dtype("<U2"))
    encoder, texts = Encoder(array), np.array(["日本", "", "abc", "d"])
    assert bytes(encoder.encode(texts[:2])) == texts[:2].astype("<U2").tobytes()
    reason = "g/v: text 'abc' has 3 characters, and 2 is the most here"
    with pytest.raises(FormatError, match=reason):
        encoder.encode(texts[2:].astype(object))
    with pytest.raises(FormatError, match=reason):
        list(encoder.encode_run(texts, 2, axis=0, skip_fill=False))
    with pytest.raises(FormatError, match=reason):
        encoder.as_stored(texts)


@pytest.mark.parametrize("value", [float("nan"), 3, ["a"]])
def test_what_is_not_text(value: Any) -> None:
    values = np.empty(1, dtype=object)
    values[0] = value
    with pytest.raises(FormatError, match=r"v: .* is not text"):
        Encoder(ChunkedArray("v", (1,), (1,), np.dtype("S4"))).encode(values)


def test_half_of_a_surrogate_pair_is_not_text() -> None:
    with pytest.raises(FormatError, match=r"v: text .* has no UTF-8"):
        Encoder(ChunkedArray("v", (1,), (1,), np.dtype("S4"))).encode(
            np.array(["\ud800"], dtype=object)
        )


@pytest.mark.parametrize("codec", ["vlen-utf8", "json2", "msgpack2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_objects(codec: str, order: Any) -> None:
    codecs = ({"id": codec}, {"id": "blosc", "cname": "zstd"})
    array = ChunkedArray("v", (2, 4), (2, 5), np.dtype("O"), codecs=codecs, order=order)
    data = Encoder(array).encode(TEXTS)
    expected = [[text or "" for text in [*row, None]] for row in TEXTS]
    assert whole_chunk(array, data).tolist() == expected


# Fill

NAN = np.frombuffer(bytes.fromhex("0000c07f"), "<f4")[0]
OTHER_NAN = np.frombuffer(bytes.fromhex("0100c07f"), "<f4")[0]


@pytest.mark.parametrize(
    ("dtype", "fill", "values", "expected"),
    [
        ("<f4", NAN, [NAN, NAN], True),
        ("<f4", NAN, [NAN, OTHER_NAN], False),
        (">f4", OTHER_NAN, [OTHER_NAN], True),
        ("<f8", 0.0, [0.0, -0.0], False),
        ("<f8", -0.0, [-0.0], True),
        ("<f8", None, [0.0, 0.0], True),
        ("<f8", None, [-0.0], False),
        ("<i2", -32767, [-32767] * 9, True),
        ("<i2", -32767, [-32767] * 9 + [0], False),
        (">u8", 2**64 - 2, [2**64 - 2], True),
        ("|S1", b"\0", [b"", b""], True),
        ("|S1", b"z", [b"z", b""], False),
        ("<c16", 1 - 0j, [complex(1.0, -0.0)], False),
        ("<c16", 1 + 2j, [1 + 2j, 1 + 2j], True),
        ("<U3", "abc", ["abc", "abc"], True),
        ("<U3", "abc", ["abc", "ab"], False),
        ("|b1", True, [True, True], True),
        ("<M8[s]", 5, [5, 5], True),
        ("|V5", b"12345", [b"12345"], True),
        ("|V5", None, [b"\0\0\0\0\0"], True),
    ],
)
def test_is_fill(dtype: str, fill: Any, values: list[Any], expected: bool) -> None:
    array = ChunkedArray("v", (10,), (10,), np.dtype(dtype), fill=fill)
    data = np.array(values, dtype)
    for layout in LAYOUTS:
        assert Encoder(array).is_fill(laid_out(data, layout)) is expected


def test_is_fill_is_about_what_is_stored() -> None:
    encoder = Encoder(ChunkedArray("v", (2,), (2,), np.dtype("<f4"), fill=np.float32(0.1)))
    assert encoder.is_fill(np.full(2, 0.1, "f8"))
    assert not encoder.is_fill(np.full(2, 0.1000001, "f8"))


@pytest.mark.parametrize("dtype", ["S4", "O"])
def test_is_fill_of_texts(dtype: str) -> None:
    codecs = ({"id": "vlen-utf8"},) if dtype == "O" else ()
    array = ChunkedArray("v", (2,), (2,), np.dtype(dtype), codecs=codecs)
    empty = np.array(["", None], object)
    assert Encoder(array).is_fill(empty)
    assert not Encoder(array).is_fill(np.array(["", "a"], object))
    dash = Encoder(replace(array, fill="-" if dtype == "O" else b"-"))
    assert dash.is_fill(np.array(["-", "-"], object))
    assert not dash.is_fill(empty)


@given(cases())
def test_what_is_fill_reads_the_same_without_the_chunk(
    case: tuple[ChunkedArray, np.ndarray],
) -> None:
    array, values = case
    bits = missing(array)
    same = all(value.tobytes() == bits.tobytes() for value in values.reshape(-1, 1))
    assert Encoder(array).is_fill(values) is same
    assert Encoder(array).is_fill(np.broadcast_to(bits, values.shape))


# Compressors

WAVES = np.sin(np.arange(40000) / 700) * 40
NOISE = np.random.default_rng(0).normal(size=40000)
FIELDS = {
    "smooth": WAVES.astype("f4"),
    "measured": WAVES + NOISE / 50,
    "tenths": np.round(WAVES + NOISE, 1).astype("f4"),
    "masked": np.where(WAVES > 20, np.nan, WAVES + NOISE / 50).astype("f4"),
    "packed": ((WAVES + NOISE) * 100).astype("i2"),
    "counts": np.abs(WAVES + NOISE).astype("i4"),
    "noise": NOISE.astype("f4"),
}


@pytest.mark.parametrize(
    ("name", "level", "count"), each_once(list(FIELDS), range(-1, 10), [1000, 4096, 40000])
)
def test_libdeflate_makes_chunks_no_larger_than_zlib(name: str, level: int, count: int) -> None:
    values = FIELDS[name][:count]
    array = ChunkedArray("v", (count,), (count,), values.dtype, codecs=(SHUFFLE,))
    shuffled = Encoder(array).encode(values)
    compressed = Encoder(replace(array, codecs=(SHUFFLE, {"id": "zlib", "level": level})))
    data = compressed.encode(values)
    assert zlib.decompress(data) == shuffled
    assert len(data) <= 1.03 * len(zlib.compress(shuffled, level))


def packed(shuffled: np.ndarray, itemsize: int, level: int = 4) -> bytes:
    return bytes(compress.deflate({"id": "zlib", "level": level}, itemsize)(shuffled))


@pytest.mark.parametrize("codecs", [(), (SHUFFLE,), (SHUFFLE, {"id": "zlib", "level": 4})])
@pytest.mark.parametrize("dtype", ["i1", "<i2", ">i4", "<f4", ">f8", "S3"])
@pytest.mark.parametrize("skip_fill", [True, False])
def test_a_run_of_chunks_is_encoded_like_each_of_them(
    codecs: tuple[dict[str, Any], ...], dtype: str, skip_fill: bool
) -> None:
    kind = np.dtype(dtype)
    fill = b"no" if kind.kind == "S" else kind.type(7)
    fitted = tuple({**c, "elementsize": kind.itemsize} if c is SHUFFLE else c for c in codecs)
    if kind.kind == "S":
        fitted = tuple({**c, "elementsize": 8} if c["id"] == "shuffle" else c for c in fitted)
    array = ChunkedArray("v", (4, 30), (4, 5), kind, fill=fill, codecs=fitted)
    values = np.arange(6 * 60).reshape(6, 60) % 100
    values = values.astype(kind) if kind.kind != "S" else values.astype("U3").astype(object)
    block = values[1:5, 3:33]
    block[:, 10:15] = "no" if kind.kind == "S" else 7
    encoder = Encoder(array)
    each = [block[:, start : start + 5] for start in range(0, 30, 5)]
    expected = [
        None if skip_fill and encoder.is_fill(part) else bytes(encoder.encode(part))
        for part in each
    ]
    found = encoder.encode_run(block, 6, axis=1, skip_fill=skip_fill)
    assert [None if data is None else bytes(data) for data in found] == expected
    assert (None in expected) == skip_fill


@pytest.mark.parametrize("codecs", [(), (SHUFFLE, {"id": "zlib", "level": 4})])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i4"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_run_of_chunks_lies_along_any_dimension(
    codecs: tuple[dict[str, Any], ...], dtype: str, axis: int
) -> None:
    chunk, shape = (2, 3, 5), [2, 3, 5]
    shape[axis] *= 7
    array = ChunkedArray("v", tuple(shape), chunk, np.dtype(dtype), fill=-1.0, codecs=codecs)
    values = np.arange(210, dtype="<f4").reshape(shape)
    encoder = Encoder(array)
    each = np.split(values, 7, axis)
    each[4][...] = -1  # also in `values`
    each[2][0, 0, 0] = -1  # it begins like one that is left out
    found = list(encoder.encode_run(values, 7, axis=axis, skip_fill=True))
    assert found.pop(4) is None
    del each[4]
    assert [bytes(d) for d in found if d is not None] == [bytes(encoder.encode(p)) for p in each]


@pytest.mark.parametrize(
    "codecs", [(), *((c,) for c in COMPRESSED), *((SHUFFLE, c) for c in COMPRESSED)]
)
def test_memory_that_is_used_again_is_never_what_is_stored(
    codecs: tuple[dict[str, Any], ...],
) -> None:
    array = ChunkedArray("v", (40, 50), (20, 10), np.dtype(">f4"), codecs=codecs)
    encoder, values = Encoder(array), np.random.default_rng(0).normal(size=(40, 50)).astype("<f4")
    corners = list(itertools.product((0, 20), range(0, 50, 10)))
    parts = [values[y : y + 20, x : x + 10] for y, x in corners]
    expected = [bytes(encoder.encode(part)) for part in parts]
    with encoder.scratch:
        kept = [encoder.encode(part) for part in parts]
        runs = [
            list(encoder.encode_run(row, 5, axis=1, skip_fill=False))
            for row in (values[:20], values[20:])
        ]
        assert [bytes(data) for data in kept] == expected
        assert [bytes(data) for run in runs for data in run if data is not None] == expected


def test_every_thread_has_memory_of_its_own_and_only_while_it_encodes() -> None:
    array = ChunkedArray(
        "v", (1 << 18,), (1 << 18,), np.dtype(">f8"), codecs=(SHUFFLE, {"id": "zlib"})
    )
    encoder, chunk = Encoder(array), np.zeros(1 << 18)
    barrier = threading.Barrier(2, timeout=60)

    def place() -> int:
        with encoder.scratch:
            first = encoder.scratch.empty("elements", (8,), np.dtype("f8"))
            assert np.shares_memory(first, encoder.scratch.empty("elements", (4,), np.dtype("f4")))
            barrier.wait()
            return first.ctypes.data

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(lambda _: place(), range(2)))) == 2
    tracemalloc.start()
    try:
        with encoder.scratch:
            encoder.encode(chunk)
            assert tracemalloc.get_traced_memory()[0] > 2 * chunk.nbytes
        assert tracemalloc.get_traced_memory()[0] < chunk.nbytes
    finally:
        tracemalloc.stop()


def bytes_like(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Bytes whose values are about equally frequent."""
    noise = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    steps = np.arange(count)
    return {
        "noise": noise,
        "repeated": np.resize(noise[:1500], count),
        "in runs": np.repeat(noise, 3)[:count],
        "ascending": steps.astype(np.uint8),
        "smooth": (300 * np.sin(steps / 150)).astype("i8").astype(np.uint8),
        "masked": np.where(steps // 700 % 2, noise, 0),
        "few": noise % 5,
    }[kind]


KINDS = ["noise", "repeated", "in runs", "ascending", "smooth", "masked", "few"]


@pytest.mark.parametrize("count", [1 << 14, 0xFFFF, 2 * 0xFFFF, 300_000])
@pytest.mark.parametrize("libdeflate", [True, False])
def test_planes_of_noise_are_stored_in_chunks_of_64_kib_and_more(
    count: int, libdeflate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not libdeflate:
        monkeypatch.setattr(compress, "LIBDEFLATE", None)
    planes = [bytes_like("noise", count, seed=k) for k in range(2)]
    planes += [np.sort(bytes_like("few", count)), np.zeros(count, np.uint8)]
    shuffled = np.concatenate(planes)
    data = packed(shuffled, 4)
    assert zlib.decompress(data) == shuffled.tobytes()
    assert len(data) < 1.01 * len(zlib.compress(shuffled.tobytes(), 4))
    assert shuffled[: min(2 * count, 0xFFFF)].tobytes() in data


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("count", [4096, 100_000])
@pytest.mark.parametrize("before", [0, 1])
def test_what_deflate_can_shrink_is_not_stored(kind: str, count: int, before: int) -> None:
    planes = [bytes_like("noise", count, seed=1)] * before + [bytes_like(kind, count)]
    shuffled = np.concatenate([*planes, np.zeros(count, np.uint8)])
    data = packed(shuffled, len(planes) + 1)
    assert zlib.decompress(data) == shuffled.tobytes()
    assert len(data) <= 1.03 * len(zlib.compress(shuffled.tobytes(), 4))


def test_equal_planes_of_noise_are_not_stored() -> None:
    shuffled = np.tile(bytes_like("noise", 8000), 4)
    assert len(packed(shuffled, 4)) <= 1.03 * len(zlib.compress(shuffled.tobytes(), 4))


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5000)), max_size=5),
    st.sampled_from([1, 2, 3, 4, 8, 16]),
    st.integers(-1, 9),
)
def test_every_stream_is_valid(parts: list[tuple[str, int]], itemsize: int, level: int) -> None:
    pieces = [bytes_like(kind, count, seed=count) for kind, count in parts]
    content = np.concatenate([np.empty(0, np.uint8), *pieces])
    assert zlib.decompress(packed(content, itemsize, level)) == content.tobytes()


def test_zlib_without_libdeflate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "LIBDEFLATE", None)
    values = FIELDS["smooth"]
    array = ChunkedArray("v", values.shape, values.shape, values.dtype)
    encoder = Encoder(replace(array, codecs=({"id": "zlib", "level": 5},)))
    assert encoder.encode(values) == zlib.compress(values.tobytes(), 5)


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: "-".join(map(str, codec.values())))
def test_many_threads_give_the_same_bytes(codec: dict[str, Any]) -> None:
    values = np.round(np.random.default_rng(3).normal(size=(16, 5000)), 1)
    array = ChunkedArray("v", values.shape, (1, 5000), values.dtype, codecs=(SHUFFLE, codec))
    encoder = Encoder(array)
    alone = [bytes(encoder.encode(row[None])) for row in values]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda i: bytes(encoder.encode(values[i % 16][None])), range(64))
        mine = [bytes(encoder.encode(row[None])) for row in values]
        assert list(together) == alone * 4
    # blosc may split a chunk differently in the main thread, where it has threads of its own
    for data, row in zip(mine, values, strict=True):
        assert whole_chunk(array, data).tobytes() == row.tobytes()


# Errors


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ({"id": "nope"}, "v/.zarray: codec 'nope' cannot be used"),
        ({"id": "pickle"}, "codec 'pickle' cannot be used .*run code"),
        ({"id": "zlib", "level": 10}, "codec 'zlib' cannot be used .level is 10, not 0 to 9"),
        ({"id": "gzip", "level": "x"}, "codec 'gzip' cannot be used .level is 'x'"),
        ({"id": "blosc", "cname": "snappyish"}, "codec 'blosc' cannot be used .cname is"),
        ({"id": "blosc", "clevel": 11}, "clevel is 11, not 0 to 9"),
        ({"id": "blosc", "shuffle": 7}, "shuffle is 7"),
        ({"id": "shuffle", "elementsize": -1}, "shuffle elementsize is -1"),
        ({"id": "delta"}, "codec 'delta' cannot be used"),
        ({"id": "szip", "mask": 4}, "lacks 'mask' or 'pixels-per-block'"),
        ({"id": "szip", "mask": 4, "pixels-per-block": 7}, "codec 'szip' cannot be used"),
    ],
)
def test_codecs_that_cannot_be_used(codec: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Encoder(ChunkedArray("v", (4,), (4,), np.dtype("<i4"), codecs=(codec,)))


def test_objects_need_an_object_codec() -> None:
    array = ChunkedArray("v", (2,), (2,), np.dtype("O"))
    with pytest.raises(FormatError, match="needs an object codec"):
        Encoder(array)
    encoder = Encoder(replace(array, codecs=({"id": "zlib", "level": 1},)))
    with pytest.raises(FormatError, match=r"codec 'zlib' cannot encode.*'vlen-utf8'"):
        encoder.encode(np.array(["a", "b"], object))


def test_szip_of_noise() -> None:
    codec = {"id": "szip", "mask": 4, "pixels-per-block": 8}
    array = ChunkedArray("v", (1000,), (1000,), np.dtype("<f4"), codecs=(codec,))
    with pytest.raises(FormatError, match=r"v: codec 'szip' cannot encode.*no smaller.*zlib"):
        Encoder(array).encode(FIELDS["noise"][:1000])


def test_szip_without_h5py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    codec = {"id": "szip", "mask": 4, "pixels-per-block": 8}
    with pytest.raises(FormatError, match="pip install h5py"):
        Encoder(ChunkedArray("v", (8,), (8,), np.dtype("<f4"), codecs=(codec,)))


# netCDF-C

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "zlib": {"compression": "zlib", "complevel": 5, "shuffle": False},
    "shuffle zlib": {"compression": "zlib", "complevel": 4, "shuffle": True},
    "fletcher32": {"fletcher32": True},
    "all three": {"compression": "zlib", "complevel": 1, "shuffle": True, "fletcher32": True},
    "zstd": {"compression": "zstd", "complevel": 3},
    "bz2": {"compression": "bzip2", "complevel": 4},
    **{
        f"{codec} {shuffle}": {"compression": codec, "complevel": 5, "blosc_shuffle": shuffle}
        for codec in ("blosc_lz", "blosc_lz4", "blosc_lz4hc", "blosc_zlib", "blosc_zstd")
        for shuffle in (0, 1, 2)
    },
    "szip nn": {"compression": "szip", "szip_coding": "nn", "szip_pixels_per_block": 8},
    "szip ec": {"compression": "szip", "szip_coding": "ec", "szip_pixels_per_block": 4},
}
EXACT = ("none", "fletcher32", "szip nn", "szip ec")


def nc_values(dtype: np.dtype, shape: tuple[int, ...], shift: int) -> np.ndarray:
    numbers = (np.arange(math.prod(shape)).reshape(shape) // 12 + shift) % 8
    if dtype.kind == "O":
        return np.array([f"nº {n}" for n in numbers.flat], object).reshape(shape)
    return np.char.mod("%d", numbers).astype("S1") if dtype.kind == "S" else numbers.astype(dtype)


def nc_array(path: Path) -> ChunkedArray:
    """`ChunkedArray` of what netCDF-C wrote, straight from the metadata."""
    metadata = json.loads((path / "v" / ".zarray").read_bytes())
    codecs = [*(metadata["filters"] or []), *filter(None, [metadata["compressor"]])]
    dtype = np.dtype(metadata["dtype"])
    fill = metadata["fill_value"]
    return ChunkedArray(
        "v",
        tuple(metadata["shape"]),
        tuple(metadata["chunks"]),
        dtype,
        fill=fill.encode() if isinstance(fill, str) else dtype.type(fill),
        codecs=tuple(codecs),
    )


def check_with_netcdf(
    path: Path, kind: Any, filters: dict[str, Any], shape: tuple[int, ...], chunks: tuple[int, ...]
) -> list[bool]:
    """Let netCDF-C read chunks of ours; whether each full one is what it would have written."""
    dtype = np.dtype(object if kind is str else kind)
    url = f"file://{path}#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as nc:
        dimensions = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(shape)]
        endian = {"endian": "big"} if dtype.byteorder == ">" else {}
        v = nc.createVariable("v", kind, dimensions, chunksizes=chunks, **endian, **filters)
        v.set_auto_maskandscale(False)
        v[...] = nc_values(dtype, shape, 0)
    array = nc_array(path)
    encoder = Encoder(array)
    same = []
    for shift in (0, 5):
        values = nc_values(dtype, shape, shift)
        for position in positions(array):
            file = path / "v" / ".".join(map(str, position))
            data = encoder.encode(values[region(array, position)])
            if shift == 0:
                stored = file.read_bytes()
                inside = tuple(map(slice, values[region(array, position)].shape))
                ours, theirs = whole_chunk(array, data), whole_chunk(array, stored)
                assert ours[inside].tobytes() == theirs[inside].tobytes()
                # (netCDF-C does not swap the bytes of the fill that pads a big-endian chunk)
                if ours[inside].shape == ours.shape:
                    same.append(stored == data)
            file.write_bytes(data)
        with netCDF4.Dataset(url) as nc:
            nc.set_auto_maskandscale(False)
            nc.set_auto_chartostring(False)
            assert np.array_equal(nc["v"][...], values)
    return same


@pytest.mark.parametrize(
    ("name", "kind"), each_once(list(FILTERS), ["i1", "u2", "i4", ">i4", "f4", ">f8", "i8"])
)
def test_netcdf_reads_our_chunks(tmp_path: Path, name: str, kind: str) -> None:
    if name.startswith("szip") and kind in ("i1", "i8", ">f8"):
        kind = {"i1": "u1", "i8": "u4", ">f8": "<i2"}[kind]
    # netCDF-C fails to write what szip or blosc makes no smaller, which a chunk of padding is
    shape = (40, 90) if name.startswith("szip") else (41, 95)
    same = check_with_netcdf(tmp_path / "x.file", kind, FILTERS[name], shape, (20, 30))
    assert all(same) or name not in EXACT


@pytest.mark.parametrize("name", ["none", "shuffle zlib", "all three", "zstd", "blosc_lz4 1"])
@pytest.mark.parametrize("kind", ["S1", str])
def test_netcdf_reads_our_text(tmp_path: Path, name: str, kind: Any) -> None:
    same = check_with_netcdf(tmp_path / "x.file", kind, FILTERS[name], (31, 13), (20, 13))
    assert all(same) or name not in EXACT


@pytest.mark.parametrize("shape", [(1,), (3,), (5,), (2, 359), (361,), (721,), (70001,)])
@pytest.mark.parametrize("kind", ["u1", "i2"])
def test_fletcher32_of_any_length(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    assert all(check_with_netcdf(tmp_path / "x.file", kind, {"fletcher32": True}, shape, shape))


def test_netcdf_reads_stored_noise(tmp_path: Path) -> None:
    values = (280 + np.random.default_rng(0).normal(size=(100, 300))).astype("f4")
    url = f"file://{tmp_path / 'x.file'}#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as nc:
        dimensions = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(values.shape)]
        nc.createVariable("v", "f4", dimensions, chunksizes=(100, 300), zlib=True, complevel=4)
        nc["v"][...] = 0
    data = Encoder(nc_array(tmp_path / "x.file")).encode(values)
    assert 0xFFFF < len(data) < values.nbytes
    (tmp_path / "x.file" / "v" / "0.0").write_bytes(data)
    with netCDF4.Dataset(url) as nc:
        assert np.array_equal(nc["v"][...], values)
