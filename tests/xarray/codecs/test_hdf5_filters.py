"""Filters of HDF5 against libhdf5 (by h5py and netCDF4), which wrote and reads the same chunks."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numcodecs.lz4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nczarr_fsspec.errors import FormatError, UnsupportedError
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.plan import ChunkTask
from nczarr_xarray.chunks.scatter import Scatter
from nczarr_xarray.codecs.registry import codec_of_filter
from nczarr_xarray.formats.hdf5 import datasets as module
from nczarr_xarray.formats.hdf5.datasets import codecs_of
from nczarr_xarray.formats.hdf5.messages import Filter
from nczarr_xarray.model import ChunkedArray, FileChunks
from tests.support.builders.h5load import load
from tests.support.examples import examples

NUMBERS = ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "u4", "<i8", ">i8", "u8"]
FLOATS = ["<f4", ">f4", "<f8", ">f8"]


def written(dtype: str) -> np.ndarray[Any, Any]:
    """Values that compress, more or less."""
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype).kind
    if kind == "S":
        return np.array([[b"ab%d" % (i * j % 99) for i in range(17)] for j in range(23)], dtype)
    if kind == "f":
        return np.cumsum(rng.normal(0, 0.1, (23, 17)), axis=1).astype(dtype)
    return rng.integers(0 if kind == "u" else -100, 100, (23, 17)).astype(dtype)


def assert_reads_as_h5py(path: Path) -> None:
    with h5py.File(path) as file:
        expected = file["v"][...]
    native = expected.dtype.newbyteorder("=")
    found = load(path).read()
    assert found.dtype == native
    assert found.tobytes() == expected.astype(native).tobytes()


ANY_TYPE: list[dict[str, Any]] = [
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"fletcher32": True},  # chunks of 35 single bytes: an odd number
    {"compression": "lzf"},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
]
NUMBERS_ONLY: list[dict[str, Any]] = [
    {"compression": "szip"},
    {"compression": "szip", "shuffle": True},
    {"scaleoffset": 3},
    {"scaleoffset": 3, "fillvalue": 7},
    {"scaleoffset": 0},
    {"scaleoffset": 0, "fillvalue": 7},
    {"scaleoffset": 0, "fillvalue": 7, "shuffle": True, "compression": "gzip"},
]


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        *itertools.product([*NUMBERS, *FLOATS, "S5"], ANY_TYPE),
        *itertools.product([*NUMBERS, *FLOATS], NUMBERS_ONLY),
    ],
    ids=str,
)
def test_filters_of_h5py(dtype: str, options: dict[str, Any], tmp_path: Path) -> None:
    if np.dtype(dtype).kind == "f" and options.get("scaleoffset") == 0:
        options = options | {"scaleoffset": 1}
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "v", (23, 17), dtype, chunks=(5, 7), maxshape=(None, None), **options
        )
        dataset[:20] = written(dtype)[:20]
        if "fillvalue" in options:
            dataset[3:8, 3:4] = 7
            dataset[10:15, 7:14] = 7  # a whole chunk
    assert_reads_as_h5py(path)


@pytest.mark.parametrize("fletcher32", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "compression",
    ["zlib", "zstd", "bzip2", "szip", "blosc_lz", "blosc_lz4", "blosc_lz4hc", "blosc_zlib",
     "blosc_zstd", None],
)  # fmt: skip
def test_filters_of_netcdf4(
    compression: Any, shuffle: bool, fletcher32: bool, tmp_path: Path
) -> None:
    path = tmp_path / "v.nc"
    values = (np.arange(10 * 33 * 47, dtype="f4") % 50).reshape(10, 33, 47)
    with netCDF4.Dataset(path, "w") as file:
        for name, size in zip("xyz", values.shape, strict=True):
            file.createDimension(name, size)
        variable = file.createVariable(
            "v", "f4", ("x", "y", "z"), compression=compression, shuffle=shuffle,
            fletcher32=fletcher32, chunksizes=(3, 16, 20), blosc_shuffle=2 if shuffle else 0,
        )  # fmt: skip
        variable[:] = values
    loaded = load(path)
    assert bool(loaded.dataset.filters) == bool(compression or fletcher32)
    np.testing.assert_array_equal(loaded.read(), values)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_scale_offset(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "scale.h5"
    dtype = np.dtype(data.draw(st.sampled_from([*NUMBERS, *FLOATS])))
    options: dict[str, Any] = {}
    if dtype.kind == "f":
        options["scaleoffset"] = data.draw(st.integers(1, 6))
        elements = st.floats(-1e4, 1e4, width=32)
    else:
        options["scaleoffset"] = data.draw(st.integers(0, 8 * dtype.itemsize))
        info = np.iinfo(str(dtype))
        low, high = int(info.min), int(info.max)
        middle = data.draw(st.integers(low, high))
        span = data.draw(st.sampled_from([0, 1, 100, high - low]))
        elements = st.integers(max(low, middle - span), min(high, middle + span))
    values = data.draw(hnp.arrays(dtype, (2, 6), elements=elements))
    if data.draw(st.booleans()):
        options["fillvalue"] = values[0, data.draw(st.integers(0, 5))]
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=values, chunks=(1, 6), **options)
    assert_reads_as_h5py(path)


@settings(max_examples=examples(100), deadline=None)
@given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.tuples(st.binary(min_size=1, max_size=3), st.integers(1, 400)).map(
                lambda part: part[0] * part[1]
            ),
        ),
        min_size=1,
    )
)
def test_lzf(parts: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "lzf.h5"
    values = np.frombuffer(b"\0" + b"".join(parts), "u1")
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=values, chunks=values.shape, compression="lzf")
    np.testing.assert_array_equal(load(path).read(), values)


def test_sizes_that_are_no_multiple_of_the_shuffled_element(tmp_path: Path) -> None:
    # fletcher32 before shuffle, as netCDF-C puts it: shuffle takes its four bytes too
    path = tmp_path / "v.h5"
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((3,))
    properties.set_fletcher32()
    properties.set_shuffle()
    properties.set_deflate(1)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((8,))
        h5py.h5d.create(file.id, b"v", h5py.h5t.IEEE_F64LE, space, properties)
        file["v"][...] = np.arange(8) / 3
    assert_reads_as_h5py(path)


# -- chunks one by one -----------------------------------------------------------------------


def array_of(*filters: Filter, dtype: str = "<i4", shape: tuple[int, ...] = (10,)) -> FileChunks:
    codecs = codecs_of(filters, np.dtype(dtype), shape)
    index: Any = None
    return FileChunks("/v", shape, shape, np.dtype(dtype), index, codecs=codecs)


def decoded(array: FileChunks, stored: bytes, mask: int = 0) -> np.ndarray[Any, Any]:
    result = np.zeros(array.shape, array.dtype.newbyteorder("="))
    everything = tuple(slice(0, n) for n in array.shape)
    task = ChunkTask((0,) * len(array.shape), everything, everything)
    decoder = Decoder(array, mask)
    (chunk,) = decoder.decode([stored], lambda _: "/v chunk (0,)")
    Scatter(decoder).one(chunk, task, None, result)
    return result


def filter_(number: int, *values: int, name: str = "") -> Filter:
    return Filter(number, name, values)


SHUFFLE, DEFLATE, FLETCHER = filter_(2, 4), filter_(1, 5), filter_(3)


@pytest.mark.parametrize("mask", range(8))
def test_masks_leave_codecs_out(mask: int, tmp_path: Path) -> None:
    used = [
        name for bit, name in enumerate(["shuffle", "gzip", "fletcher32"]) if not mask >> bit & 1
    ]
    options: dict[str, Any] = {name: True for name in used if name != "gzip"}
    if "gzip" in used:
        options["compression"] = "gzip"
    path = tmp_path / "v.h5"
    values = np.arange(10, dtype="<i4") * 1000
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("v", data=values, chunks=(10,), **options)
        stored = dataset.id.read_direct_chunk((0,))[1]
    array = array_of(SHUFFLE, DEFLATE, FLETCHER)
    np.testing.assert_array_equal(decoded(array, bytes(stored), mask), values)


def test_a_wrong_checksum_names_the_chunk(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("v", (10,), "<i4", chunks=(10,), fletcher32=True)
        dataset[...] = np.arange(10)
        stored = bytearray(dataset.id.read_direct_chunk((0,))[1])
    array = array_of(FLETCHER)
    decoded(array, bytes(stored))
    for at in range(len(stored)):
        damaged = stored.copy()
        damaged[at] ^= 0x10
        with pytest.raises(FormatError, match=r"^/v chunk \(0,\): .*fletcher32"):
            decoded(array, bytes(damaged))


@pytest.mark.parametrize("options", [{}, {"compression": "gzip", "shuffle": True}])
def test_checksums_of_old_libraries(options: dict[str, Any], tmp_path: Path) -> None:
    # HDF5 up to 1.6.2 stored the halves of the checksum with swapped bytes
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        data = np.arange(300, dtype="i4")
        file.create_dataset("v", data=data, chunks=(100,), fletcher32=True, **options)
        chunks = [file["v"].id.get_chunk_info(i) for i in range(3)]
    stored = bytearray(path.read_bytes())
    for chunk in chunks:
        at = chunk.byte_offset + chunk.size - 4
        stored[at : at + 4] = np.frombuffer(stored[at : at + 4], "<u2").byteswap().tobytes()
    path.write_bytes(stored)
    assert_reads_as_h5py(path)
    stored[chunks[1].byte_offset] ^= 1
    path.write_bytes(stored)
    with pytest.raises(FormatError, match="fletcher32 checksum"):
        load(path).read()


def lz4_of_hdf5(data: bytes, block: int) -> bytes:
    """LZ4 as the registered filter 32004 frames it."""
    out = len(data).to_bytes(8, "big") + block.to_bytes(4, "big")
    for start in range(0, len(data), block):
        part = data[start : start + block]
        packed = bytes(numcodecs.lz4.compress(part))[4:]
        if len(packed) >= len(part):
            packed = part
        out += len(packed).to_bytes(4, "big") + packed
    return out


@settings(max_examples=examples(60))
@given(
    values=hnp.arrays(
        "<i4", st.integers(1, 300), elements=st.integers(0, 3) | st.integers(0, 2**31 - 1)
    ),
    block=st.integers(1, 2000),
)
def test_lz4(values: np.ndarray[Any, Any], block: int) -> None:
    array = array_of(filter_(32004, 0), shape=values.shape)
    stored = lz4_of_hdf5(values.tobytes(), block)
    np.testing.assert_array_equal(decoded(array, stored), values)
    with pytest.raises(FormatError):
        decoded(array, stored[:-1])


@pytest.mark.parametrize(
    ("filters", "stored"),
    [
        ((DEFLATE,), zlib.compress(b"\0" * 39)),
        ((DEFLATE,), zlib.compress(b"\0" * 41)),
        ((SHUFFLE,), b"\0" * 41),
        ((), b"\0" * 39),
        ((FLETCHER,), b"\0" * 3),
        ((filter_(32000),), b"\x02abc"),
        ((filter_(32000),), b"\x1fabc"),
        ((filter_(32000),), b"\x20\x00"),
        ((filter_(32000),), b"\x00a\xe0\xff\x00" * 2),
        ((filter_(32000),), b""),
        ((filter_(32004),), b""),
        ((filter_(32004),), (1 << 60).to_bytes(8, "big") + b"\0\0\1\0"),
        ((filter_(32004),), (40).to_bytes(8, "big") + b"\0\0\0\0"),
        ((filter_(32004),), (40).to_bytes(8, "big") + b"\0\0\0\1" + b"\xff" * 8),
        ((filter_(6, 2, 0, 10, 0, 4, 1, 0, 0),), b"\x20\0\0\0\x08" + b"\0" * 50),
        ((filter_(6, 2, 0, 10, 0, 4, 1, 0, 0),), b"\x21\0\0\0\x08" + b"\0" * 99),
        ((filter_(6, 2, 0, 10, 0, 4, 1, 0, 0),), b""),
        ((filter_(4, 141, 8, 32, 10),), (400).to_bytes(4, "little") + b"\0" * 40),
        ((filter_(4, 141, 8, 32, 10),), b"\0"),
        ((filter_(32001, 2, 2, 4, 40),), b"\2\1\1\4" + (1 << 31).to_bytes(4, "little") * 3),
        ((filter_(32015, 3),), b"\x28\xb5\x2f\xfd\0\0"),
        ((filter_(307, 9),), b"BZh9"),
    ],
    ids=str,
)
def test_damaged_chunks(filters: tuple[Filter, ...], stored: bytes) -> None:
    with pytest.raises(FormatError, match=r"^/v chunk \(0,\): "):
        decoded(array_of(*filters), stored)


@pytest.mark.parametrize(
    "one",
    [
        filter_(6, 2, 0, 1 << 31, 0, 4, 1, 0, 0),  # too many elements
        filter_(6, 2, 0, 10, 0, 3, 1, 0, 0),  # of three bytes
        filter_(6, 1, 0, 10, 1, 4, 1, 0, 0),  # an exponent, which nobody writes
        filter_(6, 2, 0, 10, 0, 4, 1, 0, 1),  # a fill value that is not there
        filter_(6, 2),
    ],
)
def test_wrong_parameters(one: Filter) -> None:
    with pytest.raises(FormatError, match=r"^/v chunk \(0,\): "):
        decoded(array_of(one), b"\0" * 99)
    assert decoded(array_of(one), bytes(40), mask=1).tolist() == [0] * 10


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (filter_(2), "shuffle"),
        (filter_(2, 0), "shuffle"),
        (filter_(1), "zlib"),
        (filter_(32001, *[9] * 7), "blosc"),
    ],
)
def test_parameters_that_make_no_codec(one: Filter, name: str) -> None:
    match = rf"^/v chunk \(0,\): its filter {one.id} \({name}\) cannot have the parameters"
    with pytest.raises(FormatError, match=match):
        decoded(array_of(one), bytes(40))
    assert decoded(array_of(one), bytes(40), mask=1).tolist() == [0] * 10


def test_a_filter_that_nobody_has() -> None:
    array = array_of(filter_(32026))
    with pytest.raises(
        UnsupportedError, match=r"filter 32026 \(Blosc2\) .*pip install h5py hdf5plugin"
    ):
        decoded(array, bytes(40))
    array = array_of(filter_(300, name="mine"))
    with pytest.raises(UnsupportedError, match=r"filter 300 \(mine\) "):
        decoded(array, bytes(40))


def test_filters_that_only_change_what_is_written() -> None:
    values = np.arange(10, dtype="<i4")
    for one in (filter_(32022, 3), filter_(32023, 3), filter_(5, 8, 1, 10, 1, 4, 0, 32, 0)):
        assert decoded(array_of(one), values.tobytes()).tolist() == values.tolist()


def test_n_bit(tmp_path: Path) -> None:
    # twelve bits at the third of sixteen
    path = tmp_path / "v.h5"
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((10,))
    properties.set_filter(5)
    kind = h5py.h5t.STD_U16LE.copy()
    kind.set_precision(12)
    kind.set_offset(2)
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"v", kind, h5py.h5s.create_simple((10,)), properties)
        file["v"][...] = np.arange(10) * 400
        stored = file["v"].id.read_direct_chunk((0,))[1]
        parameters = file["v"].id.get_create_plist().get_filter(0)[2]
    array = array_of(filter_(5, *parameters), dtype="<u2")
    assert decoded(array, stored).tolist() == [n * 400 << 2 for n in range(10)]


def odd_integer(draw: Any) -> Any:
    """An integer of which not all bits count."""
    kind = draw(st.sampled_from([h5py.h5t.STD_U8LE, h5py.h5t.STD_U16BE, h5py.h5t.STD_I32LE,
                                 h5py.h5t.STD_I64BE])).copy()  # fmt: skip
    bits = 8 * kind.get_size()
    # (libhdf5 takes less than half of them for damage)
    kind.set_precision(draw(st.integers(bits // 2 + 1, bits)))
    kind.set_offset(draw(st.integers(0, bits - kind.get_precision())))
    return kind


@st.composite
def odd_types(draw: Any, depth: int = 0) -> Any:
    which = draw(
        st.sampled_from(["integer", "array", "structure", "text"][: 4 if depth < 2 else 1])
    )
    if which == "integer":
        return odd_integer(draw)
    if which == "text":
        return h5py.h5t.py_create(np.dtype("S3"))
    if which == "array":
        shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
        return h5py.h5t.array_create(draw(odd_types(depth + 1)), shape)
    fields = draw(st.lists(odd_types(depth + 1), min_size=1, max_size=3))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(fields), max_size=len(fields)))
    size = sum(field.get_size() for field in fields) + sum(gaps)
    kind, place = h5py.h5t.create(h5py.h5t.COMPOUND, size), 0
    for number, (field, gap) in enumerate(zip(fields, gaps, strict=True)):
        kind.insert(b"f%d" % number, place + gap, field)
        place += gap + field.get_size()
    return kind


@settings(max_examples=examples(100), deadline=None)
@given(kind=odd_types(), seed=st.integers(0, 99))
def test_n_bit_of_anything(kind: Any, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "nbit.h5"
    count, size = 13, kind.get_size()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((count,))
    properties.set_filter(5)
    values = np.random.default_rng(seed).integers(0, 256, count * size).astype("u1")
    space = h5py.h5s.create_simple((count,))
    with h5py.File(path, "w") as file:
        dataset = h5py.h5d.create(file.id, b"v", kind, space, properties)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, kind)
    expected = np.zeros_like(values)
    with h5py.File(path) as file:
        dataset = file["v"].id
        parameters = dataset.get_create_plist().get_filter(0)[2]
        _, stored = dataset.read_direct_chunk((0,))
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, expected, kind)
    array = array_of(filter_(5, *parameters), dtype=f"V{size}", shape=(count,))
    assert decoded(array, bytes(stored)).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "values",
    [(), (1,), (3, 0, 10), (8, 0, 10, 1, 4, 0, 33, 0), (8, 0, 11, 1, 4, 0, 12, 0),
     (8, 0, 10, 1, 4, 2, 12, 0), (8, 0, 10, 5, 4, 0, 12, 0), (7, 0, 10, 3, 4, 1 << 31, 0),
     (10, 0, 10, 2, 4, 1, 3, 0, 12, 0), (7, 0, 10, 3, 4, 0, 0), (9, 0, 10, 3, 4, 1, 1, 4, 4),
     (203, 0, 10, *(2, 4) * 100)],
)  # fmt: skip
def test_n_bit_that_contradicts_itself(values: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match=r"^/v chunk \(0,\): "):
        decoded(array_of(filter_(5, *values)), bytes(40))


def test_plugins_of_h5py_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # deflate stands for a filter that only h5py has
    def find(number: int) -> Any:
        return codec_of_filter(number) if number > 1 else None

    monkeypatch.setattr(module, "codec_of_filter", find)
    array = array_of(SHUFFLE, DEFLATE, FLETCHER)
    assert [codec["id"] for codec in array.codecs] == ["shuffle", "hdf5", "fletcher32"]
    values = np.arange(10, dtype="<i4") * 77
    shuffled = values.view("u1").reshape(10, 4).T.tobytes()
    assert decoded(array, zlib.compress(shuffled), 4).tolist() == values.tolist()


def test_codecs_of_hdf5_are_none_of_zarr() -> None:
    array = ChunkedArray("v", (10,), (10,), np.dtype("i4"), codecs=({"id": "hdf5-lzf"},))
    with pytest.raises(FormatError, match=r"^v/\.zarray: "):
        Decoder(array, 0)
