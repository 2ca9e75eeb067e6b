"""What can be done to a dataset: documents, values, names, chunks that nobody expects."""

from __future__ import annotations

import bz2
import json
import lzma
import random
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tests.support.corpora.samples import METADATA, Objects

#: Whole documents nobody expects.
DOCUMENTS = [
    b"", b" ", b"\0", b"{", b"[", b"{}", b"[]", b"null", b"5", b'"x"', b"NaN", b"{]", b"[1,]",
    b"{,}", b'{"a"}', b'{"a":}', b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b"[" * 100_000,
    b'{"a":' * 100_000, b'"' + b"\\" * 99_999, b"9" * 10_000, b"{}" * 2, b"'", b'{"a": 1, "a": 2}',
    b"[" * 300 + b"]" * 300, b'{"a":' * 900 + b"1" + b"}" * 900, b"<html></html>", b"\\u0000",
]  # fmt: skip

NAMES = [
    "", " ", ".", "..", "/", "//", "/x", "x/", "a/../b", "../x", "../../etc/passwd", "/etc/passwd",
    "x\0y", "\0", "\ud800", "\udce9", "x" * 5000, "a/" * 3000, "\u202e", "C:\\x", "..\\x", "0",
    ".zgroup", "_scalar_", "/g/x", "/nope/x", "x",
]  # fmt: skip
LENGTHS = [
    0, 1, 2, 3, 4, 5, 7, -1, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 10**30, 1.5, "4",
    True,
]  # fmt: skip
DTYPES: list[Any] = [
    "|O", "|V0", "|V4", "<U1", "<U4", "<U100000", "|S4", "|S2000000000", "<M8[0s]", "<M8[ns]",
    "<m8[D]", "<M8", "T", "<f8", "<f2", "<f16", ">i2", "|i1", "|J0", ">S1", "|b1", "<c16", "<q",
    "i4", "12", "int32", [["a", "<i4"], ["b", "|O"]], [["a", "<i4", [2**40]]], [["a", None]],
    [["a", "<i2"], ["b", "<i2"]], [["a", {"names": ["x"], "formats": ["|O"]}]], [[]],
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 0}},
    {"name": "struct"}, "bool", "string", "r99999999999999", "complex64",
]  # fmt: skip
CODECS: list[Any] = [
    {"id": "pickle"}, {"id": "nonesuch"}, {"id": 5}, {"id": ""}, {}, {"id": "zlib"},
    {"id": "gzip"}, {"id": "bz2"}, {"id": "zstd"}, {"id": "lz4"}, {"id": "blosc"}, {"id": "lzma"},
    {"id": "lzma", "format": 3, "filters": [{"id": 33, "dict_size": 2**32 - 1}]}, {"id": "lzma",
    "format": "x"}, {"id": "shuffle", "elementsize": 2**40}, {"id": "shuffle", "elementsize": -4},
    {"id": "shuffle"}, {"id": "shuffle", "elementsize": 2**70}, {"id": "szip", "mask": 1,
    "pixels-per-block": 2**40}, {"id": "szip", "mask": 4, "pixels-per-block": 8}, {"id": "json2"},
    {"id": "vlen-utf8"}, {"id": "vlen-bytes"}, {"id": "zlib", "level": "x"}, {"id": "zlib",
    "level": [1]}, {"id": "blosc", "shuffle": {}, "cname": [1]}, {"id": "delta",
    "dtype": "<U1000000"}, {"id": "delta", "dtype": "|O"}, {"id": "delta", "dtype": "<M8[0s]"},
    {"id": "delta", "dtype": "<i8", "astype": "<i1"}, {"id": "fletcher32"}, {"id": "crc32"},
    {"id": "packbits"}, {"id": "categorize", "labels": ["a"], "dtype": "<U100000000"},
    {"id": "categorize", "labels": ["a", 1], "dtype": "|O"}, {"id": "astype", "encode_dtype": "|O",
    "decode_dtype": "<i4"}, {"id": "msgpack2"}, {"id": "astype", "encode_dtype": "<M8[0s]",
    "decode_dtype": "<M8[ns]"}, {"id": "base64"}, {"id": "astype", "encode_dtype": "<i4",
    "decode_dtype": "<M8[ns]"}, {"id": "bitround", "keepbits": 99}, {"id": "fixedscaleoffset",
    "scale": 0, "offset": 0, "dtype": "<i4"}, {"id": "quantize", "digits": 1, "dtype": "<f8"},
    {"id": "vlen-array", "dtype": "<i4"}, {"id": "vlen-array", "dtype": "|O"}, {"name": "bytes"},
    {"name": "gzip"}, {"name": "sharding_indexed", "configuration": {}}, {"name": "crc32c"},
]  # fmt: skip
#: Values nobody expects in the middle of a document.
VALUES: list[Any] = [
    None, True, False, *LENGTHS, 1e308, float("nan"), float("inf"), "NaN", "Infinity", "scalar",
    "F", "5", "[]", "{}", "AAAA", "days since 2000-01-01", *NAMES, *DTYPES, *CODECS, [], {}, [[]],
    [None], [True], [2**62, 2**62], [1] * 40, ["x", "x"], ["_scalar_"], ["/x"], [{"id": "pickle"}],
    {"size": 2**62}, {"size": -1}, {"size": 4, "unlimited": 1}, {"name": "x"},
    json.loads("[" * 300 + "]" * 300),
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
    "_nczarr_attr", "_nczarr_array", "_nczarr_group", "_nczarr_superblock", "_NCZARR_ATTR",
    "types", "_NCProperties", "dimension_names", "codecs", "chunk_grid", "data_type", "node_type",
    "\ud800", "attributes", "consolidated_metadata", "storage_transformers", "_Encoding",
    "grid_mapping",
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
        "blosc": b"\x02\x01\x02\x01" + promise + b"\0\0\x10\0\x20" + bytes(19),
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
