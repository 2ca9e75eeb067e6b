"""Filters x versions of the file format x datatypes: what libhdf5 records, skips and reads.

libhdf5 leaves an optional filter out of a chunk (and notes that in the chunk's mask) if the
filter fails: with data of variable length it records shuffle without parameters, so that it
always does; scale-offset, with parameters of another kind of number; deflate, with a level that
is none. Filters that it does not know at all it skips as well.
"""

from __future__ import annotations

import bz2
import json
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import FormatError, NCZarrWarning, UnsupportedError
from nczarr_xarray.backend.encoding import variable_encoding
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.codecs.libhdf5 import filter_encoder
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.model import ChunkedArray, FileChunks

LIBVERS = {
    "earliest": ("earliest", "v108"),
    "v108": ("v108", "v108"),
    "v110": ("v110", "v110"),
    "latest": ("latest", "latest"),
}
OPTIONAL, MANDATORY = h5py.h5z.FLAG_OPTIONAL, 0
COUNT, CHUNK = 23, 8
#: Number, flags, parameters. (szip and scale-offset after what makes fewer bytes: libhdf5 would
#: write beyond its memory.)
SHUFFLE, DEFLATE, FLETCHER = (2, OPTIONAL, ()), (1, OPTIONAL, (4,)), (3, MANDATORY, ())
SZIP, NBIT, SCALE, LZF = (
    (4, OPTIONAL, (4, 8)),
    (5, OPTIONAL, ()),
    (6, OPTIONAL, (2, 0)),
    (32000, OPTIONAL, ()),
)
UNKNOWN = (300, OPTIONAL, (1, 2, 3))
PIPELINES: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {
    "deflate": [DEFLATE],
    "shuffle": [SHUFFLE],
    "fletcher32": [FLETCHER],
    "szip": [SZIP],
    "szip nn": [(4, OPTIONAL, (32, 8))],
    "nbit": [NBIT],
    "scale-offset": [SCALE],
    "lzf": [LZF],
    "shuffle deflate": [SHUFFLE, DEFLATE],
    "shuffle deflate fletcher32": [SHUFFLE, DEFLATE, FLETCHER],
    "fletcher32 shuffle deflate": [FLETCHER, SHUFFLE, DEFLATE],
    "deflate shuffle": [DEFLATE, SHUFFLE],
    "shuffle szip": [SHUFFLE, SZIP],
    "szip fletcher32": [SZIP, FLETCHER],
    "szip deflate": [SZIP, DEFLATE],
    "lzf shuffle": [LZF, SHUFFLE],
    "scale-offset nbit": [SCALE, NBIT],
    "scale-offset deflate": [SCALE, DEFLATE],
    "deflate without a level": [(1, OPTIONAL, ())],
    "deflate with two levels": [(1, OPTIONAL, (4, 4))],
    "deflate with level 12": [(1, OPTIONAL, (12,))],
    "shuffle with two sizes": [(2, OPTIONAL, (4, 4))],
    "fletcher32 with a parameter": [(3, MANDATORY, (4,))],
    "scale-offset without": [(6, OPTIONAL, ())],
    "scale-offset with three": [(6, OPTIONAL, (2, 0, 3))],
    "szip with three": [(4, OPTIONAL, (4, 8, 8))],
    "nothing known": [UNKNOWN],
    "shuffle unknown deflate": [SHUFFLE, UNKNOWN, DEFLATE],
    "unknown after deflate": [DEFLATE, UNKNOWN],
}


def values() -> dict[str, tuple[Any, np.ndarray[Any, Any]]]:
    """By name: a datatype for h5py, and data."""
    numbers = np.arange(COUNT)
    found: dict[str, tuple[Any, np.ndarray[Any, Any]]] = {
        kind: (np.dtype(kind), (numbers % 50).astype(kind))
        for kind in ("i1", "u1", "<i2", ">i2", "<i4", ">u4", "<i8", ">i8", "<f4", ">f4", "<f8")
    }
    found["bool"] = np.dtype(bool), numbers % 2 == 0
    found["enum"] = h5py.enum_dtype({"a": 0, "b": 1, "c": 2}, "i2"), (numbers % 3).astype("i2")
    found["S5"] = np.dtype("S5"), np.array([b"ab%d" % n for n in numbers], "S5")
    found["opaque"] = np.dtype("V5"), np.array([b"ab%03d" % n for n in numbers], "V5")
    found["text"] = h5py.string_dtype(), np.array([f"text {n}" for n in numbers], object)
    sequences = np.empty(COUNT, object)
    sequences[:] = [np.arange(n % 4, dtype="i4") for n in numbers]
    found["sequences"] = h5py.vlen_dtype("i4"), sequences
    structure = np.dtype([("a", "i4"), ("b", ">f8"), ("c", "i2", (3,))])
    structures = np.zeros(COUNT, structure)
    structures["a"], structures["b"], structures["c"] = numbers, numbers / 2, numbers[:, None]
    found["structures"] = structure, structures
    texts = np.empty(COUNT, [("a", "i4"), ("s", h5py.string_dtype())])
    texts["a"], texts["s"] = numbers, [f"x{n}" for n in numbers]
    found["structures of text"] = texts.dtype, texts
    return found


def write(path: Path, libver: str, pipeline: list[tuple[int, int, tuple[int, ...]]]) -> set[str]:
    """A dataset of each type that libhdf5 lets have the filters; their names."""
    written = set()
    with h5py.File(path, "w", libver=LIBVERS[libver]) as file:
        for name, (kind, data) in values().items():
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_chunk((CHUNK,))
            for one in pipeline:
                properties.set_filter(*one)
            if NBIT in pipeline and name in ("text", "sequences"):
                continue  # libhdf5 2.0 would end the process
            type_ = h5py.h5t.py_create(kind, logical=True)
            space = h5py.h5s.create_simple((COUNT,), (h5py.h5s.UNLIMITED,))
            try:
                h5py.h5d.create(file.id, name.encode(), type_, space, properties)
            except (ValueError, RuntimeError):
                continue  # "not suitable for filters", say
            file[name][: COUNT - 3] = data[: COUNT - 3]
            written.add(name)
    return written


def plain(found: Any) -> Any:
    """Values of h5py and ours in the same terms."""
    if isinstance(found, np.ndarray) and (found.dtype.kind == "O" or found.dtype.names):
        return [plain(one) for one in found.ravel()]
    if isinstance(found, np.void) and found.dtype.names:
        return [plain(found[name]) for name in found.dtype.names]
    if isinstance(found, bytes):
        return found.rstrip(b"\0").decode()
    return found.tolist() if isinstance(found, (np.ndarray, np.generic)) else found


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_libhdf5_reads(pipeline: str, tmp_path: Path) -> None:
    filters = PIPELINES[pipeline]
    masks = set()
    for libver in LIBVERS:
        path = tmp_path / f"{libver}.h5"
        names = write(path, libver, filters)
        assert "<i4" in names
        expected = {}
        with h5py.File(path) as file:
            for name in names:
                dataset = file[name]
                expected[name] = dataset[...]
                masks |= {
                    dataset.id.get_chunk_info(i).filter_mask
                    for i in range(dataset.id.get_num_chunks())
                }
        with open_hierarchy(path) as opened:
            for name, variable in opened.hierarchy.root.variables.items():
                found = opened.read(variable)
                want = expected.pop(name)
                if name == "S5":
                    want = want.astype(object)
                assert plain(np.asarray(found)) == plain(np.asarray(want)), (libver, name)
            assert not expected
            unknown = sum(number == 300 for number, *_ in filters)
            assert len(opened.hierarchy.problems) == unknown * len(names)
    always = "fletcher32" in pipeline or pipeline in ("deflate", "nbit")
    assert bool(masks - {0}) != always  # the others libhdf5 leaves out of some chunk


@pytest.mark.parametrize("libver", LIBVERS)
def test_text_compressed_by_h5py(libver: str, tmp_path: Path) -> None:
    path = tmp_path / "text.h5"
    texts = [f"text {n}" for n in range(40)]
    with h5py.File(path, "w", libver=LIBVERS[libver]) as file:
        file.create_dataset(
            "v", data=np.array(texts, object), dtype=h5py.string_dtype(), chunks=(7,),
            compression="gzip", shuffle=True,
        )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xr.open_dataset(path, engine="nczarr") as found:
            assert found.v.values.tolist() == texts
    with netCDF4.Dataset(path) as file, open_hierarchy(path) as opened:
        variable = opened.hierarchy.root.variables["v"]
        encoding = variable_encoding(variable, ("x",), "", classic=False)
        expected = file["v"].filters()
        del expected["blosc"]
        assert {key: encoding[key] for key in expected} == expected


def test_text_compressed_by_h5netcdf(tmp_path: Path) -> None:
    path = tmp_path / "text.nc"
    texts = [f"station {n}" for n in range(40)]
    wanted = xr.Dataset(coords={"station": texts})
    options = {"zlib": True, "shuffle": True, "chunksizes": (7,)}
    wanted.to_netcdf(path, engine="h5netcdf", encoding={"station": options})
    with xr.open_dataset(path, engine="nczarr") as found:
        assert found.station.values.tolist() == texts


def created(file: Any, name: str, data: Any, filters: list[Any], chunk: int = 0) -> Any:
    """A dataset for `data`, in one chunk if nothing else is said."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((chunk or len(data),))
    for one in filters:
        properties.set_filter(*one)
    type_ = h5py.h5t.py_create(data.dtype)
    h5py.h5d.create(file.id, name.encode(), type_, h5py.h5s.create_simple(data.shape), properties)
    return file[name]


NUMBERS = np.arange(256, dtype="<i4")


def direct(path: Path, filters: list[tuple[int, int, tuple[int, ...]]], masks: list[int]) -> None:
    """Chunks of 4 of `NUMBERS`, stored as the masks say (but for filters that nobody has)."""
    with h5py.File(path, "w") as file:
        dataset = created(file, "v", NUMBERS[: 4 * len(masks)], filters, 4)
        for number, mask in enumerate(masks):
            data = NUMBERS[4 * number :][:4]
            stored = data.tobytes()
            for bit, one in enumerate(filters):
                if one == SHUFFLE and not mask >> bit & 1:
                    stored = data.view("u1").reshape(4, 4).T.tobytes()
                elif one == DEFLATE and not mask >> bit & 1:
                    stored = zlib.compress(stored)
            dataset.id.write_direct_chunk((4 * number,), stored, mask)


def test_chunks_with_and_without_a_filter_that_nobody_has(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    direct(path, [UNKNOWN], [1, 1, 0, 1])
    with pytest.warns(NCZarrWarning, match=r"/v: its filter 300 cannot be undone.*hdf5plugin"):
        dataset = xr.open_dataset(path, engine="nczarr")
    with dataset:
        (dimension,) = dataset.v.dims
        for part in (slice(0, 8), slice(12, 16), slice(6, 0, -3)):
            found = dataset.v.isel({dimension: part})
            np.testing.assert_array_equal(found, np.arange(16)[part])
        with pytest.raises(UnsupportedError, match=r"^/v chunk \(2,\): its filter 300"):
            dataset.v.load()


def test_each_bit_of_a_mask_counts(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    masks = [number % 8 for number in range(64)]
    direct(path, [SHUFFLE, UNKNOWN, DEFLATE], masks)
    with open_hierarchy(path) as opened:
        variable = opened.hierarchy.root.variables["v"]
        for number, mask in enumerate(masks):
            part = (slice(4 * number, 4 * number + 4),)
            if mask & 2:
                assert opened.read(variable, part).tolist() == NUMBERS[part].tolist()
            else:
                with pytest.raises(UnsupportedError, match="filter 300"):
                    opened.read(variable, part)


@pytest.mark.parametrize("masks", [[1] * 64, [0, 1] * 32, [0] * 40 + [1] * 24])
def test_masks_of_chunks_that_are_decoded_together_or_remembered(
    masks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What undoes all chunks at once, and what is kept of one, is about those with all filters."""
    monkeypatch.setattr("nczarr_xarray.chunks.grid.SHARED_BYTES", 0)
    path = tmp_path / "v.h5"
    direct(path, [SHUFFLE, DEFLATE], masks)
    with xr.open_dataset(path, engine="nczarr", cache=False) as dataset:
        (dimension,) = dataset.v.dims
        for part in (slice(None), slice(1, None, 7), slice(177, 178)):
            for _ in range(2):
                found = dataset.v.isel({dimension: part}).to_numpy()
                assert found.tolist() == NUMBERS[part].tolist()


def test_a_filter_that_the_chunk_needs_and_cannot_have(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    direct(path, [(1, MANDATORY, ())], [0])
    with xr.open_dataset(path, engine="nczarr") as dataset:
        with pytest.raises(FormatError, match=r"^/v chunk \(0,\): its filter 1 .* parameters"):
            dataset.v.load()


# -- szip ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["u1", "<i2", ">i4", "<f8"])
@pytest.mark.parametrize("first", [DEFLATE, (307, OPTIONAL, (9,))], ids=["deflate", "bzip2"])
def test_szip_of_what_another_filter_made(
    kind: str, first: tuple[int, int, tuple[int, ...]], tmp_path: Path
) -> None:
    compressors: dict[int, Callable[[bytes], bytes]] = {1: zlib.compress, 307: bz2.compress}
    compress = compressors[first[0]]
    path = tmp_path / "v.h5"
    data = np.random.default_rng(1).integers(0, 9, (20, 1000)).astype(kind)
    data[0] = 0  # few bytes: fewer pixels than a block has
    with h5py.File(path, "w") as file:
        for number, row in enumerate(data):
            dataset = created(file, f"{number:02}", row, [SZIP])
            parameters = dataset.id.get_create_plist().get_filter(0)[2]
            del file[f"{number:02}"]
            # szip takes pixels only (and libhdf5 loses the rest), inflating ignores what follows
            packed = compress(row.tobytes())
            packed += bytes(-len(packed) % row.itemsize)
            stored = filter_encoder(4, parameters, len(packed))(packed)
            dataset = created(file, f"{number:02}", row, [first, SZIP])
            if stored is None:
                dataset.id.write_direct_chunk((0,), packed, 2)
            else:
                dataset.id.write_direct_chunk((0,), stored)
    if first == DEFLATE:  # h5py comes without bzip2
        with h5py.File(path) as file:
            for number, row in enumerate(data):
                assert file[f"{number:02}"][...].tolist() == row.tolist()
    with open_hierarchy(path) as opened:
        for name, variable in opened.hierarchy.root.variables.items():
            assert opened.read(variable).tolist() == data[int(name)].tolist()
        assert len(opened.hierarchy.root.variables) == len(data)


def test_bzip2_and_szip_of_netcdf(tmp_path: Path) -> None:
    path = tmp_path / "v.nc"
    data = (np.arange(3000) % 250).astype("u1")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", data.size)
    with h5py.File(path, "r+") as file:
        created(file, "v", data, [(307, OPTIONAL, (9,)), SZIP])
    with netCDF4.Dataset(path, "r+") as file:
        file["v"][:] = data
    with netCDF4.Dataset(path) as file:
        assert file["v"][:].tolist() == data.tolist()
    with h5py.File(path) as file:
        assert file["v"].id.get_chunk_info(0).filter_mask == 0
    with xr.open_dataset(path, engine="nczarr") as found:
        assert found.v.values.tolist() == data.tolist()


@pytest.mark.parametrize(
    "values_",
    [(141, 0, 32, 10), (141, 7, 32, 10), (141, 8, 0, 10), (141, 8, 65, 10), (141, 8, 32, 0),
     (141, 8, 32, 1 << 31), (141, 8, 64, 10), (141, 8), (), (141, 8, 32, 10, 10)],
)  # fmt: skip
def test_parameters_that_would_end_the_process(values_: tuple[int, ...]) -> None:
    codec = {"id": "hdf5", "filter": 4, "values": values_}
    index: Any = None
    array = FileChunks("/v", (9,), (9,), np.dtype("<i4"), index, codecs=(codec,))
    stored = (36).to_bytes(4, "little") + bytes(30)
    with pytest.raises(FormatError, match=r"^/v chunk: .*szip"):
        Decoder(array, 0).decode([stored], lambda _: "/v chunk")


# (netCDF-C fails to write bytes that szip does not make fewer)
@pytest.mark.parametrize("kind", ["i2", "f4", "f8"])
def test_nczarr_szip_of_blocks_longer_than_chunks(kind: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'x.file'}#mode=nczarr,file"
    data = (np.arange(4 * 640) // 90).astype(kind).reshape(4, 640)
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("y", 4)
        file.createDimension("x", 640)
        file.createVariable(
            "v", kind, ("y", "x"), compression="szip", chunksizes=(1, 20),
            szip_pixels_per_block=32, szip_coding="ec",
        )[:] = data  # fmt: skip
    with xr.open_dataset(url, engine="nczarr") as found:
        np.testing.assert_array_equal(found.v, data)


@pytest.mark.parametrize("kind", ["|u1", "<i2", "<i4", "<f4"])
def test_nczarr_szip_of_checksums(kind: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'x.file'}#mode=nczarr,file"
    data = (np.arange(320 * 2) // 90).astype(kind).reshape(2, 320)
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("y", 2)
        file.createDimension("x", 320)
        file.createVariable("v", kind, ("y", "x"), chunksizes=(2, 320))[:] = data
    codecs: list[dict[str, Any]] = [
        {"id": "fletcher32"},
        {"id": "szip", "mask": 4, "pixels-per-block": 8},
    ]
    path = tmp_path / "x.file" / "v" / ".zarray"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | {"filters": codecs[:1], "compressor": codecs[1]}))
    array = ChunkedArray("v", (2, 320), (2, 320), np.dtype(kind), codecs=tuple(codecs))
    (path.parent / "0.0").write_bytes(bytes(Encoder(array).encode(data)))
    with netCDF4.Dataset(url) as file:
        np.testing.assert_array_equal(file["v"][:], data)
    with xr.open_dataset(url, engine="nczarr") as found:
        np.testing.assert_array_equal(found.v, data)
