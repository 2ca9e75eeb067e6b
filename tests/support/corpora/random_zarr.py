"""Random Zarr trees by zarr-python, of format 2 and 3."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any, Literal

import numcodecs
import numpy as np
import zarr
from zarr import codecs as v3

from tests.support.corpora import random_values as values
from tests.support.corpora.random_hdf5 import Made

V2_COMPRESSORS: tuple[Any, ...] = (
    None,
    numcodecs.Zlib(1),
    numcodecs.GZip(1),
    numcodecs.BZ2(1),
    numcodecs.LZMA(),
    numcodecs.Zstd(1),
    numcodecs.LZ4(),
    numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
    numcodecs.Blosc("zstd", 1, numcodecs.Blosc.BITSHUFFLE),
    numcodecs.Blosc("zlib", 1, numcodecs.Blosc.NOSHUFFLE),
    numcodecs.Blosc("blosclz", 3, numcodecs.Blosc.AUTOSHUFFLE),
)
V3_COMPRESSORS: tuple[Any, ...] = (
    None,
    v3.GzipCodec(level=1),
    v3.ZstdCodec(level=1),
    v3.ZstdCodec(level=1, checksum=True),
    v3.BloscCodec(cname="lz4", shuffle="shuffle"),
    v3.BloscCodec(cname="zstd", shuffle="bitshuffle"),
    (v3.GzipCodec(level=1), v3.Crc32cCodec()),
)


class _Maker:
    def __init__(self, choose: random.Random, path: Path) -> None:
        self.choose = choose
        self.path = path
        formats: list[Literal[2, 3]] = [2, 2, 3]
        self.format = choose.choice(formats)
        self.steps = [f"format {self.format}"]

    def maybe(self, chance: float) -> bool:
        return self.choose.random() < chance

    def make(self) -> Made:
        choose = self.choose
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types and metadata that zarr-python dislikes
            root = zarr.open_group(self.path, mode="w", zarr_format=self.format)
            groups = [root]
            taken: dict[str, set[str]] = {}
            for _ in range(choose.choice([0, 0, 1, 2])):
                above = choose.choice(groups)
                name = self.name(taken.setdefault(above.path, set()))
                groups.append(above.create_group(name))
            for group in groups:
                group.attrs.update(self.attributes())
            sizes = {f"d{n}": choose.choice([1, 2, 3, 5, 12]) for n in range(4)}
            for _ in range(choose.randint(1, 6)):
                group = choose.choice(groups)
                self.array(group, self.name(taken.setdefault(group.path, set())), sizes)
            consolidated = self.maybe(0.5)
            if consolidated:
                zarr.consolidate_metadata(self.path, zarr_format=self.format)
        self.steps.append(f"consolidated {consolidated}")
        # a server without listings shows what consolidated metadata tell
        return Made(self.path, netcdf=False, alone=consolidated, steps=self.steps, h5py_options={})

    def name(self, taken: set[str]) -> str:
        return values.name(self.choose, taken)

    def attributes(self) -> dict[str, Any]:
        choose = self.choose
        taken: set[str] = {"_FillValue"}
        found: dict[str, Any] = {}
        for _ in range(choose.choice([0, 1, 3])):
            found[values.name(choose, taken)] = choose.choice(
                [1, -5, 2**40, 1.5, -1e300, "text", "grüße", "", [1, 2, 3], [0.5, 1.5], ["a", "b"]]
            )
        return found

    def array(self, group: Any, name: str, sizes: dict[str, int]) -> None:
        choose = self.choose
        dims = tuple(choose.sample(sorted(sizes), choose.choice([0, 1, 1, 2, 2, 3])))
        shape = tuple(sizes[d] for d in dims)
        kind = choose.choice(
            values.NUMBERS if self.maybe(0.85) else ("?", "f2", "c8", "S3", "text")
        )
        order: Any = choose.choice("<>")
        dtype: Any = kind if kind == "text" else np.dtype(kind).newbyteorder(order)
        options: dict[str, Any] = {
            "chunks": tuple(choose.choice([1, max(1, n // 2), n, min(5, n)]) for n in shape),
        }
        if kind in values.NUMBERS:
            options["fill_value"] = choose.choice([None, 0, values.number(choose, kind)])
            if self.format == 3 and options["fill_value"] is None:
                options["fill_value"] = 0
        attributes = self.attributes()
        named = self.maybe(0.85)
        if self.format == 2:
            options["order"] = choose.choice("CCF")
            options["chunk_key_encoding"] = {
                "name": "v2", "configuration": {"separator": choose.choice("./")},
            }  # fmt: skip
            options["compressors"] = choose.choice(V2_COMPRESSORS)
            if kind in values.NUMBERS and self.maybe(0.2):
                size = np.dtype(kind).itemsize
                options["filters"] = [numcodecs.Shuffle(size)]
            if kind in ("i4", "i8") and self.maybe(0.2):
                options["filters"] = [numcodecs.Delta(dtype.str)]
            if named:
                attributes["_ARRAY_DIMENSIONS"] = list(dims)
        else:
            if kind != "text":
                options["compressors"] = choose.choice(V3_COMPRESSORS)
                options["serializer"] = v3.BytesCodec(endian="big" if self.maybe(0.3) else "little")
            dtype = dtype if kind == "text" else np.dtype(kind)
            if named:
                options["dimension_names"] = dims
            if self.maybe(0.3) and kind in values.NUMBERS and shape:
                options["shards"] = tuple(2 * n for n in options["chunks"])
            if self.maybe(0.2) and len(shape) > 1:
                order = list(range(len(shape)))
                choose.shuffle(order)
                options["filters"] = (v3.TransposeCodec(order=tuple(order)),)
            if self.maybe(0.3):
                options["chunk_key_encoding"] = {
                    "name": choose.choice(["default", "v2"]),
                    "configuration": {"separator": choose.choice("./")},
                }
        self.steps.append(f"{group.path}/{name} {dtype} {dims} {shape} {options}")
        array = group.create_array(
            name,
            shape=shape,
            dtype=str if kind == "text" else dtype,
            attributes=attributes,
            **options,
        )
        written = choose.choice(["all", "all", "part", "nothing"])
        filled = options.get("fill_value", 0) is not None
        if not filled or (not shape and written == "part"):
            written = "all"
        self.steps.append(f"  writes {written}")
        if written != "nothing":
            key = values.part(choose, shape) if written == "part" else tuple(map(slice, shape))
            written_shape = tuple(
                len(range(*k.indices(n))) for k, n in zip(key, shape, strict=True)
            )
            array[key or ...] = self.data(kind, written_shape)

    def data(self, kind: str, shape: tuple[int, ...]) -> Any:
        size = int(np.prod(shape))
        if kind == "text":
            return values.texts(self.choose, shape)
        if kind == "?":
            return np.array(self.choose.choices([True, False], k=size)).reshape(shape)
        if kind == "S3":
            return np.array(self.choose.choices([b"", b"ab", b"xyz"], k=size), "S3").reshape(shape)
        if kind == "c8":
            pair = values.numbers(self.choose, (2, *shape), "f4")
            return (np.nan_to_num(pair[0]) + 1j * np.nan_to_num(pair[1])).astype("c8")
        return values.numbers(self.choose, shape, kind)


def write(choose: random.Random, path: Path) -> Made:
    """Make a random tree at `path`, by what `choose` says."""
    return _Maker(choose, path).make()
