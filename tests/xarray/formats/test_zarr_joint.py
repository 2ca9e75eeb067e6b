"""Selections of Zarr 3 that are read together: chunks decoded once, values as of engine "zarr"."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import MemoryStore

from nczarr_fsspec.stores import zipformat
from nczarr_xarray import FormatError, StoreError, load
from tests.support.builders.trees import read_tree
from tests.support.servers.httpserver import Server

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

Boxes = list[tuple[slice, ...]]
CHUNKS, SHARDS, SHAPE = (2, 3), (4, 9), (11, 20)
#: Of the index of a shard: two numbers for each of its chunks, and a checksum.
INDEX = 16 * 6 + 4


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Any, Boxes]:
    """Return a store with an array "v", of which parts are not stored, and boxes of it."""
    ndim = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    endian = draw(st.sampled_from(["little", "big"]))
    one = st.sampled_from([GzipCodec(level=1), ZstdCodec(level=1), BloscCodec(), Crc32cCodec()])
    codecs: Any = [BytesCodec(endian=endian), *draw(st.lists(one, max_size=2))]
    objects = chunks
    if ndim and draw(st.booleans()):  # zarr-python cannot write a scalar in a shard
        index = [BytesCodec(endian=draw(st.sampled_from(["little", "big"])))]
        sharding = ShardingCodec(
            chunk_shape=chunks,
            codecs=codecs,
            index_codecs=[*index, Crc32cCodec()] if draw(st.booleans()) else index,
            index_location=draw(st.sampled_from(["start", "end"])),
        )
        codecs = [sharding]
        objects = tuple(length * draw(st.integers(1, 3)) for length in chunks)
    store = MemoryStore()
    zarr.create_group(store)
    array = zarr.create_array(
        store,
        name="v",
        shape=shape,
        chunks=objects,
        dtype=draw(st.sampled_from(["i1", "u2", "i4", "f4", "f8", "u8"])),
        fill_value=draw(st.integers(0, 7)),
        serializer=codecs[0],
        compressors=codecs[1:],
        chunk_key_encoding={
            "name": draw(st.sampled_from(["default", "v2"])),
            "separator": draw(st.sampled_from([".", "/"])),
        },
        dimension_names=[f"d{n}" for n in range(ndim)],
    )
    boxes = []
    for _ in range(draw(st.integers(2, 5))):
        starts = [draw(st.integers(0, length - 1)) for length in shape]
        boxes.append(tuple(slice(start, start + draw(st.integers(1, 6))) for start in starts))
    for box in boxes[: draw(st.integers(0, 2))]:
        part = tuple(len(range(*i.indices(n))) for i, n in zip(box, shape, strict=True))
        array[box] = random.integers(0, 99, part)
    return store, boxes


@settings(deadline=None)
@given(arrays())
def test_values(given: tuple[Any, Boxes]) -> None:
    store, boxes = given
    options: dict[str, Any] = {"decode_cf": False}
    with (
        xr.open_dataset(store, engine="nczarr", **options) as ours,
        xr.open_dataset(store, engine="zarr", consolidated=False, **options) as known,
    ):
        found = load(*(ours["v"][box] for box in boxes), ours["v"][::-1] if boxes[0] else ours["v"])
        for one, box in zip(found, boxes, strict=False):
            assert one.dtype == known["v"].dtype
            assert np.array_equal(one.values, known["v"][box].values)
        assert np.array_equal(found[-1].values, known["v"].values[::-1] if boxes[0] else known["v"])


def write(path: Path, **how: Any) -> np.ndarray:
    values = np.arange(float(np.prod(SHAPE))).reshape(SHAPE) + 1
    encoding = {"chunks": CHUNKS, "_FillValue": None, **how}
    ds = xr.Dataset({"v": (("y", "x"), values)})
    ds.to_zarr(path, zarr_format=3, consolidated=True, encoding={"v": encoding})
    return values


def boxes(target: Any) -> list[xr.DataArray]:
    ds = xr.open_dataset(target, engine="nczarr")
    return [ds["v"][y : y + 5, x : x + 8] for y in range(0, 7, 2) for x in range(0, 12, 3)]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("compressors", [ZstdCodec(), None])
def test_shards_of_archives(
    tmp_path: Path, method: int, compressors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deflated member is inflated as a whole, for its index and for all chunks together."""
    inflated: list[str] = []
    inflate: Callable[..., bytes] = zipformat.inflated

    def counted(name: str, *how: Any) -> bytes:
        inflated.append(name)
        return inflate(name, *how)

    monkeypatch.setattr(zipformat, "inflated", counted)
    values = write(tmp_path / "a", shards=SHARDS, compressors=compressors)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        for path in (tmp_path / "a").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "a"))
    wanted = boxes(tmp_path / "a.zip")
    assert np.array_equal(wanted[0].copy().values, values[:5, :8])
    assert np.array_equal(load(*wanted)[1].values, values[:5, 3:11])
    inflated.clear()
    assert np.array_equal(xr.open_dataset(tmp_path / "a.zip", engine="nczarr")["v"], values)
    of_shards = Counter(name for name in inflated if "/c/" in name)
    assert {*of_shards.values()} == (set() if method == zipfile.ZIP_STORED else {2})


@pytest.mark.parametrize("compressors", [ZstdCodec(), GzipCodec(), None])
def test_each_chunk_of_shards_is_fetched_once(tmp_path: Path, compressors: Any) -> None:
    values = write(tmp_path / "a", shards=SHARDS, compressors=compressors)
    with Server(read_tree(tmp_path, "/")) as server:
        wanted = boxes(f"{server.url}/a")
        before = len(server.requests)
        load(*wanted)
        asked = [one for one in server.requests[before:] if "/c/" in one.path]
        sent = sum(one.sent for one in asked)
    for one, (y, x) in zip(
        wanted, ((y, x) for y in range(0, 7, 2) for x in range(0, 12, 3)), strict=True
    ):
        assert np.array_equal(one.values, values[y : y + 5, x : x + 8])
    stored = sum(file.stat().st_size for file in (tmp_path / "a/v/c").rglob("*") if file.is_file())
    assert sent <= stored  # nothing came twice
    assert max(Counter(one.path for one in asked).values()) <= 1 + 6


@pytest.mark.parametrize("where", ["folder", "server"])
def test_shards_that_are_missing(tmp_path: Path, where: str) -> None:
    values = write(tmp_path / "a", shards=SHARDS)
    (tmp_path / "a/v/c/1/0").unlink()
    values[4:8, :9] = np.nan
    with Server(read_tree(tmp_path, "/")) as server:
        ds = xr.open_dataset(
            str(tmp_path / "a") if where == "folder" else f"{server.url}/a", engine="nczarr"
        )
        one, other = load(ds["v"][3:9, 2:12], ds["v"][:, 5])
    assert np.array_equal(one.values, values[3:9, 2:12], equal_nan=True)
    assert np.array_equal(other.values, values[:, 5], equal_nan=True)


@pytest.mark.parametrize("where", ["folder", "server"])
def test_an_array_that_has_gone(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
    write(tmp_path / "a", shards=SHARDS)
    with Server(read_tree(tmp_path, "/")) as server:
        wanted = boxes(str(tmp_path / "a") if where == "folder" else f"{server.url}/a")
        server.files.clear()
        for file in (tmp_path / "a/v").rglob("*"):
            file.unlink() if file.is_file() else None
        with pytest.raises(StoreError, match=r"zarr\.json"):
            load(*wanted)


def cut(data: bytes) -> bytes:
    return data[:50]


def empty(_: bytes) -> bytes:
    return b""


def damaged_index(data: bytes) -> bytes:
    return data[:-20] + b"\1" + data[-19:]


def damaged_chunk(data: bytes) -> bytes:
    return bytes(20) + data[20:]


def indexed(data: bytes, entry: tuple[int, int]) -> bytes:
    """Return a shard whose first chunk is said to be elsewhere."""
    index = struct.pack("<2Q", *entry) + data[16 - INDEX : -4]
    return data[:-INDEX] + index + struct.pack("<I", google_crc32c.value(index))


def behind_the_end(data: bytes) -> bytes:
    return indexed(data, (1 << 30, 30))


def nowhere(data: bytes) -> bytes:
    return indexed(data, ((1 << 64) - 2, 30))


def overflowing(data: bytes) -> bytes:
    return indexed(data, ((1 << 63) - 8, 30))


def half_absent(data: bytes) -> bytes:
    return indexed(data, (0, (1 << 64) - 1))


def of_no_bytes(data: bytes) -> bytes:
    return indexed(data, (0, 0))


def much_too_long(data: bytes) -> bytes:
    return indexed(data, (0, 1 << 40))


def bomb(data: bytes) -> bytes:
    chunk = gzip.compress(bytes(1 << 24))
    return indexed(chunk + data[-INDEX:], (0, len(chunk)))


@pytest.mark.parametrize(("where", "name"), [("folder", "v/c/1/1"), ("server", "v: ")])
@pytest.mark.parametrize(
    "damage",
    [
        *(cut, empty, damaged_index, damaged_chunk, behind_the_end, nowhere, overflowing),
        *(half_absent, of_no_bytes, much_too_long, bomb),
    ],
)
def test_damage_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], where: str, name: str
) -> None:
    write(tmp_path / "a", shards=SHARDS, compressors=GzipCodec())
    file = tmp_path / "a/v/c/1/1"
    file.write_bytes(damage(file.read_bytes()))
    with Server(read_tree(tmp_path, "/")) as server:
        target = str(tmp_path / "a") if where == "folder" else f"{server.url}/a"
        with pytest.raises(FormatError, match=name):  # (what fails is read again, one by one)
            load(*boxes(target))


def test_damage_of_chunks_without_shards_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", compressors=GzipCodec())
    file = tmp_path / "a/v/c/1/1"
    file.write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(FormatError, match="v/c/1/1"):
        load(*boxes(tmp_path / "a"))
