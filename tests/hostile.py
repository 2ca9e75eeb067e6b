"""Good datasets, what can be done to them, and what must hold whatever was done.

Used by ``tests/test_hostile.py`` and by the stress script ``ci/fuzz.py``.
"""

from __future__ import annotations

import bz2
import json
import lzma
import pickle
import random
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from nczarr_fsspec.keystore import check_key
from nczarr_xarray import NCZarrError, NCZarrWarning, open_hierarchy
from nczarr_xarray.model import Variable
from nczarr_xarray.reader import Opened

DATA = Path(__file__).parent / "data" / "vectors"
METADATA = (".zgroup", ".zattrs", ".zarray", ".zmetadata", ".nczarr", ".nczgroup", ".nczvar")
METADATA += (".nczattr", "zarr.json")

Objects = dict[str, bytes]


# -- good datasets ---------------------------------------------------------------


def vector(name: str) -> Objects:
    """A dataset that netCDF-C wrote (``tests/data/vectors``)."""
    path = DATA / f"{name}.zip"
    path = path if path.exists() else DATA / f"{name}.dataset.zip"
    with zipfile.ZipFile(path) as archive:
        objects = {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}
    if path.name.endswith(".dataset.zip"):
        return {key.partition("/")[2]: data for key, data in objects.items()}
    return objects


def encoded(chunk: np.ndarray[Any, Any], *configs: dict[str, Any]) -> bytes:
    """A chunk through a chain of numcodecs."""
    import numcodecs

    data: Any = chunk
    for config in configs:
        data = numcodecs.get_codec(dict(config)).encode(data)
    return bytes(np.ascontiguousarray(data).view(np.uint8)) if hasattr(data, "view") else bytes(data)


#: Chains of codecs, of a chunk of four int32.
I4_CODECS: dict[str, tuple[dict[str, Any], ...]] = {
    "raw": (),
    "zlib": ({"id": "zlib", "level": 5},),
    "gzip": ({"id": "gzip", "level": 5},),
    "bz2": ({"id": "bz2", "level": 1},),
    "zstd": ({"id": "zstd", "level": 1},),
    "blosc": ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},),
    "blosc_zstd": ({"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2},),
    "lz4": ({"id": "lz4"},),
    "lzma": ({"id": "lzma", "format": 1, "preset": 1},),
    "fletcher32": ({"id": "fletcher32"},),
    "crc32": ({"id": "crc32"},),
    "adler32": ({"id": "adler32"},),
    "shuffle_zlib": ({"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 5}),
    "fletcher32_zlib": ({"id": "fletcher32"}, {"id": "zlib", "level": 5}),
    "shuffle_zstd_fletcher32": (
        {"id": "shuffle", "elementsize": 4},
        {"id": "zstd", "level": 1},
        {"id": "fletcher32"},
    ),
    "delta_zlib": ({"id": "delta", "dtype": "<i4"}, {"id": "zlib", "level": 5}),
    "scale_lz4": (
        {"id": "fixedscaleoffset", "scale": 2, "offset": 1, "dtype": "<i4", "astype": "<i8"},
        {"id": "lz4"},
    ),
    "astype_bz2": (
        {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"},
        {"id": "bz2", "level": 1},
    ),
    "base64": ({"id": "base64"},),
    "json2": ({"id": "json2"},),
}
#: The same of four strings.
TEXT_CODECS: dict[str, tuple[dict[str, Any], ...]] = {
    "vlen": ({"id": "vlen-utf8"},),
    "vlen_zstd": ({"id": "vlen-utf8"}, {"id": "zstd", "level": 1}),
    "vlen_zlib": ({"id": "vlen-utf8"}, {"id": "zlib", "level": 1}),
    "vlen_blosc": ({"id": "vlen-utf8"}, {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}),
    "json_lzma": ({"id": "json2"}, {"id": "lzma", "preset": 1}),
    "categorize": (
        {"id": "categorize", "labels": ["a", "b", "cc", "d"], "dtype": "|O", "astype": "|u1"},
        {"id": "zlib", "level": 1},
    ),
}
I4 = np.array([7, -1, 300, 4], dtype="<i4")
TEXT = np.array(["a", "b", "cc", "d"], dtype=object)


def array(
    chunk: np.ndarray[Any, Any], codecs: tuple[dict[str, Any], ...], **changes: Any
) -> tuple[bytes, bytes]:
    """``.zarray`` and the one chunk of an array."""
    metadata = {
        "zarr_format": 2,
        "shape": list(chunk.shape),
        "chunks": list(chunk.shape),
        "dtype": chunk.dtype.str,
        "order": "C",
        "fill_value": None if chunk.dtype.kind == "O" else 0,
        "filters": list(codecs[:-1]) or None,
        "compressor": codecs[-1] if codecs else None,
        **changes,
    }
    if chunk.dtype.kind == "O":  # whatever makes bytes of objects is a filter
        metadata |= {"filters": list(codecs), "compressor": None}
    return json.dumps(metadata).encode(), encoded(chunk, *codecs)


def codecs() -> Objects:
    """Pure Zarr v2 with one variable for each chain of codecs, along one dimension."""
    objects = {".zgroup": b'{"zarr_format": 2}', ".zattrs": b'{"title": "codecs"}'}
    dims = b'{"_ARRAY_DIMENSIONS": ["x"], "units": "m"}'
    for chunk, chains in ((I4, I4_CODECS), (TEXT, TEXT_CODECS)):
        for name, chain in chains.items():
            objects[f"{name}/.zarray"], objects[f"{name}/0"] = array(chunk, chain)
            objects[f"{name}/.zattrs"] = dims
    objects["x/.zarray"], objects["x/0"] = array(np.arange(4.0), I4_CODECS["zlib"])
    objects["x/.zattrs"] = dims
    time = b'{"_ARRAY_DIMENSIONS": ["x"], "units": "days since 2000-01-01"}'
    objects["when/.zarray"], objects["when/0"] = array(np.arange(4.0), I4_CODECS["zlib"])
    objects["when/.zattrs"] = time
    return objects


@cache
def zarr3() -> Objects:
    """Zarr v3 as zarr-python writes it."""
    import zarr
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    store = zarr.storage.MemoryStore()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # strings have no specification yet
        root = zarr.create_group(store, zarr_format=3, attributes={"title": "three"})
        group = root.create_group("g", attributes={"a": [1, 2]})
        for name, compressor in (("blosc", BloscCodec()), ("gzip", GzipCodec()), ("raw", None)):
            made = root.create_array(
                name, shape=4, dtype="i4", chunks=2, compressors=compressor, dimension_names=["x"]
            )
            made[:] = I4
        made = root.create_array(
            "shard", shape=(8,), dtype="f8", chunks=(2,), shards=(4,), compressors=ZstdCodec(),
            dimension_names=["y"], attributes={"units": "m"},
        )  # fmt: skip
        made[:] = np.arange(8)
        x = root.create_array("x", shape=4, dtype="f8", chunks=4, dimension_names=["x"])
        x[:] = np.arange(4)
        text = group.create_array("text", shape=4, dtype=str, chunks=4)
        text[:] = np.array(["a", "b", "cc", "d"])
        group.create_array("s", shape=(), dtype="i2", attributes={"_FillValue": "AAAAAAAA8D8="})
    return {key: buffer.to_bytes() for key, buffer in store._store_dict.items()}


DATASETS: dict[str, Callable[[], Objects]] = {
    "codecs": codecs,
    "v3": zarr3,
    **{
        path.name.removesuffix(".zip").removesuffix(".dataset"): (
            lambda name=path.name.removesuffix(".zip").removesuffix(".dataset"): vector(name)
        )
        for path in sorted(DATA.glob("*.zip"))
    },
}


# -- what can be done to them ----------------------------------------------------

#: Whole documents nobody expects.
DOCUMENTS = [
    b"", b" ", b"\0", b"{", b"[", b"{}", b"[]", b"null", b"5", b'"x"', b"NaN", b"{]", b"[1,]",
    b"{,}", b'{"a"}', b'{"a":}', b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b"[" * 100_000,
    b'{"a":' * 100_000, b'"' + b"\\" * 99_999, b"9" * 10_000, b"{}" * 2, b"'", b'{"a": 1, "a": 2}',
    b"[" * 300 + b"]" * 300, b'{"a":' * 900 + b"1" + b"}" * 900, b"<html></html>", b"\\u0000",
]  # fmt: skip

NAMES = [
    "", " ", ".", "..", "/", "//", "/x", "x/", "a/../b", "../x", "../../etc/passwd", "/etc/passwd",
    "x\0y", "\0", "\ud800", "\udce9", "x" * 5000, "a/" * 3000, "\u202e", "C:\\x", "..\\x", "0", ".zgroup",
    "_scalar_", "/g/x", "/nope/x", "x",
]  # fmt: skip
LENGTHS = [
    0, 1, 2, 3, 4, 5, 7, -1, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 10**30, 1.5, "4", True,
]  # fmt: skip
DTYPES: list[Any] = [
    "|O", "|V0", "|V4", "<U1", "<U4", "<U100000", "|S4", "|S2000000000", "<M8[0s]", "<M8[ns]", "<m8[D]",
    "<M8", "T", "<f8", "<f2", "<f16", ">i2", "|i1", "|J0", ">S1", "|b1", "<c16", "<q", "i4", "12", "int32",
    [["a", "<i4"], ["b", "|O"]], [["a", "<i4", [2**40]]], [["a", None]], [["a", "<i2"], ["b", "<i2"]],
    [["a", {"names": ["x"], "formats": ["|O"]}]], [[]], {"name": "numpy.datetime64", "configuration":
    {"unit": "s", "scale_factor": 0}}, {"name": "struct"}, "bool", "string", "r99999999999999", "complex64",
]  # fmt: skip
CODECS: list[Any] = [
    {"id": "pickle"}, {"id": "nonesuch"}, {"id": 5}, {"id": ""}, {}, {"id": "zlib"}, {"id": "gzip"},
    {"id": "bz2"}, {"id": "zstd"}, {"id": "lz4"}, {"id": "blosc"}, {"id": "lzma"}, {"id": "lzma",
    "format": 3, "filters": [{"id": 33, "dict_size": 2**32 - 1}]}, {"id": "lzma", "format": "x"},
    {"id": "shuffle", "elementsize": 2**40}, {"id": "shuffle", "elementsize": -4}, {"id": "shuffle"},
    {"id": "shuffle", "elementsize": 2**70}, {"id": "szip", "mask": 1, "pixels-per-block": 2**40},
    {"id": "szip", "mask": 4, "pixels-per-block": 8}, {"id": "json2"}, {"id": "vlen-utf8"}, {"id": "vlen-bytes"},
    {"id": "zlib", "level": "x"}, {"id": "zlib", "level": [1]}, {"id": "blosc", "shuffle": {}, "cname": [1]},
    {"id": "delta", "dtype": "<U1000000"}, {"id": "delta", "dtype": "|O"}, {"id": "delta", "dtype": "<M8[0s]"},
    {"id": "delta", "dtype": "<i8", "astype": "<i1"}, {"id": "fletcher32"}, {"id": "crc32"}, {"id": "packbits"},
    {"id": "categorize", "labels": ["a"], "dtype": "<U100000000"}, {"id": "categorize", "labels": ["a", 1],
    "dtype": "|O"}, {"id": "astype", "encode_dtype": "|O", "decode_dtype": "<i4"}, {"id": "msgpack2"},
    {"id": "astype", "encode_dtype": "<M8[0s]", "decode_dtype": "<M8[ns]"}, {"id": "base64"},
    {"id": "astype", "encode_dtype": "<i4", "decode_dtype": "<M8[ns]"}, {"id": "bitround", "keepbits": 99},
    {"id": "fixedscaleoffset", "scale": 0, "offset": 0, "dtype": "<i4"}, {"id": "quantize", "digits": 1,
    "dtype": "<f8"}, {"id": "vlen-array", "dtype": "<i4"}, {"id": "vlen-array", "dtype": "|O"},
    {"name": "bytes"}, {"name": "gzip"}, {"name": "sharding_indexed", "configuration": {}}, {"name": "crc32c"},
]  # fmt: skip
#: Values nobody expects in the middle of a document.
VALUES: list[Any] = [
    None, True, False, *LENGTHS, 1e308, float("nan"), float("inf"), "NaN", "Infinity", "scalar", "F", "5",
    "[]", "{}", "AAAA", "days since 2000-01-01", *NAMES, *DTYPES, *CODECS, [], {}, [[]], [None], [True],
    [2**62, 2**62], [1] * 40, ["x", "x"], ["_scalar_"], ["/x"], [{"id": "pickle"}], {"size": 2**62},
    {"size": -1}, {"size": 4, "unlimited": 1}, {"name": "x"}, json.loads("[" * 300 + "]" * 300),
]  # fmt: skip
#: What is worth trying where.
POOLS: dict[str, list[Any]] = {
    "shape": [[n] for n in LENGTHS] + [[2**62, 2**62], [4, 0], [], [4, 4], [1] * 40, [2**62, 0]],
    "chunks": [[n] for n in LENGTHS] + [[2**62, 2**62], [], [4, 4], [1] * 40],
    "chunk_shape": [[n] for n in LENGTHS],
    "dtype": DTYPES,
    "data_type": DTYPES,
    "compressor": CODECS,
    "filters": [[codec] for codec in CODECS] + [[one, {"id": "zlib"}] for one in CODECS],
    "codecs": [[{"name": "bytes"}, codec] for codec in CODECS],
    "fill_value": VALUES,
    "dimension_references": [[name] for name in NAMES] + [[], ["x", "x"]],
    "dimrefs": [[name] for name in NAMES] + [[], ["x", "x"]],
    "_ARRAY_DIMENSIONS": [[name] for name in NAMES] + [[], ["x", "x"]],
    "dimension_names": [[name] for name in NAMES] + [[], ["x", "x"], [None]],
    "arrays": [[name] for name in NAMES],
    "vars": [[name] for name in NAMES],
    "groups": [[name] for name in NAMES],
    "dimensions": [{name: 4} for name in NAMES],
    "dims": [{name: 4} for name in NAMES],
    "size": LENGTHS,
    "types": [{"units": code} for code in DTYPES],
    "level": [None, "x", [1], {}, 2**70],
    "units": ["days since garbage", "days since 0000-00-00", 5, ["a"], ""],
}

MEMBERS = [
    "", "..", "/", "a/../b", "x\0", "shape", "chunks", "dtype", "filters", "compressor", "order",
    "fill_value", "dimension_separator", "zarr_format", "_ARRAY_DIMENSIONS", "_FillValue", "units",
    "scale_factor", "add_offset", "missing_value", "coordinates", "calendar", "_Unsigned", "dtype",
    "_nczarr_attr", "_nczarr_array", "_nczarr_group", "_nczarr_superblock", "_NCZARR_ATTR", "types",
    "_NCProperties", "dimension_names", "codecs", "chunk_grid", "data_type", "node_type", "\ud800",
    "attributes", "consolidated_metadata", "storage_transformers", "_Encoding", "grid_mapping",
]  # fmt: skip


@cache
def bombs() -> dict[str, bytes]:
    """Small chunks that inflate to 64 MiB or more, or claim that they do."""
    block = bytes(1 << 20)
    deflate = zlib.compressobj(9, wbits=-15)
    megabyte = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, wbits=-15).flush()
    sum_of_zeros = ((1 << 30) % 65521 << 16 | 1).to_bytes(4, "big")
    # zstd: frames without and with a stated size, of blocks that repeat one byte
    count = 1 << 13
    sizes = ((1 << 17) << 3 | 1 << 1 | (i == count - 1) for i in range(count))
    frame = b"".join(size.to_bytes(3, "little") + b"a" for size in sizes)
    zstd = 0xFD2FB528.to_bytes(4, "little")
    promise = (2**31 - 32).to_bytes(4, "little")
    return {
        "zlib": b"\x78\xda" + megabyte * 1024 + end + sum_of_zeros,
        "gzip": b"\x1f\x8b\x08" + bytes(7) + megabyte * 1024 + end + bytes(8),
        "bz2": bz2.compress(bytes(1 << 26), 9),
        "lzma": lzma.compress(bytes(1 << 26), preset=1),
        "zstd": zstd + b"\x00\x58" + frame,
        "zstd with its size": zstd + b"\xc0\x58" + (1 << 30).to_bytes(8, "little") + frame,
        "blosc": b"\x02\x01\x02\x01" + promise + (1 << 20).to_bytes(4, "little") + b"\x20" + bytes(19),
        "lz4": promise + bytes(100),
        "vlen": b"\xff" * 4 + bytes(100),
        "json": b'["a", "|O", [2147483647]]',
    }


def mutate(objects: Mapping[str, bytes], rng: random.Random) -> tuple[Objects, set[str]]:
    """Damage a dataset at random.

    Returns
    -------
    objects, touched
        The damaged dataset, and the keys of what differs.
    """
    damaged = dict(objects)
    touched: set[str] = set()
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        key = rng.choice(sorted(damaged) or [".zgroup"])
        data = damaged.get(key, b"")
        is_metadata = key.rpartition("/")[2] in METADATA
        kind = rng.random()
        touched.add(key)
        if is_metadata and kind < 0.7:
            damaged[key] = mutate_json(data, rng)
        elif kind < 0.76:
            damaged.pop(key, None)
        elif kind < 0.8:
            damaged[key] = rng.choice(DOCUMENTS)
        elif kind < 0.83:
            damaged[key] = objects[rng.choice(sorted(objects))]
        elif kind < 0.86:
            damaged[key] = rng.choice(list(bombs().values()))
        elif kind < 0.9:  # an object under another name
            name = rng.choice(MEMBERS) if rng.random() < 0.7 else "n/" * rng.randrange(2000)
            other = "/".join([*key.split("/")[:-1], name, key.rpartition("/")[2]])
            damaged[other] = data
            touched.add(other)
        else:
            damaged[key] = mutate_bytes(data, rng)
    return damaged, touched


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, insert, cut, repeat."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(6)
        if kind < 2 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2 and at < len(changed):
            changed[at] = rng.choice((0, 255, 127, rng.randrange(256)))
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 40)))
        elif kind == 4:
            del changed[at:]
        else:
            end = rng.randrange(at, len(changed) + 1)
            changed[at:at] = changed[at:end]
    return bytes(changed)


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Change one value or name inside a document."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng)
    places = list(_places(document))
    if not places:
        return json.dumps(rng.choice(VALUES)).encode()
    known = [place for place in places if place[1] in POOLS]
    holder, name = rng.choice(known if known and rng.random() < 0.5 else places)
    kind = rng.random()
    if kind < 0.65:
        pool = POOLS.get(name, VALUES) if rng.random() < 0.7 else VALUES
        holder[name] = rng.choice(pool)
    elif kind < 0.75:
        del holder[name]
    elif kind < 0.85 and isinstance(holder, dict):
        holder[rng.choice(MEMBERS)] = holder.pop(name)
    elif isinstance(holder, dict):
        member = rng.choice(MEMBERS)
        holder[member] = rng.choice(POOLS.get(member, VALUES))
    else:
        holder.insert(name, rng.choice(VALUES))
    return json.dumps(document).encode()


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a document that can be changed: ``holder[name]``."""
    if not isinstance(document, (dict, list)):
        return
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in list(pairs):
        yield document, name
        yield from _places(value)


# -- what must hold --------------------------------------------------------------


class Spy(Mapping[str, bytes]):
    """A mapping that remembers every key it was asked for."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = objects
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> bytes:
        self.asked.add(key)
        return self.objects[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)

    def check(self) -> None:
        """Fail if a key was asked for that leads out of the dataset."""
        for key in self.asked:
            check_key(key)


Values = dict[str, np.ndarray[Any, Any] | NCZarrError]


def as_remote(objects: Mapping[str, bytes]) -> Any:
    """The same in a store that answers from an event loop, as those behind networks do."""
    from zarr.core.buffer.cpu import Buffer
    from zarr.storage import MemoryStore

    return MemoryStore({key: Buffer.from_bytes(data) for key, data in objects.items()})


def read_all(objects: Mapping[str, bytes], *, remote: bool = False) -> Values | NCZarrError:
    """Every variable by path, or why not; anything but an error of ours gets out."""
    spy = Spy(objects)
    values: Values = {}
    try:
        opened = open_hierarchy(as_remote(objects) if remote else spy)
        for group in opened.hierarchy.root.walk():
            for variable in group.variables.values():
                values[variable.path] = _read(opened, variable)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return error
    finally:
        spy.check()
    return values


def _read(opened: Opened, variable: Variable) -> np.ndarray[Any, Any] | NCZarrError:
    try:
        data = opened.read(variable)
    except NCZarrError as error:
        assert error.object
        assert error.reason
        return error
    assert data.shape == variable.shape, variable
    if variable.dtype.kind != "O":
        assert data.dtype == variable.dtype.newbyteorder("="), variable
    return data


def check_untouched(before: Values, after: Values, touched: set[str]) -> None:
    """Fail if a variable reads differently although nothing of it was changed.

    What a group says concerns everything, so there is nothing to check if that
    was changed. Where dimensions are known by their variables only (pure Zarr),
    a variable may contradict another, which then cannot be read.
    """
    holders = {key.rpartition("/")[0] for key in touched if key.rpartition("/")[2] in METADATA}
    if not all(f"/{holder}" in before for holder in holders):
        return
    changed = {f"/{key.rpartition('/')[0]}" for key in touched} | {
        path for path in before if any(f"/{key}".startswith(f"{path}/") for key in touched)
    }
    for path, value in before.items():
        if path in changed or isinstance(value, NCZarrError):
            continue
        found = after[path]
        if isinstance(found, NCZarrError):
            assert "where other variables have" in found.reason, (path, found)
        else:
            np.testing.assert_array_equal(found, value, err_msg=path)


def open_with_xarray(objects: Mapping[str, bytes], **options: Any) -> dict[str, xr.Dataset] | None:
    """All groups, looked at in every way that must not raise; None if the root is refused.

    A variable that cannot be read may raise when it is loaded, and nowhere else.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            groups = xr.open_groups(dict(objects), engine="nczarr", **options)
        except NCZarrError:
            return None
    warned = "\n".join(str(w.message) for w in caught if w.category is NCZarrWarning)
    for path, dataset in groups.items():
        repr(dataset)
        again = pickle.loads(pickle.dumps(dataset))
        assert list(again.variables) == list(dataset.variables)
        for name, variable in dataset.variables.items():
            try:
                variable.copy().load()
            except NCZarrError as error:
                # a chunk may say so only now; metadata must have said so before
                known = ".z" in error.object or ".ncz" in error.object
                label = f"{path.rstrip('/')}/{name}"
                assert not known or label in warned, (label, error)
            except Exception as error:
                # xarray may find out only here that the attributes are nonsense
                files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
                if any("nczarr_" in file for file in files):
                    raise
    return groups
