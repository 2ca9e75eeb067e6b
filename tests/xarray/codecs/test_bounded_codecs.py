"""A chunk that inflates to gigabytes takes no more memory than an honest one."""

from __future__ import annotations

import gzip
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numcodecs
import numpy as np
import pytest

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs import decompress
from nczarr_xarray.codecs.codec import Size, Step
from nczarr_xarray.codecs.filters import filter_step
from nczarr_xarray.codecs.registry import TABLE, step_of
from nczarr_xarray.model import ChunkedArray
from tests.support.faults import damage

COMPRESSORS = {row.id for row in TABLE if row.compressor}


def decoder(codec: str, size: int) -> Step:
    array = ChunkedArray("v", (size,), (size,), np.dtype("u1"))
    return step_of({"id": codec}, array, Size(size))[0]


@pytest.fixture(params=["installed", "fallback"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The libraries that we like best, and what is left where they have no wheels."""
    if request.param == "fallback":
        monkeypatch.setattr(decompress, "LIBDEFLATE", {})
        monkeypatch.setattr(decompress, "ZSTANDARD", None)
    return request.param


@pytest.mark.parametrize("name", [*sorted(COMPRESSORS), "zstd with its size"])
def test_memory_is_bounded(library: str, name: str) -> None:
    bomb = damage.bombs()[name]
    codec = name.partition(" ")[0]
    step = decoder(codec, 1 << 14)
    tracemalloc.start()
    try:
        with pytest.raises(Exception):  # noqa: B017, PT011  (libraries raise what they like)
            step(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # beside the chunk: a copy of what is stored if a library makes one, and lzma's dictionary
    assert peak < len(bomb) + (1 << 21)


def encoded(codec: str, plain: bytes) -> bytes:
    if codec == "gzip":
        return gzip.compress(plain)
    return bytes(numcodecs.get_codec({"id": codec}).encode(plain))


@pytest.mark.parametrize("codec", sorted(COMPRESSORS))
def test_what_is_behind_the_end_is_ignored_and_what_is_cut_is_an_error(
    library: str, codec: str
) -> None:
    plain = np.random.default_rng(0).integers(0, 9, 5000).astype("u2").tobytes()
    stored = encoded(codec, plain)
    step = decoder(codec, len(plain))
    assert bytes(step(stored)) == plain
    assert bytes(step(memoryview(stored))) == plain
    if codec != "lz4":  # its stream has no end of its own
        assert bytes(step(stored + b"the end of a longer one")) == plain
    for cut in (1, len(stored) // 2, len(stored) - 1):
        with pytest.raises(Exception):  # noqa: B017, PT011
            Size(len(plain)).check(len(step(stored[:cut])))
    for wrong in (len(plain) - 2, len(plain) + 2):
        with pytest.raises(Exception):  # noqa: B017, PT011
            Size(wrong).check(len(decoder(codec, wrong)(stored)))


def test_threads_do_not_share_a_zstd_decompressor() -> None:
    rng = np.random.default_rng(0)
    plain = [rng.integers(0, 50, 20_000).astype("u1").tobytes() for _ in range(40)]
    stored = [encoded("zstd", one) for one in plain]
    step = decoder("zstd", 20_000)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(step, stored * 10))
    assert list(map(bytes, found)) == plain * 10


def test_every_decompressor_has_a_bomb() -> None:
    assert {name.partition(" ")[0] for name in damage.bombs()} >= COMPRESSORS


@pytest.mark.parametrize(
    ("config", "stored"),
    [
        ({"id": "delta", "dtype": "<i4"}, bytes(44)),
        ({"id": "astype", "encode_dtype": "u1", "decode_dtype": "<i4"}, bytes(11)),
        ({"id": "crc32"}, bytes(40)),
        ({"id": "vlen-utf8"}, (1 << 30).to_bytes(4, "little")),
    ],
)
def test_what_is_not_as_long_as_it_must_be_is_not_decoded(
    config: dict[str, Any], stored: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = type(numcodecs.get_codec(dict(config)))
    monkeypatch.setattr(numcodecs, "get_codec", lambda _: Untouched(**vars(codec(**rest(config)))))
    array = ChunkedArray("v", (10,), (10,), np.dtype("O" if "vlen" in config["id"] else "<i4"))
    step, _ = filter_step(config, array, Size(40))
    with pytest.raises(FormatError, match=r"decodes to|holds"):
        step(stored)


class Untouched:
    """A codec that must not be used."""

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def decode(self, data: Any) -> Any:
        raise AssertionError("it is decoded")


def rest(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "id"}
