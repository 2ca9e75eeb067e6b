"""Chunk indexes of HDF5 against what libhdf5 finds in files that it wrote."""

from __future__ import annotations

import ctypes
import itertools
import math
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.hdf5 import chunkindex
from nczarr_xarray.formats.hdf5.binary import lookup3
from nczarr_xarray.formats.hdf5.chunkindex_trees import BTree1Index
from tests.support.builders.h5drive import Driven, drive
from tests.support.builders.h5load import Loaded, load, stored_chunks
from tests.support.examples import examples

UNLIMITED = h5py.h5s.UNLIMITED
#: Signature of the first structure of each index.
SIGNATURES = {"btree1": b"TREE", "fixed": b"FAHD", "extensible": b"EAHD", "btree2": b"BTHD"}


def check(path: Path) -> Loaded:
    """Compare all chunks and all values of a file with what h5py reads; returns our view."""
    loaded = load(path)
    expected = stored_chunks(path)
    table = loaded.locate()
    assert len(table.start) == len(expected)
    for number, chunk in enumerate(expected):
        start, size = int(table.start[number]), int(table.size[number])
        if chunk is None:
            assert start == -1, number
        else:
            assert (int(table.mask[number]), loaded.data[start : start + size]) == chunk, number
    with h5py.File(path) as file:
        np.testing.assert_array_equal(loaded.read(), file["v"][...])
    return loaded


# -- random datasets -----------------------------------------------------------------------


@st.composite
def datasets(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    lengths = st.integers(1, (60, 14, 7)[rank - 1])
    shape = tuple(draw(lengths) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    limits = st.sampled_from(["same", "unlimited", "larger"])
    maxshape = tuple(
        {"same": max(n, c), "unlimited": None, "larger": max(n, c) + 9}[draw(limits)]
        for n, c in zip(shape, chunks, strict=True)
    )
    resized = None
    if draw(st.booleans()):
        resized = tuple(draw(st.integers(0, m or 20)) for m in maxshape)
    corner = tuple(draw(st.integers(0, n - 1)) for n in shape)
    return {
        "libver": draw(st.sampled_from(["earliest", "v110", "latest"])),
        "shape": shape,
        "chunks": chunks,
        "maxshape": maxshape,
        "compression": draw(st.sampled_from([None, "gzip"])),
        "corner": corner,
        "resized": resized,
        "early": draw(st.booleans()),
        "userblock": draw(st.sampled_from([0, 512])),
        "ids": draw(st.lists(st.integers(0, 9999), max_size=8)),
    }


def create(path: Path, case: dict[str, Any]) -> None:
    with h5py.File(path, "w", libver=case["libver"], userblock_size=case["userblock"]) as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(case["chunks"])
        if case["early"]:
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        if case["compression"]:
            properties.set_shuffle()
            properties.set_deflate(1)
        limits = tuple(UNLIMITED if n is None else n for n in case["maxshape"])
        space = h5py.h5s.create_simple(case["shape"], limits)
        h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I32LE, space, properties)
        dataset = file["v"]
        values = np.arange(1, math.prod(case["shape"]) + 1, dtype="i4").reshape(case["shape"])
        part = tuple(slice(low, None) for low in case["corner"])
        dataset[part] = values[part]
        if case["resized"] is not None:
            dataset.resize(case["resized"])
            if dataset.size:
                dataset[..., -1:] = 7


@settings(max_examples=examples(150), deadline=None)
@given(case=datasets())
def test_any_dataset(case: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.h5"
    create(path, case)
    loaded = check(path)
    count = math.prod(loaded.grid)
    if count:
        ids = np.unique(np.array(case["ids"], dtype=np.int64) % count)
        some, everything = loaded.locate(ids), loaded.locate()
        assert some.source is everything.source is None
        for part, whole in zip(some[:3], everything[:3], strict=True):
            assert whole is not None
            np.testing.assert_array_equal(part, whole[ids])


@pytest.mark.parametrize(
    ("maxshape", "early", "compression", "libver", "index"),
    [
        ((20, 30), False, None, "earliest", "btree1"),
        ((None, None), False, "gzip", "earliest", "btree1"),
        ((20, 30), True, None, "latest", "implicit"),
        ((27, 33), True, None, "latest", "implicit"),
        ((20, 30), False, None, "latest", "fixed"),
        ((40, 30), False, "gzip", "latest", "fixed"),
        ((None, 30), False, "gzip", "latest", "extensible"),
        ((20, None), False, None, "latest", "extensible"),
        ((25, None), True, None, "v110", "extensible"),
        ((None, None), False, None, "latest", "btree2"),
        ((None, None), False, "gzip", "v110", "btree2"),
    ],
)
@pytest.mark.parametrize("sizes", [8, 4])
def test_each_index(
    maxshape: tuple[int | None, ...], early: bool, compression: str | None, libver: str,
    index: str, sizes: int, tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "each.h5"
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_sizes(sizes, 8)  # libhdf5 loses unlimited dimensions with shorter lengths
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(
        h5py.h5f.LIBVER_EARLIEST if libver == "earliest" else h5py.h5f.LIBVER_V110,
        h5py.h5f.LIBVER_LATEST,
    )
    file_id = h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, properties, access)
    with h5py.File(file_id) as file:
        chunk = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        chunk.set_chunk((3, 4))
        if early:
            chunk.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        if compression:
            chunk.set_deflate(5)
        limits = tuple(UNLIMITED if n is None else n for n in maxshape)
        space = h5py.h5s.create_simple((20, 30), limits)
        h5py.h5d.create(file.id, b"v", h5py.h5t.STD_U16BE, space, chunk)
        file["v"][2:, :17] = np.arange(18 * 17).reshape(18, 17)
    loaded = check(path)
    assert loaded.layout.index == index
    assert loaded.frame.offset_size == sizes


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("written", [True, False])
def test_a_single_chunk(compression: str | None, written: bool, tmp_path: Path) -> None:
    path = tmp_path / "single.h5"
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset("v", (5, 6), "f8", chunks=(5, 6), compression=compression)
        if written:
            dataset[...] = np.arange(30).reshape(5, 6)
    loaded = check(path)
    assert loaded.layout.index == "single"
    assert (loaded.locate().start >= 0).tolist() == [written]


@pytest.mark.parametrize("maxshape", [(20, 30), (None, 30), (20, None), (None, None)])
def test_edges_without_filters(maxshape: tuple[int | None, ...], tmp_path: Path) -> None:
    path = tmp_path / "edges.h5"
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((7, 8))
    properties.set_shuffle()
    properties.set_deflate(4)
    unfilter_edges(properties)
    with h5py.File(path, "w", libver="latest") as file:
        limits = tuple(UNLIMITED if n is None else n for n in maxshape)
        space = h5py.h5s.create_simple((20, 30), limits)
        h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I32LE, space, properties)
        file["v"][...] = np.arange(600).reshape(20, 30)
        if maxshape == (None, None):
            file["v"].resize((25, 33))
            file["v"][18:] = 5
    loaded = load(path)
    assert loaded.layout.unfiltered_edges
    with h5py.File(path) as file:
        np.testing.assert_array_equal(loaded.read(), file["v"][...])
    masks = loaded.locate().mask.reshape(loaded.grid)
    assert masks[0, 0] == 0
    assert np.all(masks[-1] == 3)
    assert np.all(masks[:, -1] == 3)


def unfilter_edges(properties: Any) -> None:
    """H5Pset_chunk_opts, which h5py does not have, of the library that h5py uses."""
    maps = Path("/proc/self/maps")
    found = maps.exists() and re.search(r"/\S*h5py\S*libhdf5-[^/\s]*\.so\S*", maps.read_text())
    if not found:
        pytest.skip("libhdf5 of h5py is not found")
    set_options = ctypes.CDLL(found[0]).H5Pset_chunk_opts
    set_options.argtypes = [ctypes.c_int64, ctypes.c_uint]
    assert set_options(properties.id, 2) >= 0


def test_masks_of_single_chunks(tmp_path: Path) -> None:
    path = tmp_path / "masks.h5"
    for libver, maxshape in itertools.product(("earliest", "latest"), ((8,), (None,))):
        with h5py.File(path, "w", libver=libver) as file:
            dataset = file.create_dataset(
                "v", (8,), "<i2", chunks=(2,), maxshape=maxshape, shuffle=True, compression="gzip"
            )
            dataset[:4] = [1, 2, 300, 400]
            dataset.id.write_direct_chunk((4,), np.array([500, 6], "<i2").tobytes(), 3)
            dataset.id.write_direct_chunk((6,), b"\x07\x08\x00\x01", 2)  # shuffled only
        loaded = check(path)
        assert loaded.locate().mask.tolist() == [0, 0, 3, 2]
        assert loaded.read().tolist() == [1, 2, 300, 400, 500, 6, 7, 264]


def test_a_part_of_a_chunk_of_another_size(tmp_path: Path) -> None:
    """What is behind it in the file belongs to something else."""
    path, nbytes = tmp_path / "v.h5", 200_000
    with h5py.File(path, "w", libver="earliest") as file:
        file.create_dataset("v", data=np.arange(100_000, dtype="<i4"), chunks=(50_000,))
    right, wrong = (size.to_bytes(4, "little") for size in (nbytes, nbytes - 4))
    data = path.read_bytes()
    changed = data.replace(right, wrong)
    assert changed != data
    path.write_bytes(changed)
    with xr.open_dataset(path, engine="nczarr") as ds:
        for part in (slice(49_990, 50_000), slice(5), slice(50_000), slice(None)):
            with pytest.raises(FormatError, match=f"decodes to {nbytes - 4} bytes, not {nbytes}"):
                ds.v[part].load()


def test_no_elements(tmp_path: Path) -> None:
    path = tmp_path / "none.h5"
    for libver in ("earliest", "latest"):
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("v", (0, 4), "i4", chunks=(2, 2), maxshape=(None, 4))
        loaded = check(path)
        assert drive(loaded.index.locate(np.empty(0, np.int64)), loaded.data).rounds == 0


# -- many chunks ---------------------------------------------------------------------------

#: The grid of the file that remote readers are measured with: 730 days, one degree.
GRID = (146, 6, 12)


def write_many(path: Path, libver: str, maxshape: tuple[int | None, ...]) -> None:
    """A file with that grid; each chunk holds its own number."""
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset(
            "v", GRID, "<i4", chunks=(1, 1, 1), maxshape=maxshape, compression="gzip"
        )
        for number, position in enumerate(np.ndindex(GRID)):
            if number % 97:
                dataset.id.write_direct_chunk(position, number.to_bytes(4, "little"), 1)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    kinds = {
        "btree1": ("earliest", (None, None, None)),
        "fixed": ("latest", GRID),
        "extensible": ("latest", (None, *GRID[1:])),
        "btree2": ("latest", (None, None, GRID[2])),
    }
    made: dict[str, Loaded] = {}

    def get(index: str) -> Loaded:
        if index not in made:
            path = tmp_path_factory.mktemp("many") / f"{index}.h5"
            write_many(path, *kinds[index])
            made[index] = load(path)
            assert made[index].layout.index == index
        return made[index]

    return get


def values(loaded: Loaded, ids: np.ndarray[Any, Any]) -> tuple[Driven, list[int | None]]:
    """What the chunks `ids` hold (None: they are not there)."""
    driven = drive(loaded.index.locate(ids), loaded.data)
    table = driven.result
    held = [
        None if start < 0 else int.from_bytes(loaded.data[start : start + 4], "little")
        for start in table.start.tolist()
    ]
    assert set(table.size[table.start >= 0].tolist()) <= {4}
    assert set(table.mask[table.start >= 0].tolist()) <= {1}
    return driven, held


@pytest.mark.parametrize(
    ("index", "rounds", "most"),
    # bytes for all chunks, for a series, for a step, in thousands
    [
        ("btree1", 3, (1000, 600, 20)),
        ("fixed", 2, (230, 230, 45)),
        ("extensible", 4, (240, 240, 40)),
        ("btree2", 4, (500, 400, 20)),
    ],
)
def test_lookups_read_what_they_need(
    many: Callable[[str], Loaded], index: str, rounds: int, most: tuple[int, ...]
) -> None:
    loaded = many(index)
    everything = np.arange(math.prod(GRID))
    series, step = everything[17::72], everything[2880:2952]
    for ids, limit in zip((everything, series, step), most, strict=True):
        driven, held = values(loaded, ids)
        assert held == [number if number % 97 else None for number in ids.tolist()]
        assert driven.rounds <= rounds
        assert sum(length for _, length in driven.flat) <= limit * 1000
        assert len(set(driven.flat)) == len(driven.flat)


@pytest.mark.parametrize("index", SIGNATURES)
@settings(max_examples=examples(30), deadline=None)
@given(ids=st.lists(st.integers(0, math.prod(GRID) - 1), min_size=1, max_size=30))
def test_any_ids(many: Callable[[str], Loaded], index: str, ids: list[int]) -> None:
    wanted = sorted(set(ids))
    _, held = values(many(index), np.array(wanted))
    assert held == [number if number % 97 else None for number in wanted]


@pytest.mark.parametrize("index", SIGNATURES)
def test_nodes_are_read_once(many: Callable[[str], Loaded], index: str) -> None:
    loaded = many(index)
    one = loaded.index
    everything = np.arange(math.prod(GRID))
    first = drive(one.locate(everything[:5000]), loaded.data)
    second = drive(one.locate(everything), loaded.data)
    assert not set(first.flat) & set(second.flat)
    assert drive(one.locate(everything), loaded.data).rounds == 0
    copy = pickle.loads(pickle.dumps(one))
    assert len(pickle.dumps(one)) < 2000
    assert drive(copy.locate(everything), loaded.data).rounds > 0


@pytest.mark.parametrize("index", SIGNATURES)
def test_little_memory_is_enough(
    many: Callable[[str], Loaded], index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunkindex, "MEMORY", 3000)
    loaded = many(index)
    one = loaded.index
    everything = np.arange(math.prod(GRID))
    for _ in range(2):
        table = drive(one.locate(everything), loaded.data).result
        assert np.array_equal(table.start >= 0, everything % 97 != 0)


@pytest.mark.parametrize("index", SIGNATURES)
def test_threads_share_an_index(many: Callable[[str], Loaded], index: str) -> None:
    loaded = many(index)
    one = loaded.index
    expected = loaded.locate()

    def work(number: int) -> bool:
        ids = np.arange(number, math.prod(GRID), 7)
        found = drive(one.locate(ids), loaded.data).result
        return np.array_equal(found.start, expected.start[ids])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_pages_of_an_extensible_array(compression: str | None, tmp_path: Path) -> None:
    # data blocks have more than one page of 1024 elements from element 131060 on
    path = tmp_path / "paged.h5"
    written = [0, 3, 4, 100, 65524, 131059, 131060, 132084, 133107, 200000, 299999]
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset(
            "v", (300000,), "<i4", chunks=(1,), maxshape=(None,), compression=compression
        )
        for number in written:
            stored = number.to_bytes(4, "little")
            dataset.id.write_direct_chunk((number,), stored, 1 if compression else 0)
    loaded = load(path)
    table = loaded.locate()
    assert np.flatnonzero(table.start >= 0).tolist() == written
    for number in written:
        start = int(table.start[number])
        assert int.from_bytes(loaded.data[start : start + 4], "little") == number
    driven = drive(loaded.index.locate(np.array([132085])), loaded.data)
    assert driven.rounds == 4
    # since layout version 5 the stored size of a chunk takes as many bytes as a length does
    entries = (8,) if compression is None else (8 + 1 + 4, 8 + 8 + 4)
    assert driven.reads[3][0][1] in [1024 * entry + 4 for entry in entries]


def test_pages_of_a_fixed_array(tmp_path: Path) -> None:
    path = tmp_path / "paged.h5"
    written = [0, 1023, 1024, 5000, 9999]
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset("v", (10000,), "<i4", chunks=(1,))
        for number in written:
            dataset[number] = number
    loaded = load(path)
    assert np.flatnonzero(loaded.locate().start >= 0).tolist() == written
    one = loaded.index
    assert drive(one.locate(np.array([0])), loaded.data).rounds == 2
    # an index remembers which pages were ever written
    assert drive(one.locate(np.array([5001])), loaded.data).rounds == 1
    assert drive(one.locate(np.array([1, 5002])), loaded.data).rounds == 0


def test_more_chunks_than_memory_holds(tmp_path: Path) -> None:
    path = tmp_path / "sparse.h5"
    shape = (10**6, 10**6, 10**6)
    for libver, maxshape in (
        ("earliest", None), ("latest", (None, *shape[1:])), ("latest", (None, None, None)),
    ):  # fmt: skip
        with h5py.File(path, "w", libver=libver) as file:
            dataset = file.create_dataset("v", shape, "i1", chunks=(10, 10, 10), maxshape=maxshape)
            if maxshape is None or maxshape[1] is None:
                dataset[999_999, 999_999, 999_999] = 5
            dataset[0, 0, 5] = 6
        loaded = load(path)
        table = loaded.locate([0, 1, 10**10, 10**15 - 2, 10**15 - 1])
        expected = [True, False, False, False, maxshape is None or maxshape[1] is None]
        assert (table.start >= 0).tolist() == expected


# -- damage --------------------------------------------------------------------------------


def small(path: Path, index: str) -> Loaded:
    libver, maxshape = {
        "btree1": ("earliest", (None, None)),
        "fixed": ("latest", (40, 40)),
        "extensible": ("latest", (40, None)),
        "btree2": ("latest", (None, None)),
    }[index]
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset(
            "v", (40, 40), "<i4", chunks=(3, 3), maxshape=maxshape, compression="gzip"
        )
        dataset[...] = np.arange(1600).reshape(40, 40)
    return load(path)


def structures(loaded: Loaded) -> list[tuple[int, int]]:
    """Bytes of the index, as reads find them."""
    ids = np.arange(math.prod(loaded.grid))
    return sorted(set(drive(loaded.index.locate(ids), loaded.data).flat))


@pytest.mark.parametrize("index", ["fixed", "extensible", "btree2"])
def test_no_changed_byte_goes_unnoticed(index: str, tmp_path: Path) -> None:
    loaded = small(tmp_path / "small.h5", index)
    ids = np.arange(math.prod(loaded.grid))
    rng = np.random.default_rng(0)
    for start, length in structures(loaded):
        for at in np.unique(rng.integers(start, start + length, 25)).tolist():
            damaged = bytearray(loaded.data)
            damaged[at] ^= int(rng.integers(1, 256))
            with pytest.raises(FormatError):
                drive(loaded.index.locate(ids), bytes(damaged))


@pytest.mark.parametrize("index", SIGNATURES)
@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_damage_ends_in_an_error_or_in_chunks_of_the_file(
    index: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    loaded = small(tmp_path_factory.getbasetemp() / f"damage-{index}.h5", index)
    places = structures(loaded)
    damaged = bytearray(loaded.data)
    for _ in range(data.draw(st.integers(1, 3))):
        start, length = data.draw(st.sampled_from(places))
        at = start + data.draw(st.integers(0, length - 1))
        new = data.draw(st.binary(min_size=1, max_size=9))
        damaged[at : at + len(new)] = new
    for start, length in places:  # damage that checksums do not show
        if damaged[start : start + 4] != b"TREE":
            check = lookup3(bytes(damaged[start : start + length - 4]))
            damaged[start + length - 4 : start + length] = check.to_bytes(4, "little")
    ids = np.arange(math.prod(loaded.grid))
    try:
        driven = drive(loaded.index.locate(ids), bytes(damaged))
    except NCZarrError:
        return
    table = driven.result
    assert len(driven.flat) <= 2 * len(loaded.data)
    there = table.start >= 0
    assert np.all(table.start[there] + table.size[there] <= len(loaded.data))


@pytest.mark.parametrize("index", SIGNATURES)
def test_a_file_that_was_cut_off(index: str, tmp_path: Path) -> None:
    loaded = small(tmp_path / "cut.h5", index)
    ids = np.arange(math.prod(loaded.grid))
    for start, _ in structures(loaded):
        with pytest.raises(FormatError):
            drive(loaded.index.locate(ids), loaded.data[: start + 20])


@pytest.mark.parametrize("maxshape", [(4, 6), (None, None)])
def test_the_only_chunk_is_found_as_others_are(
    maxshape: tuple[int | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a node of one chunk without arrays has the same results, and the same errors."""
    path = tmp_path / "only.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset(
            "v", (4, 6), "i2", chunks=(4, 6), maxshape=maxshape, compression="gzip"
        )
        dataset[...] = np.arange(24).reshape(4, 6)
    loaded = check(path)
    address, node = loaded.layout.address, 24 + 2 * 32 + 16
    assert address is not None
    cases = [loaded.data]
    for at, new in itertools.product(range(address, address + node), (0, 1, 2, 4, 6, 127, 255)):
        cases.append(loaded.data[:at] + bytes([new]) + loaded.data[at + 1 :])
    cases += [loaded.data[:at] + b"\xff" * 8 + loaded.data[at + 8 :] for at in range(address, at)]

    def outcomes() -> list[str]:
        found = []
        for data in cases:
            try:
                found.append(repr(drive(loaded.index.locate(np.array([0, 0])), data).result))
            except FormatError as error:
                found.append(str(error))
        return found

    quick = outcomes()

    async def nothing(index: BTree1Index) -> None:
        return None

    monkeypatch.setattr(BTree1Index, "_only", nothing)
    assert outcomes() == quick
    assert len(set(quick)) > 30


@pytest.mark.parametrize("left", [(3, 5), (9, 6), (4, 6)])
def test_a_dataset_that_became_smaller(left: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "shrunk.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("v", (9, 9), "i2", chunks=(4, 6), maxshape=(None, None))
        dataset[...] = np.arange(81).reshape(9, 9)
        dataset.resize(left)
    check(path)


def test_a_tree_that_contains_itself(tmp_path: Path) -> None:
    loaded = small(tmp_path / "cycle.h5", "btree1")
    address = loaded.layout.address
    assert address is not None
    rank = 2
    entry = 8 + 8 * (rank + 1) + 8
    damaged = bytearray(loaded.data)
    assert damaged[address + 5] > 0
    child = address + 24 + entry - 8
    damaged[child : child + 8] = address.to_bytes(8, "little")
    with pytest.raises(FormatError, match="twice"):
        drive(loaded.index.locate(np.arange(4)), bytes(damaged))
    count = int.from_bytes(damaged[address + 6 : address + 8], "little")
    for number in range(count):  # all children are one node
        at = child + number * entry
        damaged[at : at + 8] = loaded.data[child : child + 8]
    with pytest.raises(FormatError, match="twice"):
        drive(loaded.index.locate(np.arange(math.prod(loaded.grid))), bytes(damaged))
    damaged = bytearray(loaded.data)
    leaf = int.from_bytes(damaged[child : child + 8], "little")
    damaged[leaf + 5] = 1
    with pytest.raises(FormatError, match="level 1"):
        drive(loaded.index.locate(np.arange(4)), bytes(damaged))


def test_a_chunk_outside_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "outside.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (9, 9), "i4", chunks=(3, 3))[...] = 1
    loaded = load(path)
    address = loaded.layout.address
    assert address is not None
    damaged = bytearray(loaded.data)
    child = address + 24 + (8 + 24 + 8) * 4 + 8 + 24
    damaged[child : child + 8] = (len(damaged) - 10).to_bytes(8, "little")
    with pytest.raises(FormatError, match=r"v: chunk \(1, 1\) has 36 bytes at \d+, but the file"):
        drive(loaded.index.locate(np.arange(9)), bytes(damaged))
    # those that nobody asks for do not matter
    assert drive(loaded.index.locate(np.array([3])), bytes(damaged)).result.start[0] > 0


def test_zeros_in_place_of_a_part_of_a_tree(tmp_path: Path) -> None:
    """A block of a file that was never written: version 1 has no checksums."""
    path = tmp_path / "zeros.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (9, 9), "i4", chunks=(3, 3))[...] = 1
    loaded = load(path)
    address = loaded.layout.address
    assert address is not None
    entry = 8 + 24 + 8
    last = address + 24 + entry * 8
    for start, message in (
        (last, "is out of order"),
        (last + 8 + 24, r"chunk \(2, 2\) has 36 bytes at 0, but there is the superblock"),
    ):
        damaged = bytearray(loaded.data)
        damaged[start : last + entry] = bytes(last + entry - start)
        with pytest.raises(FormatError, match=message):
            drive(loaded.index.locate(np.arange(9)), bytes(damaged))
