"""Good datasets as ``{key: bytes}``, to be damaged (`tests.support.faults.damage`)."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[2] / "data" / "vectors"
METADATA = (
    *(".zgroup", ".zattrs", ".zarray", ".zmetadata"),
    *(".nczarr", ".nczgroup", ".nczvar", ".nczattr"),
    "zarr.json",
)

Objects = dict[str, bytes]


def vector(name: str) -> Objects:
    """A dataset that netCDF-C wrote (``tests/data/vectors``)."""
    path = DATA / f"{name}.zip"
    path = path if path.exists() else DATA / f"{name}.dataset.zip"
    with zipfile.ZipFile(path) as archive:
        objects = {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}
    if path.name.endswith(".dataset.zip"):
        return {key.partition("/")[2]: data for key, data in objects.items()}
    return objects


#: Groups /, /g1, /g1/sub, /emptygrp.
NCZARR = dict(vector("dims-nczarr+file-4.10.1"))
CONSOLIDATED = dict(vector("dims-nczarr+consolidated+file-4.10.1"))


def encoded(chunk: np.ndarray[Any, Any], *configs: dict[str, Any]) -> bytes:
    """A chunk through a chain of numcodecs."""
    import numcodecs

    data: Any = chunk
    for config in configs:
        data = numcodecs.get_codec(dict(config)).encode(data)
    return np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else bytes(data)


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
    "zlib_fletcher32": ({"id": "zlib", "level": 5}, {"id": "fletcher32"}),
    "bz2_fletcher32": ({"id": "bz2", "level": 5}, {"id": "fletcher32"}),
    "blosc_crc32": (
        {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        {"id": "crc32"},
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


def zarr3() -> Objects:
    """Zarr v3 as zarr-python writes it."""
    import zarr
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    content: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # strings have no specification yet
        root = zarr.create_group(store, zarr_format=3, attributes={"title": "three"})
        group = root.create_group("g", attributes={"a": [1, 2]})
        for name, compressor in (("blosc", BloscCodec()), ("gzip", GzipCodec()), ("raw", None)):
            made = root.create_array(
                name,
                shape=4,
                dtype="i4",
                chunks=(2,),
                compressors=compressor,
                dimension_names=["x"],
            )
            made[:] = I4
        made = root.create_array(
            "shard", shape=(8,), dtype="f8", chunks=(2,), shards=(4,), compressors=ZstdCodec(),
            dimension_names=["y"], attributes={"units": "m"},
        )  # fmt: skip
        made[:] = np.arange(8)
        x = root.create_array("x", shape=4, dtype="f8", chunks=(4,), dimension_names=["x"])
        x[:] = np.arange(4)
        text = group.create_array("text", shape=4, dtype=str, chunks=(4,))
        text[:] = np.array(["a", "b", "cc", "d"])
        group.create_array("s", shape=(), dtype="i2", attributes={"_FillValue": "AAAAAAAA8D8="})
    return {key: buffer.to_bytes() for key, buffer in content.items()}


#: All of them by name.
DATASETS: dict[str, Callable[[], Objects]] = {
    "codecs": codecs,
    "v3": zarr3,
    **{path.stem: partial(vector, path.stem) for path in sorted(DATA.glob("*.json"))},
}
