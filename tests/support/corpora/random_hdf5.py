"""Random HDF5 files by h5py: versions, layouts, filters, types, and objects that were changed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.support.corpora import random_values as values

LIBVERS = ("earliest", "v108", "v110", "v112", "v114", "latest", ("earliest", "v110"))
#: What netCDF-C crashes on, does not open or leaves out: h5py alone says what is right.
H5PY_ONLY = ("f2", "opaque", "vlen text", "array", "virtual")
KINDS = ("number",) * 8 + ("enum", "bool", "compound", "fixed", "character", "text", "ragged")


@dataclass
class Made:
    """A file that was made at random.

    Attributes
    ----------
    path : Path
        Where it is.
    netcdf : bool
        Whether netCDF-C is able to open it.
    alone : bool
        Whether all data are in it.
    steps : list[str]
        How it was made.
    h5py_options : dict
        How h5py opens it.
    """

    path: Path
    netcdf: bool
    alone: bool
    steps: list[str]
    h5py_options: dict[str, Any]


class _Maker:
    def __init__(self, choose: random.Random, path: Path) -> None:
        self.choose = choose
        self.path = path
        self.steps: list[str] = []
        self.netcdf = True
        self.alone = True
        self.taken: dict[str, set[str]] = {}
        self.scales: list[h5py.Dataset] = []
        self.sources: set[str] = set()
        self.virtuals = 0

    def name(self, group: h5py.Group) -> str:
        return values.name(self.choose, self.taken.setdefault(group.name, set()))

    def maybe(self, chance: float) -> bool:
        return self.choose.random() < chance

    # -- the file

    def make(self) -> Made:
        choose = self.choose
        options: dict[str, Any] = {"libver": choose.choice(LIBVERS)}
        if self.maybe(0.2):
            options["userblock_size"] = choose.choice([512, 1024, 8192])
        if self.maybe(0.3):
            options["track_order"] = True
        if self.maybe(0.2) and "userblock_size" not in options:
            options["fs_strategy"] = choose.choice(["fsm", "page", "aggregate", "none"])
            options["fs_persist"] = choose.random() < 0.5
            if options["fs_strategy"] == "page":
                options["fs_page_size"] = choose.choice([512, 4096])
        if self.maybe(0.15) and "userblock_size" not in options:
            options |= {"alignment_threshold": 100, "alignment_interval": choose.choice([64, 999])}
        if self.maybe(0.1):
            options["meta_block_size"] = choose.choice([512, 1 << 16])
        if "userblock_size" in options:  # netCDF4-python takes it for a classic file
            self.netcdf = False
        self.steps.append(f"File({options})")
        swmr = options["libver"] == "latest" and "userblock_size" not in options and self.maybe(0.4)
        with h5py.File(self.path, "w", **options) as file:
            if "userblock_size" in options and self.maybe(0.5):
                file.flush()
            groups = self.groups(file)
            for _ in range(choose.choice([0, 1, 2])):
                self.scale(file)
            many = self.maybe(0.05)
            for _ in range(choose.choice([30, 70]) if many else choose.randint(1, 6)):
                self.dataset(choose.choice(groups))
            if not swmr:
                self.change(file)
            for group in groups:
                self.attributes(group)
            if swmr and self.swmr(file):
                copied = self.path.with_suffix(".copied.h5")
                shutil.copy(self.path, copied)
                self.steps.append("copied while it is written")
                return Made(copied, False, self.alone, self.steps, {"swmr": True})
        if "userblock_size" in options:
            with self.path.open("r+b") as raw:
                raw.write(b"#!/bin/sh\n")
        if self.maybe(0.2):
            with h5py.File(self.path, "r+") as file:
                self.steps.append("opened again")
                self.scales = []
                self.change(file)
                self.dataset(file)
        return Made(self.path, self.netcdf, self.alone, self.steps, {})

    def groups(self, file: h5py.File) -> list[h5py.Group]:
        found: list[h5py.Group] = [file]
        for _ in range(self.choose.choice([0, 0, 1, 3])):
            above = self.choose.choice(found)
            order = self.choose.choice([None, True, False])
            found.append(above.create_group(self.name(above), track_order=order))
        return found

    def scale(self, file: h5py.File) -> None:
        size = self.choose.choice([1, 3, 5, 17])
        maxshape = (None,) if self.maybe(0.4) else None
        scale = file.create_dataset(
            self.name(file), data=np.arange(size, dtype="f8"), maxshape=maxshape
        )
        scale.make_scale(scale.name.strip("/") if self.maybe(0.7) else "")
        self.scales.append(scale)
        self.steps.append(f"scale {scale.name} {size} {maxshape}")

    # -- datasets

    def dtype(self) -> tuple[str, Any]:
        """A kind of type, and a dtype."""
        choose = self.choose
        kind = choose.choice(KINDS) if self.maybe(0.93) else choose.choice(H5PY_ONLY[:-1])
        order: Any = choose.choice("<<>")
        if kind == "number":
            return kind, np.dtype(choose.choice(values.NUMBERS)).newbyteorder(order)
        if kind == "f2":
            return kind, np.dtype("f2").newbyteorder(order)
        if kind == "enum":
            base = np.dtype(choose.choice(values.INTEGERS)).newbyteorder(order)
            return kind, h5py.enum_dtype({"none": 0, "some": 7, "all": 100}, base)
        if kind == "bool":
            return kind, np.dtype("?")
        if kind == "compound":
            fields: list[Any] = [
                (f"f{n}", np.dtype(choose.choice(values.NUMBERS)).newbyteorder(order))
                for n in range(choose.randint(1, 4))
            ]
            if self.maybe(0.3):
                fields.append(("grid", "i2", choose.choice([(2,), (2, 3)])))
            return kind, np.dtype(fields, align=self.maybe(0.4))
        if kind == "fixed":
            length = choose.choice([2, 5, 40])
            return kind, h5py.string_dtype(choose.choice(["ascii", "utf-8"]), length)
        if kind == "character":
            return kind, np.dtype("S1")
        if kind == "text":
            return kind, h5py.string_dtype(choose.choice(["ascii", "utf-8"]))
        if kind == "ragged":
            base = np.dtype(choose.choice(values.NUMBERS)).newbyteorder(order)
            return kind, h5py.vlen_dtype(base)
        if kind == "opaque":
            return kind, np.dtype("V5")
        if kind == "array":
            return kind, np.dtype((choose.choice(values.NUMBERS), (3,)))
        return kind, h5py.vlen_dtype(h5py.string_dtype())

    def data(self, kind: str, dtype: Any, shape: tuple[int, ...]) -> Any:
        choose = self.choose
        size = int(np.prod(shape))
        if kind in ("number", "f2"):
            return values.numbers(choose, shape, dtype.str)
        if kind == "enum":
            base = h5py.check_dtype(enum=dtype) and dtype.newbyteorder("=").str
            return np.array(choose.choices([0, 7, 100], k=size), base).reshape(shape).astype(dtype)
        if kind == "bool":
            return np.array(choose.choices([True, False], k=size)).reshape(shape)
        if kind == "compound":
            array = np.zeros(shape, dtype)
            for field in dtype.names:
                inner = dtype[field]
                base, more = inner.subdtype or (inner, ())
                array[field] = values.numbers(choose, (*shape, *more), base.str)
            return array
        if kind == "fixed":
            length = dtype.itemsize
            some = choose.choices([b"", b"ab", b"x" * length, b"c d"], k=size)
            return np.array(some, f"S{length}").reshape(shape).astype(dtype)
        if kind == "character":
            return np.array(choose.choices([b"a", b"Z", b"", b" "], k=size), "S1").reshape(shape)
        if kind == "opaque":
            return np.frombuffer(choose.randbytes(5 * size), "V5").reshape(shape)
        if kind == "array":
            base, more = dtype.subdtype
            return values.numbers(choose, (*shape, *more), base.str)
        if kind == "text":
            found = values.texts(choose, shape)
            if h5py.check_string_dtype(dtype).encoding == "ascii":
                for at in np.ndindex(shape):
                    found[at] = str(found[at]).encode("ascii", "replace").decode()
            return found
        array = np.empty(shape, object)
        for at in np.ndindex(shape):
            count = choose.choice([0, 1, 3, 50])
            if kind == "ragged":
                array[at] = values.numbers(choose, (count,), h5py.check_vlen_dtype(dtype).str)
            else:
                array[at] = values.texts(choose, (count,))
        return array

    def dataset(self, group: h5py.Group) -> h5py.Dataset | None:
        choose = self.choose
        if self.maybe(0.04):
            return self.virtual(group)
        kind, dtype = self.dtype()
        if kind in H5PY_ONLY:
            self.netcdf = False
        scale = choose.choice(self.scales) if self.scales and self.maybe(0.5) else None
        rank = choose.choice([0, 1, 1, 2, 2, 3, 4]) if scale is None else 1
        shape = tuple(
            choose.choice([1, 2, 3, 7, 12, 20][: 6 if rank < 3 else 4]) for _ in range(rank)
        )
        if scale is not None:
            shape = scale.shape
        if kind == "ragged" and not shape:  # netCDF4-python returns the elements of the one row
            self.netcdf = False
        options: dict[str, Any] = {}
        layout = choose.choice(["plain", "compact", "chunked", "chunked", "chunked"])
        if rank and layout == "chunked":
            options |= self.chunked(kind, dtype, shape, scale)
        elif layout == "compact":
            options["compact"] = True
        if kind == "number" and self.maybe(0.4):
            options["fillvalue"] = values.number(choose, dtype.newbyteorder("=").str)
        if kind == "compound" and self.maybe(0.3):
            options["fillvalue"] = self.data(kind, dtype, ())[()]
        name = self.name(group)
        dataset = self.create(group, name, shape, dtype, options)
        self.steps.append(f"{dataset.name}: {kind} {dtype} {shape} {options}")
        written = choose.choice(["all", "all", "part", "nothing"])
        if written == "part" and kind == "bool" and not dataset.chunks:
            written = "all"  # what was in the file before are no booleans
        if written != "nothing" and not (written == "part" and kind == "array"):
            key = values.part(choose, shape) if written == "part" else tuple(map(slice, shape))
            self.fill(dataset, key, kind)
        if written == "part" and dataset.chunks and kind == "number" and self.maybe(0.3):
            self.direct(dataset, options)
        if scale is not None:
            dataset.dims[0].attach_scale(scale)
        self.attributes(dataset)
        self.steps.append(f"  wrote {written}")
        return dataset

    def fill(self, dataset: h5py.Dataset, key: tuple[slice, ...], kind: str) -> None:
        """Write random data into a region."""
        region = tuple(range(dataset.shape[n])[k] for n, k in enumerate(key))
        data = self.data(kind, dataset.dtype, tuple(map(len, region)))
        if kind in ("ragged", "vlen text"):  # h5py takes rows of one length for dimensions
            for at in np.ndindex(data.shape):
                dataset[tuple(indices[n] for indices, n in zip(region, at, strict=True))] = data[at]
        else:
            dataset[key or ...] = data

    def create(
        self,
        group: h5py.Group,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        options: dict[str, Any],
    ) -> h5py.Dataset:
        options = dict(options)
        compact = options.pop("compact", False)
        nbit = options.pop("nbit", False)
        early = options.pop("early", None)
        if not (compact or nbit or early):
            return group.create_dataset(name, shape, dtype, **options)
        chunks = options.pop("chunks", None)
        maxshape = options.pop("maxshape", None)
        fill = options.pop("fillvalue", None)
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks is not None:
            properties.set_chunk(chunks)
        if compact:
            properties.set_layout(h5py.h5d.COMPACT)
        if fill is not None:
            properties.set_fill_value(np.asarray(fill))
        if early is not None:
            properties.set_alloc_time(early)
        if nbit:
            properties.set_filter(h5py.h5z.FILTER_NBIT, h5py.h5z.FLAG_OPTIONAL, ())
        space = (
            h5py.h5s.create_simple(
                shape, tuple(h5py.h5s.UNLIMITED if n is None else n for n in maxshape or shape)
            )
            if shape
            else h5py.h5s.create(h5py.h5s.SCALAR)
        )
        type_ = h5py.h5t.py_create(dtype, logical=True)
        return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), type_, space, properties))

    def chunked(
        self, kind: str, dtype: Any, shape: tuple[int, ...], scale: h5py.Dataset | None
    ) -> dict[str, Any]:
        choose = self.choose
        options: dict[str, Any] = {
            "chunks": tuple(choose.choice([1, max(1, n // 2), n, min(n, 5)]) for n in shape)
        }
        growing = scale is not None and scale.maxshape[0] is None
        if (self.maybe(0.4) and scale is None) or growing:
            # text of a fixed length that grows crashes netCDF-C
            options["maxshape"] = tuple(
                choose.choice([None, n, n + 3]) if not growing else None for n in shape
            )
            if kind == "fixed":
                self.netcdf = False
        if self.maybe(0.1) and kind == "number":
            return options | {"nbit": True}
        if self.maybe(0.15) and kind == "number":
            return options | {
                "early": choose.choice([h5py.h5d.ALLOC_TIME_EARLY, h5py.h5d.ALLOC_TIME_INCR])
            }
        if self.maybe(0.6):
            options["shuffle"] = self.maybe(0.5)
            options["fletcher32"] = self.maybe(0.3) and kind not in ("text", "ragged", "vlen text")
            codec = choose.choice([None, "gzip", "gzip", "lzf", "szip"])
            one = int(np.prod(options["chunks"])) == 1
            if codec == "szip" and (kind != "number" or options["fletcher32"] or one):
                codec = "gzip"
            if codec == "lzf":
                self.netcdf = False
            if codec is not None:
                options["compression"] = codec
            if codec == "gzip":
                options["compression_opts"] = choose.randint(0, 9)
            elif codec == "szip":
                pixels = choose.choice(
                    [n for n in (2, 4, 8, 32) if n <= np.prod(options["chunks"])]
                )
                options["compression_opts"] = (choose.choice(["nn", "ec"]), pixels)
        elif self.maybe(0.2) and kind == "number" and dtype.kind in "iu":
            options["scaleoffset"] = choose.choice([0, 7, dtype.itemsize * 8])
        return options

    def direct(self, dataset: h5py.Dataset, options: dict[str, Any]) -> None:
        """Write a chunk whose filters were all skipped, as optional filters are."""
        filters = sum(bool(options.get(key)) for key in ("shuffle", "fletcher32", "compression"))
        if "scaleoffset" in options or "nbit" in options:
            return
        data = values.numbers(self.choose, dataset.chunks, dataset.dtype.str)
        at = tuple(
            chunk * self.choose.randrange(-(-size // chunk))
            for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)
        )
        dataset.id.write_direct_chunk(at, data.tobytes(), (1 << filters) - 1)
        self.steps.append(f"  direct chunk at {at} without {filters} filters")

    def virtual(self, group: h5py.Group) -> h5py.Dataset:
        """A virtual dataset of one in this file, or of one beside it."""
        self.netcdf = False
        dtype = self.choose.choice(values.NUMBERS)
        data = values.numbers(self.choose, (4, 6), dtype)
        self.virtuals += 1
        beside = self.maybe(0.4)
        layout = h5py.VirtualLayout((8, 6), dtype)
        if beside:
            self.alone = False
            name = f"{self.path.stem}-source.h5"
            with h5py.File(self.path.with_name(name), "w") as other:
                other["d"] = data
            source = h5py.VirtualSource(name, "d", (4, 6))
        else:
            own = self.name(group)
            group[own] = data
            self.sources.add(group[own].name)
            source = h5py.VirtualSource(group[own])
        kind = self.choose.choice(["rows", "strides", "half"])
        if kind == "rows":
            layout[0:4], layout[4:8] = source, source
        elif kind == "strides":
            layout[0::2], layout[1::2] = source, source
        else:
            layout[2:6, 0:6:2] = source[:, 0:3]
        self.steps.append(f"virtual {kind} {dtype} beside={beside}")
        return group.create_virtual_dataset(
            self.name(group), layout, fillvalue=self.choose.randint(0, 9)
        )

    # -- attributes

    def attributes(self, where: h5py.Group | h5py.Dataset) -> None:
        choose = self.choose
        count = choose.choice([0, 1, 3]) if self.maybe(0.92) else choose.choice([12, 40])
        taken: set[str] = set()
        for _ in range(count):
            name = values.name(choose, taken)
            kind = choose.choice(["one", "many", "text", "fixed", "texts", "long", "none"])
            order: Any = choose.choice("<>")
            dtype = np.dtype(choose.choice(values.NUMBERS)).newbyteorder(order).str
            value: Any
            if kind == "one":
                value = values.number(choose, dtype)
            elif kind == "many":
                value = values.numbers(choose, (choose.randint(1, 9),), dtype)
            elif kind == "text":
                value = values.text(choose)
            elif kind == "fixed":
                value = np.bytes_(choose.choice([b"a", b"units", b"two words"]))
            elif kind == "texts":
                value = list(values.texts(choose, (choose.randint(1, 3),)))
            elif kind == "long":
                value = "z" * choose.choice([1000, 60000, 70000])
                if len(value) > 64000:
                    value = np.array([value.encode()], h5py.string_dtype())
            else:
                value = np.zeros(0, dtype)
            where.attrs[name] = value
        if count and self.maybe(0.3):
            gone = choose.choice(sorted(taken))
            del where.attrs[gone]
            if self.maybe(0.5):
                where.attrs[gone] = values.text(choose)

    # -- changes

    def change(self, file: h5py.File) -> None:
        """Resize, delete, rename and link what is there."""
        found: list[h5py.Dataset] = []
        file.visititems(
            lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None
        )
        found = [
            d
            for d in found
            if not (d.is_scale or d.is_virtual or d.name in self.sources)
            and "DIMENSION_LIST" not in d.attrs
        ]
        for dataset in found:
            if dataset.chunks and dataset.maxshape != dataset.shape and self.maybe(0.6):
                for _ in range(self.choose.choice([1, 2])):
                    shape = tuple(self.choose.randint(1, most or 25) for most in dataset.maxshape)
                    self.steps.append(f"{dataset.name} resized to {shape}")
                    dataset.resize(shape)
            elif self.maybe(0.1):
                self.steps.append(f"{dataset.name} deleted")
                del file[dataset.name]
            elif self.maybe(0.1):
                name = self.name(dataset.parent)
                self.steps.append(f"{dataset.name} is now {name}")
                dataset.parent.move(dataset.name, f"{dataset.parent.name.rstrip('/')}/{name}")

    def swmr(self, file: h5py.File) -> bool:
        """Go on as a single writer with readers; whether to copy the file meanwhile."""
        growing = [
            d
            for d in file.values()
            if isinstance(d, h5py.Dataset)
            and d.chunks
            and d.maxshape[0] is None
            and d.dtype.kind in "iuf"
            and not d.is_scale
        ]
        file.swmr_mode = True
        self.steps.append("swmr")
        for dataset in growing:
            for _ in range(self.choose.randint(1, 6)):
                size = dataset.shape[0]
                dataset.resize(size + 3, 0)
                dataset[size:] = self.choose.randint(0, 9)
            dataset.flush()
            self.steps.append(f"{dataset.name} grew to {dataset.shape}")
        file.flush()
        return self.maybe(0.5) and not self.virtuals  # which libhdf5 does not read meanwhile


def write(choose: random.Random, path: Path) -> Made:
    """Make a random file at `path`, by what `choose` says."""
    return _Maker(choose, path).make()


#: How to make a file, by what it is.
Make = Callable[[random.Random, Path], Made]
