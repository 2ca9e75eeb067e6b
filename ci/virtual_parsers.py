#!/usr/bin/env python3
"""Have VirtualiZarr read 500 files by our parser and by its own ones, and compare what they give.

    python ci/virtual_parsers.py [FOLDER]

The files are those of the corpora of the tests, files made at random, and files in the form of
other projects; netCDF-C, h5py, h5netcdf, xarray and scipy write them. FOLDER keeps them. They are
served over HTTP, so that requests, bytes and rounds of a parser are counted. The values of each
variable are read through zarr-python, and compared with those that h5py or netCDF4-python reads.
1 is returned if a variable is right by a parser of VirtualiZarr and not by ours, or wrong by ours.
It needs VirtualiZarr 2.8, and so Python 3.12 or later.
"""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import xarray as xr
import zarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import HTTPStore
from virtualizarr.manifests import ManifestStore
from virtualizarr.parsers import HDFParser, NetCDF3Parser

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from latency import Server  # type: ignore[import-not-found]  # noqa: E402 - the path comes first

from nczarr_fsspec.ranges.index_memory import memory  # noqa: E402
from nczarr_xarray import NCZarrParser  # noqa: E402
from tests.support.corpora import (  # noqa: E402
    classic_corpus,
    hdf5_corpus,
    random_hdf5,
    random_netcdf,
    stored_forms,
)

FILES = 500
#: Files of which VirtualiZarr's store has more: netCDF shows no bitfields, and no dataset of xarray
#: has a variable that does not fit its dimension.
KNOWN = ("h5_odd_bitfield", "h5_scale_of_other_length", "h5_scale_longer_than_variable")
#: Of larger variables the first elements are compared.
MOST = 1_000_000
#: Where netCDF4-python is called.
POOL: list[ProcessPoolExecutor] = []
OURS, THEIRS = "nczarr-xarray", "VirtualiZarr"

Write = Callable[[Path], Any]


# ------------------------------------------------------------------------------------ files


def _classic() -> Iterator[tuple[str, Write]]:
    for content, version in classic_corpus.CORPUS:
        yield f"{content} {version}", partial(classic_corpus.make, content, version)
    for model in ("NETCDF3_CLASSIC", "NETCDF3_64BIT"):
        for seed in range(5):
            growing = ["time"] * (seed % 2)
            options: Any = {"engine": "scipy", "format": model, "unlimited_dims": growing}
            yield f"scipy {model} {seed}", partial(_dataset(seed, "S").to_netcdf, **options)
    yield from _forms("CDF-1", "CDF-2", "CDF-5")


def _netcdf4() -> Iterator[tuple[str, Write]]:
    for name in (name for name in hdf5_corpus.CASES if name.startswith("nc_")):
        yield name, hdf5_corpus.CASES[name]
    for seed in range(20):
        engine = ("netcdf4", "h5netcdf")[seed % 2]
        growing = ["time"] * (seed % 3 == 0)
        options: Any = {"engine": engine, "unlimited_dims": growing, "encoding": _encoding(seed)}
        yield f"{engine} {seed}", partial(_dataset(seed, str).to_netcdf, **options)
    yield from _forms("netCDF-4")
    for seed in range(10_000):
        yield f"random {seed}", partial(random_netcdf.write, random.Random(seed))  # noqa: S311


def _hdf5() -> Iterator[tuple[str, Write]]:
    for name in (name for name in hdf5_corpus.CASES if name.startswith("h5_")):
        yield name, hdf5_corpus.CASES[name]
    for libver in random_hdf5.LIBVERS[:6]:
        yield f"anndata {libver}", partial(anndata, libver)
        yield f"MATLAB {libver}", partial(matlab, libver)
    yield from _forms("HDF5")
    for seed in range(10_000):
        yield f"random {seed}", partial(random_hdf5.write, random.Random(seed))  # noqa: S311


def _forms(*names: str) -> Iterator[tuple[str, Write]]:
    for name in names:
        source = stored_forms.SOURCES[name]
        write: Any = source.write
        yield f"forms {name}", partial(_written, write, source.forms, source.attributes)


def _written(write: Any, forms: Any, attributes: Any, path: Path) -> None:
    write(path, forms, attributes)


def _dataset(seed: int, text: Any) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    names = np.array([f"place {n}" for n in range(5)])
    return xr.Dataset(
        {
            "tas": (("time", "y", "x"), rng.normal(280, 9, (12, 30, 40)).astype("f4")),
            "packed": (("time", "y"), rng.integers(-99, 99, (12, 30), "i2"), {"units": "m"}),
            "place": ("place", names.astype(text)),
        },
        {"time": np.arange(12.0), "y": np.arange(30), "x": np.arange(40.0)},
        {"title": "made"},
    )


def _encoding(seed: int) -> dict[str, dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {},
        {"zlib": True, "shuffle": True, "chunksizes": (5, 7, 40)},
        {"fletcher32": True, "chunksizes": (12, 30, 1)},
        {"zlib": True, "dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -1},
        {"dtype": ">f8", "chunksizes": (1, 30, 40)},
    ]
    return {"tas": made[seed % len(made)]}


def anndata(libver: Any, path: Path) -> None:
    """Write the layout of AnnData: a sparse matrix, data frames with categories and texts."""
    rng, text = np.random.default_rng(0), h5py.string_dtype()
    with h5py.File(path, "w", libver=libver) as file:
        matrix = file.create_group("X")
        matrix.attrs.update({"encoding-type": "csr_matrix", "shape": [50, 20]})
        for name, values in (
            ("data", rng.random(300, "f4")),
            ("indices", rng.integers(0, 20, 300, "i4")),
            ("indptr", np.linspace(0, 300, 51).astype("i4")),
        ):
            matrix.create_dataset(name, data=values, chunks=(32,), compression="gzip")
        for frame, count in (("obs", 50), ("var", 20)):
            group = file.create_group(frame)
            group.attrs.update({"encoding-type": "dataframe", "_index": "_index"})
            group.create_dataset("_index", data=[f"c{n}" for n in range(count)], dtype=text)
            kind = group.create_group("kind")
            kind["codes"] = rng.integers(0, 2, count, "i1")
            kind.create_dataset("categories", data=["a", "b"], dtype=text)
            group["seen"] = rng.random(count) > 0.5
        file.create_dataset(
            "obsm/X_pca", data=rng.random((50, 4)), chunks=(25, 2), compression="lzf"
        )
        file["uns/method"] = "leiden"
        file["uns/none"] = h5py.Empty("f4")


def matlab(libver: Any, path: Path) -> None:
    """Write the layout of MATLAB 7.3: a user block, transposed arrays, references to cells."""
    with h5py.File(path, "w", libver=libver, userblock_size=512) as file:
        for name, values in (
            ("numbers", np.arange(12.0).reshape(3, 4)),
            ("name", np.frombuffer("größe".encode("utf-16-le"), "u2")[:, None]),
            ("flag", np.array([[1]], "u1")),
            ("z", np.array([1 + 2j, 3 - 4j]).view([("real", "f8"), ("imag", "f8")])),
        ):
            file.create_dataset(name, data=values).attrs["MATLAB_class"] = np.bytes_("double")
        file["#refs#/a"] = np.arange(3.0)
        cells = file.create_dataset("cells", (1, 1), h5py.ref_dtype)
        cells[0, 0] = file["#refs#/a"].ref
        file["s/field"] = np.arange(4, dtype=">i4")
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file")


def make(folder: Path) -> dict[str, list[Path]]:
    """Write the files, those that are made at random last, and sort them by what they are."""
    found: dict[str, list[Path]] = {"classic netCDF": [], "netCDF-4": [], "other HDF5": []}
    for kind, cases in (
        ("classic netCDF", _classic),
        ("netCDF-4", _netcdf4),
        ("other HDF5", _hdf5),
    ):
        left = FILES - sum(map(len, found.values()))
        most = left if kind == "other HDF5" else (left + 1) // 2
        for number, (name, write) in enumerate(itertools.islice(cases(), most)):
            path = folder / f"{kind.split()[0]}{number}" / f"{name.replace(' ', '_')}.nc"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path)
            is_classic = path.read_bytes()[:3] == b"CDF"
            found["classic netCDF" if is_classic else kind].append(path)
    return found


# ---------------------------------------------------------------------------------- oracles


class Oracle:
    """What h5py reads of a file, and netCDF4-python of a classic one or where h5py differs."""

    def __init__(self, path: Path) -> None:
        self.path, self.names = path, set[str]()
        self.h5py: Any = None
        if path.read_bytes()[:3] == b"CDF":
            with netCDF4.Dataset(path) as file:
                self.names |= {*file.variables}
        else:
            self.h5py = h5py.File(path)
            self.h5py.visititems(self._visit)

    def _visit(self, name: str, item: Any) -> None:
        told = item.attrs.get("NAME", b"") if isinstance(item, h5py.Dataset) else b""
        if isinstance(item, h5py.Dataset) and not (
            isinstance(told, bytes) and told.startswith(b"This is a netCDF dimension but not")
        ):
            self.names.add(bare(name))

    def differs(self, name: str, values: np.ndarray) -> str:
        """Say what each of them reads instead, if no one reads these values."""
        said = []
        for read in (
            (self.by_h5py, partial(apart, self.path))
            if self.h5py
            else (partial(_by_netcdf4, self.path),)
        ):
            try:
                expected = read(name)
                if plain(values) == plain(expected) or padded(values, expected):
                    return ""
            except Exception as error:  # noqa: BLE001 - whatever it raises
                expected = error
            said.append(str(expected)[:99])
        return f"{str(values)[:99]}, not {said}"

    def by_h5py(self, name: str) -> Any:
        variable = self.h5py[name]
        return variable[corner(variable.shape or ())]


@lru_cache(1)
def _opened(path: Path) -> netCDF4.Dataset:
    file = netCDF4.Dataset(path)
    file.set_auto_mask(False)
    file.set_auto_scale(False)
    file.set_auto_chartostring(False)
    return file


def _by_netcdf4(path: Path, name: str) -> Any:
    variable = _opened(path)[name]
    return variable[corner(variable.shape)]


def apart(path: Path, name: str) -> Any:
    """Call it in a process of its own: netCDF-C crashes on some HDF5 files."""
    if not POOL:
        POOL.append(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
    try:
        return POOL[0].submit(_by_netcdf4, path, name).result()
    except BrokenProcessPool:
        POOL.clear()
        raise


def padded(values: np.ndarray, stored: Any) -> bool:
    """Whether values are those that are stored, and one other behind: an unlimited dimension."""
    shape = np.shape(stored)
    if len(shape) != values.ndim or any(np.greater(shape, values.shape)):
        return False
    inside = tuple(map(slice, shape))
    behind = np.ones(values.shape, bool)
    behind[inside] = False
    rest = {repr(one) for one in values[behind].tolist()}
    return len(rest) == 1 and plain(values[inside]) == plain(stored)


def bare(name: str) -> str:
    """Return the name that netCDF-C shows for one that it stores."""
    return name.replace("_nc4_non_coord_", "")


def corner(shape: tuple[int, ...]) -> tuple[slice, ...] | Any:
    """Everything, or the first elements of a variable that is too large."""
    return ... if np.prod(shape, dtype=float) <= MOST else (slice(0, 3),) * len(shape)


def plain(values: Any) -> Any:
    """Values as lists: numbers without types, texts without what fills them up."""
    array = np.asarray(values)
    if array.dtype.kind in "biufc" and array.dtype.kind != "c":
        numbers = array.astype("f8" if array.dtype.kind == "f" else "O")
        return array.shape, repr(numbers.tolist()) if array.dtype.kind == "f" else repr(
            np.vectorize(int, otypes=["O"])(array).tolist() if array.size else []
        )
    return array.shape, repr(_element(array.tolist()))


def _element(value: Any) -> Any:
    match value:
        case bytes():
            return value.rstrip(b"\0").decode("utf-8", "surrogateescape")
        case str():
            return value.rstrip("\0")
        case complex():
            return (value.real, value.imag)
        case bool():
            return int(value)
        case np.ndarray() | np.generic():
            return _element(value.tolist())
        case tuple():
            return tuple(map(_element, value))
        case list():
            return [*map(_element, value)]
    return value


# ---------------------------------------------------------------------------------- parsers


def _arrays(group: Any, above: str = "") -> Iterator[str]:
    yield from (f"{above}{name}" for name in group.arrays)
    for name, below in group.groups.items():
        yield from _arrays(below, f"{above}{name}/")


def parse(parser: Any, server: Server, path: str) -> tuple[Any, collections.Counter[str]]:
    """Return what a parser makes of a file, None if nothing, and what that cost."""
    base = server.url("").rstrip("/")
    store = HTTPStore.from_url(base, client_options={"allow_http": True})
    memory.clear()
    server.control("reset")
    start, found = time.process_time(), None
    try:
        found = parser(f"{base}/{path}", ObjectStoreRegistry({base: store}))
    except Exception as error:  # noqa: BLE001 - each parser has its own
        print(
            f"{path}: {type(parser).__name__}: {type(error).__name__}: {error}"[:300],
            file=sys.stderr,
        )
    spent = time.process_time() - start
    stats = server.control("stats")
    cost = {"requests": stats["requests"], "bytes": stats["bytes"], "rounds": stats["depth"]}
    return found, collections.Counter({**cost, "microseconds": round(spent * 1e6)})


def right(store: Any, oracle: Oracle, path: str) -> tuple[set[str], set[str]]:
    """Which variables of a parser have the right values, and which have not."""
    good, bad = set[str](), set[str]()
    for name in _arrays(store._group):  # noqa: SLF001
        try:
            group: Any = zarr.open_group(store, mode="r", zarr_format=3)
            values = np.asarray(group[name][corner(group[name].shape)])
            difference = oracle.differs(name, values)
        except Exception as error:  # noqa: BLE001 - zarr-python cannot have it
            difference = f"{type(error).__name__}: {error}"[:200]
        (bad if difference else good).add(bare(name))
        if difference:
            print(f"{path}: {name}: {difference}", file=sys.stderr)
    return good, bad


def compare(kind: str, paths: list[Path], folder: Path, server: Server) -> tuple[list[str], int]:
    """Return the rows of the table, and how many variables are missed or wrong by ours."""
    totals = {who: collections.Counter[str]() for who in (OURS, THEIRS)}
    count, missed = 0, 0
    for path in paths:
        name, oracle = str(path.relative_to(folder)), Oracle(path)
        count += len(oracle.names)
        own = HDFParser() if oracle.h5py else NetCDF3Parser()
        parsed = {who: parse(p, server, name) for who, p in ((OURS, NCZarrParser()), (THEIRS, own))}
        found: dict[str, set[str]] = {}
        for who, (store, cost) in parsed.items():
            found[who], bad = right(store, oracle, f"{name}: {who}") if store else (set(), set())
            files = {"files": store is not None, "right": len(found[who]), "wrong": len(bad)}
            totals[who] += collections.Counter(files)
            if all(store for store, _ in parsed.values()):
                totals[who] += cost
        if lacking := found[THEIRS] - found[OURS]:
            print(f"{name}: lacks {sorted(lacking)}", file=sys.stderr)
        missed += len(lacking) if path.stem not in KNOWN else 0
    rows = [
        f"| {kind} ({len(paths)}; {count:,}) | {who} | {one['files']} | {one['right']:,} "
        f"| {one['wrong']} | {one['requests']:,} | {one['rounds']:,} | {one['bytes'] / 1e6:.1f} "
        f"| {one['microseconds'] / 1e6:.1f} |"
        for who, one in totals.items()
    ]
    return rows, missed + totals[OURS]["wrong"]


def _main(folder: Path) -> int:
    warnings.simplefilter("ignore")
    # zarr-python asks for it at each array
    ManifestStore.__str__ = object.__repr__  # type: ignore[method-assign]
    head = ["files (their number; variables)", "parser", "opened", "right", "wrong"]
    print("|", " | ".join([*head, "requests", "rounds", "MB", "s |"]), "\n|---|---|", "---:|" * 7)
    failed = 0
    with Server(folder) as server:
        for kind, paths in make(folder).items():
            rows, wrong = compare(kind, paths, folder, server)
            failed += wrong
            print(*rows, sep="\n", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(_main(Path(sys.argv[1] if len(sys.argv) > 1 else made).resolve()))
